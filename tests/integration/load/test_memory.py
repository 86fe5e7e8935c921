"""Batches that are larger than the memory: what is spread over finer buckets and loaded piece by piece ends as the
source has it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.flows.transform.shuffle import run_shuffle_unit
from sluice.targets.sql.tables import TableChanges
from tests.support.pipelines.case import case
from tests.support.pipelines.small_units import small_memory
from tests.support.running.stage_processes import step

TABLES = {
    "plain": "id INT PRIMARY KEY, n INT, v VARCHAR(200)",
    "words": "id VARCHAR(40) PRIMARY KEY, n INT, v VARCHAR(200)",
    "pairs": "id INT, n INT, v VARCHAR(200), PRIMARY KEY (n, id)",
    "uniques": "id INT PRIMARY KEY, n INT, v VARCHAR(200), UNIQUE KEY (n)",
    "keyless": "id INT, n INT, v VARCHAR(200)",
    "named": "id INT NOT NULL, n INT, v VARCHAR(200), UNIQUE KEY (id)",
    "kept": "id INT PRIMARY KEY, n INT, v VARCHAR(200), gone INT NOT NULL DEFAULT 0",
}
"""``named``: the mapping says that id is its key; ``kept``: a rule keeps deleted rows."""

_WRITES = (
    "INSERT IGNORE INTO {t} (id, n, v) VALUES ({id}, {n}, '{v}')",
    "INSERT IGNORE INTO {t} (id, n, v) VALUES ({id}, {n}, '{v}')",
    "UPDATE IGNORE {t} SET v = '{v}' WHERE id = {id}",
    "UPDATE IGNORE {t} SET n = {n} WHERE id = {id}",
    "UPDATE IGNORE {t} SET id = {id} WHERE id = {other}",
    "DELETE FROM {t} WHERE id = {id}",
)


def _writes(rng: random.Random, table: str, count: int) -> list[str]:
    found = []
    for _ in range(count):
        one, other = (rng.choice([3, rng.randrange(40)]) for _ in range(2))
        write = rng.choice(_WRITES)
        if table == "named" and write.startswith("INSERT"):
            found.append(f"DELETE FROM named WHERE id = {one}")
        if table == "named" and "SET id" in write:
            found.append(f"DELETE FROM named WHERE id = {one}")
        n = rng.randrange(-5, 60)
        found.append(write.format(t=table, id=one, other=other, n=n, v=rng.choice("xyz") * rng.randrange(1, 120)))
    return found


@pytest.mark.promise("E11")
@pytest.mark.parametrize("setting", ["row", "table", "batch", "row MINIMAL"])
def test_batches_larger_than_the_memory(
    tmp_path: Path,
    mysql_source: Any,
    mysql_target: Any,
    zookeeper: Any,
    fresh_schema: Any,
    monkeypatch: Any,
    setting: str,
) -> None:
    small_memory(monkeypatch)
    spread: list[Any] = []
    monkeypatch.setattr(
        "sluice.flows.transform.merge.run_shuffle_unit", lambda unit: spread.append(unit) or run_shuffle_unit(unit)
    )
    consistency, _, image = setting.partition(" ")
    names = [name for name in TABLES if not image or name in {"plain", "words", "pairs", "uniques"}]
    schema, rng = fresh_schema(mysql_source, mysql_target), random.Random(setting)
    rules = "" if image else "rules: engine.yaml"
    settings = {
        "target_extra": f"    parallelism: 3\n    consistency: {consistency}",
        "extra": f"mapping: [{{from: {schema}.named, to: {schema}.named, key: [id]}}]\n{rules}",
    }
    with case(tmp_path, mysql_source, mysql_target, zookeeper, schema, **settings) as made:
        (tmp_path / "rules" / "engine.yaml").write_text(
            "rules: [{name: keep, builtin: soft_delete, match: {table: kept}, params: {column: gone}}]\n",
            encoding="utf-8",
        )
        for server in (mysql_source, mysql_target):
            server.execute(*(f"CREATE TABLE {schema}.{name} ({TABLES[name]})" for name in names))
        if "kept" in names:
            mysql_source.execute(f"ALTER TABLE {schema}.kept DROP COLUMN gone")
        made.run_until_head()
        for _ in range(3):
            with mysql_source.connect(schema, autocommit=False) as connection, connection.cursor() as cursor:
                cursor.execute(f"SET SESSION binlog_row_image = '{image or 'FULL'}'")
                for name in names:
                    for write in _writes(rng, name, 120):
                        if not (
                            image and name == "words" and "SET id" in write
                        ):  # such rows are followed from key to key
                            cursor.execute(write)
                connection.commit()
            made.run_until_head()
            made.assert_equal(*(name for name in names if name != "kept"))
            if "kept" in names:
                there = f"SELECT id, n, v FROM {schema}.kept {{}} ORDER BY id"
                assert mysql_target.execute(there.format("WHERE gone = 0")) == mysql_source.execute(there.format(""))
    assert spread
    left = [path for path in made.runtime().store.list_files("") if "/spread-" in path]
    assert not left


@pytest.mark.parametrize("image", ["FULL", "MINIMAL"])
def test_a_session_stays_while_rows_are_read_and_none_is_written(
    tmp_path: Path,
    mysql_source: Any,
    mysql_target: Any,
    zookeeper: Any,
    fresh_schema: Any,
    monkeypatch: Any,
    image: str,
) -> None:
    """Rows without deletes are read once for deletes, partial rows several times, before the first one is written."""
    idle_s, pause_s = 3, 0.8  # a busy machine makes a pause longer, and may not make it last too long
    monkeypatch.setattr("sluice.targets.mysql.connection.IDLE_S", idle_s)
    schema = fresh_schema(mysql_source, mysql_target)
    with case(tmp_path, mysql_source, mysql_target, zookeeper, schema) as made:
        for server in (mysql_source, mysql_target):
            server.execute(f"CREATE TABLE {schema}.t (id VARCHAR(40) PRIMARY KEY, n INT, v VARCHAR(200))")
        made.run_until_head()
        mysql_source.execute(f"INSERT INTO {schema}.t VALUES " + ", ".join(f"('k{n}', {n}, '')" for n in range(24)))
        made.run_until_head()
        for name, value in (
            ("targets.sql.unit.SMALL_BYTES", 600),
            ("flows.load.changeset_rows.PIECE_BYTES", 300),
            ("segments.changeset.ROW_GROUP_BYTES", 200),
        ):
            monkeypatch.setattr(f"sluice.{name}", value)
        pieces, read = TableChanges.pieces, []

        def slowly(changes: TableChanges) -> Iterator[Any]:
            for rows in pieces(changes):
                time.sleep(pause_s)
                read.append(rows.num_rows)
                yield rows

        monkeypatch.setattr(TableChanges, "pieces", slowly)
        with mysql_source.connect(schema) as connection, connection.cursor() as cursor:
            cursor.execute(f"SET SESSION binlog_row_image = '{image}'")
            cursor.execute("UPDATE t SET v = REPEAT('x', 100 + n)")
        made.run_until_head()
        made.assert_equal("t")
        assert len(read) * pause_s > idle_s


@pytest.mark.promise("E11")
@pytest.mark.parametrize("key", [", PRIMARY KEY (id)", ""], ids=["keyed", "keyless"])
def test_a_large_transaction_takes_half_a_gibibyte_of_each_process(
    tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any, key: str
) -> None:
    """400 MB of rows that pack 20:1. What the allocators keep of the units before counts, too."""
    schema, rows = fresh_schema(mysql_source, mysql_target), 210_000
    columns = f"(id INT NOT NULL, v TEXT NOT NULL{key})"
    with case(tmp_path, mysql_source, mysql_target, zookeeper, schema, target_extra="    parallelism: 4") as made:
        mysql_source.execute(f"CREATE TABLE {schema}.t {columns} ENGINE = BLACKHOLE")  # its rows are in the log only
        mysql_target.execute(f"CREATE TABLE {schema}.t {columns}")
        made.run_until_head()
        mysql_source.execute(
            f"SET SESSION cte_max_recursion_depth = {rows}",
            f"INSERT INTO {schema}.t WITH RECURSIVE s AS (SELECT 1 n UNION ALL SELECT n + 1 FROM s WHERE n < {rows}) "
            "SELECT n, REPEAT(SHA2(n, 256), 29) FROM s",
        )
        batch = "0"
        for stage in ("drain", "merge", "load"):
            said, peak_mb, _ = step(made, stage, "local", int(batch), list)
            batch = said if stage == "drain" else batch
            assert peak_mb * 1e6 <= 2**29, stage
        there = f"SELECT COUNT(*), COUNT(DISTINCT id), SUM(v = REPEAT(SHA2(id, 256), 29)) FROM {schema}.t"
        assert [int(value) for value in mysql_target.execute(there)[0]] == [rows, rows, rows]
