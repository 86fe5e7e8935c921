"""Open what ``from:`` and ``to:`` of the mapping's files name."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pyarrow as pa
from pyarrow import fs

from sluice.config.connections import Endpoint, require_own_address
from sluice.config.folders import local_folder
from sluice.config.rights import require_listed
from sluice.errors import ConfigError, first_line
from sluice.row_files.local_folder import LocalFolder
from sluice.row_files.object_store import ObjectStore
from sluice.row_files.port import FileSource, FileStore
from sluice.row_files.web_server import WebServer

_CONNECT_S, _ANSWER_S = 10.0, 30.0
_S3_QUERY = frozenset({"region", "scheme", "endpoint_override", "force_virtual_addressing"})
_S3_EXTRA = frozenset({
    "region_name", "endpoint_url", "aws_session_token", "role_arn", "aws_access_key_id", "aws_secret_access_key",
})  # fmt: skip
_PAGE = "docs/row-files.md lists what can be named"


def open_source(address: str, endpoint: Endpoint | None, *, connections: int, timeout: timedelta) -> FileSource:
    """Open a location to read. No I/O. Raises ConfigError.

    ``endpoint``: the connection with its login, None for none.
    """
    if urlsplit(address).scheme in {"http", "https"}:
        if endpoint is not None:
            require_own_address(endpoint, address, _shown(address))
        return WebServer(address, endpoint, connections=connections, timeout_s=timeout.total_seconds())
    return _file_system(address, endpoint, timeout)


def open_store(address: str, endpoint: Endpoint | None, *, timeout: timedelta) -> FileStore:
    """Open a location to write, see :func:`open_source`."""
    return _file_system(address, endpoint, timeout)


def _file_system(address: str, endpoint: Endpoint | None, timeout: timedelta) -> LocalFolder | ObjectStore:
    if folder := local_folder(address):
        return LocalFolder(require_listed(folder))
    scheme = urlsplit(address).scheme
    answer_s = min(_ANSWER_S, timeout.total_seconds())
    try:
        if scheme == "s3":
            return _bucket(address, endpoint, answer_s)
        if endpoint is None:
            if scheme == "gs":
                address += f"{'&' if '?' in address else '?'}retry_limit_seconds={answer_s:g}"
            filesystem, base = fs.FileSystem.from_uri(address)
            if isinstance(filesystem, fs.LocalFileSystem):
                raise ConfigError(f"{_shown(address)} is a folder of this machine", hint="write its absolute path")
            return ObjectStore(filesystem, base, _shown(address))
    except (pa.ArrowException, OSError, ValueError) as error:
        if "Unrecognized filesystem type" not in str(error):
            raise ConfigError(f"{_shown(address)} cannot be opened: {first_line(error)[:200]}", hint=_PAGE) from None
    return _by_fsspec(address, scheme, endpoint, answer_s)


def _bucket(address: str, endpoint: Endpoint | None, answer_s: float) -> ObjectStore:
    """Open a bucket by what its address says, and what its connection adds."""
    parts = urlsplit(address)
    query = dict(parse_qsl(parts.query))
    unknown = sorted(query.keys() - _S3_QUERY)
    if unknown:
        raise ConfigError(
            f"{_shown(address)} has {unknown[0]}, which is not known",
            hint=f"known are {', '.join(sorted(_S3_QUERY))}",
        )
    settings: dict[str, Any] = {
        name: query[name] for name in ("region", "scheme", "endpoint_override") if name in query
    }
    if query.get("force_virtual_addressing", "").lower() in {"1", "true"}:
        settings["force_virtual_addressing"] = True
    if endpoint is not None:
        if "endpoint_override" in settings:
            server = f"{settings.get('scheme', 'https')}://{settings['endpoint_override']}"
            require_own_address(endpoint, server, f"endpoint_override of {_shown(address)}")
        settings |= _login(endpoint)
    bucket = fs.S3FileSystem(connect_timeout=_CONNECT_S, request_timeout=answer_s, **settings)
    return ObjectStore(bucket, f"{parts.netloc}{parts.path}", _shown(address))


def _login(endpoint: Endpoint) -> dict[str, Any]:
    extra = endpoint.extra
    unknown = sorted(extra.keys() - _S3_EXTRA)
    if unknown:
        raise ConfigError(
            f"connection {endpoint.connection_id!r}: extra has {unknown[0]}, which is not known",
            hint=f"known are {', '.join(sorted(_S3_EXTRA))}",
        )
    settings: dict[str, Any] = {}
    key, secret = (
        extra.get("aws_access_key_id") or endpoint.user,
        extra.get("aws_secret_access_key") or endpoint.password,
    )
    if key or secret:
        settings |= {"access_key": key, "secret_key": secret}
    if extra.get("aws_session_token"):
        settings["session_token"] = extra["aws_session_token"]
    if extra.get("role_arn"):
        settings["role_arn"] = extra["role_arn"]
    if extra.get("region_name"):
        settings["region"] = extra["region_name"]
    if extra.get("endpoint_url"):
        server = urlsplit(str(extra["endpoint_url"]))
        settings |= {"scheme": server.scheme, "endpoint_override": server.netloc}
    return settings


def _by_fsspec(address: str, scheme: str, endpoint: Endpoint | None, answer_s: float) -> ObjectStore:
    """Open a file system of fsspec; the connection's login and extra are its options."""
    import fsspec
    from fsspec.implementations.local import LocalFileSystem

    if "::" in address:
        raise ConfigError(f"{_shown(address)} names several file systems", hint=_PAGE)
    if endpoint is not None:
        require_own_address(endpoint, address, _shown(address))
    options: dict[str, Any] = {"timeout": answer_s} if scheme in {"sftp", "ssh", "ftp"} else {}
    if endpoint is not None:
        login = {"host": endpoint.host, "port": endpoint.port, "username": endpoint.user, "password": endpoint.password}
        options |= {**{name: value for name, value in login.items() if value}, **endpoint.extra}
    try:
        system, base = fsspec.core.url_to_fs(address, **options)
    except ImportError as error:
        raise ConfigError(
            f"{_shown(address)} needs a package that is not installed: {first_line(error)[:200]}",
            hint="install it here and on every Spark worker",
        ) from None
    except Exception as error:  # fsspec's kinds raise what they like, with their options in it
        raise ConfigError(f"{_shown(address)} cannot be opened ({type(error).__name__})", hint=_PAGE) from None
    if isinstance(system, LocalFileSystem):
        raise ConfigError(f"{_shown(address)} is a folder of this machine", hint="write its absolute path")
    return ObjectStore(fs.PyFileSystem(fs.FSSpecHandler(system)), base, _shown(address))


def _shown(address: str) -> str:
    return address.partition("?")[0]
