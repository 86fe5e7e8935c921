"""One task of a pipeline that stops itself (SIGSTOP) at a named point, and goes on when it is continued.

``python -m tests.faults.stopper PIPELINE.yaml POINT BATCH`` prints the outcome: ``done``, or the kind of error.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sluice.config.loading import load_pipeline
from sluice.coordination.acknowledgements import Acknowledgements
from sluice.coordination.batches import Batches
from sluice.coordination.state import PipelineState
from sluice.errors import SluiceError
from sluice.flows.capture.drain import drain
from sluice.flows.load.ack import ack
from sluice.flows.load.load import load
from sluice.flows.runtime import Runtime
from sluice.flows.transform.merge import merge
from sluice.segments.store import SegmentStore
from sluice.targets.mysql import connection
from sluice.targets.mysql.ack_table import AckTable
from sluice.targets.mysql.target import MySQLTarget
from sluice.targets.sql.checkpoints import AckCheckpoints

POINTS: dict[str, tuple[str, type, str, bool]] = {
    "drain: before its manifest": ("drain", SegmentStore, "write_bytes", False),
    "drain: before its commit": ("drain", PipelineState, "commit", False),
    "merge: before its record": ("merge", Batches, "merged", False),
    "load: before it takes the target over": ("load", AckCheckpoints, "take_over", False),
    "load: before its rows": ("load", MySQLTarget, "load", False),
    "load: inside its transaction": ("load", AckTable, "guard", True),
    "load: before it acknowledges": ("load", AckTable, "acknowledge", False),
    "load: before it moves the checkpoint": ("load", AckCheckpoints, "advance", False),
    "ack: before its move": ("ack", Acknowledgements, "acknowledge", False),
}
"""Point -> task, where to stop, and whether before or after that call."""


def _stop_at(owner: type, name: str, after: bool) -> None:
    original: Callable[..., Any] = getattr(owner, name)

    def stopping(*args: Any, **kwargs: Any) -> Any:
        setattr(owner, name, original)  # once
        if not after:
            os.kill(os.getpid(), signal.SIGSTOP)
        result = original(*args, **kwargs)
        if after:
            os.kill(os.getpid(), signal.SIGSTOP)
        return result

    setattr(owner, name, stopping)


def main(path: str, point: str, batch: str) -> None:
    task, owner, name, after = POINTS[point]
    connection.IDLE_S = 4
    runtime = Runtime.build(load_pipeline(Path(path)), runner="local")
    _stop_at(owner, name, after)
    try:
        if task == "drain":
            drain(runtime, claim="stopper:x:y", idle_wait_s=5)
        elif task == "merge":
            merge(runtime, int(batch))
        elif task == "load":
            load(runtime, "copy", int(batch))
        else:
            ack(runtime, "copy", int(batch))
    except SluiceError as error:
        print(type(error).__name__, str(error))
    else:
        print("done")


if __name__ == "__main__":
    main(*sys.argv[1:4])
