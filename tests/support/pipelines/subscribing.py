"""A subscription service on a test's pipeline, in this process, and a reader of it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
from pyarrow import flight

from sluice.config.connections import httpx_tls
from sluice.serve.access import Readers
from sluice.serve.flight import FlightServer
from sluice.serve.http import HttpServer
from sluice.serve.service import Service, Slots
from tests.support.pipelines.case import Case, case


@dataclass
class Read:
    """What a stream had.

    ``marks``: what was said after each stored batch; ``resets``: before the rows of a snapshot, of which batch.
    """

    schema: pa.Schema
    pieces: list[pa.RecordBatch] = field(default_factory=list)
    marks: list[dict[str, Any]] = field(default_factory=list)
    resets: list[int] = field(default_factory=list)

    @property
    def table(self) -> pa.Table:
        return pa.Table.from_batches(self.pieces, schema=self.schema)

    def rows(self) -> list[dict[str, Any]]:
        return self.table.to_pylist()  # type: ignore[no-any-return]


def bearing(token: str) -> flight.FlightCallOptions:
    """Of a call with a token."""
    return flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {token}".encode())])


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
                said = json.loads(chunk.app_metadata.to_pybytes())
                if "reset" in said:
                    assert not found.pieces, "it comes before all rows"
                    found.resets.append(said["reset"]["batch"])
                else:
                    found.marks.append(said)
            else:
                found.pieces.append(chunk.data)
        return found


class Exchanger:
    """A client of one named subscription, that speaks for a test."""

    def __init__(self, reader: Subscriber, name: str = "mine", call: Any = None, **request: Any) -> None:
        asked = {"pipeline": "case", "subscription": name, **{key.rstrip("_"): value for key, value in request.items()}}
        descriptor = flight.FlightDescriptor.for_command(json.dumps(asked))
        self.out, self.stream = reader.client.do_exchange(descriptor, call)
        self.rows: list[dict[str, Any]] = []
        self.batches: list[int] = []
        self.hello = self.said("session")

    def said(self, key: str) -> dict[str, Any]:
        """The next message that has this key; rows and marks before it are noted."""
        while True:
            chunk = self.stream.read_chunk()
            if chunk.data is not None:
                self.rows += chunk.data.to_pylist()
            if chunk.app_metadata is None or not chunk.app_metadata.size:
                continue
            message: dict[str, Any] = json.loads(chunk.app_metadata.to_pybytes())
            if "batch" in message:
                self.batches.append(message["batch"])
            if "end" in message:
                self.out.done_writing()
            if key in message:
                return message

    def until(self, batch: int) -> list[int]:
        """Read up to the end of that batch; all batches since the beginning."""
        while not self.batches or self.batches[-1] < batch:
            self.said("batch")
        return self.batches

    def say(self, **message: Any) -> None:
        self.out.write_metadata(json.dumps(message).encode())

    def ack(self, batch: int) -> int:
        """Acknowledge, and wait until it is stored."""
        self.say(ack=batch)
        return int(self.said("acknowledged")["acknowledged"])

    def ending(self) -> flight.FlightError:
        """The error that ends it."""
        try:
            self.said("end")
            while True:
                self.stream.read_chunk()
        except flight.FlightError as error:
            return error

    def leave(self) -> None:
        """Say that nothing more comes, and read to the end."""
        self.out.done_writing()
        for chunk in self.stream:
            if chunk.data is not None:
                self.rows += chunk.data.to_pylist()


@contextmanager
def serving(
    made: Case, slots: Slots | None = None, *, port: int = 0, client: dict[str, Any] | None = None, **options: Any
) -> Iterator[tuple[FlightServer, Subscriber]]:
    """The service of one pipeline, on a port of this machine (0: a free one), and a reader.

    ``client``: options of its connection.
    """
    service = Service(lambda name: made.runtime(), lambda: [made.name], slots)
    scheme = "grpc+tls" if options.get("tls") else "grpc"
    server = FlightServer(service, f"{scheme}://127.0.0.1:{port}", **options)
    reader = Subscriber(f"{scheme}://127.0.0.1:{server.port}", **client or {})
    try:
        yield server, reader
    finally:
        reader.client.close()
        ended = server.stop()
        service.close()
        assert ended, "a stream is still open"


@contextmanager
def served(made: Case, port: int, *options: str) -> Iterator[subprocess.Popen[str]]:
    """``sluice serve`` as a process of its own, killed at the end."""
    with subprocess.Popen(
        made.command("serve", "--port", str(port), *options),
        env=made.environment,
        cwd=made.folder,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        try:
            assert next(line for line in process.stderr if "serving" in line)
            yield process
        finally:
            process.kill()


@contextmanager
def by_http(made: Case, slots: Slots | None = None, readers: Readers | None = None) -> Iterator[httpx.Client]:
    """The service of one pipeline, on a free port of this machine, and a client of its HTTP server."""
    service = Service(lambda name: made.runtime(), lambda: [made.name], slots)
    server = HttpServer(service, "127.0.0.1", 0, readers=readers)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{server.port}/v1", timeout=30, verify=httpx_tls()) as client:
            yield client
    finally:
        ended = server.stop()
        service.close()
        assert ended, "a read is still open"


@contextmanager
def shop_case(folder: Path, servers: tuple[Any, Any, Any], schema: str) -> Iterator[Case]:
    """A pipeline that captures ``schema``.orders, at the head of the log. ``servers``: source, target, ZooKeeper."""
    servers[0].execute(f"CREATE TABLE {schema}.orders (id INT PRIMARY KEY, v BIGINT, note VARCHAR(100))")
    with case(folder, *servers, schema) as made:
        made.make_missing()
        made.run_until_head()
        yield made


def write(made: Case, *statements: str) -> int:
    """One batch or more of it; the number of the last one."""
    made.source.execute(f"USE {made.schema}", *statements)
    made.run_until_head()
    return made.runtime().store.batches()[-1]


def replayed(
    rows: list[dict[str, Any]], key: str = "id", held: Mapping[Any, dict[str, Any]] | None = None
) -> dict[Any, dict[str, Any]]:
    """What a table holds after the changes, without the columns of the service. ``held``: what it held before them."""
    table: dict[Any, dict[str, Any]] = dict(held or {})
    for row in rows:
        image = {name: value for name, value in row.items() if not name.startswith("_")}
        if row["_before"] is not None and row["_op"] == "u":
            table.pop(row["_before"][key], None)
        if row["_op"] == "d":
            table.pop(row[key], None)
        else:
            table[row[key]] = image
    return table


def documents(answer: httpx.Response) -> list[dict[str, Any]]:
    """Of an answer by HTTP, a line each."""
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.split("\n")[:-1]]


def replayed_events(events: list[dict[str, Any]], key: str = "id") -> dict[Any, dict[str, Any]]:
    """What a table holds after events as Debezium has them."""
    table: dict[Any, dict[str, Any]] = {}
    for event in events:
        if event["op"] == "d":
            del table[event["before"][key]]
        else:
            table[event["after"][key]] = event["after"]
    return table
