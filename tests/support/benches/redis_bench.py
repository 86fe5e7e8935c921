"""A Redis or Valkey server for the contract suite. Needs the client, an extra."""

from __future__ import annotations

import itertools
import json
import os
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import redis

from sluice.config.connections import parse_connection
from sluice.model.column_types import ColumnKind, ColumnType
from sluice.model.tables import Column, TableId, TableSchema
from sluice.targets.messages.row_texts import own_type
from sluice.targets.port import Input, Target
from sluice.targets.redis.target import RedisTarget
from sluice.testing.targets import Bench, Received
from tests.support.benches.documents import BYTES, DATES, make_missing, refusing_above, types_of
from tests.support.readers.debezium_values import python_row

_numbers = itertools.count()


def python_value(made: ColumnType, value: Any) -> Any:
    """A value as Python has it, from the text of a field, or from the value of a JSON object."""
    if value is None:
        return None
    if made.kind in BYTES:
        return value if isinstance(value, bytes) else b64decode(value)
    text = value.decode() if isinstance(value, bytes) else value
    if made.kind in {ColumnKind.FLOAT, ColumnKind.DOUBLE}:
        return float(text)
    read = DATES.get(made.kind) or own_type(made).read
    return read(text) if read is not None else text


class RedisBench(Bench):
    """A server of the Redis protocol; rows are read from its keys by redis-py."""

    def __init__(self, server: Any, changes: str = "latest", options: dict[str, Any] | None = None) -> None:
        self.server, self.changes = server, Input(changes)
        self.appends = self.changes is Input.CHANGES
        self.schema = f"s{os.getpid()}x{next(_numbers)}"
        self.single = "table" not in (options or {}).get("stream", "{schema}.{table}")
        self.options = {"prefix": f"{self.schema}:", **(options or {})}
        if self.single:
            self.options["stream"] = f"{self.schema}.all"
        self.connection = parse_connection("target", server.connection_json())
        self.secret = self.connection.password
        self.types: dict[str, dict[str, str]] = {}

    def target(self, *, pipeline: str = "p", name: str = "copy", **config: Any) -> Target:
        options = {**self.options, **config.pop("options", {})}
        return RedisTarget(self.config("redis", name=name, options=options, **config), self.connection, pipeline)

    @property
    def client(self) -> Any:
        return self.server.client()

    def create_table(self, table: TableSchema) -> None:
        self.types[str(table.table)] = {column.name: column.sql_type for column in table.columns}
        if self.appends:
            return
        make_missing(self, table)

    def rows(self, table: TableSchema) -> list[tuple[Any, ...]]:
        types = types_of(table)
        with self.client as client:
            found = []
            for key in sorted(client.scan_iter(f"{table.table}:*", count=1_000)):
                if self.options.get("form") == "json":
                    row = json.loads(client.get(key))
                else:
                    row = {name.decode(): value for name, value in client.hgetall(key).items()}
                found.append(tuple(python_value(made, row.get(name)) for name, made in types.items()))
            return found

    def columns(self, table: TableId) -> list[str] | None:
        with self.client as client:
            found = client.hget(f"{self.schema}:tables", str(table))
        return found and json.loads(found)["columns"]

    def received(self) -> list[Received]:
        found = []
        with self.client as client:
            streams = sorted(key for key in client.scan_iter(f"{self.schema}.*") if client.type(key) == b"stream")
            for stream in streams:
                for _, given in client.xrange(stream):
                    entry = {name.decode(): value.decode() for name, value in given.items()}
                    document = json.loads(entry["value"])
                    table = f"{document['source']['db']}.{document['source']['table']}"
                    op = {"c": "i"}.get(document["op"], document["op"])
                    before, after = (python_row(self.types[table], document[side]) for side in ("before", "after"))
                    name = f"{table}/{entry['sluice.batch']}/{entry['sluice.change']}"
                    found.append(Received(name, table, op, before, after))
        return found

    @contextmanager
    def refusing(self) -> Iterator[None]:
        with refusing_above(self, "max_row_bytes", 140):
            yield

    def stored(self, column: Column, value: Any) -> Any:
        return value

    def kill(self) -> None:
        with self.client as client, suppress(redis.RedisError):
            client.execute_command("CLIENT", "KILL", "TYPE", "NORMAL", "SKIPME", "yes")
