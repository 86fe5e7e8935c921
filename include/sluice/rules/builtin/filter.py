"""Keeps the rows that fulfil an SQL condition (or all others). A row that leaves the filter is deleted from the target.

builtin: filter
params: {where: "status IN ('paid', 'shipped') AND total > 10"}
"""

import pyarrow as pa
import pyarrow.compute as pc

from sluice.rules import sql
from sluice.rules.context import RuleContext


class Params:
    """The condition, and what becomes of the rows that fulfil it."""

    where: str
    """An SQL condition over the row's columns; null counts as no."""
    keep: bool = True
    """False: the rows that fulfil it are left out instead."""


def transform(rows: pa.Table, context: RuleContext) -> pa.Table:
    """Return the rows that pass. Raises duckdb.Error if the condition is not understood."""
    mask = sql.matches(rows, context.params.where)
    return rows.filter(mask if context.params.keep else pc.invert(mask))
