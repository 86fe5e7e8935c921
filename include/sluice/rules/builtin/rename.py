"""Gives columns other names, key columns too.

builtin: rename
params: {columns: {ts: created_at}}
"""

import pyarrow as pa

from sluice.model.fields import described
from sluice.rules.columns import require
from sluice.rules.context import RuleContext


class Params:
    """New names of columns."""

    columns: dict[str, str]
    """Name -> new name."""


def transform(rows: pa.Table, context: RuleContext) -> pa.Table:
    """Rename the columns. Raises ValueError for a column that the table lacks and for a name that is taken."""
    names = {require(rows, old): new for old, new in context.params.columns.items()}
    existing = [new for new in names.values() if new in rows.schema.names and new not in names]
    if existing:
        raise ValueError(f"there is a column {existing[0]!r} already")
    fields = [described(f.with_name(names[f.name]), name=names[f.name]) if f.name in names else f for f in rows.schema]
    return pa.table(rows.columns, schema=pa.schema(fields))
