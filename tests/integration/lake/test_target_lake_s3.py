"""Tables of a lake on a real S3 server: of Delta, conditional puts decide races there; of Iceberg, the catalog does."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyarrow.fs import FileSelector

from sluice.errors import Fenced, SluiceError
from sluice.testing.targets import Pipe, changed, gone, new, people
from tests.support.servers.s3.lake import delta_on, iceberg_on, s3_lake
from tests.support.servers.s3.server import S3Server

pytest.importorskip("deltalake")

from sluice.targets.delta.stored_rows import files_of


@pytest.fixture(scope="module")
def s3(server_folder: Path) -> Iterator[S3Server]:
    with s3_lake(server_folder / "s3-lake") as server:
        yield server


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
@pytest.mark.parametrize("changes", ["latest", "all"])
def test_batches_arrive_once(s3: S3Server, tmp_path: Path, changes: str, kind: str) -> None:
    bench = delta_on(s3, f"once-{changes}", changes) if kind == "delta" else iceberg_on(s3, tmp_path, changes)
    table = people("shop")
    bench.create_table(table)
    pipe = Pipe(bench)
    assert pipe.checkpoints.read() is None
    pipe.deliver((table, [new(1, "a", 1), new(2, "b", 2)]))
    batch = pipe.given([(table, [changed((1, "a", 1), (1, "c", 3)), gone(2, "b", 2)])])
    pipe.take_over()
    writers = [pipe.writer(batch) for _ in range(3)]
    failed: list[SluiceError] = []

    def write(writer: Any) -> None:
        try:
            writer.prepare()
            writer.commit([unit.write() for phase in writer.plan(1) for unit in phase])
        except SluiceError as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(writer,)) for writer in writers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(isinstance(error, Fenced) for error in failed), failed
    assert pipe.held == 2
    assert pipe.state(table) == Counter([(1, "c", 3)])
    if bench.appends:
        assert len(bench.received()) == 4
    pipe.checkpoints.take_over(7)
    with pytest.raises(Fenced):
        pipe.write(pipe.given([(table, [new(5, "e", 5)])]))
    assert pipe.state(table) == Counter([(1, "c", 3)])


def test_rows_for_spark_are_stored_and_removed(s3: S3Server) -> None:
    """By units, with the connection's login. Spark itself is in test_target_delta_spark_s3.py."""
    bench = delta_on(s3, "stored")
    table = people("shop")
    bench.create_table(table)
    pipe = Pipe(bench, config={"options": {"execution": "frame", "frame_from": 1}})
    pipe.take_over()
    writer: Any = pipe.writer(replace(pipe.given([(table, [new(1, "a", 1), new(2, "b", 2)])]), spark=_Never()))
    [[unit]] = writer.plan(1)
    [stored] = unit.write().message
    files = files_of(pipe.target.format.place)
    found = pq.read_table(f"{stored.path}/0.parquet", filesystem=files)
    assert (found["c0"].to_pylist(), found["c1"].to_pylist()) == ([1, 2], ["a", "b"])
    spark_writer = writer.spark
    assert (
        "MERGE INTO delta.`s3a://lake/stored/shop/people` t USING parquet.`s3a://lake/stored/"
        in spark_writer._statement(stored)
    )
    spark_writer._tidy(pipe.target.tables, 2, set())
    assert not files.get_file_info(FileSelector("_sluice/~stored", recursive=True, allow_not_found=True))


class _Never:
    def run(self, statement: str, settings: Mapping[str, str], required: Mapping[str, str]) -> None:
        raise AssertionError(statement)


def test_an_error_of_the_store_shows_no_secret(s3: S3Server) -> None:
    bench = delta_on(s3, "nowhere")
    bench.root = bench.root.replace("s3://lake", "s3://no-such-bucket")
    secret = s3.environment["AWS_SECRET_ACCESS_KEY"]
    with pytest.raises(SluiceError) as raised:
        bench.create_table(people("shop"))
    assert secret not in str(raised.value)
    assert "no-such-bucket" in str(raised.value)
