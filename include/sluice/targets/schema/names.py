"""The columns and the key that rows of a planned table need at a target whose tables have names of columns, and no
types.
"""

from __future__ import annotations

from collections.abc import Collection

from sluice.errors import MappingError
from sluice.model.planned import PlannedTable


def lacking(plan: PlannedTable, columns: Collection[str]) -> list[str]:
    """Return the columns of a planned table that a table with ``columns`` lacks."""
    return [column.name for column in plan.columns if column.name not in columns and not column.generated]


def require_names(
    plan: PlannedTable, columns: Collection[str], key: tuple[str, ...], *, column_hint: str, key_hint: str
) -> None:
    """Raise MappingError unless the target's table has the columns of a planned table, and its key."""
    missing = lacking(plan, columns)
    if missing:
        raise MappingError(
            f"table {plan.target} at the target has no column {missing[0]!r}, which {plan.source} has",
            where=f"{plan.target}.{missing[0]}",
            hint=column_hint,
        )
    if key != plan.key:
        raise MappingError(
            f"rows of {plan.source} are told apart by ({', '.join(plan.key)}), those of {plan.target} by "
            f"({', '.join(key)})",
            where=str(plan.target),
            hint=key_hint,
        )
