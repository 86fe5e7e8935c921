"""Somebody on the way as the attacker: ``sluice check`` names the connections that a default leaves open."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sluice.config.connections import Endpoint, from_environment, unprotected
from sluice.config.loading import load_pipeline
from sluice.flows.runtime import Runtime
from sluice.operations import check

PIPELINE = """
version: 1
pipeline: shop
source: {connection: shop}
capture: {include: ["shop\\\\..*"]}
targets:
  - {name: copy, type: postgresql, connection: copy}
  - {name: cache, type: redis, connection: cache}
"""

OPEN: list[tuple[str, dict[str, Any], str]] = [
    ("mysql", {"ssl_mode": "verify_identity"}, "no certificate is verified"),
    ("postgresql", {"sslmode": "verify-full"}, "no certificate is verified"),
    ("redis", {"ssl": True}, "nothing is encrypted"),
    ("rabbitmq", {"ssl": True}, "nothing is encrypted"),
    ("mongodb", {"tls": True}, "nothing is encrypted"),
    ("kafka", {"security.protocol": "SSL"}, "nothing is encrypted"),
]


@pytest.mark.parametrize(("kind", "extra", "fault"), OPEN)
def test_a_default_is_told_and_a_decision_is_not(kind: str, extra: dict[str, Any], fault: str) -> None:
    for host in ("db.example", "192.0.2.1", "127.0.0.1,db.example:1234", "2001:db8::1", "localhost.example"):
        assert (unprotected(kind, Endpoint("c", kind, host)) or ("",))[0] == fault, host
        assert unprotected(kind, Endpoint("c", kind, host, extra=extra)) is None, host
    for host in ("localhost", "127.0.0.1", "::1", "[::1]", "/var/run/db", "", "127.0.0.1:1,127.0.0.2:2"):
        assert unprotected(kind, Endpoint("c", kind, host)) is None, host


def test_check_warns_of_each_connection_once_and_shows_no_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, kind, extra in (
        ("shop", "mysql", {}),
        ("copy", "postgres", {"sslmode": "require"}),
        ("cache", "redis", {}),
    ):
        text = {"conn_type": kind, "host": "db.example", "login": "me", "password": "hunter2", "extra": extra}
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(text))
    path = tmp_path / "shop.yaml"
    path.write_text(PIPELINE)
    runtime = Runtime.build(load_pipeline(path), resolver=from_environment, runner="local")
    found = check._unprotected(runtime)
    assert [(one.severity, one.part, one.value) for one in found] == [
        ("warning", "source", "connection shop"),
        ("warning", "target cache", "connection cache"),
    ]
    assert "verify_identity" in found[0].fix
    assert "hunter2" not in str(found)
    assert found[0] in _asked_nothing(runtime, monkeypatch)


def test_check_reports_a_connection_that_nobody_asks_for_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, kind in (("shop", "mysql"), ("copy", "postgres"), ("cache", "redis")):
        text = {"conn_type": kind, "host": "localhost", "login": "me", "extra": {"credentials": "rds_iam"}}
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(text))
    path = tmp_path / "shop.yaml"
    path.write_text(PIPELINE)
    [finding] = check._unprotected(Runtime.build(load_pipeline(path), resolver=from_environment, runner="local"))
    assert (finding.severity, finding.part, finding.value) == ("error", "target cache", "connection cache")
    assert "the client of redis does not ask" in finding.why


def _asked_nothing(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, ...]:
    """The findings of a check that reaches no server."""
    monkeypatch.setattr(check, "_guard", lambda part, look: [])
    return check.check(runtime).findings
