"""Airflow's connections as endpoints; those of Spark by the hook of Airflow's own provider."""

from __future__ import annotations

import json
from typing import Any

import pytest
from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook
from airflow.sdk import BaseSensorOperator

from sluice.errors import ConfigError
from sluice.orchestration.connections import from_airflow
from sluice.orchestration.operators import CaptureOperator, SenseOperator
from sluice.spark.connect import ConnectRunner


def connect(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_WARM", json.dumps({"conn_type": "spark_connect", **fields}))


@pytest.mark.parametrize(
    ("fields", "address", "url"),
    [
        ({"host": "spark"}, "spark", "sc://spark:15002/;user_id=sluice;session_id=s"),
        ({"host": "sc://spark", "port": 1515}, "spark:1515", "sc://spark:1515/;user_id=sluice;session_id=s"),
        ({"host": "sc://spark:1515"}, "spark:1515", "sc://spark:1515/;user_id=sluice;session_id=s"),
        (
            {"host": "spark", "login": "a b", "password": "se;cr=et", "extra": {"use_ssl": True, "more": 1}},
            "spark",
            "sc://spark:15002/;user_id=a%20b;session_id=s;token=se%3Bcr%3Det;use_ssl=true",
        ),
        ({"host": "spark", "extra": {"use_ssl": False}}, "spark", "sc://spark:15002/;user_id=sluice;session_id=s"),
    ],
)
def test_a_spark_connect_server_is_the_one_that_the_providers_hook_finds(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], address: str, url: str
) -> None:
    connect(monkeypatch, **fields)
    found = from_airflow("warm")
    assert (found.kind, found.address) == ("spark_connect", address)
    assert found.password == fields.get("password", "")
    assert found.extra.get("more") == fields.get("extra", {}).get("more")
    assert ConnectRunner(found).url("s") == url
    from pyspark.sql.connect.client import DefaultChannelBuilder

    mine, theirs = DefaultChannelBuilder(url), DefaultChannelBuilder(SparkConnectHook("warm").get_connection_url())
    assert (mine.host, mine.token, mine.secure) == (theirs.host, theirs.token, theirs.secure)
    if "login" in fields:
        assert mine.userId == theirs.userId == fields["login"]


@pytest.mark.parametrize("host", ["sc://spark/path", "spark:port"])
def test_a_connection_that_is_no_address_of_spark_says_so(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    connect(monkeypatch, host=host, password="hidden")
    with pytest.raises(ConfigError, match="the connection warm is no address of a Spark Connect server") as raised:
        from_airflow("warm")
    assert "hidden" not in str(raised.value)


def test_other_connections_are_taken_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", '{"conn_type": "mysql", "host": "db", "port": 3306, "login": "a"}')
    found = from_airflow("shop")
    assert (found.kind, found.address, found.user, found.password) == ("mysql", "db:3306", "a", "")


def test_what_waits_for_changes_is_a_sensor_for_airflow(tmp_path: Any) -> None:
    for sensor in (
        SenseOperator(task_id="drain", pipeline="p", delivers=True),
        SenseOperator(task_id="sense", pipeline="p"),
    ):
        assert isinstance(sensor, BaseSensorOperator)
        assert not sensor.reschedule
        assert "_is_sensor" in type(sensor).get_serialized_fields()
    assert not isinstance(CaptureOperator(task_id="drain", pipeline="p"), BaseSensorOperator)


@pytest.mark.promise("G7")
@pytest.mark.parametrize("variable", ["AIRFLOW_CONN_ZOOKEEPER_DEFAULT", "SLUICE_STATE"])
def test_airflow_keeps_no_positions_in_a_file(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "sqlite:///var/lib/sluice/positions.db")
    with pytest.raises(ConfigError, match="zookeeper_default is a file, and Airflow keeps positions in ZooKeeper"):
        from_airflow("zookeeper_default")
