"""Adds columns: constants, and what is known about the change.

    builtin: add
    params: {constants: {origin: "shop"}, metadata: {changed_at: commit_time}}

Metadata: schema, table, op (insert, update, delete), commit_time, origin (a number: who made the change).
"""

from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from sluice.rules.columns import append, repeated
from sluice.rules.context import RuleContext

_COLUMNS = {"commit_time": "_commit_ts", "origin": "_origin"}


class Params:
    """Columns to add, by the source of their values."""

    constants: dict[str, Any] = {}  # noqa: RUF012 - a declaration
    """Column -> constant."""
    metadata: dict[str, Literal["schema", "table", "op", "commit_time", "origin"]] = {}  # noqa: RUF012 - a declaration
    """Column -> what to write there."""


def transform(rows: pa.Table, context: RuleContext) -> pa.Table:
    """Append the columns to every row. A boolean constant becomes 0 or 1 (tinyint), None a text column of nulls."""
    for name, value in context.params.constants.items():
        kind = pa.string() if value is None else pa.int8() if isinstance(value, bool) else pa.scalar(value).type
        rows = append(rows, name, repeated(int(value) if isinstance(value, bool) else value, rows.num_rows, kind))
    for name, what in context.params.metadata.items():
        if what in _COLUMNS:
            rows = append(rows, name, rows[_COLUMNS[what]])
        elif what == "op":
            rows = append(rows, name, _operation(rows))
        else:
            rows = append(rows, name, repeated(getattr(context, what), rows.num_rows, pa.string()))
    return rows


def _operation(rows: pa.Table) -> pa.Array:
    names = pa.array(["insert", "update", "delete"])
    return names.take(pc.index_in(rows["_op"].combine_chunks(), pa.array(["i", "u", "d"])))
