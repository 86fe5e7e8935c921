"""Merge rows into a table: one snapshot, in which files that have a changed row are replaced.

Decision: not the library's ``upsert``. It compares whole rows of all that may match, and makes a snapshot of the
deletes and one of the inserts; nor are its filters made for the keys of a batch. Here files are left out by the bounds
of their keys, the keys of the others are read, and only files with a key of the batch are rewritten, with the new rows
in the place of the old ones, so that bounds stay narrow. A client that writes delete files would make this wrong.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.targets.iceberg.types import arrow_schema
from sluice.targets.lake.rows import Part, names_of, together
from sluice.targets.lake.types import TableInfo
from sluice.targets.lake.values import aligned

_PRUNED = (pa.types.is_integer, pa.types.is_date32, pa.types.is_string, pa.types.is_timestamp)
"""The key types whose values lie between the bounds in a file's entry."""


def merge_parts(files: Files, info: TableInfo, key: Sequence[str], parts: Sequence[Part]) -> None:
    """Merge the parts into the files of a snapshot, which may have no rows. Call it inside the library's contexts."""
    gone = np.concatenate([part.gone for part in parts]) if parts else np.zeros(0, bool)
    if len(gone):
        _Merge(files, info, key, parts, gone).run()


class Files:
    """The data files as ``change`` (Transaction) has the table. ``snapshot`` gets new ones.

    ``order``: columns by which rows that are written together are sorted, so that several files have distinct ranges.
    """

    def __init__(self, table: Any, change: Any, snapshot: Any, order: Sequence[str] = ()) -> None:
        self.table, self.change, self.snapshot, self.order = table, change, snapshot, order
        self.schema = arrow_schema(change.table_metadata)
        self._numbers = itertools.count()
        self.written = 0

    def read(self, task: Any, names: Sequence[str] = ()) -> pa.Table:
        """Read the rows of a file; ``names``: only these columns. Any value may be NULL."""
        from pyiceberg.expressions import AlwaysTrue
        from pyiceberg.io.pyarrow import ArrowScan

        names = list(names or self.schema.names)
        schema = self.change.table_metadata.schema().select(*names)
        found = ArrowScan(self.change.table_metadata, self.table.io, schema, AlwaysTrue()).to_table(tasks=[task])
        return found.select(names).cast(loose(pa.schema([self.schema.field(name) for name in names]))).combine_chunks()

    def write(self, rows: pa.Table) -> None:
        """Write rows as new files."""
        from pyiceberg.io.pyarrow import _dataframe_to_data_files

        if not rows.num_rows:
            return
        if self.order:
            rows = rows.sort_by([(name, "ascending") for name in self.order])
        made = _dataframe_to_data_files(
            self.change.table_metadata,
            rows.cast(self.schema),
            self.table.io,
            write_uuid=self.snapshot.commit_uuid,
            counter=self._numbers,
        )
        for file in made:
            self.snapshot.append_data_file(file)
            self.written += 1


class _Merge:
    """A merge inside the library's contexts. ``snapshot`` gets the files to remove and those to add."""

    def __init__(
        self, files: Files, info: TableInfo, key: Sequence[str], parts: Sequence[Part], gone: np.ndarray
    ) -> None:
        self.table, self.snapshot, self.key, self.gone = files.table, files.snapshot, list(key), gone
        self.files = files
        self.schema = self.files.schema
        columns = {name: together(parts, info, name) for name in names_of(parts)}
        self.rows = aligned(columns, self.schema, len(gone)).cast(loose(self.schema))
        sizes = [len(part.gone) for part in parts]
        self.kept = {
            name: np.repeat([name not in part.columns for part in parts], sizes)
            for name in self.schema.names
            if any(name not in part.columns for part in parts)
        }
        """The rows whose column stays as it is."""
        self.met = np.zeros(len(gone), bool)

    def run(self) -> None:
        """Merge all files."""
        for task in self._tasks():
            place = self._matches(self.files.read(task, self.key))
            if place is None:
                continue
            old = self.files.read(task)
            found = place.is_valid()
            numbers = np.asarray(place.filter(found).to_numpy(zero_copy_only=False), np.int64)
            first = ~self.met[numbers] & ~self.gone[numbers]
            self.met[numbers] = True
            new = self._with_old(
                self.rows.take(pa.array(numbers[first])), old.filter(found).filter(pa.array(first)), numbers[first]
            )
            self.snapshot.delete_data_file(task.file)
            self.files.write(pa.concat_tables([old.filter(pc.invert(found)), new]))
        self.files.write(self.rows.filter(pa.array(~self.met & ~self.gone)))

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

    def _matches(self, keys: pa.Table) -> pa.Array | None:
        """Return, for each row of a file, the number of the batch's row with its key; None if no row matches."""
        if len(self.key) == 1:
            [name] = self.key
            place = pc.index_in(_one(keys[name]), value_set=_one(self.rows[name]))
        else:
            ours = self.rows.select(self.key).append_column(
                "\0row", pa.array(np.arange(len(self.gone), dtype=np.int32))
            )
            theirs = keys.append_column("\0at", pa.array(np.arange(keys.num_rows)))
            both = theirs.join(ours, keys=self.key, join_type="left outer").sort_by("\0at")
            place = _one(both["\0row"])
        return place if place.null_count < len(place) else None

    def _with_old(self, new: pa.Table, old: pa.Table, numbers: np.ndarray) -> pa.Table:
        """Return ``new`` with the values of ``old``, row by row, in columns that stay as they are."""
        for name, kept in self.kept.items():
            # Values may have any type, so they are chosen by number.
            both = pa.concat_arrays([_one(old[name]), _one(new[name])])
            count = np.arange(len(numbers))
            values = both.take(pa.array(np.where(kept[numbers], count, count + len(numbers))))
            new = new.set_column(new.schema.get_field_index(name), new.schema.field(name), values)
        return new


def loose(schema: pa.Schema) -> pa.Schema:
    """Return the schema with all fields nullable: deleted rows have only their keys."""
    return pa.schema([field.with_nullable(True) for field in schema])


def _one(values: pa.ChunkedArray | pa.Array) -> pa.Array:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
