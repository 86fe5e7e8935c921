"""Load a batch into lake tables, whatever their format: one unit per table, the checkpoint last."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from sluice.errors import LoadError, MappingError
from sluice.model.offset import Offset
from sluice.model.planned import PlannedTable
from sluice.model.tables import TableId
from sluice.targets.lake.changelog import SCOPE, change_rows, changes_by_table
from sluice.targets.lake.commit import commit_batch, holds
from sluice.targets.lake.conversions import CONVERSIONS
from sluice.targets.lake.follower import FOLLOWED_CHANGES, FOLLOWED_MERGED, LakeFollower
from sluice.targets.lake.format import CommitNote
from sluice.targets.lake.keys import keys_of, listed_keys, not_listed
from sluice.targets.lake.rows import MergedRows, Part
from sluice.targets.lake.schema import LakeSchema
from sluice.targets.lake.tables import LakeTables
from sluice.targets.lake.types import TableInfo
from sluice.targets.lake.values import converted, plain
from sluice.targets.port import (
    BatchInput,
    Capabilities,
    ChangePiece,
    Checkpoint,
    Consistency,
    Feature,
    Fence,
    Guarantee,
    Input,
    Ordering,
    OtherWriter,
    RejectedRows,
    RowReader,
    StatementRunner,
    StoredRange,
    TableInput,
    WriteResult,
    WriteUnit,
)

LOOKED_BACK = 1_000
"""Commits that are searched for another pipeline."""


@dataclass(frozen=True)
class LakeReconciler:
    """See :class:`sluice.targets.port.Reconciler` and :class:`sluice.targets.port.ListReconciler`."""

    tables: LakeTables

    def refuses(self, table: PlannedTable) -> str:
        """Return why a range is always refused."""
        return "ranges of a table's keys there are not those of the source"

    def refuses_listed(self, table: PlannedTable) -> str:
        """Return why listed keys cannot be removed: another pipeline writes to the table, too, or its keys are not the
        source's. "" if they can.
        """
        lake_table, format_ = self.tables.required(table.target), self.tables.format
        commits = itertools.islice(format_.history(table.target, lake_table), LOOKED_BACK)
        others = sorted({commit.owner for commit in commits} - {self.tables.owner, ""})
        return (
            f"{table.target} is written by {others[0]}, too" if others else not_listed(table, format_.info(lake_table))
        )

    def others(self) -> tuple[OtherWriter, ...]:
        """Return nothing: other writers are known only for a given table, see :meth:`refuses_listed`."""
        return ()


def removed_part(info: TableInfo, reader: RowReader, stored: StoredRange) -> Part:
    """Return the listed keys that are not kept, as the table has them. Raises LoadError, SegmentError."""
    plan, item = stored.plan, reader.key_range(stored)
    assert item.listed is not None  # ranges are refused
    listed = listed_keys(plan, info, item.listed)
    retained = {}
    if item.kept is not None:
        for column, name in zip(plan.key_columns, listed, strict=True):
            stored_column = info.find(name)
            kind = str(stored_column.kind) if stored_column is not None else ""
            retained[name], _ = converted(plain(item.kept[column.name]), column.sent_type, kind)
    stay = set(keys_of(retained, list(retained))) if retained else set()
    deleted = np.array([key not in stay for key in keys_of(listed, list(listed))], bool)
    return Part(
        {name: values.filter(pa.array(deleted)) for name, values in listed.items()}, np.ones(deleted.sum(), bool)
    )


class LakeSparkWriter(Protocol):
    """The way a format writes large tables through Spark. Picklable."""

    def takes(self, rows: int) -> bool:
        """Return True if this many rows are better written by Spark."""

    def merged(
        self, tables: LakeTables, fence: Fence, batch: BatchInput, scope: str, table: TableInput
    ) -> Sequence[WriteUnit]:
        """Return units that store the rows of one source table. Their results say where."""

    def changes(self, tables: LakeTables, fence: Fence, batch: BatchInput) -> Sequence[WriteUnit]:
        """Return units that store every change of the batch."""

    def commit(self, tables: LakeTables, spark: StatementRunner, fence: Fence, stored: Sequence[WriteResult]) -> None:
        """Let Spark make one commit per table. Raises what the port says, and SparkUnavailable."""


_T = TypeVar("_T")
_R = TypeVar("_R")

_AT_ONCE = 8


def run_lockstep(work: Callable[[_T], _R], items: Iterable[_T], at_once: int = _AT_ONCE) -> list[_R]:
    """Run ``work`` on each item in threads; return the results in order.

    Raises the first error in order, once all work that was started has ended; no further work is started after an
    error.
    """
    tasks = list(items)
    if len(tasks) < 2:
        return [work(task) for task in tasks]
    pool = ThreadPoolExecutor(min(at_once, len(tasks)), thread_name_prefix="table")
    try:
        return list(pool.map(work, tasks))
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


COPIES = 3
"""Copies of a unit's rows in memory: as they are read, as the table has them, and in the client's merge."""


def capabilities_of(changes: Input) -> Capabilities:
    """Return the abilities of a target of merged rows, or of every change."""
    every = changes is Input.CHANGES
    return Capabilities(
        inputs=frozenset(Input),
        guarantee=Guarantee.IDEMPOTENT,
        ordering=frozenset({Ordering.TABLE if every else Ordering.NONE}),
        consistency=frozenset({Consistency.ROW, Consistency.TABLE}),
        schema_changes=FOLLOWED_CHANGES if every else FOLLOWED_MERGED,
        features=frozenset(
            {Feature.DELETE, Feature.BUNDLES, Feature.CUT_OVERS, Feature.KEYLESS}
            if every
            else {Feature.DELETE, Feature.BUNDLES, Feature.CUT_OVERS, Feature.ROW_REJECTION, Feature.RECOPIES},
        ),
        conversions=frozenset() if every else CONVERSIONS,
        max_writers=1 if every else None,
        compares=True,
        lists_keys=True,
        removes_listed_keys=True,
        maintains_files=True,
        keeps_versions=True,
    )


@dataclass(frozen=True)
class LakeSession:
    """See :class:`sluice.targets.port.TargetSession`."""

    tables: LakeTables
    epoch: int
    spark: LakeSparkWriter | None = None
    """The writer through Spark; None: Spark does not write."""

    def begin(self, batch: BatchInput) -> LakeWriter:
        """Return the writer of a batch. No I/O."""
        return LakeWriter(self.tables, batch, Fence(self.epoch, batch.held, batch.number), self.spark)


@dataclass(frozen=True)
class LakeWriter:
    """See :class:`sluice.targets.port.BatchWriter`."""

    tables: LakeTables
    batch: BatchInput
    fence: Fence
    spark: LakeSparkWriter | None = None

    def prepare(self) -> None:
        """Follow the schema changes that precede the rows."""
        self._follow(before_rows=True)

    def _follow(self, *, before_rows: bool) -> None:
        changes = [change for change in self.batch.schema_changes if change.before_rows is before_rows]
        if changes and self._delivered():
            return
        for change in changes:
            self.tables.checkpoints.guard(self.fence)
            LakeFollower(self.tables, self.fence, change).run()

    def _delivered(self) -> bool:
        """Return True if the commit is a repeat: the checkpoint has the batch."""
        checkpoint = self.tables.checkpoints.read()
        return checkpoint is not None and (checkpoint.epoch, checkpoint.batch) == (self.fence.epoch, self.batch.number)

    def plan(self, parallelism: int) -> Sequence[Sequence[WriteUnit]]:
        """Return one unit per table, lighter tables first; for changes a single unit; for rows that Spark writes, units
        that store them.

        Raises MappingError.
        """
        batch = self.batch
        about = self._about
        unit = LakeUnit(about, self.fence, batch.reader, replay=batch.replay)
        spark = self.spark if batch.spark is not None and not batch.replay else None
        if batch.changes:
            if spark is not None and spark.takes(batch.changes):
                return [spark.changes(about, self.fence, batch)]
            return [[replace(unit, changes=batch.changes)]]
        schema = LakeSchema(self.tables)
        for table in batch.tables:
            if self.tables.every:
                raise LoadError(
                    f"rows of {table.plan.source} are not changes, and a table of changes takes nothing else",
                    where=str(table.target),
                    hint=f"`sluice dump start {self.tables.pipeline} --table {table.plan.source}` reads them anew "
                    "from the source",
                )

        def require(scoped_table: tuple[str, TableInput]) -> None:
            scope, table = scoped_table
            try:
                schema.require(table.plan)
            except MappingError:  # unless the rows are written already, and a later schema change, too
                if batch.replay or not holds(self.tables, self.fence, table.target, scope):
                    raise

        tables = list(scoped(batch.tables))
        self._require_ahead([(scope, table.target) for scope, table in tables])
        run_lockstep(require, tables)
        units: dict[TableId, LakeUnit] = {}
        weights: dict[TableId, int] = {}
        storing: list[WriteUnit] = []
        for scope, table in tables:
            if spark is not None and spark.takes(table.rows):
                storing += spark.merged(about, self.fence, batch, scope, table)
                continue
            table_unit = units.get(table.target, unit)
            units[table.target] = replace(table_unit, tables=(*table_unit.tables, (scope, table)))
            weights[table.target] = min(weights.get(table.target, table.weight), table.weight)
        removing: list[WriteUnit] = [replace(unit, removes=tuple(batch.reconcile))] if batch.reconcile else []
        phases: list[list[WriteUnit]] = [
            [table_unit for target, table_unit in units.items() if weights[target] == weight]
            for weight in sorted(set(weights.values()))
        ]
        return [phase for phase in (removing, *phases, storing) if phase]

    def _require_ahead(self, tables: Sequence[tuple[str, TableId]]) -> None:
        """Raise CheckpointError, before anything is written, if one of the tables was set back."""
        checkpoint = self.tables.checkpoints.held() if tables else None

        def require(scope: str, table: TableId) -> None:
            lake_table = self.tables.open(table)
            if lake_table is not None and checkpoint is not None:
                self.tables.require_ahead(table, lake_table, scope, checkpoint.delivery)

        run_lockstep(lambda entry: require(*entry), tables)

    @property
    def _about(self) -> LakeTables:
        """The tables, with commits that say where the batch ends, and where it begins if it contains several."""
        metadata = about(self.batch.position)
        if self.batch.number > self.batch.held + 1 and not self.batch.replay:
            metadata["sluice.first_batch"] = str(self.batch.held + 1)
        return replace(self.tables, about=metadata)

    def commit(self, results: Sequence[WriteResult]) -> None:
        """Let Spark commit, follow later schema changes, then move the checkpoint: all tables hold the batch by now.

        Raises Fenced.
        """
        stored = [result for result in results if result.message is not None]
        if self.spark is not None and stored and self.batch.spark is not None:
            self.spark.commit(self._about, self.batch.spark, self.fence, stored)
        self._follow(before_rows=False)
        if not self.batch.replay:
            self.tables.checkpoints.advance(Checkpoint(self.fence.epoch, self.batch.number, self.batch.position))

    def abort(self) -> None:
        """Do nothing: a commit succeeded or not. Files of commits that did not are removed by vacuum."""


@dataclass(frozen=True)
class LakeUnit:
    """See :class:`sluice.targets.port.WriteUnit`: all rows of a batch for one table, all of its changes, or keys that
    are removed before.
    """

    target: LakeTables
    fence: Fence
    reader: RowReader
    tables: tuple[tuple[str, TableInput], ...] = ()
    """The tables, each with the scope under which its commit is noted."""
    changes: int = 0
    replay: str = ""
    removes: tuple[StoredRange, ...] = ()

    @property
    def cost(self) -> int:
        """The cost of the unit, in rows."""
        return max(sum(table.rows for _, table in self.tables), self.changes)

    @property
    def memory_bytes(self) -> int:
        """The memory that the unit takes: for merged rows, all rows of one table."""
        files = [file for _, table in self.tables for file in table.files]
        return self.reader.memory_of(sum(file.arrow_bytes for file in files) * COPIES, len(files)) if files else 0

    def write(self, rejected: RejectedRows | None = None) -> WriteResult:
        """Make one commit for each source table that is loaded into this table. Raises what the port says."""
        started, total = time.monotonic(), WriteResult()
        if self.changes:
            tables = changes_by_table(self.reader)
            delivery = self.target.checkpoints.guard(self.fence).delivery

            def require(table: TableId) -> None:
                self.target.require_ahead(table, self.target.required(table), SCOPE, delivery)

            run_lockstep(require, tables)  # checked before the first one is written
            total = sum(run_lockstep(lambda entry: self.append(*entry), tables.items()), total)
        for number, stored in enumerate(self.removes):
            total += self._remove(stored, f"{stored.plan.source}#removed{number}")
        for scope, table in self.tables:
            total += self._merge(table, scope, rejected)
        return replace(total, seconds=time.monotonic() - started)

    def append(self, table: TableId, pieces: Sequence[ChangePiece]) -> WriteResult:
        """Append all changes of a batch for one table. Raises what the port says."""
        format_, zero_dates = self.target.format, self.target.options.zero_dates

        def write(lake_table: Any, note: CommitNote) -> WriteResult:
            schema = format_.arrow_schema(lake_table)
            rows = change_rows(pieces, format_.info(lake_table), schema, self.fence.batch, zero_dates, note.known)
            format_.append(table, lake_table, note, rows)
            return WriteResult(appended=rows.num_rows, statements=1)

        doing = f"appending batch {self.fence.batch} to {table}"
        return commit_batch(self.target, self.fence, table, SCOPE, doing, write)

    def _merge(self, table: TableInput, scope: str, rejected: RejectedRows | None) -> WriteResult:
        """Merge the rows of one source table."""
        format_ = self.target.format
        rows = MergedRows(self.reader, table, self.fence.batch, self.target.options.zero_dates)

        def write(lake_table: Any, note: CommitNote) -> WriteResult:
            info = format_.info(lake_table)
            parts, refused = rows.parts(info, rejected, f"{format_.FORMAT}-{scope}", note.known)
            key = [column.name for name in table.plan.key if (column := info.find(name)) is not None]
            format_.merge(table.target, lake_table, note, parts, info, key)
            count, deletes = sum(len(part.gone) for part in parts), sum(int(part.gone.sum()) for part in parts)
            return WriteResult(count - deletes, deletes, rejected=refused, statements=int(count > 0))

        doing = f"merging batch {self.fence.batch} into {table.target}"
        return commit_batch(self.target, self.fence, table.target, scope, doing, write, replay=self.replay)

    def _remove(self, stored: StoredRange, scope: str) -> WriteResult:
        """Remove listed keys of one table."""
        format_, table = self.target.format, stored.plan.target

        def write(lake_table: Any, note: CommitNote) -> WriteResult:
            info = format_.info(lake_table)
            part = removed_part(info, self.reader, stored)
            count = len(part.gone)
            if not count or format_.is_empty(lake_table):
                return WriteResult()
            format_.merge(table, lake_table, note, [part], info, list(part.columns))
            return WriteResult(deleted=count, statements=1)

        doing = f"removing rows of {table} in batch {self.fence.batch}"
        return commit_batch(self.target, self.fence, table, scope, doing, write)


def about(position: Offset) -> dict[str, str]:
    """Return what a commit says about the batch's end, to find a version of a table by the source's time."""
    file, offset = position.row_place
    metadata = {"sluice.file": file, "sluice.offset": str(offset)}
    if position.commit_time_us:
        at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=position.commit_time_us)
        metadata["sluice.commit_time"] = at.isoformat(timespec="microseconds")
    return metadata


def scoped(tables: Sequence[TableInput]) -> Iterator[tuple[str, TableInput]]:
    """Yield each table with its scope: its source table, numbered if that is loaded into a target table more than
    once.
    """
    met: dict[tuple[TableId, str], int] = {}
    for table in tables:
        source = str(table.plan.source)
        met[table.target, source] = number = met.get((table.target, source), 0) + 1
        yield source if number == 1 else f"{source}#{number}", table
