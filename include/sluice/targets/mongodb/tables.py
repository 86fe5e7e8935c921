"""The tables of a target: a collection for each, and a document that says which table's rows it has, their columns and
their key.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from sluice.errors import LoadError, MappingError
from sluice.model.planned import PlannedTable
from sluice.targets.documents.definitions import Definition, definition_of, require_defined, require_own_table
from sluice.targets.mongodb.client import Client
from sluice.targets.mongodb.documents import DELETED, VERSION
from sluice.targets.mongodb.place import Namespace, Place

_INDEX = {"key": {DELETED: 1}, "name": DELETED, "sparse": True}
"""Finds what is kept of removed rows."""
_OWN = frozenset({"_id", VERSION, DELETED})


def definitions(client: Client, place: Place, collections: Collection[Namespace]) -> dict[str, Definition]:
    """Return the definitions of collections, as far as there are any. Raises LoadError if one cannot be read."""
    definitions = {}
    query = {"_id": {"$in": sorted({str(collection) for collection in collections})}}
    for document in client.find("reading the tables", place.tables, query):
        try:
            definitions[str(document["_id"])] = Definition.from_json(document)
        except (KeyError, TypeError) as error:
            raise LoadError(
                f"the definition of {document['_id']} cannot be read: {error!r}",
                where=f"{place.tables} at {place.endpoint.address}",
                hint=f"remove the document; `sluice check {place.pipeline} --apply` makes it anew",
            ) from None
    return definitions


def define(client: Client, place: Place, at: Namespace, definition: Definition | None) -> None:
    """Store the definition of a collection; None removes it."""
    doing = f"changing the definition of {at}"
    if definition is None:
        client.delete(doing, place.tables, [{"q": {"_id": str(at)}, "limit": 1}])
    else:
        client.update(doing, place.tables, [_update(at, definition)])


def make_collection(client: Client, at: Namespace) -> None:
    """Make a collection, unless it is there, with the index of what is kept of removed rows."""
    client.command(f"making collection {at}", at.database, {"createIndexes": at.collection, "indexes": [_INDEX]})


def _update(at: Namespace, definition: Definition) -> dict[str, Any]:
    return {"q": {"_id": str(at)}, "u": definition.to_json(), "upsert": True}


def statement_of(place: Place, at: Namespace, definition: Definition) -> str:
    """Return the command that stores a definition, as the shell takes it."""
    command = {"update": place.tables.collection, "updates": [_update(at, definition)]}
    return f"db.getSiblingDB({json.dumps(place.tables.database)}).runCommand({json.dumps(command, ensure_ascii=False)})"


def make_statement(place: Place, plan: PlannedTable) -> str:
    """Return the command that stores the definition of a planned table."""
    return statement_of(place, place.namespace(plan.target), replace(definition_of(plan), ids=place.ids))


def extend_statement(place: Place, plan: PlannedTable, definition: Definition, names: Collection[str]) -> str:
    """Return the command that adds columns to a definition."""
    return statement_of(place, place.namespace(plan.target), replace(definition, columns=(*definition.columns, *names)))


def read_statement(place: Place, statement: str) -> tuple[Namespace, Definition]:
    """Return what a command of :func:`statement_of` stores. Raises LoadError."""
    head = f"db.getSiblingDB({json.dumps(place.tables.database)}).runCommand("
    given_match = re.fullmatch(re.escape(head) + r"(\{.*\})\)", statement, re.DOTALL)
    try:
        if given_match is None:
            raise ValueError("it stores no definition")
        command = json.loads(given_match[1])
        [update] = command["updates"]
        database, _, collection = update["q"]["_id"].partition(".")
        if command["update"] != place.tables.collection or not collection:
            raise ValueError("it stores no definition")
        return Namespace(database, collection), Definition.from_json(update["u"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LoadError(f"this is no statement of a target of type mongodb: {statement[:300]}: {error}") from None


def require(place: Place, definitions: Mapping[str, Definition], plan: PlannedTable) -> None:
    """Raise MappingError unless rows of a planned table can be written."""
    at = place.namespace(plan.target)
    definition = definitions.get(str(at))
    if definition is None:
        raise MappingError(
            f"the target has no table {plan.target} for {plan.source}: no definition says which rows collection {at} "
            "has",
            where=str(plan.target),
            hint=f"`sluice check {place.pipeline} --apply` stores the definition",
        )
    hint = "give each table a collection of its own: {schema} and {table} in options.database and options.collection"
    require_own_table(definition, plan, f"collection {at}", hint)
    if definition.ids != place.ids:
        raise MappingError(
            f"options.ids is {place.options.ids}, and collection {at} has ids of the other way: each row would be "
            "there twice",
            where=str(plan.target),
            hint=f"set options.ids back; or remove the collection and its definition in {place.tables}, run `sluice "
            f"check {place.pipeline} --apply`, and copy the table anew",
        )
    require_defined(definition, plan, place.pipeline, f"remove the collection and its definition in {place.tables}")
    require_fields(place, plan)


def require_fields(place: Place, plan: PlannedTable) -> None:
    """Raise MappingError for a column whose name no field can have."""
    for column in plan.columns:
        name = column.name
        if name in _OWN or "." in name or name.startswith("$"):
            why = "Sluice has one of that name" if name in _OWN else "a field has no dot, and no $ before its name"
            raise MappingError(
                f"column {name!r} of {plan.target} cannot be a field of a document: {why}",
                where=f"{plan.target}.{name}",
                hint="give it another name in the mapping (columns), or leave it out",
            )
        place.form(plan.target, name, column.sent_type)


__all__ = [
    "define", "definitions", "extend_statement", "make_collection", "make_statement", "read_statement", "require",
    "require_fields", "statement_of",
]  # fmt: skip
