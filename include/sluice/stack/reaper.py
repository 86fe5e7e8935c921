"""Stops servers whose starter died: reads handles from standard input until it closes, then ends what still lives.

A test run that is killed with ``kill -9`` closes the pipe like any other, so nothing it started stays behind.
"""

from __future__ import annotations

import json
import signal
import sys

from sluice.stack import processes
from sluice.stack.processes import Handle


def main() -> None:
    """Entry point of ``python -m sluice.stack.reaper``."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    handles = [Handle.from_json(json.loads(line)) for line in sys.stdin if line.strip()]
    processes.stop(handles, grace_s=3.0)


if __name__ == "__main__":
    main()
