"""A target's table as its catalog has it, where the catalog lists columns and keys alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from sluice.model.planned import PlannedColumn, PlannedTable
from sluice.targets.sql.tables import TargetTable


class CatalogTable(Protocol):
    """A table of a catalog."""

    @property
    def columns(self) -> Sequence[Any]:
        """Its columns, each with ``name``, ``declared`` and ``generated``."""

    @property
    def keys(self) -> Sequence[Any]:
        """Its unique keys, each with ``columns``."""


Identifies = Callable[[Any], bool]
"""Whether rows can be told apart by a unique key."""


def _any(key: Any) -> bool:
    return True


def as_target(plan: PlannedTable, info: CatalogTable, identifies: Identifies = _any) -> TargetTable:
    """Return what the loader needs to know of a table that fits."""
    columns = {column.name.casefold(): column for column in info.columns}
    key = tuple(columns[name.casefold()].name for name in plan.key)
    others = (index.columns for index in info.keys if not (identifies(index) and set(index.columns) == set(key)))
    taking = [column for column in info.columns if not column.generated]
    return TargetTable(
        plan.target,
        tuple(c.name for c in taking),
        key,
        tuple(dict.fromkeys(others)),
        types=tuple(c.declared for c in taking),
    )


def replaceable(
    plan: PlannedTable,
    info: CatalogTable | None,
    otherwise: Callable[[PlannedColumn, Any], str],
    identifies: Identifies = _any,
) -> tuple[TargetTable | None, str]:
    """Return the table if its rows can be replaced by ranges or lists of keys; else None and why not.

    ``otherwise``: says why values of a column are not as at the source, "" if they are.
    """
    if info is None:
        return None, f"the target has no table {plan.target}"
    columns = {column.name.casefold(): column for column in info.columns}
    for column in plan.columns:
        target_column = columns.get(column.name.casefold())
        why = otherwise(column, target_column) if target_column is not None else f"it has no column {column.name}"
        if why:
            return None, f"{plan.target} at the target: {why}"
    key = tuple(columns[name.casefold()].name for name in plan.key)
    if key and not any(identifies(index) and set(index.columns) == set(key) for index in info.keys):
        return None, f"{plan.target} at the target has no key ({', '.join(key)})"
    return as_target(plan, info, identifies), ""
