"""Airflow's connection notation, both forms; a password never shows."""

from __future__ import annotations

import pytest

from sluice.config.connections import from_environment, parse_connection
from sluice.errors import ConfigError


def test_json_and_uri_say_the_same() -> None:
    as_json = parse_connection(
        "x",
        '{"conn_type":"mysql","host":"db","port":3307,"login":"u","password":"p@/:","schema":"s","extra":{"ssl_ca":"/ca"}}',
    )
    as_uri = parse_connection("x", "mysql://u:p%40%2F%3A@db:3307/s?ssl_ca=%2Fca")
    assert as_json == as_uri
    assert as_uri.password == "p@/:"
    assert as_uri.address == "db:3307"


def test_several_hosts() -> None:
    assert parse_connection("zk", "zookeeper://a:1,b:2,c:3").host == "a:1,b:2,c:3"


def test_repr_hides_the_password() -> None:
    assert "secret" not in repr(parse_connection("x", "mysql://u:secret@db:3307/s?password2=secret"))


@pytest.mark.parametrize("text", ['{"conn_type": "mysql", "password": "secret"', "mysql://u:secret@db:notaport/"])
def test_a_broken_connection_is_named_and_its_text_is_not(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_connection("shop", text)
    assert "'shop'" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_missing_connection_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_SHOP", raising=False)
    with pytest.raises(ConfigError, match="AIRFLOW_CONN_SHOP"):
        from_environment("shop")
