"""Replaces text by a sign repeated to the same length, and leaves as many characters at either end as you say.

NULL stays NULL.

builtin: mask
params: {columns: [phone], keep_last: 3}        # 0171123456 -> *******456
"""

import pyarrow as pa
import pyarrow.compute as pc

from sluice.rules.columns import replace, text
from sluice.rules.context import RuleContext


class Params:
    """Columns to mask, and what stays readable in them."""

    columns: list[str]
    keep_first: int = 0
    """Characters left as they are at the beginning; keep_last: at the end.

    A text that is not longer than both together is hidden whole.
    """
    keep_last: int = 0
    sign: str = "*"
    length: int | None = None
    """Signs to write; none: as many as were hidden."""


def transform(rows: pa.Table, context: RuleContext) -> pa.Table:
    """Mask the columns of every row. Raises ValueError for a negative number and for a column that the table lacks."""
    p = context.params
    if p.keep_first < 0 or p.keep_last < 0:
        raise ValueError("keep_first and keep_last cannot be negative")
    for column in p.columns:
        values = text(rows, column)
        size = pc.utf8_length(values)
        short = pc.less_equal(size, p.keep_first + p.keep_last)
        hidden = pc.if_else(short, size, pc.subtract(size, p.keep_first + p.keep_last))
        signs = pc.binary_repeat(p.sign, hidden if p.length is None else pa.scalar(p.length))
        head = pc.utf8_slice_codeunits(values, 0, p.keep_first)
        tail = pc.utf8_slice_codeunits(values, -p.keep_last) if p.keep_last else ""
        masked = pc.if_else(short, signs, pc.binary_join_element_wise(head, signs, tail, ""))
        rows = replace(rows, column, pc.if_else(pc.is_valid(values), masked, pa.scalar(None, pa.string())))
    return rows
