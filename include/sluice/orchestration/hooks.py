"""Airflow hooks of the connection types that Sluice adds: they resolve a connection, and the *Test* button tries it.

They are named in :mod:`sluice.orchestration.provider`. Tasks do not need them: a pipeline file names connections of any
type that fits (``mysql`` as well as ``sluice_mysql``).
"""

from __future__ import annotations

from typing import Any

from airflow.sdk.bases.hook import BaseHook

from sluice.config.connections import Endpoint


class SluiceHook(BaseHook):  # type: ignore[misc]
    """A connection of one of Sluice's types. Subclasses name the type."""

    conn_name_attr = "conn_id"
    conn_type = ""
    default_conn_name = ""
    hook_name = ""

    def __init__(self, conn_id: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.conn_id = conn_id or self.default_conn_name

    def get_conn(self) -> Endpoint:
        """Return the connection as Sluice reads it. Raises ConfigError."""
        from sluice.orchestration.connections import from_airflow

        return from_airflow(self.conn_id)

    def test_connection(self) -> tuple[bool, str]:
        """Log in. Return whether that works, and what the server says of itself, or what is wrong."""
        from sluice.errors import SluiceError
        from sluice.operations.connection_probe import probe

        try:
            return True, probe(self.get_conn())
        except SluiceError as error:
            return False, str(error)


class ZooKeeperHook(SluiceHook):
    """The ensemble that holds positions and leases."""

    conn_type = "sluice_zookeeper"
    default_conn_name = "zookeeper_default"
    hook_name = "Sluice: ZooKeeper"


class MySQLHook(SluiceHook):
    """A MySQL or MariaDB server, as a source or as a target."""

    conn_type = "sluice_mysql"
    default_conn_name = "mysql_default"
    hook_name = "Sluice: MySQL or MariaDB"


class PostgreSQLHook(SluiceHook):
    """A PostgreSQL server."""

    conn_type = "sluice_postgresql"
    default_conn_name = "postgres_default"
    hook_name = "Sluice: PostgreSQL"


class KafkaHook(SluiceHook):
    """A Kafka cluster."""

    conn_type = "sluice_kafka"
    default_conn_name = "kafka_default"
    hook_name = "Sluice: Kafka"


class ClickHouseHook(SluiceHook):
    """A ClickHouse server, by its HTTP interface."""

    conn_type = "sluice_clickhouse"
    default_conn_name = "clickhouse_default"
    hook_name = "Sluice: ClickHouse"


class ElasticsearchHook(SluiceHook):
    """An Elasticsearch or OpenSearch cluster."""

    conn_type = "sluice_elasticsearch"
    default_conn_name = "elasticsearch_default"
    hook_name = "Sluice: Elasticsearch or OpenSearch"


class MongoDBHook(SluiceHook):
    """A MongoDB server or replica set."""

    conn_type = "sluice_mongodb"
    default_conn_name = "mongo_default"
    hook_name = "Sluice: MongoDB"


class OracleHook(SluiceHook):
    """An Oracle database."""

    conn_type = "sluice_oracle"
    default_conn_name = "oracle_default"
    hook_name = "Sluice: Oracle"


class RabbitMQHook(SluiceHook):
    """A RabbitMQ broker."""

    conn_type = "sluice_rabbitmq"
    default_conn_name = "rabbitmq_default"
    hook_name = "Sluice: RabbitMQ"


class RedisHook(SluiceHook):
    """A Redis server."""

    conn_type = "sluice_redis"
    default_conn_name = "redis_default"
    hook_name = "Sluice: Redis"


class ReceiverHook(SluiceHook):
    """A receiver of requests: an HTTP target, an Iceberg REST catalog, Airflow's own API."""

    conn_type = "sluice_http"
    default_conn_name = "http_default"
    hook_name = "Sluice: HTTP receiver"
