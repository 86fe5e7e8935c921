"""The bytes of keys and documents: as they are, with their schema as JSON, or encoded with the number of a registered
schema.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import pyarrow as pa

from sluice.formats.binary import Notation, encoded
from sluice.formats.columns import PlacesInTransaction, Rows, joined
from sluice.formats.connect import Schema
from sluice.model.tables import TableId


class Envelope:
    """Converts texts of keys and documents to the bytes of messages: as they are."""

    def key(self, text: str) -> bytes:
        """Return the bytes of a key."""
        return text.encode()

    def value(self, text: str) -> bytes:
        """Return the bytes of a document."""
        return text.encode()

    def keys(self, rows: Rows, names: Sequence[str]) -> pa.Array:
        """Return the keys of rows."""
        return rows.keys("debezium-json", names)

    def values(self, rows: Rows, source: str, places: PlacesInTransaction | None) -> pa.Array:
        """Return the documents of rows."""
        return rows.documents(source, places)


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

    def keys(self, rows: Rows, names: Sequence[str]) -> pa.Array:
        """See :class:`Envelope`."""
        return joined(f'{{"schema":{self.key_schema},"payload":', rows.keys("debezium-json", names), "}")

    def values(self, rows: Rows, source: str, places: PlacesInTransaction | None) -> pa.Array:
        """See :class:`Envelope`."""
        return joined(f'{{"schema":{self.value_schema},"payload":', rows.documents(source, places), "}")


class Encoder(Protocol):
    """Encodes documents in a binary format.

    Attributes:
        schema: its text; name: full name of the record or message; struct: the schema of Kafka Connect.
    """

    schema: str
    name: str
    struct: Schema
    notation: ClassVar[Notation]

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

    def keys(self, rows: Rows, names: Sequence[str]) -> pa.Array:
        """See :class:`Envelope`."""
        assert self.keyed is not None
        return _encoded(self.keyed, rows, rows.plain(names), lambda: rows.keys("debezium-json", names))

    def values(self, rows: Rows, source: str, places: PlacesInTransaction | None) -> pa.Array:
        """See :class:`Envelope`."""
        document = rows.plain_documents(source, places)
        return _encoded(self.valued, rows, document, lambda: rows.documents(source, places))


def _encoded(
    by: tuple[bytes, Encoder], rows: Rows, document: Mapping[str, Any], texts: Callable[[], pa.Array]
) -> pa.Array:
    head, encoder = by
    messages = encoded(encoder.struct, encoder.notation, head, rows.rows.num_rows, document)
    if messages is None:
        messages = pa.array([head + encoder.encode(text) for text in texts().to_pylist()], pa.large_binary())
    return messages


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
