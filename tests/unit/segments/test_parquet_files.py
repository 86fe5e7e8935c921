"""A small batch is stored as Parquet files that other tools open by their paths; batches that were packed before are
read as ever.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from sluice.model.packing import SMALL_FILES
from sluice.operations.retention import prune
from sluice.segments.packed import parted
from sluice.segments.reader import iter_changes, read_file, verify_file
from sluice.segments.store import SegmentStore
from sluice.segments.writer import SegmentWriter
from tests.support.tables.small_segments import POSITION, rows, schema_of, written
from tests.support.twins.pipes import pipe

GOLDEN = Path(__file__).parents[2] / "golden"


def by_arrow(path: str) -> list[Any]:
    return list(pq.read_table(path, partitioning=None)["id"].to_pylist())


def by_pandas(path: str) -> list[Any]:
    return list(pd.read_parquet(path)["id"])


def by_duckdb(path: str) -> list[Any]:
    return [row[0] for row in duckdb.execute("SELECT id FROM read_parquet(?) ORDER BY _seq", [path]).fetchall()]


@pytest.fixture
def store(tmp_path: Path) -> SegmentStore:
    return SegmentStore(f"file://{tmp_path}", "p", min_free_bytes=0)


@pytest.mark.parametrize("tool", [by_arrow, by_pandas, by_duckdb])
@pytest.mark.parametrize("tables", [1, 3, SMALL_FILES])
def test_each_table_of_a_small_batch_is_a_file_that_other_tools_open(
    store: SegmentStore, tables: int, tool: Callable[[str], list[Any]]
) -> None:
    made = written(store, tables)
    assert len({file.path for file in made.files}) == tables
    for file in made.files:
        verify_file(store, file)
        assert sorted(tool(store.full_path(file.path))) == sorted([int(file.table[1:]), 7])


@pytest.mark.promise("A13")
@pytest.mark.parametrize("small_files", [0, 1], ids=["packed", "a file"])
def test_stored_columns_are_compressed_and_have_statistics_only_where_a_reader_uses_them(
    store: SegmentStore, small_files: int
) -> None:
    schema, number = schema_of(), 5_000
    writer = SegmentWriter(store, 1, 1, small_files=small_files)
    writer.add(schema, rows(schema, list(range(number))))
    (file,) = writer.finish(POSITION, POSITION, transactions=1).files
    with store.open_input(file.path) as source:
        group = pq.ParquetFile(source).metadata.row_group(0)
    columns = [group.column(place) for place in range(group.num_columns)]
    assert {column.compression for column in columns} == {"ZSTD"}
    assert {column.path_in_schema for column in columns if column.is_stats_set} == {"_bucket", "_seq"}
    assert sum(column.total_compressed_size for column in columns) < 16 * number  # two plain numbers take as much


def test_the_changes_of_a_table_are_found_by_one_pattern(store: SegmentStore, tmp_path: Path) -> None:
    """Large files of a table and small ones are in the same folder, below that of the batch."""
    for batch in (1, 2, 3):
        written(store, 2, batch, part_bytes=1 if batch == 2 else 10**9)
    files = sorted(map(str, (tmp_path / "p").glob("batch=*/s%2E1.t1/*.parquet")))
    found = duckdb.execute("SELECT batch, id FROM read_parquet(?, hive_partitioning = true) ORDER BY 1, 2", [files])
    assert [(int(batch), row) for batch, row in found.fetchall()] == [(n, i) for n in (1, 2, 3) for i in (1, 7)]
    assert ds.dataset(files).count_rows() == 6


def test_what_the_tables_of_a_batch_may_be_is_for_the_pipeline_file_to_say(store: SegmentStore) -> None:
    assert all(parted(file.path) for file in written(store, SMALL_FILES + 1, 1).files)
    assert not any(parted(file.path) for file in written(store, SMALL_FILES + 1, 2, small_files=100).files)
    assert all(parted(file.path) for file in written(store, 1, 3, small_files=0).files)


def test_the_setting_reaches_the_drain(tmp_path: Path) -> None:
    for made in pipe(tmp_path, "copy"):
        for small_files, files in ((16, 1), (0, 0), (1, 1)):
            made.set_segments(small_files=small_files)
            made.commit(("insert", "a", (small_files, "x")))
            batch = made.made.drain(deliver=False).batch
            assert batch is not None
            store = made.made.runtime().store
            assert len([path for path, _ in store.files(batch) if path.endswith(".parquet")]) == files
        made.deliver()
        assert made.rows() == made.made.rows()


def test_nothing_is_left_of_files_that_could_not_be_written(store: SegmentStore, monkeypatch: Any) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("sluice.segments.store.os.fsync", full)
    writer = SegmentWriter(store, 1, 1)
    for number in range(3):
        writer.add(schema_of(f"t{number}"), rows(schema_of(f"t{number}"), [1]))
    with pytest.raises(Exception, match="No space left"):
        writer.finish(POSITION, POSITION)
    assert store.files(1) == []


def test_a_batch_that_the_version_before_packed_is_read(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "packed-batch", tmp_path / "store")
    store = SegmentStore(f"file://{tmp_path}/store", "p", min_free_bytes=0)
    made = store.read_manifest(store.manifest_path(1, 1))
    assert [parted(file.path) is not None for file in made.files] == [True, True]
    for file in made.files:
        verify_file(store, file)
        assert read_file(store, file).num_rows == 3
    assert [change.after["id"] for change in iter_changes(store, made) if change.after] == [0, 7, 9, 1, 7, 9]


def test_packed_batches_and_files_go_into_one_archive_and_are_read_from_it(tmp_path: Path) -> None:
    for made in pipe(tmp_path, "copy"):
        manifests = []
        for number, small_files in enumerate((0, 16, 0, 16), start=1):
            made.set_segments(small_files=small_files)
            made.commit(("insert", "a", (number, f"v{number}")))
            made.deliver()
            store = made.made.runtime().store
            (path,) = [path for path, _ in store.files(number) if "manifest-e" in path]
            manifests.append(path)
        made.set_segments(compact_after=timedelta(0))
        assert prune(made.made.runtime()).archives == 1
        store = made.made.runtime().store
        assert store.batch_folders() == []
        for number, paths in enumerate(manifests, start=1):
            manifest = store.read_manifest(paths)
            assert [parted(file.path) is None for file in manifest.files] == [number % 2 == 0]
            assert [change.after for change in iter_changes(store, manifest)] == [{"id": number, "v": f"v{number}"}]
