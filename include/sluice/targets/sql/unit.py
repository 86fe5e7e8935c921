"""The work of one worker for an SQL target, over one connection."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from sluice.model import packing
from sluice.model.offset import Offset
from sluice.targets.port import Fence, RejectedRows, RowGroup, RowReader, WriteResult
from sluice.targets.sql.loader import SqlLoader
from sluice.targets.sql.phases import LoadPart, leaves
from sluice.targets.sql.tables import TableChanges

SMALL_BYTES = 48 * 2**20
"""Bytes of the rows of small parts that a unit reads at once; the others are read piece by piece: a transaction may
have ten thousand tables.
"""


@dataclass(frozen=True, slots=True)
class SqlWriteUnit:
    """Parts that one worker writes over one connection.

    Attributes:
        one_transaction: all parts together.
        acknowledge: with the batch's checkpoint (consistency batch).
        scope: the name under which tables remember the rows, if they are not a batch's.
        verify: foreign keys are checked after each part.
        noted_as: the name under which the target notes that the unit is written, so that a repeat of the load leaves it
            out; "": it does not.
    """

    loader: SqlLoader
    reader: RowReader
    fence: Fence
    parts: tuple[LoadPart, ...]
    one_transaction: bool = False
    acknowledge: Offset | None = None
    scope: str = ""
    verify: bool = False
    noted_as: str = ""

    @property
    def cost(self) -> int:
        """The cost of the unit, in rows."""
        return sum(part.cost for part in self.parts)

    @property
    def memory_bytes(self) -> int:
        """The memory that the unit takes of a process.

        Rows of small parts are there at once; of large parts only the one being written.
        """
        small = sum(part.size_bytes for part in self.parts if not self.reader.is_large(part.size_bytes))
        large = [part for part in self.parts if self.reader.is_large(part.size_bytes)]
        return packing.memory_of(min(small, SMALL_BYTES)) + max(
            (self.reader.memory_of(part.size_bytes, len(part.files)) for part in large), default=0
        )

    def write(self, rejected: RejectedRows | None = None) -> WriteResult:
        """Read files and write them to the target, under the fence.

        Raises SegmentError, TargetUnavailable, LoadError, Fenced.
        """
        started = time.perf_counter()
        changes: list[TableChanges] = []
        spare_bytes = SMALL_BYTES
        for part in self.parts:
            streamed = self.reader.is_large(part.size_bytes) or part.size_bytes > spare_bytes
            spare_bytes -= 0 if streamed else part.size_bytes
            lean = not (rejected is not None or part.table.unique_keys or part.in_order)
            groups = self.reader.groups(part.files, part.keys, lean=lean, in_order=part.in_order, streamed=streamed)
            part_changes = _changes(part, groups or [RowGroup(pa.table({}))])
            part_changes[0] = replace(part_changes[0], replaces=tuple(map(self.reader.key_range, part.replaces)))
            changes += part_changes
        if self.scope:
            changes = [replace(change, scope=self.scope) for change in changes]
        if self.verify:
            changes += [replace(change, verify=True) for change in changes]
        result = self.loader.load(
            self.fence,
            changes,
            one_transaction=self.one_transaction,
            acknowledge=self.acknowledge,
            rejected=rejected,
            unit=self.noted_as,
        )
        return replace(result, seconds=time.perf_counter() - started)


@dataclass(frozen=True, slots=True)
class FinishedUnits:
    """The result of units of earlier attempts: nothing is left to do."""

    result: WriteResult
    cost: int = 0
    memory_bytes: int = 0

    def write(self, rejected: RejectedRows | None = None) -> WriteResult:
        """Return what they wrote."""
        return self.result


def _changes(part: LoadPart, groups: Sequence[RowGroup]) -> list[TableChanges]:
    """Return what a part writes.

    Rows of all sets of columns are deleted before any are inserted: unique values may move between them.
    """
    every = [
        TableChanges(
            part.table,
            group.rows,
            part.deletes and (group.read is None or not part.table.key or leaves(part)),
            part.upserts,
            scope=f"{part.table.table}#{number}" if number else "",
            in_order=part.in_order,
            verify=part.verify,
            read=group.read,
        )
        for number, group in enumerate(groups)
    ]
    halves = part.deletes and part.upserts and part.table.key
    if len(every) > 1 and halves and not any("_present" in group.rows.schema.names for group in groups):
        every = [replace(change, upserts=False) for change in every] + [
            replace(change, deletes=False) for change in every
        ]
    return [
        replace(change, part=f"{part.identity}-{number}" if number else part.identity)
        for number, change in enumerate(every)
    ]
