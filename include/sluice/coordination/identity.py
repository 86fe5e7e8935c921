"""The random id of a pipeline's state.

A target stores it with its batch, so that a state that was deleted or restored is told from its own.
"""

from __future__ import annotations

import time
import uuid
from contextlib import suppress

from sluice.coordination.layout import IDENTITY, Layout
from sluice.coordination.port import Check, Conflict, Create, Put, Step, Znode, Znodes


class Identity:
    """The identity of one pipeline's state."""

    def __init__(self, znodes: Znodes, layout: Layout) -> None:
        self._z = znodes
        self._path = layout.identity
        self._cursor_path = layout.cursor

    def read(self) -> str:
        """Return the id, "" before the first capture. A state of an older version gets one here, once."""
        while True:
            node = self._z.get(self._path)
            if node and node.data:
                return str(IDENTITY.decode(self._path, node.data)["id"])
            cursor = self._z.get(self._cursor_path)
            if cursor is None or not cursor.data:
                return ""
            _, written = self._written(node)
            with suppress(Conflict):  # another process was first, or the cursor moved
                self._z.transact([Check(self._cursor_path, cursor.version), written])

    def renewed(self, identity: str = "") -> tuple[str, Step]:
        """Return a new id (or ``identity``), and the step that writes it over whatever is there."""
        return self._written(self._z.get(self._path), identity)

    def _written(self, node: Znode | None, identity: str = "") -> tuple[str, Step]:
        new_id = identity or uuid.uuid4().hex
        content = IDENTITY.encode({"id": new_id, "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())})
        return new_id, Put(self._path, content, node.version) if node else Create(self._path, content)
