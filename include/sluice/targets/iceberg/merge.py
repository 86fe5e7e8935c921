"""Merge rows into a table: one snapshot, in which files that have a changed row are replaced, or get a delete file.

Decision: not the library's ``upsert``. It compares whole rows of all that may match, and makes a snapshot of the
deletes and one of the inserts; nor are its filters made for the keys of a batch. Here files are left out by the bounds
of their keys, and the keys of the others are read. *Copy-on-write* then writes the files anew that have a key of the
batch, with the new rows in the place of the old ones, so that bounds stay narrow. *Merge-on-read* writes the positions
of the old rows into a delete file per data file, and the new rows into a file of their own, so that the cost follows
the changes. A file most of whose rows are deleted is written anew all the same: that costs no more than what was
changed in it, and the space that deleted rows take stays bounded if maintenance never comes to the table.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.targets.iceberg.deletes import Deletes, among, union
from sluice.targets.iceberg.kept import KEPT, FileKeys
from sluice.targets.iceberg.types import arrow_schema
from sluice.targets.lake.rows import Part, names_of, together
from sluice.targets.lake.types import TableInfo
from sluice.targets.lake.values import aligned

_PRUNED = (pa.types.is_integer, pa.types.is_date32, pa.types.is_string, pa.types.is_timestamp)
"""The key types whose values lie between the bounds in a file's entry."""


_FILE_SIZE = 512 * 2**20
"""The library's size of files."""
_READ_AHEAD = 4
"""Files whose keys are in memory at a time."""


@dataclass(frozen=True)
class WriteMode:
    """How rows leave a data file.

    Attributes:
        most_deleted: the share of a file's rows that may be deleted by delete files. 0: none (copy-on-write).
        small_bytes: a file of less than this size on disk is written anew in any case, together with the new rows.
    """

    most_deleted: float = 0.0
    small_bytes: int = 0


COPY_ON_WRITE = WriteMode()


def merge_parts(
    files: Files, info: TableInfo, key: Sequence[str], parts: Sequence[Part], mode: WriteMode = COPY_ON_WRITE
) -> None:
    """Merge the parts into the files of a snapshot, which may have no rows. Call it inside the library's contexts."""
    deleted = np.concatenate([part.gone for part in parts]) if parts else np.zeros(0, bool)
    if len(deleted):
        _Merge(files, info, key, parts, deleted, mode).run()


class Files:
    """The data files as ``change`` (Transaction) has the table. ``snapshot`` gets new ones.

    ``order``: columns by which rows that are written together are sorted, so that several files have distinct ranges.
    """

    def __init__(self, table: Any, change: Any, snapshot: Any, order: Sequence[str] = ()) -> None:
        self.table, self.change, self.snapshot, self.order = table, change, snapshot, order
        self.schema = arrow_schema(change.table_metadata)
        self.deletes = Deletes(table.io)
        self.file_size = int(change.table_metadata.properties.get("write.target-file-size-bytes", _FILE_SIZE))
        self._numbers = itertools.count()
        self.written = 0

    def read(self, task: Any, names: Sequence[str] = ()) -> pa.Table:
        """Read the rows of a file that are not deleted; ``names``: only these columns. Any value may be NULL."""
        return self.deletes.rows(task, self.stored(task, names))

    def stored(self, task: Any, names: Sequence[str] = ()) -> pa.Table:
        """Read the rows of a file by their positions, also those that are deleted. See :meth:`read`."""
        from pyiceberg.expressions import AlwaysTrue
        from pyiceberg.io.pyarrow import ArrowScan
        from pyiceberg.table import FileScanTask

        names = list(names or self.schema.names)
        schema = self.change.table_metadata.schema().select(*names)
        scan = ArrowScan(self.change.table_metadata, self.table.io, schema, AlwaysTrue())
        rows = scan.to_table(tasks=[FileScanTask(task.file)])
        return rows.select(names).cast(loose(pa.schema([self.schema.field(name) for name in names]))).combine_chunks()

    def write(self, rows: pa.Table) -> None:
        """Write rows as new files."""
        if not rows.num_rows:
            return
        if self.order:
            rows = rows.sort_by([(name, "ascending") for name in self.order])
        for file in self._made(rows.cast(self.schema)):
            self.snapshot.append_data_file(file)
            self.written += 1

    def _made(self, rows: pa.Table) -> list[Any]:
        """Write the files, without bounds of texts if the library cannot cut one.

        The library raises the end of a cut bound by adding one to the number of its last character: U+D7FF is followed
        by a number that is no character.
        """
        metadata = self.change.table_metadata
        try:
            return list(self._data_files(rows, metadata))
        except UnicodeEncodeError:  # maintenance removes the files: no snapshot names them
            texts = [name for name in rows.schema.names if pa.types.is_string(rows.schema.field(name).type)]
            counts = {f"write.metadata.metrics.column.{name}": "counts" for name in texts}
            without_bounds = metadata.model_copy(update={"properties": {**metadata.properties, **counts}})
            return list(self._data_files(rows, without_bounds))

    def _data_files(self, rows: pa.Table, metadata: Any) -> Iterable[Any]:
        """Write the files as ``metadata`` has the table. The library derives the table's schema from that of the rows,
        which have it here; so it is asked for partitions only.
        """
        from pyiceberg.io.pyarrow import _dataframe_to_data_files, bin_pack_arrow_table, write_file
        from pyiceberg.table import WriteTask

        io, uuid = self.table.io, self.snapshot.commit_uuid
        data_files: Iterable[Any]
        if not metadata.spec().is_unpartitioned():
            data_files = _dataframe_to_data_files(metadata, rows, io, write_uuid=uuid, counter=self._numbers)
            return data_files
        schema = metadata.schema()
        tasks = (
            WriteTask(write_uuid=uuid, task_id=next(self._numbers), record_batches=batches, schema=schema)
            for batches in bin_pack_arrow_table(rows, self.file_size)
        )
        data_files = write_file(io, metadata, tasks)
        return data_files


class _Merge:
    """A merge inside the library's contexts. ``snapshot`` gets the files to remove and those to add."""

    def __init__(
        self,
        files: Files,
        info: TableInfo,
        key: Sequence[str],
        parts: Sequence[Part],
        delete_mask: np.ndarray,
        mode: WriteMode,
    ) -> None:
        self.table, self.snapshot, self.key, self.gone = files.table, files.snapshot, list(key), delete_mask
        self.files, self.mode = files, mode
        self.schema = self.files.schema
        columns = {name: together(parts, info, name) for name in names_of(parts)}
        self.rows = aligned(columns, self.schema, len(delete_mask)).cast(loose(self.schema))
        sizes = [len(part.gone) for part in parts]
        self.kept = {
            name: np.repeat([name not in part.columns for part in parts], sizes)
            for name in self.schema.names
            if any(name not in part.columns for part in parts)
        }
        """The rows whose column stays as it is."""
        self.done = np.zeros(len(delete_mask), bool)
        """The rows of the batch that are written."""
        self.waiting: list[pa.Table] = []
        """Rows of small files and new rows, which are written together at the end."""
        self.finder = _Finder(self.rows, self.key)

    def run(self) -> None:
        """Merge all files."""
        self.done |= self.gone
        for task, at, numbers, dead in self._found():
            if len(at):
                self._replace(task, at, numbers, union(dead, at))
        self._write_waiting(self.rows.filter(pa.array(~self.done)))

    def _replace(self, task: Any, at: np.ndarray, numbers: np.ndarray, dead: np.ndarray) -> None:
        """Take the rows of the batch (``numbers``) out of a file, where they are ``at``; ``dead``: all to delete."""
        count, mode = int(task.file.record_count), self.mode
        small = task.file.file_size_in_bytes < mode.small_bytes
        anew = small or len(dead) > mode.most_deleted * count
        emptied = len(dead) == count and bool(mode.most_deleted)
        if emptied or not anew:
            if emptied:
                self.snapshot.remove(task)
            else:
                self.snapshot.mark(task, dead)
            if self.kept and not self.done[numbers].all():
                self._wait(self._new(at, numbers, self.files.stored(task, list(self.kept))))
            return
        old = self.files.stored(task)
        stay = np.ones(count, bool)
        stay[dead] = False
        self.snapshot.remove(task)
        rows = pa.concat_tables([old.filter(pa.array(stay)), self._new(at, numbers, old)])
        if small:
            self._wait(rows)
        else:
            self.files.write(rows)

    def _new(self, at: np.ndarray, numbers: np.ndarray, old: pa.Table) -> pa.Table:
        """Return the rows of the batch that are not written yet, with the values that stay of a file's ``old`` ones."""
        first = ~self.done[numbers]
        self.done[numbers] = True
        chosen = numbers[first]
        return self._with_old(self.rows.take(pa.array(chosen)), old.take(pa.array(at[first])), chosen)

    def _wait(self, rows: pa.Table) -> None:
        self.waiting.append(rows)
        if sum(table.nbytes for table in self.waiting) > self.files.file_size:
            self._write_waiting(rows.slice(0, 0))

    def _write_waiting(self, rows: pa.Table) -> None:
        self.files.write(pa.concat_tables([*self.waiting, rows]))
        self.waiting = []

    def _found(self) -> Iterator[tuple[Any, np.ndarray, np.ndarray, np.ndarray]]:
        """Yield the files that may have a row of the batch, with what :meth:`_look` finds; some are read ahead."""
        tasks = list(self._tasks())
        if len(tasks) < 2:  # threads cost a small table more than they gain
            yield from ((task, *self._look(task)) for task in tasks)
            return
        ahead: deque[tuple[Any, Any]] = deque()
        with ThreadPoolExecutor(min(_READ_AHEAD, len(tasks)), "sluice-keys") as pool:
            for task in tasks:
                ahead.append((task, pool.submit(self._look, task)))
                if len(ahead) >= _READ_AHEAD:
                    first, future = ahead.popleft()
                    yield first, *future.result()
            for first, future in ahead:
                yield first, *future.result()

    def _look(self, task: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the positions of a file's rows that the batch has, the batch's rows for them, and the positions of
        rows that are deleted before.
        """
        at, numbers = self._matches(task)
        if not len(at) or not task.delete_files:
            return at, numbers, at[:0]
        dead = self.files.deletes.of(task)
        alive = ~among(at, dead)
        return at[alive], numbers[alive], dead

    def _matches(self, task: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the positions of a file's rows that the batch has, in order, and the batch's rows for them."""
        if self.finder.sorted is None:
            return self.finder.find(self.files.stored(task, self.key))
        name = (task.file.file_path, self.table.schema().find_field(self.key[0]).field_id)
        keys = KEPT.get(name)
        if keys is None:
            stored_keys = self.files.stored(task, self.key)
            values = _one(stored_keys[self.key[0]])
            if values.null_count or not len(values):
                return self.finder.find(stored_keys)
            keys = FileKeys.of(values.to_numpy())
            if self.mode.most_deleted:  # else a file with a match is written anew
                KEPT.put(name, keys, keys.offsets.nbytes)
        return self.finder.among(keys)

    def _tasks(self) -> Iterator[Any]:
        """Yield the files that may have a row of the batch."""
        from pyiceberg.conversions import from_bytes
        from pyiceberg.expressions import AlwaysTrue, And, GreaterThanOrEqual, LessThanOrEqual

        where: Any = AlwaysTrue()
        for name in self.key:
            if any(fits(self.rows[name].type) for fits in _PRUNED):
                edges = pc.min_max(self.rows[name])
                low, high = edges["min"].as_py(), edges["max"].as_py()
                if low is not None and not isinstance(low, bytes):
                    where = And(where, GreaterThanOrEqual(name, low), LessThanOrEqual(name, high))
        field = self.table.schema().find_field(self.key[0])
        exact = pa.types.is_integer(self.rows[self.key[0]].type)
        keys = np.unique(self.rows[self.key[0]].drop_null().to_numpy()) if exact else None
        for task in self.table.scan(row_filter=where).plan_files():
            file = task.file
            low, high = (
                bounds.get(field.field_id) if bounds else None for bounds in (file.lower_bounds, file.upper_bounds)
            )
            if keys is not None and low is not None and high is not None:
                least, most = (from_bytes(field.field_type, edge) for edge in (low, high))
                if np.searchsorted(keys, least) == np.searchsorted(keys, most, side="right"):
                    continue
            yield task

    def _with_old(self, new: pa.Table, old: pa.Table, numbers: np.ndarray) -> pa.Table:
        """Return ``new`` with the values of ``old``, row by row, in columns that stay as they are."""
        for name, unchanged in self.kept.items():
            # Values may have any type, so they are chosen by number.
            both = pa.concat_arrays([_one(old[name]), _one(new[name])])
            count = np.arange(len(numbers))
            values = both.take(pa.array(np.where(unchanged[numbers], count, count + len(numbers))))
            new = new.set_column(new.schema.get_field_index(name), new.schema.field(name), values)
        return new


class _Finder:
    """Finds the rows of a batch among the keys of a file."""

    def __init__(self, rows: pa.Table, key: Sequence[str]) -> None:
        self.rows, self.key = rows.select(key), list(key)
        self.sorted: tuple[np.ndarray, np.ndarray] | None = None
        """The values of a key of one integer column in order, and the numbers of their rows."""
        values = _one(rows[key[0]])
        if len(key) == 1 and pa.types.is_integer(values.type) and not values.null_count:
            numbers = values.to_numpy()
            order = np.argsort(numbers, kind="stable")
            self.sorted = numbers[order], order

    def find(self, keys: pa.Table) -> tuple[np.ndarray, np.ndarray]:
        """Return the positions of the file's rows that the batch has, in order, and the batch's rows for them."""
        return _numbers(self._places(keys))

    def among(self, keys: FileKeys) -> tuple[np.ndarray, np.ndarray]:
        """Do the same for a key of one integer column."""
        assert self.sorted is not None
        values, order = self.sorted
        begin, end = np.searchsorted(values, keys.least), np.searchsorted(values, keys.most, side="right")
        offsets, order = keys.offsets_of(values[begin:end]), order[begin:end]
        if not keys.in_order:
            at, numbers = _numbers(pc.index_in(pa.array(keys.offsets), value_set=pa.array(offsets)))
            return at, order[numbers]
        at = np.searchsorted(keys.offsets, offsets)
        same = keys.offsets[at] == offsets
        return at[same], order[same]

    def _places(self, keys: pa.Table) -> pa.Array:
        """Return, for each row of a file, the number of the batch's row with its key, or NULL."""
        if len(self.key) == 1:
            [name] = self.key
            return pc.index_in(_one(keys[name]), value_set=_one(self.rows[name]))
        batch_rows = self.rows.append_column("\0row", pa.array(np.arange(self.rows.num_rows, dtype=np.int32)))
        file_rows = keys.append_column("\0at", pa.array(np.arange(keys.num_rows)))
        both = file_rows.join(batch_rows, keys=self.key, join_type="left outer").sort_by("\0at")
        return _one(both["\0row"])


def _numbers(place: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return where numbers are, and the numbers."""
    valid = place.is_valid()
    at = np.flatnonzero(valid.to_numpy(zero_copy_only=False))
    return at, np.asarray(place.filter(valid).to_numpy(zero_copy_only=False), np.int64)


def loose(schema: pa.Schema) -> pa.Schema:
    """Return the schema with all fields nullable: deleted rows have only their keys."""
    return pa.schema([field.with_nullable(True) for field in schema])


def _one(values: pa.ChunkedArray | pa.Array) -> pa.Array:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
