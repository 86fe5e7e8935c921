"""The tables of a target as it keeps them beside their documents: the columns and the key of each, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sluice.errors import MappingError
from sluice.model.planned import PlannedTable
from sluice.targets.schema.names import require_names


@dataclass(frozen=True, slots=True)
class Definition:
    """The columns and the key of a table, by name.

    ``moves_to``: the name that a rename gives it; its rows may be under that one by now. ``ids``: how ids are made of
    keys, for a target that offers more than one way; "" is the first.
    """

    table: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    moves_to: str = ""
    ids: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the definition as it is stored."""
        document = {"table": self.table, "columns": list(self.columns), "key": list(self.key)}
        more = {"moves_to": self.moves_to, "ids": self.ids}
        return document | {name: extra for name, extra in more.items() if extra}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Definition:
        """Read a stored definition. Raises KeyError, TypeError."""
        columns, key = tuple(map(str, stored["columns"])), tuple(map(str, stored["key"]))
        return cls(str(stored["table"]), columns, key, str(stored.get("moves_to", "")), str(stored.get("ids", "")))


def definition_of(plan: PlannedTable) -> Definition:
    """Return the definition of a planned table."""
    return Definition(str(plan.target), tuple(column.name for column in plan.columns), plan.key)


def require_own_table(definition: Definition, plan: PlannedTable, place: str, hint: str) -> None:
    """Raise MappingError if what holds the documents of a planned table has those of another one.

    ``place``: its name, for messages.
    """
    if definition.table != str(plan.target):
        raise MappingError(
            f"{place} has the rows of {definition.table}, and those of {plan.target} would be among them",
            where=str(plan.target),
            hint=hint,
        )


def require_defined(definition: Definition, plan: PlannedTable, pipeline: str, anew: str) -> None:
    """Raise MappingError unless rows of a planned table fit its definition. ``anew``: how people make it anew."""
    require_names(
        plan,
        definition.columns,
        definition.key,
        column_hint=f"`sluice check {pipeline} --apply` adds it, or leave it out: mapping.columns.exclude",
        key_hint=f"name the same key in the mapping: key; or {anew} and copy the table anew",
    )


__all__ = ["Definition", "definition_of", "require_defined", "require_own_table"]
