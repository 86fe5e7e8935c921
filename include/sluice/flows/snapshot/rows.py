"""The rows of the pipeline's snapshot as of a batch, as the changeset of the batch that stands for them.

The source is not asked.

Decision: the rows are written to the batch's folder once, and loaded from there like those of any batch. So a load that
is killed starts again with the same rows, and each kind of target loads them as it loads a copy.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sluice.config.pipeline import SNAPSHOT, PipelineConfig
from sluice.coordination.state import PipelineState
from sluice.errors import MappingError, TargetUnavailable
from sluice.flows.cancellation import CancellationGuard
from sluice.flows.dump.reconcile import why_not
from sluice.flows.runtime import Runtime, attempt_id
from sluice.flows.snapshot.key_order import in_key_order as ordered
from sluice.flows.snapshot.versions import snapshot_reader
from sluice.flows.stored import definitions_at
from sluice.flows.transform.changeset_writer import ChangesetPart, MergeResult, write_changeset_manifest
from sluice.flows.transform.made_columns import known_when_it_runs, mapped_columns, only_rows_tell
from sluice.flows.transform.stage_rules import StageRules
from sluice.mapping import Mapping as Routes
from sluice.mapping import TableRoute
from sluice.model.batches import Batch, Op
from sluice.model.dialects import Dialect
from sluice.model.fields import declared_type, is_generated, is_key, key_ordinal, true_name
from sluice.model.layouts import CHANGESET_ROWS
from sluice.model.offset import Offset
from sluice.model.tables import KEY_BUCKETS, META_COLUMNS, META_FIELDS, TableId, TableSchema
from sluice.rules import RuleSet
from sluice.segments.changeset import (
    Changeset,
    ChangesetReader,
    changeset_file_path,
    changeset_folder,
    columns_of,
    write_changeset_file,
)
from sluice.segments.manifest import ReplaceRecord
from sluice.segments.snapshot_columns import SnapshotColumns, Way
from sluice.segments.store import SegmentStore, quoted
from sluice.sources.table_filter import Selection
from sluice.targets.port import TableVersion, VersionReader


def note_columns(store: SegmentStore, state: PipelineState, rules: RuleSet, changeset: Changeset, epoch: int) -> None:
    """Record the columns of a batch's rows before the snapshot gets the batch. ``rules``: the pipeline's.

    Raises SegmentError.
    """
    if not only_rows_tell(rules):
        return
    schemas = {}
    for table in changeset.manifest.tables:
        file = next(iter(table.files))  # of the newest definition, see write_part
        way = (TableId(table.source_schema, table.source_table), table.target)
        schemas[way] = ChangesetReader(store, file).schema
    if schemas:
        SnapshotColumns(store, state.identity()).note(changeset.manifest.batch, epoch, schemas)


def noted_columns(store: SegmentStore, state: PipelineState, batch: int, rules: RuleSet) -> dict[Way, pa.Schema]:
    """Return the user columns of the snapshot's tables after a batch. ``rules``: the pipeline's.

    Raises SegmentError.
    """
    return SnapshotColumns(store, state.identity()).after(batch) if only_rows_tell(rules) else {}


_WAIT_S = 60.0
"""Seconds to wait for the snapshot, which is about to have the batch before this one, or lags for its own reason."""

_LOOK_S = 0.1

_FILE_ROWS, _FILE_BYTES = 200_000, 64 * 2**20
"""Rows of a file, and their bytes in memory: whichever limit is reached first."""


def write_snapshot_rows(runtime: Runtime, state: PipelineState, record: Batch, watch: CancellationGuard) -> Batch:
    """Write the changeset of ``record``, and record it.

    Raises:
        TargetUnavailable: the snapshot does not have the batch before it yet, or cannot be reached. LoadError: it no
            longer has it.
        MappingError: it lacks a table or a column, or rules may have made the rows others than the target's columns
            say.
    """
    _wait_for(runtime.name, state, record, watch)
    store, attempt, reader = runtime.store, attempt_id(), snapshot_reader(runtime.open_target(SNAPSHOT))
    inserted = {"_op": Op.INSERT.value, "_commit_ts": time.time_ns() // 1000}
    parts: list[ChangesetPart] = []
    tables = list(SnapshotTables(runtime, reader, record.snapshot, record.first).every(state))
    replaces: list[ReplaceRecord] = []
    dialect = runtime.source.dialect(record.last)
    if record.replaces:
        _require_replaceable(runtime.pipeline, runtime.rules_path, [table.source for table in tables])
    under_way: Future[ChangesetPart] | None = None
    numbers = itertools.count()
    with ThreadPoolExecutor(1, "snapshot-files") as writer:  # a file is encoded while the next rows are sorted
        for table in tables:
            kept_keys = KeptKeys(table, changeset_folder(store, record.number, attempt)) if record.replaces else None
            for rows in table.pieces(reader, inserted, in_key_order=True):
                if under_way is not None:
                    parts.append(under_way.result())
                under_way = writer.submit(_part, store, record.number, attempt, table, rows, next(numbers))
                if kept_keys is not None:
                    kept_keys.add(rows)
                watch()
            if kept_keys is not None:
                replaces.append(kept_keys.written(store, dialect))
        if under_way is not None:
            parts.append(under_way.result())
    manifest = store.read_manifest(record.manifest)
    results = [MergeResult(tuple(parts), (), 0.0)]
    changeset = write_changeset_manifest(store, manifest, attempt, results, replaces=replaces)
    return state.batches.merged(record.number, changeset.path, under=watch.pause_state)


def _require_replaceable(pipeline: PipelineConfig, rules_path: Path | None, tables: Sequence[TableId]) -> None:
    """Raise MappingError for a table whose rows cannot be removed at targets."""
    for table, why in why_not(pipeline, rules_path, tables, tables, ()).items():
        raise MappingError(
            f"rows of {table} that the snapshot does not have cannot be removed from targets: {why}",
            where=str(table),
            hint=f"`sluice dump start {pipeline.pipeline}` copies the table",
        )


class KeptKeys:
    """The keys of a table of the snapshot, which stay at targets; all of them are in memory at once.

    Written below ``folder``.
    """

    def __init__(self, table: SnapshotTable, folder: str) -> None:
        self._table, self._folder = table, folder
        fields = sorted((field for field in table.schema if is_key(field)), key=key_ordinal)
        self._schema = pa.schema(fields)
        self._pieces = [self._schema.empty_table()]

    def add(self, rows: pa.Table) -> None:
        """Add further rows of the table."""
        self._pieces.append(rows.select(self._schema.names))

    def written(self, store: SegmentStore, dialect: Dialect) -> ReplaceRecord:
        """Store the collected keys and return the record by which targets delete all other rows of the table."""
        table, target = self._table.source, self._table.route.target
        path = f"{self._folder}/kept-{quoted(target.schema)}.{quoted(target.table)}.parquet"
        sink = pa.BufferOutputStream()
        pq.write_table(pa.concat_tables(self._pieces), sink, compression="zstd", write_page_checksum=True)
        store.write_bytes(path, sink.getvalue().to_pybytes())
        return ReplaceRecord(
            schema_=table.schema,
            table=table.table,
            dump="",
            chunk="",
            key=tuple(self._schema.names),
            kept=path,
            flavour=dialect.name,
            mapped=True,
        )


def _wait_for(name: str, state: PipelineState, record: Batch, watch: CancellationGuard) -> None:
    end = time.monotonic() + _WAIT_S
    while (acknowledgement := state.acks.get(SNAPSHOT)) is None or acknowledgement.batch < record.snapshot:
        if time.monotonic() > end:
            has = f"batch {acknowledgement.batch}" if acknowledgement is not None else "nothing"
            raise TargetUnavailable(
                f"batch {record.number} is the snapshot as of batch {record.snapshot}, and the snapshot of "
                f"{name} has {has}",
                hint=f"it is tried again; `sluice status {name}` says what the snapshot waits for",
            )
        watch()
        time.sleep(_LOOK_S)


@dataclass(frozen=True)
class SnapshotTable:
    """A table of the snapshot, and what its rows look like: ``schema`` is CHANGESET_ROWS."""

    source: TableId
    route: TableRoute
    version: TableVersion
    schema: pa.Schema

    def pieces(
        self,
        reader: VersionReader,
        constants: Mapping[str, Any],
        more: Sequence[pa.Field] = (),
        *,
        in_key_order: bool = False,
    ) -> Iterator[pa.Table]:
        """Yield all rows as CHANGESET_ROWS with ``more`` columns.

        Args:
            constants: columns that have one value in every row; ``_seq`` counts, others are null.

        Raises MappingError, LoadError, TargetUnavailable.
        """
        users = [field for field in self.schema if field.name not in META_COLUMNS]
        read = [user for user in users if not is_generated(user)]
        schema, seq = pa.schema([*self.schema, *more]), 0
        row_pieces = _together(reader.rows(self.version, read))
        if in_key_order:
            names = [true_name(field) for field in sorted(filter(is_key, read), key=key_ordinal)]
            row_pieces = ordered(row_pieces, names, self.version.rows, window_rows=_FILE_ROWS, window_bytes=_FILE_BYTES)
        for rows in row_pieces:
            yield pa.Table.from_arrays([_column(rows, field, constants, seq) for field in schema], schema=schema)
            seq += rows.num_rows


@dataclass
class SnapshotTables:
    """The captured tables, as the snapshot holds them after ``batch``, which ended at ``at``."""

    runtime: Runtime
    reader: VersionReader
    batch: int
    at: Offset
    ruling: StageRules = field(init=False)
    routes: Routes = field(init=False)

    def __post_init__(self) -> None:
        """Load the rules and the mapping. Raises MappingError, RuleError, ConfigError."""
        path = self.runtime.rules_path
        rules = RuleSet.of(path)
        self.ruling = StageRules.of(rules, self.runtime.pipeline, path, self.runtime.resolver)
        self.routes = Routes.of(self.runtime.pipeline)

    def every(
        self, state: PipelineState, wants: Callable[[TableId], bool] = lambda target: True
    ) -> Iterator[SnapshotTable]:
        """Yield the tables whose name at targets ``wants`` accepts.

        Raises MappingError, LoadError, TargetUnavailable.
        """
        selection = Selection.compile(self.runtime.pipeline.capture)
        known_definitions = definitions_at(self.runtime.store, self.runtime.source, state, self.at)
        if known_definitions is None:
            raise MappingError(
                f"the definitions of {self.runtime.name}'s tables are not known, so that rows of the snapshot cannot "
                "be read",
                hint="`sluice dump start` copies the tables",
            )
        noted = noted_columns(self.runtime.store, state, self.batch, self.ruling.rules)
        captured = [
            table for table in sorted({*known_definitions.tables, *known_definitions.unknown}) if selection.wants(table)
        ]
        for table in captured:
            if not wants(self.routes.route(table).target):
                continue
            if table not in known_definitions.tables:
                raise MappingError(
                    f"the definition of {table} is not known: {known_definitions.unknown[table].reason}",
                    where=str(table),
                )
            snapshot_table = self._found(self.runtime.source.stored_table(known_definitions.tables[table]), noted)
            if snapshot_table is not None:
                yield snapshot_table
        taken_targets = {self.routes.route(table).target for table in captured}
        for (source, target), fields in sorted(noted.items(), key=lambda entry: entry[0]):
            route = self.routes.whole_route(source)  # a table that only rules send rows to
            if route.target != target or target in taken_targets or not wants(target):
                continue
            version = self.reader.as_of(target, self.batch)
            if version is not None:
                yield SnapshotTable(source, route, version, self._as_noted(fields, version))

    def _found(self, schema: TableSchema, noted: Mapping[Way, pa.Schema]) -> SnapshotTable | None:
        """Return the table as the snapshot has it; None for an empty table of which only rows tell the columns.

        Raises MappingError, RuleError.
        """
        table = schema.table
        route = self.routes.whole_route(table)
        version = self.reader.as_of(route.target, self.batch)
        if version is None:
            raise MappingError(
                f"the snapshot has no table {route.target}",
                where=str(table),
                hint=f"`sluice check {self.runtime.name} --apply` makes it; `sluice dump start {self.runtime.name} "
                f"--target {SNAPSHOT}` fills it",
            )
        why = known_when_it_runs(self.ruling.rules, table)
        if not why:
            mapped_schema = mapped_columns(self.ruling, route, schema).schema
        elif (fields := noted.get((table, route.target))) is not None:
            mapped_schema = self._as_noted(fields, version)
        elif not version.rows:
            return None
        else:
            raise MappingError(
                f"the columns of {table} in the snapshot were not noted when its rows came: {why}",
                where=str(table),
                hint=f"`sluice dump start {self.runtime.name} --target {SNAPSHOT}` copies the table into the snapshot "
                "again, which notes them",
            )
        CHANGESET_ROWS.require(mapped_schema, where=str(route.target))
        return SnapshotTable(table, route, version, mapped_schema)

    def _as_noted(self, noted: pa.Schema, version: TableVersion) -> pa.Schema:
        """Return the schema of CHANGESET_ROWS of the noted columns that the version has.

        A rule's own column has the type in which it is stored.
        """
        stored = {field.name.casefold(): field.type for field in self.reader.columns(version)}
        users = []
        for column in noted:
            kind = stored.get(true_name(column).casefold())
            if kind is not None or is_generated(column):
                users.append(column if declared_type(column) or kind is None else column.with_type(kind))
        meta = [field for field in META_FIELDS if field.name in {"_op", "_seq", "_commit_ts"}]
        return pa.schema([*users, *meta, pa.field("_before", pa.struct(users))])


def _part(
    store: SegmentStore, batch: int, attempt: str, table: SnapshotTable, rows: pa.Table, number: int
) -> ChangesetPart:
    """Write rows of a table to a file."""
    name = f"{quoted(table.source.schema)}.{quoted(table.source.table)}-{number:05d}"
    path = changeset_file_path(store, batch, attempt, table.route.target, name)
    file = write_changeset_file(store, path, rows, (0, KEY_BUCKETS - 1))
    return ChangesetPart(table.source, table.route, columns_of(rows.schema), file)


def _together(rows: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Yield small pieces joined into larger ones."""
    buffer: list[pa.Table] = []
    for piece in rows:
        buffer.append(piece)
        if sum(part.num_rows for part in buffer) >= _FILE_ROWS or sum(part.nbytes for part in buffer) >= _FILE_BYTES:
            yield pa.concat_tables(buffer)
            buffer = []
    if any(part.num_rows for part in buffer):
        yield pa.concat_tables(buffer)


def _column(rows: pa.Table, field: pa.Field, constants: Mapping[str, Any], first: int) -> pa.Array | pa.ChunkedArray:
    count = rows.num_rows
    if field.name == "_seq":
        return pa.array(np.arange(first, first + count, dtype=np.uint64))
    if field.name in constants:
        return pa.repeat(pa.scalar(constants[field.name], field.type), count)
    if field.name not in META_COLUMNS and true_name(field) in rows.column_names:
        return rows[true_name(field)]
    return pa.nulls(count, field.type)
