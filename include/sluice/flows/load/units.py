"""The load's work units: what a target planned, and what stores the rows that it rejects."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sluice.config.pipeline import TargetConfig
from sluice.flows.load.batch_rows import StoredRows
from sluice.flows.planned_columns import planned_table
from sluice.flows.transform.dead_letter_files import RefusedRows
from sluice.mapping import Mapping as Routes
from sluice.model.planned import PlannedTable
from sluice.segments.changeset import Changeset, ChangesetTable
from sluice.segments.footers import measured
from sluice.segments.store import SegmentStore
from sluice.targets.port import (
    BatchInput,
    NoFacts,
    RejectedRows,
    SchemaChange,
    SourceFacts,
    StoredRange,
    TableInput,
    WriteResult,
    WriteUnit,
)
from sluice.targets.registry import Kind, kind_of


@dataclass(frozen=True, slots=True)
class LoadUnit:
    """A unit of the target's on its way to a worker.

    ``rejected`` None: the first row that the target refuses stops the batch.

    ``kind``: of the target. A worker loads the file of a kind of the user's own before it unpickles the unit.
    """

    unit: WriteUnit
    rejected: RejectedRows | None = None
    kind: Kind | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self.kind, pickle.dumps((self.unit, self.rejected)))

    @property
    def cost(self) -> int:
        """The cost of the unit, in rows."""
        return self.unit.cost

    @property
    def memory_bytes(self) -> int:
        """The memory that the unit takes of a process."""
        return self.unit.memory_bytes


def _restored(kind: Kind | None, data: bytes) -> LoadUnit:
    if kind is not None:
        kind.load()
    unit, rejected = pickle.loads(data)  # noqa: S301 - what this program pickled
    return LoadUnit(unit, rejected, kind)


def run_load_unit(unit: LoadUnit) -> WriteResult:
    """Write, under the fence. Raises SegmentError, TargetUnavailable, LoadError, Fenced."""
    return unit.unit.write(unit.rejected)


def load_units(
    phases: Sequence[Sequence[WriteUnit]], store: SegmentStore, config: TargetConfig, batch: int, segments: str
) -> list[list[LoadUnit]]:
    """Wrap what a target planned so that it can be sent to another process.

    ``segments``: path of the segments' manifest, for the position of a dead letter.
    """
    keep = RefusedRows(store.uri, store.pipeline, config.name, batch, segments) if config.on_error != "stop" else None
    kind = kind_of(config.type, config.name)
    return [[LoadUnit(unit, keep, kind if kind.path else None) for unit in phase] for phase in phases]


def batch_input(
    store: SegmentStore,
    changeset: Changeset,
    *,
    schema_changes: Sequence[SchemaChange] = (),
    reconcile: Sequence[StoredRange] = (),
    facts: SourceFacts | None = None,
    routes: Routes | None = None,
) -> BatchInput:
    """Return the input that a target gets from a changeset.

    ``routes``: for what the mapping promises about unique values.
    """
    number = changeset.manifest.batch

    def planned(table: ChangesetTable) -> PlannedTable:
        plan = planned_table(table)
        return plan if routes is None else replace(plan, promised=routes.route(plan.source).unique)

    return BatchInput(
        number,
        changeset.manifest.last,
        number - 1,
        StoredRows(store.uri, store.pipeline),
        tuple(
            TableInput(planned(table), tuple(measured(store, table.files)), table.weight)
            for table in changeset.manifest.tables
        ),
        tuple(schema_changes),
        tuple(reconcile),
        facts or NoFacts(),
    )
