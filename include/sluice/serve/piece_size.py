"""The size of the pieces of a stream, as its reader chose it: by rows, by bytes, or both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True)
class PieceSize:
    """The most that one piece has. None: as the service likes."""

    rows: int | None = None
    size_bytes: int | None = None

    def split(self, piece: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield a record batch in pieces that are no larger, in order. A row that is larger is a piece of its own."""
        if self.rows is None and self.size_bytes is None:
            yield piece
            return
        start = 0
        while start < piece.num_rows:
            count = self._fitting(piece, start)
            yield piece.slice(start, count)
            start += count

    def _fitting(self, piece: pa.RecordBatch, start: int) -> int:
        """Return how many rows from ``start`` on fit, at least one."""
        left: int = piece.num_rows - start
        low, high = 1, min(left, self.rows or left)
        if self.size_bytes is None or piece.slice(start, high).nbytes <= self.size_bytes:
            return high
        while high - low > 1:
            middle = (low + high) // 2
            if piece.slice(start, middle).nbytes <= self.size_bytes:
                low = middle
            else:
                high = middle
        return low
