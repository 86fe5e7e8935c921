"""The form of messages: what a document says, and what goes with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sluice.model.tables import TableId

UNAVAILABLE = "__debezium_unavailable_value"
"""The default of Debezium's unavailable.value.placeholder."""


@dataclass(frozen=True, slots=True)
class MessageForm:
    """The form of a target's messages, as its options say.

    Attributes:
        format: a name that :func:`sluice.formats.named` knows, or one of :data:`sluice.formats.ENCODINGS`.
        schemas: each key and document of debezium-json has its schema in it.
        tombstones: merged rows: a delete is a message without a value; changes: such a message follows each delete.
        headers: messages have headers.
        key_columns: table of the target -> columns of its message key, where these are not the primary key.
        order_columns: table of the target -> columns by whose values messages stay in order, others by their table;
            None: by the message's key.
        unavailable_value_placeholder: what a document with a schema has for a text that the log lacks.
    """

    format: str = "debezium-json"
    schemas: bool = False
    tombstones: bool = True
    headers: bool = True
    key_columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    order_columns: Mapping[str, tuple[str, ...]] | None = None
    unavailable_value_placeholder: str = UNAVAILABLE

    @property
    def enveloped(self) -> bool:
        """True if messages are Debezium's envelopes, whatever they are encoded in."""
        return self.registered or self.format == "debezium-json"

    @property
    def debezium(self) -> bool:
        """True if messages have the contents of Debezium's."""
        return self.enveloped or self.format == "cloudevents-json"

    @property
    def keys_are_alike(self) -> bool:
        """True if messages of two tables may have the same key."""
        return self.format not in {"maxwell-json", "arrow"}

    @property
    def arrow(self) -> bool:
        """True if messages are record batches, without keys."""
        return self.format == "arrow"

    @property
    def registered(self) -> bool:
        """True if messages are binary, with schemas in a registry."""
        return self.format in {"debezium-avro", "debezium-protobuf"}

    @property
    def has_schemas(self) -> bool:
        """True if each message has a schema, in it or in a registry."""
        return self.schemas or self.registered

    def ordered_by(self, table: TableId) -> tuple[str, ...] | None:
        """Return the columns by whose values messages stay in order; None: by the message's key; (): by the table."""
        return None if self.order_columns is None else self.order_columns.get(str(table), ())
