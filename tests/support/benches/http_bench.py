"""An HTTP receiver for the contract suite."""

from __future__ import annotations

from typing import Any

from sluice.config.connections import Endpoint
from sluice.model.tables import TableSchema
from sluice.targets.http.target import HttpTarget
from sluice.targets.port import Input, Target
from sluice.testing.targets import Bench, Received
from tests.support.readers.debezium_values import python_row
from tests.support.servers.http_receiver import Receiver


class HttpBench(Bench):
    """A receiver in this process; what it took, document by document."""

    appends = True

    def __init__(self, receiver: Receiver, changes: str = "latest", options: dict[str, Any] | None = None) -> None:
        self.receiver, self.changes, self.options = receiver, Input(changes), options or {}
        self.connection = Endpoint("target", "http", receiver.url, password=self.secret)
        self.types: dict[str, dict[str, str]] = {}

    def target(self, *, pipeline: str = "p", name: str = "copy", **config: Any) -> Target:
        options = {**self.options, **config.pop("options", {})}
        return HttpTarget(self.config("http", name=name, options=options, **config), self.connection, pipeline)

    def create_table(self, table: TableSchema) -> None:
        self.types[str(table.table)] = {column.name: column.sql_type for column in table.columns}

    def received(self) -> list[Received]:
        found = []
        for got in list(self.receiver.taken):
            assert got.headers["authorization"] == f"Bearer {self.secret}"
            for number, document in enumerate(got.documents):
                table = f"{document['source']['db']}.{document['source']['table']}"
                op = {"c": "i"}.get(document["op"], document["op"])
                types = self.types[table]
                before, after = (python_row(types, document[side]) for side in ("before", "after"))
                found.append(Received(f"{got.key}#{number}", table, op, before, after))
        return found
