"""The rows that a part of a load writes: all at once if they are few, else piece by piece, so that memory does not grow
with the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise

import numpy as np
import pyarrow as pa

from sluice.model import packing
from sluice.model.key_ranges import PER_GROUP, borders, samples
from sluice.segments import changeset as stored
from sluice.segments.changeset import ChangesetFile, ChangesetReader, key_numbers
from sluice.segments.store import SegmentStore

PIECE_BYTES = 8 * 2**20
"""Bytes of rows in memory: what is written of a large part before more is read."""

_FOOTERS = 32
"""Files of a part whose parsed footers are kept while it is read."""

HELD_BYTES = 64 * 2**20
"""Bytes of rows, of all files together, that are held to pass them on in the order of their keys: as many as a unit
writes. A part of more files than that has row groups is read in ranges of its keys.
"""

Keys = tuple[int | None, int | None]


def is_large(size_bytes: int) -> bool:
    """Return True if rows of this many bytes are read piece by piece."""
    return size_bytes > 2 * PIECE_BYTES


def memory_of(size_bytes: int, files: int) -> int:
    """Return the bytes of memory that a part takes: one piece, and a row group of each file from which pieces are
    built, as far as they are held at once.
    """
    if not is_large(size_bytes):
        return packing.memory_of(size_bytes)
    return packing.memory_of(2 * PIECE_BYTES) + min(files * stored.ROW_GROUP_BYTES, HELD_BYTES)


def readers_of(store: SegmentStore, files: Sequence[ChangesetFile], *, lean: bool) -> list[ChangesetReader]:
    """Return a reader of each file of a part. Raises SegmentError."""
    forgetful = len(files) > _FOOTERS
    return [ChangesetReader(store, file, lean=lean, forgetful=forgetful) for file in files]


def reading(
    readers: Sequence[ChangesetReader], keys: Keys | None, *, in_order: bool
) -> tuple[pa.Table, Callable[[], Iterator[pa.Table]]]:
    """Return an empty table with the columns, and a function that reads the rows in pieces as often as it is called.

    Args:
        in_order: rows that a rule kept come first, in log order. A row that exists at the end came after all kept ones
            whose key the server compares as equal: while it existed, they could not.
    """
    schema = pa.unify_schemas([reader.schema for reader in readers], promote_options="permissive")
    if keys is None and not in_order and all(reader.file.key_starts for reader in readers):
        keys = (None, None)
    if keys is not None:
        return schema.empty_table(), partial(_by_key, readers, keys, schema)
    if in_order:
        kept_readers = [reader for reader in readers if reader.file.revived]
        others = [reader for reader in readers if not reader.file.revived]
        return schema.empty_table(), partial(_kept_first, kept_readers, others, schema)
    return schema.empty_table(), partial(_one_by_one, readers, schema)


def _one_by_one(readers: Sequence[ChangesetReader], schema: pa.Schema) -> Iterator[pa.Table]:
    buffer = _Held(schema)
    for reader in readers:
        for group in range(reader.groups):
            yield from buffer.add(reader.read(group))
    yield from buffer.rest()


def _kept_first(
    first_readers: Sequence[ChangesetReader], others: Sequence[ChangesetReader], schema: pa.Schema
) -> Iterator[pa.Table]:
    tables = list(_one_by_one(first_readers, schema))
    if tables:
        rows = pa.concat_tables(tables)
        rows = rows.take(pa.array(np.argsort(rows["_seq"].to_numpy(), kind="stable")))
        for start in range(0, rows.num_rows, packing.UNIT_ROWS):
            yield rows.slice(start, packing.UNIT_ROWS)
    yield from _one_by_one(others, schema)


def _by_key(readers: Sequence[ChangesetReader], keys: Keys, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield rows of several files, each ordered by the first key column, as one ordered stream: the target writes its
    tree left to right.

    Decision: a row group of each file was held. A transaction of 10 GB has 256 files, and its units, which write 64 MB
    each, took 546 MB of a process. So rows outside of the range are dropped when a group is read, and a part of more
    files is read in ranges of :data:`HELD_BYTES`: 401 MB. Each range reads a group of each file again, so that a part
    of few files is one range.
    """
    low, high = keys
    inside: list[int] = []
    if len(readers) * stored.ROW_GROUP_BYTES > HELD_BYTES:
        key_samples = samples((reader.file.key_starts for reader in readers), low, high)
        inside = borders(key_samples, _samples_of(HELD_BYTES))
    for start, end in pairwise([low, *inside, high]):
        yield from _in_range([reader for reader in readers if reader.file.groups(start, end)], start, end, schema)


def _in_range(
    readers: Sequence[ChangesetReader], low: int | None, high: int | None, schema: pa.Schema
) -> Iterator[pa.Table]:
    key_samples = samples((reader.file.key_starts for reader in readers), low, high)
    cursors = [_Cursor(reader, low, high) for reader in readers]
    buffer = _Held(schema, ordered=True)
    for border in (*borders(key_samples, _samples_of(PIECE_BYTES)), high):
        for cursor in cursors:
            for rows in cursor.below(border):
                yield from buffer.add(rows)
        yield from buffer.rest()


def _samples_of(size_bytes: int) -> int:
    """Return the number of samples that stand for this many bytes of rows."""
    return max(size_bytes // stored.ROW_GROUP_BYTES, 1) * PER_GROUP


class _Held:
    """A buffer of rows that are passed on once there are enough of them."""

    def __init__(self, schema: pa.Schema, *, ordered: bool = False) -> None:
        self._schema, self._ordered = schema, ordered
        self._tables: list[pa.Table] = []
        self._bytes = 0

    def add(self, rows: pa.Table) -> Iterator[pa.Table]:
        if rows.num_rows:
            self._tables.append(rows)
            self._bytes += rows.nbytes
        if self._bytes >= 2 * PIECE_BYTES:  # many rows may have one number in the first key column
            yield from self.rest()

    def rest(self) -> Iterator[pa.Table]:
        if self._tables:
            rows = pa.concat_tables([self._schema.empty_table(), *self._tables], promote_options="permissive")
            self._tables, self._bytes = [], 0
            yield _sorted(rows) if self._ordered else rows


class _Cursor:
    """One file from its first row of a range on; holds at most a row group, without the rows outside of the range."""

    def __init__(self, reader: ChangesetReader, low: int | None, high: int | None) -> None:
        self._reader, self._low, self._high = reader, low, high
        self._groups = reader.file.groups(low, high)
        self._rows: pa.Table | None = None
        self._numbers = np.zeros(0, np.int64)
        self._at = 0

    def below(self, border: int | None) -> Iterator[pa.Table]:
        """Yield the rows that follow, up to ``border``."""
        while True:
            if self._rows is None:
                if not self._groups or (border is not None and self._starts_behind(border)):
                    return
                self._load(self._groups.pop(0))
            assert self._rows is not None
            stop = len(self._numbers) if border is None else int(np.searchsorted(self._numbers, border))
            if stop > self._at:
                yield self._rows.slice(self._at, stop - self._at)
                self._at = stop
            if stop < len(self._numbers):
                return
            self._rows = None

    def _starts_behind(self, border: int) -> bool:
        return self._reader.file.key_starts[self._groups[0]] >= border

    def _load(self, group: int) -> None:
        rows = self._reader.read(group)
        numbers = key_numbers(rows)
        assert numbers is not None
        start = 0 if self._low is None else int(np.searchsorted(numbers, self._low))
        stop = len(numbers) if self._high is None else int(np.searchsorted(numbers, self._high))
        if stop - start < len(numbers):  # a slice would keep the whole group
            rows = rows.take(pa.array(np.arange(start, stop)))
        self._rows, self._numbers, self._at = rows, numbers[start:stop].copy(), 0


def _sorted(rows: pa.Table) -> pa.Table:
    numbers = key_numbers(rows)
    return rows if numbers is None else rows.take(pa.array(np.argsort(numbers, kind="stable")))
