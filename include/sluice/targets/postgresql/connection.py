"""A session on the target, set up like an applier's, and the driver's errors as Sluice's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.adapt import Dumper
from psycopg.pq import Format

from sluice.config.connections import Endpoint
from sluice.errors import ConfigError, SluiceError, TargetUnavailable
from sluice.postgresql import connection as server
from sluice.postgresql.connection import Connection
from sluice.targets.sql.bisect import Refused
from sluice.targets.sql.loader import Contention

LOCK_WAIT_S = 20
"""Seconds that a statement waits for another session's lock, unless the target sets another limit."""
IDLE_S = 60
"""Seconds after which the server ends a silent transaction, so that a loader that was paused inside one releases its
locks.
"""

CONTENTION = frozenset({"40001", "40P01", "55P03"})
"""The errors after which the same transaction may succeed at once."""
_READ_ONLY = "25006"
"""The error code of a standby, or of a session that may only read."""
NOT_THERE = frozenset({"42P01", "3F000"})
"""The server's error codes if a table, or its schema, does not exist yet."""
CANCELED = "57014"


class DataErrors:
    """The codes that can be the fault of a row: values that do not fit, keys, checks, foreign keys, triggers that
    refuse, too long index entries.
    """

    def __contains__(self, code: object) -> bool:
        text = str(code)
        return text[:2] in {"22", "23", "44"} or text in {"P0001", "54000"}


DATA_ERRORS = DataErrors()


class Binary:
    """A value in the server's own format."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data


class _BinaryDumper(Dumper):  # type: ignore[misc]
    format = Format.BINARY

    def dump(self, obj: Any) -> bytes:
        return bytes(obj.data)


def connect(endpoint: Endpoint, application: str = "sluice") -> Connection:
    """Open a session in UTC and UTF-8, read committed, that finds objects only by their schema.

    Raises:
        TargetUnavailable: no answer.
        ConfigError: wrong user, password or database, or TLS is set up wrongly.
    """
    with errors(endpoint, "connecting"):
        connection = server.connect(endpoint, application)
    try:
        with errors(endpoint, "setting the session up"):
            connection.adapters.register_dumper(Binary, _BinaryDumper)
            connection.execute(
                "SET search_path = ''; SET timezone = 'UTC'; SET datestyle = 'ISO'; SET intervalstyle = 'postgres'; "
                "SET bytea_output = 'hex'; "
                "SET extra_float_digits = 1; SET default_transaction_isolation = 'read committed'; SET "
                "standard_conforming_strings = on; "
                f"SET idle_in_transaction_session_timeout = '{IDLE_S}s'; SET lock_timeout = '{LOCK_WAIT_S}s'; SET "
                "statement_timeout = 0; SET enable_hashjoin = off; SET enable_mergejoin = off"  # see Stage.unordered
            )
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def errors(endpoint: Endpoint, doing: str, where: str | None = None) -> Iterator[None]:
    """Turn the driver's exceptions into ours. Deadlocks and lock waits become :class:`Contention`."""
    try:
        yield
    except SluiceError:
        raise
    except psycopg.Error as error:
        raise _ours(endpoint, doing, where or f"{endpoint.connection_id} ({endpoint.address})", error) from error
    except OSError as error:
        raise TargetUnavailable(
            f"the target does not answer while {doing}: {error}", where=where or endpoint.address
        ) from error


def _ours(endpoint: Endpoint, doing: str, place: str, error: psycopg.Error) -> SluiceError:
    code, text = error.sqlstate or "", server.said(error)
    if code in CONTENTION:
        return Contention(f"the target was busy while {doing}: {text}", where=place)
    if server.is_denied(error):
        return ConfigError(
            f"the target refused connection {endpoint.connection_id!r} (user {endpoint.user!r}) while {doing}: {text}",
            where=place,
            hint="`sluice check PIPELINE` names every right that is missing, with its GRANT"
            if code == server.NO_RIGHT
            else f"check login, password and database (schema) of connection {endpoint.connection_id}",
        )
    if server.is_about_tls(error):
        return ConfigError(
            f"the target and connection {endpoint.connection_id!r} do not agree on TLS while {doing}: {text}",
            where=place,
            hint=f"check sslmode, sslrootcert, sslcert and sslkey in the extra of connection {endpoint.connection_id}",
        )
    if code == _READ_ONLY:
        return TargetUnavailable(
            f"the target takes no writes while {doing}: {text}",
            where=place,
            hint="if this server is to be written (a standby that takes over): SELECT pg_promote(); the same batch is "
            "tried again",
        )
    if server.is_gone(error):
        return TargetUnavailable(
            f"the target does not answer while {doing}: {text or 'the connection was lost'}",
            where=place,
            hint="is the server up? the same batch is tried again",
        )
    refused = Refused(f"the target refused a statement while {doing}: {text} (error {code})", where=place)
    refused.code = code
    refused.discreet = f"the target refused a statement while {doing}: {_names(error)} (error {code})"
    return refused


def _names(error: psycopg.Error) -> str:
    """Return what the server says without values: the names of what refused."""
    diag = error.diag
    named = (("constraint", diag.constraint_name), ("column", diag.column_name), ("type", diag.datatype_name))
    names = ", ".join(f"{what} {name}" for what, name in named if name)
    return f"{type(error).__name__}{f', {names}' if names else ''}"


def probe(endpoint: Endpoint) -> str:
    """Log in and return the server's version. Raises ConfigError, TargetUnavailable."""
    with connect(endpoint, "sluice probe") as connection, errors(endpoint, "connecting"):
        version = connection.execute("SHOW server_version").fetchone()
    return f"PostgreSQL {version[0] if version else ''}"
