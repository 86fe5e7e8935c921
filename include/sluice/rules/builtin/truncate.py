"""Cuts text after a number of characters, and binary values after a number of bytes.

builtin: truncate
params: {columns: {note: 200}}
"""

import pyarrow as pa
import pyarrow.compute as pc

from sluice.rules.columns import replace, require
from sluice.rules.context import RuleContext


class Params:
    """Lengths to cut to: characters of text, bytes of binary values."""

    columns: dict[str, int]
    """Name -> length."""


def transform(rows: pa.Table, context: RuleContext) -> pa.Table:
    """Cut the columns of every row. Raises ValueError for a column that is neither text nor binary."""
    for column, length in context.params.columns.items():
        values = rows[require(rows, column)]
        if pa.types.is_string(values.type):
            rows = replace(rows, column, pc.utf8_slice_codeunits(values, 0, length))
        elif pa.types.is_binary(values.type):
            rows = replace(rows, column, pc.binary_slice(values, 0, length))
        else:
            raise ValueError(f"column {column!r} is {values.type}: only text and binary values are cut")
    return rows
