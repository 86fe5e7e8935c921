"""A session on the target, set up like an applier's, and the driver's errors as Sluice's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import psycopg
from psycopg.adapt import Dumper
from psycopg.pq import Format

from sluice.config.connections import Endpoint
from sluice.errors import ConfigError, LoadError, SluiceError, TargetUnavailable
from sluice.targets.sql.loader import Contention

Connection: TypeAlias = "psycopg.Connection[tuple[Any, ...]]"

LOCK_WAIT_S = 20
"""Seconds that a statement waits for another session's lock, unless the target sets another limit."""
IDLE_S = 60
"""Seconds after which the server ends a silent transaction, so that a loader that was paused inside one releases its
locks.
"""
_CONNECT_TIMEOUT_S = 8
_DEAD_MS = 60_000

CONTENTION = frozenset({"40001", "40P01", "55P03"})
"""The errors after which the same transaction may succeed at once."""
NOT_THERE = frozenset({"42P01", "3F000"})
"""The server's error codes if a table, or its schema, does not exist yet."""
CANCELED = "57014"
_DENIED = frozenset({"28000", "28P01", "42501", "3D000"})
_GONE_CLASSES = ("08", "53", "57", "58")
_GONE = frozenset({"25006", "25P03", "XX000"})


class DataErrors:
    """The codes that can be the fault of a row: values that do not fit, keys, checks, foreign keys, triggers that
    refuse, too long index entries.
    """

    def __contains__(self, code: object) -> bool:
        text = str(code)
        return text[:2] in {"22", "23", "44"} or text in {"P0001", "54000"}


DATA_ERRORS = DataErrors()

_FILES = ("sslrootcert", "sslcert", "sslkey", "sslcrl", "passfile")
_WORDS = (
    "sslmode", "sslpassword", "ssl_min_protocol_version", "sslnegotiation", "channel_binding", "require_auth",
    "gssencmode", "krbsrvname",
    "target_session_attrs", "load_balance_hosts", "hostaddr",
)  # fmt: skip


class Refused(LoadError):
    """The server refused a statement. ``discreet``: the message without values."""

    discreet: str = ""


class Binary:
    """A value in the server's own format."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data


class _BinaryDumper(Dumper):  # type: ignore[misc]
    format = Format.BINARY

    def dump(self, obj: Any) -> bytes:
        return bytes(obj.data)


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


def connect(endpoint: Endpoint, application: str = "sluice") -> Connection:
    """Open a session in UTC and UTF-8, read committed, that finds objects only by their schema.

    Raises:
        TargetUnavailable: no answer.
        ConfigError: wrong user, password or database, or TLS is set up wrongly.
    """
    settings = settings_of(endpoint)
    with errors(endpoint, "connecting"):
        connection: Connection = psycopg.connect(
            host=endpoint.host or "127.0.0.1",
            port=endpoint.port or 5432,
            user=endpoint.user or None,
            password=endpoint.password or None,
            dbname=endpoint.schema or None,
            connect_timeout=_CONNECT_TIMEOUT_S,
            client_encoding="UTF8",
            application_name=application,
            keepalives_idle=20,
            keepalives_interval=5,
            tcp_user_timeout=_DEAD_MS,
            autocommit=True,
            prepare_threshold=None,
            **settings,
        )
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
    code, text = error.sqlstate or "", said(error)
    if code in CONTENTION:
        return Contention(f"the target was busy while {doing}: {text}", where=place)
    if code in _DENIED or (not code and "authentication failed" in text):
        return ConfigError(
            f"the target refused connection {endpoint.connection_id!r} (user {endpoint.user!r}) while {doing}: {text}",
            where=place,
            hint=f"check login, password and database (schema) of connection {endpoint.connection_id}, and its grants "
            "(docs/postgresql-target.md)",
        )
    if not code and ("certificate" in text or "SSL" in text):
        return ConfigError(
            f"the target and connection {endpoint.connection_id!r} do not agree on TLS while {doing}: {text}",
            where=place,
            hint=f"check sslmode, sslrootcert, sslcert and sslkey in the extra of connection {endpoint.connection_id}",
        )
    if not code or code[:2] in _GONE_CLASSES or code in _GONE or isinstance(error, psycopg.InterfaceError):
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
    said = ", ".join(f"{what} {name}" for what, name in named if name)
    return f"{type(error).__name__}{f', {said}' if said else ''}"


def said(error: psycopg.Error) -> str:
    """Return the server's words, with its detail, which contains the key of a refused row."""
    primary = error.diag.message_primary
    if not primary:
        return " ".join(str(error).split())[:300]
    detail = error.diag.message_detail
    return f"{primary}: {detail}"[:500] if detail else primary[:300]


def probe(endpoint: Endpoint) -> str:
    """Log in and return the server's version. Raises ConfigError, TargetUnavailable."""
    with connect(endpoint, "sluice probe") as connection, errors(endpoint, "connecting"):
        found = connection.execute("SHOW server_version").fetchone()
    return f"PostgreSQL {found[0] if found else ''}"
