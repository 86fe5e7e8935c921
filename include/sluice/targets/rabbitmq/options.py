"""The ``options:`` of a target of type rabbitmq."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from sluice.config.pipeline import Span
from sluice.formats import MessageFormat
from sluice.targets.messages.form import UNAVAILABLE, MessageForm
from sluice.targets.templates import fields_of, listed, require_known

NAMES = frozenset({"schema", "table", "pipeline", "target"})
"""Words in braces that a template can name."""
_MEBIBYTE = 1 << 20


class SendTo(StrEnum):
    """The place that messages are published to."""

    QUEUES = "queues"
    """An exchange, by AMQP 0.9.1."""
    STREAMS = "streams"
    """Streams, by their own protocol."""


class RabbitMQOptions(BaseModel):
    """The ``options:`` of a target of type rabbitmq."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    send_to: SendTo = Field(
        SendTo.QUEUES,
        description="queues: an exchange, and through it queues, at least once; streams: streams, exactly once.",
    )
    exchange: str = Field(
        "",
        max_length=255,
        description="send_to: queues: the exchange. {schema}, {table}: of the target table; {pipeline}, {target}: "
        "names. Default: the default exchange, so that routing_key is the name of a queue.",
    )
    routing_key: str = Field(
        "{schema}.{table}",
        description="send_to: queues: the routing key, with the same words in braces.",
    )
    stream: str = Field(
        "{schema}.{table}",
        min_length=1,
        description="send_to: streams: the name of the stream, with the same words. Without {schema} and {table} one "
        "stream has all changes in the order of the log.",
    )
    ack_stream: str = Field(
        "_sluice_ack.{pipeline}.{target}",
        description="send_to: streams: the stream of this target's own with its checkpoint. {pipeline} and {target} "
        "must be in it.",
    )
    format: MessageFormat = Field("debezium-json", description="What a message says, see docs/formats.md.")
    schemas: bool = Field(False, description="debezium-json: each document has its schema in it.")
    unavailable_value_placeholder: str = Field(
        UNAVAILABLE,
        description="schemas, with changes: all: what stands for a text, JSON or bytes that the log does not have "
        "after an update, as Debezium's option of this name; a column of another type stops the load.",
    )
    transactions: str = Field(
        "",
        description="changes: all: routing key, or stream, of the messages that say where transactions of the source "
        "begin and end. Default: none.",
    )
    statements: str = Field(
        "", description="Routing key, or stream, of a message for each DDL statement. Default: none are sent."
    )
    create: Literal["check", "needed"] = Field(
        "check",
        description="check: `sluice check --apply` makes missing quorum queues, exchanges and streams, and a load "
        "stops where one is missing; needed: a load makes them, too.",
    )
    unroutable: Literal["refuse", "discard"] = Field(
        "refuse",
        description="send_to: queues: a message for which the exchange has no queue. refuse: as on_error says; "
        "discard: the server drops it.",
    )
    max_message_bytes: int = Field(
        16 * _MEBIBYTE,
        ge=1_000,
        le=512 * _MEBIBYTE,
        description="Largest document. A larger one is refused: see on_error. The server's max_message_size must not "
        "be smaller; with send_to: streams the frame that the server offers is a limit, too.",
    )
    confirm_window: int = Field(
        2_000, ge=1, le=50_000, description="Messages that are published before the server confirms the first of them."
    )
    timeout: Annotated[Span, Field(ge=timedelta(seconds=1), le=timedelta(minutes=30))] = Field(
        timedelta(seconds=30), description="For each answer of the server, and for the next confirm."
    )
    room_timeout: Annotated[Span, Field(ge=timedelta(seconds=1), le=timedelta(hours=24))] = Field(
        timedelta(hours=1),
        description="send_to: queues: how long a message that a full queue refuses (overflow: reject-publish) is sent "
        "again, before the batch fails and is sent from its beginning.",
    )

    @model_validator(mode="after")
    def _fits(self) -> RabbitMQOptions:
        for name in ("exchange", "routing_key", "stream"):
            require_known(name, getattr(self, name), NAMES)
        for name in ("transactions", "statements", "ack_stream"):
            fields = require_known(name, getattr(self, name), {"pipeline", "target"})
            if name == "ack_stream" and len(fields) < 2:
                raise ValueError(
                    f"ack_stream must have {listed({'pipeline', 'target'})} in it: each target has a stream of its own"
                )
        if self.schemas and self.format != "debezium-json":
            raise ValueError("schemas goes with format: debezium-json")
        if self.transactions and not self.form.debezium:
            raise ValueError("transactions goes with the formats debezium-json and cloudevents-json")
        set_names = self.model_fields_set
        others = (
            {"stream", "ack_stream"} if not self.streams else {"exchange", "routing_key", "unroutable", "room_timeout"}
        )
        if others & set_names:
            raise ValueError(f"{min(others & set_names)} goes with send_to: {'queues' if self.streams else 'streams'}")
        if not self.streams and not self.exchange and not self.routing_key:
            raise ValueError("the default exchange needs a routing_key: the name of a queue")
        return self

    @property
    def streams(self) -> bool:
        """True if messages go to streams."""
        return self.send_to is SendTo.STREAMS

    @property
    def in_one(self) -> bool:
        """True if one stream, one queue or one exchange gets every table, so that the order of all of them can be
        seen.
        """
        if self.streams:
            return not fields_of("stream", self.stream) & {"schema", "table"}
        named = fields_of("exchange", self.exchange)
        if not self.exchange:
            named = fields_of("routing_key", self.routing_key)
        return not named & {"schema", "table"}

    @property
    def form(self) -> MessageForm:
        """The form of messages. A delete is a document, as an empty message says nothing here."""
        return MessageForm(
            format=self.format,
            schemas=self.schemas,
            tombstones=False,
            order_columns={},
            unavailable_value_placeholder=self.unavailable_value_placeholder,
        )


__all__ = ["NAMES", "RabbitMQOptions", "SendTo"]
