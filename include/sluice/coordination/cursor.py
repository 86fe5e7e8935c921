"""The cursor: how far the log is captured. It moves in one transaction with the batch that it moves over."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any

from sluice.coordination.layout import CURSOR, Layout
from sluice.coordination.port import Create, Put, Znodes
from sluice.model.batches import Batch, BatchNumber
from sluice.model.offset import Offset


@dataclass(frozen=True, slots=True)
class Cursor:
    """The captured position, and the number that the next batch gets. ``version`` is ZooKeeper's.

    ``schema``: file of the schema history that belongs to the position (:mod:`sluice.segments.schemas`), ``""`` for
    none. ``partner_batch``: the last batch of the channel's other pipeline that the source holds in whole there; 0: not
    known. ``stretch``: of the log, which is read without a gap; another number where the position was moved by hand, or
    because the log was lost. ``changes``, ``size_bytes``: of all batches that were captured since they are counted; for
    metrics only.
    """

    position: Offset
    next_batch: BatchNumber
    version: int = -1
    schema: str = ""
    partner_batch: int = 0
    stretch: int = field(default=0, compare=False)
    changes: int = field(default=0, compare=False)
    size_bytes: int = field(default=0, compare=False)

    @classmethod
    def from_json(cls, data: dict[str, Any], version: int = -1) -> Cursor:
        """Parse a node's fields. Raises ConfigError for a position in a format that this version does not know."""
        position = Offset.from_json(data["position"])
        return cls(
            position,
            BatchNumber(data["next_batch"]),
            version,
            data.get("schema", ""),
            data.get("partner_batch", 0),
            data.get("stretch", 0),
            data.get("changes", 0),
            data.get("size_bytes", 0),
        )

    def moved_to(self, position: Offset, *, schema: str = "", partner_batch: int = 0) -> Cursor:
        """Return the cursor at another position, before the same batch."""
        return replace(self, position=position, version=-1, schema=schema, partner_batch=partner_batch)

    def jumped(self) -> Cursor:
        """Return the cursor at the beginning of a stretch of the log that follows no other one."""
        return replace(self, stretch=time.time_ns() // 1_000_000)

    def moved_over(self, batch: Batch, *, schema: str, partner_batch: int) -> Cursor:
        """Return the cursor behind ``batch``."""
        behind = self.moved_to(batch.last, schema=schema, partner_batch=partner_batch)
        return replace(
            behind,
            next_batch=BatchNumber(batch.number + 1),
            changes=self.changes + batch.changes,
            size_bytes=self.size_bytes + batch.size_bytes,
        )

    def encoded(self) -> bytes:
        """Return the content of its node."""
        data: dict[str, Any] = {"position": self.position.to_json(), "next_batch": self.next_batch}
        more: dict[str, Any] = {
            "schema": self.schema,
            "partner_batch": self.partner_batch,
            "stretch": self.stretch,
            "changes": self.changes,
            "size_bytes": self.size_bytes,
        }
        return CURSOR.encode(data | {name: value for name, value in more.items() if value})


class CursorNode:
    """Reads the cursor of one pipeline and says which steps move it."""

    def __init__(self, znodes: Znodes, layout: Layout) -> None:
        self._z = znodes
        self._path = layout.cursor

    def read(self) -> Cursor | None:
        """Return the captured position, or None before the first capture."""
        return CURSOR.read(self._z, self._path, Cursor.from_json)

    def created(self, first: Cursor) -> Create:
        """Return the step that writes the first cursor."""
        return Create(self._path, first.encoded())

    def moved(self, before: Cursor, after: Cursor) -> Put:
        """Return the step that moves the cursor, if it still is ``before``."""
        return Put(self._path, after.encoded(), before.version)
