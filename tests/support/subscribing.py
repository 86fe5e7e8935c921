"""A subscription service on a test's pipeline, in this process, and a reader of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyarrow import flight

from sluice.serve.flight import FlightDoor
from sluice.serve.service import Service, Slots
from tests.support.pipelines import Case


@dataclass
class Read:
    """What a stream had. ``batches``: number and rows of each record batch; ``marks``: what was said after each stored batch."""

    schema: pa.Schema
    pieces: list[pa.RecordBatch] = field(default_factory=list)
    marks: list[dict[str, Any]] = field(default_factory=list)

    @property
    def table(self) -> pa.Table:
        return pa.Table.from_batches(self.pieces, schema=self.schema)

    def rows(self) -> list[dict[str, Any]]:
        return self.table.to_pylist()  # type: ignore[no-any-return]


class Subscriber:
    """A Flight client that speaks for a test."""

    def __init__(self, address: str, **options: Any) -> None:
        self.client = flight.connect(address, **options)

    def stream(self, pipeline: str = "case", call: Any = None, **request: Any) -> Any:
        """An open stream; ``from_``: ``from``."""
        asked = {"pipeline": pipeline, **{name.rstrip("_"): value for name, value in request.items()}}
        return self.client.do_get(flight.Ticket(json.dumps(asked)), call)

    def read(self, **request: Any) -> Read:
        """All of a stream that ends."""
        stream = self.stream(**request)  # with ``call``: options of the call
        found = Read(stream.schema)
        for chunk in stream:
            if chunk.app_metadata is not None and chunk.app_metadata.size:
                assert chunk.data.num_rows == 0
                found.marks.append(json.loads(chunk.app_metadata.to_pybytes()))
            else:
                found.pieces.append(chunk.data)
        return found


@contextmanager
def serving(
    made: Case, slots: Slots | None = None, *, client: dict[str, Any] | None = None, **options: Any
) -> Iterator[tuple[FlightDoor, Subscriber]]:
    """The service of one pipeline, on a free port of this machine, and a reader. ``client``: options of its connection."""
    service = Service(lambda name: made.runtime(), lambda: [made.name], slots)
    scheme = "grpc+tls" if options.get("tls") else "grpc"
    door = FlightDoor(service, f"{scheme}://127.0.0.1:0", **options)
    reader = Subscriber(f"{scheme}://127.0.0.1:{door.port}", **client or {})
    try:
        yield door, reader
    finally:
        reader.client.close()
        ended = door.end()
        service.close()
        assert ended, "a stream is still open"


def replayed(rows: list[dict[str, Any]], key: str = "id") -> dict[Any, dict[str, Any]]:
    """What a table holds after the changes, without the columns of the service."""
    table: dict[Any, dict[str, Any]] = {}
    for row in rows:
        image = {name: value for name, value in row.items() if not name.startswith("_")}
        if row["_before"] is not None and row["_op"] == "u":
            table.pop(row["_before"][key], None)
        if row["_op"] == "d":
            table.pop(row[key], None)
        else:
            table[row[key]] = image
    return table
