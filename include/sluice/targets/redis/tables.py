"""The tables of a Redis target: a definition for each, in one hash, as keys of rows do not say what columns and keys a
table has.
"""

from __future__ import annotations

import json
import shlex
import string
from collections.abc import Mapping
from dataclasses import dataclass

from sluice.errors import LoadError, MappingError
from sluice.model.planned import PlannedTable
from sluice.model.tables import TableId
from sluice.targets.messages.row_texts import own_type
from sluice.targets.redis.client import Client
from sluice.targets.redis.options import Index
from sluice.targets.redis.place import Place
from sluice.targets.redis.rows import EXPIRY_KINDS
from sluice.targets.schema.names import require_names


@dataclass(frozen=True, slots=True)
class Definition:
    """The columns and the key of a table, by name."""

    columns: tuple[str, ...]
    key: tuple[str, ...]

    def to_text(self) -> str:
        """Return the definition as it is stored."""
        return json.dumps({"columns": list(self.columns), "key": list(self.key)}, ensure_ascii=False)

    @classmethod
    def from_text(cls, text: str) -> Definition:
        """Parse a stored definition. Raises ValueError, KeyError."""
        data = json.loads(text)
        return cls(tuple(map(str, data["columns"])), tuple(map(str, data["key"])))


Definitions = Mapping[str, Definition]


def definitions(client: Client, place: Place) -> dict[str, Definition]:
    """Return the definitions by table. Raises LoadError if one cannot be read."""
    answer = client.ask("reading the tables", "HGETALL", place.tables_key)
    entries = zip(answer[::2], answer[1::2], strict=True)
    definitions_by_table = {}
    for name, text in entries:
        try:
            definitions_by_table[name.decode()] = Definition.from_text(text.decode())
        except (ValueError, KeyError, TypeError) as error:
            raise LoadError(
                f"the definition of {name!r} cannot be read: {error!r}",
                where=f"key {place.tables_key} at {place.endpoint.address}",
                hint=f"remove the field by HDEL; `sluice check {place.pipeline} --apply` makes it anew",
            ) from None
    return definitions_by_table


def definition_of(plan: PlannedTable) -> Definition:
    """Return the definition of a planned table."""
    return Definition(tuple(column.name for column in plan.columns), plan.key)


def statement_of(place: Place, table: TableId, definition: Definition) -> str:
    """Return the command that stores a definition."""
    return shlex.join(["HSET", place.tables_key, str(table), definition.to_text()])


def require(place: Place, definitions: Definitions, plan: PlannedTable) -> None:
    """Raise MappingError unless rows of a planned table can be written."""
    definition = definitions.get(str(plan.target))
    if definition is None:
        raise MappingError(
            f"the target has no table {plan.target} for {plan.source}: no definition says what its keys are",
            where=str(plan.target),
            hint=f"`sluice check {place.pipeline} --apply` stores the definition",
        )
    require_names(
        plan,
        definition.columns,
        definition.key,
        column_hint=f"`sluice check {place.pipeline} --apply` adds it, or leave it out: mapping.columns.exclude",
        key_hint="name the same key in the mapping: key; or remove the rows and the definition, and copy the table "
        "anew",
    )
    _require_options(place, plan)
    _require_apart(place, definitions, plan)


def _require_options(place: Place, plan: PlannedTable) -> None:
    columns = {column.name: column for column in plan.columns}
    value = place.options.value_column
    named = [("value_column", value)] if value else []
    named += [("indexes", name) for index in place.indexes_of(plan.target) for name in sorted(index.columns)]
    for option, name in named:
        if name not in columns:
            raise MappingError(
                f"options.{option} names the column {name!r}, which {plan.target} does not get",
                where=f"{plan.target}.{name}",
                hint="correct the option, or the mapping's columns",
            )
    for index in place.indexes_of(plan.target):
        kind = columns[index.score].sent_type.kind if index.score else None
        if kind is not None and not (own_type(columns[index.score].sent_type).number or kind in EXPIRY_KINDS):
            raise MappingError(
                f"options.indexes has the score {index.score!r}, and {kind} values are neither numbers nor times",
                where=f"{plan.target}.{index.score}",
                hint="name another column as its score",
            )
    expiry = place.expiry_column(columns)
    if expiry and columns[expiry].sent_type.kind not in EXPIRY_KINDS:
        raise MappingError(
            f"options.expire names the column {expiry!r}, and {columns[expiry].sent_type.kind} values are no time",
            where=f"{plan.target}.{expiry}",
            hint="name a column of dates, of times or of seconds since 1970",
        )


def _require_apart(place: Place, stored_definitions: Definitions, plan: PlannedTable) -> None:
    """Raise MappingError if keys of another table could be taken for those of this one."""
    head, tail = place.row_affixes(plan.target)
    for name in stored_definitions:
        neighbour = TableId(*name.split(".", 1))
        if neighbour == plan.target:
            continue
        start, end = place.row_affixes(neighbour)
        if (start.startswith(head) or head.startswith(start)) and (tail.endswith(end) or end.endswith(tail)):
            raise MappingError(
                f"keys of {plan.target} begin with {head!r} and end with {tail!r}, and so do keys of {neighbour}",
                where=str(plan.target),
                hint="put {schema} and {table} in front of {key} in options.key, with another character between them",
            )


def index_spec(indexes: tuple[Index, ...]) -> str:
    """Return indexes as the scripts read them; "" for none."""
    if not indexes:
        return ""
    specs = []
    for index in indexes:
        parts: list[dict[str, str]] = []
        for text, column, _, _ in string.Formatter().parse(index.key):
            parts += [{"text": text}] if text else []
            parts += [{"column": column}] if column is not None else []
        specs.append({"key": index.key, "parts": parts, **({"score": index.score} if index.score else {})})
    columns = sorted({name for index in indexes for name in index.columns})
    return json.dumps({"columns": columns, "indexes": specs}, ensure_ascii=False)
