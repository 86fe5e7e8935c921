"""Throttling of a dump: by a rate limit, and by the load of the source and the lag of its replicas."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import structlog

from sluice.model.dumps import Tuning
from sluice.sources.port import Source, SourceLoad

_log = structlog.get_logger()

ASK_EVERY_S = 0.5


class Throttle:
    """Decides when a worker has to wait. One per worker, with its own connections to the replicas that are watched."""

    def __init__(self, replicas: Sequence[tuple[str, SourceLoad]]) -> None:
        self._replicas = replicas
        self._asked = 0.0
        self._held = ""

    @classmethod
    @contextmanager
    def open(cls, source: Source, replicas: Sequence[str]) -> Iterator[Throttle]:
        """Yield a throttle with connections to ``replicas``, as ``dump.replicas`` names them."""
        with ExitStack() as stack:
            yield cls([(name, stack.enter_context(source.open_replica(name))) for name in replicas])

    def hold(self, tuning: Tuning, source: SourceLoad) -> str:
        """Return why a worker has to wait: the source is too busy or a replica is too far behind; ``""`` if it need not
        wait.
        """
        if not tuning.max_threads_running and not tuning.max_replica_lag_s:
            return ""
        if time.monotonic() - self._asked < ASK_EVERY_S:
            return self._held
        why = ""
        if tuning.max_threads_running:
            running = source.running()
            if running > tuning.max_threads_running:
                why = f"{running} statements run at the source"
        if not why and tuning.max_replica_lag_s:
            why = self._lagging(tuning.max_replica_lag_s, source)
        if why and not self._held:
            _log.info("dump_throttled", reason=why)
        self._held, self._asked = why, time.monotonic()
        return why

    def _lagging(self, most_s: float, source: SourceLoad) -> str:
        lags = [("the source, itself a replica,", source.replica_lag_s())]
        lags += [(f"replica {name}", load.replica_lag_s()) for name, load in self._replicas]
        for name, lag in lags:
            if lag is not None and lag > most_s:
                return f"{name} is {lag:.0f} s behind" if math.isfinite(lag) else f"{name} does not follow its source"
        return ""

    @staticmethod
    def pause(tuning: Tuning, rows: int, took_s: float) -> float:
        """Return the seconds to wait after a chunk: the delay, or what the rate limit leaves of the time that a chunk
        may take.
        """
        wait = tuning.delay_ms / 1000
        if tuning.max_rows_per_second:
            wait = max(wait, rows * tuning.parallelism / tuning.max_rows_per_second - took_s)
        return wait


__all__ = ["Throttle"]
