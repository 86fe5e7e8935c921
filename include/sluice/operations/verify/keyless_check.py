"""A table without a key at one target: rows are counted by all of their values, as a load tells them apart.

The rows of the source are sent while they are read. When the target holds the log up to the end of the read, it counts
equal rows on both sides. A row whose number differs, and that no batch in between contains, occurred as often at the
source all that time: it differs. One that the log changed meanwhile is counted again in another look.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from sluice.errors import SegmentError
from sluice.merge.column_presence import is_partial
from sluice.model.dumps import Chunk, ChunkId, TableRequest
from sluice.model.tables import TableSchema, member, stored_name
from sluice.operations.verify.expected_rows import ExpectedRows
from sluice.operations.verify.log_window import LogWindow
from sluice.segments.reader import read_file
from sluice.sources.port import ChunkReader
from sluice.targets.port import CountingComparer, RowCounts

LOOKS = 4


class _NotKnownError(Exception):
    """The log does not tell what was changed."""


@dataclass(kw_only=True)
class KeylessCheck:
    """Compares one table that has no key.

    ``whole``: the request is for all rows; ``shown``: target columns whose values may be shown.
    """

    reader: ChunkReader
    comparer: CountingComparer
    log: LogWindow
    made: ExpectedRows
    request: TableRequest
    schema: TableSchema
    whole: bool
    shown: Sequence[str]
    most: int
    told: Callable[[int], None] = lambda rows: None

    def run(self) -> RowCounts:
        """Compare again until no difference is left that the log may explain, a limited number of times."""
        counts = RowCounts()
        for number in range(1, LOOKS + 1):
            counts = self._look(number)
            if not counts.undecided:
                break
        return counts

    def _look(self, number: int) -> RowCounts:
        plan = self.made.plan(self.schema)
        chunk = Chunk(ChunkId("verify", 0, number))
        marks, visible_batch, held_batch = self.reader.watermarks, 0, 0

        def rows() -> Iterator[pa.Table]:
            nonlocal visible_batch, held_batch
            newest = self.log.newest()
            low = marks.low(chunk)
            with marks.reading(chunk) as exact:
                for piece in self.reader.rows(self.request, chunk):
                    yield self._as_loaded(piece)
                    self.told(piece.num_rows if number == 1 else 0)
            visible_batch = self.log.visible(exact if exact is not None else low, newest)
            held_batch = self.log.wait_for(self.reader.end_of_log())

        def changed() -> Iterator[pa.Table]:
            for batch in range(visible_batch + 1, self.log.newest() + 1):
                yield from map(self._as_loaded, self._changed_in(batch))

        try:
            counts = self.comparer.count(plan, rows(), changed, whole=self.whole, shown=self.shown, most=self.most)
            if self.log.still_holds(held_batch):
                return counts
        except _NotKnownError:
            pass
        return RowCounts(rows=0, undecided=1)

    def _as_loaded(self, piece: pa.Table) -> pa.Table:
        [loaded] = self.made(self.schema, [piece])
        return loaded.rows

    def _changed_in(self, batch: int) -> Iterator[pa.Table]:
        """Yield the rows (SELECTED_ROWS) that the log has in a batch, as they were before and after."""
        names = [stored_name(column.name) for column in self.schema.columns]
        types = [self.schema.arrow_schema.field(column.name).type for column in self.schema.columns]
        for file in self.log.files(batch, self.schema.table, _NotKnownError):
            try:
                rows = read_file(self.log.runtime.store, file, verify=False)
            except SegmentError as error:
                raise _NotKnownError from error
            file_types = [rows.schema.field(name).type if name in rows.schema.names else None for name in names]
            if file_types != types or is_partial(rows) or pc.any(pc.equal(rows["_op"], "r")).as_py():
                raise _NotKnownError
            yield rows.select(names)
            before = rows["_before"].combine_chunks()
            before = before.filter(pc.is_valid(before))
            if len(before):
                yield pa.table({name: member(before, name) for name in names})


__all__ = ["KeylessCheck"]
