"""Rows of a table as documents: their ids, their values, and the updates that write them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import bson
import pyarrow as pa
from bson.errors import BSONError
from bson.raw_bson import RawBSONDocument

from sluice.model.fields import true_name
from sluice.model.planned import PlannedTable
from sluice.model.tables import one_chunk
from sluice.targets.documents.refusals import key_changed
from sluice.targets.messages.keyed_rows import KeyedRows
from sluice.targets.mongodb.client import Client
from sluice.targets.mongodb.column_types import Unstorable, document_values, id_values
from sluice.targets.mongodb.options import Ids
from sluice.targets.mongodb.place import Namespace, Place

VERSION, DELETED = "_sluice", "_sluice_deleted"
"""Fields of each document: the version that wrote it, and when its row was removed."""
NOT_DELETED = {DELETED: {"$exists": False}}
_OVERHEAD = 64
"""Bytes of a command for each update, beside its query and what it writes."""
_HELD = 500
"""Documents that are asked for at a time."""


@dataclass(frozen=True, slots=True)
class Write:
    """An update of one document. ``size``: in bytes, as a part of its command;

    ``whole``: it makes the document if there is none.
    """

    id: Any
    update: dict[str, Any]
    size: int
    whole: bool = True


@dataclass(frozen=True, slots=True)
class Refused:
    """A row that is no document. ``where``: a word for what is wrong with it."""

    id: Any
    why: str
    where: str


class TableDocuments(KeyedRows):
    """Makes the documents of a table."""

    def __init__(self, place: Place, plan: PlannedTable) -> None:
        super().__init__(plan)
        self.place, self.at = place, place.namespace(plan.target)

    def ids_of(self, columns: Sequence[pa.Array], fields: Sequence[pa.Field]) -> list[Any]:
        """Return the ids of rows, from the key's columns in key order: a number or a text alone is the id, others are
        texts with a colon between, and so are all by ``options.ids: text``.
        """
        alone = len(columns) == 1 and self.place.options.ids is Ids.VALUE
        ids = id_values(columns[0], self.type_of(fields[0])) if alone else None
        return ids if ids is not None else self.keys(columns, fields).to_pylist()

    def ids(self, rows: pa.Table) -> list[Any]:
        """Return the ids of rows."""
        fields = self.key_fields(rows.schema)
        return self.ids_of([one_chunk(rows[field.name]) for field in fields], fields)

    def values_of(self, rows: pa.Table) -> dict[str, list[Any]]:
        """Return what is stored of rows, by true name."""
        values = {}
        for schema_field in self.sent(rows.schema):
            name, column_type = true_name(schema_field), self.type_of(schema_field)
            form = self.place.form(self.plan.target, name, column_type)
            values[name] = document_values(one_chunk(rows[schema_field.name]), column_type, form)
        return values

    def writes(self, rows: pa.Table, version: int, *, copied: bool) -> list[Write | Refused]:
        """Return the update of each row. ``copied``: a dump fills the table, so that rows may be missing.

        Raises LoadError for a row that leaves its document while the log lacks some of its columns.
        """
        lacks = self.lacking(rows)
        if lacks.any() and (self.keys_of(rows).moved & lacks).any():
            raise key_changed(self.plan)
        ids, values, known_masks = self.ids(rows), self.values_of(rows), self.known(rows) if lacks.any() else {}
        stored = {true_name(schema_field): schema_field.name for schema_field in self.sent(rows.schema)}
        writes: list[Write | Refused] = []
        for number, (key, row) in enumerate(zip(ids, zip(*values.values(), strict=True), strict=True)):
            document = dict(zip(values, row, strict=True))
            if lacks[number]:
                document = {name: value for name, value in document.items() if known_masks[stored[name]][number]}
            writes.append(self._write(key, document, version, part=bool(lacks[number]), copied=copied))
        return writes

    def _write(self, key: Any, document: dict[str, Any], version: int, *, part: bool, copied: bool) -> Write | Refused:
        if type(key) is Unstorable:
            return Refused(key, f"the key: {key.why}", "value not storable")
        return encoded_write(self.place, key, document, version, part=part, copied=copied)


def encoded_write(
    place: Place, key: Any, document: dict[str, Any], version: int, *, part: bool = False, copied: bool = False
) -> Write | Refused:
    """Return the update that writes a document. ``part``, ``copied``: see :meth:`TableDocuments.writes`."""
    for name, value in document.items():
        if type(value) is Unstorable:
            return Refused(key, f"column {name}: {value.why}", "value not storable")
    document[VERSION] = bson.Int64(version)
    query, update = older(key, version), document
    if part:
        update = {"$set": document, **({"$unset": {DELETED: ""}} if copied else {})}
        query |= {} if copied else NOT_DELETED
    try:
        encoded = bson.encode(update)
    except (BSONError, OverflowError, RecursionError) as error:
        return Refused(key, f"it is no document: {type(error).__name__}", "value not storable")
    most = place.options.max_document_bytes
    if len(encoded) > most:
        why = f"a document of {len(encoded):,} bytes is larger than options.max_document_bytes, {most:,}"
        return Refused(key, why, "row too large")
    return write_of(key, query, encoded, whole=not part or copied)


def write_of(key: Any, query: Mapping[str, Any], encoded: bytes, *, whole: bool = True) -> Write:
    """Return the update of one document by an encoded document, or by encoded operators."""
    encoded_query = bson.encode(query)
    update = {"q": RawBSONDocument(encoded_query), "u": RawBSONDocument(encoded), "upsert": whole}
    return Write(key, update, len(encoded_query) + len(encoded) + _OVERHEAD, whole)


def older(key: Any, version: int) -> dict[str, Any]:
    """Return the query for a document that is not newer than a version. With upsert, a newer one is a duplicate key."""
    return {"_id": key, VERSION: {"$lte": bson.Int64(version)}}


def named(key: Any) -> str:
    """Return an id as a text that tells it from the others of its collection."""
    return str(key)


def held_documents(
    client: Client, at: Namespace, ids: Sequence[Any], columns: Sequence[str] | None = None, *, deleted: bool = False
) -> Iterator[dict[str, Any] | None]:
    """Yield the document of each id as it is now, None if there is none.

    ``deleted``: also what is kept of removed rows.
    """
    for first in range(0, len(ids), _HELD):
        part = ids[first : first + _HELD]
        query = {"_id": {"$in": list(part)}, **({} if deleted else NOT_DELETED)}
        by_id = {named(document["_id"]): document for document in client.find("reading rows", at, query, columns)}
        for key in part:
            yield by_id.get(named(key))


__all__ = [
    "DELETED", "NOT_DELETED", "VERSION", "Refused", "TableDocuments", "Write", "encoded_write", "held_documents",
    "named", "older", "write_of",
]  # fmt: skip
