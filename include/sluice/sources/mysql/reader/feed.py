"""The bytes between the connection and the scanner: one buffer, moved along, grown for an event that is larger."""

from __future__ import annotations

from typing import Any

import numpy as np

from sluice.sources.mysql.decoder.scanner import Scanner
from sluice.sources.mysql.events.packets import bytes_of_next
from sluice.sources.mysql.events.unreadable import AROUND
from sluice.sources.mysql.protocol.binlog_dump import BinlogDump

_BUFFER_BYTES = 4 * 2**20
_STEP_BYTES = 2**19
MAX_EVENT_BYTES = 128 * 2**20
_MOVED_BYTES = 2**15
"""So little is moved to the front at once, so that the next bytes come where the last ones were: in the processor's
cache.
"""
_SPARE = 16
"""Kernels load eight bytes at a time, so they may look this far after the last byte."""


class ScannerFeed:
    """Feeds a scanner from a stream.

    Args:
        max_event_bytes: a larger event is refused before it is received; what one takes in memory is about six times
            its size.

    Attributes:
        log_bytes: received so far.
    """

    def __init__(self, stream: BinlogDump, scanner: Scanner, *, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._stream, self._scanner = stream, scanner
        self._max_event_bytes = max_event_bytes
        self._buffer: np.ndarray[Any, Any] = np.zeros(_BUFFER_BYTES + _SPARE, np.uint8)
        self._used = self._end = 0
        self.log_bytes = 0

    def step(self, timeout_s: float) -> bool:
        """Receive what is there (waiting up to ``timeout_s``) and scan it. True if a limit of the scanner was reached.

        Raises SourceUnavailable if the connection broke or is silent, CaptureError for an event that is too large, and
        whatever the scanner raises.
        """
        need = self._make_room()
        room = self._buffer[: len(self._buffer) - _SPARE]
        count = self._stream.receive(room, self._end, timeout_s, max(need - (self._end - self._used), _STEP_BYTES))
        if count == 0:
            self._stream.check_alive()
            return False
        self.log_bytes += count
        self._end += count
        self._used, limit = self._scanner.feed(self._buffer, self._end, self._used)
        return limit

    def give_back(self) -> None:
        """Give what was received and not scanned back to the stream."""
        self._stream.give_back(self._buffer[self._used : self._end].tobytes())
        self._used = self._end

    def _make_room(self) -> int:
        """Move what is left to the front, grow the buffer for a large event.

        Returns the bytes that the event at hand takes, if known.
        """
        unread = self._end - self._used
        if self._used and (unread <= _MOVED_BYTES or self._end + 2**20 > len(self._buffer) - _SPARE):
            self._buffer[:unread] = self._buffer[self._used : self._end]
            self._used, self._end = 0, unread
        need = bytes_of_next(self._buffer, self._end, self._used)
        if need > self._max_event_bytes:
            raise self._scanner.refused(
                f"an event of {need / 2**20:.0f} MiB is larger than capture.max_event "
                f"({self._max_event_bytes / 2**20:.0f} MiB)",
                "raise capture.max_event (the capture needs about six times as much memory), or leave the event out: "
                f"{AROUND}",
            )
        if need + _SPARE > len(self._buffer):
            grown = np.zeros(need + 2**20 + _SPARE, np.uint8)
            grown[:unread] = self._buffer[self._used : self._end]
            self._buffer, self._used, self._end = grown, 0, unread
        elif not unread and len(self._buffer) > _BUFFER_BYTES + _SPARE and not need:
            self._buffer = np.zeros(_BUFFER_BYTES + _SPARE, np.uint8)
        return need
