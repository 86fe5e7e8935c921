"""Forks crews on demand, so that one that was killed is there again at once: everything is imported, and the kernels
are loaded, once.

``python -m tests.faults.nursery`` reads one JSON line a crew
(``{"log": …, "arguments": [PIPELINE, NAME, LANES, EVENTS, CLOCK]}``), answers with its process id, and ends with its
input. A crew is a session of its own, and none of the faults meets the nursery.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from typing import Any

from sluice.sources.mysql.reader.warm_up import compile_kernels
from tests.faults import crew

PRELOADED = (
    "sluice.coordination.zookeeper", "sluice.segments.store", "sluice.segments.writer", "sluice.segments.reader",
    "sluice.spark.local", "sluice.targets.mysql.target",
)  # fmt: skip
"""What flows import only when they need it."""


def bear(order: dict[str, Any]) -> int:
    """A crew in a process of its own; returns its id."""
    child = os.fork()
    if child:
        return child
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for new, old in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(new, old)
        os.closerange(3, 64)
        crew.main(*order["arguments"])
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def main() -> None:
    for name in PRELOADED:
        __import__(name)
    compile_kernels()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel collects the dead
    for line in sys.stdin:
        print(bear(json.loads(line)), flush=True)


if __name__ == "__main__":
    main()
