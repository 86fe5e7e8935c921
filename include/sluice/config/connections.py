"""Connections by id: Airflow's own notation, read without Airflow (``AIRFLOW_CONN_<ID>``, JSON or URI)."""

from __future__ import annotations

import ipaddress
import json
import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from sluice.errors import ConfigError, MissingConnection


@dataclass(frozen=True)
class Endpoint:
    """Where a server is and how to log in. The password is never shown by ``repr``; ``extra`` may hold TLS paths."""

    connection_id: str
    kind: str
    host: str
    port: int | None = None
    user: str = ""
    password: str = field(default="", repr=False)
    schema: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def address(self) -> str:
        """``host:port`` for messages."""
        return f"{self.host}:{self.port}" if self.port else self.host

    def uri(self, scheme: str, port: int | None, *parts: str) -> str:
        """Return the address of something at the server, without credentials, as OpenLineage names data sets.

        Args:
            port: where the connection names none.
            parts: of the path; empty ones are left out.
        """
        first = (self.host.partition("://")[2] or self.host).split(",")[0].partition("/")[0] or "localhost"
        number = self.port or port
        address = first if ":" in first or number is None else f"{first}:{number}"
        return f"{scheme}://{address}/{'/'.join(quote(part, safe='') for part in parts if part)}"


class ConnectionResolver(Protocol):
    """Finds an Endpoint by connection id. Raises ConfigError if there is none."""

    def __call__(self, connection_id: str, /) -> Endpoint:
        """Return the endpoint of a connection. Raises ConfigError if there is none of that id."""


POSITIONS = "zookeeper_default"
"""The connection to the store of positions that a pipeline has if it names none."""

ENVIRONMENT = "(environment)"
"""Stands for a connection where none is named: a store takes its credentials from the environment of the process."""


@dataclass(frozen=True)
class WithEnvironment:
    """``resolver``, which is not asked for :data:`ENVIRONMENT`. Picklable if ``resolver`` is."""

    resolver: ConnectionResolver

    def __call__(self, connection_id: str, /) -> Endpoint:
        """Return the endpoint of a connection. Raises ConfigError."""
        if connection_id == ENVIRONMENT:
            return Endpoint(ENVIRONMENT, "environment", "")
        return self.resolver(connection_id)


def from_environment(connection_id: str) -> Endpoint:
    """Resolve from ``AIRFLOW_CONN_<ID>``; the same ids work for the command line, Spark workers and Airflow.

    The connection to the store of positions may be the URI in ``SLUICE_STATE`` instead. Raises MissingConnection,
    ConfigError.
    """
    name = f"AIRFLOW_CONN_{connection_id.upper()}"
    text = os.environ.get(name)
    state = os.environ.get("SLUICE_STATE") if connection_id == POSITIONS else None
    if state and text:
        raise ConfigError(
            f"both SLUICE_STATE and {name} say where positions are kept",
            hint="unset one of the two; `sluice state copy` moves positions from one to the other",
        )
    text = state or text
    if text is None:
        raise MissingConnection(
            f"there is no connection {connection_id!r}",
            hint=f"set {name} to a URI, or to JSON in Airflow's notation; the command line knows connections of the "
            "environment only"
            + (
                "; SLUICE_STATE=sqlite:///PATH keeps positions in a file, without ZooKeeper"
                * (connection_id == POSITIONS)
            ),
        )
    return parse_connection(connection_id, text)


OWN_TYPES = "sluice_"
"""The prefix of the connection types that Sluice's Airflow provider adds: ``sluice_mysql`` is a connection of the kind
``mysql``, with a form of its own."""


def kind_of(connection_type: str) -> str:
    """Return the kind that a connection type stands for, with underscores as in Airflow."""
    return connection_type.replace("-", "_").removeprefix(OWN_TYPES)


def parse_connection(connection_id: str, text: str) -> Endpoint:
    """Parse Airflow's JSON or URI notation. Errors never repeat the text, which holds a password."""
    text = text.strip()
    if text.startswith("{"):
        try:
            data = json.loads(text)
            extra = data.get("extra") or {}
            if isinstance(extra, str):
                extra = json.loads(extra)
            port = data.get("port")
            return Endpoint(
                connection_id=connection_id,
                kind=kind_of(data.get("conn_type") or ""),
                host=data.get("host") or "",
                port=int(port) if port not in (None, "") else None,
                user=data.get("login") or "",
                password=data.get("password") or "",
                schema=data.get("schema") or "",
                extra=extra,
            )
        except (ValueError, TypeError, AttributeError):
            raise ConfigError(f"connection {connection_id!r} is not valid JSON in Airflow's notation") from None
    try:
        parts = urlsplit(text)
        query = dict(parse_qsl(parts.query))
        extra = json.loads(query.pop("__extra__")) if "__extra__" in query else query
        _, _, hostport = parts.netloc.rpartition("@")
        hosts = unquote(hostport)
        port = None
        if parts.scheme == "sqlite":  # the path of a file
            hosts, port = "/" + unquote(parts.path).lstrip("/"), None
        elif "," not in hosts:
            hosts, port = unquote(parts.hostname or ""), parts.port
        return Endpoint(
            connection_id=connection_id,
            kind=kind_of(parts.scheme),
            host=hosts,
            port=port,
            user=unquote(parts.username or ""),
            password=unquote(parts.password or ""),
            schema=unquote(parts.path.lstrip("/")),
            extra=extra,
        )
    except (ValueError, TypeError):
        raise ConfigError(f"connection {connection_id!r} is not a valid URI in Airflow's notation") from None


_PORTS = {"http": 80, "https": 443, "abfs": 443, "abfss": 443, "sftp": 22, "ssh": 22, "ftp": 21}
_BUCKETS = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "memory"})
"""Schemes of addresses that begin with the name of a bucket, and not of a server, unless there is an @."""


def require_own_address(endpoint: Endpoint, address: str, where: str) -> None:
    """Raise ConfigError if the login of a connection would go to an address that is not the connection's own.

    Its own are its host and port, those of addresses in its extra, and those of the storage account that the extra
    names. An address without a server, such as a file or a bucket, is taken.
    """
    begin, _, rest = address.partition("://")
    if begin.lower() in _BUCKETS and "@" not in rest.partition("/")[0]:
        return
    named = _server_of(address)
    if not named[0] or not (endpoint.user or endpoint.password or endpoint.extra):
        return
    own = {_server_of(text) for text in _addresses(endpoint.extra)}
    for host in endpoint.host.split(",") if endpoint.host else ():
        bare = host.strip()
        bare = f"[{bare}]" if bare.count(":") > 1 and not {"[", "/"} & set(bare) else bare
        scheme = endpoint.schema if endpoint.schema in _PORTS else urlsplit(address).scheme
        name, port = _server_of(bare if "://" in bare else f"{scheme}://{bare}")
        own.add((name, endpoint.port or port))
    if named not in own:
        raise ConfigError(
            f"the login of connection {endpoint.connection_id!r} goes to the connection's own address only, and "
            f"{where} is another server",
            where=where,
            hint="write the address into the connection (host and port, or the extra), or name a connection of that "
            "server",
        )


def _server_of(address: str) -> tuple[str, int | None]:
    """Return host and port of an address; the host is "" without one, and the address if clients may differ on it."""
    if re.search(r"[\\\s\x00-\x20]|@.*@", address):
        return address, None
    try:
        parts = urlsplit(address)
        return (parts.hostname or "").rstrip("."), parts.port or _PORTS.get(parts.scheme.lower())
    except ValueError:
        return address, None


def _addresses(value: Any) -> list[str]:
    """Return the texts of an extra that are addresses."""
    if isinstance(value, Mapping):
        accounts = [text for name, text in value.items() if str(name).lower().endswith("account_name")]
        azure = [f"https://{name}.{kind}.core.windows.net" for name in accounts for kind in ("blob", "dfs")]
        return [*azure, *(text for part in value.values() for text in _addresses(part))]
    return [value] if isinstance(value, str) and "://" in value else []


def tls_settings(endpoint: Endpoint) -> dict[str, Any]:
    """Return the TLS arguments of ``pymysql.connect`` for the connection's extra: ssl_mode, ssl_ca, ssl_cert, ssl_key.

    Raises ConfigError. ``ssl_mode`` is disabled, preferred (the default; encrypted where the server can, nothing
    verified), required (encrypted, nothing verified; the default with ``credentials``, as a token goes to the server as
    it is), verify_ca, or verify_identity; with ``ssl_ca`` alone the server's
    certificate is verified, but not its name. The flags ``ssl_verify_cert`` and ``ssl_verify_identity`` say the same.
    """
    extra = endpoint.extra
    files = {key: extra[key] for key in ("ssl_ca", "ssl_cert", "ssl_key") if extra.get(key)}
    for key, path in files.items():
        if not os.path.isfile(path):
            raise ConfigError(f"connection {endpoint.connection_id!r}: {key} {path!r} is not a file")
    verify, identity = (
        is_on(extra.get(key, default))
        for key, default in (("ssl_verify_cert", "ssl_ca" in files), ("ssl_verify_identity", False))
    )
    ssl_mode = extra.get("ssl_mode")
    unverified_mode = "required" if extra.get("credentials") else "preferred"
    mode = (
        str(ssl_mode or ("verify_identity" if identity else "verify_ca" if verify else unverified_mode))
        .lower()
        .replace("-", "_")
    )
    if mode == "disabled":
        return {"ssl_disabled": True}
    if mode == "preferred":
        return files
    if mode == "required":
        return files or {"ssl": unverified()}
    if mode in {"verify_ca", "verify_identity"}:
        return {**files, "ssl_verify_cert": True, "ssl_verify_identity": mode == "verify_identity"}
    raise ConfigError(
        f"connection {endpoint.connection_id!r}: ssl_mode {mode!r} does not exist",
        hint="write disabled, preferred, required, verify_ca or verify_identity",
    )


_PROTECTION: dict[str, tuple[tuple[str, ...], str, str]] = {
    "mysql": (
        ("ssl_mode", "ssl_ca", "ssl_verify_cert", "ssl_verify_identity", "unix_socket"), "no certificate is verified",
        '"ssl_mode": "verify_identity", "ssl_ca": "/path/of/ca.pem"',
    ),
    "postgresql": (
        ("sslmode",), "no certificate is verified", '"sslmode": "verify-full", "sslrootcert": "/path/of/ca.pem"'
    ),
    "redis": (("ssl",), "nothing is encrypted", '"ssl": true'),
    "rabbitmq": (("ssl",), "nothing is encrypted", '"ssl": true'),
    "mongodb": (("tls", "ssl", "srv"), "nothing is encrypted", '"tls": true'),
    "kafka": (("security.protocol",), "nothing is encrypted", '"security.protocol": "SASL_SSL"'),
}  # fmt: skip
"""Kind of server -> keys of the extra that decide about TLS, what holds without any of them, the extra to write."""


def unprotected(kind: str, endpoint: Endpoint) -> tuple[str, str] | None:
    """Return what is wrong on the way to a server of another machine, and the extra that protects it.

    None if the extra decides about TLS, whatever it says.
    """
    keys, fault, extra = _PROTECTION.get(kind, ((), "", ""))
    hosts = [host.strip().rsplit(":", 1)[0] if host.count(":") == 1 else host for host in endpoint.host.split(",")]
    here = all(not host or host.startswith("/") or is_loopback(host) for host in hosts)
    if here or not keys or any(endpoint.extra.get(key) not in (None, "") for key in keys):
        return None
    return fault, extra


def is_loopback(host: str) -> bool:
    """Return True for an address that only this machine reaches."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip().strip("[]")).is_loopback
    except ValueError:
        return False


def is_on(value: Any) -> bool:
    """Return True for a switch that is on, as a boolean or as one of the words for it."""
    return value if isinstance(value, bool) else str(value).lower() in {"1", "true", "yes", "on"}


@cache
def unverified() -> ssl.SSLContext:
    """Return a TLS context without certificate verification.

    One per process: loading the system's certificates takes 20 ms.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


@cache
def httpx_tls() -> ssl.SSLContext:
    """Return the TLS context that httpx makes for each request.

    One per process: httpx loads the certificates for an http:// address too, which takes 70 ms.
    """
    import httpx

    return httpx.create_ssl_context()
