"""Pipelines to lake tables: from a server; and from memory, whose batches wait for the lake (``commit_every``), beside one
whose batches do not.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sluice.flows.capture.drain import drain
from sluice.flows.load.ack import ack
from sluice.flows.load.isolation import deliver
from sluice.flows.load.load import LoadOutcome
from sluice.flows.runtime import Runtime
from sluice.flows.transform.merge import merge
from sluice.targets.memory.store import forget_store, memory_store
from sluice.targets.rows_in_memory import planned_table
from tests.support.pipelines.case import Case, case
from tests.support.readers.lakes import IcebergLake, Lake
from tests.support.twins.serverless import Serverless, serverless

LAKES: dict[str, Any] = {"delta": Lake, "iceberg": IcebergLake}
_claims = itertools.count(1)


@contextmanager
def lake_pipeline(
    kind: str, folder: Path, source: Any, zookeeper: Any, schema: str, *lines: str, **more: Any
) -> Iterator[Case]:
    """A pipeline from a server to tables of a lake. ``lines``: of the target in its file."""
    lake, extra = LAKES[kind](folder / "lake"), "\n".join(f"    {line}" for line in lines)
    with case(folder, source, lake, zookeeper, schema, kind=kind, target_extra=extra, **more) as made:
        yield made


@dataclass
class Bundled:
    """A pipeline from memory to ``lake``, whose batches wait, and to ``copy``, whose batches do not."""

    made: Serverless
    lake: Any
    kind: str
    copy: Any

    @property
    def runtime(self) -> Runtime:
        return self.made.runtime()

    def commit(self, *writes: tuple[str, str, tuple[Any, ...]]) -> dict[str, Any]:
        """A transaction, and what a run of the DAG does with it: one batch, both targets."""
        self.made.case.commit(*writes)
        runtime = self.runtime
        with runtime.source.open() as source:
            head = source.head
        batch = drain(runtime, claim=f"test:here:{next(_claims)}", idle_wait_s=1, until=head).batch
        assert batch is not None
        merge(runtime, batch)
        outcomes = {target.name: deliver(runtime, target.name, batch) for target in runtime.pipeline.targets}
        for target, outcome in outcomes.items():
            if isinstance(outcome, LoadOutcome):
                ack(runtime, target, batch)
        return outcomes

    def acknowledged(self) -> dict[str, int]:
        with self.runtime.state() as state:
            return {t: process.batch if (process := state.acks.get(t)) else 0 for t in state.targets}

    def rows(self) -> dict[Any, Any]:
        found = self.lake.rows(self.made.table.schema, "a").to_pylist()
        return {row["id"]: row["v"] for row in found}

    def every(self) -> list[tuple[Any, ...]]:
        """Of a table of changes, in its order."""
        rows = self.lake.rows(self.made.table.schema, "a").to_pylist()
        return sorted((row["_batch"], row["_seq"], row["_op"], row["id"], row["v"]) for row in rows)

    def commits(self) -> list[tuple[str, str]]:
        """First and last batch of each commit that has rows, oldest first."""
        table = self.lake.table(self.made.table.schema, "a")
        delta = self.kind == "delta"
        said = table.history()[::-1] if delta else [one.summary.additional_properties for one in table.snapshots()]
        return [
            (one.get("sluice.first_batch", one["sluice.batch"]), one["sluice.batch"])
            for one in said
            if "sluice.batch" in one
        ]

    def later(self, seconds: float) -> None:
        """See :func:`later`."""
        later(self.runtime, seconds)


def later(runtime: Runtime, seconds: float) -> None:
    """The clock has moved: batches are that much older."""
    with runtime.state() as state:
        for number in state.batches.numbers():
            state.batches.rewrite(number, lambda one: replace(one, created_ms=one.created_ms - int(seconds * 1000)))


@contextmanager
def bundled(folder: Path, kind: str, *, partitioned: bool = False, **config: Any) -> Iterator[Bundled]:
    """``partitioned``: by the column v, of which Delta then takes no empty text.

    ``options``: where the tables are, if not in ``folder``.
    """
    lake = LAKES[kind](folder / "lake")
    where = config.pop("options", None) or (
        {"location": str(folder / "lake")}
        if kind == "delta"
        else {
            "catalog": {
                "type": "sql",
                "uri": f"sqlite:///{folder}/lake/catalog.db",
                "warehouse": f"file://{folder}/lake",
            }
        }
    )
    targets = [
        {"name": "lake", "type": kind, "connection": "t", "commit_every": "10m", "options": where, **config},
        {"name": "copy", "type": "memory", "connection": "t", "options": {"store": folder.name}},
    ]
    (folder / "rules").mkdir()
    try:
        with serverless(folder, targets=targets, window=2) as made:
            memory_store(folder.name).create(made.table, ["id", "v"], ["id"])
            if partitioned:
                made.case.config = _partitioned(made.case.config, f"{made.table.schema}.a")
            made.begin()
            schema = made.runtime().open_target("lake").schema()
            for finding in schema.compare([planned_table(made.case.store.tables[made.table])]):
                schema.apply(finding.statement)
            yield Bundled(made, lake, kind, memory_store(folder.name).tables[made.table])
    finally:
        forget_store(folder.name)


def _partitioned(config: Any, table: str) -> Any:
    lake, *others = config.targets
    options = {**lake.options, "partition_by": {table: ["v"]}}
    return config.model_copy(update={"targets": (lake.model_copy(update={"options": options}), *others)})
