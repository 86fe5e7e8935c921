"""The messages of a batch on their way: to an exchange, or to streams under publishing ids that the server takes
once.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from sluice.errors import LoadError, MappingError
from sluice.model.tables import TableId
from sluice.targets.port import Fence
from sluice.targets.rabbitmq.checkpoint import begin, guarded, why_lost
from sluice.targets.rabbitmq.client import AmqpClient, Outgoing, connected
from sluice.targets.rabbitmq.place import Place
from sluice.targets.rabbitmq.stream_client import StreamClient, stream_connected

_PROPERTIES, _APPLICATION_PROPERTIES, _DATA = b"\x00\x53\x73", b"\x00\x53\x74", b"\x00\x53\x75"
_NULL = b"\x40"


def encoded(message_id: str, content_type: str, headers: Mapping[str, str], value: bytes) -> bytes:
    """Return the bytes of a message: the sections properties, application-properties and data."""
    # message-id, user-id, to, subject, reply-to, correlation-id, content-type
    fields = _text(message_id) + _NULL * 5 + _symbol(content_type)
    named = b"".join(_text(name) + _text(header) for name, header in headers.items())
    return b"".join((
        _PROPERTIES, _compound(b"\xd0", 7, fields), _APPLICATION_PROPERTIES,
        _compound(b"\xd1", 2 * len(headers), named), _DATA,
        b"\xb0", struct.pack(">I", len(value)), value,
    ))  # fmt: skip


def _compound(code: bytes, count: int, content: bytes) -> bytes:
    """Return a list or map whose size counts the bytes after itself."""
    return code + struct.pack(">II", len(content) + 4, count) + content


def _text(text: str) -> bytes:
    data = text.encode()
    return b"\xa1" + bytes([len(data)]) + data if len(data) < 256 else b"\xb1" + struct.pack(">I", len(data)) + data


def _symbol(text: str) -> bytes:
    data = text.encode("ascii")
    return b"\xa3" + bytes([len(data)]) + data


QUEUE_TYPE, EXCHANGE_TYPE = "quorum", "topic"
_MOST = 1 << 32


class Channel(Protocol):
    """Takes messages in order."""

    @property
    def routes(self) -> set[str]:
        """The streams that it took messages for."""

    def largest(self, route: str) -> int:
        """Return the most bytes of a message with its headers; 0: no limit of its own."""

    def send(self, messages: Sequence[Outgoing]) -> list[tuple[Outgoing, str]]:
        """Send messages, and return those that no queue got, and why."""

    def finish(self) -> None:
        """Wait until the server has everything."""


@dataclass(frozen=True)
class QueueChannel:
    """Publishes to an exchange."""

    client: AmqpClient
    routes: set[str] = field(default_factory=set)

    def largest(self, route: str) -> int:
        """See :class:`Channel`."""
        return 0

    def send(self, messages: Sequence[Outgoing]) -> list[tuple[Outgoing, str]]:
        """See :class:`Channel`."""
        for message in messages:
            self.client.publish(message)
        return self.client.flush()

    def finish(self) -> None:
        """See :class:`Channel`: each part was confirmed."""


@dataclass(frozen=True)
class StreamChannel:
    """Publishes to streams. ``slot``: the upper half of the publishing ids."""

    client: StreamClient
    publisher: str
    slot: int
    routes: set[str] = field(default_factory=set)

    def largest(self, route: str) -> int:
        """See :class:`Channel`."""
        return self.client.frame_bytes(route)

    def send(self, messages: Sequence[Outgoing]) -> list[tuple[Outgoing, str]]:
        """See :class:`Channel`: a stream takes every message, or the batch fails."""
        if messages and messages[-1].number + 1 >= _MOST:
            raise LoadError(f"a batch has more than {_MOST - 1:,} messages", where=messages[-1].route)
        routes: dict[str, list[tuple[int, bytes]]] = {}
        for message in messages:
            encoded_message = encoded(message.id, message.content_type, message.headers, message.value)
            routes.setdefault(message.route, []).append((self.slot << 32 | message.number + 1, encoded_message))
        self.routes.update(routes)
        for route, numbered in routes.items():
            self.client.publish(route, self.publisher, numbered)
        return []

    def finish(self) -> None:
        """See :class:`Channel`."""
        self.client.flush()


@contextmanager
def opened(place: Place, fence: Fence, tables: Sequence[TableId], contents: str, replay: str) -> Iterator[Channel]:
    """Open the way of a batch, once everything that it goes to is there. Raises Fenced, MappingError.

    ``contents``: a name of the batch's rows. ``replay``: of a dead letter, whose rows have a publisher of their own.
    """
    doing = f"sending batch {fence.batch} to {place.owner}"
    if not place.options.streams:
        with connected(place, doing) as client:
            _require_there(place, client, tables)
            yield QueueChannel(client)
        return
    with stream_connected(place, doing) as streams:
        record = guarded(streams, place, fence)
        publisher = place.publisher(replay)
        routes = [*dict.fromkeys([*map(place.route_of, tables), *place.side_routes().values()])]
        for route in routes:
            if (lost := why_lost(streams, place, record, route)) is not None:
                raise lost
        newest = max((_last_id(place, streams, route, publisher) for route in routes), default=0)
        slot = 0 if replay else begin(streams, place, fence, contents, newest)
        yield StreamChannel(streams, publisher, slot)
        streams.flush()


def wanted(place: Place, tables: Sequence[TableId]) -> dict[tuple[str, str], TableId | None]:
    """Return what has to be there, as (queue, exchange or stream; name), with the table that needs it; None: messages
    that are no rows.
    """
    needed: dict[tuple[str, str], TableId | None] = {}
    for table in [*tables, None]:
        if place.options.streams:
            names = [place.route_of(table)] if table is not None else [*place.side_routes().values()]
            needed |= {("stream", name): table for name in names if ("stream", name) not in needed}
            continue
        exchange = place.exchange_of(table) if table is not None or place.side_routes() else None
        if exchange:
            needed.setdefault(("exchange", exchange), table)
        elif exchange == "":
            names = [place.route_of(table)] if table is not None else [*place.side_routes().values()]
            needed |= {("queue", name): table for name in names if ("queue", name) not in needed}
    return needed


def _require_there(place: Place, client: AmqpClient, tables: Sequence[TableId]) -> None:
    for (what, name), table in wanted(place, tables).items():
        if client.exists(what, name):
            continue
        if place.options.create != "needed":
            raise absent(place, what, name, table)
        client.declare(what, name, QUEUE_TYPE if what == "queue" else EXCHANGE_TYPE)


def _last_id(place: Place, client: StreamClient, stream: str, publisher: str) -> int:
    if not client.exists(stream):
        if place.options.create != "needed":
            raise absent(place, "stream", stream, None)
        client.create(stream)
    return client.last_id(stream, publisher)


def absent(place: Place, what: str, name: str, table: TableId | None) -> MappingError:
    """Return the error that a queue, exchange or stream is missing."""
    of_table = f" for {table}" if table is not None else ""
    return MappingError(
        f"the {what} {name}{of_table} is not there",
        where=f"{place.owner} at {place.address}",
        hint=f"`sluice check {place.pipeline} --apply` makes it; options.create: needed lets a load make it",
    )


def name_of(parts: Sequence[str]) -> str:
    """Return a short name of contents: other contents have another one."""
    return f"{zlib.crc32(chr(10).join(parts).encode()):08x}"


__all__ = ["EXCHANGE_TYPE", "QUEUE_TYPE", "Channel", "absent", "name_of", "opened", "wanted"]
