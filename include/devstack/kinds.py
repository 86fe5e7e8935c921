"""A second target of another kind for the demonstration: its server, its target in the pipeline, and a look at what
arrived.
"""

# ruff: noqa: S608  (fixed names)

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from ruamel.yaml import YAML

from devstack import delta_spark, paths
from devstack.clickhouse import ClickHouseServer, find_clickhouse
from devstack.debian import FetchFailed
from devstack.elasticsearch import SearchServer, find_search
from devstack.http_receiver import HttpReceiver
from devstack.kafka import KafkaServer, find_kafka
from devstack.mongodb import FerretDBServer, find_ferretdb
from devstack.postgresql import PostgreSQLServer, find_postgresql
from devstack.rabbitmq import RabbitMQServer, find_rabbitmq
from devstack.redis import RedisServer, find_redis
from devstack.server import Server
from sluice.errors import ConfigError
from sluice.model.client_packages import install_command

PIPELINE_FILE = "shop_to_reporting.yaml"
_SAMPLE_ROWS = 3
_SAMPLE_CHARACTERS = 240


class Kind(ABC):
    """A kind of target. ``name`` is its type's, and the name of its server and of its target in the pipeline, too."""

    name: ClassVar[str]
    client: ClassVar[str]
    """The Python package that its loads need."""
    ports: ClassVar[tuple[str, ...]]
    """Names of the ports of its server."""
    settings: ClassVar[Mapping[str, Any]]
    """Its settings in the pipeline file."""
    frame: ClassVar[Mapping[str, Any]] = {}
    """Further settings where Spark can write."""
    changes_per_s: ClassVar[int] = 300
    """Changes that the demo writes: both targets get each batch, so a slow server sets the pace of both."""

    @property
    def connection_id(self) -> str:
        """The id of the target's connection in Airflow."""
        return f"reporting_{self.name}"

    def server(self, folder: Path, ports: Mapping[str, int], password: str) -> Server | None:
        """Return the server, not started; None for a kind that keeps files. The same arguments give the same one."""
        return None

    def spark_settings(self) -> dict[str, str]:
        """Return what the stack's Spark server needs for it."""
        return {}

    @abstractmethod
    def connection(self, at: Any) -> str:
        """Return the connection of Airflow, as JSON.

        ``at``, here and below: the server, or the folder of a kind that keeps files.
        """

    def fetch(self) -> None:  # noqa: B027 - a kind without a server needs none
        """Get the server's program, if it is not here. Raises FetchFailed, ConfigError."""

    @abstractmethod
    def rows(self, at: Any, schema: str, tables: tuple[str, ...]) -> dict[str, int]:
        """Count the rows of each table, as a reader of the store does; 0 if the table is missing."""

    @abstractmethod
    def sample(self, at: Any, schema: str) -> Iterator[str]:
        """Yield lines that show what arrived."""


class PostgreSQL(Kind):
    """Tables of the same names."""

    name = "postgresql"
    client = "psycopg"
    ports = ("postgresql",)
    settings: ClassVar[Mapping[str, Any]] = {"changes": "latest", "consistency": "row", "parallelism": 2}

    def fetch(self) -> None:
        """Find or fetch PostgreSQL. Raises FetchFailed."""
        find_postgresql()

    def server(self, folder: Path, ports: Mapping[str, int], password: str) -> Server:
        """Return the PostgreSQL server of this folder."""
        return PostgreSQLServer(folder / self.name, self.name, port=ports["postgresql"], password=password)

    def connection(self, at: Any) -> str:
        """Return the connection of the server's administrator."""
        assert isinstance(at, PostgreSQLServer)
        return at.connection_json()

    def rows(self, at: Any, schema: str, tables: tuple[str, ...]) -> dict[str, int]:
        """Count the rows by SQL."""
        assert isinstance(at, PostgreSQLServer)
        there = {str(name) for (name,) in at.execute(f"SELECT tablename FROM pg_tables WHERE schemaname = '{schema}'")}
        return {
            table: int(at.execute(f'SELECT COUNT(*) FROM "{schema}"."{table}"')[0][0]) if table in there else 0
            for table in tables
        }

    def sample(self, at: Any, schema: str) -> Iterator[str]:
        """Yield a query for the newest orders, and the rows that it returns."""
        assert isinstance(at, PostgreSQLServer)
        query = (
            f'SELECT id, state, placed_at, total, address FROM "{schema}".orders ORDER BY id DESC LIMIT {_SAMPLE_ROWS}'
        )
        yield query
        for row in at.execute(query):
            yield "  " + " | ".join(str(value) for value in row)


class Kafka(Kind):
    """A topic a table, with every change."""

    name = "kafka"
    client = "confluent_kafka"
    ports = ("kafka", "kafka-controller")
    settings: ClassVar[Mapping[str, Any]] = {
        "changes": "all",
        "options": {"format": "debezium-json", "create_topics": {"partitions": 2, "replication": 1}},
    }

    def fetch(self) -> None:
        """Find or fetch Kafka. Raises FetchFailed."""
        find_kafka()

    def server(self, folder: Path, ports: Mapping[str, int], password: str) -> Server:
        """Return the broker of this folder."""
        port, controller = (ports[name] for name in self.ports)
        return KafkaServer(folder / self.name, self.name, port=port, controller_port=controller)

    def connection(self, at: Any) -> str:
        """Return the connection of the listener without login."""
        assert isinstance(at, KafkaServer)
        return at.connection_json()

    def rows(self, at: Any, schema: str, tables: tuple[str, ...]) -> dict[str, int]:
        """Count the keys of each topic whose newest message is no tombstone."""
        return {table: len(self._newest(at, f"{schema}.{table}")) for table in tables}

    def sample(self, at: Any, schema: str) -> Iterator[str]:
        """Yield keys and newest messages of the topic of orders, shortened."""
        topic = f"{schema}.orders"
        yield f"topic {topic}, read_committed, the newest of some keys:"
        for key, value in list(self._newest(at, topic).items())[-_SAMPLE_ROWS:]:
            text = value.decode()
            yield f"  {key.decode()}  {_shortened(text)}"

    def _newest(self, at: Any, topic: str) -> dict[bytes, bytes]:
        """Return key -> value of the newest message, without keys whose newest message is a tombstone."""
        from confluent_kafka import Consumer, KafkaError, TopicPartition

        assert isinstance(at, KafkaServer)
        found: dict[bytes, bytes | None] = {}
        consumer = Consumer({
            "bootstrap.servers": at.bootstrap, "group.id": "demo", "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True, "auto.offset.reset": "earliest", "log_level": 4,
        })  # fmt: skip
        try:
            parts = consumer.list_topics(topic, timeout=30).topics[topic].partitions
            consumer.assign([TopicPartition(topic, number, 0) for number in parts])
            left = set(parts)
            while left:
                message = consumer.poll(10)
                if message is None:
                    break
                if message.error() is None:
                    found[message.key()] = message.value()
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    left.discard(message.partition())
                else:
                    break
        finally:
            consumer.close()
        return {key: value for key, value in found.items() if value is not None}


class RabbitMQ(Kind):
    """A stream a table, with every change once."""

    name = "rabbitmq"
    client = "rstream"
    ports = ("rabbitmq", "rabbitmq-stream")
    settings: ClassVar[Mapping[str, Any]] = {"changes": "all", "options": {"send_to": "streams", "create": "needed"}}

    def fetch(self) -> None:
        """Find or fetch RabbitMQ. Raises FetchFailed."""
        find_rabbitmq()

    def server(self, folder: Path, ports: Mapping[str, int], password: str) -> Server:
        """Return the broker of this folder."""
        port, stream_port = (ports[name] for name in self.ports)
        return RabbitMQServer(folder / self.name, self.name, port=port, stream_port=stream_port, password=password)

    def connection(self, at: Any) -> str:
        """Return the connection of the broker's user."""
        assert isinstance(at, RabbitMQServer)
        return at.connection_json()

    def rows(self, at: Any, schema: str, tables: tuple[str, ...]) -> dict[str, int]:
        """Count the keys of each stream whose newest message is no delete."""
        return {table: len(self._newest(at, f"{schema}.{table}")) for table in tables}

    def sample(self, at: Any, schema: str) -> Iterator[str]:
        """Yield keys and newest messages of the stream of orders, shortened."""
        yield f"stream {schema}.orders, read by AMQP 0.9.1, the newest of some keys:"
        for key, text in list(self._newest(at, f"{schema}.orders").items())[-_SAMPLE_ROWS:]:
            yield f"  {key}  {_shortened(text)}"

    def _newest(self, at: Any, stream: str) -> dict[str, str]:
        assert isinstance(at, RabbitMQServer)
        found: dict[str, str] = {}
        for one in at.messages(stream, stream=True):
            key, text = str(one.headers["key"]), one.body.decode()
            found.pop(key, None)
            if json.loads(text)["op"] != "d":
                found[key] = text
        return found


class Redis(Kind):
    """A hash a row, with the newest values."""

    name = "redis"
    client = "redis"
    ports = ("redis",)
    settings: ClassVar[Mapping[str, Any]] = {"changes": "latest", "parallelism": 2}

    def fetch(self) -> None:
        """Find or fetch Redis. Raises FetchFailed."""
        find_redis()

    def server(self, folder: Path, ports: Mapping[str, int], password: str) -> Server:
        """Return the Redis server of this folder."""
        return RedisServer(folder / self.name, self.name, port=ports["redis"], password=password)

    def connection(self, at: Any) -> str:
        """Return the connection of the server's default user."""
        assert isinstance(at, RedisServer)
        return at.connection_json()

    def rows(self, at: Any, schema: str, tables: tuple[str, ...]) -> dict[str, int]:
        """Count the keys of each table."""
        assert isinstance(at, RedisServer)
        with at.client() as client:
            return {table: sum(1 for _ in client.scan_iter(f"{schema}.{table}:*", count=1_000)) for table in tables}

    def sample(self, at: Any, schema: str) -> Iterator[str]:
        """Yield keys of some orders, and the fields of each."""
        assert isinstance(at, RedisServer)
        with at.client() as client:
            for key in sorted(client.scan_iter(f"{schema}.orders:*", count=1_000), key=_number)[-_SAMPLE_ROWS:]:
                fields = {
                    name.decode(): value.decode("utf-8", "replace") for name, value in client.hgetall(key).items()
                }
                text = json.dumps(fields, ensure_ascii=False)
                yield f"HGETALL {key.decode()}"
                yield f"  {_shortened(text)}"


def _shortened(text: str) -> str:
    return f"{text[:_SAMPLE_CHARACTERS]}…" if len(text) > _SAMPLE_CHARACTERS else text


def _number(key: bytes) -> tuple[int, bytes]:
    return len(key), key


class Http(Kind):
    """A receiver that keeps the newest document of each row, and counts requests that came again."""

    name = "http"
    client = "httpx"
    ports = ("http",)
    settings: ClassVar[Mapping[str, Any]] = {"changes": "all", "options": {"path": "/{schema}/{table}"}}

    def server(self, folder: Path, ports: Mapping[str, int], password: str) -> Server:
        """Return the receiver of this folder."""
        return HttpReceiver(folder / self.name, self.name, port=ports["http"])

    def connection(self, at: Any) -> str:
        """Return the connection of the receiver."""
        assert isinstance(at, HttpReceiver)
        return at.connection_json()

    def rows(self, at: Any, schema: str, tables: tuple[str, ...]) -> dict[str, int]:
        """Count the rows of each table whose newest document is no delete."""
        assert isinstance(at, HttpReceiver)
        found = dict(at.query("SELECT table_name, COUNT(*) FROM newest GROUP BY table_name"))
        return {table: int(found.get(f"{schema}.{table}", 0)) for table in tables}

    def sample(self, at: Any, schema: str) -> Iterator[str]:
        """Yield the number of requests and repeats, and some documents of orders, shortened."""
        assert isinstance(at, HttpReceiver)
        [(requests, times)] = at.query("SELECT COUNT(*), COALESCE(SUM(times), 0) FROM requests")
        yield f"{requests} requests; {times - requests} of them came again and were recognised by their Idempotency-Key"
        yield f"POST /{schema}/orders, some of the newest documents:"
        orders = "SELECT document FROM newest WHERE table_name = ? ORDER BY key DESC LIMIT ?"
        for (text,) in at.query(orders, (f"{schema}.orders", _SAMPLE_ROWS)):
            yield f"  {_shortened(text)}"


class Delta(Kind):
    """Delta tables in a folder; their kind needs no server. Spark writes large batches, if its jars can be fetched."""

    name = "delta"
    client = "deltalake"
    ports = ()
    settings: ClassVar[Mapping[str, Any]] = {"changes": "latest", "consistency": "table"}
    frame: ClassVar[Mapping[str, Any]] = {"options": {"execution": "frame", "frame_from": 5_000}}

    def fetch(self) -> None:
        """Fetch Spark's jars for Delta if that is possible: without them delta-rs writes every batch."""
        with suppress(FetchFailed):  # delta-rs writes all of it then
            delta_spark.find_delta()

    def spark_settings(self) -> dict[str, str]:
        """Return the settings for Delta, if its jars were fetched."""
        return delta_spark.spark_settings() if delta_spark.fetched() else {}

    def connection(self, at: Any) -> str:
        """Create the folder and return a connection of its path."""
        assert isinstance(at, Path)
        at.mkdir(parents=True, exist_ok=True)
        return json.dumps({"conn_type": "fs", "extra": {"path": str(at)}})

    def rows(self, at: Any, schema: str, tables: tuple[str, ...]) -> dict[str, int]:
        """Count the rows of each table by its Delta log."""
        from deltalake import DeltaTable

        folders = {table: at / schema / table for table in tables}
        return {
            table: DeltaTable(folder).count() if DeltaTable.is_deltatable(str(folder)) else 0
            for table, folder in folders.items()
        }

    def sample(self, at: Any, schema: str) -> Iterator[str]:
        """Yield the newest commits of the table of orders, with the batch of each."""
        from deltalake import DeltaTable

        table = DeltaTable(at / schema / "orders")
        yield f"{at / schema / 'orders'}, version {table.version()}, its newest commits:"
        for commit in table.history(_SAMPLE_ROWS):
            yield f"  version {commit.get('version')}  {commit.get('operation')}  batch {commit.get('sluice.batch', '')}"  # noqa: E501


class Iceberg(Delta):
    """Iceberg tables in a folder with a catalog of its own; their kind needs no server."""

    name = "iceberg"
    client = "pyiceberg"
    frame: ClassVar[Mapping[str, Any]] = {}

    def fetch(self) -> None:
        """Do nothing."""

    def spark_settings(self) -> dict[str, str]:
        """Return nothing: PyIceberg writes every batch."""
        return {}

    def rows(self, at: Any, schema: str, tables: tuple[str, ...]) -> dict[str, int]:
        """Count the rows of each table by a scan of its current snapshot."""
        found = {table: self._table(at, schema, table) for table in tables}
        return {name: table.scan().count() if table is not None else 0 for name, table in found.items()}

    def sample(self, at: Any, schema: str) -> Iterator[str]:
        """Yield the newest snapshots of the table of orders, with the batch of each."""
        table = self._table(at, schema, "orders")
        yield f"{schema}.orders in {at / 'catalog.db'}, its newest snapshots:"
        for snapshot in table.snapshots()[-_SAMPLE_ROWS:] if table is not None else ():
            batch = snapshot.summary.additional_properties.get("sluice.batch", "")
            yield f"  snapshot {snapshot.snapshot_id}  {snapshot.summary.operation.value}  batch {batch}"

    def _table(self, at: Any, schema: str, table: str) -> Any:
        from pyiceberg.catalog.sql import SqlCatalog
        from pyiceberg.exceptions import NoSuchTableError

        try:
            return SqlCatalog("sluice", uri=f"sqlite:///{at}/catalog.db").load_table((schema, table))
        except NoSuchTableError:
            return None


class Elasticsearch(Kind):
    """An index a table, with a document a row."""

    name = "elasticsearch"
    client = "httpx"
    ports = ("elasticsearch", "elasticsearch-transport")
    settings: ClassVar[Mapping[str, Any]] = {
        "changes": "latest",
        "options": {"settings": {"number_of_replicas": 0}, "refresh": True},
    }

    def fetch(self) -> None:
        """Find or fetch Elasticsearch. Raises FetchFailed."""
        find_search()

    def server(self, folder: Path, ports: Mapping[str, int], password: str) -> Server:
        """Return the node of this folder."""
        port, transport = (ports[name] for name in self.ports)
        return SearchServer(folder / self.name, self.name, port=port, transport_port=transport)

    def connection(self, at: Any) -> str:
        """Return the connection of the node."""
        assert isinstance(at, SearchServer)
        return at.connection_json()

    def rows(self, at: Any, schema: str, tables: tuple[str, ...]) -> dict[str, int]:
        """Count the documents of each index."""
        assert isinstance(at, SearchServer)
        return {table: int(at.ask(f"/{schema}.{table}/_count").get("count", 0)) for table in tables}

    def sample(self, at: Any, schema: str) -> Iterator[str]:
        """Yield a search for the newest orders, and their documents."""
        assert isinstance(at, SearchServer)
        path = f"/{schema}.orders/_search?sort=id:desc&size={_SAMPLE_ROWS}"
        yield f"GET {path}"
        for one in at.ask(path).get("hits", {}).get("hits", ()):
            text = json.dumps(one["_source"], ensure_ascii=False)
            yield f"  {one['_id']}  {_shortened(text)}"


class ClickHouse(Kind):
    """ClickHouse's engine, a table for each table, and a view of its newest rows."""

    name = "clickhouse"
    client = "httpx"
    ports = ("clickhouse",)
    settings: ClassVar[Mapping[str, Any]] = {"changes": "latest", "options": {"view": "{table}_now"}}

    def fetch(self) -> None:
        """Install the engine. Raises FetchFailed."""
        find_clickhouse()

    def server(self, folder: Path, ports: Mapping[str, int], password: str) -> Server:
        """Return the engine of this folder."""
        return ClickHouseServer(folder / self.name, self.name, port=ports[self.name], password=password)

    def connection(self, at: Any) -> str:
        """Return the connection of the engine."""
        assert isinstance(at, ClickHouseServer)
        return at.connection_json()

    def rows(self, at: Any, schema: str, tables: tuple[str, ...]) -> dict[str, int]:
        """Count the newest rows of each table; 0 before it is made."""
        assert isinstance(at, ClickHouseServer)
        found = {}
        for table in tables:
            try:
                [[count]] = at.query(f"SELECT count() FROM `{schema}`.`{table}` FINAL FORMAT JSONCompactEachRow")
            except OSError:
                count = 0
            found[table] = int(count)
        return found

    def sample(self, at: Any, schema: str) -> Iterator[str]:
        """Yield a query for the newest orders, and their rows."""
        assert isinstance(at, ClickHouseServer)
        statement = f"SELECT * FROM `{schema}`.orders_now ORDER BY id DESC LIMIT {_SAMPLE_ROWS}"
        yield statement
        for row in at.query(f"{statement} FORMAT JSONEachRow"):
            yield f"  {_shortened(json.dumps(row, ensure_ascii=False))}"


class MongoDB(Kind):
    """A collection a table, with a document a row, in a FerretDB: it takes few updates at a time, 40 rows a second, and
    no Decimal128.
    """

    name = "mongodb"
    changes_per_s = 20
    client = "pymongo"
    ports = ("mongodb",)
    settings: ClassVar[Mapping[str, Any]] = {
        "changes": "latest",
        "options": {"bulk_rows": 20, "ids": "text", "types": {"decimal": "text", "bigint unsigned": "text"}},
    }

    def fetch(self) -> None:
        """Build FerretDB, unless it was. Raises FetchFailed."""
        find_ferretdb()

    def server(self, folder: Path, ports: Mapping[str, int], password: str) -> Server:
        """Return the server of this folder."""
        return FerretDBServer(folder / self.name, self.name, port=ports["mongodb"])

    def connection(self, at: Any) -> str:
        """Return the connection of the server."""
        assert isinstance(at, FerretDBServer)
        return at.connection_json()

    def rows(self, at: Any, schema: str, tables: tuple[str, ...]) -> dict[str, int]:
        """Count the documents of each collection, without what is kept of removed rows."""
        assert isinstance(at, FerretDBServer)
        with at.client() as client:
            there = {"_sluice_deleted": {"$exists": False}}
            return {table: client[schema][table].count_documents(there) for table in tables}

    def sample(self, at: Any, schema: str) -> Iterator[str]:
        """Yield a query for the newest orders, and their documents."""
        assert isinstance(at, FerretDBServer)
        yield f"db.getSiblingDB({schema!r}).orders.find().sort({{_id: -1}}).limit({_SAMPLE_ROWS})"
        with at.client() as client:
            for one in client[schema].orders.find().sort("_id", -1).limit(_SAMPLE_ROWS):
                yield f"  {_shortened(str(one))}"


KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kafka(),
        PostgreSQL(),
        RabbitMQ(),
        Redis(),
        Http(),
        Delta(),
        Iceberg(),
        Elasticsearch(),
        ClickHouse(),
        MongoDB(),
    )
}


def kind_of(name: str) -> Kind:
    """Return the kind, once its server's program is fetched. Raises ConfigError, FetchFailed."""
    kind = KINDS.get(name)
    if kind is None:
        raise ConfigError(
            f"the demo has no target {name!r}", hint=f"one of {', '.join(KINDS)}; without one it has the MySQL target"
        )
    if find_spec(kind.client) is None:
        raise ConfigError(
            f"targets of type {name} need the package {kind.client}, which is not installed",
            hint=install_command(name),
        )
    kind.fetch()
    return kind


def pipelines_with(kind: Kind, into: Path) -> Path:
    """Return a folder with the demo's pipeline, which has the other target too."""
    yaml = YAML()
    source = paths.repo_root() / "include" / "pipelines" / PIPELINE_FILE
    pipeline = yaml.load(source)
    pipeline["targets"].append({
        "name": kind.name,
        "type": kind.name,
        "connection": kind.connection_id,
        **json.loads(json.dumps({**kind.settings, **(kind.frame if kind.spark_settings() else {})})),
    })
    into.mkdir(parents=True, exist_ok=True)
    with (into / PIPELINE_FILE).open("w", encoding="utf-8") as file:
        yaml.dump(pipeline, file)
    return into


ROUNDED_DOCUMENTS = (r"reporting\.products\.attributes", r"reporting\.orders\.address")
"""The columns of the demo's PostgreSQL whose documents may lose digits of large numbers in MySQL."""


def pipelines_from_postgresql(into: Path) -> Path:
    """Return a folder with the demo's pipeline, whose source is the PostgreSQL server."""
    yaml = YAML()
    pipeline = yaml.load(paths.repo_root() / "include" / "pipelines" / PIPELINE_FILE)
    pipeline["source"] = {"connection": "shop_postgresql", "type": "postgresql", "start": "latest"}
    pipeline["targets"][0]["accept_loss"] = list(ROUNDED_DOCUMENTS)
    into.mkdir(parents=True, exist_ok=True)
    with (into / PIPELINE_FILE).open("w", encoding="utf-8") as file:
        yaml.dump(pipeline, file)
    return into
