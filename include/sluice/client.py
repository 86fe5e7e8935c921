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
import math
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
    """A batch of a pipeline, or a piece of one where pieces were asked for (``piece_rows``, ``piece_bytes``).

    Attributes:
        rows: all of it that was asked for; docs/subscribe.md has the columns. position: in the source's log, after its
            last transaction.
        statements: what DDL did to the tables. replaces_all: the rows are all rows of the tables as of this batch, from
            the pipeline's snapshot: remove those that you have. It comes first with ``start="snapshot"``, and where
            batches were removed before they were read. Of several pieces the first has it.
        piece: number of the piece in its batch, from 1. Where 1 comes again before the last piece, the connection
            broke: the batch comes anew.
        is_last: no more of the batch comes. Only the last piece has a position, a commit time and statements.
    """

    number: int
    rows: pa.Table
    position: str
    commit_time_us: int
    statements: tuple[Mapping[str, Any], ...]
    replaces_all: bool = False
    piece: int = 1
    is_last: bool = True
    _acknowledge: Callable[[int], None] | None = field(default=None, repr=False, compare=False)

    def ack(self) -> None:
        """Acknowledge this batch and all before it.

        When it returns, the service has stored that, and never sends them again.

        Where the subscription lost batches before the acknowledgement reached the service, the service starts over, and
        the next batch is the snapshot (``replaces_all``), which may be of an earlier batch than this one.

        Raises:
            RuntimeError: the subscription has no name, or this is not the last piece of its batch.
            pyarrow.flight.FlightError: another client has the subscription, see :class:`Subscription`.
        """
        if self._acknowledge is None:
            raise RuntimeError("only batches of a named subscription are acknowledged: subscribe(..., name=...)")
        if not self.is_last:
            raise RuntimeError(f"more pieces of batch {self.number} follow: acknowledge the last one")
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
    patience_s: float | None = 60.0,
    piece_rows: int | None = None,
    piece_bytes: int | None = None,
    timeout_s: float | None = None,
    transactions: bool = False,
    **more: Any,
) -> Iterator[StoredBatch]:
    """Return an iterator over the batches from ``start`` on.

    It yields a batch when all of it has arrived, so never a part of one, unless it is asked for pieces.

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
        patience_s: how long the service may be away, also at the beginning; None: for ever.
        piece_rows, piece_bytes: the most rows, and the most bytes in memory, that one item has: a batch that has more
            comes in several pieces (``piece``, ``is_last``). A row that is larger comes alone.
        timeout_s: the iterator ends when no batch came for this time; one of a subscription with a name goes on when it
            is asked again. None: it waits for ever.
        transactions: all rows of a batch come in the order of their commits, with a row where a transaction begins and
            one where it ends (``_op`` is b and e, the column ``_transaction`` says more).
        more: other keys of a ticket: form, columns, predicate; to without a name; window, reset with one.

    Raises:
        pyarrow.flight.FlightError: its text says what was wrong, its ``extra_info`` is JSON for programs.
    """
    server = _Server(address, pipeline, token, tls_root_certs)
    options = {
        "piece_rows": piece_rows,
        "piece_bytes": piece_bytes,
        "wait": timeout_s,
        "transactions": transactions or None,
    }
    more |= {key: value for key, value in options.items() if value is not None}  # an older service knows none of them
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
            addresses = self._registered()
            others = [address for address in addresses if address != self._last]
            self._last = address = random.choice(others or addresses)  # noqa: S311 - spreads
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
                servers = Servers(znodes, slash + path.rstrip("/")).all()
        except RetryableError as error:
            raise flight.FlightUnavailableError(str(error)) from None
        addresses = [entry.address for entry in servers if self._pipeline in entry.pipelines]
        if not addresses:
            raise flight.FlightUnavailableError(
                f"no service of {self._pipeline} is registered below {slash}{path} of {hosts}: `sluice serve "
                "--register` does that"
            )
        return addresses


class _Patience:
    """How long the service may be away. ``limit_s``: None for ever."""

    def __init__(self, limit_s: float | None) -> None:
        self._limit_s = math.inf if limit_s is None else limit_s
        self.restart()

    def restart(self) -> None:
        """Note that the service is there."""
        self._until = time.monotonic() + self._limit_s

    def require(self, failed: flight.FlightError) -> None:
        """Wait before the next try. Raises ``failed`` if the service was away for too long."""
        if time.monotonic() > self._until:
            raise failed
        time.sleep(_PAUSE_S)


def _unnamed(server: _Server, ticket: dict[str, Any], patience_s: float | None) -> Iterator[StoredBatch]:
    patience = _Patience(patience_s)
    columns_of: int | None = None
    asked_at = time.monotonic()
    while True:
        opened, since = ticket["from"], None
        try:
            with server.connect() as client:
                stream = client.do_get(flight.Ticket(json.dumps(ticket)), server.options)
                _ = stream.schema  # waits for the service's answer
                since = time.monotonic()
                received = _Received(stream.schema, ticket)
                for chunk in stream:
                    for item in received.put(chunk):
                        if isinstance(item, StoredBatch):
                            yield item
                            asked_at = time.monotonic()
                            if item.is_last:
                                ticket["from"] = {"batch": item.number + 1}
                            patience.restart()
                        elif _has_waited(item, ticket, asked_at):
                            return
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
            patience.restart()
        if ticket["from"] == "latest" and since is not None:
            raise failed  # where it began is not known
        patience.require(failed)


def _has_waited(message: Mapping[str, Any], ticket: Mapping[str, Any], asked_at: float) -> bool:
    """Return True if a message says that no batch came, and the caller has waited for so long, too.

    A caller that was busy meanwhile has not: the service waits for it anew.
    """
    timed_out: bool = message.get("end", {}).get("timed_out", False)
    return timed_out and time.monotonic() - asked_at >= ticket["wait"]


class Subscription(Iterator[StoredBatch]):
    """Batches of a named subscription: those after the last acknowledged one, and new ones as they are stored.

    Each is given once by one object, also over a loss of the connection or a restart of the service, and is to be
    acknowledged (``batch.ack()``) when what was made of it is safe. What was not acknowledged is given again after
    :meth:`rollback`, and to the next client of this name. With ``timeout_s`` it ends when no batch came for so long,
    and goes on when it is asked again. For one thread.

    Raises:
        RuntimeError: the next batch is asked for, but the service sends no more before one is acknowledged
            (``window``).
        pyarrow.flight.FlightError: as :func:`subscribe`; ``Fenced`` in its ``extra_info``: another client of this name
            connected later.
    """

    def __init__(self, server: _Server, ticket: Mapping[str, Any], patience_s: float | None) -> None:
        self._server = server
        self._ticket = dict(ticket)
        self._name = uuid.uuid4().hex
        self._patience = _Patience(patience_s)
        self._call: _Call | None = None
        self._ready: deque[StoredBatch] = deque()
        self._open: deque[int] = deque()  # given and not acknowledged
        self._received = 0
        self._acknowledged = 0
        self._asked = 0
        self._window = 1
        self._columns_of: int | None = None  # where columns changed last
        self._is_done = False
        self._timed_out = False
        self._asked_at = time.monotonic()
        self._is_inside = False  # what was given last was not the last piece of its batch

    def __next__(self) -> StoredBatch:
        self._asked_at = time.monotonic()
        while not self._ready:
            if self._is_done or self._timed_out:
                self.close()
                self._timed_out = False
                raise StopIteration
            if not self._is_inside and len(self._open) >= self._window:
                raise RuntimeError(
                    f"{len(self._open)} batches are not acknowledged, and the service sends no more of them: "
                    "batch.ack() before the next one, or a larger window"
                )
            self._step()
        batch = self._ready.popleft()
        self._is_inside = not batch.is_last
        if batch.is_last:
            self._open.append(batch.number)
        return batch

    def rollback(self) -> None:
        """Have everything given again that is not acknowledged."""
        self.close()
        self._ready.clear()
        self._open.clear()
        self._received = self._acknowledged
        self._is_done = self._timed_out = self._is_inside = False

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
            self._patience.restart()
        except flight.FlightUnavailableError as error:
            if self._call is not None:
                self._patience.restart()
            self.close()
            self._patience.require(error)
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

    def _take(self, item: StoredBatch | Mapping[str, Any]) -> None:
        if isinstance(item, StoredBatch):
            self._received = item.number if item.is_last else self._received
            self._ready.append(item)
        elif "acknowledged" in item:
            self._acknowledged = item["acknowledged"]
        elif "end" in item:
            self._is_done = bool(item["end"].get("done"))
            self._timed_out = _has_waited(item, self._ticket, self._asked_at)
            if item["end"].get("timed_out"):
                self.close()
            elif not self._is_done and self._call is not None:
                self._call.finish()


class _Call:
    """One session with a service. ``hello``: what it said first."""

    def __init__(self, server: _Server, ticket: Mapping[str, Any]) -> None:
        self._client = server.connect()
        self._ticket = ticket
        self._received: _Received | None = None
        self._said: deque[StoredBatch | Mapping[str, Any]] = deque()
        requested_command = flight.FlightDescriptor.for_command(json.dumps(ticket))
        self._out, self._stream = self._client.do_exchange(requested_command, server.options)
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
        """Return the next whole batch, the next piece of one, or another message of the service."""
        while not self._said:
            chunk = self._chunk()
            if self._received is None:
                self._received = _Received(self._stream.schema, self._ticket, acknowledge)
            self._said.extend(self._received.put(chunk))
        return self._said.popleft()

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


class _Received:
    """What a stream sent, put together: whole batches, or the pieces of them that the ticket asks for.

    A piece is held until the next thing comes, which says whether it was the last one of its batch.
    """

    def __init__(
        self, schema: pa.Schema, ticket: Mapping[str, Any], acknowledge: Callable[[int], None] | None = None
    ) -> None:
        self._schema = schema
        self._in_pieces = bool({"piece_rows", "piece_bytes"} & ticket.keys())
        self._acknowledge = acknowledge
        self._held: list[pa.RecordBatch] = []
        self._piece = 1
        self._is_reset = False

    def put(self, chunk: flight.FlightStreamChunk) -> Iterator[StoredBatch | Mapping[str, Any]]:
        """Yield what is complete with ``chunk``: batches or pieces, and messages that are about something else."""
        if chunk.app_metadata is None or not chunk.app_metadata.size:
            if self._held and self._in_pieces:
                number = self._held[0].column("_batch")[0].as_py()
                yield self._made(
                    {"batch": number, "position": "", "commit_time_us": 0, "statements": ()}, is_last=False
                )
            self._held.append(chunk.data)
            return
        message: Mapping[str, Any] = json.loads(chunk.app_metadata.to_pybytes())
        if "reset" in message:
            self._is_reset = True
        elif "batch" in message:
            yield self._made(message, is_last=True)
        else:
            yield message

    def _made(self, message: Mapping[str, Any], *, is_last: bool) -> StoredBatch:
        rows = pa.Table.from_batches(self._held, schema=self._schema)
        batch = StoredBatch(
            message["batch"], rows, message["position"], message["commit_time_us"], tuple(message["statements"]),
            self._piece == 1 and (self._is_reset or message.get("snapshot", False)), self._piece, is_last,
            self._acknowledge,
        )  # fmt: skip
        self._held, self._piece = [], 1 if is_last else self._piece + 1
        self._is_reset = self._is_reset and not is_last
        return batch


def _moved_at(error: flight.FlightError) -> int | None:
    """Return the batch from which the columns differ; None for another error."""
    details = _said_of(error)
    return int(details["batch"]) if details.get("error") == "SchemaMoved" else None


def _said_of(error: flight.FlightError) -> Mapping[str, Any]:
    """Return what an error says for programs (the JSON in its ``extra_info``)."""
    try:
        details: Mapping[str, Any] = json.loads(error.extra_info or b"{}")
    except ValueError:
        return {}
    return details


__all__ = ["StoredBatch", "Subscription", "subscribe"]
