"""The changes of a part of a table, read from its segments as one table in the newest definition."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from sluice.errors import SegmentError
from sluice.mapping import Mapping as Routes
from sluice.mapping.changed import each_changed
from sluice.merge.column_presence import is_partial, renewed
from sluice.merge.compact import compact, thinned, user_columns
from sluice.merge.key_override import rekeyed
from sluice.model import packing
from sluice.model.decimals import cast
from sluice.model.fields import key_columns
from sluice.model.tables import KEY_BUCKETS, TableId, member, one_chunk, stored_name
from sluice.segments.buckets import key_bucket
from sluice.segments.conflicts import ConflictRecord
from sluice.segments.footers import measured, opened
from sluice.segments.manifest import SegmentFile, SegmentManifest
from sluice.segments.reader import read_file
from sluice.segments.store import SegmentStore, ways_on

MOST_SHARES = 8
"""Times that a part is read, at most, so that it need not be written again in finer buckets."""

_READ = ("_op", "_seq", "_commit_ts", "_origin", "_before")


@dataclass(frozen=True, slots=True)
class MergePart:
    """A range of key buckets of one table: ``buckets`` is (lo, hi), hi excluded; ``key``: its key, if it has no primary
    key.

    ``segments``: the files that the table's changes are in, where ``files`` are made of them (see
    :mod:`sluice.flows.transform.shuffle`). ``share``: (number, of) of its keys; see :func:`shares`.
    """

    source: TableId
    files: tuple[SegmentFile, ...]
    buckets: tuple[int, int]
    key: tuple[str, ...] = ()
    segments: tuple[SegmentFile, ...] = ()
    share: tuple[int, int] = (0, 1)

    @property
    def is_whole(self) -> bool:
        """True if no bucket cuts it: a table without a key, whose rows are counted as a whole, and one whose rows are
        followed from key to key.
        """
        if self.segments:
            return False
        return any(file.moved_partially or not file.primary_key for file in self.files)

    @property
    def is_keyless(self) -> bool:
        """True if nothing but all of its values tells a row apart."""
        return not self.key and not all(file.primary_key for file in self.files)

    @property
    def size_bytes(self) -> int:
        """Bytes of its rows in memory."""
        return sum(file.share(packing.bytes_of(file), *self.buckets) for file in self.files) // self.share[1]

    @property
    def memory_bytes(self) -> int:
        """The memory that its merge takes of a process.

        Of a part that is read by shares the allocators keep what the other shares were read into: two at a time took
        639 MB of a process.
        """
        read = self.size_bytes * self.share[1] if self.share[1] > 1 else 0
        return packing.memory_of(self.size_bytes, keyless=self.is_keyless) + read

    @property
    def cost(self) -> int:
        """The cost of the part, in rows."""
        rows = sum(file.share(file.rows, *self.buckets) for file in self.files) // self.share[1]
        return packing.cost_of(rows, self.size_bytes) + packing.TABLE_COST


Added = tuple[tuple[int, str], ...]
ColumnGroups = Sequence[Sequence[str]]
"""Source columns that are sent together if only changed columns are sent."""


@dataclass(frozen=True, slots=True)
class PartRead:
    """Rows of a part (CHANGE_ROWS) in the newest definition of its table, and the key's stored names.

    Attributes:
        added: (sequence number from which rows have it, stored name) of columns that older rows of the batch do not
            have.
        listed: some of the changes in conflict.
    """

    changes: pa.Table
    key: list[str]
    added: Added = ()
    listed: Sequence[ConflictRecord] = ()


class Choice(Protocol):
    """The choice of which changes of a part's files are merged."""

    def of_file(self, number: int, rows: pa.Table) -> pa.Table:
        """Return the chosen changes of a file."""

    def listed(self, number: int, rows: pa.Table) -> list[ConflictRecord]:
        """Return some of the changes in conflict."""


def by_table(manifest: SegmentManifest) -> dict[TableId, list[SegmentFile]]:
    """Group the files of a batch by table."""
    tables: dict[TableId, list[SegmentFile]] = {}
    for file in manifest.files:
        tables.setdefault(file.table_id, []).append(file)
    return tables


def cut(part: MergePart, size: int) -> Iterator[MergePart]:
    """Cut a part by key bucket, into pieces of about ``size`` (cost) each."""
    if part.cost <= size or part.is_whole:
        yield part
        return
    low, cost = 0, 0
    for bucket in range(KEY_BUCKETS):
        more = _cost(part, bucket)
        if cost and cost + more > size:
            yield from _range(part, low, bucket)
            low, cost = bucket, 0
        cost += more
    yield from _range(part, low, KEY_BUCKETS)


def shares(part: MergePart, most: int) -> Iterator[MergePart]:
    """Cut a part of more than ``most`` bytes by its keys into shares of about half as much.

    A part without a key, and one of more than :data:`MOST_SHARES` shares, is yielded uncut.

    Decision: each share reads the part's row groups and keeps its own rows. A shuffle reads them once, but it writes a
    file for each segment file of each part: 25,000 files for a transaction of 10 GB, and the merge took longer than 10
    minutes.
    """
    of = -(-part.size_bytes // (most // 2))
    keyed = not part.segments and not part.is_whole
    if keyed and part.size_bytes > most and of <= MOST_SHARES:
        yield from (replace(part, share=(number, of)) for number in range(of))
    else:
        yield part


def _of_share(rows: pa.Table, share: tuple[int, int]) -> pa.Table:
    """Return the rows of a share of the keys."""
    number, of = share
    if of == 1:
        return rows
    by = [one_chunk(rows[name]) for name in key_columns(rows.schema)]
    return rows.filter(pa.array(key_bucket("share", "", by, rows.num_rows) % of == number))


def _cost(part: MergePart, bucket: int) -> int:
    bucket_part = replace(part, buckets=(bucket, bucket + 1))
    return bucket_part.cost - packing.TABLE_COST


def _range(part: MergePart, low: int, high: int) -> Iterator[MergePart]:
    files = tuple(f for f in part.files if f.bucket_min < high and f.bucket_max >= low)
    if files:
        yield replace(part, files=files, buckets=(low, high))


def read_changes(
    store: SegmentStore, part: MergePart, choice: Choice | None = None, columns: ColumnGroups | None = None
) -> PartRead:
    """Read the changes of a part.

    Args:
        choice: which of the changes; None: all.
        columns: see :func:`sluice.mapping.changed.each_changed`; None: whole rows.

    Raises SegmentError.
    """
    tables: list[pa.Table] = []
    listed: list[ConflictRecord] = []
    newest: pa.Schema | None = None  # of rows that were read, also if none of them is of the part's share
    last = -1
    thin = Thinning()
    for number, file in enumerate(part.files):
        needed_columns = wanted_columns(store, file)
        table = read_file(store, file, part.buckets, needed_columns)
        if not is_partial(table) and "_present" in table.schema.names:
            table = table.drop_columns(["_present"])
        if choice is not None:
            listed += choice.listed(number, table)
            table = choice.of_file(number, table)
        if columns is not None and "_present" not in table.schema.names and key_columns(table.schema):
            table = each_changed(table, columns)
        table = table.drop_columns(["_bucket"]) if "_bucket" in table.schema.names else table
        ends = _last_seq(table)
        if newest is None or ends > last:
            newest, last = table.schema, ends
        tables.append(_of_share(table, part.share))
        if not part.key:
            tables = thin(tables)
    if choice is not None:  # rows that are left out tell nothing about the definition
        tables = [table for table in tables if table.num_rows] or tables[:1]
    assert newest is not None
    added = []
    for name in user_columns(newest):
        having = [table for table in tables if name in table.schema.names]
        if len(having) < len(tables):
            first = min((_first_seq(table) for table in having if table.num_rows), default=last + 1)
            added.append((first, name))
    if any("_present" in table.schema.names for table in tables) and "_present" not in newest.names:
        newest = newest.append(pa.field("_present", pa.binary()))
    changes = pa.concat_tables([_as(table, newest) for table in tables])
    key = key_columns(newest)
    if part.key and not key:
        changes = rekeyed(changes, part.source, part.key)
        return PartRead(changes, [stored_name(name) for name in part.key], tuple(added), listed)
    return PartRead(changes, key, tuple(added), listed)


def merged_tables(
    store: SegmentStore,
    manifest: SegmentManifest,
    routes: Routes | None = None,
    *,
    wants: Callable[[TableId], bool] | None = None,
) -> Iterator[tuple[TableId, pa.Table]]:
    """Yield all tables of a batch as MERGED_ROWS, for inspection and for a batch that was skipped.

    Large tables come in pieces by key bucket, one without a key comes whole.

    Args:
        routes: as for :class:`MergePart`'s key.
        wants: which tables are read; None: all.
    """
    for source, files in sorted(by_table(manifest).items()):
        if wants is not None and not wants(source):
            continue
        key = routes.route(source).key if routes is not None else ()
        for part in cut(MergePart(source, measured(store, files), (0, KEY_BUCKETS), key), packing.MAX_UNIT_ROWS):
            read = read_changes(store, part)
            yield source, compact(read.changes, read.key)


def wanted_columns(store: SegmentStore, file: SegmentFile) -> list[str]:
    """Return the columns of a segment file that a merge reads. Raises SegmentError."""
    with store.open_input(file.path) as source:
        try:
            schema = opened(source, file.footer_crc32).schema_arrow
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise SegmentError("the segment file is damaged", where=file.path, hint=ways_on(store.pipeline)) from error
    return [*user_columns(schema), *_READ, *(["_present"] if "_present" in schema.names else [])]


class Thinning:
    """Drops changes that a merge does not need while the files are read, as few keys may have most of them.

    It thins again when there is twice as much.
    """

    def __init__(self) -> None:
        self._most_rows, self._most_bytes = packing.MAX_UNIT_ROWS, packing.THIN_BYTES
        self._rows = self._bytes = 0

    def __call__(self, tables: list[pa.Table]) -> list[pa.Table]:
        """Return the same tables, or fewer rows that give the same merge.

        Called after each table that is appended: what the others have is not counted again, as a large batch has
        hundreds of files.
        """
        self._count(tables[-1])
        if len(tables) < 2 or (self._rows <= self._most_rows and self._bytes <= self._most_bytes):
            return tables
        tables = _thinned(tables)
        self._rows = self._bytes = 0
        for table in tables:
            self._count(table)
        self._most_rows = max(packing.MAX_UNIT_ROWS, 2 * self._rows)
        self._most_bytes = max(packing.THIN_BYTES, 2 * self._bytes)
        return tables

    def _count(self, table: pa.Table) -> None:
        self._rows += table.num_rows
        self._bytes += table.nbytes


def _thinned(tables: list[pa.Table]) -> list[pa.Table]:
    """Return one table of the rows that a merge needs, if all tables have one definition."""
    schema = tables[0].schema
    if not all(table.schema.equals(schema, check_metadata=True) for table in tables):
        return tables
    return [thinned(pa.concat_tables(tables), key_columns(schema))]


def _as(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Convert ``table`` to a newer definition: new columns are null, dropped ones are removed, types are converted."""
    if table.schema.equals(schema, check_metadata=True):
        return table
    columns = []
    for field_ in schema:
        if field_.name == "_present":
            columns.append(renewed(table, user_columns(table.schema), user_columns(schema)))
        elif field_.name not in table.schema.names:
            columns.append(pa.nulls(table.num_rows, field_.type))
        elif field_.name == "_before":
            struct = table["_before"].combine_chunks()
            present = {child.name for child in struct.type}
            children = [
                cast(member(struct, child.name), child.type)
                if child.name in present
                else pa.nulls(table.num_rows, child.type)
                for child in field_.type
            ]
            columns.append(pa.StructArray.from_arrays(children, fields=list(field_.type), mask=pc.is_null(struct)))
        else:
            columns.append(cast(table[field_.name], field_.type))
    return pa.table(columns, schema=schema)


def _first_seq(table: pa.Table) -> int:
    return int(pc.min(table["_seq"]).as_py() or 0)


def _last_seq(table: pa.Table) -> int:
    return int(pc.max(table["_seq"]).as_py() or 0)
