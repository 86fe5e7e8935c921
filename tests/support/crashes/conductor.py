"""A process that moves writes as ``sluice migrate switch`` does, and kills itself at a chosen step.

``python -m tests.support.crashes.conductor CALL WHEN`` prints ``armed`` and waits for ``SIDE LIMIT`` on standard input.
A call is a note in the store of positions, or a server that is opened or closed, counted from 1; 0: none kills it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sluice.cli.migrate import sites_of
from sluice.config.env_file import read_env_file
from sluice.coordination.migrations import MigrationNode, Side
from sluice.errors import SluiceError
from sluice.operations.migrate.handover import hand_over
from sluice.sources.mysql.server.control import MySQLControl

CALLS = 6
"""Calls of a handover that comes to its end: note, seal, note, open, close, note."""
_count = 0


def struck(call: Callable[..., Any], number: int, when: str) -> Callable[..., Any]:
    """Return ``call``, which kills this process ``before`` or ``after`` it if it is the one."""

    def run(*args: Any, **options: Any) -> Any:
        global _count
        _count += 1
        if (_count, "before") == (number, when):
            os.kill(os.getpid(), signal.SIGKILL)
        result = call(*args, **options)
        if (_count, "after") == (number, when):
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    return run


def main() -> None:
    number, when = int(sys.argv[1]), sys.argv[2]
    os.environ.update(read_env_file(Path("sluice.env")))
    MigrationNode.write = struck(MigrationNode.write, number, when)  # type: ignore[method-assign]
    MySQLControl.allow = struck(MySQLControl.allow, number, when)  # type: ignore[method-assign]
    sites = sites_of("shop")
    print("armed", flush=True)
    side, limit_s = sys.stdin.readline().split()
    try:
        print(json.dumps(hand_over(sites, Side(side), limit_s=float(limit_s), by="test").to_json()), flush=True)
    except SluiceError as error:
        print(json.dumps({"done": False, "why": str(error)}), flush=True)


if __name__ == "__main__":
    main()
