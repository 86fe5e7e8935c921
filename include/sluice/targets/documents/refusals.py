"""Errors of a target with a document for each row: parts of rows that are not there, and rows that it refuses."""

from __future__ import annotations

from typing import Any

from sluice.errors import LoadError
from sluice.model.planned import PlannedTable
from sluice.model.whole_rows import LOG_WHOLE_ROWS


def key_changed(plan: PlannedTable) -> LoadError:
    """Return the error for a row that leaves its document while the log lacks some of its columns."""
    return LoadError(
        f"the key of a row of {plan.source} changed, and the log has only its changed columns",
        where=str(plan.target),
        hint=f"{LOG_WHOLE_ROWS}; then `sluice dump start PIPELINE --table SCHEMA.TABLE` copies the table anew",
    )


def row_missing(plan: PlannedTable, key: Any, *, hidden: bool) -> LoadError:
    """Return the error for a row that is to be changed in part, and is not there. ``hidden``: values are not shown."""
    return LoadError(
        f"the target has no row {'(masked)' if hidden else str(key)[:300]}, but the log only contains the changed "
        "columns of this row",
        where=str(plan.target),
        hint="`sluice dump start PIPELINE --table SCHEMA.TABLE` copies the table anew",
    )


def refused_row(plan: PlannedTable, key: Any, why: str, hint: str, *, hidden: bool) -> LoadError:
    """Return the error for a row that the target cannot hold, where none may be left out."""
    return LoadError(
        f"a row of {plan.target} is refused, key {'(masked)' if hidden else str(key)[:300]}: {why}",
        where=str(plan.target),
        hint=f"correct the row, or {hint}; on_error: dead_letter leaves such rows out",
    )


__all__ = ["key_changed", "refused_row", "row_missing"]
