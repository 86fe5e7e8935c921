"""A check that stops work within seconds when a person asks for it, or when its ZooKeeper session is gone."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from sluice.coordination.pause_switch import PauseState
from sluice.coordination.state import PipelineState
from sluice.errors import CoordinationUnavailable, SluiceError

if TYPE_CHECKING:
    from sluice.spark.base import UnitRunner

_T = TypeVar("_T")

LOOK_S = 0.5
"""Seconds between two checks of the pause switch by running work."""

_STOP_S = 2.0
"""Seconds to wait for cancelled units to end. What they still write after that meets the target's fence."""


class CancellationGuard:
    """A check that long-running work calls while it runs, so that a pause or a lost session stops it.

    Raises Paused, Restarted or CoordinationUnavailable. Create it when the work begins.

    Args:
        state: of an open session.
        doing: what the error message says is being done, e.g. ``draining batch 7``.
    """

    def __init__(self, state: PipelineState, doing: str) -> None:
        self._state = state
        self._doing = doing
        self.pause_state: PauseState = state.pause_switch.require()
        self._looked = time.monotonic()

    def __call__(self, *_: object, **__: object) -> None:
        """Raise if the work has to stop. Cheap: asks ZooKeeper at most once in :data:`LOOK_S`."""
        if not self._state.alive:
            raise CoordinationUnavailable(
                f"{self._doing}: the session of the store of positions, and with it the lease, is gone"
            )
        if time.monotonic() - self._looked >= LOOK_S:
            self._looked = time.monotonic()
            self._state.pause_switch.require(since=self.pause_state)

    def call(self, function: Callable[[], _T], *, interrupt: Callable[[], None] | None = None) -> _T:
        """Run ``function`` in a thread. When the work must stop, interrupt and abandon it.

        What it still does then must be fenced.

        ``interrupt``: ends what it waits for, if it can.
        """
        pool = ThreadPoolExecutor(1, thread_name_prefix="verb")
        try:
            work = pool.submit(function)
            while not wait([work], timeout=LOOK_S / 2).done:
                try:
                    self()
                except SluiceError:
                    _interrupted(interrupt)
                    wait([work], timeout=_STOP_S)
                    raise
            return work.result()
        finally:
            pool.shutdown(wait=False)

    def run(
        self,
        runner: UnitRunner,
        function: Callable[[Any], Any],
        units: Sequence[Any],
        *,
        parallelism: int = 4,
        description: str = "",
        interrupt: Callable[[], None] | None = None,
    ) -> list[Any]:
        """Run the units and cancel them when the work must stop."""
        if not units:
            return []
        pool = ThreadPoolExecutor(1, thread_name_prefix="units")
        try:
            work = pool.submit(runner.run, function, units, parallelism=parallelism, description=description)
            while not wait([work], timeout=LOOK_S / 2).done:
                try:
                    self()
                except SluiceError:
                    end = time.monotonic() + _STOP_S
                    while not work.done() and time.monotonic() < end:
                        runner.cancel()  # repeated, as a job that is just being submitted cannot be cancelled yet
                        _interrupted(interrupt)
                        wait([work], timeout=LOOK_S / 2)
                    raise
            return work.result()
        finally:
            pool.shutdown(wait=False)


def _interrupted(interrupt: Callable[[], None] | None) -> None:
    if interrupt is not None:
        with suppress(
            SluiceError
        ):  # the server does not answer: nothing waits there any more, or it ends by its time-out
            interrupt()
