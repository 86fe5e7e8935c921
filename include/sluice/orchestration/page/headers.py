"""The security headers of every answer of the page, errors among them."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

POLICY = "; ".join((
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self'",
    "connect-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'self'",
))  # fmt: skip
"""Scripts, styles and data from this address only, none of them inline, in frames of this address only."""

_HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


class SecureHeaders:
    """Middleware that adds the headers. Nothing is kept by caches unless a route says otherwise."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Pass a request on, and add the headers to its answer."""

        async def with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                known_names = {name for name, _ in message["headers"]}
                more = [*_HEADERS, (b"cache-control", b"no-store")]
                message["headers"] = [*message["headers"], *(pair for pair in more if pair[0] not in known_names)]
            await send(message)

        await self._app(scope, receive, with_headers)
