"""Keys of rows that differ, on disk, so that a table of which every row differs takes no memory."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator

from sluice.sources.port import Key


class KeySpool:
    """A list of keys that only grows. Its file has no name and goes with the process."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile("w+", encoding="utf-8", prefix="sluice-verify-")  # noqa: SIM115
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, keys: Iterable[Key]) -> None:
        """Append keys."""
        self._file.seek(0, 2)
        for key in keys:
            self._file.write(json.dumps(key) + "\n")
            self._count += 1

    def pieces(self, size: int) -> Iterator[list[Key]]:
        """Yield all keys, at most ``size`` at a time. No keys may be added meanwhile."""
        self._file.seek(0)
        piece: list[Key] = []
        for line in self._file:
            piece.append(tuple(json.loads(line)))
            if len(piece) == size:
                yield piece
                piece = []
        if piece:
            yield piece


__all__ = ["KeySpool"]
