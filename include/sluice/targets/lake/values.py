"""Convert rows to columns of a lake table's types, and find those that it cannot hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.errors import LoadError, MappingError
from sluice.model import decimals
from sluice.model.column_types import ColumnKind, ColumnType
from sluice.model.fields import declared_type, is_generated, is_masked, neutral_type, true_name
from sluice.model.tables import ENUM_ERROR_VALUE, META_COLUMNS, TableId
from sluice.model.temporal import is_special, to_text
from sluice.targets.lake.types import LakeColumn, Shape, TableInfo, arrow_of, takes

K = ColumnKind
_DATES = frozenset({K.DATE, K.DATETIME, K.TIMESTAMP})

NO_DATE = "a date that no calendar has"


@dataclass(frozen=True, slots=True)
class SentColumn:
    """A column on its way: its field in the rows, and its column at the target."""

    field: pa.Field
    column: LakeColumn

    @property
    def type(self) -> ColumnType:
        """The type of its values."""
        return values_of(self.field)


def values_of(field: pa.Field) -> ColumnType:
    """Return the type of a field's values."""
    return neutral_type(field) or ColumnType.of_arrow(str(field.type))


def user_fields(schema: pa.Schema) -> list[pa.Field]:
    """Return the user's columns; generated ones are the source's own."""
    return [field for field in schema if field.name not in META_COLUMNS and not is_generated(field)]


def sent_columns(fields: Sequence[pa.Field], info: TableInfo, table: TableId, names: Sequence[str]) -> list[SentColumn]:
    """Return the columns of rows with their target columns. ``names``: the name of each at the target.

    Raises MappingError.
    """
    sent = []
    for field, name in zip(fields, names, strict=True):
        column = info.find(name)
        if column is None:
            raise MappingError(
                f"table {table} at the target has no column {name!r}",
                where=f"{table}.{name}",
                hint="`sluice check PIPELINE --apply` adds it; or leave it out: mapping.columns.exclude",
            )
        column_type = values_of(field)
        if not isinstance(column.kind, str) or not takes(column_type, column.kind):
            source_type = declared_type(field) or str(field.type)
            raise MappingError(
                f"column {column.name!r} of {table} is {_said(column.kind)}, which cannot hold values of {source_type}",
                where=f"{table}.{column.name}",
                hint="make it anew with a wider type, or leave it out: mapping.columns.exclude; `sluice check` shows "
                "the plan",
            )
        sent.append(SentColumn(field, column))
    return sent


def _said(kind: Shape) -> str:
    return kind if isinstance(kind, str) else "a struct"


@dataclass(slots=True)
class Refusals:
    """The rows that the table cannot hold. ``why``: the first reason of each, by row number."""

    why: dict[int, str]

    def add(self, mask: np.ndarray, column: str, reason: str) -> None:
        """Add the rows of ``mask`` (bool per row)."""
        for number in np.flatnonzero(mask):
            self.why.setdefault(int(number), f"column {column}: {reason}")


def converted(values: pa.Array, column_type: ColumnType, kind: str) -> tuple[pa.Array, np.ndarray | None]:
    """Convert values to a type that holds them; also return a mask of those that a lake lacks, which become null: dates
    that no calendar has, and NaN of a decimal.

    None: there are none.
    """
    odd: np.ndarray | None = None
    if column_type.kind in _DATES and (pa.types.is_date32(values.type) or pa.types.is_timestamp(values.type)):
        odd = is_special(values)
        if odd.any():
            values = pc.if_else(pa.array(odd), pa.scalar(None, values.type), values)
        else:
            odd = None
    arrow_type = arrow_of(kind)
    if pa.types.is_duration(values.type):
        return values.view(pa.int64()), odd
    if column_type.kind is K.DECIMAL and kind == "string":
        return decimals.to_text(values), odd
    if pa.types.is_decimal(values.type) and not pa.types.is_floating(arrow_type):
        values, odd = decimals.without_nan(values)
    if column_type.kind is K.ENUM:
        values = pc.if_else(pc.equal(values, ENUM_ERROR_VALUE), "", values)
    if pa.types.is_integer(values.type) and pa.types.is_decimal(
        arrow_type
    ):  # Arrow requires space for every value of the integer's type
        values = pc.cast(values, pa.decimal256(76, arrow_type.scale))
    return (values if values.type == arrow_type else decimals.cast(values, arrow_type)), odd


def stored(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert values of a table to the source's stored type: the inverse of :func:`converted`."""
    return values.view(kind) if pa.types.is_duration(kind) else pc.cast(values, kind)


def plain(values: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return values as one array. Raises LoadError if they exceed an array's capacity."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if isinstance(values, pa.ChunkedArray):
        raise LoadError(
            "texts of a batch take more than 2 GiB in one column of a table",
            hint="make batches smaller: capture: {batch: {max_bytes: …}}",
        )
    return values


def convert(
    rows: pa.Table,
    sent: Sequence[SentColumn],
    *,
    zero_dates: str,
    key: frozenset[str] = frozenset(),
    live: np.ndarray | None = None,
    table: TableId | None = None,
) -> tuple[dict[str, pa.Array], Refusals]:
    """Return the sent columns by their names at the target, and the refused rows.

    Args:
        key: casefolded names of key columns, in which NULL is refused.
        live: rows whose other columns matter (for a deleted row only the key does).
        table: the target table, for errors.
    """
    columns: dict[str, pa.Array] = {}
    refused = Refusals({})
    for sent_column in sent:
        column, in_key = sent_column.column, sent_column.column.name.casefold() in key
        assert isinstance(column.kind, str)
        try:
            values, odd = converted(plain(rows[sent_column.field.name]), sent_column.type, column.kind)
        except pa.ArrowInvalid as error:  # takes() excludes this
            raise LoadError(
                f"values of column {column.name!r} do not fit {column.kind}: {error}",
                where=f"{table}.{column.name}" if table is not None else column.name,
            ) from error
        looked = np.ones(rows.num_rows, bool) if in_key or live is None else live
        if odd is not None and (zero_dates == "refuse" or in_key):
            what = "NaN of a decimal" if sent_column.type.kind is K.DECIMAL else NO_DATE
            refused.add(odd & looked, column.name, f"{what}, which a table of a lake cannot hold (options.zero_dates)")
        if in_key or not column.nullable:
            null = values.is_null().to_numpy(zero_copy_only=False)
            refused.add(
                null & looked, column.name, "NULL in a column of the key" if in_key else "NULL is refused by the table"
            )
        if column.as_null and column.kind == "string":
            lost = pc.fill_null(pc.is_in(values, pa.array(column.as_null)), False).to_numpy(zero_copy_only=False)
            refused.add(
                lost & looked, column.name, "an empty text is NULL in a column by which the table is partitioned"
            )
        if column.length:
            long = pc.fill_null(pc.greater(pc.utf8_length(values), column.length), False).to_numpy(zero_copy_only=False)
            refused.add(long & looked, column.name, f"more than {column.length} characters")
        columns[column.name] = values
    return columns, refused


def row_text(rows: pa.Table, number: int, names: Sequence[str]) -> str:
    """Return the key of a row, for an error: ``(id) = (7)``; no values if a column is masked."""
    if any(map(is_masked, rows.schema)):
        return "a row with masked values"
    fields = {true_name(field).casefold(): field for field in user_fields(rows.schema)}
    key_fields = [fields[name.casefold()] for name in names if name.casefold() in fields]
    if not key_fields:
        return f"row {number}"
    key_text = ", ".join(_text(plain(rows[field.name].slice(number, 1))) for field in key_fields)
    return f"the row with ({', '.join(map(true_name, key_fields))}) = ({key_text})"


def _text(value: pa.Array) -> str:
    if pa.types.is_date32(value.type) or pa.types.is_timestamp(value.type) or pa.types.is_duration(value.type):
        return str(to_text(value, fsp=0 if pa.types.is_date32(value.type) else 6)[0].as_py())
    return str(value[0].as_py())[:100]


def aligned(columns: Mapping[str, pa.Array], schema: pa.Schema, count: int) -> pa.Table:
    """Return the columns as the table has them; those that are not sent are NULL."""
    arrays = [columns[field.name] if field.name in columns else pa.nulls(count, field.type) for field in schema]
    return pa.Table.from_arrays(arrays, names=schema.names)
