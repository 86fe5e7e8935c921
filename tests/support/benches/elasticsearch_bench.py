"""An Elasticsearch or OpenSearch server for the contract suite: documents are read by searches of their own."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import os
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from sluice.config.connections import parse_connection
from sluice.model.column_types import ColumnKind, ColumnType
from sluice.model.tables import TableId, TableSchema
from sluice.model.temporal import time_of
from sluice.targets.elasticsearch.target import ElasticsearchTarget
from sluice.targets.messages.row_texts import own_type
from sluice.targets.port import Input, Target
from sluice.testing.targets import Bench, Received
from tests.support.benches.documents import BYTES, DATES, changes_of, make_missing, refusing_above, types_of

_numbers = itertools.count()
SETTINGS = {"number_of_replicas": 0}


def python_value(made: ColumnType, value: Any) -> Any:
    """A value as Python has it, from a document."""
    if value is None:
        return None
    if made.kind in BYTES:
        return b64decode(value)
    if made.kind in {ColumnKind.FLOAT, ColumnKind.DOUBLE}:
        return float(value)
    if made.kind is ColumnKind.TIME:
        return time_of(value)
    if made.kind in {ColumnKind.DATETIME, ColumnKind.TIMESTAMP}:
        return dt.datetime.fromisoformat(value)
    read = DATES.get(made.kind) or own_type(made).read
    return read(str(value)) if read is not None else value


class ElasticsearchBench(Bench):
    """A server; its documents are read by searches."""

    def __init__(self, server: Any, options: dict[str, Any] | None = None, changes: str = "latest") -> None:
        self.server, self.changes = server, Input(changes)
        self.appends = self.changes is Input.CHANGES
        self.made: dict[str, TableSchema] = {}
        self.schema = f"s{os.getpid()}x{next(_numbers)}"
        self.options = {"settings": SETTINGS, "checkpoint_index": f"{self.schema}-checkpoints", **(options or {})}
        given = json.loads(server.connection_json())
        given["extra"] = {"headers": {"X-Api-Key": self.secret}}
        self.connection = parse_connection("target", json.dumps(given))

    def target(self, *, pipeline: str = "p", name: str = "copy", **config: Any) -> Target:
        options = {**self.options, **config.pop("options", {})}
        given = self.config("elasticsearch", name=name, options=options, **config)
        return ElasticsearchTarget(given, self.connection, pipeline)

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Return the server's answer, as JSON."""
        return httpx.request(method, f"{self.server.url}{path}", json=body, timeout=60).json()

    def create_table(self, table: TableSchema) -> None:
        make_missing(self, table)
        self.made[str(table.table)] = table

    def received(self) -> list[Received]:
        found: list[Received] = []
        for name, table in self.made.items():
            held = [(one["_id"], one["_source"]) for one in self.documents(f"{name}*")]
            found += changes_of(table, held, python_value)
        return found

    def documents(self, index: str) -> list[dict[str, Any]]:
        """All documents of an index, with their ids and versions."""
        self.ask("POST", f"/{index}/_refresh")
        found = self.ask("POST", f"/{index}/_search", {"size": 10_000, "version": True, "sort": ["_doc"]})
        return list(found["hits"]["hits"])

    def rows(self, table: TableSchema) -> list[tuple[Any, ...]]:
        types = types_of(table)
        rows = [one["_source"] for one in self.documents(str(table.table))]
        return [tuple(python_value(made, row.get(name)) for name, made in types.items()) for row in rows]

    def columns(self, table: TableId) -> list[str] | None:
        found = self.ask("GET", f"/{table}/_mapping").get(str(table))
        return found and found["mappings"]["_meta"]["sluice"]["columns"]

    @contextmanager
    def refusing(self) -> Iterator[None]:
        with refusing_above(self, "max_document_bytes", 80):
            yield
