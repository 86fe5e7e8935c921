"""Load one batch into an SQL target: schema changes, phases of units, checkpoint."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

import structlog

from sluice.errors import MappingError
from sluice.model.planned import PlannedTable
from sluice.model.tables import TableId
from sluice.targets.port import (
    BatchInput,
    Checkpoint,
    Fence,
    SchemaChange,
    SourceFacts,
    StoredRange,
    TableInput,
    WriteResult,
)
from sluice.targets.sql.loader import DdlProgress, SqlLoader
from sluice.targets.sql.phases import LoadPart, PlannedUnit, plan_phases, while_copied
from sluice.targets.sql.tables import TargetTable
from sluice.targets.sql.unit import FinishedUnits, SqlWriteUnit

_log = structlog.get_logger()


class SqlSession:
    """A target taken over with ``epoch``."""

    def __init__(self, loader: SqlLoader, epoch: int) -> None:
        self._loader, self._epoch = loader, epoch

    def begin(self, batch: BatchInput) -> SqlBatchWriter:
        """See :meth:`sluice.targets.port.TargetSession.begin`."""
        return SqlBatchWriter(self._loader, self._epoch, batch)


class SqlBatchWriter:
    """See :class:`sluice.targets.port.BatchWriter`."""

    def __init__(self, loader: SqlLoader, epoch: int, batch: BatchInput) -> None:
        self._loader, self._batch = loader, batch
        self._fence = Fence(epoch, batch.held, batch.number)
        self._progress = DdlProgress()
        self._notes = False

    def prepare(self) -> None:
        """Refuse what the server could not tell apart; then run the statements that precede the rows."""
        self._loader.examine(self._batch)
        if self._batch.schema_changes:
            self._progress = self._loader.ddl_progress(self._batch.number)
            self._loader.note_loading(self._fence)
        self._follow([change for change in self._batch.schema_changes if change.before_rows])

    def _follow(self, changes: Sequence[SchemaChange]) -> None:
        """Apply schema changes at the barrier: no row is being written, and rows of the next batch follow."""
        for change in changes:
            if change.number >= self._progress.steps:
                self._loader.apply_ddl(self._fence, change)

    def plan(self, parallelism: int) -> list[list[SqlWriteUnit | FinishedUnits]]:
        """Compare with the target's tables, and cut the batch.

        What earlier attempts wrote by the same plan is left out. Raises MappingError.
        """
        batch = self._batch
        if self._progress.rows or not (batch.tables or batch.reconcile):
            return []
        if batch.replay:
            return self._replay()
        self._loader.note_tables(self._fence, [table.target for table in batch.tables])
        known_target_tables = known_tables(self._loader, batch.tables, batch.facts)
        phases = plan_phases(
            batch.tables,
            known_target_tables,
            self._loader.config,
            parallelism,
            acknowledge=None if batch.schema_changes else batch.position,
            ranges=self._ranges(known_target_tables),
        )
        if any(planned.acknowledge is None for phase in phases for planned in phase):
            self._loader.note_loading(self._fence)
        if sum(map(len, phases)) > 1:
            return self._left(phases)
        return [[self._unit(planned) for planned in phase] for phase in phases]

    def _left(self, phases: list[list[PlannedUnit]]) -> list[list[SqlWriteUnit | FinishedUnits]]:
        name = plan_name(phases)
        finished = self._loader.finished_units(self._fence, name)
        self._notes = True
        remaining: list[list[SqlWriteUnit | FinishedUnits]] = []
        number = 0
        for phase in phases:
            units: list[SqlWriteUnit | FinishedUnits] = []
            for planned in phase:
                if number not in finished:
                    units.append(replace(self._unit(planned), noted_as=f"{name}:{number}"))
                number += 1
            remaining.append(units)
        if finished:
            _log.info(
                "units_skipped",
                target=self._loader.config.name,
                batch=self._batch.number,
                units=len(finished),
                of=number,
            )
            remaining.insert(0, [FinishedUnits(sum(finished.values(), WriteResult()))])
        return [units for units in remaining if units]

    def _unit(self, planned: PlannedUnit) -> SqlWriteUnit:
        return SqlWriteUnit(
            self._loader,
            self._batch.reader,
            self._fence,
            planned.parts,
            planned.one_transaction,
            planned.acknowledge,
        )

    def _replay(self) -> list[list[SqlWriteUnit | FinishedUnits]]:
        """Return units for the rows of a dead letter, all in one transaction.

        The rows may be older than what units of the current batch have written, so that the notes of these units are
        removed.
        """
        self._loader.forget_units(self._fence)
        batch = self._batch
        known_target_tables = self._loader.check([table.plan for table in batch.tables])
        parts = tuple(LoadPart(known_target_tables[table.target], table.files) for table in batch.tables)
        unit = SqlWriteUnit(self._loader, batch.reader, self._fence, parts, True, scope=batch.replay, verify=True)
        return [[unit]]

    def _ranges(
        self, known_target_tables: dict[TableId, TargetTable]
    ) -> dict[TableId, tuple[TargetTable, tuple[StoredRange, ...]]]:
        ranges: dict[TableId, tuple[TargetTable, tuple[StoredRange, ...]]] = {}
        for stored_range in self._batch.reconcile:
            table, earlier = ranges.get(
                stored_range.plan.target, (known_target_tables.get(stored_range.plan.target), ())
            )
            if table is None:
                table, why = self._loader.replaceable(stored_range.plan, listed=stored_range.listed)
                if table is None:
                    raise MappingError(
                        f"rows of {stored_range.plan.target} cannot be removed: {why}",
                        where=f"target {self._loader.config.name}",
                    )
            ranges[stored_range.plan.target] = (table, (*earlier, stored_range))
        return ranges

    def commit(self, results: Sequence[WriteResult]) -> None:
        """Run the statements that follow the rows, then move the checkpoint, or check it if it was moved with the
        rows.
        """
        batch = self._batch
        if batch.replay:
            return
        if batch.schema_changes and not self._progress.rows:
            self._loader.rows_loaded(self._fence)
        self._follow([change for change in batch.schema_changes if not change.before_rows])
        self._loader.checkpoints.advance(Checkpoint(self._fence.epoch, batch.number, batch.position))
        if self._notes:
            self._loader.forget_units(replace(self._fence, held=batch.number))

    def abort(self) -> None:
        """Do nothing: what is written is written again, with the same result."""


def plan_name(phases: Sequence[Sequence[PlannedUnit]]) -> str:
    """Return a name that is the same for plans that write the same rows in the same way into tables that look the same.

    It is the same in every attempt and process.
    """
    return hashlib.blake2b(repr(phases).encode(), digest_size=8).hexdigest()


def known_tables(loader: SqlLoader, tables: Sequence[TableInput], facts: SourceFacts) -> dict[TableId, TargetTable]:
    """Return the target's tables, compared with the planned ones and with what is known about the source.

    Raises MappingError.

    The source's keys are read only if a table has unique keys besides the one that tells rows apart; tables that a dump
    fills only if foreign keys or partial rows depend on it.
    """
    if not tables:
        return {}
    plans = [table.plan for table in tables]
    known_target_tables = dict(
        loader.check(plans, lambda plan, info: _with_keys(plan, info, facts) if info.unique_keys else plan)
    )
    partly = any(table.partial for table in tables)
    if partly or any(info.references or info.generation is not None for info in known_target_tables.values()):
        filled = facts.being_copied()
        known_target_tables = {table: while_copied(info, filled) for table, info in known_target_tables.items()}
    return known_target_tables


def _with_keys(plan: PlannedTable, table: TargetTable, facts: SourceFacts) -> PlannedTable:
    keyed_plan, rule_columns = facts.unique_keys(plan)
    if keyed_plan.unique is None:
        return plan
    # The rule is responsible for whether a column that it made tells rows apart.
    by_rules = tuple(key for key in table.unique_keys if rule_columns & {name.casefold() for name in key})
    return replace(keyed_plan, promised=(*plan.promised, *by_rules))
