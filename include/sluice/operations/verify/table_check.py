"""One table at one target, compared while the log flows.

1. Ranges of the key. If both servers compute the same checksums, ranges with equal checksums are done, and others are
  cut smaller until few rows are
   left. A range is read at the source first, and at the target once that holds the log up to the read.
2. The rows of what is left (or of every range) are read, transformed into what would be loaded, and compared at the
  target. A difference is only a
   suspect.
3. Suspects are compared by their keys, between a low watermark and the position that the target has reached. A key that
  the log changed in this
   window is compared with what the log left of it. One that it did not change differs.

4. If a range of the source is none at the target, the target's own keys are listed at the end. Those not read at the
  source are suspects.

So a row is reported after at least two looks, and during the last of them it cannot have been in flight.
"""

from __future__ import annotations

import itertools
import json
import queue
import random
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from typing import IO, Literal, cast

import numpy as np
import pyarrow as pa

from sluice.model.digests import RangeDigest
from sluice.model.dumps import Chunk, ChunkId, TablePlanned, TableRequest
from sluice.model.planned import PlannedTable
from sluice.model.tables import TableSchema, stored_name
from sluice.operations.verify.expected_rows import ExpectedRows, Loaded
from sluice.operations.verify.lockstep import ahead, in_lockstep
from sluice.operations.verify.log_window import LogWindow
from sluice.sources.port import ChunkKey, ChunkReader, DigestReader, Key, KeyText, SharedDigestReader
from sluice.targets.port import Comparer, KeyLister, KeyRange, RangeDifferences, SharedComparer


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


_BYTES = 8


def hashes_of(keys: Sequence[Key]) -> bytes:
    """Return eight bytes for each key, the same in every process."""
    return b"".join(blake2b("\0".join(key).encode(), digest_size=_BYTES).digest() for key in keys)


class SeenKeys:
    """A set that only grows.

    Its file has no name and goes with the process; two keys of one hash are as rare as a fault of the memory.
    """

    def __init__(self) -> None:
        self._sorted: np.ndarray[tuple[int], np.dtype[np.uint64]] | None = None

    @cached_property
    def _file(self) -> IO[bytes]:
        """The temporary file; made at first use, as most tables need none."""
        return tempfile.TemporaryFile(prefix="sluice-verify-")

    def add(self, hashes: bytes) -> None:
        """Add hashes that :func:`hashes_of` made."""
        if not hashes:
            return
        self._sorted = None
        self._file.seek(0, 2)
        self._file.write(hashes)

    def among(self, keys: Sequence[Key]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Return a mask of the keys that were added. Sorts in the file, whose pages the system may write out."""
        key_hashes = np.frombuffer(hashes_of(keys), np.uint64)
        if self._sorted is None:
            self._file.flush()
            empty = not self._file.seek(0, 2)
            self._sorted = np.zeros(0, np.uint64) if empty else np.memmap(self._file, np.uint64, "r+")
            self._sorted.sort()
        if not len(self._sorted):
            return np.zeros(len(key_hashes), np.bool_)
        at = np.minimum(np.searchsorted(self._sorted, key_hashes), len(self._sorted) - 1)
        mask: np.ndarray[tuple[int], np.dtype[np.bool_]] = self._sorted[at] == key_hashes
        return mask


FEW_ROWS = 4_000
"""Rows of a range up to which it is read and not cut again: each further cut waits for the log, and with changes
everywhere all parts differ.
"""
CUTS = 16
"""Parts into which a range is cut whose checksums differ."""
AHEAD = 32
"""Checksums by which the source may be ahead of the target."""
RANGES_AT_A_TIME = 32
RANGES_AHEAD = 6
"""Ranges of rows by which the source is ahead of the target, so that the target is waited for once for all of them."""
DIGESTS_AT_A_TIME = 256
KEYS_A_LOOK = 10_000
KEYS_A_SELECT = 2_000
LOOKS = 12
"""Comparisons of a key that changes all the time, before it counts as undecided."""

Kind = Literal["missing", "different", "extra"]


@dataclass(frozen=True, slots=True)
class SourceRange:
    """A key range ``after < key <= upto``, as literals; empty: unbounded."""

    after: Key = ()
    upto: Key = ()


_OPEN = SourceRange()


@dataclass(frozen=True, slots=True)
class DifferingRow:
    """A row that differs."""

    key: Key
    kind: Kind
    columns: tuple[str, ...] = ()
    values: tuple[tuple[str | None, str | None], ...] = ()


@dataclass(frozen=True, slots=True)
class RangeFound:
    """A range that a worker compared: rows of the source, and the keys of which the target has something else; None: to
    be compared here.

    ``hashes``: of the rows' keys, see :mod:`sluice.operations.verify.table_check`; empty where they are not asked for.
    """

    source_range: SourceRange
    rows: int
    keys: tuple[Key, ...] | None
    hashes: bytes = b""


@dataclass(kw_only=True)
class Found:
    """The differences found so far.

    Attributes:
        most: number of differing rows of which details are kept.
        odd: these rows.
        keys: of all rows that differ, for a repair; None: they are not kept.
    """

    most: int = 100
    rows: int = 0
    ranges: int = 0
    compared: int = 0
    undecided: int = 0
    missing: int = 0
    different: int = 0
    extra: int = 0
    odd: list[DifferingRow] = field(default_factory=list)
    keys: KeySpool | None = None

    @property
    def differing(self) -> int:
        """Rows that differ."""
        return self.missing + self.different + self.extra

    def add(self, odd: Iterable[DifferingRow]) -> None:
        """Add rows that differ, each once."""
        for row in odd:
            setattr(self, row.kind, getattr(self, row.kind) + 1)
            if len(self.odd) < self.most:
                self.odd.append(row)
            if self.keys is not None:
                self.keys.add([row.key])


@dataclass(frozen=True, kw_only=True)
class ComparisonPlan:
    """The way a table is compared.

    Attributes:
        request, schema, key: at the source.
        plan: at the target, of a table without rules.
        ranged: the target's range is the source's: rows that only the target has are searched for in each range.
        lists: they are searched for at the end, by all of the target's keys.
        digested: source columns of which both sides compute the same checksums; none: they do not.
        digest_plan: the same columns at the target. shared: the checksums are those that different kinds of servers
            compute alike.
        range_rows: rows of a range that is read.
        sample: share of the ranges.
    """

    request: TableRequest
    schema: TableSchema
    key: ChunkKey
    plan: PlannedTable
    ranged: bool
    digested: tuple[str, ...] = ()
    digest_plan: PlannedTable | None = None
    shared: bool = False
    range_rows: int = 10_000
    digest_rows: int = 50_000
    sample: float = 1.0
    lists: bool = False

    @property
    def name(self) -> str:
        """The name of the way, for display."""
        return "checksums" if self.digested else "rows" if self.ranged or self.lists else "rows of the source"


@dataclass(frozen=True)
class RowComparer:
    """Compares rows of the source with those of the target."""

    comparer: Comparer
    made: ExpectedRows
    texts: KeyText
    way: ComparisonPlan

    def listed(self, keys: Sequence[Key]) -> KeyRange | None:
        """Return these keys at the target; None if rows that only the target has are not searched for."""
        way = self.way
        return KeyRange(way.plan.key, listed=self._values(keys)) if way.ranged or way.lists else None

    def key_range(self, source_range: SourceRange) -> KeyRange:
        """Return a source range as the target's range."""
        after, upto = (self._values([key]) if key else None for key in (source_range.after, source_range.upto))
        return KeyRange(self.way.plan.key, after=after, upto=upto)

    def _values(self, keys: Sequence[Key]) -> pa.Table:
        return self.texts.values({column.name: column.type for column in self.way.key.columns}, keys)

    def literals(self, keys: pa.Table | None) -> list[Key]:
        """Return keys that the target told as the source writes them, columns in key order."""
        if keys is None:
            return []
        names = [stored_name(name) for name in self.way.key.names]
        return self.texts.literals(self.way.key.columns, keys.rename_columns(names))

    def compared(
        self, pieces: Sequence[pa.Table], loaded: Sequence[Loaded], item: KeyRange | None, *, values: bool
    ) -> tuple[dict[Key, DifferingRow], RangeDifferences]:
        """Return what differs now, by key at the source; and the target's last answer, which is the only one if there
        is a range.
        """
        keys: list[Key] | None = None
        rows: dict[Key, DifferingRow] = {}
        differs = RangeDifferences()
        for loaded_table in loaded:
            if loaded_table.cleared:
                rows |= self._uncleared(pieces, loaded_table)
                continue
            differs = self.comparer.compare(loaded_table.plan, loaded_table.rows, item, values=values)
            if (differs.missing or differs.different) and keys is None:
                keys = self.keys(pieces)
            rows |= _by_key(differs, self.literals(differs.extra), loaded_table, keys or [])
        return rows, differs

    def _uncleared(self, pieces: Sequence[pa.Table], loaded: Loaded) -> dict[Key, DifferingRow]:
        """Return the keys that the target holds although the rules give nothing for them, as far as no rule changed
        them.
        """
        keys = self.keys(pieces)
        cleared_keys = [keys[number] for number in loaded.origin]
        own = loaded.rows.select(list(map(stored_name, loaded.plan.key)))
        if own.schema.types != [self.way.schema.field(column).type for column in self.way.key.columns]:
            return {}
        if self.literals(own) != cleared_keys:
            return {}
        item = KeyRange(loaded.plan.key, listed=self._values(cleared_keys))
        differs = self.comparer.compare(loaded.plan, loaded.rows.slice(0, 0), item)
        extra = set(self.literals(differs.extra))
        return {key: DifferingRow(key, "extra") for key in cleared_keys if key in extra}

    def hashes(self, pieces: Sequence[pa.Table]) -> bytes:
        """Return the hashes of the keys of source rows if they are needed."""
        return hashes_of(self.keys(pieces)) if self.way.lists else b""

    def keys(self, pieces: Sequence[pa.Table]) -> list[Key]:
        """Return the keys of source rows."""
        places = [i for name in self.way.key.names for i, c in enumerate(self.way.schema.columns) if c.name == name]
        keys: list[Key] = []
        for piece in pieces:
            table = pa.table([piece.column(i) for i in places], names=list(map(stored_name, self.way.key.names)))
            keys += self.texts.literals(self.way.key.columns, table)
        return keys


@dataclass(kw_only=True)
class TableCheck:
    """Compares one table.

    Attributes:
        told: called with the number of source rows compared since the last call.
        spread: has ranges compared by workers, ``spread_ranges`` at a time; None: all is compared here.
        lanes: readers that compute checksums in parallel; all have read the table's definition. None: the one
            ``reader`` does all.
    """

    reader: ChunkReader
    comparer: Comparer
    log: LogWindow
    made: ExpectedRows
    texts: KeyText
    way: ComparisonPlan
    values: bool = False
    told: Callable[[int], None] = lambda rows: None
    found: Found = field(default_factory=Found)
    spread: Callable[[Sequence[SourceRange]], Iterable[RangeFound]] | None = None
    spread_ranges: int = 0
    lanes: Callable[[], Sequence[ChunkReader]] = lambda: ()
    _seen: SeenKeys = field(default_factory=SeenKeys)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def _row_comparer(self) -> RowComparer:
        return RowComparer(self.comparer, self.made, self.texts, self.way)

    def run(self) -> Found:
        """Compare the whole table.

        Ranges are taken some at a time, so that memory stays bounded even if every row differs.
        """
        way = self.way
        ranges = self._sampled(self._cut(SourceRange(), way.digest_rows if way.digested else way.range_rows))
        suspects: dict[Key, None] = {}
        while True:
            cut = self.found.ranges
            some = itertools.islice(
                ranges, DIGESTS_AT_A_TIME if way.digested else self.spread_ranges or RANGES_AT_A_TIME
            )
            todo = deque(self._not_equal(some) if way.digested else some)
            if self.found.ranges == cut:
                break
            if self.spread is not None and not way.digested:
                todo = deque(self._left_over(self.spread(list(todo)), suspects))
            while todo:
                few = [todo.popleft() for _ in range(min(len(todo), RANGES_AT_A_TIME))]
                for source_range, differs, keys in self._read_ranges(few):
                    if differs.more:  # one half has all of them; compare the other one again
                        assert differs.extra is not None
                        [last] = self._row_comparer.literals(differs.extra.slice(differs.extra.num_rows - 1))
                        todo.extend((replace(source_range, upto=last), replace(source_range, after=last)))
                        continue
                    suspects |= dict.fromkeys(keys)
                if len(suspects) >= self._keys_a_look:
                    self.look_again(list(suspects))
                    suspects.clear()
        self.look_again(list(suspects))
        if way.lists:
            self._look_for_others()
        return self.found

    def _look_for_others(self) -> None:
        """Compare again the target's keys that were not read at the source; rows that came meanwhile are among them."""
        way, lister = self.way, cast(KeyLister, self.comparer)  # of a target that declares it, as ``lists`` says
        suspects: list[Key] = []
        for piece in lister.keys(way.plan):
            keys = self._row_comparer.literals(piece)
            suspects += [keys[at] for at in np.flatnonzero(~self._seen.among(keys))]
            while len(suspects) >= self._keys_a_look:
                self.look_again(suspects[: self._keys_a_look])
                del suspects[: self._keys_a_look]
        self.look_again(suspects)

    def _left_over(self, results: Iterable[RangeFound], suspects: dict[Key, None]) -> Iterator[SourceRange]:
        """Take over what workers found; yield the ranges that have to be compared here."""
        for range_found in results:
            if range_found.keys is None:
                yield range_found.source_range
                continue
            suspects |= dict.fromkeys(range_found.keys)
            self._seen.add(range_found.hashes)
            self._count(range_found.rows)

    @property
    def _keys_a_look(self) -> int:
        """The number of keys of one comparison; their rows are in memory together."""
        return min(KEYS_A_LOOK, self.way.range_rows)

    @property
    def _few_rows(self) -> int:
        return max(min(FEW_ROWS, self.way.range_rows), 1)

    @property
    def _ranges_ahead(self) -> int:
        """The number of ranges to read ahead, so that it is the same number of rows whatever the size of a range."""
        return RANGES_AHEAD * self.way.range_rows // self._few_rows if self.way.digested else RANGES_AHEAD

    # -- ranges --------------------------------------------------------------------------------------------------------
    def _cut(self, source_range: SourceRange, rows: int) -> Iterator[SourceRange]:
        """Yield ranges of about this many rows."""
        request = replace(self.way.request, upper=source_range.upto)
        planned = TablePlanned(source_range.after, 1 if source_range.after else 0)
        while True:
            border, last = self.reader.next_border(request, planned, rows)
            yield SourceRange(planned.upto, source_range.upto if last else border)
            if last:
                return
            planned = TablePlanned(border, planned.chunks + 1)

    def _sampled(self, source_ranges: Iterable[SourceRange]) -> Iterator[SourceRange]:
        dice = random.Random()  # noqa: S311 - which ranges are compared is no secret
        for source_range in source_ranges:
            self.found.ranges += 1
            if self.way.sample >= 1 or dice.random() < self.way.sample:
                self.found.compared += 1
                yield source_range

    def _chunk(self, source_range: SourceRange = _OPEN) -> Chunk:
        return Chunk(ChunkId("verify", 0, next(self._numbers)), after=source_range.after, upto=source_range.upto)

    # -- checksums -----------------------------------------------------------------------------------------------------
    def _not_equal(self, ranges: Iterator[SourceRange]) -> Iterator[SourceRange]:
        """Yield small ranges whose checksums differ."""
        todo: list[tuple[SourceRange, int]] = []
        for source_range, own_digest, equal in self._digests(ranges):
            if equal:
                self._count(own_digest.rows)
            else:
                todo.append((source_range, own_digest.rows))
        while todo:
            most = self._few_rows
            few = [source_range for source_range, rows in todo if rows <= most]
            yield from few
            many = [(source_range, rows) for source_range, rows in todo if rows > most]
            todo = []
            parts = (
                part
                for source_range, rows in many
                for part in self._cut(source_range, max(-(-rows // CUTS), most // 2))
            )
            for source_range, own_digest, equal in self._digests(parts):
                if equal:
                    self._count(own_digest.rows)
                else:
                    todo.append((source_range, own_digest.rows))

    def _digests(self, source_ranges: Iterator[SourceRange]) -> Iterator[tuple[SourceRange, RangeDigest, bool]]:
        """Yield the digests of both sides and whether they are equal.

        The check's own reader finds the borders meanwhile.
        """
        plan, request, columns = self.way.digest_plan, self.way.request, self.way.digested
        shared = self.way.shared
        assert plan is not None
        free: queue.SimpleQueue[ChunkReader] = queue.SimpleQueue()

        def at_source(source_range: SourceRange) -> tuple[RangeDigest, str]:
            reader = free.get()
            try:
                if shared:
                    assert isinstance(reader, SharedDigestReader)
                    digest = reader.shared_digest(request, self._chunk(source_range), columns)
                else:
                    assert isinstance(reader, DigestReader)
                    digest = reader.digest(request, self._chunk(source_range), columns)
                return digest, reader.end_of_log()
            finally:
                free.put(reader)

        def at_target(source_range: SourceRange) -> RangeDigest:
            if shared:
                assert isinstance(self.comparer, SharedComparer)
                return self.comparer.shared_digest(plan, self._row_comparer.key_range(source_range))
            return self.comparer.digest(plan, self._row_comparer.key_range(source_range))

        def reached(answer: tuple[RangeDigest, str]) -> None:
            self.log.wait_for(answer[1])

        lanes = self.lanes() or [self.reader]
        for reader in lanes:
            free.put(reader)
        if self.reader in lanes:
            source_ranges = iter(list(source_ranges))
        both = in_lockstep(source_ranges, at_source, reached, at_target, lanes=len(lanes), most_ahead=AHEAD)
        for source_range, (own_digest, _), other_digest in both:
            yield source_range, own_digest, other_digest == own_digest

    def _count(self, rows: int) -> None:
        self.found.rows += rows
        self.told(rows)

    # -- rows ----------------------------------------------------------------------------------------------------------
    def _read_ranges(
        self, source_ranges: Iterable[SourceRange]
    ) -> Iterator[tuple[SourceRange, RangeDifferences, Iterable[Key]]]:
        """Yield, range by range, the target's first answer on rows that only it has, and the keys of all rows that
        differ.
        """

        def at_source() -> Iterator[tuple[SourceRange, list[pa.Table], str]]:
            for source_range in source_ranges:
                pieces = list(self.reader.rows(self.way.request, self._chunk(source_range)))
                yield source_range, pieces, self.reader.end_of_log()

        for source_range, pieces, place in ahead(at_source(), self._ranges_ahead):
            self.log.wait_for(place)
            item = self._row_comparer.key_range(source_range) if self.way.ranged else None
            odd, more = self._row_comparer.compared(pieces, self.made(self.way.schema, pieces), item, values=False)
            yield source_range, more, odd
            self._seen.add(self._row_comparer.hashes(pieces))
            if not more.more:
                self._count(sum(piece.num_rows for piece in pieces))

    # -- suspects ------------------------------------------------------------------------------------------------------
    def look_again(self, suspects: Sequence[Key]) -> None:
        """Compare keys again until each is equal, or differs and was not changed meanwhile.

        Differences go to :attr:`found`.
        """
        for _ in range(LOOKS):
            if not suspects:
                return
            undecided: list[Key] = []
            for start in range(0, len(suspects), self._keys_a_look):
                undecided += self._look(suspects[start : start + self._keys_a_look])
            suspects = undecided
        self.found.undecided += len(suspects)

    def _look(self, suspects: Sequence[Key]) -> list[Key]:
        """Compare keys once; return those that are still undecided."""
        way, marks = self.way, self.reader.watermarks
        chunk = self._chunk()
        request = replace(way.request, key_file="-")
        some = [suspects[at : at + KEYS_A_SELECT] for at in range(0, len(suspects), KEYS_A_SELECT)]
        newest = self.log.newest()
        low = marks.low(chunk)
        with marks.reading(chunk) as exact:
            pieces = list(self.reader.rows(request, chunk, some))
        visible_batch = self.log.visible(exact if exact is not None else low, newest)
        batch = self.log.wait_for(self.reader.end_of_log())
        loaded = self.made(way.schema, pieces)
        odd, _ = self._row_comparer.compared(pieces, loaded, self._row_comparer.listed(suspects), values=self.values)
        if not odd:
            return []
        if self.made.is_ruled(way.schema.table):
            self.made.require_same(way.schema, pieces, loaded)
        changed = self.log.changed(way.request.table, way.key, visible_batch, self.log.touched())
        if changed is None or not self.log.still_holds(batch):
            return list(odd)
        self.found.add(row for key, row in odd.items() if key not in changed)
        return self._by_the_log([key for key in odd if key in changed], visible_batch)

    def _by_the_log(self, keys: Sequence[Key], visible_batch: int) -> list[Key]:
        """Compare keys that the log changed after batch ``visible_batch`` with what it left of them; those of which it
        still cannot be told.
        """
        way, table = self.way, self.way.request.table
        if not keys:
            return []
        settled_batch = self.log.settled()
        pieces, known_keys = self.log.as_logged(way.schema, way.key, frozenset(keys), visible_batch, settled_batch)
        if not known_keys:
            return list(keys)
        loaded = self.made(way.schema, pieces)
        odd, _ = self._row_comparer.compared(
            pieces, loaded, self._row_comparer.listed(tuple(known_keys)), values=self.values
        )
        later = self.log.changed(table, way.key, settled_batch, self.log.touched())
        if later is None or not self.log.still_holds(settled_batch):
            return list(keys)
        self.found.add(row for key, row in odd.items() if key in known_keys and key not in later)
        return [key for key in keys if key not in known_keys or key in later]


def _by_key(
    differs: RangeDifferences, extra: Iterable[Key], loaded: Loaded, keys: Sequence[Key]
) -> dict[Key, DifferingRow]:
    rows = {key: DifferingRow(key, "extra") for key in extra}
    for number in differs.missing:
        key = keys[int(loaded.origin[number])]
        rows[key] = DifferingRow(key, "missing")
    for difference in differs.different:
        key = keys[int(loaded.origin[difference.row])]
        rows[key] = DifferingRow(key, "different", difference.columns, difference.values)
    return rows


__all__ = ["ComparisonPlan", "DifferingRow", "Found", "RangeFound", "RowComparer", "SourceRange", "TableCheck"]
