"""Keeps a stack up: what died is started again, on the same port and data. ``python -m devstack.supervisor FOLDER``."""

from __future__ import annotations

import signal
import sys
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from datetime import timedelta
from pathlib import Path

import structlog

from devstack import debian, processes
from devstack.development import Stack, lock_file
from devstack.server import Server
from sluice.errors import SluiceError
from sluice.model.backoff import wait_after

_log = structlog.get_logger()
_LOOK_S = 1.0
_FIRST_PAUSE = timedelta(seconds=1)
_LONGEST_PAUSE = timedelta(seconds=15)
_STEADY_S = 20.0
"""A server that ran so long is started again at once; one that dies sooner is tried ever more slowly, as one that does
not start.
"""


class Attempts:
    """The times at which servers may be started again: at once after a death, ever later after starts that failed or
    did not last.
    """

    def __init__(self) -> None:
        self._failures: dict[str, int] = {}
        self._ready_at: dict[str, float] = {}
        self._not_before: dict[str, float] = {}

    def due(self, name: str, now: float) -> bool:
        """Return whether the server may be started now (monotonic seconds)."""
        ready = self._ready_at.pop(name, None)
        if ready is not None and now - ready >= _STEADY_S:
            self._failures.pop(name, None)
        elif ready is not None:
            self._fail(name, now)
        return self._not_before.get(name, 0.0) <= now

    def ended(self, name: str, now: float, *, ready: bool) -> None:
        """Record how a start ended."""
        if ready:
            self._ready_at[name] = now
        else:
            self._fail(name, now)

    def _fail(self, name: str, now: float) -> None:
        self._failures[name] = failures = self._failures.get(name, 0) + 1
        self._not_before[name] = now + wait_after(failures, _FIRST_PAUSE, _LONGEST_PAUSE).total_seconds()


def supervise(folder: Path) -> None:
    """Look once a second until the state file is gone, and start again what died."""
    attempts = Attempts()
    while (stack := Stack.load(folder)) is not None:
        if any(attempts.due(name, time.monotonic()) for name in stack.dead()):
            with debian.lock(lock_file(folder)):
                stack = Stack.load(folder)  # what another process did while we waited for the lock
                if stack is None:
                    return
                heal(stack, attempts)
        time.sleep(_LOOK_S)


def heal(stack: Stack, attempts: Attempts) -> None:
    """Start the servers that died side by side, those too that die meanwhile; return when none is being started.

    A server that starts slowly delays no other one.
    """
    starting: dict[Future[None], str] = {}
    with ThreadPoolExecutor(max_workers=len(stack.servers)) as pool:
        try:
            while True:
                now = time.monotonic()
                for name in sorted(set(stack.dead()) - set(starting.values())):
                    if attempts.due(name, now):
                        _log.warning("server_died", server=name)
                        starting[pool.submit(_start, stack.servers[name])] = name
                if not starting:
                    return
                for done in wait(starting, timeout=_LOOK_S, return_when=FIRST_COMPLETED).done:
                    name, error = starting.pop(done), done.exception()
                    attempts.ended(name, time.monotonic(), ready=error is None)
                    if isinstance(error, SluiceError):
                        _log.error("server_start_failed", server=name, error=str(error))
                    elif error is not None:
                        raise error
                    stack.save()
        except BaseException:
            processes.abort_waits(True)  # a server that is half started is taken down on the way out
            raise


def _start(server: Server) -> None:
    if server.handle is not None:
        server.stop(grace_s=2.0)  # what it left behind
    server.start()


def main() -> None:
    """Supervise the stack of the folder in the first argument until a SIGTERM; interrupts are ignored."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    supervise(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
