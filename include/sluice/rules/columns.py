"""Operations of built-in rules (and yours of type arrow) on columns of a table."""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute as pc

from sluice.model import decimals
from sluice.model.column_types import LONGEST, ColumnKind, ColumnType
from sluice.model.fields import KEY, KIND, MASKED, NAME, TYPE, declared_type, described, made_field, true_name
from sluice.model.nearest import meant
from sluice.model.tables import stored_name
from sluice.rules import images

_MADE = {kind.value: kind for kind in ColumnKind if kind.value in {
    "tinyint", "smallint", "mediumint", "int", "bigint", "decimal", "float", "double", "char", "varchar", "text",
    "json", "binary", "varbinary",
    "blob", "date", "datetime", "timestamp", "time",
}} | {"integer": ColumnKind.INT, "numeric": ColumnKind.DECIMAL, "longtext": ColumnKind.TEXT}  # fmt: skip
"""The types that a rule can make."""


def require(rows: pa.Table, column: str) -> str:
    """Return the stored name of a column. Raises ValueError that guesses what was meant."""
    names: dict[str, str] = {true_name(f): f.name for f in rows.schema if f.name not in images.INTERNAL}
    if column not in names:
        raise ValueError(f"there is no column {column!r}{meant(column, names) or ' among ' + ', '.join(names)}")
    return names[column]


def replace(rows: pa.Table, column: str, values: pa.Array | pa.ChunkedArray) -> pa.Table:
    """Replace the values of a column; it keeps its type at the source where they fit."""
    name = require(rows, column)
    return rows.set_column(
        rows.schema.get_field_index(name),
        pa.field(name, values.type, metadata=rows.schema.field(name).metadata),
        values,
    )


def append(
    rows: pa.Table, column: str, values: pa.Array | pa.ChunkedArray, *, sql_type: str = "", key: int = 0
) -> pa.Table:
    """Append a column to the table. Raises ValueError if it has one of that name."""
    name = stored_name(column)
    if name in rows.schema.names:
        raise ValueError(f"there is a column {column!r} already")
    more = {
        what: text for what, text in (("type", sql_type), ("kind", _kind(sql_type)), ("key", str(key or ""))) if text
    }
    return rows.append_column(described(made_field(column, values.type), **more), values)


def _kind(sql_type: str) -> str:
    """Return the neutral type, as a field has it; "" for a type that a rule names but cannot make."""
    try:
        return column_type(sql_type).to_text()
    except ValueError:
        return ""


def repeated(value: object, times: int, kind: pa.DataType) -> pa.Array:
    """Return one value in every row."""
    return pa.repeat(pa.scalar(value, kind), times)


def text(rows: pa.Table, column: str) -> pa.ChunkedArray:
    """Return a column as text. Raises ValueError for binary values that are no text."""
    values = rows[require(rows, column)]
    try:
        return decimals.cast(values, pa.string())
    except pa.ArrowException as error:
        raise ValueError(f"column {column!r} ({values.type}) cannot be written as text: {error}") from error


def declared_length(rows: pa.Table, column: str) -> int | None:
    """Return how many characters (bytes) a CHAR, VARCHAR, BINARY or VARBINARY column holds at the source, else None."""
    declared = declared_type(rows.schema.field(require(rows, column)))
    match = re.match(r"(?:var)?(?:char|binary)\((\d+)\)", declared)
    return int(match[1]) if match else None


def column_type(sql_type: str) -> ColumnType:
    """Parse an SQL type. Raises ValueError for one that a rule cannot make."""
    match = re.fullmatch(r"(\w+)\s*(?:\(([\d\s,]+)\))?\s*(unsigned)?", sql_type.strip().lower())
    if match is None:
        raise ValueError(f"{sql_type!r} is not a type; write for one decimal(10,2) or varchar(40)")
    word, numbers, unsigned = match[1], [int(n) for n in (match[2] or "").split(",") if n.strip()], bool(match[3])
    kind = _MADE.get(word)
    if kind is None:
        raise ValueError(f"{sql_type!r} is not a type that a rule can make")
    first, second = (numbers + [10, 0][len(numbers) :])[:2]
    length = (numbers or [LONGEST if kind in {ColumnKind.TEXT, ColumnKind.BLOB} else 1])[0]
    return ColumnType(kind, first, second, (numbers or [0])[0], length, unsigned).plain


def arrow_type(sql_type: str) -> pa.DataType:
    """Return the Arrow type that holds an SQL type. Raises ValueError for one that a rule cannot make."""
    return column_type(sql_type).arrow_type


def cast(rows: pa.Table, column: str, sql_type: str) -> pa.Table:
    """Cast a column to another type. Raises ValueError for a value that does not fit; nothing is rounded or cut."""
    name = require(rows, column)
    field, values, kind = rows.schema.field(name), rows[name], arrow_type(sql_type)
    try:
        cast_values = (
            values
            if values.type == kind
            else pc.utf8_trim_whitespace(values).cast(kind)
            if _parses(values.type, kind)
            else decimals.cast(values, kind)
        )
    except pa.ArrowException as error:
        raise ValueError(f"a value of column {column!r} does not fit {sql_type}: {error}") from error
    limit = re.search(r"char\((\d+)\)", sql_type.lower())
    if limit and (pc.max(pc.utf8_length(cast_values)).as_py() or 0) > int(limit[1]):
        raise ValueError(f"a value of column {column!r} is longer than {sql_type}")
    own_metadata = {k: v for k, v in (field.metadata or {}).items() if k in {NAME, KEY, MASKED}}
    metadata = {
        **own_metadata,
        NAME: true_name(field).encode(),
        TYPE: sql_type.encode(),
        KIND: _kind(sql_type).encode(),
    }
    return rows.set_column(rows.schema.get_field_index(name), pa.field(name, kind, metadata=metadata), cast_values)


def _parses(source: pa.DataType, kind: pa.DataType) -> bool:
    return pa.types.is_string(source) and not pa.types.is_string(kind) and not pa.types.is_binary(kind)
