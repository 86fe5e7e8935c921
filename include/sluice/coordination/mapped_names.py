"""The column names of the mapping that were looked up and found: they are not looked up again when the source drops a
column.
"""

from __future__ import annotations

from collections.abc import Iterable

from sluice.coordination.layout import MAPPED, Layout
from sluice.coordination.port import Put, Znodes, committed


class MappedNames:
    """Column names of the mapping that one pipeline has looked up."""

    def __init__(self, znodes: Znodes, layout: Layout) -> None:
        self._z = znodes
        self._path = layout.mapped_names

    def read(self) -> frozenset[str]:
        """Return all names that were found."""
        return self._read()[0]

    def add(self, names: Iterable[str]) -> None:
        """Remember more."""
        new = frozenset(names)
        while True:
            remembered, version = self._read()
            if new <= remembered:
                return
            if version == -1:
                self._z.ensure(self._path)
                version = 0
            if committed(self._z, Put(self._path, MAPPED.encode({"names": sorted(remembered | new)}), version)):
                return

    def _read(self) -> tuple[frozenset[str], int]:
        node = self._z.get(self._path)
        if node is None or not node.data:
            return frozenset(), node.version if node else -1
        return frozenset(MAPPED.decode(self._path, node.data)["names"]), node.version
