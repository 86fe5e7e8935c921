"""A reader of the subscription service (``sluice serve``): whole batches, in order, each once.

::

    from sluice.client import subscribe

    for batch in subscribe("grpc://127.0.0.1:8815", "shop_to_reporting", tables=["shop.orders"]):
        print(batch.number, batch.rows.num_rows, batch.position)

    for batch in subscribe("grpc://127.0.0.1:8815", "shop_to_reporting", name="search_index"):
        ...  # make something of it
        batch.ack()  # the service keeps the place
"""

from __future__ import annotations

import json
import random
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import flight

from sluice.errors import RetryableError

_PAUSE_S = 0.5
_ALIVE_S = 5.0
"""A stream that was open for so long was not refused: a quiet time is no absence of the service."""

_SESSION_S = 10.0
_ZOOKEEPER = "zk://"


@dataclass(frozen=True)
class StoredBatch:
    """A batch of a pipeline.

    Attributes:
        rows: all of it that was asked for; docs/subscribe.md has the columns. position: in the source's log, after its
            last transaction.
        statements: what DDL did to the tables. replaces_all: the rows are all rows of the tables as of this batch, from
            the pipeline's snapshot: remove those that you have. It comes first with ``start="snapshot"``, and where
            batches were removed before they were read.
    """

    number: int
    rows: pa.Table
    position: str
    commit_time_us: int
    statements: tuple[Mapping[str, Any], ...]
    replaces_all: bool = False
    _acknowledge: Callable[[int], None] | None = field(default=None, repr=False, compare=False)

    def ack(self) -> None:
        """Acknowledge this batch and all before it.

        When it returns, the service has stored that, and never sends them again.

        Where the subscription lost batches before the acknowledgement reached the service, the service starts over, and
        the next batch is the snapshot (``replaces_all``), which may be of an earlier batch than this one.

        Raises:
            RuntimeError: the subscription has no name.
            pyarrow.flight.FlightError: another client has the subscription, see :class:`Subscription`.
        """
        if self._acknowledge is None:
            raise RuntimeError("only batches of a named subscription are acknowledged: subscribe(..., name=...)")
        self._acknowledge(self.number)


def subscribe(
    address: str,
    pipeline: str,
    *,
    name: str | None = None,
    tables: Sequence[str] = (),
    start: str | Mapping[str, Any] = "earliest",
    follow: bool = True,
    token: str | None = None,
    tls_root_certs: bytes | None = None,
    patience_s: float = 60.0,
    **more: Any,
) -> Iterator[StoredBatch]:
    """Return an iterator over the batches from ``start`` on.

    It yields a batch when all of it has arrived, so never a part of one.

    It yields a batch when all of it has arrived, so never a part of one.

    A stream that ends because columns changed, or because the service is not there, is opened again after the last
    batch that was given.

    Args:
        address: ``grpc://host:port``, or ``grpc+tls://``; ``tls_root_certs``: PEM of who is trusted. Or
            ``zk://host:port,host:port/root``, with ``user:password@`` where that ZooKeeper asks for it: a service that
            is registered there, and another one when it dies.
        name: of a subscription whose place the service keeps; what is returned is a :class:`Subscription` then.
        start: ``from`` of a ticket. After ``latest``, a stream without a name that breaks off before the first batch is
            an error: where it began is not known.
        follow: go on with new batches.
        patience_s: how long the service may be away.
        more: other keys of a ticket: form, columns, predicate; to without a name; window, reset with one.

    Raises:
        pyarrow.flight.FlightError: its text says what was wrong, its ``extra_info`` is JSON for programs.
    """
    server = _Server(address, pipeline, token, tls_root_certs)
    ticket = {"pipeline": pipeline, "tables": list(tables), "from": start, "follow": follow, **more}
    if name is not None:
        return Subscription(server, {**ticket, "subscription": name}, patience_s)
    return _unnamed(server, ticket, patience_s)


class _Server:
    """The way to a service: the one of an address, or any that ZooKeeper knows."""

    def __init__(self, address: str, pipeline: str, token: str | None, tls_root_certs: bytes | None) -> None:
        self._address = address
        self._pipeline = pipeline
        self._tls_root_certs = tls_root_certs
        self._last = ""
        self.options = flight.FlightCallOptions(
            headers=[(b"authorization", f"Bearer {token}".encode())] if token else []
        )

    def connect(self) -> flight.FlightClient:
        """Open a new connection; where there are several services, to another one than the last.

        Raises FlightUnavailableError.
        """
        address = self._address
        if address.startswith(_ZOOKEEPER):
            found = self._registered()
            self._last = address = random.choice([one for one in found if one != self._last] or found)  # noqa: S311 - spreads
        return flight.connect(address, tls_root_certs=self._tls_root_certs)

    def _registered(self) -> list[str]:
        """Return the addresses of the services that read the pipeline."""
        from sluice.config.connections import Endpoint
        from sluice.coordination.servers import Servers
        from sluice.coordination.zookeeper import connect

        login, _, place = self._address.removeprefix(_ZOOKEEPER).rpartition("@")
        hosts, slash, path = place.partition("/")
        user, _, password = login.partition(":")
        endpoint = Endpoint("zk", "zookeeper", hosts, user=unquote(user), password=unquote(password))
        try:
            with connect(endpoint, session_timeout_s=_SESSION_S, connect_timeout_s=_SESSION_S) as znodes:
                known = Servers(znodes, slash + path.rstrip("/")).all()
        except RetryableError as error:
            raise flight.FlightUnavailableError(str(error)) from None
        found = [one.address for one in known if self._pipeline in one.pipelines]
        if not found:
            raise flight.FlightUnavailableError(
                f"no service of {self._pipeline} is registered below {slash}{path} of {hosts}: `sluice serve "
                "--register` does that"
            )
        return found


def _unnamed(server: _Server, ticket: dict[str, Any], patience_s: float) -> Iterator[StoredBatch]:
    until = time.monotonic() + patience_s
    columns_of: int | None = None
    while True:
        opened, since = ticket["from"], None
        try:
            with server.connect() as client:
                stream = client.do_get(flight.Ticket(json.dumps(ticket)), server.options)
                _ = stream.schema  # waits for the service's answer
                since = time.monotonic()
                for batch in _batches(stream):
                    yield batch
                    ticket["from"] = {"batch": batch.number + 1}
                    until = time.monotonic() + patience_s
            if not ticket["follow"]:
                return
            failed: flight.FlightError = flight.FlightUnavailableError("the service ended the stream")
        except flight.FlightUnavailableError as error:
            failed = error
        except flight.FlightServerError as error:
            if _said_of(error).get("error") == "BatchesGone" and since is not None and ticket["from"] != "latest":
                continue  # they were removed while it read: what comes instead is said when the stream is opened
            moved = _moved_at(error)
            if moved is None or (opened == {"batch": moved} and moved == columns_of):
                raise  # it was stored, and a stream that begins with it has its columns
            columns_of, ticket["from"] = moved, {"batch": moved}
            continue
        if since is not None and time.monotonic() - since > _ALIVE_S:
            until = time.monotonic() + patience_s
        if ticket["from"] == "latest" or time.monotonic() > until:
            raise failed
        time.sleep(_PAUSE_S)


class Subscription(Iterator[StoredBatch]):
    """Batches of a named subscription: those after the last acknowledged one, and new ones as they are stored.

    Each is given once by one object, also over a loss of the connection or a restart of the service, and is to be
    acknowledged (``batch.ack()``) when what was made of it is safe. What was not acknowledged is given again after
    :meth:`rollback`, and to the next client of this name. For one thread.

    Raises:
        RuntimeError: the next batch is asked for, but the service sends no more before one is acknowledged
            (``window``).
        pyarrow.flight.FlightError: as :func:`subscribe`; ``Fenced`` in its ``extra_info``: another client of this name
            connected later.
    """

    def __init__(self, server: _Server, ticket: Mapping[str, Any], patience_s: float) -> None:
        self._server = server
        self._ticket = dict(ticket)
        self._name = uuid.uuid4().hex
        self._patience_s = patience_s
        self._until = time.monotonic() + patience_s
        self._call: _Call | None = None
        self._ready: deque[StoredBatch] = deque()
        self._open: deque[int] = deque()  # given and not acknowledged
        self._received = 0
        self._acknowledged = 0
        self._asked = 0
        self._window = 1
        self._columns_of: int | None = None  # where columns changed last
        self._is_done = False

    def __next__(self) -> StoredBatch:
        while not self._ready:
            if self._is_done:
                self.close()
                raise StopIteration
            if len(self._open) >= self._window:
                raise RuntimeError(
                    f"{len(self._open)} batches are not acknowledged, and the service sends no more of them: "
                    "batch.ack() before the next one, or a larger window"
                )
            self._step()
        self._open.append(self._ready[0].number)
        return self._ready.popleft()

    def rollback(self) -> None:
        """Have everything given again that is not acknowledged."""
        self.close()
        self._ready.clear()
        self._open.clear()
        self._received = self._acknowledged
        self._is_done = False

    def close(self) -> None:
        """End the connection; the subscription stays. It is opened again for what is asked for next."""
        if self._call is not None:
            self._call.close()
            self._call = None

    def _acknowledge(self, number: int) -> None:
        was_open = self._call is not None
        self._asked = max(self._asked, number)
        if self._call is not None and number > self._acknowledged:
            self._call.say({"ack": number})
        while self._acknowledged < min(number, self._asked):  # a service that begins anew asks for less
            self._step()
        while self._open and self._open[0] <= self._acknowledged:
            self._open.popleft()
        if not was_open:
            self.close()

    def _step(self) -> None:
        """Take one message of the service; connect first where there is no connection, or it broke."""
        try:
            if self._call is None:
                self._connect()
            else:
                self._take(self._call.read(self._acknowledge))
            self._until = time.monotonic() + self._patience_s
        except flight.FlightUnavailableError:
            if self._call is not None:
                self._until = time.monotonic() + self._patience_s
            self.close()
            if time.monotonic() > self._until:
                raise
            time.sleep(_PAUSE_S)
        except flight.FlightServerError as error:
            began = self._call.first if self._call is not None else None
            self.close()
            if began is not None and _said_of(error).get("error") in {"SubscriptionOver", "BatchesGone"}:
                self.rollback()  # batches were removed: it begins with the snapshot, if the service may do that
                return
            moved = _moved_at(error)
            if moved is None or began == moved == self._columns_of:  # see :func:`_unnamed`
                self._ready.clear()
                raise
            self._columns_of, self._received = moved, moved - 1

    def _connect(self) -> None:
        if "session" in self._ticket:
            self._ticket["from"] = {"batch": self._received + 1}
        call = self._call = self._opened()
        self._acknowledged, self._window = call.hello["acknowledged"], call.hello["window"]
        if "session" not in self._ticket:
            self._received = call.first - 1
            self._ticket.pop("reset", None)
        elif call.first <= self._received:  # with the snapshot: what was given of later batches comes again
            self._ready.clear()
            self._open.clear()
            self._received = call.first - 1
        self._asked = min(self._asked, call.first - 1)
        self._ticket["session"] = call.hello["session"]
        if self._asked > self._acknowledged:
            call.say({"ack": self._asked})

    def _opened(self) -> _Call:
        """Open a session.

        One that goes on says which client this is: the answer before may have been lost with the link, and its session
        counted.
        """
        if "session" not in self._ticket:
            return _Call(self._server, self._ticket)
        try:
            return _Call(self._server, {**self._ticket, "client": self._name})
        except flight.FlightServerError as error:
            if "client: Extra inputs are not permitted" not in str(error):
                raise
            return _Call(self._server, self._ticket)  # a service of an older version

    def _take(self, said: StoredBatch | Mapping[str, Any]) -> None:
        if isinstance(said, StoredBatch):
            self._received = said.number
            self._ready.append(said)
        elif "acknowledged" in said:
            self._acknowledged = said["acknowledged"]
        elif "end" in said:
            self._is_done = bool(said["end"].get("done"))
            if not self._is_done and self._call is not None:
                self._call.finish()


class _Call:
    """One session with a service. ``hello``: what it said first."""

    def __init__(self, server: _Server, ticket: Mapping[str, Any]) -> None:
        self._client = server.connect()
        self._pieces: list[pa.RecordBatch] = []
        asked = flight.FlightDescriptor.for_command(json.dumps(ticket))
        self._out, self._stream = self._client.do_exchange(asked, server.options)
        try:
            self.hello: Mapping[str, Any] = json.loads(self._chunk().app_metadata.to_pybytes())
        except BaseException:
            self.close()
            raise

    @property
    def first(self) -> int:
        """The batch that it began with."""
        return int(self.hello["first"])

    def read(self, acknowledge: Callable[[int], None]) -> StoredBatch | Mapping[str, Any]:
        """Return the next whole batch, or another message of the service."""
        while True:
            chunk = self._chunk()
            if chunk.app_metadata is None or not chunk.app_metadata.size:
                self._pieces.append(chunk.data)
                continue
            said: Mapping[str, Any] = json.loads(chunk.app_metadata.to_pybytes())
            if "batch" not in said:
                return said
            pieces, self._pieces = self._pieces, []
            return _batch(said, pa.Table.from_batches(pieces, schema=self._stream.schema), acknowledge)

    def say(self, message: Mapping[str, Any]) -> None:
        """Send a message. If the session is broken, the next read raises the reason."""
        with suppress(pa.ArrowException, OSError):
            self._out.write_metadata(json.dumps(message).encode())

    def finish(self) -> None:
        """Say nothing more; the service then ends the call."""
        with suppress(pa.ArrowException, OSError):
            self._out.done_writing()

    def close(self) -> None:
        """End the session and drop whatever is still on its way."""
        self._stream.cancel()
        with suppress(pa.ArrowException, OSError):
            self._out.close()
        self._client.close()

    def _chunk(self) -> flight.FlightStreamChunk:
        try:
            return self._stream.read_chunk()
        except StopIteration:
            raise flight.FlightUnavailableError("the service ended the stream") from None


def _batches(stream: flight.FlightStreamReader) -> Iterator[StoredBatch]:
    pieces: list[pa.RecordBatch] = []
    for chunk in stream:
        if chunk.app_metadata is None or not chunk.app_metadata.size:
            pieces.append(chunk.data)
            continue
        said = json.loads(chunk.app_metadata.to_pybytes())
        if "reset" in said:  # the batch says it, when all of it is there
            continue
        yield _batch(said, pa.Table.from_batches(pieces, schema=stream.schema))
        pieces = []


def _batch(said: Mapping[str, Any], rows: pa.Table, acknowledge: Callable[[int], None] | None = None) -> StoredBatch:
    statements = tuple(said["statements"])
    return StoredBatch(
        said["batch"],
        rows,
        said["position"],
        said["commit_time_us"],
        statements,
        said.get("snapshot", False),
        acknowledge,
    )


def _moved_at(error: flight.FlightError) -> int | None:
    """Return the batch from which the columns differ; None for another error."""
    said = _said_of(error)
    return int(said["batch"]) if said.get("error") == "SchemaMoved" else None


def _said_of(error: flight.FlightError) -> Mapping[str, Any]:
    """Return what an error says for programs (the JSON in its ``extra_info``)."""
    try:
        said: Mapping[str, Any] = json.loads(error.extra_info or b"{}")
    except ValueError:
        return {}
    return said


__all__ = ["StoredBatch", "Subscription", "subscribe"]
