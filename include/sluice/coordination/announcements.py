"""How far the batches of each target were announced to other programs, as asset events of Airflow."""

from __future__ import annotations

from sluice.coordination.layout import Layout
from sluice.coordination.port import Create, Put, Znodes, committed


class Announcements:
    """The last announced batch of each target."""

    def __init__(self, znodes: Znodes, layout: Layout) -> None:
        self._z = znodes
        self._at = layout

    def last(self, target: str) -> int | None:
        """Return the last announced batch; None: none was."""
        node = self._z.get(self._at.announced(target))
        return int(node.data) if node is not None and node.data.isdigit() else None

    def move(self, target: str, batch: int) -> None:
        """Note that everything up to ``batch`` is announced. Another process may do the same; the last word counts."""
        path, content = self._at.announced(target), str(batch).encode()
        if committed(self._z, Put(path, content, -1)):
            return
        self._z.ensure(self._at.consumer(target))
        if not committed(self._z, Create(path, content)):
            committed(self._z, Put(path, content, -1))
