"""Identifiers as PostgreSQL reads them: always quoted, as the source spells them or folded to lower case, and never cut."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from sluice.errors import MappingError
from sluice.model.planned import PlannedTable
from sluice.model.tables import TableId

LONGEST_BYTES = 63
"""NAMEDATALEN - 1: the server cuts longer names with no more than a notice, and two columns may become one."""


_FOLDED = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}
"""Of a name without quotes the server makes A to Z small, in UTF-8 no other letter."""


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


@dataclass(frozen=True, slots=True)
class Naming:
    """What schemas, tables and columns are called at the target. ``folds``: as the server reads their names without quotes."""

    folds: bool = False

    def name(self, name: str) -> str:
        """Of a schema, table or column."""
        return name.translate(_FOLDED) if self.folds else name

    def table(self, table: TableId) -> TableId:
        """Schema and table."""
        return TableId(self.name(table.schema), self.name(table.table)) if self.folds else table

    def plan(self, plan: PlannedTable) -> PlannedTable:
        """A planned table in the target's names."""
        if not self.folds:
            return plan
        columns = tuple(replace(column, name=self.name(column.name)) for column in plan.columns)
        return replace(plan, target=self.table(plan.target), columns=columns)

    def refuse_clash(self, plans: Sequence[PlannedTable]) -> None:
        """Raises MappingError for two target tables that get one name: their rows would overwrite each other."""
        first: dict[TableId, TableId] = {}
        for plan in plans:
            other = first.setdefault(self.table(plan.target), plan.target)
            if other != plan.target:
                raise MappingError(
                    f"{other} and {plan.target} are one table at the target, as options.identifiers: folded takes their names for the same",
                    where=str(plan.target),
                    hint="give one of them another name at the target: mapping: [{from: …, to: …}]; or identifiers: quoted",
                )
