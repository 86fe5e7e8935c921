"""Keeps deleted rows at the target and marks them.

Every row gets the column (0 alive, 1 deleted), and if you like the time of the delete.

    builtin: soft_delete
    params: {column: deleted, at: deleted_at}

A deleted row keeps the values it had at the target. A row that is inserted again comes alive again.
Lasts as long as the rule: a target that was filled before needs the columns (default 0).
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.rules.columns import append
from sluice.rules.context import RuleContext
from sluice.rules.params import Params as Given


class Params:
    """Columns of the mark."""

    column: str = "deleted"
    """0 or 1."""
    at: str | None = None
    """Column for the commit time of the delete; none: no such column."""


def transform(rows: pa.Table, context: RuleContext) -> pa.Table:
    """Turn deletes into updates that set the mark, and add the mark to all other rows.

    The row before a delete is kept with the mark unset, so that the target still finds it.
    """
    p = context.params
    is_delete = pc.equal(rows["_op"], "d")
    removed = rows.filter(is_delete)
    existed = pc.is_valid(removed["_before"])
    parts = [_flagged(rows.filter(pc.invert(is_delete)), p, deleted=False), _flagged(removed, p, deleted=True)]
    was = _flagged(removed.filter(existed), p, deleted=False)
    parts.append(_set(_set(was, "_op", "u"), "_image", "before"))
    return pa.concat_tables(parts)


def _flagged(rows: pa.Table, p: Given, *, deleted: bool) -> pa.Table:
    if deleted:
        rows = _set(rows, "_op", "u")
    rows = append(rows, p.column, pa.array(np.full(rows.num_rows, int(deleted), np.int8)))
    if p.at:
        rows = append(
            rows, p.at, rows["_commit_ts"] if deleted else pa.nulls(rows.num_rows, rows.schema.field("_commit_ts").type)
        )
    return rows


def _set(rows: pa.Table, name: str, value: str) -> pa.Table:
    return rows.set_column(
        rows.schema.get_field_index(name), rows.schema.field(name), pa.array([value] * rows.num_rows, pa.string())
    )
