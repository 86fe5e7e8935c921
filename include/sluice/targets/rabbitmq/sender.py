"""The messages of a batch on their way: to an exchange, or to streams under publishing ids that the server takes
once.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.errors import LoadError, MappingError
from sluice.model.tables import TableId
from sluice.targets.port import Fence
from sluice.targets.rabbitmq.checkpoint import begin, guarded, why_lost
from sluice.targets.rabbitmq.client import AmqpClient, Outgoing, connected
from sluice.targets.rabbitmq.place import Place
from sluice.targets.rabbitmq.stream_client import Numbered, StreamClient, stream_connected

_BINARY = pa.large_binary()
_PROPERTIES, _APPLICATION_PROPERTIES, _DATA = b"\x00\x53\x73\xd0", b"\x00\x53\x74\xd1", b"\x00\x53\x75\xb0"
_NULL = b"\x40"
_SHORT = 256
"""Bytes of a text from which its size has four bytes."""


def encoded(ids: pa.Array, content_types: pa.Array, headers: Mapping[str, pa.Array], values: pa.Array) -> pa.Array:
    """Return the bytes of messages (AMQP 1.0): the sections properties, application-properties and data.

    All are large_binary; a header that is null is left out.
    """
    id_parts, id_sizes = _sized(ids, b"\xa1", b"\xb1")
    type_parts, type_sizes = _sized(content_types, b"\xa3", b"\xb3")
    named: list[pa.Array | bytes] = []
    sizes, words = np.zeros(len(ids), np.int64), np.zeros(len(ids), np.int64)
    for name, texts in headers.items():
        own, valid = b"\xa1" + bytes([len(name)]) + name.encode(), texts.is_valid()
        parts, text_sizes = _sized(texts, b"\xa1", b"\xb1")
        named += [
            pc.if_else(valid, pa.scalar(own, _BINARY), pa.scalar(None, _BINARY)) if texts.null_count else own,
            *parts,
        ]
        has = valid.to_numpy(zero_copy_only=False)
        sizes, words = sizes + has * (len(own) + text_sizes), words + 2 * has
    # message-id, user-id, to, subject, reply-to, correlation-id, content-type; a size counts the bytes after itself
    parts = [
        _PROPERTIES, _bytes_of(id_sizes + 5 + type_sizes + 4), struct.pack(">I", 7), *id_parts, _NULL * 5, *type_parts,
        _APPLICATION_PROPERTIES, _bytes_of(sizes + 4), _bytes_of(words), *named,
        _DATA, _bytes_of(_lengths(values)), values,
    ]  # fmt: skip
    arrays = [pa.scalar(part, _BINARY) if isinstance(part, bytes) else part for part in parts]
    return pc.binary_join_element_wise(*arrays, pa.scalar(b"", _BINARY), null_handling="skip")


def _lengths(values: pa.Array) -> np.ndarray[Any, Any]:
    lengths: np.ndarray[Any, Any] = pc.fill_null(pc.binary_length(values), 0).to_numpy()
    return lengths


def _bytes_of(numbers: np.ndarray[Any, Any]) -> pa.Array:
    data = numbers.astype(">u4")
    return pa.Array.from_buffers(pa.binary(4), len(data), [None, pa.py_buffer(data)]).cast(_BINARY)


def _sized(texts: pa.Array, short: bytes, long: bytes) -> tuple[list[pa.Array], np.ndarray[Any, Any]]:
    """Return what stands before each text (its type, and its size in one byte or four), the texts, and the bytes of
    both.
    """
    lengths = _lengths(texts)
    is_long, whole = lengths >= _SHORT, _bytes_of(lengths)
    code = pc.if_else(pa.array(is_long), pa.scalar(long, _BINARY), pa.scalar(short, _BINARY))
    heads = [code, pc.if_else(pa.array(is_long), whole, pc.binary_slice(whole, 3, 4))]
    if texts.null_count:
        heads = [pc.if_else(texts.is_valid(), head, pa.scalar(None, _BINARY)) for head in heads]
    return [*heads, texts], lengths + np.where(is_long, 5, 2)


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
        routes: dict[str, list[Numbered]] = {}
        for message in messages:
            routes.setdefault(message.route, []).append((self.slot << 32 | message.number + 1, message.value))
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
