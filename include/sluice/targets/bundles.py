"""Several batches that a target writes as one (Feature.BUNDLES, ``commit_every``): which ones may be joined, and the
joined batch.

Decision: the batches stay as they are, each merged and numbered by itself, and are joined where they are written. So
nothing of a batch before its load depends on which others it is written with, and a repeat may join others than the
attempt before it: a table notes the last batch that it has, and leaves out earlier ones. Batches with something to do
between their rows and another one's stay alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from sluice.errors import SluiceError
from sluice.model.changes import Change
from sluice.model.tables import TableId
from sluice.targets.port import (
    BatchInput,
    ChangePiece,
    KeyRange,
    RowFile,
    RowGroup,
    RowReader,
    Share,
    StoredRange,
    TableInput,
)

MOST_ROWS = 200_000
"""Rows or changes that are joined, at most. All of a table's are in memory at once; larger batches are large enough."""


def bundles(batches: Iterable[BatchInput]) -> Iterator[list[BatchInput]]:
    """Yield runs of ``batches``, ascending, that may be joined, each as long as possible.

    A batch that stays alone is yielded before the next one is read, and so is a run whose next batch cannot be read:
    its error comes after it.
    """
    remaining, run = iter(batches), list[BatchInput]()
    while True:
        try:
            batch = next(remaining, None)
        except SluiceError:
            if run:
                yield run
            raise
        if run and (batch is None or not _join([*run, batch])):
            yield run
            run = []
        if batch is None:
            return
        run.append(batch)
        if not _join(run):
            yield run
            run = []


def joined(batches: Sequence[BatchInput]) -> BatchInput:
    """Join a run of :func:`bundles` into one batch: the last one, starting where the first does.

    Its rows are written by units, never by Spark.
    """
    first, last = batches[0], batches[-1]
    if len(batches) == 1:
        return first
    return replace(
        last,
        held=first.held,
        reader=BundledReader(tuple((batch.number, batch.reader) for batch in batches)),
        tables=_tables(batches),
        changes=sum(batch.changes for batch in batches),
        facts=first.facts,
        spark=None,
    )


def _join(batches: Sequence[BatchInput]) -> bool:
    """Return True if nothing happens between their rows, and each target table gets rows of one source table, planned
    alike.

    Otherwise the order of rows between batches would count.
    """
    if any(batch.schema_changes or batch.reconcile or batch.replay or batch.apart for batch in batches):
        return False
    if sum(batch.changes + sum(table.rows for table in batch.tables) for batch in batches) > MOST_ROWS:
        return False
    plans: dict[TableId, TableInput] = {}
    for batch in batches:
        if len({table.target for table in batch.tables}) < len(batch.tables):
            return False
        for table in batch.tables:
            if plans.setdefault(table.target, table).plan != table.plan:
                return False
    return True


def _tables(batches: Sequence[BatchInput]) -> tuple[TableInput, ...]:
    tables: dict[TableId, TableInput] = {}
    for batch in batches:
        for table in batch.tables:
            merged = tables.get(table.target, replace(table, files=()))
            numbers = (*merged.batches, *(batch.number for _ in table.files))
            tables[table.target] = replace(
                merged, files=(*merged.files, *table.files), batches=numbers, weight=table.weight
            )
    return tuple(tables.values())


@dataclass(frozen=True, slots=True)
class BundledReader:
    """Reads several batches, by number, ascending. See :class:`sluice.targets.port.RowReader`."""

    batches: tuple[tuple[int, RowReader], ...]

    @property
    def _any(self) -> RowReader:
        """Files of merged rows are read alike, whatever their batch."""
        return self.batches[-1][1]

    def pieces(self, files: Sequence[RowFile]) -> Iterator[pa.Table]:
        """Yield rows of the files as they are: a key may have a row in several."""
        return self._any.pieces(files)

    def groups(
        self,
        files: Sequence[RowFile],
        keys: tuple[int | None, int | None] | None = None,
        *,
        lean: bool = False,
        in_order: bool = False,
        streamed: bool = False,
    ) -> list[RowGroup]:
        """Return the rows as groups, read by the last batch's reader."""
        return self._any.groups(files, keys, lean=lean, in_order=in_order, streamed=streamed)

    def changes(self, share: Share | None = None) -> Iterator[Change]:
        """Yield the changes of one batch after the other."""
        for _, reader in self.batches:
            yield from reader.changes(share)

    def change_pieces(self, share: Share | None = None) -> Sequence[ChangePiece]:
        """Return the pieces with the number of their batch."""
        return [
            replace(piece, batch=number) for number, reader in self.batches for piece in reader.change_pieces(share)
        ]

    def is_large(self, size_bytes: int) -> bool:
        """Return the answer for one batch."""
        return self._any.is_large(size_bytes)

    def memory_of(self, size_bytes: int, files: int) -> int:
        """Return the answer for one batch."""
        return self._any.memory_of(size_bytes, files)

    def key_range(self, stored: StoredRange) -> KeyRange:
        """Return the answer for one batch."""
        return self._any.key_range(stored)


__all__ = ["MOST_ROWS", "BundledReader", "bundles", "joined"]
