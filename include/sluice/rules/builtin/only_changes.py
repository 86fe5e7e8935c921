"""Keeps inserts, deletes and those updates that change one of the columns, or the key; the target keeps its row else.

builtin: only_changes
params: {columns: [status, total]}
"""

import pyarrow as pa
import pyarrow.compute as pc

from sluice.model.tables import member
from sluice.rules.columns import require
from sluice.rules.context import RuleContext


class Params:
    """The columns that count."""

    columns: list[str]
    """An update that changes none of them is left out."""


def transform(rows: pa.Table, context: RuleContext) -> pa.Table:
    """Return the changes that count, each with both of its images, so that a row leaves the key that it had.

    Raises ValueError for a column that the source's table lacks.
    """
    before = rows["_before"].combine_chunks()
    passes = pc.not_equal(rows["_op"], "u")
    for column in (*context.params.columns, *context.key):
        name = require(rows, column)
        if name not in before.type.names:
            raise ValueError(f"column {column!r} is of an earlier rule: let only_changes run before that one")
        now, was = rows[name], member(before, name)
        differs = pc.or_(pc.fill_null(pc.not_equal(now, was), False), pc.xor(pc.is_null(now), pc.is_null(was)))
        passes = pc.or_(passes, differs)
    return rows.filter(pc.or_(passes, pc.is_in(rows["_seq"], value_set=pc.unique(rows["_seq"].filter(passes)))))
