"""Rows of a batch as the tables have them, stored in files next to the tables for Spark to take. On workers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem, LocalFileSystem, PyFileSystem, SubTreeFileSystem

from sluice.errors import TargetUnavailable
from sluice.model.tables import TableId
from sluice.targets.delta.client import Place, errors, library
from sluice.targets.delta.format import DeltaFormat
from sluice.targets.delta.merge import GONE
from sluice.targets.lake.changelog import SCOPE, change_rows, changes_by_table
from sluice.targets.lake.commit import holds
from sluice.targets.lake.rows import MergedRows, Part
from sluice.targets.lake.tables import LakeTables
from sluice.targets.lake.types import TableInfo, arrow_of
from sluice.targets.lake.values import aligned
from sluice.targets.port import Fence, RejectedRows, Rejection, RowReader, Share, TableInput, WriteResult


@dataclass(frozen=True)
class Stored:
    """Rows that a unit stored for one table, in its own folder.

    Attributes:
        names: columns of the table; merged rows have them as c0, c1, ….
        present: those that some of the rows have.
        lacking: those that some of the rows lack.
        gone, live: number of deleted rows, and of others.
        bounds: (least, greatest) value of each integer key column.
    """

    table: TableId
    scope: str
    path: str
    names: tuple[str, ...]
    key: tuple[str, ...] = ()
    present: frozenset[str] = frozenset()
    lacking: frozenset[str] = frozenset()
    gone: int = 0
    live: int = 0
    bounds: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def __add__(self, other: Stored) -> Stored:
        """Join both, which are in the same folder. Raises TargetUnavailable if they have different definitions."""
        if self.names != other.names:
            raise TargetUnavailable(
                f"the columns of {self.table} changed while rows were stored for it", where=str(self.table)
            )
        bounds = {
            name: (min(low, other.bounds[name][0]), max(high, other.bounds[name][1]))
            for name, (low, high) in self.bounds.items()
        }
        return replace(
            self, present=self.present | other.present,
            lacking=self.lacking | other.lacking | (self.present ^ other.present),
            gone=self.gone + other.gone, live=self.live + other.live, bounds=bounds,
        )  # fmt: skip


@dataclass(frozen=True)
class StoreRows:
    """See :class:`sluice.targets.port.WriteUnit`: some files of merged rows of one table, converted.

    ``number``: of the file that they go to.
    """

    format: DeltaFormat
    tables: LakeTables
    fence: Fence
    reader: RowReader
    table: TableInput
    scope: str
    path: str
    number: int

    @property
    def cost(self) -> int:
        """The cost of the unit, in rows."""
        return self.table.rows

    @property
    def memory_bytes(self) -> int:
        """The memory that the unit takes of a process; rows are read piece by piece."""
        size = sum(file.arrow_bytes for file in self.table.files)
        return self.reader.memory_of(size, len(self.table.files))

    def write(self, rejected: RejectedRows | None = None) -> WriteResult:
        """Store the rows, or nothing if the table holds the batch. Raises what the port says."""
        began, target = time.monotonic(), self.table.target
        if holds(self.tables, self.fence, target, self.scope):
            return WriteResult()
        lake_table = self.tables.required(target)
        self.tables.checkpoints.guard(self.fence)
        info = self.format.info(lake_table)
        names = tuple(column.name for column in info.columns)
        key = tuple(column.name for name in self.table.plan.key if (column := info.find(name)) is not None)
        rows = MergedRows(self.reader, self.table, self.fence.batch, self.format.options.zero_dates)
        refused: list[Rejection] = []
        stored: Stored | None = None
        schema = _schema(info)
        with _file(self.format.place, f"{self.path}/{self.number}.parquet", schema) as file:
            for part, some in rows.pieces(info, stop=rejected is None):
                refused += some
                if not len(part.gone):
                    continue
                file.write_table(_numbered(part, info, schema))
                piece = _stored(part, Stored(target, self.scope, self.path, names, key))
                stored = piece if stored is None else stored + piece
        if rejected is not None:
            rejected(f"delta-{self.scope}-{self.number}", target, refused)
        deletes, live = (stored.gone, stored.live) if stored is not None else (0, 0)
        seconds = time.monotonic() - began
        return WriteResult(live, deletes, rejected=len(refused), seconds=seconds, message=[stored] if stored else None)


def _schema(info: TableInfo) -> pa.Schema:
    """Return the schema of stored rows: whether a row is deleted, and for each column its value and whether it is
    present.
    """
    fields = [pa.field(GONE, pa.bool_())]
    for number, kind in _kinds(info).items():
        fields += [pa.field(f"c{number}", kind), pa.field(f"k{number}", pa.bool_())]
    return pa.schema(fields)


def _kinds(info: TableInfo) -> dict[int, pa.DataType]:
    """Return the types of the columns that a source's columns can be loaded into, by position."""
    kinds = {}
    for number, column in enumerate(info.columns):
        if isinstance(column.kind, str):
            with suppress(KeyError):  # no source has the type, so nothing is sent for it
                kinds[number] = arrow_of(column.kind)
    return kinds


def _numbered(part: Part, info: TableInfo, schema: pa.Schema) -> pa.Table:
    count = len(part.gone)
    columns: dict[str, Any] = {GONE: pa.array(part.gone)}
    for number, column in enumerate(info.columns):
        present = column.name in part.columns
        if present:
            columns[f"c{number}"] = part.columns[column.name]
        columns[f"k{number}"] = pa.array(np.full(count, present))
    return aligned(columns, schema, count)


def _stored(part: Part, of: Stored) -> Stored:
    deletes = int(part.gone.sum())
    bounds = {}
    for name in of.key:
        if pa.types.is_integer(part.columns[name].type):
            edges = pc.min_max(part.columns[name])
            bounds[name] = (edges["min"].as_py(), edges["max"].as_py())
    return replace(of, present=frozenset(part.columns), gone=deletes, live=len(part.gone) - deletes, bounds=bounds)


@dataclass(frozen=True)
class StoreChanges:
    """See :class:`sluice.targets.port.WriteUnit`: a share of a batch's changes, as rows of their tables.

    ``rows``: about how many.
    """

    format: DeltaFormat
    tables: LakeTables
    fence: Fence
    reader: RowReader
    share: Share
    path: str
    rows: int

    @property
    def cost(self) -> int:
        """The cost of the unit, in rows."""
        return self.rows

    @property
    def memory_bytes(self) -> int:
        """The memory that the unit takes of a process: 0, as it is unknown before the changes are read."""
        return 0

    def write(self, rejected: RejectedRows | None = None) -> WriteResult:
        """Store the changes, or nothing for a table that holds the batch. Raises what the port says."""
        began, stored = time.monotonic(), []
        for table, pieces in changes_by_table(self.reader, self.share).items():
            lake_table = self.tables.required(table)
            self.tables.checkpoints.guard(self.fence)
            if holds(self.tables, self.fence, table, SCOPE):
                continue
            schema = self.format.arrow_schema(lake_table)
            rows = change_rows(
                pieces, self.format.info(lake_table), schema, self.fence.batch, self.format.options.zero_dates
            )
            folder = f"{self.path}/{self.format.path(table)}"
            with _file(self.format.place, f"{folder}/{self.share.number}.parquet", schema) as file:
                file.write_table(rows)
            stored.append(Stored(table, SCOPE, folder, tuple(schema.names), live=rows.num_rows))
        rows_stored = sum(entry.live for entry in stored)
        return WriteResult(appended=rows_stored, seconds=time.monotonic() - began, message=stored or None)


def files_of(place: Place) -> FileSystem:
    """Return the file system of the target's location."""
    if "://" not in place.root:
        return SubTreeFileSystem(place.root, LocalFileSystem())
    library()
    from deltalake.fs import DeltaStorageHandler

    return PyFileSystem(DeltaStorageHandler(place.root, dict(place.storage)))


@contextmanager
def _file(place: Place, path: str, schema: pa.Schema) -> Iterator[pq.ParquetWriter]:
    with errors(place, "storing rows for Spark", place.uri(path)):
        files = files_of(place)
        files.create_dir(path.rpartition("/")[0], recursive=True)
        with files.open_output_stream(path) as out, pq.ParquetWriter(out, schema, compression="zstd") as file:
            yield file
