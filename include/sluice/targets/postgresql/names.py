"""Identifiers as PostgreSQL reads them: always quoted, as the source spells them, and never cut."""

from __future__ import annotations

from collections.abc import Iterable

from sluice.errors import MappingError
from sluice.model.planned import PlannedTable
from sluice.model.tables import TableId

LONGEST_BYTES = 63
"""NAMEDATALEN - 1: the server cuts longer names with no more than a notice, and two columns may become one."""


def quoted(name: str) -> str:
    """An identifier in double quotes."""
    return '"' + name.replace('"', '""') + '"'


def quoted_table(table: TableId) -> str:
    """``"schema"."table"``."""
    return f"{quoted(table.schema)}.{quoted(table.table)}"


def too_long(names: Iterable[str]) -> str:
    """The first name that the server would cut, "" if there is none."""
    return next((name for name in names if len(name.encode()) > LONGEST_BYTES), "")


def refuse_long(plan: PlannedTable) -> None:
    """Raises MappingError for a name that the server would cut."""
    name = too_long((plan.target.schema, plan.target.table, *(column.name for column in plan.columns)))
    if name:
        raise MappingError(
            f"the name {name!r} of {plan.target} has {len(name.encode())} bytes, and PostgreSQL cuts names after {LONGEST_BYTES}",
            where=str(plan.target),
            hint="give it a shorter name at the target: mapping: [{from: …, to: …, columns: {rename: {…}}}]",
        )
