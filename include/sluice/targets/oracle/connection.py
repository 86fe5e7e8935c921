"""A session on the target, and the driver's errors as Sluice's."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import oracledb

from sluice.config.connections import Endpoint, is_on
from sluice.config.credentials import logged_in
from sluice.errors import ConfigError, SluiceError, TargetUnavailable
from sluice.targets.sql.bisect import Refused
from sluice.targets.sql.loader import Contention

LOCK_WAIT_S = 20
"""Seconds that a statement waits for another session's lock, unless the target sets another limit."""
CALL_S = 600
"""Seconds that a call to the server may take, unless the target sets another limit."""
_CONNECT_TIMEOUT_S = 8
_DEFAULT_PORT, _DEFAULT_TLS_PORT = 1521, 2484

NOT_UNIQUE, NOT_THERE = 1, 942
"""ORA-00001: a key exists already. ORA-00942: the table does not exist, or may not be seen."""
CONTENTION = frozenset({54, 60, 4020, 4021, 8177, 30006, 14411})
"""Busy rows or tables, deadlocks and lock waits: the same transaction may succeed at once."""
_DENIED = frozenset({1017, 1031, 1045, 28000, 28001, 12505, 12514, 12516, 1435})
_GONE = frozenset({
    28, 604, 1012, 1033, 1034, 1089, 1090, 1092, 1109, 2396, 3113, 3114, 3135, 12170, 12528, 12537, 12541, 12547, 12571,
    1653, 1654, 1536, 257, 19502,
})  # fmt: skip
_DENIED_BY_DRIVER = ("DPY-4001", "DPY-6001", "DPY-6003", "DPY-3015")
_CONNECTION_ID = re.compile(r"\(CONNECTION_ID=[^)]*\)")
_TLS_BY_DRIVER = ("DPY-6006", "DPY-4033")
_GONE_BY_DRIVER = ("DPY-1001", "DPY-4011", "DPY-4024", "DPY-6000", "DPY-6002", "DPY-6004", "DPY-6005", "DPY-6010")
CANCELED = 1013
_DATA = frozenset({
    1, 1400, 1401, 1407, 1438, 1426, 1455, 1460, 1461, 1465, 1483, 1722, 1727, 1830, 1841, 1843, 1847, 1850, 1858, 1861,
    1873, 2290, 2291, 2292, 6502, 12899, 22835, 25128, 30926,
})  # fmt: skip
_RAISED = range(20000, 21000)
VALUE_REFUSED, NOT_FOUND = "value", "row"
"""The codes of Sluice's own errors: for a value that the target cannot hold, and for a row that is not there."""

_WORDS = (
    "sid", "protocol", "wallet_location", "wallet_password", "config_dir", "ssl_server_cert_dn", "https_proxy",
    "https_proxy_port",
)  # fmt: skip
_SWITCHES = ("ssl_server_dn_match", "use_sni")


class DataErrors:
    """The codes that can be the fault of a row: values that do not fit, keys, checks, foreign keys, triggers that
    refuse.
    """

    def __contains__(self, code: object) -> bool:
        return code == VALUE_REFUSED or (isinstance(code, int) and (code in _DATA or code in _RAISED))


DATA_ERRORS = DataErrors()


def settings_of(endpoint: Endpoint) -> dict[str, Any]:
    """Return the arguments of ``oracledb.connect`` that say where the server is. Raises ConfigError."""
    extra = endpoint.extra
    settings: dict[str, Any] = {name: str(extra[name]) for name in _WORDS if extra.get(name) not in (None, "")}
    for name in _SWITCHES:
        if name in extra:
            settings[name] = is_on(extra[name])
    wallet = settings.get("wallet_location")
    if wallet and not os.path.isdir(wallet):
        raise ConfigError(f"connection {endpoint.connection_id!r}: wallet_location {wallet!r} is not a folder")
    if extra.get("dsn"):
        return {**settings, "dsn": str(extra["dsn"])}
    secure = settings.get("protocol") == "tcps"
    if not endpoint.schema and "sid" not in settings:
        raise ConfigError(
            f"connection {endpoint.connection_id!r} names no service",
            hint="set its schema to the service name (FREEPDB1), or its extra's sid or dsn",
        )
    settings["host"] = endpoint.host or "127.0.0.1"
    settings["port"] = endpoint.port or (_DEFAULT_TLS_PORT if secure else _DEFAULT_PORT)
    if "sid" not in settings:
        settings["service_name"] = endpoint.schema
    return settings


def location_of(endpoint: Endpoint, *names: str) -> str:
    """Return the URI of something in the service of a connection, without credentials."""
    settings = settings_of(endpoint)
    service = str(settings.get("service_name") or settings.get("sid") or settings.get("dsn"))
    return endpoint.uri("oracle", settings.get("port"), service, *names)


def connect(endpoint: Endpoint, program: str = "sluice", call_s: int = CALL_S) -> Any:
    """Open a session in UTC that compares texts byte by byte.

    Raises:
        TargetUnavailable: no answer.
        ConfigError: wrong user, password or service, or TLS is set up wrongly.
    """
    settings = settings_of(endpoint)
    with errors(endpoint, "connecting"):
        connection = logged_in(
            endpoint,
            lambda password: oracledb.connect(
                user=endpoint.user,
                password=password,
                tcp_connect_timeout=_CONNECT_TIMEOUT_S,
                retry_count=0,
                expire_time=1,
                program=program,
                **settings,
            ),
            lambda error: isinstance(error, oracledb.Error) and code_of(error) in _DENIED,
        )
    try:
        with errors(endpoint, "setting the session up"):
            connection.call_timeout = call_s * 1000
            with connection.cursor() as cursor:
                for setting in ("TIME_ZONE = '+00:00'", "NLS_COMP = BINARY", "NLS_SORT = BINARY"):
                    cursor.execute(f"ALTER SESSION SET {setting}")
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def errors(endpoint: Endpoint, doing: str, where: str | None = None) -> Iterator[None]:
    """Turn the driver's exceptions into Sluice's. Deadlocks and lock waits become :class:`Contention`."""
    try:
        yield
    except SluiceError:
        raise
    except oracledb.Error as error:
        raise _ours(endpoint, doing, where or f"{endpoint.connection_id} ({endpoint.address})", error) from error
    except OSError as error:
        raise TargetUnavailable(
            f"the target does not answer while {doing}: {error}", where=where or endpoint.address
        ) from error


def code_of(error: oracledb.Error) -> int:
    """Return the number of the server's error (ORA-…); 0 for the driver's own."""
    details = error.args[0] if error.args else None
    return int(getattr(details, "code", 0) or 0)


def _ours(endpoint: Endpoint, doing: str, place: str, error: oracledb.Error) -> SluiceError:
    code, text = code_of(error), said(error)
    full = str(getattr(error.args[0] if error.args else None, "full_code", "") or "")
    if code in CONTENTION:
        return Contention(f"the target was busy while {doing}: {text}", where=place)
    if code in _DENIED or full in _DENIED_BY_DRIVER:
        return ConfigError(
            f"the target refused connection {endpoint.connection_id!r} (user {endpoint.user!r}) while {doing}: {text}",
            where=place,
            hint=f"check login, password and service (schema) of connection {endpoint.connection_id}, and its "
            "privileges (docs/oracle-target.md)",
        )
    named = _CONNECTION_ID.sub("", text)  # a random one has any letters
    if full in _TLS_BY_DRIVER or "SSL" in named or "certificate" in named:
        return ConfigError(
            f"the target and connection {endpoint.connection_id!r} do not agree on TLS while {doing}: {text}",
            where=place,
            hint="check protocol (tcps), wallet_location and ssl_server_dn_match in the extra of connection "
            f"{endpoint.connection_id}",
        )
    recoverable = bool(getattr(error.args[0] if error.args else None, "isrecoverable", False))
    if recoverable or code in _GONE or full in _GONE_BY_DRIVER or (code == 0 and not full):
        return TargetUnavailable(
            f"the target does not answer while {doing}: {text or 'the connection was lost'}",
            where=place,
            hint="is the server up, and is options.call_timeout long enough? The same batch is tried again",
        )
    refused = Refused(f"the target refused a statement while {doing}: {text}", where=place)
    refused.code = code
    refused.discreet = f"the target refused a statement while {doing}: {full or f'ORA-{code:05d}'}"
    return refused


def said(error: oracledb.Error) -> str:
    """Return the first lines of the server's message."""
    details = error.args[0] if error.args else None
    text = str(getattr(details, "message", "") or error)
    return " ".join(text.split("\nHelp:")[0].split())[:500]


def probe(endpoint: Endpoint) -> str:
    """Log in and return the server's version. Raises ConfigError, TargetUnavailable."""
    connection = connect(endpoint, "sluice probe")
    try:
        return f"Oracle Database {connection.version}"
    finally:
        connection.close()
