"""Keys of a lake table: its own as values of the source, and those of the source as its values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from sluice.errors import LoadError
from sluice.model.column_types import ColumnKind
from sluice.model.planned import PlannedColumn, PlannedTable
from sluice.model.tables import one_chunk
from sluice.targets.lake.types import WHOLE, TableInfo, made_type
from sluice.targets.lake.values import converted, stored

K = ColumnKind
KINDS = frozenset({
    *WHOLE,
    K.DECIMAL,
    K.DATE,
    K.DATETIME,
    K.TIMESTAMP,
    K.TIME,
    K.CHAR,
    K.VARCHAR,
    K.BINARY,
    K.VARBINARY,
})
"""The kinds of which nothing is lost in the table, so that a key can be read back."""


def not_listed(plan: PlannedTable, info: TableInfo) -> str:
    """Return why keys of the table cannot be read back, "" if they can."""
    for column in plan.key_columns:
        stored_column, sent_type = info.find(column.name), column.sent_type
        as_text = stored_column is not None and stored_column.kind == "string" and made_type(column) != "string"
        if stored_column is None or as_text or sent_type.kind not in KINDS:
            return f"the key column {column.name} ({column.sql_type}) is not read back from the table"
    return ""


def stored_key(column: PlannedColumn, values: pa.Array) -> pa.Array:
    """Convert a key column of the table to the type in which the source's values are stored."""
    return stored(values, column.sent_type.arrow_type)


def listed_keys(plan: PlannedTable, info: TableInfo, listed: pa.Table) -> dict[str, pa.Array]:
    """Return keys of the source as the table has them, by column in key order.

    Raises LoadError for a key it cannot hold.
    """
    keys = {}
    for number, column in enumerate(plan.key_columns):
        stored_column, sent_type = info.find(column.name), column.sent_type
        if stored_column is None or not isinstance(stored_column.kind, str):
            raise LoadError(f"table {plan.target} at the target has no column {column.name!r}", where=str(plan.target))
        try:
            values = one_chunk(listed.column(number)).cast(sent_type.arrow_type)
        except pa.ArrowException as error:
            raise LoadError(
                f"a listed key is no {sent_type.kind}: {error}", where=f"{plan.target}.{column.name}"
            ) from error
        keys[stored_column.name], _ = converted(values, sent_type, stored_column.kind)
    return keys


def keys_of(columns: Mapping[str, pa.Array], key: Sequence[str]) -> list[tuple[Any, ...]]:
    """Return the rows of the key's columns as tuples; equal keys are equal tuples."""
    return list(zip(*(_plain_values(columns[name]) for name in key), strict=True))


def _plain_values(values: pa.Array) -> list[Any]:
    if pa.types.is_temporal(values.type):  # not limited to the range of Python's calendar
        values = values.view(pa.int32() if values.type.bit_width == 32 else pa.int64())
    python_values: list[Any] = values.to_pylist()
    return python_values


__all__ = ["KINDS", "keys_of", "listed_keys", "not_listed", "stored_key"]
