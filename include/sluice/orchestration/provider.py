"""What Airflow's provider manager is told of Sluice: connection types with their forms, hooks, operators and triggers.

The package names :func:`get_provider_info` by the entry point ``apache_airflow_provider``. Airflow reads it in every
process, so that it imports nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sluice import __version__
from sluice.model.client_packages import DISTRIBUTION

_HOOKS = "sluice.orchestration.hooks"


def _text(label: str, description: str = "", *, secret: bool = False) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": ["string", "null"]}
    if secret:
        schema["format"] = "password"
    return {"label": label, **({"description": description} if description else {}), "schema": schema}


def _choice(label: str, choices: Sequence[str], description: str = "") -> dict[str, Any]:
    return {**_text(label, description), "schema": {"type": ["string", "null"], "enum": [*choices, None]}}


def _flag(label: str, description: str = "") -> dict[str, Any]:
    return {**_text(label, description), "schema": {"type": ["boolean", "null"]}}


_CERTIFICATES = {
    "ca": _text("CA file", "PEM file of the authority that signed the server's certificate"),
    "cert": _text("Client certificate", "PEM file"),
    "key": _text("Private key", "PEM file of the client certificate"),
}
_CREDENTIALS = {
    "credentials": _text("Credentials", "What gives the password at each connect: rds_iam, cloud_sql_iam, entra"),
    "password_command": _text("Password command", "The same by a program that SLUICE_PASSWORD_COMMANDS lists"),
}
_RECEIVER = {
    **_CERTIFICATES,
    "proxy": _text("Proxy", "http://host:port; the environment's proxy is not used"),
    "plain_http": _flag("Allow HTTP without TLS", "Everybody on the way may then read rows and logins"),
}


def _type(
    hook: str,
    connection_type: str,
    name: str,
    placeholders: dict[str, str],
    fields: dict[str, Any],
    *,
    hidden: Sequence[str] = (),
    labels: dict[str, str] | None = None,
) -> dict[str, Any]:
    return {
        "hook-class-name": f"{_HOOKS}.{hook}",
        "hook-name": name,
        "connection-type": connection_type,
        "ui-field-behaviour": {
            "hidden-fields": list(hidden),
            "relabeling": labels or {},
            "placeholders": placeholders,
        },
        **({"conn-fields": fields} if fields else {}),
    }


def connection_types() -> list[dict[str, Any]]:
    """Return the connection types with their forms, as ``connection-types`` of a provider has them."""
    return [
        _type(
            "ZooKeeperHook", "sluice_zookeeper", "Sluice: ZooKeeper",
            {"host": "zk1:2181,zk2:2181,zk3:2181", "login": "digest user, for ACLs", "port": "2181"},
            {}, hidden=("schema", "extra"), labels={"host": "Ensemble"},
        ),
        _type(
            "MySQLHook", "sluice_mysql", "Sluice: MySQL or MariaDB",
            {"host": "db1.example.com", "port": "3306", "login": "sluice", "schema": "empty: all schemas"},
            {
                "ssl_mode": _choice(
                    "TLS", ("disabled", "preferred", "required", "verify_ca", "verify_identity"),
                    "preferred: encrypted where the server can, nothing is verified",
                ),
                "ssl_ca": _text("CA file", "PEM file of the authority that signed the server's certificate"),
                "ssl_cert": _text("Client certificate", "PEM file"),
                "ssl_key": _text("Private key", "PEM file of the client certificate"),
                "unix_socket": _text("Unix socket", "Instead of host and port"),
                **_CREDENTIALS,
            },
        ),
        _type(
            "PostgreSQLHook", "sluice_postgresql", "Sluice: PostgreSQL",
            {"host": "pg1.example.com", "port": "5432", "login": "sluice", "schema": "warehouse"},
            {
                "sslmode": _choice("TLS", ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")),
                "sslrootcert": _text("CA file", "PEM file, or system"),
                "sslcert": _text("Client certificate", "PEM file"),
                "sslkey": _text("Private key", "PEM file of the client certificate"),
                **_CREDENTIALS,
            },
            labels={"schema": "Database"},
        ),
        _type(
            "KafkaHook", "sluice_kafka", "Sluice: Kafka",
            {
                "host": "k1:9093,k2:9093", "login": "SASL user", "port": "9092",
                "extra": '{"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512"}',
            },
            {}, hidden=("schema",), labels={"host": "Brokers", "extra": "Settings of the client (JSON)"},
        ),
        _type(
            "ClickHouseHook", "sluice_clickhouse", "Sluice: ClickHouse",
            {"host": "ch.example.com", "port": "8443", "login": "sluice", "schema": "https"},
            _RECEIVER, labels={"schema": "https or http"},
        ),
        _type(
            "ElasticsearchHook", "sluice_elasticsearch", "Sluice: Elasticsearch or OpenSearch",
            {"host": "search.example.com", "port": "9200", "login": "sluice", "schema": "https"},
            {**_RECEIVER, "api_key": _text("API key", "In the encoded form; then no password", secret=True)},
            labels={"schema": "https or http"},
        ),
        _type(
            "MongoDBHook", "sluice_mongodb", "Sluice: MongoDB",
            {"host": "a.example.com,b.example.com", "port": "27017", "login": "sluice", "schema": "admin"},
            {
                "replicaSet": _text("Replica set"),
                "srv": _flag("Host has SRV records", "As in mongodb+srv://"),
                "tls": _flag("TLS"),
                "tlsCAFile": _text("CA file", "PEM file"),
                "tlsCertificateKeyFile": _text("Client certificate and key", "PEM file"),
            },
            labels={"schema": "Database of the user"},
        ),
        _type(
            "OracleHook", "sluice_oracle", "Sluice: Oracle",
            {"host": "ora.example.com", "port": "1521", "login": "sluice", "schema": "FREEPDB1"},
            {
                "protocol": _choice("Protocol", ("tcp", "tcps"), "tcps: TLS"),
                "wallet_location": _text("Wallet", "Folder that has ewallet.pem"),
                "wallet_password": _text("Password of the wallet", secret=True),
                "ssl_server_dn_match": _flag("Compare the server's name", "With its certificate"),
                "sid": _text("SID", "Instead of a service"),
                "dsn": _text("Connect descriptor", "Instead of host, port and service"),
                **_CREDENTIALS,
            },
            labels={"schema": "Service"},
        ),
        _type(
            "RabbitMQHook", "sluice_rabbitmq", "Sluice: RabbitMQ",
            {"host": "mq.example.com", "port": "5671", "login": "sluice", "schema": "/"},
            {"ssl": _flag("TLS"), **_CERTIFICATES, "stream_port": _text("Port of streams", "5551 with TLS, else 5552")},
            labels={"schema": "Virtual host"},
        ),
        _type(
            "RedisHook", "sluice_redis", "Sluice: Redis",
            {"host": "redis.example.com", "port": "6379"},
            {
                "db": _text("Number of the database"),
                "ssl": _flag("TLS"),
                "ssl_ca_certs": _text("CA file", "PEM file"),
                "ssl_certfile": _text("Client certificate", "PEM file"),
                "ssl_keyfile": _text("Private key", "PEM file of the client certificate"),
            },
            hidden=("schema",),
        ),
        _type(
            "ReceiverHook", "sluice_http", "Sluice: HTTP receiver",
            {"host": "https://hooks.example.com/v1", "password": "bearer token, or the password of the login"},
            {**_RECEIVER, "hmac_secret": _text("Key of signatures", secret=True)},
            hidden=("schema",), labels={"host": "Address"},
        ),
    ]  # fmt: skip


def get_provider_info() -> dict[str, Any]:
    """Return the provider's description in Airflow's form."""
    name = "Sluice"
    return {
        "package-name": DISTRIBUTION,
        "name": name,
        "description": "Keeps other data stores in step with MySQL, MariaDB and PostgreSQL.",
        "versions": [__version__],
        "integrations": [{"integration-name": name, "tags": ["software"]}],
        "connection-types": connection_types(),
        "hooks": [{"integration-name": name, "python-modules": [_HOOKS]}],
        "operators": [{"integration-name": name, "python-modules": ["sluice.orchestration.operators"]}],
        "sensors": [{"integration-name": name, "python-modules": ["sluice.orchestration.complete_tables"]}],
        "triggers": [
            {
                "integration-name": name,
                "python-modules": ["sluice.orchestration.triggers", "sluice.orchestration.complete_tables"],
            }
        ],
    }
