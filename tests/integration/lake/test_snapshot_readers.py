"""A snapshot as other programs read it: the lines of docs/snapshot.md as they stand there, but for names and
versions.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sluice.operations.snapshot import show
from tests.support.pipelines.case import REPOSITORY, case
from tests.support.readers import duckdb_reader
from tests.support.readers.lakes import IcebergLake

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")


@dataclass
class Kept:
    """A table of a snapshot: three rows now, two as of ``version``."""

    folder: Path
    schema: str
    version: int
    newest: int

    def lines(self, section: str, language: str) -> list[str]:
        """The blocks of a section of the page, with this table in the place of the page's."""
        text = (REPOSITORY / "docs/snapshot.md").read_text(encoding="utf-8")
        part = re.search(rf"^### {section}\n(.*?)(?=^### |\Z)", text, re.MULTILINE | re.DOTALL)
        assert part is not None
        blocks = re.findall(rf"^```{language}\n(.*?)^```", part[1], re.MULTILINE | re.DOTALL)
        names = {
            "/lake/snapshots/shop/shop/": f"{self.folder}/{self.schema}/",
            "/lake/snapshots/shop": str(self.folder),
            "shop.orders": f"{self.schema}.orders",
        }
        for old, new in names.items():
            blocks = [block.replace(old, new) for block in blocks]
        return [re.sub(r"\b17\b", str(self.version), block) for block in blocks]

    def python(self, section: str) -> list[str]:
        """What the page's program prints."""
        [program] = self.lines(section, "python")
        done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    def statements(self, section: str) -> list[str]:
        """Of SQL, those that read; the extensions are loaded by the test."""
        found = [line.rstrip(";") for block in self.lines(section, "sql") for line in block.splitlines()]
        return [line for line in found if not line.startswith("INSTALL")]


@contextmanager
def kept(folder: Path, source: Any, target: Any, zookeeper: Any, fresh_schema: Any, form: str) -> Iterator[Kept]:
    schema = fresh_schema(source, target)
    source.execute("CREATE TABLE orders (id INT PRIMARY KEY, v VARCHAR(20))", database=schema)
    extra = f"snapshot: {{uri: {folder}/lake, format: {form}}}"
    with case(folder, source, target, zookeeper, schema, extra=extra) as made:
        made.make_missing()
        made.run_until_head()
        versions = []
        for rows in ("(1, 'a'), (200, 'b')", "(3, 'c')"):
            source.execute(f"INSERT INTO orders VALUES {rows}", database=schema)
            made.run_until_head()
            versions += [one.version for one in show(made.runtime(), f"{schema}.orders").tables]
        yield Kept(folder / "lake", schema, *versions)


def test_spark_and_duckdb_read_delta_tables(
    tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any, spark_delta: Any
) -> None:
    from pyspark.sql.connect.session import SparkSession

    with kept(tmp_path, mysql_source, mysql_target, zookeeper, fresh_schema, "delta") as made:
        count, older, history, duckdb = made.statements("Delta")
        spark = SparkSession.builder.remote(spark_delta.url).create()
        try:
            assert [tuple(row) for row in spark.sql(count).collect()] == [(3,)]
            assert sorted(map(tuple, spark.sql(older).collect())) == [(1, "a"), (200, "b")]
            commits = spark.sql(history).collect()
            assert [row["version"] for row in commits] == list(range(made.newest, -1, -1))
        finally:
            spark.stop()
        assert made.python("Delta") == ["(2,)"]
        assert duckdb_reader.query("delta", duckdb) == [(3,)]


def test_pyiceberg_and_duckdb_read_iceberg_tables(
    tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    with kept(tmp_path, mysql_source, mysql_target, zookeeper, fresh_schema, "iceberg") as made:
        older, newest, metadata = made.python("Iceberg")
        assert (older, newest) == ("1", "(3,)")
        assert metadata == IcebergLake(made.folder).table(made.schema, "orders").metadata_location
        path = metadata.removeprefix("file://")
        statements = [re.sub(r"'[^']*metadata\.json'", f"'{path}'", one) for one in made.statements("Iceberg")]
        assert [duckdb_reader.query("avro,iceberg", one) for one in statements] == [[(3,)], [(2,)]]
