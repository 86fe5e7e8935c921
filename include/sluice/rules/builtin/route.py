"""Sends rows to another table, for one the shards ``db_*.orders_*`` to one table. `match` says whose rows.

    builtin: route
    match: {schema: "db_\\d+", table: "orders_\\d+"}
    params: {to: shop.orders, shard_column: shard, shard_in_key: true}

Shards whose keys may collide need `shard_in_key`: the shard's name becomes a part of the key.
"""

import pyarrow as pa

from sluice.config import patterns
from sluice.rules.columns import append, repeated
from sluice.rules.context import RuleContext


class Params:
    """The table to send rows to, and how rows of several shards are told apart."""

    to: str
    """schema.table; with `pattern`, its groups as \\1, \\2."""
    pattern: str | None = None
    """Regular expression on schema.table, anchored at both ends."""
    shard_column: str | None = None
    """Column that gets the name of the table (schema.table) that the row came from."""
    shard_in_key: bool = False


def transform(rows: pa.Table, context: RuleContext) -> pa.Table:
    """Write the new table into ``_table`` of every row, and the old one into ``shard_column`` if it is set.

    Rows of a table that ``pattern`` does not match are returned as they are. Raises ValueError for ``shard_in_key``
    without ``shard_column``.
    """
    p = context.params
    own = f"{context.schema}.{context.table}"
    to = p.to
    if p.pattern is not None:
        expanded = patterns.expand(p.pattern, own, p.to)
        if expanded is None:
            return rows
        to = expanded
    if p.shard_in_key and p.shard_column is None:
        raise ValueError("shard_in_key needs shard_column")
    if p.shard_column:
        shard = repeated(own, rows.num_rows, pa.string())
        rows = append(
            rows, p.shard_column, shard, sql_type="varchar(129)", key=len(context.key) + 1 if p.shard_in_key else 0
        )
    return rows.append_column("_table", repeated(to, rows.num_rows, pa.string()))
