"""Position delete files: the rows of a data file that are deleted, and the files that name them.

A delete file that is written here names rows of one data file (``write.delete.granularity`` = file, Iceberg's words),
and takes the place of the earlier one of that data file. So a data file has at most one of them, however many batches
deleted rows of it. Delete files of other writers may name rows of several data files.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sluice.targets.iceberg.kept import KEPT

_PATH, _POSITION = 2147483546, 2147483545
"""The ids that the format reserves for the columns of a position delete file."""
_SCHEMA = pa.schema([
    pa.field(name, kind, nullable=False, metadata={"PARQUET:field_id": str(number)})
    for name, kind, number in (("file_path", pa.string(), _PATH), ("pos", pa.int64(), _POSITION))
])


class Deletes:
    """The deleted positions of data files. ``io``: the table's file access."""

    def __init__(self, io: Any) -> None:
        self._io = io
        self._read: dict[str, dict[str, np.ndarray]] = {}

    def of(self, task: Any) -> np.ndarray:
        """Return the deleted positions of a file (``FileScanTask``), in order."""
        positions = np.zeros(0, np.int64)
        for delete_file in task.delete_files:
            positions = union(positions, self._positions(delete_file).get(task.file.file_path, positions[:0]))
        return positions

    def rows(self, task: Any, stored: pa.Table) -> pa.Table:
        """Return the rows of a file that are not deleted. ``stored``: all of them, by their positions."""
        dead = self.of(task)
        if not len(dead):
            return stored
        alive = np.ones(stored.num_rows, bool)
        alive[dead] = False
        return stored.filter(pa.array(alive))

    def alive(self, task: Any) -> int:
        """Return how many rows of a file are not deleted."""
        own = own_deletes(task)
        deleted = own[0].record_count if len(own) == len(task.delete_files) == 1 else len(self.of(task))
        return int(task.file.record_count) - int(deleted)

    def _positions(self, delete_file: Any) -> dict[str, np.ndarray]:
        from pyiceberg.io.pyarrow import _read_deletes

        path = delete_file.file_path
        positions = self._read.get(path) or KEPT.get(path)
        if positions is None:
            named = _read_deletes(self._io, delete_file)
            positions = {file: np.sort(np.asarray(places.to_numpy(), np.int64)) for file, places in named.items()}
            _keep(path, positions)
        self._read[path] = positions
        return cast(dict[str, np.ndarray], positions)


def _keep(path: str, positions: dict[str, np.ndarray]) -> None:
    KEPT.put(path, positions, sum(array.nbytes for array in positions.values()))


def union(some: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return all positions of both, in order, each once. Both are in order."""
    if not len(some) or not len(others):
        return others if not len(some) else some
    both = np.sort(np.concatenate([some, others]), kind="stable")  # two runs are merged
    merged: np.ndarray = both[np.append(True, both[1:] != both[:-1])]
    return merged


def among(some: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the mask of positions that are among ``others``, which are in order."""
    place = np.minimum(np.searchsorted(others, some), max(len(others) - 1, 0))
    mask: np.ndarray = np.equal(others[place], some) if len(others) else np.zeros(len(some), bool)
    return mask


def own_deletes(task: Any) -> list[Any]:
    """Return the delete files (``DataFile``) that name rows of this file alone: they are removed with it."""
    return [delete_file for delete_file in task.delete_files if only_file(delete_file) == task.file.file_path]


def only_file(delete_file: Any) -> str:
    """Return the path of the only data file of which a delete file names rows, "" if there may be several."""
    low, high = ((edges or {}).get(_PATH) for edges in (delete_file.lower_bounds, delete_file.upper_bounds))
    return bytes(low).decode() if low and low == high else ""


def write_deletes(io: Any, path: str, data_file: Any, positions: np.ndarray) -> Any:
    """Write a delete file of the rows of a data file at these positions, which are in order."""
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat

    named = pa.DictionaryArray.from_arrays(np.zeros(len(positions), np.int32), [data_file.file_path]).cast(pa.string())
    output = io.new_output(path)
    with output.create() as out:
        rows = pa.Table.from_arrays([named, pa.array(positions, pa.int64())], schema=_SCHEMA)
        pq.write_table(rows, out, compression="zstd", use_dictionary=["file_path"])
    edges = [data_file.file_path.encode()] * 2
    ends = [int(positions[at]).to_bytes(8, "little", signed=True) for at in (0, -1)]
    delete_file = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=data_file.partition,
        record_count=len(positions),
        file_size_in_bytes=len(output),
        value_counts={_PATH: len(positions), _POSITION: len(positions)},
        null_value_counts={_PATH: 0, _POSITION: 0},
        lower_bounds={_PATH: edges[0], _POSITION: ends[0]},
        upper_bounds={_PATH: edges[1], _POSITION: ends[1]},
    )
    delete_file.spec_id = data_file.spec_id
    _keep(path, {data_file.file_path: positions})
    return delete_file
