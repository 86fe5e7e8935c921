"""Keeps a stack up: what died is started again, on the same port and data. ``python -m devstack.supervisor FOLDER``."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import structlog

from devstack import debian
from devstack.development import Stack, lock_file
from sluice.errors import SluiceError

_log = structlog.get_logger()
_LOOK_S = 1.0
_LONGEST_PAUSE_S = 30.0


def supervise(folder: Path) -> None:
    """Look once a second until the state file is gone. A server that keeps failing is tried ever more slowly."""
    pauses: dict[str, float] = {}
    not_before: dict[str, float] = {}
    while True:
        time.sleep(_LOOK_S)
        stack = Stack.load(folder)
        if stack is None:
            return
        now = time.monotonic()
        due = [name for name in stack.dead() if not_before.get(name, 0.0) <= now]
        if not due:
            continue
        with debian.lock(lock_file(folder)):
            stack = Stack.load(folder)  # what another process did while we waited for the lock
            if stack is None:
                return
            for name in due:
                server = stack.servers[name]
                if server.running:
                    continue
                _log.warning("died; starting it again", server=name)
                pauses[name] = min(pauses.get(name, 0.5) * 2, _LONGEST_PAUSE_S)
                not_before[name] = now + pauses[name]
                try:
                    if server.handle is not None:
                        server.stop(grace_s=2.0)  # what it left behind
                    server.start()
                    stack.save()
                except SluiceError as error:
                    _log.error("does not start", server=name, error=str(error))
        for name in [name for name, when in not_before.items() if now - when > 120]:
            pauses.pop(name)
            not_before.pop(name)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # a server that is half started is taken down on the way out
    supervise(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
