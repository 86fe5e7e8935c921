"""How a connection to a PostgreSQL server is opened, whatever it is for, and what its errors say."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, TypeAlias

import psycopg

from sluice.config.connections import Endpoint
from sluice.config.credentials import logged_in
from sluice.errors import ConfigError

Connection: TypeAlias = "psycopg.Connection[tuple[Any, ...]]"

CONNECT_TIMEOUT_S = 8
DEAD_MS = 60_000
"""Milliseconds after which a connection is dead whose data the other side does not acknowledge."""

NO_RIGHT = "42501"
"""The server's error code for a right that the login does not have."""
DENIED = frozenset({"28000", "28P01", NO_RIGHT, "3D000"})
"""The server's error codes for a login, a database or a right that the connection does not have."""
GONE_CLASSES = ("08", "53", "57", "58")
GONE = frozenset({"25006", "25P03", "XX000"})
"""The classes of errors, and the errors, that pass by themselves: the connection, the server's resources, a restart."""

_FILES = ("sslrootcert", "sslcert", "sslkey", "sslcrl", "passfile")
_WORDS = (
    "sslmode", "sslpassword", "ssl_min_protocol_version", "sslnegotiation", "channel_binding", "require_auth",
    "gssencmode", "krbsrvname",
    "target_session_attrs", "load_balance_hosts", "hostaddr",
)  # fmt: skip


def settings_of(endpoint: Endpoint) -> dict[str, Any]:
    """Return the settings in the connection's extra that libpq knows by the same names (``sslmode``, ``sslrootcert``,
    …). Raises ConfigError.
    """
    extra = endpoint.extra
    for name in _FILES:
        path = extra.get(name)
        if path and path != "system" and not os.path.isfile(str(path)):
            raise ConfigError(f"connection {endpoint.connection_id!r}: {name} {path!r} is not a file")
    return {name: str(extra[name]) for name in (*_FILES, *_WORDS) if extra.get(name) not in (None, "")}


def connect(
    endpoint: Endpoint,
    application: str = "sluice",
    *,
    settings: Mapping[str, str] | None = None,
    replication: bool = False,
) -> Connection:
    """Open a connection in UTF-8 and autocommit. Raises what psycopg raises; ConfigError for files that are missing;
    CredentialsUnavailable.

    Args:
        application: ``application_name``, by which people find the session at the server.
        settings: parameters of the server that the session begins with, even one that only replicates.
        replication: the connection speaks the replication protocol, beside SQL (``replication=database``).
    """
    parameters = " ".join(f"-c {name}={_escaped(value)}" for name, value in (settings or {}).items())
    more = {"options": parameters} if parameters else {}
    return logged_in(
        endpoint,
        lambda password: psycopg.connect(
            host=endpoint.host or "127.0.0.1",
            port=endpoint.port or 5432,
            user=endpoint.user or None,
            password=password or None,
            dbname=endpoint.schema or None,
            connect_timeout=CONNECT_TIMEOUT_S,
            client_encoding="UTF8",
            application_name=application,
            keepalives_idle=20,
            keepalives_interval=5,
            tcp_user_timeout=DEAD_MS,
            autocommit=True,
            prepare_threshold=None,
            **({"replication": "database"} if replication else {}),
            **more,
            **settings_of(endpoint),
        ),
        lambda error: isinstance(error, psycopg.Error) and is_denied(error),
    )


def _escaped(value: str) -> str:
    """Write a value for ``options``, where spaces part words and a backslash keeps the next character."""
    return value.replace("\\", "\\\\").replace(" ", "\\ ")


_LOST_OVER_TLS = (
    "error response during SSL exchange",
    "SSL connection has been closed unexpectedly",
    "SSL SYSCALL error",
)
"""libpq's words for a server that goes down or starts, although they name TLS."""


def is_gone(error: psycopg.Error) -> bool:
    """Return True for an error of the connection or of the server's state, which passes by itself."""
    code = error.sqlstate or ""
    return not code or code[:2] in GONE_CLASSES or code in GONE or isinstance(error, psycopg.InterfaceError)


def is_denied(error: psycopg.Error) -> bool:
    """Return True if the server refuses the login, the database or a right."""
    code = error.sqlstate or ""
    return code in DENIED or (not code and "authentication failed" in said(error))


def is_about_tls(error: psycopg.Error) -> bool:
    """Return True if the two sides do not agree on TLS."""
    text = said(error)
    lost = any(words in text for words in _LOST_OVER_TLS)
    return not error.sqlstate and not lost and ("certificate" in text or "SSL" in text)


def said(error: psycopg.Error) -> str:
    """Return the server's words, with its detail, which contains the key of a refused row."""
    primary = error.diag.message_primary
    if not primary:
        return " ".join(str(error).split())[:300]
    detail = error.diag.message_detail
    return f"{primary}: {detail}"[:500] if detail else primary[:300]
