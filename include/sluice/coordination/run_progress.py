"""Progress of the stages of a run whose tasks work side by side, and which process works on each.

Each process writes its progress here, and the watches of the others notify them. A stage has one worker at a time: its
own task, or the process of the run's *drain* while the task has none. The worker's node is ephemeral, so that a process
that died is seen as one that left.

Nothing rests on it but when to wait, when to end and who begins: what became of a batch stands in its own node and at
the targets, and a stage may be repeated.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any
from urllib.parse import quote, unquote

from sluice.coordination.layout import PROGRESS, Layout, waiting_task, waiting_tasks
from sluice.coordination.port import Create, Put, Remove, Znodes, committed
from sluice.model.stored_fields import known_fields


class Worker(StrEnum):
    """The process that works on a stage of a run."""

    TASK = "task"
    DRAIN = "drain"


class StageState(StrEnum):
    """State of a stage of a run."""

    WORKING = "working"
    ENDED = "ended"
    GAVE_UP = "gave up"


@dataclass(frozen=True, slots=True)
class Progress:
    """One stage of one run.

    Attributes:
        batch: the last batch that has passed it in this run, 0 if none has.
        later: why its target gets the batches from ``since`` on at another time, "" if it has them.
        why: of one that gave up, or that ended: the reason.
        sums: what it did in this run, as JSON: for people, and for its own task where the process of another one did
            it.
        in_drain: how many of these batches the process of *drain* did, because the stage's task had no worker.
    """

    state: StageState = StageState.WORKING
    batch: int = 0
    later: str = ""
    since: int = 0
    why: str = ""
    sums: dict[str, Any] | None = None
    in_drain: int = 0


BELIEVED_S = 300.0
"""Seconds for which a word that a task waits is believed: its DAG may be paused, or its run marked."""


class WaitingTasks:
    """The pipelines below a root whose next task needs a worker of Airflow and has none yet.

    It is about *sense* and *drain*, without which a pipeline stands still. Other stages give their workers back for
    them.
    """

    def __init__(self, znodes: Znodes, layout: Layout) -> None:
        self._z = znodes
        self._root = layout.root
        self._mine = waiting_task(layout.root, layout.pipeline)

    def waits(self, task: str, pool: str = "") -> None:
        """Note that ``task`` of this pipeline can begin as soon as it has a worker, of an Airflow pool."""
        name = f"{task}@{quote(pool, safe='')}" if pool else task
        content = f"{name} {int(time.time() * 1000)}".encode()
        if not committed(self._z, Put(self._mine, content, -1)):
            self._z.ensure(waiting_tasks(self._root))
            committed(self._z, Create(self._mine, content))

    def begins(self) -> None:
        """Note that the task has a worker."""
        if self._z.get(self._mine) is not None:
            committed(self._z, Remove(self._mine))

    def pipelines(self) -> dict[str, str]:
        """Return the pipelines whose task waits, with the pool of that task, "" if it is not known; without those that
        have waited so long that nobody starts it.
        """
        oldest = time.time() * 1000 - BELIEVED_S * 1000
        names = self._z.children(waiting_tasks(self._root))
        tasks = ((name, self._of(waiting_task(self._root, name))) for name in names)
        return {name: waiting[2] for name, waiting in tasks if waiting is not None and waiting[1] > oldest}

    def own(self) -> tuple[str, int] | None:
        """Return the task of this pipeline that waits, and since when (milliseconds since 1970)."""
        waiting = self._of(self._mine)
        return waiting[:2] if waiting is not None else None

    def _of(self, path: str) -> tuple[str, int, str] | None:
        node = self._z.get(path)
        if node is None:
            return None
        name, _, since = node.data.decode().partition(" ")
        task, _, pool = name.partition("@")
        return task, int(since), unquote(pool)


class RunProgress:
    """Progress of the runs of one pipeline, a node for each stage of a run."""

    def __init__(self, znodes: Znodes, layout: Layout) -> None:
        self._z = znodes
        self._at = layout

    def read(self, claim: str, stage: str) -> Progress | None:
        """Return what a stage has said; None: it has not begun."""
        return PROGRESS.read(
            self._z,
            self._at.progress(claim, stage),
            lambda data, version: Progress(**{**known_fields(Progress, data), "state": StageState(data["state"])}),
        )

    def write(self, claim: str, stage: str, progress: Progress) -> None:
        """Say how far a stage has come. The last word counts."""
        path, content = self._at.progress(claim, stage), PROGRESS.encode(asdict(progress))
        if committed(self._z, Put(path, content, -1)):
            return
        self._z.ensure(self._at.run(claim))
        if not committed(self._z, Create(path, content)):
            committed(self._z, Put(path, content, -1))

    def take(self, claim: str, stage: str, worker: Worker) -> bool:
        """Begin to work on a stage. False: another process works on it."""
        path = self._at.stage_worker(claim, stage)
        if self.worker(claim, stage) is not None:
            return False
        self._z.ensure(self._at.run(claim))
        return committed(self._z, Create(path, worker.encode(), ephemeral=True))

    def release(self, claim: str, stage: str) -> None:
        """End the work on a stage."""
        committed(self._z, Remove(self._at.stage_worker(claim, stage)))

    def worker(self, claim: str, stage: str) -> Worker | None:
        """Return which process works on a stage; None if none does."""
        node = self._z.get(self._at.stage_worker(claim, stage))
        return Worker(node.data.decode()) if node is not None else None

    def ask(self, claim: str, stage: str) -> None:
        """Ask the process that works on a stage to release it before its next batch."""
        committed(self._z, Create(self._at.stage_wish(claim, stage), ephemeral=True))

    def ask_no_more(self, claim: str, stage: str) -> None:
        """Take the question back."""
        committed(self._z, Remove(self._at.stage_wish(claim, stage)))

    def is_asked(self, claim: str, stage: str) -> bool:
        """Return True if the stage's task waits to take it over."""
        return self._z.get(self._at.stage_wish(claim, stage)) is not None

    def forget(self, live_claims: Collection[str]) -> None:
        """Delete the progress nodes of runs without a live claim.

        ``live_claims``: node names of the live claims.
        """
        runs = {self._at.run_of_claim(name) for name in live_claims}
        for folder in (f"{self._at.runs}/{name}" for name in self._z.children(self._at.runs) if name not in runs):
            for name in self._z.children(folder):
                committed(self._z, Remove(f"{folder}/{name}"))
            committed(self._z, Remove(folder))
