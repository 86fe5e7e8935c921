"""Connections to a PostgreSQL source, in which a value has one text, and the driver's errors as Sluice's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg

from sluice.config.connections import Endpoint
from sluice.errors import ConfigError, PreflightError, SluiceError, SourceUnavailable
from sluice.postgresql import connection as driver
from sluice.postgresql.connection import Connection

SESSION: Mapping[str, str] = {
    "datestyle": "ISO,YMD",
    "intervalstyle": "postgres",
    "timezone": "UTC",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "lc_monetary": "C",
    "xmloption": "content",
    "quote_all_identifiers": "off",
    "search_path": "pg_catalog",
    "standard_conforming_strings": "on",
    "row_security": "off",
}
"""What the text of a value depends on. With ``row_security = off`` the server refuses to read a table whose rows it
would hide, in place of leaving them out."""
_QUESTION: Mapping[str, str] = {
    "statement_timeout": "60s",
    "lock_timeout": "10s",
    "idle_in_transaction_session_timeout": "60s",
    "default_transaction_read_only": "on",
}
"""The deadlines of a session for questions."""
_CANCELED = frozenset({"57014", "40001", "40P01"})
"""A deadline; at a standby a conflict with what it replays; a deadlock."""

_LIMIT = "53400"
_MORE_SLOTS = (
    "raise max_replication_slots at this server and restart it, or drop a slot that no reader needs: "
    "pg_replication_slots has all"
)


def open_session(endpoint: Endpoint, application: str = "sluice", **settings: str) -> Connection:
    """Open a session for questions, in which every value has the text that the log has. You close it.

    ``settings``: parameters of the server; they win over the session's own deadlines.

    Raises SourceUnavailable; ConfigError for a refused login or wrong TLS settings.
    """
    with source_errors(endpoint, "connecting to the source"):
        return driver.connect(endpoint, application, settings={**SESSION, **_QUESTION, **settings})


@contextmanager
def connected(endpoint: Endpoint, application: str = "sluice", **settings: str) -> Iterator[Connection]:
    """Yield an :func:`open_session`; what is raised in the block stays as it is."""
    connection = open_session(endpoint, application, **settings)
    try:
        yield connection
    finally:
        connection.close()


def rows_of(connection: Connection, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """Run a statement and return its rows. ``sql`` is made of quoted names and placeholders only."""
    with connection.cursor() as cursor:
        cursor.execute(sql.encode(), parameters or None)
        return list(cursor.fetchall()) if cursor.description is not None else []


@contextmanager
def source_errors(endpoint: Endpoint, doing: str) -> Iterator[None]:
    """Turn psycopg's errors into Sluice's. The password is never shown.

    Raises:
        ConfigError: the login, the database or TLS is refused.
        SourceUnavailable: the connection, a deadline, or the server's state; it passes by itself.
        PreflightError: everything else that the server refuses.
    """
    try:
        yield
    except SluiceError:
        raise
    except psycopg.Error as error:
        raise _ours(endpoint, doing, error) from error
    except OSError as error:
        raise SourceUnavailable(f"{doing}: {error}", where=_where(endpoint)) from error


def _where(endpoint: Endpoint) -> str:
    return f"connection {endpoint.connection_id}, {endpoint.address}"


def _ours(endpoint: Endpoint, doing: str, error: psycopg.Error) -> SluiceError:
    code, text, where = error.sqlstate or "", driver.said(error), _where(endpoint)
    if code == driver.NO_RIGHT:
        return PreflightError(
            f"{doing}: the server refuses it to user {endpoint.user!r}: {text}",
            where=where,
            hint="`sluice check PIPELINE` names every right that is missing, with its GRANT",
        )
    if driver.is_denied(error):
        return ConfigError(
            f"{doing}: the server refuses user {endpoint.user!r}: {text}",
            where=where,
            hint=f"check login, password and database (schema) of connection {endpoint.connection_id}",
        )
    if driver.is_about_tls(error):
        return ConfigError(
            f"{doing}: the server and the connection do not agree on TLS: {text}",
            where=where,
            hint=f"check sslmode, sslrootcert, sslcert and sslkey in the extra of connection {endpoint.connection_id}",
        )
    if code in _CANCELED or driver.is_gone(error):
        return SourceUnavailable(
            f"{doing}: {text or 'the connection was lost'}{f' ({code})' if code else ''}",
            where=where,
            hint=_MORE_SLOTS if code == _LIMIT else None,
        )
    return PreflightError(f"{doing}: the server says: {text} ({code})", where=where)


__all__ = ["SESSION", "connected", "open_session", "rows_of", "source_errors"]
