"""A receiver as its connection describes it: its address, how to log in, certificates; and the secrets that no text may
show.
"""

from __future__ import annotations

import base64
import json
import os
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import quote, urlsplit

from sluice.config.connections import Endpoint, is_loopback
from sluice.errors import ConfigError

_EXTRA = frozenset({
    "headers", "hmac_secret", "oauth2_token_url", "oauth2_client_id", "oauth2_client_secret", "oauth2_scope",
    "oauth2_audience", "oauth2_auth",
    "ca", "cert", "key", "proxy", "plain_http",
})  # fmt: skip
"""The fields of the connection's extra."""
_OAUTH = ("oauth2_token_url", "oauth2_client_id", "oauth2_client_secret")


@dataclass(frozen=True)
class Receiver:
    """An endpoint as the receiver of requests. Picklable. Raises ConfigError if the connection cannot be used.

    ``page``: of the documentation, for hints. ``api_keys``: it takes ``api_key`` in the extra, as search servers do.
    """

    endpoint: Endpoint
    page: str = "docs/http-target.md"
    api_keys: bool = False

    def require_login_for(self, address: str) -> None:
        """Check the connection as a login for an address that stands elsewhere. Raises ConfigError."""
        self._require_known(_EXTRA - {*_OAUTH, "oauth2_scope", "oauth2_audience", "oauth2_auth", "hmac_secret"})
        _ = self.headers, self.tls
        self._require_encrypted(address)

    def require_usable(self) -> None:
        """Check every field of the connection. No I/O but reading certificates. Raises ConfigError."""
        self._require_known(_EXTRA | {"api_key"} if self.api_keys else _EXTRA)
        given_names = [name for name in _OAUTH if self._text(name)]
        if given_names and len(given_names) < len(_OAUTH):
            raise self._wrong(f"extra has {given_names[0]}, and OAuth2 needs {', '.join(_OAUTH)}")
        if self.api_keys and self._text("api_key") and (given_names or self.endpoint.password):
            raise self._wrong("it has a password or OAuth2, and api_key", "a request has one login: leave one out")
        if given_names and self.endpoint.password:
            raise self._wrong(
                "it has a password and OAuth2 client credentials", "a request has one login: leave one out"
            )
        if self._text("oauth2_auth") not in {"", "basic", "body"}:
            raise self._wrong("oauth2_auth in extra is basic or body")
        _ = self.base, self.headers, self.tls
        if given_names:
            self._require_encrypted(self._text("oauth2_token_url"))

    @property
    def base(self) -> str:
        """The address below which paths are, without a slash at the end."""
        given_endpoint = self.endpoint
        if not given_endpoint.host:
            raise self._wrong("it names no host", "write host, port and schema: https")
        host = given_endpoint.host
        if "://" not in host:
            bare = f"[{host}]" if ":" in host and not host.startswith("[") else host
            scheme = given_endpoint.schema or (
                "http" if is_loopback(bare) and given_endpoint.kind != "https" else "https"
            )
            host = f"{scheme}://{bare}"
        try:
            parts = urlsplit(host)
            port = parts.port or given_endpoint.port
        except ValueError:
            raise self._wrong("its host is no address") from None
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise self._wrong(f"its schema {parts.scheme!r} is neither https nor http")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise self._wrong(
                "its host has a login, a query or a fragment in it", "login and password have fields of their own"
            )
        name = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        address = f"{parts.scheme}://{name}{f':{port}' if port else ''}{parts.path.rstrip('/')}"
        self._require_encrypted(address)
        return address

    @property
    def headers(self) -> dict[str, str]:
        """Secret headers of each request, of the connection's extra, and the login if it is a fixed one."""
        extra_headers = self.endpoint.extra.get("headers") or {}
        if isinstance(extra_headers, str):
            try:
                extra_headers = json.loads(extra_headers)
            except ValueError:
                raise self._wrong("headers in extra is no JSON object") from None
        if not isinstance(extra_headers, Mapping) or not all(
            isinstance(value, str) for value in extra_headers.values()
        ):
            raise self._wrong("headers in extra is no object of names and texts")
        for name, value in extra_headers.items():
            if not (name.isascii() and value.isascii() and (name + value).isprintable() and value == value.strip()):
                raise self._wrong(f"headers in extra: {name} cannot be sent")
        headers = dict(extra_headers)
        if self.endpoint.password and not self.endpoint.user:
            headers["Authorization"] = f"Bearer {self.endpoint.password}"
        if self.api_keys and self._text("api_key"):
            headers["Authorization"] = f"ApiKey {self._text('api_key')}"
        return headers

    @property
    def login(self) -> tuple[str, str] | None:
        """Login and password for HTTP Basic, None if there is no login."""
        return (self.endpoint.user, self.endpoint.password) if self.endpoint.user else None

    @property
    def hmac_secret(self) -> bytes:
        """The key of signatures. Raises ConfigError if there is none."""
        text = self._text("hmac_secret")
        if not text:
            raise self._wrong("its extra has no hmac_secret, and options.signature needs one")
        return text.encode()

    @property
    def oauth(self) -> Mapping[str, str] | None:
        """The fields of OAuth2 client credentials, by the names of the extra; None if there are none."""
        names = (*_OAUTH, "oauth2_scope", "oauth2_audience", "oauth2_auth")
        return {name: self._text(name) for name in names} if self._text(_OAUTH[0]) else None

    @property
    def proxy(self) -> str | None:
        """The proxy, None if there is none; the environment's is not used."""
        return self._text("proxy") or None

    @property
    def tls(self) -> ssl.SSLContext:
        """The TLS settings. The server's certificate and name are always verified."""
        files = tuple(self._text(name) for name in ("ca", "cert", "key"))
        try:
            return _tls(files, tuple(os.stat(path).st_mtime_ns for path in files if path))
        except OSError as error:
            raise self._wrong(
                f"its certificates cannot be read: {error.strerror or type(error).__name__}",
                "ca, cert and key in extra are paths of PEM files",
            ) from None

    def scrubbed(self, text: str, *more: str) -> str:
        """Return the text without secrets of the connection, and without ``more``."""
        proxy = ""
        with suppress(ValueError):
            proxy = urlsplit(self._text("proxy")).password or ""
        secrets = [
            self.endpoint.password,
            self._text("hmac_secret"),
            self._text("oauth2_client_secret"),
            self._text("api_key"),
            proxy,
            *more,
        ]
        with suppress(ConfigError):
            secrets += self.headers.values()
        for user, password in (self.endpoint.user, self.endpoint.password), map(self._text, _OAUTH[1:]):
            plain = {f"{user}:{password}", f"{quote(user, safe='')}:{quote(password, safe='')}"} if password else set()
            secrets += [base64.b64encode(login.encode()).decode() for login in plain]
        for secret in secrets:
            for form in {secret, quote(secret, safe=""), json.dumps(secret)[1:-1]} if len(secret) > 2 else ():
                text = text.replace(form, "***")
        return text

    def _require_known(self, names: frozenset[str]) -> None:
        unknown = sorted(self.endpoint.extra.keys() - names)
        if unknown:
            raise self._wrong(f"extra has {unknown[0]}, which is not known", f"known are {', '.join(sorted(names))}")

    def _require_encrypted(self, address: str) -> None:
        parts = urlsplit(address)
        if parts.scheme == "http" and not is_loopback(parts.hostname or "") and not self._flag("plain_http"):
            raise self._wrong(
                f"{parts.hostname} is asked without TLS",
                'write schema: https; or "plain_http": true into its extra, if everybody on the way may read rows and logins',  # noqa: E501
            )
        if parts.scheme not in {"http", "https"}:
            raise self._wrong("oauth2_token_url in extra is no address that begins with https://")

    def _flag(self, name: str) -> bool:
        return self._text(name).lower() in {"true", "1", "yes"}

    def _text(self, name: str) -> str:
        value = self.endpoint.extra.get(name)
        if value is None:
            return ""
        if not isinstance(value, str | int | float | bool):
            raise self._wrong(f"{name} in extra is no plain value")
        return str(value)

    def _wrong(self, why: str, hint: str | None = None) -> ConfigError:
        return ConfigError(
            f"connection {self.endpoint.connection_id!r}: {why}", hint=hint or f"{self.page} lists the fields"
        )


@lru_cache(maxsize=16)
def _tls(files: tuple[str, ...], changed: tuple[int, ...]) -> ssl.SSLContext:
    """Return settings with these files (authority, certificate, key). ``changed``: when the files were written."""
    ca, cert, key = files
    context = ssl.create_default_context(cafile=ca or None)
    if cert:
        context.load_cert_chain(cert, key or None)
    return context


def shown(value: Any) -> str:
    """Return the beginning of a text on one line, for messages."""
    return " ".join(str(value).split())[:300]
