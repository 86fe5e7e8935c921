"""A small scheduler of flows, as Airflow's local executor runs them: one forked process a task, retried until it
succeeds.

:func:`main` runs until its process is ended. A lane is a run: drain, merge, load and ack of each target, each task in a
process of its own that may be killed or paused. Lanes know nothing of each other: the order of batches is ZooKeeper's
business. Every start and end is a line in a file; another says how wrong the wall clock is. With a file PIPELINE.turns
beside the pipeline, crews take turns.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import traceback
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sluice.config.loading import load_pipeline
from sluice.errors import LeaseHeld, SluiceError
from sluice.flows.capture.drain import drain
from sluice.flows.job import run_microbatches
from sluice.flows.load.ack import ack
from sluice.flows.load.load import load
from sluice.flows.runtime import Runtime
from sluice.flows.transform.merge import merge
from tests.faults.clock import obey

IDLE_WAIT_S = 0.5
RETRY_S = 0.2
STANDBY_S = 0.8
"""A drain that stands by asks again after this long: five of six do, and what they cost everybody waits for."""

_FAILED, _STANDS_BY = 75, 76


@dataclass
class Lane:
    """One run at a time: ``todo`` are the tasks that are left of it."""

    pipeline: Path
    crew: str
    answer: Path
    claim: str = ""
    batch: int | None = None
    todo: list[tuple[str, str]] = field(default_factory=list)
    child: int = 0
    not_before: float = 0.0

    def next_task(self) -> tuple[str, str]:
        if not self.todo:
            self.claim, self.batch = f"crew:{self.crew}:{uuid.uuid4().hex[:8]}", None
            self.todo = [("drain", ""), ("merge", "")]
            for target in load_pipeline(self.pipeline).targets:
                self.todo += [("load", target.name), ("ack", target.name)]
        return self.todo[0]

    def work(self, task: str, target: str) -> None:
        """In the forked child."""
        owner = f"crew:{self.crew.rstrip('0123456789')}" if self.pipeline.with_suffix(".turns").exists() else None
        runtime = Runtime.build(load_pipeline(self.pipeline), runner="local", owner=owner)
        if task == "drain":
            number = self._drained(runtime)
            if number is not None:
                partial = self.answer.with_suffix(".tmp")
                partial.write_text(str(number))
                partial.rename(self.answer)
        elif task == "merge":
            with runtime.state() as state:
                claimed = state.batches.claimed_all(self.claim)
            for number in [int(batch.number) for batch in claimed if batch.needs_merge]:
                merge(runtime, number)
        elif task == "load":
            load(runtime, target, self._number)
        else:
            ack(runtime, target, self._number)

    def _drained(self, runtime: Runtime) -> int | None:
        """Drain in one of the ways there are: Airflow's loop, and that of `sluice run`."""
        if int(self.claim[-1], 16) % 2:
            return run_microbatches(runtime, claim=self.claim, idle_wait_s=IDLE_WAIT_S).last.batch
        return drain(runtime, claim=self.claim, idle_wait_s=IDLE_WAIT_S).batch

    def ended(self, status: int) -> None:
        if status == 0 and self.todo[0][0] == "drain":
            if not self.answer.exists():
                return  # idle: the same run looks again
            self.batch = int(self.answer.read_text())
            self.answer.unlink()
        if status == 0:
            self.todo.pop(0)
        else:
            stands_by = os.waitstatus_to_exitcode(status) == _STANDS_BY
            self.not_before = time.monotonic() + (STANDBY_S if stands_by else RETRY_S)

    @property
    def _number(self) -> int:
        assert self.batch is not None
        return self.batch


def main(pipeline: str, crew: str, lanes: str, events: str, clock: str) -> None:
    """``pipeline``: its file; ``crew``: this one's name and the number of its life; ``lanes``: runs at a time;
    ``events``, ``clock``: files.
    """
    obey(Path(clock))
    out = open(events, "a", buffering=1)  # noqa: SIM115 - as long as the process

    def say(what: str, **more: Any) -> None:
        out.write(json.dumps({"what": what, "at": round(time.monotonic(), 3), **more}) + "\n")

    crewmen = [Lane(Path(pipeline), crew, Path(f"{events}.{crew}.{i}")) for i in range(int(lanes))]
    say("ready", pid=os.getpid())
    while True:
        for lane in crewmen:
            if lane.child or time.monotonic() < lane.not_before:
                continue
            task, target = lane.next_task()
            child = os.fork()
            if child == 0:
                _child(lane, task, target, say)
            lane.child = child
            say("start", pid=child, task=task, batch=lane.batch)
        _collect(crewmen, say)
        time.sleep(0.02)


def _collect(lanes: list[Lane], say: Any) -> None:
    for lane in lanes:
        if not lane.child:
            continue
        pid, status = os.waitpid(lane.child, os.WNOHANG)
        if pid:
            say("end", pid=pid, task=lane.todo[0][0], status=status)
            lane.child = 0
            lane.ended(status)


def _child(lane: Lane, task: str, target: str, say: Any) -> None:
    code = 1
    try:
        lane.work(task, target)
        code = 0
    except SluiceError as error:
        say("error", task=task, kind=type(error).__name__, text=str(error)[:300])
        code = _STANDS_BY if isinstance(error, LeaseHeld) and task == "drain" else _FAILED
    except BaseException:
        say("crash", task=task, text=traceback.format_exc(limit=-8))
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        os._exit(code)
