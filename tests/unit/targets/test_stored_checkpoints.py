"""Checkpoints as version 0.2.0 stored them in every kind of target: they are read, and written again byte by byte.

``tests/golden/checkpoints.json`` was written by the codecs of that version. A stored format never changes, see
CONTRIBUTING.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sluice.config.connections import Endpoint
from sluice.config.receiver import Receiver
from sluice.coordination.layout import CHECKPOINT
from sluice.coordination.target_checkpoints import TargetRecord
from sluice.errors import CheckpointError
from sluice.model.offset import Offset
from sluice.targets.clickhouse import checkpoint as clickhouse
from sluice.targets.clickhouse.options import ClickHouseOptions
from sluice.targets.clickhouse.place import Place as ClickHousePlace
from sluice.targets.documents import records as documents
from sluice.targets.elasticsearch import checkpoint as elasticsearch
from sluice.targets.elasticsearch.options import ElasticsearchOptions
from sluice.targets.elasticsearch.place import Place as ElasticsearchPlace
from sluice.targets.kafka import ack_topic as kafka
from sluice.targets.kafka.options import KafkaOptions
from sluice.targets.kafka.place import Place as KafkaPlace
from sluice.targets.kafka.topics import KnownTopics
from sluice.targets.lake import checkpoint as lake
from sluice.targets.mongodb import checkpoint as mongodb
from sluice.targets.mongodb.options import MongoOptions
from sluice.targets.mongodb.place import Place as MongoPlace
from sluice.targets.port import Checkpoint
from sluice.targets.postgresql.ack_table import AckTable
from sluice.targets.rabbitmq import checkpoint as rabbitmq
from sluice.targets.rabbitmq.options import RabbitMQOptions
from sluice.targets.rabbitmq.place import Place as RabbitMQPlace
from sluice.targets.redis import checkpoint as redis
from sluice.targets.redis.options import RedisOptions
from sluice.targets.redis.place import Place as RedisPlace

GOLDEN = Path(__file__).parents[2] / "golden" / "checkpoints.json"
PIPELINE, TARGET = "shop", "copy"
UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
POSITIONS = {
    "mysql": {
        "server_uuid": UUID, "file": "binlog.000042", "offset": 1234, "gtid_set": f"{UUID}:1-77",
        "commit_time_us": 1790000000123456, "prepared": "",
        "last_event": {"file": "binlog.000042", "offset": 1203, "size": 31, "checksum": 305419896, "kind": 16},
    },
    "postgresql": {
        "server_uuid": "pg/7412345678901234567", "file": "wal.1", "offset": 26843545600, "gtid_set": "",
        "commit_time_us": 1790000000000001, "prepared": "", "last_event": None,
    },
    "oldest": {"server_uuid": UUID, "file": "binlog.000042", "offset": 4},
}  # fmt: skip
CHECKPOINTS = {
    "before the first batch": Checkpoint(0, 0),
    "joined later": Checkpoint(3, 41, identity="5f0c"),
    **{f"of {name}": Checkpoint(7, 12, Offset.from_json(at), "9aé\"'\\0") for name, at in POSITIONS.items()},
}
TABLES = frozenset({"shop.orders", "shop.ünits"})
AT = 1790000000.25


@dataclass(frozen=True)
class Codec:
    """The codec of a kind: the record of a checkpoint, what is stored of it, and what is read of that."""

    record: Callable[[Checkpoint], Any]
    stored: Callable[[Any], Any]
    read: Callable[[Any], Any]


def _receiver() -> Receiver:
    return Receiver(Endpoint("web", "http", "localhost", 8123))


_ENDPOINT = Endpoint("server", "", "localhost")
_KAFKA = kafka.AckTopic(KafkaPlace(_ENDPOINT, KafkaOptions(), PIPELINE, TARGET))
_RABBITMQ = RabbitMQPlace(_ENDPOINT, RabbitMQOptions(), PIPELINE, TARGET)
_CLICKHOUSE = ClickHousePlace(_receiver(), ClickHouseOptions(), PIPELINE, TARGET)
_ELASTICSEARCH = ElasticsearchPlace(_receiver(), ElasticsearchOptions(), PIPELINE, TARGET)
_MONGODB = MongoPlace(_ENDPOINT, MongoOptions(), PIPELINE, TARGET)
_REDIS = RedisPlace(_ENDPOINT, RedisOptions(), PIPELINE, TARGET)
_LAKE = lake.LakePlace(SimpleNamespace(NAME="Delta", checkpoint_uri=str), f"{PIPELINE}/{TARGET}")
_SQL = AckTable("meta", PIPELINE, TARGET)


class _KafkaMessage:
    def __init__(self, value: str) -> None:
        self._value = value

    def value(self) -> bytes:
        return self._value.encode()

    def key(self) -> bytes:
        return _KAFKA.place.key

    def offset(self) -> int:
        return 0


def _redis_record(words: list[Any]) -> redis.RedisCheckpoint | None:
    return redis.parsed([str(word).encode() for word in words], _REDIS)


def _redis_words(record: redis.RedisCheckpoint) -> list[str]:
    return [str(word) for pair in record.to_fields(_REDIS).items() for word in pair]


class _Row:
    """A cursor whose answer is one row of the table of acknowledgements."""

    def __init__(self, row: list[Any]) -> None:
        self.row = row

    def execute(self, *_: Any) -> None:
        """Do nothing."""

    def fetchone(self) -> list[Any]:
        return self.row


def _sql_stored(held: Checkpoint) -> list[Any]:
    position = _SQL._sealed(held.batch, held.position) if held.position else None
    return [held.epoch, held.batch, position, held.identity]


CODECS = {
    "redis": Codec(
        redis.RedisCheckpoint,
        _redis_words,
        _redis_record,
    ),
    "redis after a batch": Codec(
        lambda held: redis.RedisCheckpoint(held, TABLES, AT),
        _redis_words,
        _redis_record,
    ),
    "kafka": Codec(
        lambda held: kafka.KafkaCheckpoint(
            held, KnownTopics({"shop.orders": 12, "shop.ünits": 1}), ("letter-1", "letter-2")
        ),
        lambda record: _KAFKA.record(record).decode(),
        lambda text: _KAFKA._checkpoint_of(_KafkaMessage(text)),
    ),
    "rabbitmq": Codec(
        lambda held: (rabbitmq.StreamCheckpoint(held, 12, "a1b2"), 8, "0f0f"),
        lambda record: rabbitmq.record_text(_RABBITMQ, *record).decode(),
        lambda text: rabbitmq.record_of(_RABBITMQ, text.encode()),
    ),
    "clickhouse": Codec(
        lambda held: clickhouse.Record(held, TABLES, AT, 5, (12, 3), 4),
        lambda record: record.to_text(_CLICKHOUSE),
        lambda text: clickhouse.record_of(text, _CLICKHOUSE, _CLICKHOUSE.owner),
    ),
    "elasticsearch": Codec(
        lambda held: documents.Record(held, TABLES, AT, 5, (12, 3)),
        lambda record: record.to_document(_ELASTICSEARCH),
        lambda source: elasticsearch.found_record({"_source": source}, _ELASTICSEARCH, _ELASTICSEARCH.owner),
    ),
    "mongodb": Codec(
        lambda held: documents.Record(held, TABLES, AT, 5, (12, 3)),
        lambda record: record.to_document(_MONGODB),
        lambda document: mongodb.found_record({"_id": _MONGODB.owner, **document}, _MONGODB),
    ),
    "lake": Codec(
        lambda held: lake.LakeCheckpoint(held, 4611686018427387903),
        lambda record: record.to_text(_LAKE.owner),
        lambda text: lake.LakeCheckpoint.from_text(text, _LAKE),
    ),
    "sql": Codec(lambda held: held, _sql_stored, lambda row: _SQL.read(_Row(row))),
    "zookeeper": Codec(
        lambda held: TargetRecord(held.epoch, held.batch, held.position, held.identity),
        lambda record: record.encoded().decode(),
        lambda text: CHECKPOINT.parse("/node", text.encode(), TargetRecord.from_json),
    ),
}
"""The SQL kinds have one codec, and so have the lakes; kinds without a checkpoint of their own have it in ZooKeeper."""

CASES = [(kind, case) for kind in CODECS for case in CHECKPOINTS]
UNSEALED = ("kafka", "lake", "sql")
"""Kinds of which a version before 0.2.0 stored records without a seal."""


@pytest.fixture(scope="module")
def golden() -> dict[str, dict[str, Any]]:
    """Return the records that version 0.2.0 stored, by kind and case."""
    stored: dict[str, dict[str, Any]] = json.loads(GOLDEN.read_text())
    return stored


def _unsealed(stored: Any) -> Any:
    if isinstance(stored, list):
        epoch, batch, position, identity = stored
        fields = {name: value for name, value in json.loads(position).items() if name != "seal"}
        return [epoch, batch, json.dumps(fields), identity]
    return json.dumps({name: value for name, value in json.loads(stored).items() if name != "seal"})


def _edited(stored: Any) -> Any:
    """Return what is stored, with another batch."""
    if isinstance(stored, dict):
        return stored | {"batch": stored["batch"] + 1}
    if isinstance(stored, list):
        place = stored.index("batch") + 1 if "batch" in stored else 1
        return [*stored[:place], int(stored[place]) + 1, *stored[place + 1 :]]
    return json.dumps(_edited(json.loads(stored)))


@pytest.mark.parametrize(("kind", "case"), CASES)
def test_what_is_stored_stays_the_same_byte_by_byte(golden: dict[str, Any], kind: str, case: str) -> None:
    codec = CODECS[kind]
    stored = codec.stored(codec.record(CHECKPOINTS[case]))
    assert json.dumps(stored) == json.dumps(golden[kind][case]), "also the order of fields"


@pytest.mark.parametrize(("kind", "case"), CASES)
def test_stored_checkpoints_are_read(golden: dict[str, Any], kind: str, case: str) -> None:
    codec = CODECS[kind]
    assert codec.read(golden[kind][case]) == codec.record(CHECKPOINTS[case])


@pytest.mark.parametrize("kind", [kind for kind in CODECS if kind != "zookeeper"])
def test_an_edited_checkpoint_is_known(golden: dict[str, Any], kind: str) -> None:
    found = CODECS[kind].read(_edited(golden[kind]["of mysql"]))
    found = found[0] if isinstance(found, tuple) else found
    held: Checkpoint = getattr(found, "checkpoint", found)
    assert (held.batch, held.edited) == (13, True)


@pytest.mark.parametrize("kind", UNSEALED)
def test_a_checkpoint_of_a_version_without_seals_is_read(golden: dict[str, Any], kind: str) -> None:
    found = CODECS[kind].read(_unsealed(golden[kind]["of mysql"]))
    assert found == CODECS[kind].record(CHECKPOINTS["of mysql"])


@pytest.mark.parametrize("kind", [kind for kind in CODECS if kind not in {"sql", "zookeeper"}])
def test_a_checkpoint_of_a_newer_format_is_refused(golden: dict[str, Any], kind: str) -> None:
    stored = golden[kind]["of mysql"]
    if isinstance(stored, dict):
        newer: Any = stored | {"format": 2}
    elif isinstance(stored, list):
        newer = ["2" if before == "format" else word for before, word in zip(["", *stored], stored, strict=False)]
    else:
        newer = json.dumps(json.loads(stored) | {"format": 2})
    with pytest.raises(CheckpointError, match="format 2"):
        CODECS[kind].read(newer)


def test_the_streams_that_a_rabbitmq_target_wrote_to_are_read_back() -> None:
    """One that is gone later stops the load."""
    record = rabbitmq.StreamCheckpoint(Checkpoint(7, 12), 12, "a1b2", frozenset({"shop.orders", "shop.units"}))
    assert rabbitmq.record_of(_RABBITMQ, rabbitmq.record_text(_RABBITMQ, record, 8, "0f0f")) == (record, 8, "0f0f")
