"""The tables of a target: an index for each, whose mapping also says which columns and which key the table has."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sluice.errors import LoadError, MappingError
from sluice.model.column_types import ColumnType
from sluice.model.planned import PlannedTable
from sluice.model.tables import TableId
from sluice.targets.documents.definitions import Definition, definition_of, require_defined, require_own_table
from sluice.targets.elasticsearch.client import Client
from sluice.targets.elasticsearch.column_types import field_type
from sluice.targets.elasticsearch.place import Place, path_of

_META = "sluice"
_AT_ONCE = 20
_MISSING = 404
_SETTINGS: Mapping[str, Any] = {"gc_deletes": "10m"}
"""Settings of indexes that are made: a request that waits somewhere is over long before the version of a removed row is
forgotten.
"""


_LIMIT, _FIELDS = "mapping.total_fields.limit", 1_000
"""The setting that limits the fields of an index, and what it is where nobody sets it."""


@dataclass(frozen=True, slots=True)
class HeldIndex:
    """An index that is there. ``definition``: None if Sluice did not make it.

    ``meta``: what others say in ``_meta``.
    """

    definition: Definition | None
    fields: Mapping[str, Any]
    meta: Mapping[str, Any]

    def meta_with(self, definition: Definition) -> dict[str, Any]:
        """Return ``_meta`` with another definition."""
        return {**self.meta, _META: definition.to_json()}


def held_indexes(client: Client, indexes: Collection[str]) -> dict[str, HeldIndex]:
    """Return those of the indexes that are there. Raises LoadError if a definition cannot be read."""
    names, indexes_by_name = sorted(set(indexes)), {}
    for first in range(0, len(names), _AT_ONCE):
        part = names[first : first + _AT_ONCE]
        path = f"{path_of(','.join(part))}/_mapping?ignore_unavailable=true".replace("%2C", ",")
        reply = client.ask("reading mappings", "GET", path, allow={_MISSING})
        for index, description in reply.document.items() if reply.status != _MISSING else ():
            indexes_by_name[index] = _held(index, description["mappings"])
    return indexes_by_name


def _held(index: str, mapping: Mapping[str, Any]) -> HeldIndex:
    meta = dict(mapping.get("_meta", {}))
    stored, fields = meta.pop(_META, None), mapping.get("properties", {})
    if stored is None:
        return HeldIndex(None, fields, meta)
    try:
        definition = Definition.from_json(stored)
    except (KeyError, TypeError) as error:
        raise LoadError(
            f"_meta.{_META} of index {index} cannot be read: {error!r}",
            where=index,
            hint="remove it from the mapping; `sluice check PIPELINE --apply` writes it anew",
        ) from None
    return HeldIndex(definition, fields, meta)


def mapped(place: Place, table: TableId, name: str, column_type: ColumnType) -> dict[str, Any]:
    """Return the mapping of a column: that of the options, or the proposed one."""
    given_mapping = place.options.mappings.get(f"{table}.{name}")
    return dict(given_mapping if given_mapping is not None else field_type(column_type).mapping)


def count_of(fields: Mapping[str, Any]) -> int:
    """Count fields as the server does for ``index.mapping.total_fields.limit``: with those inside of others."""
    return sum(
        1 + count_of(field.get("fields", {})) + count_of(field.get("properties", {})) for field in fields.values()
    )


def index_body(place: Place, definition: Definition | None, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return what makes an index."""
    mappings: dict[str, Any] = {"dynamic": "strict", "properties": dict(fields)}
    if definition is not None:
        mappings["_meta"] = {_META: definition.to_json()}
    given_settings = dict(place.options.settings)
    nested = given_settings.get("index", {})
    count = count_of(fields)
    more = {_LIMIT: count} if count > _FIELDS else {}
    own = {
        name: value
        for name, value in {**_SETTINGS, **more}.items()
        if not {name, f"index.{name}"} & given_settings.keys() and not (isinstance(nested, Mapping) and name in nested)
    }
    return {"settings": {**own, **given_settings}, "mappings": mappings}


def fields_of(place: Place, plan: PlannedTable, names: Sequence[str]) -> dict[str, Any]:
    """Return the mappings of some columns of a planned table."""
    return {
        column.name: mapped(place, plan.target, column.name, column.sent_type)
        for column in plan.columns
        if column.name in names
    }


def statement_of(path: str, body: Mapping[str, Any]) -> str:
    """Return a request as people write it."""
    return f"PUT {path} {json.dumps(body, ensure_ascii=False)}"


def make_statement(place: Place, plan: PlannedTable) -> str:
    """Return the request that makes the index of a planned table."""
    definition = definition_of(plan)
    body = index_body(place, definition, fields_of(place, plan, definition.columns))
    return statement_of(path_of(place.index_of(plan.target)), body)


def extend_statement(place: Place, plan: PlannedTable, index_state: HeldIndex) -> str:
    """Return the request that gives an index the columns of a planned table that it lacks, and its definition."""
    given_definition = index_state.definition
    wanted_definition = definition_of(plan)
    names = tuple(
        name for name in wanted_definition.columns if given_definition is None or name not in given_definition.columns
    )
    definition = (
        wanted_definition
        if given_definition is None
        else replace(given_definition, columns=(*given_definition.columns, *names))
    )
    new = fields_of(place, plan, [name for name in names if name not in index_state.fields])
    index, body = place.index_of(plan.target), {"_meta": index_state.meta_with(definition), "properties": new}
    statement = statement_of(path_of(index, "_mapping"), body)
    count = count_of({**index_state.fields, **new})
    if count <= _FIELDS:
        return statement
    return f"{statement_of(path_of(index, '_settings'), {'index': {_LIMIT: count}})}\n{statement}"


def make_room(client: Client, index: str, fields: Mapping[str, Any]) -> None:
    """Raise the limit of an index for its fields and more ones, if it is lower."""
    indexes = held_indexes(client, [index])
    count = count_of({**indexes[index].fields, **fields}) if index in indexes else 0
    if count <= _FIELDS:
        return
    path = f"{path_of(index, '_settings')}?flat_settings=true"
    [settings_reply] = client.ask("reading settings", "GET", path).document.values()
    if count > int(settings_reply["settings"].get(f"index.{_LIMIT}", _FIELDS)):
        doing = f"raising the number of fields of index {index}"
        client.acknowledged(doing, "PUT", path_of(index, "_settings"), {"index": {_LIMIT: count}})


def require(place: Place, indexes: Mapping[str, HeldIndex], plan: PlannedTable) -> None:
    """Raise MappingError unless rows of a planned table can be written."""
    index = place.index_of(plan.target)
    index_state = indexes.get(index)
    apply = f"`sluice check {place.pipeline} --apply`"
    if index_state is None or index_state.definition is None:
        what = "no index" if index_state is None else "an index that does not say what its key is"
        raise MappingError(
            f"the target has {what} {index} for table {plan.target} of {plan.source}",
            where=str(plan.target),
            hint=f"{apply} makes {'it' if index_state is None else 'the index that of this table'}",
        )
    hint = (
        "give each table an index of its own: {schema} and {table} in options.index; names of indexes are in lower case"
    )
    require_own_table(index_state.definition, plan, f"index {index}", hint)
    require_defined(index_state.definition, plan, place.pipeline, "delete the index")
    column = place.routing_of(plan.target)
    if column and column not in plan.key:
        raise MappingError(
            f"options.routing names the column {column!r}, which is no part of the key of {plan.target}",
            where=f"{plan.target}.{column}",
            hint=f"name one of {', '.join(plan.key)}: a row must not move to another shard while its key stays",
        )


__all__ = [
    "HeldIndex", "extend_statement", "fields_of", "held_indexes", "index_body", "make_room", "make_statement", "mapped",
    "require", "statement_of",
]  # fmt: skip
