"""TLS settings of a target's connection."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluice.config.connections import Endpoint, parse_connection
from sluice.errors import ConfigError, SluiceError
from sluice.targets.mysql.connection import connect


def cipher(endpoint: Endpoint) -> str:
    connection = connect(endpoint)
    try:
        with connection.cursor() as cursor:
            cursor.execute("SHOW STATUS LIKE 'Ssl_cipher'")
            return str(cursor.fetchone()[1])
    finally:
        connection.close()


@pytest.fixture
def endpoint(mysql_target: Any) -> Endpoint:
    return parse_connection("target", mysql_target.connection_json())


def test_modes(endpoint: Endpoint) -> None:
    offered = bool(cipher(endpoint))
    assert cipher(replace(endpoint, extra={"ssl_mode": "DISABLED"})) == ""
    if offered:
        assert cipher(replace(endpoint, extra={"ssl_mode": "required"}))
        with pytest.raises(SluiceError):  # signed by nobody we know
            cipher(replace(endpoint, extra={"ssl_mode": "verify-identity"}))
    else:
        with pytest.raises(SluiceError):
            cipher(replace(endpoint, extra={"ssl_mode": "required"}))


def test_own_authority(endpoint: Endpoint, mysql_target: Any) -> None:
    authority = Path(mysql_target.data_dir) / "ca.pem"
    if not authority.exists():
        pytest.skip("this server made no certificates")
    assert cipher(replace(endpoint, extra={"ssl_mode": "verify_ca", "ssl_ca": str(authority)}))


def test_unknown_mode(endpoint: Endpoint) -> None:
    with pytest.raises(ConfigError, match="'sometimes' does not exist"):
        connect(replace(endpoint, extra={"ssl_mode": "sometimes"}))
