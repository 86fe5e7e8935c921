"""Leaves columns out. Key columns have to stay: mask or hash them.

builtin: drop_column
params: {columns: [password_hash, internal_note]}
"""

import pyarrow as pa

from sluice.rules.columns import require
from sluice.rules.context import RuleContext


class Params:
    """Columns to leave out, by name."""

    columns: list[str]


def transform(rows: pa.Table, context: RuleContext) -> pa.Table:
    """Remove the columns from all rows. Raises ValueError for a key column and for one that the table lacks."""
    for column in context.params.columns:
        if column in context.key:
            raise ValueError(f"column {column!r} is part of the key: a target needs it; mask or hash it instead")
    return rows.drop_columns([require(rows, column) for column in context.params.columns])
