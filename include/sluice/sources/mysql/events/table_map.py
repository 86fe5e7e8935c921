"""The table map event: what a table's row images look like, and (with ``binlog_row_metadata=FULL``) what its columns
are called.

Source: ``Table_map_log_event`` and ``Optional_metadata_fields`` in MySQL's libs/mysql/binlog/event/rows_event.h.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sluice.errors import DecodeError
from sluice.model.tables import TableId
from sluice.mysql import type_codes as t
from sluice.mysql.column_types import FORMS, META_BYTES, Collated, Meta


@dataclass(slots=True)
class MappedColumn:
    """A column of a table map.

    ``meta`` is the type's own metadata, see :func:`parse_table_map`; None: the log does not say.

    No log says the last one: ``family`` is uuid, inet4 or inet6 where a definition says so (MariaDB logs them as
    BINARY); and MariaDB's old temporal types get their digits into ``meta`` from there. ``skipped``: its values are
    passed over.
    """

    type: int
    meta: int
    nullable: bool
    unsigned: bool | None = None
    collation: int | None = None
    name: str | None = None
    labels: tuple[bytes | str, ...] | None = None
    geometry: int | None = None
    dimension: int | None = None
    family: str | None = None
    skipped: bool = False


@dataclass(slots=True)
class TableMap:
    """A parsed table map event. ``primary_key`` holds column indexes; None: the log does not say."""

    table_id: int
    table: TableId
    columns: list[MappedColumn]
    primary_key: tuple[int, ...] | None = None
    body: bytes = field(default=b"", repr=False)

    @property
    def named(self) -> bool:
        """True if the log carries the columns' names (``binlog_row_metadata=FULL``)."""
        return all(column.name is not None for column in self.columns)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        if count < 0 or self.at + count > len(self.data):
            raise DecodeError("a table map event ends too early")
        piece = self.data[self.at : self.at + count]
        self.at += count
        return piece

    def number(self, count: int) -> int:
        return int.from_bytes(self.take(count), "little")

    def packed(self) -> int:
        first = self.number(1)
        if first < 251:
            return first
        if first in {252, 253, 254}:
            return self.number({252: 2, 253: 3, 254: 8}[first])
        raise DecodeError("a table map event holds a broken length")

    @property
    def left(self) -> int:
        return len(self.data) - self.at


def parse_table_map(body: bytes, *, mariadb: bool = False) -> TableMap:
    """Parse the body (after the 19-byte header, without checksum). Raises DecodeError.

    ``meta`` of a column: varchar, char, binary: bytes; enum, set: pack length (``type`` is the real type); decimal:
    ``precision << 8 | scale``; bit: number of bits; blobs: length bytes; temporal types with fractions: digits.
    """
    r = _Reader(body)
    table_id = r.number(6)
    r.number(2)
    schema = r.take(r.number(1)).decode("utf-8")
    r.take(1)
    name = r.take(r.number(1)).decode("utf-8")
    r.take(1)
    count = r.packed()
    types = r.take(count)
    metas = _Reader(r.take(r.packed()))
    columns = []
    for kind in types:
        if kind == t.TYPED_ARRAY:
            raise DecodeError(f"the table map of {schema}.{name} holds a typed array, which no table has")
        real, meta = _meta(kind, metas)
        columns.append(MappedColumn(real, meta, nullable=True))
    nulls = r.take((count + 7) // 8)
    for i, column in enumerate(columns):
        column.nullable = bool(nulls[i >> 3] >> (i & 7) & 1)
    table_map = TableMap(table_id, TableId(schema, name), columns, body=body)
    while r.left:
        field_type = r.number(1)
        _optional(table_map, field_type, _Reader(r.take(r.packed())), mariadb)
    return table_map


def _meta(code: int, metas: _Reader) -> tuple[int, int]:
    """Return the real type of a column, and its metadata. The first byte tells the types that STRING stands for."""
    form = FORMS.get(code)
    if form is None:
        return code, 0  # whoever plans its rows refuses the type
    match form.meta:
        case Meta.STRING | Meta.LABELS:
            return _string_meta(metas.number(1), metas.number(1))
        case Meta.PRECISION:
            return code, metas.number(1) << 8 | metas.number(1)
        case Meta.BITS:
            return code, metas.number(1) + metas.number(1) * 8
        case _:
            return code, metas.number(META_BYTES[form.meta])


def _string_meta(low: int, high: int) -> tuple[int, int]:
    if low & 0x30 != 0x30:
        return low | 0x30, high | ((low & 0x30) ^ 0x30) << 4
    return low, high


def _optional(table_map: TableMap, field_type: int, r: _Reader, mariadb: bool) -> None:
    columns = table_map.columns
    if field_type == 1:  # one bit a numeric column, most significant first
        numeric = [c for c in columns if c.type in FORMS and FORMS[c.type].sign]
        bits = r.take(r.left)
        for i, column in enumerate(numeric):
            column.unsigned = bool(i >> 3 < len(bits) and bits[i >> 3] << (i & 7) & 0x80)
    elif field_type in {2, 3}:
        lists = {Collated.CHARACTER, Collated.MARIADB if mariadb else Collated.MYSQL}
        _charsets(_collated(columns, lists), r, default=field_type == 2)
    elif field_type in {10, 11}:
        _charsets(_collated(columns, {Collated.LABELS}), r, default=field_type == 10)
    elif field_type == 4:
        for column in columns:
            column.name = r.take(r.packed()).decode("utf-8")
    elif field_type in {5, 6}:
        for column in columns:
            if column.type == (t.SET if field_type == 5 else t.ENUM):
                column.labels = tuple(r.take(r.packed()) for _ in range(r.packed()))
    elif field_type == 7:
        for column in columns:
            if column.type == t.GEOMETRY and r.left:
                column.geometry = r.packed()
    elif field_type in {8, 9}:
        key = []
        while r.left:
            key.append(r.packed())
            if field_type == 9:
                r.packed()  # a prefix length: still the column's value is what identifies the row
        if any(index >= len(columns) for index in key):
            raise DecodeError(f"the table map of {table_map.table} names a key column that does not exist")
        table_map.primary_key = tuple(key)
    elif field_type == 13:
        for column in columns:
            if column.type == t.VECTOR and r.left:
                column.dimension = r.packed()
    # 12 (visibility) and later kinds describe nothing that a value depends on


def _collated(columns: list[MappedColumn], lists: set[Collated]) -> list[MappedColumn]:
    return [c for c in columns if c.type in FORMS and FORMS[c.type].collated in lists]


def _charsets(columns: list[MappedColumn], r: _Reader, *, default: bool) -> None:
    if not default:
        for column in columns:
            column.collation = r.packed()
        return
    collation = r.packed()
    for column in columns:
        column.collation = collation
    while r.left:
        index, own_collation = r.packed(), r.packed()
        if index >= len(columns):
            raise DecodeError("a table map event names a character column that does not exist")
        columns[index].collation = own_collation
