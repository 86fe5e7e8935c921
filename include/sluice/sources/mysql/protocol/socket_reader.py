"""The bytes of one connection on which a log is streamed: read in large pieces, without waiting for more than there
is.
"""

from __future__ import annotations

import contextlib
import math
import select
import socket
import time
from typing import Any

import numpy as np

from sluice.errors import SourceUnavailable

_RECEIVE_BUFFER = 8 * 2**20
_STREAMING_BYTES = 2**16
_GATHERED_BYTES = 2**19
_PATIENCE_S = 0.002
"""While the log streams, the kernel wakes the reader only for this many bytes, or after this time: a fifth of the
wake-ups and reads.
"""


class SocketReader:
    """Reads a socket.

    ``what``: names the connection in errors; ``silence_s``: after so long without a byte it counts as dead.

    Raises (all methods): SourceUnavailable.
    """

    def __init__(self, connected: Any, *, what: str, silence_s: float) -> None:
        self._socket = connected
        self._what, self._silence_s = what, silence_s
        self._tls = hasattr(connected, "pending")
        self._gathering = False
        self._heard = time.monotonic()
        self._poll = select.poll()  # select() knows 1,024 files, and a triggerer may have more
        self._poll.register(connected, select.POLLIN)
        with contextlib.suppress(OSError):
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
        connected.settimeout(silence_s)

    def receive(self, buffer: np.ndarray[Any, Any], at: int, timeout_s: float, enough: int = 2**20) -> int:
        """Read into ``buffer[at:]``: whatever is there, up to about ``enough`` bytes.

        Returns bytes read, 0 after ``timeout_s`` of silence.
        """
        view = memoryview(buffer)  # type: ignore[arg-type]
        start = at
        if self._gathering and not self._ready(min(_PATIENCE_S, timeout_s)):
            self._gather(False)
        if not self._gathering and not self._ready(timeout_s):
            return 0
        while True:
            try:
                count = self._socket.recv_into(view[at:])
            except OSError as error:
                raise self.broken(str(error)) from error
            if count == 0 and at > start:
                return at - start  # what came before may say why
            if count == 0:
                raise self.broken("the server closed the connection")
            self._heard = time.monotonic()
            at += count
            if at - start >= _STREAMING_BYTES:
                self._gather(True)
            if at - start >= enough or at >= len(buffer) or not self._ready(0):
                return at - start

    def check_alive(self) -> None:
        """Raise if not even heartbeats have come for so long."""
        if time.monotonic() - self._heard > self._silence_s:
            raise self.broken(f"nothing came for {self._silence_s:.0f} s, not even a heartbeat")

    def broken(self, why: str) -> SourceUnavailable:
        """Return the error for a connection that cannot be read on."""
        return SourceUnavailable(f"reading the log: {why}", where=self._what)

    def _gather(self, on: bool) -> None:
        """Have the kernel call the socket ready when many bytes are there, or when any are.

        (With TLS it does not see how many.)
        """
        if on == self._gathering or self._tls:
            return
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, _GATHERED_BYTES if on else 1)
            self._gathering = on

    def _pending(self) -> bool:
        return self._tls and bool(self._socket.pending())

    def _ready(self, timeout_s: float) -> bool:
        if self._pending():
            return True
        try:
            return bool(self._poll.poll(math.ceil(max(timeout_s, 0.0) * 1000)))
        except (OSError, ValueError) as error:
            raise self.broken(str(error)) from error
