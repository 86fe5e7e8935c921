"""The ``options:`` of a target of type kafka."""

from __future__ import annotations

import re
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from sluice.config.pipeline import Span
from sluice.config.rights import Refers
from sluice.formats import ENCODINGS, KnownFormat
from sluice.model.tables import TableId
from sluice.targets.messages.form import UNAVAILABLE, MessageForm
from sluice.targets.options import TableName
from sluice.targets.templates import fields_of, listed, require_known

Setting = str | int | float | bool
OURS = frozenset({
    "bootstrap.servers", "transactional.id", "transaction.timeout.ms", "enable.idempotence", "acks",
    "request.required.acks", "isolation.level",
    "compression.type", "compression.codec", "message.max.bytes", "partitioner", "max.in.flight",
    "max.in.flight.requests.per.connection",
    "retries", "message.send.max.retries", "delivery.timeout.ms", "message.timeout.ms", "enable.gapless.guarantee",
    "queue.buffering.max.messages", "queue.buffering.max.kbytes", "queue.buffering.max.ms",
    "delivery.report.only.error",
})  # fmt: skip
"""Settings of the client on which the guarantee rests, or that have their own option."""
_CONNECTIONS = re.compile(
    r"metadata\.broker\.list|plugin\.|ssl\.|sasl\.|https?\.|security\.|enable\.(ssl|sasl)\.|schema\.registry\."
)
"""Settings that name servers, logins, files or code: the connection has them."""


class Partitioning(StrEnum):
    """The choice of the partition of a message."""

    KEY = "key"
    COLUMNS = "columns"
    TABLE = "table"
    GLOBAL = "global"


class Subjects(StrEnum):
    """The name under which a schema is registered: the strategies of Confluent's serializers."""

    TOPIC = "topic"
    RECORD = "record"
    TOPIC_RECORD = "topic_record"


class MissingTopics(BaseModel):
    """The creation of topics."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    when: Literal["check", "needed"] = Field(
        "check",
        description="check: `sluice check --apply` makes missing topics, and a load stops where one is missing; "
        "needed: a load makes them, too.",
    )
    partitions: int = Field(1, ge=1, le=100_000, description="Partitions of a topic.")
    replication: int = Field(-1, ge=-1, le=32_767, description="Replicas; -1: the broker's default.")
    config: Annotated[dict[str, str], Refers.NOTHING] = Field(
        default_factory=dict, description="Settings of the topic, such as cleanup.policy: compact."
    )


class KafkaOptions(BaseModel):
    """The ``options:`` of a target of type kafka."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    topic: str = Field(
        "{schema}.{table}",
        min_length=1,
        description="Name of a table's topic. {schema}, {table}: of the target table; {pipeline}, {target}: names.",
    )
    format: Annotated[str, Refers.FORMAT, KnownFormat(ENCODINGS)] = Field(
        "debezium-json",
        description="What a message says: as Debezium, canal (flat messages) or Maxwell; cloudevents-json: "
        "CloudEvents with Debezium's rows. "
        "debezium-avro, debezium-protobuf: with the schema registry that schema.registry.url in the connection's "
        "extra names. arrow: an Arrow IPC stream with some rows of one table, without a key.",
    )
    schemas: bool = Field(
        False,
        description="Each key and document of debezium-json has its schema in it, for Kafka Connect's JsonConverter "
        "with schemas.enable. A BIGINT UNSIGNED is a Decimal then.",
    )
    subjects: Subjects = Field(
        Subjects.TOPIC,
        description="What a schema is registered as: TOPIC-key and TOPIC-value; the name of its record; or both, "
        "TOPIC-RECORD.",
    )
    register_schemas: bool = Field(
        True,
        description="With a schema registry: register schemas that are missing. false: a load stops where one is "
        "missing.",
    )
    unavailable_value_placeholder: str = Field(
        UNAVAILABLE,
        description="schemas, debezium-avro and debezium-protobuf, with changes: all: what stands for a text, JSON or "
        "bytes that the log does not have after an update, as Debezium's option of this name; a column of another type "
        "stops the load.",
    )
    partitioning: Partitioning = Field(
        Partitioning.KEY,
        description="key: hash of the message key, as Kafka's own producers; columns: hash of partition_columns; "
        "table: one partition a table; global: one partition for all, in the order of the log.",
    )
    partition_columns: dict[TableName, tuple[str, ...]] = Field(
        default_factory=dict, description="partitioning: columns: schema.table of the target, and its columns."
    )
    key_columns: dict[TableName, tuple[str, ...]] = Field(
        default_factory=dict,
        description="schema.table of the target, and the columns of its message key. Default: the primary key.",
    )
    tombstones: bool = Field(
        True,
        description="changes: latest: a delete is a message without a value; changes: all: such a message follows "
        "each delete. false: a delete is a document alone.",
    )
    headers: bool = Field(True, description="Messages have headers: batch, change, position, GTID, origin.")
    create_topics: MissingTopics = Field(default_factory=MissingTopics, description="How missing topics are made.")
    transaction_topic: str = Field(
        "",
        description="Topic for an event at the begin and one at the end of each transaction, as Debezium's "
        "provide.transaction.metadata has "
        "them; documents then say their place in it. For the debezium formats, with changes: all. {pipeline}, "
        "{target}: names.",
    )
    schema_topic: str = Field(
        "",
        description="Topic for statements that change definitions: Debezium's schema changes, and the DDL documents "
        "of canal and Maxwell. {pipeline}, {target}: names.",
    )
    max_message_bytes: int = Field(
        1_000_000,
        ge=1_000,
        le=1_000_000_000,
        description="Largest message, key and value together, before compression. A larger one is refused: see "
        "on_error.",
    )
    partitions_changed: Literal["stop", "accept"] = Field(
        "stop", description="Where a topic has another number of partitions than before, so that keys would move."
    )
    ack_topic: str = Field(
        "_sluice_ack.{pipeline}.{target}",
        description="Compacted topic of this target's own, which says what it holds. {pipeline} and {target} must be "
        "in it.",
    )
    transaction_timeout: Annotated[Span, Field(ge=timedelta(seconds=1), le=timedelta(hours=24))] = Field(
        timedelta(minutes=5),
        description="After this the broker gives a batch up. At most its transaction.max.timeout.ms.",
    )
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = Field("lz4", description="Of messages.")
    producer: Annotated[dict[str, Setting], Refers.CODE] = Field(
        default_factory=dict, description="Further settings of the client (librdkafka), such as linger.ms."
    )

    @model_validator(mode="after")
    def _fits(self) -> KafkaOptions:
        for name, template, needed in (
            ("topic", self.topic, ()),
            ("ack_topic", self.ack_topic, ("pipeline", "target")),
            ("transaction_topic", self.transaction_topic, ()),
            ("schema_topic", self.schema_topic, ()),
        ):
            names = {"pipeline", "target", *(("schema", "table") if name == "topic" else ())}
            if not set(needed) <= require_known(name, template, names):
                raise ValueError(f"{name} must have {listed(needed)} in it: each target has a topic of its own")
        single_topic = not fields_of("topic", self.topic) & {"schema", "table"}
        if self.partitioning is Partitioning.GLOBAL and not single_topic:
            raise ValueError(
                "partitioning: global needs one topic for all tables: leave {schema} and {table} out of topic"
            )
        if self.form.arrow and (self.schema_topic or self.key_columns):
            raise ValueError(
                "format: arrow has no keys and no documents of statements: leave out key_columns and schema_topic"
            )
        if self.form.arrow and self.partitioning not in {Partitioning.TABLE, Partitioning.GLOBAL}:
            raise ValueError("format: arrow has many rows in a message: write partitioning: table, or global")
        if self.transaction_topic and not self.form.debezium:
            raise ValueError("transaction_topic goes with the debezium formats and cloudevents-json")
        if self.schemas and self.format != "debezium-json":
            raise ValueError("schemas goes with format: debezium-json")
        if self.form.registered and single_topic and self.subjects is Subjects.TOPIC:
            raise ValueError(
                "subjects: topic has one schema a topic, and topic is one for all tables: write subjects: topic_record"
            )
        if (self.partitioning is Partitioning.COLUMNS) != bool(self.partition_columns):
            raise ValueError("partition_columns goes with partitioning: columns")
        reserved = sorted(OURS & {name.lower() for name in self.producer})
        if reserved:
            raise ValueError(f"producer: {reserved[0]} is set by Sluice")
        for name in self.producer:
            if _CONNECTIONS.match(name.lower()):
                raise ValueError(
                    f"producer: {name} is a setting of the server or the login: write it into the connection's extra"
                )
        return self

    @property
    def form(self) -> MessageForm:
        """The form of messages."""
        by = {
            Partitioning.KEY: None,
            Partitioning.COLUMNS: self.partition_columns,
            Partitioning.TABLE: {},
            Partitioning.GLOBAL: {},
        }
        return MessageForm(
            format=self.format,
            schemas=self.schemas,
            tombstones=self.tombstones,
            headers=self.headers,
            key_columns=self.key_columns,
            order_columns=by[self.partitioning],
            unavailable_value_placeholder=self.unavailable_value_placeholder,
        )

    @property
    def of_one_table(self) -> bool:
        """True if a topic has the rows of one table alone, as far as its name says."""
        return {"schema", "table"} <= fields_of("topic", self.topic)

    def topic_of(self, table: TableId, pipeline: str, target: str) -> str:
        """Return the name of the topic; characters that Kafka does not accept become _, as in Debezium."""
        filled = self.topic.format(schema=table.schema, table=table.table, pipeline=pipeline, target=target)
        return _legal(filled)

    def side_topics_of(self, pipeline: str, target: str) -> dict[str, str]:
        """Return the topics that hold no rows, by option."""
        templates = {"transaction_topic": self.transaction_topic, "schema_topic": self.schema_topic}
        return {
            name: _legal(template.format(pipeline=pipeline, target=target))
            for name, template in templates.items()
            if template
        }

    def ack_topic_of(self, pipeline: str, target: str) -> str:
        """Return the name of the topic with the checkpoint."""
        return _legal(self.ack_topic.format(pipeline=pipeline, target=target))


def _legal(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)[:249]


__all__ = ["OURS", "KafkaOptions", "MissingTopics", "Partitioning", "Subjects"]
