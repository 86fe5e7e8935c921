"""Real servers for the tests: started when a test first asks, shared by the session, stopped at its end.

Each test that writes takes a fresh schema (``fresh_schema``), so tests may share a server without seeing each other.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from devstack import delta_spark, packages, processes
from devstack.clickhouse import ClickHouseServer, find_clickhouse
from devstack.debian import FetchFailed
from devstack.elasticsearch import SearchServer, find_search
from devstack.iceberg_rest import RestCatalogServer, find_rest_catalog
from devstack.kafka import KafkaServer, find_kafka
from devstack.mariadb import MariaDBServer, fetched_mariadb
from devstack.mysql import MySQLServer
from devstack.registry import RegistryServer, find_registry
from devstack.spark import SparkConnectServer
from devstack.zookeeper import ZooKeeperEnsemble, ZooKeeperServer
from sluice.errors import ConfigError, SluiceError
from tests.support.servers.airflows import SharedAirflow

if TYPE_CHECKING:
    from devstack.mongodb import FerretDBServer
    from devstack.postgresql import PostgreSQLServer
    from devstack.rabbitmq import RabbitMQServer
    from devstack.redis import RedisServer

_numbers = itertools.count(1)

AIRFLOWS: list[SharedAirflow] = []
"""That of this process, once a test asked for it."""

UNSAFE = {"innodb_flush_method": "nosync"}
"""A third of the seconds of a CREATE, ALTER or DROP waited for the disk.

A killed server loses nothing by it; only a dead machine would.
"""


def or_skip(what: str, find: Callable[..., Any], *arguments: Any) -> Any:
    """Return what ``find`` returns. Skips the test where it cannot be fetched."""
    try:
        return find(*arguments)
    except (FetchFailed, ConfigError) as error:
        pytest.skip(f"there is no {what}: {error}")


@pytest.fixture(scope="session")
def server_folder() -> Iterator[Path]:
    """A temporary folder for the session's servers; removed at the end."""
    processes.tether()
    folder = Path(tempfile.mkdtemp(prefix="sluice-tests-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def mysql_source(server_folder: Path) -> Iterator[MySQLServer]:
    """A MySQL with row log, full row image and metadata, GTIDs on; connection id ``test_source``."""
    with MySQLServer(server_folder / "source", name="mysql-source", server_id=101, options=UNSAFE) as server:
        os.environ["AIRFLOW_CONN_TEST_SOURCE"] = server.connection_json()
        yield server


@pytest.fixture(scope="session")
def mysql_target(server_folder: Path) -> Iterator[MySQLServer]:
    """A second MySQL; connection id ``test_target``."""
    with MySQLServer(server_folder / "target", name="mysql-target", server_id=102, options=UNSAFE) as server:
        os.environ["AIRFLOW_CONN_TEST_TARGET"] = server.connection_json()
        yield server


@pytest.fixture(scope="session")
def mariadb(server_folder: Path) -> Iterator[MariaDBServer]:
    """A MariaDB with row log and full metadata; connection id ``test_mariadb``."""
    with MariaDBServer(server_folder / "mariadb", server_id=103, options={"debug_no_sync": 1}) as server:
        os.environ["AIRFLOW_CONN_TEST_MARIADB"] = server.connection_json()
        yield server


@pytest.fixture(scope="session")
def mariadb_11_8(server_folder: Path) -> Iterator[MariaDBServer]:
    """The same of the next long-term version, which logs updates and deletes without generated columns."""
    distribution = or_skip("MariaDB 11.8", fetched_mariadb, packages.MARIADB_11_8)
    folder = server_folder / "mariadb-11.8"
    with MariaDBServer(folder, distribution=distribution, server_id=104, options={"debug_no_sync": 1}) as server:
        yield server


@pytest.fixture(scope="session")
def postgresql(server_folder: Path) -> Iterator[PostgreSQLServer]:
    """A PostgreSQL; connection id ``test_postgresql``. Skipped where it, or its client, cannot be had."""
    with _postgresql(server_folder / "postgresql", "find_postgresql") as server:
        os.environ["AIRFLOW_CONN_TEST_POSTGRESQL"] = server.connection_json()
        yield server


@pytest.fixture(scope="session")
def postgresql_source(server_folder: Path) -> Iterator[PostgreSQLServer]:
    """A PostgreSQL whose log can be decoded; connection id ``test_postgresql_source``."""
    options = {"wal_level": "logical", "max_replication_slots": 40, "max_wal_senders": 20}
    with _postgresql(server_folder / "postgresql-source", "find_postgresql", options) as server:
        os.environ["AIRFLOW_CONN_TEST_POSTGRESQL_SOURCE"] = server.connection_json()
        yield server


@pytest.fixture(scope="session")
def postgresql_15(server_folder: Path) -> Iterator[PostgreSQLServer]:
    """The oldest version that is meant to work, as a source. Skips what needs it where it is not installed."""
    pytest.importorskip("psycopg", reason="psycopg is not installed: make venv")
    from devstack import postgresql

    folder = Path("/usr/lib/postgresql/15/bin")
    if not (folder / "postgres").exists():
        pytest.skip("PostgreSQL 15 is not installed")
    found = postgresql.PostgreSQL(folder, "15", str(folder))
    options = {"wal_level": "logical", "max_replication_slots": 40}
    with postgresql.PostgreSQLServer(server_folder / "postgresql-15", distribution=found, options=options) as server:
        yield server


@pytest.fixture(scope="session")
def postgis(server_folder: Path) -> Iterator[PostgreSQLServer]:
    """A PostgreSQL whose database has PostGIS, and whose log can be decoded. Skips what needs it where it cannot be
    had.
    """
    with _postgresql(server_folder / "postgis", "find_postgis", {"wal_level": "logical"}) as server:
        server.execute("CREATE EXTENSION postgis")
        yield server


@contextlib.contextmanager
def _postgresql(folder: Path, find: str, options: Mapping[str, Any] | None = None) -> Iterator[PostgreSQLServer]:
    """``find``: of ``devstack.postgresql``."""
    pytest.importorskip("psycopg", reason="psycopg is not installed: make venv")
    from devstack import postgresql

    try:
        found = getattr(postgresql, find)()
    except SluiceError as error:
        pytest.skip(f"no {folder.name} to be had: {error.message}")
    with postgresql.PostgreSQLServer(folder, distribution=found, options=options or {}) as server:
        yield server


@pytest.fixture
def fresh_pg_schema(postgresql: PostgreSQLServer) -> Iterator[Callable[..., str]]:
    """``fresh_pg_schema()`` makes an empty schema in the PostgreSQL, or that of this name; dropped after the test."""
    made: list[str] = []

    def make(name: str = "") -> str:
        name = name or f"t_{os.getpid()}_{next(_numbers)}"
        postgresql.execute(f'CREATE SCHEMA "{name}"')
        made.append(name)
        return name

    yield make
    for name in made:
        if postgresql.running:
            with contextlib.suppress(Exception):
                postgresql.execute(f'DROP SCHEMA IF EXISTS "{name}" CASCADE')


@pytest.fixture(scope="session")
def zookeeper(server_folder: Path) -> Iterator[ZooKeeperServer]:
    """One ZooKeeper node; connection id ``test_zookeeper``."""
    with ZooKeeperServer(server_folder / "zookeeper") as server:
        os.environ["AIRFLOW_CONN_TEST_ZOOKEEPER"] = server.connection_json()
        yield server


@pytest.fixture(scope="session")
def kafka(server_folder: Path) -> Iterator[KafkaServer]:
    """One Kafka broker; connection id ``test_kafka``. Skips what needs it where its jars cannot be fetched."""
    pytest.importorskip("confluent_kafka")
    or_skip("Kafka broker", find_kafka)
    server = KafkaServer(server_folder / "kafka", users={"sluice": "s3cret-of-the-broker"}).start()
    os.environ["AIRFLOW_CONN_TEST_KAFKA"] = server.connection_json()
    yield server
    server.kill()  # nobody reads it again


@pytest.fixture(scope="session")
def redis_server(server_folder: Path) -> Iterator[RedisServer]:
    """A Redis; connection id ``test_redis``. Skips what needs it where it, or its client, cannot be had."""
    pytest.importorskip("redis", reason="redis is not installed: make venv")
    from devstack import redis

    program = or_skip("Redis", redis.find_redis)
    server = redis.RedisServer(server_folder / "redis", program=program, password="s3cret-of-the-suite")
    with server:
        os.environ["AIRFLOW_CONN_TEST_REDIS"] = server.connection_json()
        yield server


@pytest.fixture(scope="session")
def clickhouse(server_folder: Path) -> Iterator[ClickHouseServer]:
    """ClickHouse's engine; connection id ``test_clickhouse``. Skips what needs it where the engine cannot be installed."""
    or_skip("ClickHouse", find_clickhouse)
    server = ClickHouseServer(server_folder / "clickhouse").start()
    os.environ["AIRFLOW_CONN_TEST_CLICKHOUSE"] = server.connection_json()
    yield server
    server.kill()


def _search_server(server_folder: Path, kind: str) -> Iterator[SearchServer]:
    or_skip(kind, find_search, kind)
    server = SearchServer(server_folder / kind, kind, kind=kind).start()
    os.environ[f"AIRFLOW_CONN_TEST_{kind.upper()}"] = server.connection_json()
    yield server
    server.kill()


@pytest.fixture(scope="session")
def elasticsearch(server_folder: Path) -> Iterator[SearchServer]:
    """An Elasticsearch; connection id ``test_elasticsearch``. Skips what needs it where it cannot be fetched."""
    yield from _search_server(server_folder, "elasticsearch")


@pytest.fixture(scope="session")
def opensearch(server_folder: Path) -> Iterator[SearchServer]:
    """An OpenSearch; connection id ``test_opensearch``. Skips what needs it where it cannot be fetched."""
    yield from _search_server(server_folder, "opensearch")


@pytest.fixture(scope="session")
def ferretdb(server_folder: Path) -> Iterator[FerretDBServer]:
    """A FerretDB; connection id ``test_ferretdb``. Skips what needs it where it cannot be built."""
    pytest.importorskip("pymongo", reason="pymongo is not installed: make venv")
    from devstack import mongodb

    or_skip("FerretDB", mongodb.find_ferretdb)
    with mongodb.FerretDBServer(server_folder / "ferretdb") as server:
        os.environ["AIRFLOW_CONN_TEST_FERRETDB"] = server.connection_json()
        yield server


@pytest.fixture(scope="session")
def h2() -> Iterator[Any]:
    """H2 in Oracle mode. Skips what needs it where it cannot be fetched."""
    pytest.importorskip("oracledb", reason="oracledb is not installed: make venv")
    from tests.support.twins.oracle_twin import OracleTwin

    try:
        twin = OracleTwin().start()
    except FetchFailed as error:
        pytest.skip(f"there is no H2: {error}")
    yield twin
    twin.close()


@pytest.fixture
def oracle_twin(h2: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """H2 in Oracle mode, which ``oracledb.connect`` leads to."""
    from sluice.targets.oracle import session

    monkeypatch.setattr("oracledb.connect", h2.connect)
    yield h2
    session.kept.end()


@pytest.fixture(scope="session")
def rabbitmq(server_folder: Path) -> Iterator[RabbitMQServer]:
    """A RabbitMQ; connection id ``test_rabbitmq``. Skips what needs it where it, or its clients, cannot be had."""
    for name in ("pika", "rstream"):
        pytest.importorskip(name, reason=f"{name} is not installed: make venv")
    from devstack import rabbitmq

    program = or_skip("RabbitMQ", rabbitmq.find_rabbitmq)
    server = rabbitmq.RabbitMQServer(server_folder / "rabbitmq", program=program, password="s3cret-of-the-suite")
    with server:
        os.environ["AIRFLOW_CONN_TEST_RABBITMQ"] = server.connection_json()
        yield server


@pytest.fixture(scope="session")
def schema_registry(server_folder: Path) -> Iterator[RegistryServer]:
    """A schema registry with Confluent's API. Skips what needs it where it cannot be fetched."""
    pytest.importorskip("fastavro")
    or_skip("schema registry", find_registry)
    server = RegistryServer(server_folder / "registry").start()
    yield server
    server.kill()


@pytest.fixture(scope="session")
def iceberg_rest(server_folder: Path) -> Iterator[RestCatalogServer]:
    """A REST catalog of Iceberg tables. Skips what needs it where it cannot be fetched."""
    pytest.importorskip("pyiceberg")
    or_skip("REST catalog of Iceberg", find_rest_catalog)
    server = RestCatalogServer(server_folder / "iceberg-rest").start()
    yield server
    server.kill()


@pytest.fixture
def zookeeper_ensemble(server_folder: Path) -> Iterator[ZooKeeperEnsemble]:
    """Three ZooKeeper nodes of the test's own, to be killed at will."""
    with ZooKeeperEnsemble(server_folder / f"ensemble-{next(_numbers)}") as ensemble:
        yield ensemble


@pytest.fixture(scope="session")
def spark_connect(
    server_folder: Path, mysql_source: MySQLServer, mysql_target: MySQLServer
) -> Iterator[SparkConnectServer]:
    """A Spark Connect server whose workers know ``test_source`` and ``test_target``; connection id ``test_spark``."""
    with SparkConnectServer(server_folder / "spark") as server:
        os.environ["AIRFLOW_CONN_TEST_SPARK"] = server.connection_json()
        yield server


@pytest.fixture(scope="session")
def spark_delta(server_folder: Path) -> Iterator[SparkConnectServer]:
    """A Spark Connect server that writes Delta tables. Skips what needs it where the jars cannot be fetched."""
    try:
        settings = {
            **delta_spark.spark_settings(),
            "spark.sql.codegen.wholeStage": "false",
        }  # to compile costs more than few rows
    except FetchFailed as error:
        pytest.skip(f"there is no Delta for Spark: {error}")
    with SparkConnectServer(server_folder / "spark-delta", "spark-delta", conf=settings) as server:
        yield server


@pytest.fixture(scope="session")
def shared_airflow(server_folder: Path) -> Iterator[SharedAirflow]:
    """An Airflow for files that do not stop it; it runs only while the next test is one of those, see
    ``tests/conftest.py``.
    """
    shared = SharedAirflow(server_folder / "airflow")
    AIRFLOWS.append(shared)
    yield shared
    shared.close()


@pytest.fixture
def fresh_schema() -> Iterator[Callable[..., str]]:
    """``fresh_schema(server, ...)`` makes an empty schema of the same new name on each server; dropped after the
    test.
    """
    made: list[tuple[MySQLServer, str]] = []

    def make(*servers: MySQLServer, prefix: str = "t", options: str = "") -> str:
        name = f"{prefix}_{os.getpid()}_{next(_numbers)}"
        if not options and len(servers) > 1 and any(isinstance(server, MariaDBServer) for server in servers):
            options = (
                "CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci"  # keys that compare alike on both kinds of server
            )
        for server in servers:
            server.execute(f"CREATE DATABASE `{name}` {options}")
            made.append((server, name))
        return name

    yield make
    for server, name in made:
        if server.running:
            with contextlib.suppress(Exception):
                server.execute(f"DROP DATABASE IF EXISTS `{name}`")


@contextlib.contextmanager
def setting(server: MySQLServer, **values: object) -> Iterator[None]:
    """Global variables of a server, set for the block."""
    before = {name: server.execute(f"SELECT @@GLOBAL.{name}")[0][0] for name in values}
    try:
        for name, value in values.items():
            server.execute(f"SET GLOBAL {name} = '{value}'")
        yield
    finally:
        for name, value in before.items():
            server.execute(f"SET GLOBAL {name} = '{value}'")
