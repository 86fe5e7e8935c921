"""Rows of a batch that are in memory already: for dead letters, and for tests of targets."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from sluice.model.changes import Change
from sluice.model.fields import true_name
from sluice.model.planned import PlannedColumn, PlannedTable
from sluice.model.tables import META_FIELDS, TableId, TableSchema, stored_name
from sluice.targets.port import ChangePiece, KeyRange, RowFile, RowGroup, Share, StoredRange


@dataclass(frozen=True, slots=True)
class RowsInMemory:
    """Merged rows of one table. A :class:`~sluice.targets.port.RowFile` that need not be read."""

    table: TableId
    data: pa.Table

    @property
    def path(self) -> str:
        """The name of the table after ``memory/``: there is no file."""
        return f"memory/{self.table}"

    @property
    def rows(self) -> int:
        """The number of rows."""
        return int(self.data.num_rows)

    def _count(self, op: str) -> int:
        return int(sum(value == op for value in self.data["_op"].to_pylist()))

    @property
    def inserts(self) -> int:
        """The number of rows with ``_op`` i."""
        return self._count("i")

    @property
    def updates(self) -> int:
        """The number of rows with ``_op`` u."""
        return self._count("u")

    @property
    def deletes(self) -> int:
        """The number of rows with ``_op`` d."""
        return self._count("d")

    @property
    def partial(self) -> int:
        """The number of rows that lack columns, by ``_present``."""
        return self.rows - self.data["_present"].null_count if "_present" in self.data.schema.names else 0

    @property
    def size_bytes(self) -> int:
        """The bytes of the rows in memory: there is no file."""
        return int(self.data.nbytes)

    @property
    def arrow_bytes(self) -> int:
        """The bytes of the rows in memory."""
        return int(self.data.nbytes)

    @property
    def revived(self) -> bool:
        """False: no rule keeps these rows after a delete."""
        return False

    @property
    def key_starts(self) -> tuple[int, ...]:
        """Nothing: the rows are in no order."""
        return ()

    def groups(self, low: int | None, high: int | None) -> list[int]:
        """Return the only group."""
        return [0]


@dataclass(frozen=True, slots=True)
class MemoryReader:
    """Reads :class:`RowsInMemory`, and the changes of ``log``. A :class:`~sluice.targets.port.RowReader`."""

    log: tuple[Change, ...] = ()

    def pieces(self, files: Sequence[RowFile]) -> Iterator[pa.Table]:
        """Yield the rows, one piece per file."""
        for file in files:
            assert isinstance(file, RowsInMemory)
            yield file.data

    def groups(
        self,
        files: Sequence[RowFile],
        keys: tuple[int | None, int | None] | None = None,
        *,
        lean: bool = False,
        in_order: bool = False,
        streamed: bool = False,
    ) -> list[RowGroup]:
        """Return the rows, one group per file."""
        return [RowGroup(rows) for rows in self.pieces(files)]

    def changes(self, share: Share | None = None) -> Iterator[Change]:
        """Yield the changes of ``log``, or those that belong to ``share``."""
        for change in self.log:
            row = change.after if change.after is not None else change.before or {}
            text = f"{change.table}|{[row.get(name) for name in change.key]}"
            if share is None or zlib.crc32(text.encode()) % share.of == share.number:
                yield change

    def change_pieces(self, share: Share | None = None) -> Sequence[ChangePiece]:
        """Return ``log`` as columns, one piece per table."""
        grouped: dict[tuple[TableId, tuple[str, ...]], list[Change]] = {}
        for change in self.changes(share):
            grouped.setdefault((change.table, change.key), []).append(change)
        return [_piece(table, key, changes) for (table, key), changes in grouped.items()]

    def is_large(self, size_bytes: int) -> bool:
        """Return False, as the rows are in memory already."""
        return False

    def memory_of(self, size_bytes: int, files: int) -> int:
        """Return ``size_bytes``, as the rows are in memory as they are."""
        return size_bytes

    def key_range(self, stored: StoredRange) -> KeyRange:
        """Return ``stored`` itself, which is the range."""
        assert isinstance(stored.stored, KeyRange)
        return stored.stored


def _piece(table: TableId, key: tuple[str, ...], changes: Sequence[Change]) -> ChangePiece:
    fields = list(changes[0].fields)
    schema = pa.schema([*fields, *META_FIELDS, pa.field("_before", pa.struct(fields))])
    rows = []
    for change in changes:
        image = (change.before if change.after is None else change.after) or {}
        before = change.before
        rows.append({
            **{field.name: image.get(true_name(field)) for field in fields},
            "_before": before and {field.name: before.get(true_name(field)) for field in fields},
            "_op": change.op, "_seq": change.seq, "_file": change.file, "_offset": change.offset, "_row": change.row,
            "_gtid": change.gtid, "_txn": change.txn,
            "_commit_ts": change.commit_time_us, "_origin": change.origin, "_bucket": 0,
        })  # fmt: skip
    return ChangePiece(
        table,
        key,
        pa.Table.from_pylist(rows, schema=schema).drop_columns(["_present"]),
        pa.array([change.txn_row for change in changes], pa.uint64()),
        pa.array([change.part for change in changes], pa.uint32()),
    )


def planned_table(schema: TableSchema, target: TableId | None = None) -> PlannedTable:
    """Return a table as it would be planned, without a mapping."""
    key = schema.primary_key
    return PlannedTable(
        target or schema.table,
        schema.table,
        tuple(
            PlannedColumn(
                column.name,
                column.sql_type,
                key.index(column.name) + 1 if column.name in key else 0,
                column.generated,
                column.charset or "",
                column.collation or "",
                str(schema.arrow_schema.field(stored_name(column.name)).type),
                type=column.type,
            )
            for column in schema.columns
        ),
    )
