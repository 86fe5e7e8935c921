"""The demonstration from PostgreSQL: its pipeline is valid, and every process builds the same stack."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from devstack import commands
from devstack.development import SOURCE, SOURCE_POSTGRESQL, Settings, Stack
from devstack.mysql import Distribution
from devstack.postgresql import PostgreSQLServer
from sluice.config.connections import parse_connection
from sluice.config.loading import load_pipeline
from sluice.errors import ConfigError
from sluice.sources import open_source


@pytest.fixture
def stack(tmp_path: Path) -> Stack:
    Stack(Settings.choose(tmp_path, Distribution("MySQL", "9", (), (), ""), postgresql=True)).save()
    found = Stack.load(tmp_path)
    assert found is not None
    return found


def test_the_pipeline_reads_the_postgresql_server(stack: Stack) -> None:
    env = stack.environment()
    pipeline = load_pipeline(Path(env["SLUICE_PIPELINES"]) / "shop_to_reporting.yaml")
    connection = env[f"AIRFLOW_CONN_{pipeline.source.connection.upper()}"]
    source = open_source(pipeline, lambda name: parse_connection(name, connection))
    server = stack.servers[SOURCE_POSTGRESQL]
    assert isinstance(server, PostgreSQLServer)
    assert (source.kind, json.loads(connection)["port"]) == ("postgresql", server.port)
    assert server.options["wal_level"] == "logical"
    assert SOURCE not in stack.servers
    assert "AIRFLOW_CONN_SHOP_MYSQL" not in env


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"source": "oracle"}, "no source 'oracle'"),
        ({"source": "postgresql", "target": "kafka"}, "the MySQL target only"),
        ({"source": "postgresql", "channel": True}, "the MySQL target only"),
    ],
)
def test_what_the_demo_does_not_have(given: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        commands.demo(**given)  # type: ignore[arg-type]
