"""Stops servers whose starter died: reads handles from standard input until its owner is gone, then ends what still
lives.

The owner is gone when the pipe closes, or when its process has ended: a forked child of the owner may hold the pipe
open. Arguments: process id and start time (seconds since the epoch) of the owner.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys

import psutil

from devstack import processes
from devstack.processes import Handle

_LOOK_S = 1.0


def main() -> None:
    """Run ``python -m devstack.reaper``."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    owner, started_s = int(sys.argv[1]), float(sys.argv[2])
    received = b""
    while True:
        ready, _, _ = select.select([sys.stdin], [], [], _LOOK_S)
        if ready:
            data = os.read(sys.stdin.fileno(), 65536)
            if not data:
                break
            received += data
        elif not _lives(owner, started_s):
            break
    whole = received[: received.rfind(b"\n") + 1]
    processes.stop([Handle.from_json(json.loads(line)) for line in whole.splitlines() if line.strip()], grace_s=3.0)


def _lives(pid: int, started_s: float) -> bool:
    try:
        process = psutil.Process(pid)
        return abs(process.create_time() - started_s) < 0.05 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


if __name__ == "__main__":
    main()
