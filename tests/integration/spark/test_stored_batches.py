"""Spark, without Sluice, reads the Parquet files that small batches are stored as."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.connect.session import SparkSession

from sluice.segments.store import SegmentStore
from tests.support.tables.small_segments import written

pytestmark = pytest.mark.full


def test_spark_reads_the_small_files_of_a_table_by_one_pattern(tmp_path: Path, spark_connect: Any) -> None:
    store = SegmentStore(f"file://{tmp_path}", "p", min_free_bytes=0)
    for batch in (1, 2):
        made = written(store, 3, batch)
    spark = SparkSession.builder.remote(spark_connect.url).create()  # the classic builder would mark the whole process
    one = spark.read.parquet(store.full_path(made.files[1].path))
    assert sorted(row["id"] for row in one.select("id", "_op").collect()) == [1, 7]
    every = spark.read.option("basePath", f"{tmp_path}/p").parquet(f"{tmp_path}/p/batch=*/s%2E1.t1")
    assert sorted((row["batch"], row["id"]) for row in every.select("batch", "id").collect()) == [
        (1, 1), (1, 7), (2, 1), (2, 7),
    ]  # fmt: skip
