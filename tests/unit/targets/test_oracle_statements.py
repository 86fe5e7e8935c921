"""The statements that an Oracle target runs, against those that are kept; the driver's errors, without a server."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import pytest

from sluice.config.connections import Endpoint
from sluice.errors import ConfigError, LoadError, SluiceError, TargetUnavailable
from sluice.targets.sql.loader import Contention
from tests.support.twins.oracle_statements import KEPT, text

oracledb = pytest.importorskip("oracledb")

from sluice.targets.oracle.connection import DATA_ERRORS, connect, errors, settings_of  # noqa: E402

ENDPOINT = Endpoint("ora", "oracle", "127.0.0.1", 1, "sluice", "s3cret", "FREEPDB1")


def test_the_statements_are_those_that_are_kept() -> None:
    assert text() == KEPT.read_text(encoding="utf-8"), "python -m tests.support.twins.oracle_statements, then read it"


@pytest.mark.parametrize(
    ("code", "full", "kind", "of_a_row"),
    [
        (1, "ORA-00001", LoadError, True),
        (12899, "ORA-12899", LoadError, True),
        (20100, "ORA-20100", LoadError, True),
        (904, "ORA-00904", LoadError, False),
        (60, "ORA-00060", Contention, False),
        (30006, "ORA-30006", Contention, False),
        (1017, "ORA-01017", ConfigError, False),
        (3113, "ORA-03113", TargetUnavailable, False),
        (0, "DPY-4011", TargetUnavailable, False),
        (0, "DPY-4024", TargetUnavailable, False),
        (0, "DPY-6001", ConfigError, False),
        (0, "DPY-4008", LoadError, False),
    ],
)
def test_errors_of_the_driver(code: int, full: str, kind: type[SluiceError], of_a_row: bool) -> None:
    said = SimpleNamespace(code=code, full_code=full, message=f"{full}: no\nHelp: https://…", isrecoverable=False)
    with pytest.raises(kind, match=full) as caught, errors(ENDPOINT, "loading"):
        raise oracledb.DatabaseError(said)
    assert type(caught.value) is kind or kind is LoadError
    assert (getattr(caught.value, "code", None) in DATA_ERRORS) is of_a_row
    assert "Help" not in caught.value.message


def test_a_server_that_is_not_there() -> None:
    """The driver itself is asked."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    nowhere = Endpoint("ora", "oracle", "127.0.0.1", port, "sluice", "s3cret", "FREEPDB1")
    with pytest.raises(TargetUnavailable) as caught:
        connect(nowhere)
    assert "s3cret" not in str(caught.value)


SETTINGS: dict[str, tuple[Endpoint, Any]] = {
    "service": (ENDPOINT, {"host": "127.0.0.1", "port": 1, "service_name": "FREEPDB1"}),
    "sid": (Endpoint("o", "oracle", "h", extra={"sid": "X"}), {"host": "h", "port": 1521, "sid": "X"}),
    "dsn": (Endpoint("o", "oracle", "h", extra={"dsn": "h:1/x"}), {"dsn": "h:1/x"}),
    "tls": (
        Endpoint("o", "oracle", "h", schema="s", extra={"protocol": "tcps", "ssl_server_dn_match": "false"}),
        {"host": "h", "port": 2484, "service_name": "s", "protocol": "tcps", "ssl_server_dn_match": False},
    ),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_connections(name: str) -> None:
    endpoint, settings = SETTINGS[name]
    assert settings_of(endpoint) == settings


def test_a_connection_without_a_service_is_refused() -> None:
    with pytest.raises(ConfigError, match="names no service"):
        settings_of(Endpoint("o", "oracle", "h"))
