"""show: what a pipeline's snapshot holds, and as of which batch."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

from sluice.config.pipeline import SNAPSHOT, PipelineConfig
from sluice.coordination.state import PipelineState
from sluice.errors import ConfigError
from sluice.flows.runtime import Runtime
from sluice.flows.snapshot.rows import noted_columns
from sluice.flows.snapshot.versions import snapshot_reader, whole_batch
from sluice.flows.stored import captured_tables_at_cursor
from sluice.mapping import Mapping
from sluice.model.nearest import meant
from sluice.model.tables import TableId
from sluice.rules import RuleSet
from sluice.targets.port import TableVersion, VersionReader

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True, slots=True)
class SnapshotShown:
    """The tables as of ``batch``. Tables that are not there yet are left out.

    Attributes:
        asked: the batch that was meant; it is later than ``batch`` where several batches were written together, and it
            is one of them.
        holds: the newest batch that the snapshot has.
    """

    batch: int
    asked: int
    holds: int
    tables: tuple[TableVersion, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain JSON values."""
        return {
            "batch": self.batch,
            "asked": self.asked,
            "holds": self.holds,
            "tables": [table.to_json() for table in self.tables],
        }


def require_snapshot(pipeline: PipelineConfig) -> None:
    """Raise ConfigError for a pipeline without a snapshot."""
    if pipeline.snapshot is None:
        raise ConfigError(
            f"{pipeline.pipeline} keeps no snapshot",
            hint="snapshot: {uri: s3://bucket/snapshots} in the pipeline file",
        )


def show(
    runtime: Runtime, table: str | None = None, *, batch: int | None = None, at: dt.datetime | None = None
) -> SnapshotShown:
    """Return the tables of the snapshot as of its newest batch, of ``batch``, or of the last batch that ended at ``at``
    or before.

    The source is not asked: the tables are those of the stored schema history.

    Raises:
        ConfigError: there is no snapshot, it holds nothing yet, or not that batch or table.
        LoadError: that version is no longer kept.
        TargetUnavailable.
    """
    require_snapshot(runtime.pipeline)
    reader = snapshot_reader(runtime.open_target(SNAPSHOT))
    with runtime.state() as state:
        process = state.acks.get(SNAPSHOT)
        tables = snapshot_tables(runtime, state)
    if process is None:
        raise ConfigError(f"the snapshot of {runtime.name} has not begun", hint=f"`sluice run {runtime.name}`")
    if table is not None:
        if table not in map(str, tables):
            raise ConfigError(f"the snapshot of {runtime.name} has no table {table}{meant(table, map(str, tables))}")
        named = [snapshot_table for snapshot_table in tables if str(snapshot_table) == table]
    else:
        named = tables
    wanted_batch = _wanted(reader, named, at) if at is not None else process.batch if batch is None else batch
    if wanted_batch > process.batch:
        raise ConfigError(
            f"the snapshot of {runtime.name} holds batch {process.batch}; batch {wanted_batch} comes later"
        )
    shown_batch = whole_batch(reader, tables, wanted_batch)
    versions = (reader.as_of(snapshot_table, shown_batch) for snapshot_table in named)
    return SnapshotShown(
        shown_batch, wanted_batch, process.batch, tuple(version for version in versions if version is not None)
    )


def snapshot_tables(runtime: Runtime, state: PipelineState) -> list[TableId]:
    """Return the target tables of captured tables, by the current definitions, and of tables that only rules send
    rows to.
    """
    cursor = state.cursor()
    if cursor is None:
        return []
    routes = Mapping.of(runtime.pipeline)
    captured = captured_tables_at_cursor(runtime.pipeline, runtime.store, runtime.source, state)
    emitted = {
        target for _, target in noted_columns(runtime.store, state, cursor.next_batch, RuleSet.of(runtime.rules_path))
    }
    return sorted(emitted | {routes.route(table).target for table in captured})


def _wanted(reader: VersionReader, tables: list[TableId], at: dt.datetime) -> int:
    time_us = (at - _EPOCH) // dt.timedelta(microseconds=1)
    return max((reader.batch_at(table, time_us) for table in tables), default=0)
