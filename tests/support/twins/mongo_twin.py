"""A MongoDB in memory, behind the two calls of pymongo that the target makes: commands, and finding documents.

What is sent and stored goes through BSON, so that types, sizes and refusals of values are the client library's own. The
rest is what MongoDB's manual says of these commands; no test of a promise rests on it alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import bson
from bson import CodecOptions, Decimal128
from bson.codec_options import DatetimeConversion
from pymongo import errors

_AS_STORED: CodecOptions[dict[str, Any]] = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_MS)
_DUPLICATE, _NO_COLLECTION, _NAME_TAKEN, _INVALID = 11_000, 26, 48, 121
Collection = dict[Any, bytes]


def _ranked(value: Any) -> Any:
    """A value as comparisons see it: numbers of all types are of one kind."""
    if isinstance(value, Decimal128):
        value = value.to_decimal()
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return type(value).__name__, value
    return "number", Decimal(value)


def _matches(document: Mapping[str, Any], query: Mapping[str, Any]) -> bool:
    return all(_holds(name in document, document.get(name), wanted) for name, wanted in query.items())


def _holds(there: bool, value: Any, wanted: Any) -> bool:
    if not isinstance(wanted, Mapping):
        return _ranked(value) == _ranked(wanted)
    for operator, other in wanted.items():
        if operator == "$exists":
            found = there is bool(other)
        elif operator == "$in":
            found = any(_ranked(value) == _ranked(one) for one in other)
        elif operator == "$ne":
            found = _ranked(value) != _ranked(other)
        elif operator in {"$lt", "$lte"}:
            (kind, mine), (other_kind, limit) = _ranked(value), _ranked(other)
            found = there and kind == other_kind and (mine < limit or (operator == "$lte" and mine == limit))
        else:
            raise errors.OperationFailure(f"unknown operator: {operator}", 2)
        if not found:
            return False
    return True


@dataclass
class MongoTwin:
    """The server.

    ``refuses``: a document that a validator refuses; ``unique``: fields with a unique index, in every collection;
    ``before``: called before each command, with it; ``stops``: it carries out nothing after an update that fails, even of an unordered command, as FerretDB does.
    """

    databases: dict[str, dict[str, Collection]] = field(default_factory=dict)
    refuses: Callable[[Mapping[str, Any]], bool] = lambda document: False
    unique: tuple[str, ...] = ()
    before: Callable[[Mapping[str, Any]], None] = lambda command: None
    stops: bool = False
    lock: threading.RLock = field(default_factory=threading.RLock)

    def client(self, *_: Any, **__: Any) -> TwinClient:
        """Stands for ``pymongo.MongoClient``."""
        return TwinClient(self)

    def collection(self, database: str, name: str, *, make: bool = False) -> Collection:
        """The documents of a collection by their ids."""
        held = self.databases.setdefault(database, {})
        return held.setdefault(name, {}) if make else held.get(name, {})

    def run(self, database: str, command: Mapping[str, Any]) -> dict[str, Any]:
        """Carry out a command and return its answer."""
        sent = bson.decode(bson.encode(command), _AS_STORED)
        self.before(sent)
        name = next(iter(sent))
        with self.lock:
            found: dict[str, Any] = getattr(self, f"_{name}")(database, sent[name], sent)
        return {**found, "ok": 1.0}

    # -- commands ------------------------------------------------------------------------------------------------------
    def _hello(self, *_: Any) -> dict[str, Any]:
        return {"setName": "twin", "maxWireVersion": 21}

    def _buildInfo(self, *_: Any) -> dict[str, Any]:
        return {"version": "twin"}

    def _createIndexes(self, database: str, name: str, sent: Mapping[str, Any]) -> dict[str, Any]:
        self.collection(database, name, make=True)
        return {}

    def _listCollections(self, database: str, _: Any, sent: Mapping[str, Any]) -> dict[str, Any]:
        names = [name for name in self.databases.get(database, {}) if _matches({"name": name}, sent.get("filter", {}))]
        return {"cursor": {"firstBatch": [{"name": name} for name in names]}}

    def _drop(self, database: str, name: str, sent: Mapping[str, Any]) -> dict[str, Any]:
        if self.databases.get(database, {}).pop(name, None) is None:
            raise errors.OperationFailure("ns not found", _NO_COLLECTION)
        return {}

    def _renameCollection(self, _: str, old: str, sent: Mapping[str, Any]) -> dict[str, Any]:
        (database, name), (to, new) = (one.split(".", 1) for one in (old, sent["to"]))
        if name not in self.databases.get(database, {}):
            raise errors.OperationFailure("Source collection does not exist", _NO_COLLECTION)
        if new in self.databases.get(to, {}):
            raise errors.OperationFailure("target namespace exists", _NAME_TAKEN)
        self.databases.setdefault(to, {})[new] = self.databases[database].pop(name)
        return {}

    def _delete(self, database: str, name: str, sent: Mapping[str, Any]) -> dict[str, Any]:
        held, count = self.collection(database, name), 0
        for one in sent["deletes"]:
            found = [key for key, text in held.items() if _matches(bson.decode(text, _AS_STORED), one["q"])]
            for key in found[: one["limit"] or None]:
                del held[key]
                count += 1
        return {"n": count}

    def _update(self, database: str, name: str, sent: Mapping[str, Any]) -> dict[str, Any]:
        count, failed = 0, []
        for index, one in enumerate(sent["updates"]):
            try:
                count += self._updated(self.collection(database, name, make=True), one)
            except errors.OperationFailure as error:
                failed.append({"index": index, "code": error.code, "errmsg": str(error)})
                if self.stops:
                    break
        return {"n": count, "nModified": count, **({"writeErrors": failed} if failed else {})}

    def _updated(self, held: Collection, one: Mapping[str, Any]) -> int:
        query, given = one["q"], one["u"]
        key = _ranked(query["_id"]) if not isinstance(query["_id"], Mapping) else None
        candidates = list(held) if key is None else [key] if key in held else []
        found = [each for each in candidates if _matches(bson.decode(held[each], _AS_STORED), query)]
        for each in found if one.get("multi") else found[:1]:
            self._store(held, each, _changed(bson.decode(held[each], _AS_STORED), given))
        if found or not one.get("upsert"):
            return len(found)
        if key in held:
            raise errors.OperationFailure("E11000 duplicate key error, index: _id_", _DUPLICATE)
        self._store(held, key, _changed({"_id": query["_id"]}, given))
        return 1

    def _store(self, held: Collection, key: Any, document: Mapping[str, Any]) -> None:
        for name in self.unique:  # a field that is not there is null
            others = (bson.decode(text, _AS_STORED) for each, text in held.items() if each != key)
            if any(_ranked(other.get(name)) == _ranked(document.get(name)) for other in others):
                raise errors.OperationFailure(f"E11000 duplicate key error, index: own_{name}", _DUPLICATE)
        if self.refuses(document):
            raise errors.OperationFailure("Document failed validation", _INVALID)
        held[key] = bson.encode(document)


def _changed(document: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    if not next(iter(given)).startswith("$"):
        return {"_id": document["_id"], **given}
    for old, new in given.get("$rename", {}).items():
        if old in document:
            document[new] = document.pop(old)
    for name in given.get("$unset", {}):
        document.pop(name, None)
    return {**document, **given.get("$set", {})}


@dataclass
class TwinClient:
    """A connection."""

    server: MongoTwin

    def __getitem__(self, database: str) -> TwinDatabase:
        return TwinDatabase(self.server, database)

    def __enter__(self) -> TwinClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Do nothing."""


@dataclass
class TwinDatabase:
    """A database of a connection."""

    server: MongoTwin
    name: str

    def command(self, command: Mapping[str, Any], **_: Any) -> dict[str, Any]:
        """See pymongo."""
        return self.server.run(self.name, command)

    def get_collection(self, name: str, **_: Any) -> TwinCollection:
        """See pymongo."""
        return TwinCollection(self.server, self.name, name)


@dataclass
class TwinCollection:
    """A collection of a connection."""

    server: MongoTwin
    database: str
    name: str

    @contextmanager
    def find(
        self, query: Mapping[str, Any], columns: Mapping[str, int] | None = None, *, limit: int = 0
    ) -> Iterator[Iterator[dict[str, Any]]]:
        """See pymongo."""
        asked = bson.decode(bson.encode(query), _AS_STORED)
        with self.server.lock:
            held = [bson.decode(text, _AS_STORED) for text in self.server.collection(self.database, self.name).values()]
        found = [one for one in held if _matches(one, asked)]
        wanted = None if columns is None else {"_id", *columns}
        yield iter([
            {name: value for name, value in one.items() if wanted is None or name in wanted}
            for one in found[: limit or None]
        ])
