"""Connections to a target that are lost at a chosen statement: before the server sees it, or behind it."""

from __future__ import annotations

import threading
from typing import Any

import pymysql

from sluice.targets.mysql import session


class Budget:
    """Lets ``left`` statements through, then loses every connection at its next one; the first of them runs at the server if ``behind``."""

    def __init__(self) -> None:
        self.left = 10**9
        self.behind = False
        self._lock = threading.Lock()

    def wrap(self, connect: Any) -> Any:
        """A ``connect`` whose connections count; none of those that are open already is used any more."""
        session.kept.end()

        def opened(endpoint: Any) -> Any:
            connection = connect(endpoint)
            for name in ("query", "load"):
                setattr(connection, name, self._counted(connection, getattr(connection, name)))
            return connection

        return opened

    def _counted(self, connection: Any, call: Any) -> Any:
        def limited(*args: Any, **named: Any) -> Any:
            with self._lock:
                self.left -= 1
                left = self.left
            if left >= 0:
                return call(*args, **named)
            if self.behind and left == -1:
                call(*args, **named)
            connection._force_close()
            raise pymysql.err.OperationalError(2013, "cut by the test")

        return limited
