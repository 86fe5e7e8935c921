"""Connections of the HTTP server: those that ask for nothing are closed, and there is a limit to their number."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any

import structlog
from uvicorn.protocols.http.auto import AutoHTTPProtocol

if TYPE_CHECKING:
    _Base: Any = asyncio.Protocol
else:
    _Base = AutoHTTPProtocol

_log = structlog.get_logger()

REQUEST_S = 10.0
"""A client has this time to send a request, from its connection or its last request on; then the connection is closed.
"""

KEEP_ALIVE_S = 5
"""A connection on which nothing comes after an answer is closed after this time."""

MOST_CONNECTIONS = 512
"""Open ones at once; another one is answered 503.

Reads have a limit of their own, see :class:`sluice.serve.service.Slots`.
"""

_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nRetry-After: 5\r\nContent-Length: "
    b"34\r\nConnection: close\r\n\r\n"
    b"too many connections: try it later"
)


class Connection(_Base):  # type: ignore[misc]
    """One connection. Uvicorn waits for the first request, and for the rest of a request, without end."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        """See asyncio."""
        super().connection_made(transport)
        self._seen_idle: object = None
        if len(self.connections) > MOST_CONNECTIONS:
            _log.warning("connection_refused", limit=MOST_CONNECTIONS)
            transport.write(_FULL)
            transport.close()
            return
        self._look_again()

    def _look_again(self) -> None:
        self.loop.call_later(REQUEST_S / 2, self._close_if_idle)

    def _close_if_idle(self) -> None:
        """Close it if no request was under way at this look and at the one before, and none came between them."""
        if self.transport.is_closing():
            return
        after = self.cycle or self
        if self.cycle is not None and not self.cycle.response_complete:
            self._seen_idle = None
        elif self._seen_idle is after:
            self.transport.close()
            return
        else:
            self._seen_idle = after
        self._look_again()


def notice_lost_peers(listening: socket.socket) -> None:
    """Have the system ask for signs of life on connections of this socket, so that a client whose machine is gone is
    noticed within a minute.
    """
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            listening.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
