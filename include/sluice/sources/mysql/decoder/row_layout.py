"""The definition (:class:`TableSchema`) that a table map gives, and the plan by which its row images are decoded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from sluice.errors import UnsupportedType
from sluice.model.column_types import ColumnKind as K
from sluice.model.definitions import TableDefinition
from sluice.model.labels import declared
from sluice.model.tables import Column, TableSchema
from sluice.mysql.charsets import MAX_BYTES, decode_bytes, is_known
from sluice.mysql.column_types import (
    FORMS,
    TYPES,
    Brackets,
    Collated,
    Fill,
    Meta,
    MysqlType,
    type_named,
    types_of_code,
)
from sluice.sources.mysql.events import table_map as t
from sluice.sources.mysql.events.unreadable import AROUND

CollationLookup = Callable[[int], tuple[str, str]]
"""Collation id -> (collation, charset). Raises UnsupportedType."""

BINARY_COLLATION = 63


@dataclass(frozen=True, slots=True)
class ColumnLayout:
    """The decoding of one column's values.

    ``width``: see :func:`sluice.sources.mysql.decoder.scan_kernel.walk_image`; ``type``, ``meta``: from the table map;
    ``fill``: how :mod:`sluice.sources.mysql.decoder.rows` makes the Arrow column.
    """

    column: Column
    type: int
    meta: int
    width: int
    arrow_type: pa.DataType
    fill: Fill


@dataclass(frozen=True, slots=True)
class RowLayout:
    """A table's definition and plan.

    ``columns``, ``widths``: of every column of a row image; ``key``: indexes of the primary key's columns among them;
    ``captured``: indexes of those that ``schema`` has. ``definition``: what the schema history says of the table, for
    defaults; None if nothing. ``arrow_schema``: of its tables, made once. ``marks``: its rows are marks of loads, and
    are not captured.
    """

    schema: TableSchema
    columns: tuple[ColumnLayout, ...]
    widths: np.ndarray[tuple[int], np.dtype[np.int32]]
    key: np.ndarray[tuple[int], np.dtype[np.int64]]
    definition: TableDefinition | None = None
    marks: bool = False
    captured: tuple[int, ...] = ()
    arrow_schema: pa.Schema = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "arrow_schema", self.schema.arrow_schema)
        object.__setattr__(self, "captured", self.captured or tuple(range(len(self.columns))))


def width_of(column: t.MappedColumn) -> int:
    """Return the bytes of a fixed value, or minus the number of length bytes. Raises UnsupportedType."""
    form = FORMS.get(column.type)
    width = form.width(column.meta) if form is not None else None
    if width is None:
        raise UnsupportedType(f"column type {column.type} (metadata {column.meta}) is not understood by this version")
    return width


def column_of(mapped: t.MappedColumn, collations: CollationLookup, where: str) -> tuple[Column, Fill]:
    """Return a column's definition as far as the log tells it, and how its values are read. Raises UnsupportedType."""
    form = FORMS.get(mapped.type)
    if form is None:
        raise UnsupportedType(f"column type {mapped.type} is not understood by this version", where=where)
    charset, collation = None, None
    if mapped.family is None and form.collated in {Collated.CHARACTER, Collated.LABELS}:
        charset, collation = _charset_of(mapped, collations, where)
    row = _type_of(mapped, charset == "binary", where)
    own = row.form(mapped.type)
    assert own is not None
    return _column(mapped, row, charset, collation, where), own.fill


def _charset_of(mapped: t.MappedColumn, collations: CollationLookup, where: str) -> tuple[str, str]:
    if mapped.collation is None:
        raise UnsupportedType("the log does not carry the column's charset", where=where, hint=_METADATA)
    collation, charset = collations(mapped.collation)
    if charset != "binary" and not is_known(charset):
        raise UnsupportedType(f"charset {charset!r} is not understood by this version", where=where)
    return charset, collation


def _type_of(mapped: t.MappedColumn, binary: bool, where: str) -> MysqlType:
    """Return the type, of those that share the number in the log."""
    if mapped.family is not None:
        row = type_named(mapped.family, where)
        if row.form(mapped.type) is None or mapped.meta != row.binary_bytes:
            raise UnsupportedType(
                f"the log has type {mapped.type} ({mapped.meta}) for a column of type {mapped.family}", where=where
            )
        return row
    candidates = [row for row in types_of_code(mapped.type) if not row.binary_bytes]
    if candidates[0].kind is K.GEOMETRY:
        return next((row for row in candidates if row.shape == mapped.geometry), candidates[0])
    if len(candidates) > 1:
        length = mapped.meta if FORMS[mapped.type].meta is Meta.LENGTH_BYTES else 0
        candidates = [row for row in candidates if row.charset is not binary and row.length_bytes == length]
    return candidates[0]


_METADATA = f"SET GLOBAL binlog_row_metadata = 'FULL' for what comes; for what is in the log: {AROUND}"


def _column(mapped: t.MappedColumn, row: MysqlType, charset: str | None, collation: str | None, where: str) -> Column:
    meta, word = mapped.meta, row.word
    plain = Column(mapped.name or "", row.kind, word, mapped.nullable)
    if row.charset:
        plain = replace(plain, charset=charset, collation=collation)
    if row.signed:
        unsigned = bool(mapped.unsigned)
        plain = replace(plain, unsigned=unsigned, sql_type=word + (" unsigned" if unsigned else ""))
    match row.brackets:
        case Brackets.PRECISION:
            precision, scale = meta >> 8, meta & 255
            declared_ = f"{word}({precision},{scale}){plain.sql_type.removeprefix(word)}"
            return replace(plain, sql_type=declared_, precision=precision, scale=scale)
        case Brackets.BITS:
            return replace(plain, sql_type=f"{word}({meta})", unsigned=True, length=meta)
        case Brackets.DIGITS:
            return replace(plain, sql_type=f"{word}({meta})" if meta else word, fsp=meta)
        case Brackets.LABELS:
            if mapped.labels is None:
                raise UnsupportedType("the log does not carry the labels", where=where, hint=_METADATA)
            labels = tuple(x if isinstance(x, str) else decode_bytes(x, charset or "") for x in mapped.labels)
            return replace(plain, sql_type=declared(word, labels), labels=labels)
        case Brackets.CHARACTERS:
            characters = meta // MAX_BYTES.get(charset or "", 1)
            return replace(plain, sql_type=f"{word}({characters})", length=characters)
        case Brackets.BYTES:
            return replace(plain, sql_type=f"{word}({meta})", length=meta)
        case Brackets.DIMENSION:
            dimension = mapped.dimension or 0
            return replace(plain, sql_type=f"{word}({dimension})" if dimension else word, length=dimension)
        case _:
            return replace(
                plain, length=row.binary_bytes or row.most_bytes, shape=row.word if row.shape is not None else ""
            )


_HIDDEN = {row.word: row.binary_bytes for row in TYPES if row.binary_bytes}
"""Types that MariaDB logs as BINARY of a fixed number of bytes."""


def is_left_open(mapped: t.MappedColumn) -> bool:
    """Return True if MariaDB's log may mean one of several types.

    These are BINARY, or UUID, INET4, INET6; and an old temporal type with or without digits.
    """
    form = FORMS.get(mapped.type)
    if form is None:
        return False
    if form.meta is Meta.STRING:
        return mapped.meta in _HIDDEN.values() and mapped.collation in {None, BINARY_COLLATION}
    return form.meta is Meta.UNSAID


def close_open(mapped: t.MappedColumn, family: str, digits: int) -> None:
    """Settle :func:`is_left_open` by what a definition says of the column."""
    form = FORMS.get(mapped.type)
    if form is not None and form.meta is Meta.UNSAID:
        mapped.meta = digits
    elif family in _HIDDEN:
        mapped.family = family


def plan_table(
    table_map: t.TableMap, collations: CollationLookup, generated: frozenset[str] = frozenset(), where: str = ""
) -> RowLayout:
    """Return the plan of a table whose map has names (``binlog_row_metadata=FULL``).

    ``generated``: names of generated columns. Raises UnsupportedType that names table.column and ``where``
    (file:offset).
    """
    plans = []
    for mapped in table_map.columns:
        place = f"{table_map.table}.{mapped.name}" + (f", {where}" if where else "")
        try:
            width = width_of(mapped)
        except UnsupportedType as error:
            raise UnsupportedType(error.message, where=place, hint="exclude the table from capture") from None
        if mapped.skipped:
            column, fill = Column(mapped.name or "", K.VARBINARY, ""), FORMS[mapped.type].fill
        else:
            column, fill = column_of(mapped, collations, place)
        if column.name in generated:
            column = replace(column, generated=True)
        plans.append(ColumnLayout(column, mapped.type, mapped.meta, width, column.arrow_type, fill))
    key = table_map.primary_key or ()
    captured = tuple(i for i, mapped in enumerate(table_map.columns) if not mapped.skipped)
    columns, key_names = tuple(plans[i].column for i in captured), tuple(plans[i].column.name for i in key)
    schema = TableSchema(table_map.table, columns, key_names)
    widths = np.array([p.width for p in plans], np.int32)
    return RowLayout(schema, tuple(plans), widths, np.array(key, np.int64), captured=captured)
