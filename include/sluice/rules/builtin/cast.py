"""Changes the type of columns.

A value that does not fit stops the batch (or goes where on_error says); nothing is rounded or cut.

    builtin: cast
    params: {columns: {total: "varchar(20)", qty: bigint}}

Types: tinyint, smallint, int, bigint (each also unsigned), float, double, decimal(p,s), varchar(n), text, date,
datetime(6).
"""

import pyarrow as pa

from sluice.rules.columns import cast
from sluice.rules.context import RuleContext


class Params:
    """Types to cast to."""

    columns: dict[str, str]
    """Name -> type at the target."""


def transform(rows: pa.Table, context: RuleContext) -> pa.Table:
    """Cast the columns. Raises ValueError for an unknown column or type, and for a value that does not fit."""
    for column, kind in context.params.columns.items():
        rows = cast(rows, column, kind)
    return rows
