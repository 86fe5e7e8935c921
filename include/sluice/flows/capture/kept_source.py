"""The source's connections, kept from one capture of a micro-batch loop, or of `sluice run`, to the next one.

A login and a pre-flight take some thirty round trips; a capture near the head of the log reads for a tenth of a second.
A broken connection (a server that ends, one that takes over) is noticed when it is used; a failover that a person asked
for, by the name of the current server; definitions are in the log. The settings of the server are checked again every
few seconds.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from types import TracebackType

from sluice.sources.port import Source, SourceSession

CHECKED_S = 5.0
"""Seconds for which a pre-flight is valid."""


class KeptSource:
    """A session with the source that stays open between captures; at most one. Not thread-safe."""

    def __init__(self) -> None:
        self._opened = ExitStack()
        self._session: SourceSession | None = None
        self._member = ""
        self._checked = -CHECKED_S

    def __enter__(self) -> KeptSource:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def of(self, member: str) -> SourceSession | None:
        """Return the open session if it is with server ``member`` of the group, else close it and return None."""
        if self._session is not None and member != self._member:
            self.close()
        return self._session

    def open(self, source: Source, member: str) -> SourceSession:
        """Close the session and open a new one with ``source``, server ``member`` of its group.

        Raises SourceUnavailable, ConfigError.
        """
        self.close()
        self._session = self._opened.enter_context(source.open(to_stream=True))
        self._member = member
        return self._session

    @property
    def is_open(self) -> bool:
        """A session is open, with whichever server."""
        return self._session is not None

    @property
    def is_checked(self) -> bool:
        """The pre-flight was a short time ago."""
        return time.monotonic() - self._checked < CHECKED_S

    def checked(self) -> None:
        """Note that the pre-flight has just passed."""
        self._checked = time.monotonic()

    def close(self) -> None:
        """Close the session."""
        self._session, self._checked = None, time.monotonic() - CHECKED_S
        self._opened.close()
