"""A web server that files are fetched from."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import httpx

from sluice import __version__
from sluice.config.connections import Endpoint
from sluice.config.receiver import Receiver
from sluice.errors import ConfigError, StorageUnavailable
from sluice.row_files.port import PIECE_BYTES, Deadline, FileAbsent, FileChanged, FileRefused, Spool

_ABSENT = frozenset({404, 410})
_REFUSED = frozenset({401, 403, 407})
_OK, _NOT_MODIFIED = 200, 304
_REDIRECTS = range(300, 400)
_LATER, _SERVER_ERRORS = frozenset({408, 425, 429}), 500
_SILENT_S = 30.0
"""Longest time without a byte; the deadline of a file counts besides."""
_PAGE = "docs/row-files.md"

for _name in ("httpx", "httpcore"):  # a line for each request, with its address, in which values of rows are
    if logging.getLogger(_name).level == logging.NOTSET:
        logging.getLogger(_name).setLevel(logging.WARNING)


class WebServer:
    """Files below an address: a :class:`FileSource`. Redirects are not followed, so that no answer leads elsewhere.

    Raises ConfigError if the connection cannot be used.
    """

    def __init__(self, address: str, endpoint: Endpoint | None, *, connections: int, timeout_s: float) -> None:
        self._address = address.rstrip("/")
        settings: dict[str, Any] = {"verify": True}
        if endpoint is not None:
            receiver = Receiver(endpoint, _PAGE)
            receiver.require_login_for(self._address)
            settings = {"verify": receiver.tls, "auth": receiver.login, "proxy": receiver.proxy}
            headers = receiver.headers
        else:
            headers = {}
        try:
            self._client = httpx.Client(
                headers={"User-Agent": f"sluice/{__version__}", "Accept-Encoding": "identity", **headers},
                timeout=min(_SILENT_S, timeout_s),
                limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
                follow_redirects=False,
                trust_env=False,
                **settings,
            )
        except (ValueError, httpx.InvalidURL):
            raise ConfigError(f"{self._address} is no address of a web server", hint=f"{_PAGE} has examples") from None

    def fetch(self, name: str, spool: Spool, *, unless: str = "") -> str | None:
        """Read a file, see :class:`FileSource`."""
        headers = {}
        kind, _, mark = unless.partition(":")
        if mark:
            headers["If-None-Match" if kind == "etag" else "If-Modified-Since"] = mark
        try:
            with self._client.stream("GET", self._url(name), headers=headers) as answer:
                if answer.status_code == _NOT_MODIFIED and unless:
                    return None
                self._require_file(answer.status_code)
                if answer.headers.get("Content-Encoding", "identity") != "identity":
                    raise FileRefused("the server sends it compressed, although it was asked not to")
                length = answer.headers.get("Content-Length", "")
                if length.isdigit():
                    spool.expect(int(length))
                for piece in answer.iter_raw(PIECE_BYTES):
                    spool.write(piece)
                if length.isdigit() and spool.size_bytes != int(length):
                    raise FileChanged
                identity = _identity(answer.headers)
                return None if identity and identity == unless else identity
        except httpx.HTTPError as error:
            raise self._unavailable(_reason(error)) from None

    def require_readable(self, deadline: Deadline) -> str:
        """Ask for the address itself. A server need not have a page there, so that most answers will do."""
        try:
            with self._client.stream("GET", f"{self._address}/", timeout=deadline.left_s) as answer:
                status = answer.status_code
        except httpx.HTTPError as error:
            raise self._unavailable(_reason(error)) from None
        if status in {401, 407} or status >= _SERVER_ERRORS:
            self._require_file(status)
        return f"it answers ({status})"

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _url(self, name: str) -> str:
        """Return the address of a file: every character of its name stands for itself."""
        return f"{self._address}/{'/'.join(quote(part, safe='') for part in name.split('/'))}"

    def _require_file(self, status: int) -> None:
        if status == _OK:
            return
        if status in _ABSENT:
            raise FileAbsent(f"the server answers {status}")
        if status in _REFUSED:
            raise ConfigError(
                f"{self._address} refuses the login ({status})",
                hint="name a connection with a login in the mapping's files (from_connection), or give its user the "
                "right to read",
            )
        if status in _REDIRECTS:
            raise ConfigError(
                f"{self._address} answers with a redirect ({status}), which is not followed",
                hint="write the address that it leads to as from",
            )
        if status in _LATER or status >= _SERVER_ERRORS:
            raise self._unavailable(f"it answers {status}")
        raise FileRefused(f"the server answers {status}")

    def _unavailable(self, why: str) -> StorageUnavailable:
        return StorageUnavailable(f"{self._address}: {why}", hint="the batch is tried again")


def _identity(headers: Mapping[str, str]) -> str:
    if headers.get("ETag"):
        return f"etag:{headers['ETag']}"
    return f"modified:{headers['Last-Modified']}" if headers.get("Last-Modified") else ""


def _reason(error: httpx.HTTPError) -> str:
    """Return what went wrong, without the address of the request."""
    cause = error.__cause__ or error.__context__
    if isinstance(cause, ssl.SSLCertVerificationError) or "CERTIFICATE_VERIFY_FAILED" in str(error):
        return "its certificate is not accepted"
    if isinstance(error, httpx.TimeoutException):
        return "it does not answer in time"
    return f"the connection failed ({type(error).__name__})"
