"""The tables that the scan kernel captures, and their row images: the arrays that it reads, filled from table maps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sluice.mysql.column_types import Fill
from sluice.sources.mysql.decoder.row_layout import RowLayout
from sluice.sources.mysql.decoder.scan_kernel import JSON_COUNT_SHIFT, MARKS_SHIFT
from sluice.sources.mysql.events.table_map import TableMap, parse_table_map

_REMEMBERED_MAPS = 100_000


def grown(array: np.ndarray[Any, Any], axis: int = 0) -> np.ndarray[Any, Any]:
    """Return the array twice as long; the new half is zero."""
    return np.concatenate([array, np.zeros_like(array)], axis=axis)


class TableSlots:
    """Slots of captured tables, one a definition, and an open-addressing map from the log's table ids to them.

    Args:
        plan: a table map -> its plan, or None where its rows are not wanted.
        row_events: bits of the row changes wanted, by OP_*.

    Attributes:
        ids, of_id: the map; slot -1: not wanted. columns, first, widths: a slot's columns and where its widths begin.
        events: bits of the changes wanted, from bit 8 on the number of JSON columns (partial updates carry a bit for
            each), and bit 40 for the marking table, whose rows Python reads.
        map_at, map_size, map_bytes: body of the table map, so that the kernel recognises it. plans: by slot.
    """

    def __init__(self, plan: Callable[[TableMap], RowLayout | None], row_events: int, *, mariadb: bool = False) -> None:
        self._mariadb = mariadb
        self._plan = plan
        self._row_events = row_events
        self._count = 0
        self._by_body: dict[bytes, int] = {}
        self._width_count = 0
        self._map_used = 0
        self.plans: list[RowLayout | None] = []
        self.ids = np.full(256, -1, np.int64)
        self.of_id = np.full(256, -1, np.int32)
        self.columns = np.zeros(16, np.int64)
        self.first = np.zeros(16, np.int64)
        self.events = np.zeros(16, np.int64)
        self.widths = np.zeros(64, np.int32)
        self.map_at = np.zeros(16, np.int64)
        self.map_size = np.zeros(16, np.int64)
        self.map_bytes = np.zeros(1 << 12, np.uint8)

    def meet(self, body: bytes) -> int:
        """Return the slot of a table map (-1: not wanted), under its table id from now on.

        Raises what ``plan`` raises, and DecodeError.
        """
        slot = self._by_body.get(body)
        if slot is None:
            table_map = parse_table_map(body, mariadb=self._mariadb)
            plan = self._plan(table_map)
            slot = -1 if plan is None else self._add(plan, body)
            if len(self._by_body) < _REMEMBERED_MAPS:
                self._by_body[body] = slot
        self._remember(int.from_bytes(body[:6], "little"), slot)
        return slot

    def slot_of(self, table_id: int) -> int | None:
        """Return the slot of a table id: -1 not wanted, None unknown."""
        at = self._find(table_id)
        return None if self.ids[at] == -1 else int(self.of_id[at])

    def forget(self) -> None:
        """Forget all table ids: they start anew with a server's restart."""
        self.ids.fill(-1)
        self._count = 0

    def redefine(self) -> None:
        """Forget what the bytes of table maps stood for, after definitions changed: equal bytes may differ in
        meaning.
        """
        self._by_body.clear()
        self.forget()

    def _add(self, plan: RowLayout, body: bytes) -> int:
        slot, count = len(self.plans), len(plan.columns)
        self.plans.append(plan)
        if slot >= len(self.columns):
            for name in ("columns", "first", "events", "map_at", "map_size"):
                setattr(self, name, grown(getattr(self, name)))
        while self._width_count + count > len(self.widths):
            self.widths = grown(self.widths)
        while self._map_used + len(body) > len(self.map_bytes):
            self.map_bytes = grown(self.map_bytes)
        json = sum(column.fill is Fill.JSON for column in plan.columns)
        self.columns[slot] = count
        self.first[slot] = self._width_count
        self.events[slot] = 1 << MARKS_SHIFT if plan.marks else self._row_events | json << JSON_COUNT_SHIFT
        self.widths[self._width_count : self._width_count + count] = plan.widths
        self._width_count += count
        self.map_at[slot], self.map_size[slot] = self._map_used, len(body)
        self.map_bytes[self._map_used : self._map_used + len(body)] = np.frombuffer(body, np.uint8)
        self._map_used += len(body)
        return slot

    def _find(self, table_id: int) -> int:
        mask = len(self.ids) - 1
        at = (table_id * 0x9E3779B1) & mask
        while self.ids[at] not in {-1, table_id}:
            at = (at + 1) & mask
        return at

    def _remember(self, table_id: int, slot: int) -> None:
        if self._count * 2 >= len(self.ids):
            entries = [(int(i), int(n)) for i, n in zip(self.ids, self.of_id, strict=True) if i >= 0]
            self.ids = np.full(2 * len(self.ids), -1, np.int64)
            self.of_id = np.full(len(self.ids), -1, np.int32)
            self._count = 0
            for old_id, old_slot in entries:
                self._remember(old_id, old_slot)
        at = self._find(table_id)
        if self.ids[at] == -1:
            self._count += 1
        self.ids[at], self.of_id[at] = table_id, slot
