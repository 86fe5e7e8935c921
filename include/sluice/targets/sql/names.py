"""Identifiers in standard SQL: always quoted, as the source spells them or folded as the server folds names without
quotes, and never cut.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from sluice.errors import MappingError
from sluice.model.identifiers import quoted, quoted_table, too_long
from sluice.model.planned import PlannedTable
from sluice.model.tables import TableId

_LOWER = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}
"""The letters of an unquoted name that a server folds to lower case: A to Z, in UTF-8 no other letter."""


def refuse_long(plan: PlannedTable, longest_bytes: int, server: str) -> None:
    """Raise MappingError for a name that is too long for ``server`` (its name, for people)."""
    name = too_long((plan.target.schema, plan.target.table, *(column.name for column in plan.columns)), longest_bytes)
    if name:
        raise MappingError(
            f"the name {name!r} of {plan.target} has {len(name.encode())} bytes, and {server} takes {longest_bytes}",
            where=str(plan.target),
            hint="give it a shorter name at the target: mapping: [{from: …, to: …, columns: {rename: {…}}}]",
        )


def _upper(letter: str) -> str:
    """Return a letter in upper case, unless that takes more than one."""
    return large if len(large := letter.upper()) == 1 else letter


class Route(NamedTuple):
    """A source table, and the target table that the pipeline gives it."""

    source: TableId
    target: TableId


@dataclass(frozen=True, slots=True)
class Naming:
    """The names of schemas, tables and columns at the target.

    ``folds``: as the server reads them without quotes; ``upper``: that is in upper case, else in lower case.
    """

    folds: bool = False
    upper: bool = False

    def name(self, name: str) -> str:
        """Return the name of a schema, table or column."""
        if not self.folds:
            return name
        return "".join(map(_upper, name)) if self.upper else name.translate(_LOWER)

    def table(self, table: TableId) -> TableId:
        """Return the name of a table with its schema."""
        return TableId(self.name(table.schema), self.name(table.table)) if self.folds else table

    def plan(self, plan: PlannedTable) -> PlannedTable:
        """Return a planned table in the target's names. Raises MappingError for two columns that get one name."""
        if not self.folds:
            return plan
        columns = tuple(replace(column, name=self.name(column.name)) for column in plan.columns)
        first: dict[str, str] = {}
        for column, folded in zip(plan.columns, columns, strict=True):
            first_name = first.setdefault(folded.name, column.name)
            if first_name != column.name:
                raise MappingError(
                    f"the columns {first_name!r} and {column.name!r} of {plan.source} are one column at the target, "
                    f"{folded.name!r}, as options.identifiers: folded takes their names for the same",
                    where=str(plan.source),
                    hint="give one of them another name: in the rule that makes it, or in mapping: [{from: …, "
                    "columns: {rename: {…}}}]",
                )
        return replace(plan, target=self.table(plan.target), columns=columns)

    def refuse_clash(self, written: Iterable[Route], known_routes: Iterable[Route], pipeline: str) -> None:
        """Raise MappingError if a table of ``written`` and another of ``known_routes`` get one name: their rows would
        overwrite each other.
        """
        if not self.folds:
            return
        written = list(written)
        sources: dict[TableId, dict[TableId, TableId]] = defaultdict(dict)
        for route in (*known_routes, *written):
            sources[self.table(route.target)].setdefault(route.target, route.source)
        for route in written:
            place = self.table(route.target)
            others = [source for target, source in sources[place].items() if target != route.target]
            if others:
                both = " and ".join(sorted(map(str, (*others, route.source))))
                raise MappingError(
                    f"{both} are one table at the target, {place}, as options.identifiers: folded takes their names "
                    "for the same",
                    where=str(route.source),
                    hint="give one of them another name at the target (mapping: [{from: …, to: …}]), then run "
                    f"`sluice rollback {pipeline}`, which merges what waits under the new name, and `sluice check "
                    f"{pipeline} --apply`",
                )


__all__ = ["Naming", "Route", "quoted", "quoted_table", "refuse_long", "too_long"]
