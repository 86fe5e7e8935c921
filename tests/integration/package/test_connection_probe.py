"""The *Test* button: the hook of each connection type logs in at a real server, and says what is wrong if it cannot."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from sluice.config.connections import Endpoint, parse_connection
from sluice.errors import ConfigError, RetryableError
from sluice.operations.connection_probe import probe
from sluice.orchestration.hooks import MySQLHook

SERVERS = {
    "mysql_source": "MySQL",
    "zookeeper": "ZooKeeper",
    "mariadb": "MariaDB",
    "postgresql": "PostgreSQL",
    "kafka": "Kafka",
    "redis_server": "Redis",
    "clickhouse": "ClickHouse",
    "elasticsearch": "cluster ",
    "opensearch": "cluster ",
    "ferretdb": "MongoDB",
    "rabbitmq": "RabbitMQ",
}
QUICK = {"mysql_source", "zookeeper"}


@pytest.mark.parametrize(
    "fixture", [name if name in QUICK else pytest.param(name, marks=pytest.mark.full) for name in SERVERS]
)
def test_a_login_that_works_says_what_answers_and_one_that_does_not_why(
    fixture: str, request: pytest.FixtureRequest
) -> None:
    server = request.getfixturevalue(fixture)
    endpoint = parse_connection("tried", server.connection_json())
    assert probe(endpoint).startswith(SERVERS[fixture])
    nobody = _without_a_server(endpoint)
    with pytest.raises((RetryableError, ConfigError)):
        probe(nobody)


def _without_a_server(endpoint: Endpoint) -> Endpoint:
    """The same connection, to a port at which nothing listens."""
    if "bootstrap.servers" in endpoint.extra:
        return replace(
            endpoint, extra={**endpoint.extra, "bootstrap.servers": "127.0.0.1:1", "socket.timeout.ms": 2000}
        )
    return replace(endpoint, host="127.0.0.1", port=1)


def test_the_hook_tells_airflow(mysql_source: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given = json.loads(mysql_source.connection_json())
    monkeypatch.setenv("AIRFLOW_CONN_TRIED", json.dumps({**given, "conn_type": "sluice_mysql"}))
    works, said = MySQLHook("tried").test_connection()
    assert works, said
    assert said.startswith("MySQL")
    monkeypatch.setenv("AIRFLOW_CONN_TRIED", json.dumps({**given, "conn_type": "sluice_mysql", "password": "wrong"}))
    works, said = MySQLHook("tried").test_connection()
    assert not works
    assert "refuses user" in said
    assert "wrong" not in said
