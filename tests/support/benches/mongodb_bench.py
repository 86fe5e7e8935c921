"""A MongoDB for the contract suite: the twin in memory, or FerretDB. Documents are read by finds of their own."""

from __future__ import annotations

import datetime as dt
import itertools
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pymongo
from bson import CodecOptions, Decimal128
from bson.codec_options import DatetimeConversion
from bson.datetime_ms import DatetimeMS

from sluice.config.connections import Endpoint
from sluice.model.column_types import ColumnKind, ColumnType
from sluice.model.tables import TableId, TableSchema
from sluice.targets.messages.row_texts import own_type
from sluice.targets.mongodb.target import MongoTarget
from sluice.targets.port import Input, Target
from sluice.testing.targets import Bench, Received
from tests.support.benches.documents import DATES, changes_of, make_missing, refusing_above, types_of

_numbers = itertools.count()
_AS_STORED: CodecOptions[dict[str, Any]] = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_MS)
FERRETDB: Mapping[str, Any] = {"bulk_rows": 20, "types": {"decimal": "text", "bigint unsigned": "text"}}
"""It loses the connection at a Decimal128, and never answers to a command with many updates."""


def python_value(made: ColumnType, value: Any) -> Any:
    """A value as Python has it, from a document."""
    if isinstance(value, Decimal128):
        value = value.to_decimal()
        return value if made.kind is ColumnKind.DECIMAL else int(value)
    if isinstance(value, DatetimeMS):
        at = dt.datetime(1970, 1, 1) + dt.timedelta(milliseconds=int(value))
        return at.date() if made.kind is ColumnKind.DATE else at
    read = DATES.get(made.kind) or own_type(made).read
    if isinstance(value, str) and read is not None:
        return read(value)
    return int(value) if isinstance(value, int) else value


class MongoBench(Bench):
    """A server; its documents are read by finds. ``options``: of the target."""

    def __init__(self, host: str, port: int, options: Mapping[str, Any] | None = None, changes: str = "latest") -> None:
        self.changes = Input(changes)
        self.appends = self.changes is Input.CHANGES
        self.made: dict[str, TableSchema] = {}
        self.schema = f"s{os.getpid()}x{next(_numbers)}"
        self.options: dict[str, Any] = {"own_database": f"{self.schema}_sluice", **(options or {})}
        self.connection = Endpoint("target", "mongo", host, port, password=self.secret)

    def target(self, *, pipeline: str = "p", name: str = "copy", **config: Any) -> Target:
        options = {**self.options, **config.pop("options", {})}
        given = self.config("mongodb", name=name, options=options, **config)
        return MongoTarget(given, self.connection, pipeline)

    def command(self, database: str, command: Mapping[str, Any]) -> dict[str, Any]:
        """The server's answer to a command."""
        host, port = self.connection.host, self.connection.port
        with pymongo.MongoClient(host, port, socketTimeoutMS=30_000) as client:
            found: dict[str, Any] = client[database].command(command, codec_options=_AS_STORED)
        return found

    def find(self, database: str, collection: str, query: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """Documents as they are stored."""
        host, port = self.connection.host, self.connection.port
        with pymongo.MongoClient(host, port, socketTimeoutMS=30_000) as client:
            held = client[database].get_collection(collection, codec_options=_AS_STORED)
            with held.find(query or {}) as found:
                return list(found)

    def create_table(self, table: TableSchema) -> None:
        make_missing(self, table)
        self.made[str(table.table)] = table

    def received(self) -> list[Received]:
        found: list[Received] = []
        for table in self.made.values():
            held = [(one["_id"], one) for one in self.find(table.table.schema, table.table.table)]
            found += changes_of(table, held, python_value)
        return found

    def documents(self, table: TableSchema) -> list[dict[str, Any]]:
        """The documents of rows that are there."""
        return self.find(table.table.schema, table.table.table, {"_sluice_deleted": {"$exists": False}})

    def rows(self, table: TableSchema) -> list[tuple[Any, ...]]:
        types = types_of(table)
        found = self.documents(table)
        return [tuple(python_value(made, row.get(name)) for name, made in types.items()) for row in found]

    def columns(self, table: TableId) -> list[str] | None:
        held = self.find(self.options["own_database"], "tables", {"_id": str(table)})
        return held[0]["columns"] if held else None

    @contextmanager
    def refusing(self) -> Iterator[None]:
        with refusing_above(self, "max_document_bytes", 100):
            yield
