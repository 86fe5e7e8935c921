"""Iceberg tables by pyiceberg: see :class:`sluice.targets.lake.format.LakeFormat`.

Each commit is a snapshot and the note of it in one transaction of the catalog. Columns have ids, so that no file is
touched when they go or change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pyarrow as pa

from sluice.errors import LoadError
from sluice.model.row_effects import Step
from sluice.model.tables import TableId
from sluice.targets.iceberg.client import Place, errors, transaction
from sluice.targets.iceberg.commit_notes import is_first, lineage, said_by, still_holding
from sluice.targets.iceberg.deletes import Deletes
from sluice.targets.iceberg.maintain import Maintenance
from sluice.targets.iceberg.merge import COPY_ON_WRITE, Files, WriteMode, merge_parts
from sluice.targets.iceberg.options import IcebergOptions
from sluice.targets.iceberg.types import MERGE_MANIFESTS, arrow_schema, info_in, info_of, promotes, schema_of, type_of
from sluice.targets.lake.conversions import converted_rows
from sluice.targets.lake.format import Commit, CommitNote, Edits, Following, Names
from sluice.targets.lake.names import RESERVED, legal
from sluice.targets.lake.rows import Part
from sluice.targets.lake.statements import quoted, set_text
from sluice.targets.lake.types import LakeColumn, Shape, TableInfo, wanting
from sluice.targets.port import TableFinding, Upkeep

RETRIES = "commit.retry.num-retries"
"""The property that keeps the library from committing a lost race by itself."""
_HINT = f"`sluice check PIPELINE --apply` sets {RETRIES} to 0"
_TOTALS = ("total-records", "total-data-files", "total-files-size", "total-delete-files")
_MOST_DELETED = 0.5
"""The share of deleted rows from which a merge writes a data file anew. Maintenance does so earlier."""
_MOST_SNAPSHOTS = 20
"""Snapshots of the checkpoint's table."""
_CHECKPOINT = {
    "format-version": "2",
    RETRIES: "0",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "10",
}
"""The properties of the small table."""


@dataclass(frozen=True)
class IcebergFormat:
    """The Iceberg tables of a target. Its methods are described by :class:`sluice.targets.lake.format.LakeFormat`."""

    FORMAT: ClassVar[str] = "iceberg"
    NAME: ClassVar[str] = "Iceberg"
    BY_HAND: ClassVar[str] = "make the change with another writer of Iceberg tables"
    KEPT: ClassVar[str] = (
        "snapshots are kept for maintenance.keep of the target's options, a pipeline's snapshot for its retain_log"
    )
    KEEPS_PARTITIONS: ClassVar[bool] = True
    EMPTY_VERSION: ClassVar[int | None] = 0

    place: Place
    options: IcebergOptions

    # -- tables ----------------------------------------------------------------------------------------------------
    def uri(self, table: TableId) -> str:
        return ".".join(self.names(table))

    def names(self, table: TableId) -> Names:
        return (legal(table.schema), legal(table.table))

    def sql_name(self, table: TableId) -> str:
        return ".".join(map(quoted, self.names(table)))

    def odd_name(self, name: str) -> bool:
        return not name

    def open(self, names: Names, doing: str) -> Any:
        return self.place.open(names, doing)

    def refusal(self, table: TableId, lake_table: Any, *, every: bool) -> TableFinding | None:
        if self.property_of(lake_table, RETRIES) == "0":
            return None
        why = (
            f"the Iceberg table {self.uri(table)} does not have {RETRIES} = 0, and the client would commit a lost race "
            "by itself, so that rows would be doubled"
        )
        return TableFinding("error", table, "", why, set_text(self.sql_name(table), RETRIES, "0"), _HINT)

    def info(self, lake_table: Any) -> TableInfo:
        return info_of(lake_table)

    def arrow_schema(self, lake_table: Any) -> pa.Schema:
        return arrow_schema(lake_table.metadata)

    def is_empty(self, lake_table: Any) -> bool:
        return lake_table.current_snapshot() is None

    def turn(self) -> AbstractContextManager[None]:
        return self.place.turn()

    # -- schema ----------------------------------------------------------------------------------------------------
    def create(self, names: Names, columns: Sequence[LakeColumn], partitions: Sequence[str]) -> None:
        from pyiceberg.partitioning import PartitionField, PartitionSpec
        from pyiceberg.transforms import IdentityTransform

        catalog, name = self.place.catalog(), ".".join(names)
        properties = {
            "format-version": "2",
            RETRIES: "0",
            **MERGE_MANIFESTS,
            "write.target-file-size-bytes": str(self.options.file_size),
            "write.metadata.delete-after-commit.enabled": "true",
        }
        with errors(self.place, f"making the table {name}", name):
            schema = schema_of(columns)
            fields = [
                PartitionField(schema.find_field(column).field_id, 1000 + place, IdentityTransform(), column)
                for place, column in enumerate(partitions)
            ]
            catalog.create_namespace_if_not_exists(names[:-1])
            catalog.create_table_if_not_exists(
                names, schema, partition_spec=PartitionSpec(*fields), properties=properties,
                sort_order=self._order(names, columns, partitions, schema),
            )  # fmt: skip

    def _order(self, names: Names, columns: Sequence[LakeColumn], partitions: Sequence[str], schema: Any) -> Any:
        """Return the sort order of a table, which other writers such as Spark follow."""
        from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, NullOrder, SortDirection, SortField, SortOrder
        from pyiceberg.transforms import IdentityTransform

        info = TableInfo(tuple(replace(column, partition=column.name in partitions) for column in columns))
        for name in self.options.cluster_by:
            table = TableId(*name.split(".", 1)) if "." in name else None
            if table is not None and self.names(table) == tuple(names):
                ids = [schema.find_field(column).field_id for column in self.options.clusters(table, info)]
                fields = [
                    SortField(field_id, IdentityTransform(), SortDirection.ASC, NullOrder.NULLS_LAST)
                    for field_id in ids
                ]
                return SortOrder(*fields) if fields else UNSORTED_SORT_ORDER
        return UNSORTED_SORT_ORDER

    def add_columns(self, names: Names, lake_table: Any, columns: Sequence[LakeColumn]) -> None:
        with errors(self.place, "adding columns", ".".join(names)):
            change = transaction(lake_table)
            with change.update_schema() as schema:
                _add(schema, self.info(lake_table), columns)
            if not self.is_empty(lake_table):  # a snapshot is read with the columns of its time
                summary = {"sluice.doing": "columns", **still_holding(lake_table)}
                with change.update_snapshot(snapshot_properties=summary).fast_append():
                    pass
            change.commit_transaction()

    def set_properties(self, names: Names, lake_table: Any, properties: Mapping[str, str]) -> None:
        with errors(self.place, "setting a property", ".".join(names)):
            lake_table.transaction().set_properties(dict(properties)).commit_transaction()

    def edit_schema(self, edits: Edits, lake_table: Any, following: Following) -> None:
        note = following.note(edits.source, "ddl", lake_table)
        if note is None:
            return
        following.refuse_clash(edits)
        info = self.info(lake_table)
        existing = {added.name for added in edits.adds if added.there}
        new = [lake_column for _, lake_column in edits.new if lake_column.name not in existing]
        if edits.every:
            new = wanting(edits.all_changes, info)
        if not (edits.gone or edits.names or edits.wider or new):
            return
        coming = {column.name for column in new}
        to_fill = [] if self.is_empty(lake_table) else [pair for pair in edits.new if pair[1].name in coming]
        values = {lake_column.name: following.fill(column, lake_column, edits.table) for column, lake_column in to_fill}
        fills = {name: value for name, value in values.items() if value is not None}
        changed = sorted({*edits.gone, *edits.names, *edits.wider, *coming})
        following.say(f"ALTER TABLE {edits.table}: {', '.join(changed)}")
        with self._commit(edits.table, lake_table, note) as change:
            _unsort(change, edits.gone)
            with change.update_schema() as schema:
                for name in edits.gone:
                    schema.delete_column((name,))
                for name, kind in edits.wider.items():
                    _widen(schema, info, name, kind, edits.emptied, following)
                for old, name in edits.names.items():
                    schema.rename_column((old,), name)
                _add(schema, info, new)
            with change.replacing(note.said) as snapshot:
                if fills:
                    files = Files(
                        lake_table, change, snapshot
                    )  # one for all: it gives each file that comes a name of its own
                    for task in lake_table.scan().plan_files():
                        snapshot.remove(task)
                        files.write(_filled(files.read(task), fills))

    def convert(
        self,
        table: TableId,
        lake_table: Any,
        note: CommitNote,
        steps: Mapping[str, Sequence[Step]],
        say: Callable[[str], None],
    ) -> None:
        with errors(self.place, note.doing, self.uri(table)):
            change = transaction(lake_table)
            with change.replacing(note.said) as snapshot:
                files = Files(lake_table, change, snapshot)
                for task in lake_table.scan().plan_files():
                    if converted_rows(files.read(task, list(steps)), steps) is None:
                        continue
                    rows = converted_rows(files.read(task), steps)
                    assert rows is not None
                    snapshot.remove(task)
                    files.write(rows)
            if files.written:
                say(f"UPDATE {table}: {', '.join(sorted(steps))}, converted")
                self._note_in(change, note)
                change.commit_transaction()

    def empty(self, table: TableId, lake_table: Any, note: CommitNote) -> None:
        with self._commit(table, lake_table, note) as change, change.replacing(note.said) as snapshot:
            for task in lake_table.scan().plan_files():
                snapshot.remove(task)

    # -- rows ------------------------------------------------------------------------------------------------------
    @contextmanager
    def _commit(self, table: TableId, lake_table: Any, note: CommitNote) -> Iterator[Any]:
        """Commit a transaction with its note.

        It makes a snapshot even without rows, so that the commit is refused if another came first.
        """
        with errors(self.place, note.doing, self.uri(table)):
            change = transaction(lake_table)
            yield change
            self._note_in(change, note)
            change.commit_transaction()

    def noted(self, lake_table: Any, owner: str, scope: str, delivery: int) -> int | None:
        noted = self.property_of(lake_table, f"sluice/{owner}/{scope}").split()
        return int(noted[1]) if len(noted) == 2 and noted[0] == str(delivery) else None

    def _note_in(self, change: Any, note: CommitNote) -> None:
        change.set_properties({f"sluice/{note.owner}/{note.scope}": f"{note.delivery} {note.number}"})

    def append(self, table: TableId, lake_table: Any, note: CommitNote, rows: pa.Table) -> None:
        with self._commit(table, lake_table, note) as change:
            update = change.update_snapshot(snapshot_properties=dict(note.said))
            with update.merge_append() as snapshot:
                Files(lake_table, change, snapshot).write(rows)

    def merge(
        self,
        table: TableId,
        lake_table: Any,
        note: CommitNote,
        parts: Sequence[Part],
        info: TableInfo,
        key: Sequence[str],
    ) -> None:
        with self._commit(table, lake_table, note) as change, change.replacing(note.said) as snapshot:
            files = Files(lake_table, change, snapshot, self.options.clusters(table, info))
            merge_parts(files, info, key, parts, self._mode(lake_table))

    def _mode(self, lake_table: Any) -> WriteMode:
        """Return how rows leave their data files. Version 1 of the format has no delete files."""
        if self.options.write_mode == "copy-on-write" or lake_table.metadata.format_version < 2:
            return COPY_ON_WRITE
        return WriteMode(_MOST_DELETED, self.options.small_file)

    def read(
        self, table: TableId, at: Any, names: Sequence[str], bounds: Mapping[str, tuple[int, int]]
    ) -> Iterator[pa.RecordBatch]:
        """See the protocol; one file at a time in memory.

        Decision: not the library's reader of batches, which reads all files at once and holds those that are not
        requested yet. Nor does it apply delete files here: it takes ten times as long for it as to read the rows.
        """
        from pyiceberg.expressions import AlwaysTrue, And, GreaterThanOrEqual, LessThanOrEqual
        from pyiceberg.io.pyarrow import ArrowScan
        from pyiceberg.table import FileScanTask

        if at is None:
            return
        where: Any = AlwaysTrue()
        for name, (low, high) in bounds.items():
            where = And(where, GreaterThanOrEqual(name, low), LessThanOrEqual(name, high))
        with errors(self.place, f"reading rows of {table}", self.uri(table)):
            scan = (at.scan() if hasattr(at, "scan") else at).filter(where).select(*names)
            reader = ArrowScan(scan.table_metadata, scan.io, scan.projection(), scan.row_filter)
            stored = ArrowScan(scan.table_metadata, scan.io, scan.projection(), AlwaysTrue())
            deletes = Deletes(scan.io)
            for task in scan.plan_files():
                if task.delete_files:
                    yield from deletes.rows(task, stored.to_table([FileScanTask(task.file)])).to_batches()
                else:
                    yield from reader.to_record_batches([task])

    # -- versions --------------------------------------------------------------------------------------------------
    def newest(self, lake_table: Any) -> Commit | None:
        head = lake_table.current_snapshot()
        return Commit.of(head.snapshot_id, said_by(head), begins=is_first(head)) if head is not None else None

    def history(self, table: TableId, lake_table: Any) -> Iterator[Commit]:
        undone = {snapshot.snapshot_id: snapshot for snapshot in lake_table.snapshots()}
        for snapshot in lineage(lake_table):
            undone.pop(snapshot.snapshot_id, None)
            yield Commit.of(snapshot.snapshot_id, said_by(snapshot), begins=is_first(snapshot))
        for snapshot in undone.values():
            yield Commit.of(snapshot.snapshot_id, said_by(snapshot), begins=False, undone=True)

    def as_of(self, table: TableId, lake_table: Any, version: int) -> tuple[Any, TableInfo]:
        head = lake_table.current_snapshot()
        if version == self.EMPTY_VERSION:
            return None, self.info(lake_table)
        if head is not None and head.snapshot_id == version:  # columns may have been added since that snapshot
            return lake_table, self.info(lake_table)
        if lake_table.snapshot_by_id(version) is None:
            raise LoadError(f"snapshot {version} of {table} is no longer kept", where=self.uri(table), hint=self.KEPT)
        scan = lake_table.scan(snapshot_id=version)
        return scan, info_in(lake_table.metadata, scan.projection())

    def totals(self, table: TableId, lake_table: Any, version: int) -> tuple[int, int, int]:
        if version == self.EMPTY_VERSION:
            return 0, 0, 0
        summary = said_by(lake_table.snapshot_by_id(version))
        rows, files, size, deletes = (int(summary.get(name, -1)) for name in _TOTALS)
        if deletes != 0 or min(rows, files, size) < 0:  # after other writers a summary may have no totals
            with errors(self.place, f"counting the rows of snapshot {version} of {table}", self.uri(table)):
                tasks, positions = list(lake_table.scan(snapshot_id=version).plan_files()), Deletes(lake_table.io)
                rows = sum(positions.alive(task) for task in tasks)
                return rows, len(tasks), sum(task.file.file_size_in_bytes for task in tasks)
        return rows, files, size

    # -- the table of the checkpoint -------------------------------------------------------------------------------
    def _small_table(self, owner: str) -> Names:
        return (RESERVED, *map(legal, owner.split("/", 1)))

    def checkpoint_uri(self, owner: str) -> str:
        return f"{'.'.join(self._small_table(owner))} in {self.place.said}"

    def open_checkpoint(self, owner: str) -> Any:
        return self.place.open(self._small_table(owner), "reading the target's checkpoint")

    def create_checkpoint(self, owner: str) -> None:
        catalog, names = self.place.catalog(), self._small_table(owner)
        with errors(self.place, "making the table of the target's checkpoint", ".".join(names)):
            for depth in (1, 2):
                catalog.create_namespace_if_not_exists(names[:depth])
            schema = schema_of([LakeColumn("unused", "string")])
            catalog.create_table_if_not_exists(names, schema, properties=_CHECKPOINT)

    def property_of(self, lake_table: Any, name: str) -> str:
        return str(lake_table.properties.get(name, ""))

    def move_checkpoint(self, owner: str, lake_table: Any, name: str, text: str, epoch: int, doing: str) -> None:
        """See the protocol: an empty snapshot and the property in one commit, which is refused if another snapshot came
        since.
        """
        old = sorted(lake_table.snapshots(), key=lambda snapshot: int(snapshot.sequence_number or 0))[:-1]
        with errors(self.place, doing, ".".join(self._small_table(owner))):
            change = transaction(lake_table)
            with change.update_snapshot(snapshot_properties={"sluice.doing": doing}).fast_append():
                pass
            change.set_properties({name: text})
            change.commit_transaction()
            if len(old) >= _MOST_SNAPSHOTS:  # their files list nothing
                now = self.open_checkpoint(owner)
                now.maintenance.expire_snapshots().by_ids([snapshot.snapshot_id for snapshot in old]).commit()
                for snapshot in old:
                    now.io.delete(snapshot.manifest_list)

    # -- maintenance -----------------------------------------------------------------------------------------------
    def compact(self, table: TableId, lake_table: Any, owner: str, *, dry_run: bool) -> Upkeep:
        return Maintenance(self.place, self.names(table), table, self.options, dry_run).compact(lake_table)

    def expire(self, upkeep: Upkeep, *, dry_run: bool) -> Upkeep:
        maintenance = Maintenance(self.place, self.names(upkeep.table), upkeep.table, self.options, dry_run)
        return maintenance.without_orphans(maintenance.expire(upkeep))


def _add(schema: Any, info: TableInfo, columns: Sequence[LakeColumn]) -> None:
    """Add columns to an update of a schema; parts of an existing struct are added to it."""
    for column in columns:
        if info.find(column.name) is None or isinstance(column.kind, str):
            schema.add_column((column.name,), type_of(column.kind))
            continue
        for part in column.kind:
            schema.add_column((column.name, part.name), type_of(part.kind))


def _widen(schema: Any, info: TableInfo, name: str, kind: Shape, emptied: bool, following: Following) -> None:
    column = info.find(name)
    assert column is not None
    if isinstance(kind, str):
        _promote(schema, (name,), column.kind, kind, emptied, following)
        return
    assert not isinstance(column.kind, str)
    for old, new in zip(column.kind, kind, strict=True):
        if old.kind != new.kind and isinstance(new.kind, str):
            _promote(schema, (name, old.name), old.kind, new.kind, False, following)


def _promote(schema: Any, path: Names, old: Shape, new: str, emptied: bool, following: Following) -> None:
    if isinstance(old, str) and promotes(old, new):
        schema.update_column(path, field_type=type_of(new))
    elif emptied and isinstance(old, str):
        schema.delete_column(path)
        schema.add_column(path, type_of(new))
    else:
        why = f"column {path[-1]} is {old}, and Iceberg does not make that {new} without writing the table anew"
        raise following.by_hand(why)


def _unsort(change: Any, dropped: Collection[str]) -> None:
    """Remove a sort order that names a column which is dropped."""
    schema, order = change.table_metadata.schema(), change.table_metadata.sort_order()
    if any(schema.find_column_name(field.source_id) in dropped for field in order.fields):
        change.unsort()


def _filled(rows: pa.Table, fills: Mapping[str, pa.Scalar]) -> pa.Table:
    for name, value in fills.items():
        place = rows.schema.get_field_index(name)
        field = rows.schema.field(place)  # wider than the column was asked for, where the format has no such type
        rows = rows.set_column(place, field, pa.repeat(value, rows.num_rows).cast(field.type))
    return rows
