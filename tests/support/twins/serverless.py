"""A pipeline without a server: a source in memory, ZooKeeper as a value, segments in a temporary folder."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sluice.config.connections import Endpoint
from sluice.coordination.memory import MemoryTree
from sluice.coordination.state import PipelineState
from sluice.flows.capture.drain import begin, drain
from sluice.flows.runtime import Runtime
from sluice.model.batches import DrainOutcome
from sluice.model.changes import Change
from sluice.model.tables import TableId
from sluice.segments.reader import iter_changes
from tests.support.running.waiting import others_may_act
from tests.support.twins.source_kinds import MemoryCase, memory_case

_claims = itertools.count(1)


@dataclass
class TreeRuntime(Runtime):
    """A runtime whose state is a :class:`MemoryTree`."""

    tree: MemoryTree = field(default_factory=MemoryTree)

    @contextmanager
    def state(self, *, connect_timeout_s: float = 15.0, caches_reads: bool = False) -> Iterator[PipelineState]:
        if self._state is not None and self._state.alive:
            yield self._state
            return
        session = self.tree.session()
        targets = [target.name for target in self.pipeline.targets]
        self._state = PipelineState(
            session,
            "/data/sync",
            self.name,
            targets,
            lease_wait_s=0,
            caches_reads=caches_reads,
            commit_every=self.commit_every,
        )
        try:
            yield self._state
        finally:
            session.expire()
            self._state = None


@dataclass
class Serverless:
    """One pipeline with a table ``a`` (id, v)."""

    case: MemoryCase
    folder: Path
    tree: MemoryTree = field(default_factory=MemoryTree)

    def runtime(self) -> TreeRuntime:
        def resolver(_: str) -> Endpoint:
            return self.case.endpoint

        made = TreeRuntime(self.case.config, resolver, "local", self.folder / "rules")
        made.tree = self.tree
        return made

    @property
    def table(self) -> TableId:
        return self.case.table("a")

    def begin(self) -> None:
        """The position of record is the head of now."""
        runtime = self.runtime()
        with runtime.state() as state, state.replicator() as lease, runtime.source.open() as source:
            begin(runtime.pipeline, runtime.store, state, lease, source.resolve_start("latest"))

    def drain(self, runtime: Runtime | None = None, *, deliver: bool = True, **named: Any) -> DrainOutcome:
        """One drain, up to the head of now unless told otherwise; ``deliver``: every target acknowledges its batch."""
        runtime = runtime or self.runtime()
        if "until" not in named:
            with runtime.source.open() as source:
                named["until"] = source.head
        named.setdefault("claim", f"test:serverless:{next(_claims)}")
        outcome = drain(runtime, idle_wait_s=named.pop("idle_wait_s", 0.05), **named)
        if deliver and outcome.batch is not None:
            with runtime.state() as state:
                for target in runtime.pipeline.targets:
                    state.acks.acknowledge(
                        target.name, state.batches.require(outcome.batch), seen=state.acks.get(target.name)
                    )
        return outcome

    def changes(self) -> list[Change]:
        """Of all batches, in the order in which they are delivered."""
        runtime = self.runtime()
        found: list[Change] = []
        with runtime.state() as state:
            for number in state.batches.numbers():
                batch = state.batches.require(number)
                found += iter_changes(runtime.store, runtime.store.read_manifest(batch.manifest))
        return found

    def replayed(self) -> dict[Any, Any]:
        """What a target holds after all batches: id -> v."""
        rows: dict[Any, Any] = {}
        for change in self.changes():
            if change.table == self.table:
                if change.before is not None:
                    rows.pop(change.before["id"], None)
                if change.after is not None:
                    rows[change.after["id"]] = change.after["v"]
        return rows

    def rows(self) -> dict[Any, Any]:
        """What the source holds: id -> v."""
        return {row["id"]: row["v"] for row in self.case.store.rows(self.table)}


@contextmanager
def serverless(folder: Path, **config: Any) -> Iterator[Serverless]:
    """``config``: what the pipeline's file says besides, at the top level."""
    with memory_case() as case:
        case.create("a")
        case.store.waits_for_more = others_may_act()
        data = case.config.model_dump(mode="json", by_alias=True, exclude_unset=True)
        for name, value in {"capture": {"segments": {"uri": f"file://{folder}/store"}}, **config}.items():
            data[name] = {**data.get(name, {}), **value} if isinstance(value, dict) else value
        data["capture"].setdefault("segments", {"uri": f"file://{folder}/store"})
        case.config = type(case.config).model_validate(data)
        yield Serverless(case, folder)
