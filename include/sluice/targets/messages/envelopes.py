"""The bytes of keys and documents: as they are, with their schema as JSON, or encoded with the number of a registered
schema.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from sluice.formats import columns
from sluice.model.tables import TableId


class Envelope:
    """Converts texts of keys and documents to the bytes of messages: as they are."""

    def key(self, text: str) -> bytes:
        """Return the bytes of a key."""
        return text.encode()

    def value(self, text: str) -> bytes:
        """Return the bytes of a document."""
        return text.encode()

    def keys(self, texts: pa.Array) -> pa.Array:
        """Return the bytes of many keys."""
        return texts

    def values(self, texts: pa.Array) -> pa.Array:
        """Return the bytes of many documents."""
        return texts


@dataclass(frozen=True, slots=True)
class WithSchemas(Envelope):
    """Wraps each key and document with its schema, as JSON. ``key_schema``: "" for messages without keys."""

    key_schema: str
    value_schema: str

    def key(self, text: str) -> bytes:
        """See :class:`Envelope`."""
        return f'{{"schema":{self.key_schema},"payload":{text}}}'.encode()

    def value(self, text: str) -> bytes:
        """See :class:`Envelope`."""
        return f'{{"schema":{self.value_schema},"payload":{text}}}'.encode()

    def keys(self, texts: pa.Array) -> pa.Array:
        """See :class:`Envelope`."""
        return columns.joined(f'{{"schema":{self.key_schema},"payload":', texts, "}")

    def values(self, texts: pa.Array) -> pa.Array:
        """See :class:`Envelope`."""
        return columns.joined(f'{{"schema":{self.value_schema},"payload":', texts, "}")


class Encoder(Protocol):
    """Encodes documents in a binary format. ``schema``: its text; ``name``: full name of the record or message."""

    schema: str
    name: str

    def encode(self, document: str) -> bytes:
        """Encode a document without any header."""


@dataclass(frozen=True, slots=True)
class Registered(Envelope):
    """Encodes in Avro or Protobuf, each after its schema's number, as Confluent's serializers do.

    ``keyed``: None for messages without keys.
    """

    keyed: tuple[bytes, Encoder] | None
    valued: tuple[bytes, Encoder]

    def key(self, text: str) -> bytes:
        """See :class:`Envelope`."""
        assert self.keyed is not None
        head, encoder = self.keyed
        return head + encoder.encode(text)

    def value(self, text: str) -> bytes:
        """See :class:`Envelope`."""
        head, encoder = self.valued
        return head + encoder.encode(text)

    def keys(self, texts: pa.Array) -> pa.Array:
        """See :class:`Envelope`."""
        return pa.array(map(self.key, texts.to_pylist()), pa.large_binary())

    def values(self, texts: pa.Array) -> pa.Array:
        """See :class:`Envelope`."""
        return pa.array(map(self.value, texts.to_pylist()), pa.large_binary())


class Numbers(Protocol):
    """The numbers of schemas, as a registry knows them."""

    def number_of(self, table: TableId | str, side: str, record: str, schema: str, kind: str) -> int:
        """Return the number of a schema, which is registered if the options say so.

        ``side``: key or value; ``kind``: AVRO or PROTOBUF.
        """


def encoder_of(form: str, connect_schema: str) -> tuple[Encoder, str, bytes]:
    """Return the encoder of a format, the registry's name for it, and what stands between a schema's number and a
    message.
    """
    if form == "debezium-avro":
        from sluice.formats import avro

        return avro.Encoder(connect_schema), "AVRO", b""
    from sluice.formats import protobuf

    return protobuf.Encoder(connect_schema), "PROTOBUF", b"\0"  # the first message of its file
