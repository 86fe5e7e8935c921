"""Looks at a server's log for many pipelines at a time: did it move?"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from sluice.config.connections import Endpoint
from sluice.model.offset import Offset
from sluice.model.tables import TableId
from sluice.postgresql.connection import Connection
from sluice.sources.postgresql.position import Position
from sluice.sources.postgresql.server.connection import open_session, source_errors
from sluice.sources.postgresql.server.info import log_end


class PostgreSQLLogWatch:
    """See :class:`sluice.sources.port.LogWatch`. A slot is not read by two, so that only the end of the log is seen."""

    fresh: set[TableId] | None = None
    end: ClassVar[None] = None

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._connection: Connection | None = None
        self._head = -1

    def look(self, since: Offset | None = None) -> bool:
        """Ask for the end of the log; True if it moved since the last look, and at the first one."""
        before = self._head
        if self._connection is None or self._connection.closed:
            self._connection = open_session(self._endpoint, "sluice watch")
        try:
            with source_errors(self._endpoint, "looking at the log"):
                self._head = log_end(self._connection)
        except BaseException:
            self.close()
            raise
        return self._head != before

    def may_concern(self, since: Offset, wants: Callable[[TableId], bool]) -> bool:
        """Return True if the log is longer than up to ``since``, whatever is in it."""
        return self._head > Position.of(since).lsn

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
