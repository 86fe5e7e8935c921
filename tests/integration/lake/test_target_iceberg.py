"""The Iceberg target: whole pipelines from MySQL, keys of every type, definitions that change, other writers, other
readers, older batches.
"""

from __future__ import annotations

import os
import random
import threading
import uuid
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sluice.config.connections import Endpoint
from sluice.config.pipeline import TargetConfig
from sluice.errors import ConfigError, LoadError, MappingError, TargetUnavailable
from sluice.model.column_types import ColumnKind
from sluice.model.tables import Column, TableId, TableSchema
from sluice.targets.rows_in_memory import planned_table
from sluice.testing.targets import Pipe, changed, gone, new, people
from tests.support.pipelines.lake_bundles import lake_pipeline
from tests.support.readers import duckdb_reader

pytest.importorskip("pyiceberg")

from pyiceberg.io.pyarrow import schema_to_pyarrow

from sluice.targets.iceberg.target import IcebergTarget
from tests.support.benches.iceberg_bench import IcebergBench

K = ColumnKind


@pytest.mark.parametrize(
    ("changes", "more"),
    [("latest", ""), ("all", ""), ("latest", ", write_mode: merge-on-read, small_file: 1")],
    ids=["latest", "all", "merge-on-read"],
)
def test_a_random_history_with_definitions_that_change(
    tmp_path: Path, mysql_source: Any, zookeeper: Any, fresh_schema: Any, changes: str, more: str
) -> None:
    """Keys that move and come back; columns that come with a value, go, are renamed and become wider; a table that is
    emptied; partitions.
    """
    schema = fresh_schema(mysql_source)
    mysql_source.execute(
        f"CREATE TABLE {schema}.a (id INT, part VARCHAR(9) COLLATE utf8mb4_bin, v INT, old INT, PRIMARY KEY (part, id))"
    )
    options = f"options: {{partition_by: {{{schema}.a: [part]}}{more}}}"
    chosen = random.Random(3)
    alters = {
        2: "ALTER TABLE a ADD COLUMN extra VARCHAR(9) NOT NULL DEFAULT 'it''s', ADD COLUMN d DECIMAL(5,2) DEFAULT "
        "1.50, ADD plain INT",
        3: "ALTER TABLE a DROP COLUMN old, RENAME COLUMN plain TO `the name`, MODIFY v BIGINT, MODIFY d DECIMAL(9,2)",
    }
    with lake_pipeline("iceberg", tmp_path, mysql_source, zookeeper, schema, f"changes: {changes}", options) as made:
        made.make_missing()
        made.run_until_head()
        mysql_source.execute(f"CREATE TABLE {schema}.b (id INT PRIMARY KEY, v INT)")
        for step in range(6):
            work = []
            for _ in range(chosen.choice([5, 20])):
                n, part, v = chosen.randrange(12), chosen.choice("xyz"), chosen.randrange(100)
                work.append(
                    chosen.choice([
                        f"INSERT IGNORE INTO a (id, part, v) VALUES ({n}, '{part}', {v})",
                        f"REPLACE INTO a (id, part, v) VALUES ({n}, '{part}', {v})",
                        f"UPDATE a SET v = v + {v} WHERE id < {n}",
                        f"UPDATE IGNORE a SET id = id + 1 WHERE part = '{part}' ORDER BY id DESC",
                        f"UPDATE IGNORE a SET part = '{part}' WHERE id = {n}",
                        f"DELETE FROM a WHERE id = {n} AND part = '{part}'",
                        f"REPLACE INTO b (id, v) VALUES ({n}, {v})",
                    ])
                )
            if step in alters:
                work.insert(len(work) // 2, alters[step])
            if step == 4:
                work.append("UPDATE a SET v = 5000000000, extra = 'new', `the name` = id")
                if changes == "latest":
                    work.insert(len(work) // 2, "TRUNCATE TABLE b")
            mysql_source.execute(f"USE {schema}", *work)
            made.run_until_head()
            for table in ("a", "b") if changes == "latest" else ():
                names = [row[0] for row in mysql_source.execute(f"SHOW COLUMNS FROM {schema}.{table}")]
                found = made.target.rows(schema, table).to_pylist()
                expected = Counter(mysql_source.execute(f"SELECT * FROM {schema}.{table}"))
                assert Counter(tuple(row[name] for name in names) for row in found) == expected, (step, table)
                assert set(made.target.rows(schema, table).schema.names) == set(names)
        if changes == "latest":
            return
        rows = made.target.rows(schema, "a").to_pylist()
        rows.sort(key=lambda row: (row["_batch"], row["_seq"], row["_row"], row["_part"]))
        there: dict[Any, Any] = {}
        for row in rows:
            assert (row["_before"] is None) == (row["_op"] == "i"), row
            if row["_before"] is not None:
                was = there.pop((row["_before"]["part"], row["_before"]["id"]))
                assert was["v"] == row["_before"]["v"], "each change goes on from the one before it"
            if row["_op"] != "d":
                there[row["part"], row["id"]] = row
        assert {key: row["v"] for key, row in there.items()} == {
            (part, n): v for part, n, v in mysql_source.execute(f"SELECT part, id, v FROM {schema}.a")
        }
        assert {"old", "plain", "the name"} <= set(rows[0]), "old columns stay for the changes that have them"


def test_a_column_with_a_default_comes_to_a_table_of_several_files(
    tmp_path: Path, mysql_source: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    """All files are written anew, with the value in them."""
    schema = fresh_schema(mysql_source)
    mysql_source.execute(f"CREATE TABLE {schema}.t (id INT PRIMARY KEY, v INT)")
    with lake_pipeline("iceberg", tmp_path, mysql_source, zookeeper, schema) as made:
        made.make_missing()
        made.run_until_head()
        for n in range(3):
            mysql_source.execute(f"INSERT INTO {schema}.t VALUES ({n}, {n}), ({n + 10}, {n})")
            made.run_until_head()
        assert len(made.target.files(schema, "t")) == 3
        mysql_source.execute(f"ALTER TABLE {schema}.t ADD COLUMN w INT DEFAULT 7")
        made.run_until_head()
        assert len(set(made.target.files(schema, "t"))) == 3
        found = made.target.rows(schema, "t").to_pylist()
        assert Counter(tuple(row.values()) for row in found) == Counter(
            mysql_source.execute(f"SELECT * FROM {schema}.t")
        )


def test_changes_of_definitions_that_stop(tmp_path: Path, mysql_source: Any, zookeeper: Any, fresh_schema: Any) -> None:
    schema = fresh_schema(mysql_source)
    mysql_source.execute(
        f"CREATE TABLE {schema}.t (id INT PRIMARY KEY, v INT)", f"INSERT INTO {schema}.t VALUES (1, 1)"
    )
    with lake_pipeline("iceberg", tmp_path, mysql_source, zookeeper, schema) as made:
        made.make_missing()
        made.run_until_head()
        mysql_source.execute(f"INSERT INTO {schema}.t VALUES (2, 2)")
        made.run_until_head()
        for alter, said in (
            ("MODIFY v BIGINT UNSIGNED", "Iceberg does not make that decimal\\(20,0\\) without writing the table anew"),
            (
                "ADD at INT DEFAULT (1 + 1)",
                "would get other values in the new column at than at the source",
            ),
        ):
            mysql_source.execute(f"ALTER TABLE {schema}.t {alter}")
            with pytest.raises(LoadError, match=said):
                made.run_until_head()
            made.path.write_text(
                made.yaml.replace("    connection: case_target\n", "    connection: case_target\n    ddl: ignore\n")
            )
            made.run_until_head()
            made.path.write_text(made.yaml)
        mysql_source.execute(f"UPDATE {schema}.t SET v = 9")
        with pytest.raises(MappingError, match=r"cannot hold values of bigint unsigned|has no column 'at'"):
            made.run_until_head()


def test_each_batch_is_a_snapshot_that_others_read(tmp_path: Path) -> None:
    """Time travel by batch, by pyiceberg; DuckDB reads the newest by its metadata; rows that stay are in files that
    stay.
    """
    bench = IcebergBench(tmp_path)
    table = people("shop")
    bench.create_table(table)
    pipe = Pipe(bench)
    pipe.deliver((table, [new(n, "a", 0) for n in range(10)]))
    pipe.deliver((table, [new(n, "b", 0) for n in range(100, 110)]))
    far = {task.file.file_path for task in bench.table(table.table).scan("id >= 100").plan_files()}
    pipe.deliver((table, [changed((3, "a", 0), (3, "c", 1)), gone(4, "a", 0)]))
    found = bench.table(table.table)
    by_batch = {one.summary.additional_properties["sluice.batch"]: one.snapshot_id for one in found.snapshots()}
    assert len(by_batch) == len(found.snapshots()) == 3
    ends = [one.summary.additional_properties["sluice.offset"] for one in found.snapshots()]
    assert ends == [str(pipe.position(batch).row_place[1]) for batch in (1, 2, 3)]
    counts = [found.scan(snapshot_id=by_batch[str(batch)]).to_arrow().num_rows for batch in (1, 2, 3)]
    assert counts == [10, 20, 19]
    assert far <= {task.file.file_path for task in found.scan().plan_files()}
    rows = duckdb_reader.iceberg(found.metadata_location, "id, email, points")
    assert Counter(rows) == pipe.state(table)


@pytest.mark.parametrize("mode", ["", "merge"])
@pytest.mark.parametrize("changes", ["latest", "all"])
def test_an_empty_text_in_a_partition_stays_one(tmp_path: Path, changes: str, mode: str) -> None:
    """Also the word that stands for NULL in a Delta table; read by two engines, and found again by its key."""
    parts = ("", "__HIVE_DEFAULT_PARTITION__", "x", None)
    columns = (Column("id", K.INT, "int", nullable=False), Column("p", K.VARCHAR, "varchar(40)", charset="utf8mb4"))
    table = TableSchema(TableId("shop", "parted"), columns, ("id",))
    bench = IcebergBench(tmp_path, changes, mode=mode)
    bench.options = {**bench.options, "partition_by": {"shop.parted": ["p"]}}
    bench.create_table(table)
    pipe = Pipe(bench)
    pipe.deliver((table, [new(number, part) for number, part in enumerate(parts)]))
    pipe.deliver((table, [changed((2, "x"), (2, "")), gone(0, ""), new(7, "")]))
    expected = {(1, parts[1]), (2, ""), (3, None), (7, "")}
    assert set(pipe.state(table)) == expected
    found = bench.table(table.table)
    assert {one["partition"]["p"] for one in found.inspect.partitions().to_pylist()} >= {"", parts[1], None}
    rows = duckdb_reader.iceberg(found.metadata_location, "id, p" + (", _batch" if changes == "all" else ""))
    if changes == "latest":
        assert set(rows) == expected
        assert found.scan("p = ''").to_arrow().sort_by("id")["id"].to_pylist() == [2, 7]
    else:
        assert [part for _, part, batch in rows if batch == 2] == ["", "", ""]


def test_a_table_whose_lost_races_would_be_committed_is_refused(tmp_path: Path) -> None:
    """Until the property is set, by what `sluice check` proposes; a missing table and a missing column, too."""
    bench = IcebergBench(tmp_path)
    table = people("shop")
    schema = bench.target().schema()
    plan = planned_table(table)
    [finding] = schema.compare([plan])
    assert finding.statement.startswith("CREATE TABLE `shop`.`people` (")
    schema.apply(finding.statement)
    made = bench.table(table.table)
    made.transaction().remove_properties("commit.retry.num-retries").commit_transaction()
    with pytest.raises(MappingError, match="would commit a lost race by itself"):
        Pipe(bench).deliver((table, [new(1, "a", 1)]))
    [finding] = schema.compare([plan])
    schema.apply(finding.statement)
    assert [one.severity for one in schema.compare([plan])] == ["ok"]
    wide = TableSchema(table.table, (*table.columns, Column("more", K.INT, "int")), ("id",))
    [finding] = schema.compare([planned_table(wide)])
    assert "ADD COLUMNS" in finding.statement
    schema.apply(finding.statement)
    pipe = Pipe(bench, epoch=2, batch=0)
    pipe.deliver((wide, [new(1, "a", 1, 5)]))
    assert pipe.state(wide) == Counter([(1, "a", 1, 5)])
    with pytest.raises(LoadError, match="no statement of a target of lake tables"):
        schema.apply("DROP TABLE `shop`.`people`")


def test_columns_that_the_source_does_not_have_keep_their_values(tmp_path: Path) -> None:
    """Of types that no source has, too; a new row has NULL there.

    A column of the source that is one of them is refused.
    """
    from pyiceberg.schema import Schema
    from pyiceberg.types import IntegerType, ListType, NestedField, StringType, UUIDType

    bench = IcebergBench(tmp_path)
    table = people("shop")
    fields = [
        NestedField(1, "id", IntegerType(), required=True), NestedField(2, "tags",
            ListType(9, StringType(), element_required=False)),
        NestedField(3, "email", StringType()), NestedField(4, "points", IntegerType()),
        NestedField(5, "token", UUIDType()),
    ]  # fmt: skip
    catalog = bench.target().tables.format.place.catalog()
    catalog.create_namespace("shop")
    made = catalog.create_table(("shop", "people"), Schema(*fields), properties={"commit.retry.num-retries": "0"})
    token = uuid.UUID(int=5)
    schema = schema_to_pyarrow(made.schema(), include_field_ids=False)
    made.append(pa.table([[1, 2], [["x", None], None], ["a", "b"], [1, 2], [token.bytes, None]], schema=schema))
    pipe = Pipe(bench)
    pipe.deliver((table, [changed((1, "a", 1), (1, "c", 3)), gone(2, "b", 2), new(3, "d", 4)]))
    rows = sorted(bench.table(table.table).scan().to_arrow().to_pylist(), key=lambda row: row["id"])
    assert [(row["id"], row["tags"], row["email"], row["points"]) for row in rows] == [
        (1, ["x", None], "c", 3),
        (3, None, "d", 4),
    ]
    assert [str(row["token"]) in {str(token), str(token.bytes)} for row in rows] == [True, False]
    odd = TableSchema(table.table, (*table.columns, Column("token", K.VARCHAR, "varchar(9)")), ("id",))
    [finding] = bench.target().schema().compare([planned_table(odd)])
    assert (finding.severity, finding.column) == ("error", "token")


def test_another_writer_of_the_table_does_not_stop_it(tmp_path: Path) -> None:
    """A commit between reading and writing is seen: the batch is made again on top of it, once."""
    bench = IcebergBench(tmp_path)
    table = people("shop")
    bench.create_table(table)
    pipe = Pipe(bench)
    pipe.deliver((table, [new(1, "a", 1), new(2, "b", 2)]))
    other = bench.table(table.table)
    rows = other.scan("id = 2").to_arrow()
    work = pipe.target.tables
    opened, times = type(work).required, []

    def meddled(site: Any, which: TableId) -> Any:
        found = opened(site, which)
        if len(times) < 2:
            times.append(1)
            bench.table(which).overwrite(rows, "id = 2")
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(work), "required", meddled)
        pipe.deliver((table, [changed((1, "a", 1), (1, "c", 3)), new(3, "d", 4)]))
    assert len(times) == 2
    assert pipe.state(table) == Counter([(1, "c", 3), (2, "b", 2), (3, "d", 4)])


def test_old_snapshots_are_given_up_with_their_files(tmp_path: Path) -> None:
    """While batches are loaded; the newest is whole."""
    bench = IcebergBench(tmp_path)
    table = people("shop")
    bench.create_table(table)
    pipe = Pipe(bench)
    pipe.deliver((table, [new(n, "a", 0) for n in range(5)]))
    for points in range(1, 5):
        pipe.deliver((table, [changed((n, "a", points - 1), (n, "a", points)) for n in range(5)]))
    maintainer = pipe.target.maintainer()
    assert maintainer.maintain([table.table, TableId("shop", "absent")]) == []
    object.__setattr__(maintainer.tables.options.maintenance, "keep", timedelta(seconds=-1))  # all are old
    [wanted] = maintainer.maintain([table.table], dry_run=True)
    assert (wanted.expired, len(bench.table(table.table).snapshots())) == (4, 5)
    before = set((tmp_path / "shop/people/data").glob("*.parquet"))
    [done] = maintainer.maintain([table.table])
    assert (done.expired, done.removed, done.error) == (4, wanted.removed, "")
    left = set((tmp_path / "shop/people/data").glob("*.parquet"))
    assert left < before
    assert {f"file://{path}" for path in left} == {
        task.file.file_path for task in bench.table(table.table).scan().plan_files()
    }
    assert pipe.state(table) == Counter((n, "a", 4) for n in range(5))
    pipe.deliver((table, [gone(0, "a", 4)]))
    assert len(pipe.state(table)) == 4


def test_small_files_become_larger_ones_while_batches_are_loaded(tmp_path: Path) -> None:
    """Compactions and loads meet; every row is there once; partitions stay apart."""
    bench = IcebergBench(tmp_path)
    table = people("shop")
    pipe = Pipe(
        bench, config={"options": {"partition_by": {"shop.people": ["points"]}, "maintenance": {"small_files": 2}}}
    )
    [finding] = pipe.target.schema().compare([planned_table(table)])
    pipe.target.schema().apply(finding.statement)
    for number in range(6):
        pipe.deliver((table, [new(number, "a", number % 2)]))
    maintainer = pipe.target.maintainer()
    [wanted] = maintainer.maintain([table.table], dry_run=True)
    assert (wanted.merged, wanted.written) == (6, 0)
    [done] = maintainer.maintain([table.table])
    assert (done.merged, done.written, done.error) == (6, 2, "")
    assert {task.file.record_count for task in bench.table(table.table).scan().plan_files()} == {3}
    stop, met = threading.Event(), []

    def look_after() -> None:
        while not stop.is_set():
            met.extend(maintainer.maintain([table.table]))

    worker = threading.Thread(target=look_after)
    worker.start()
    try:
        for step in range(6):
            mail = "abcdefg"
            pipe.deliver((
                table,
                [
                    *(changed((n, mail[step], n % 2), (n, mail[step + 1], n % 2)) for n in range(6)),
                    new(100 + step, "z", 0),
                ],
            ))
    finally:
        stop.set()
        worker.join()
    assert sum(one.merged for one in met) > 0
    assert pipe.state(table) == Counter([*((n, "g", n % 2) for n in range(6)), *((100 + n, "z", 0) for n in range(6))])


def test_files_that_nothing_names_are_removed(tmp_path: Path) -> None:
    """Old ones, in the table's own folders; what any snapshot or older metadata names stays, however old."""
    bench = IcebergBench(tmp_path)
    table = people("shop")
    bench.create_table(table)
    pipe = Pipe(bench, config={"options": {"maintenance": {"compact": False, "expire": False, "keep": "1h"}}})
    for number in range(3):
        pipe.deliver((table, [new(number, "a", 0), *([changed((0, "a", 0), (0, "a", 0))] if number else [])]))
    folder = Path(bench.table(table.table).location().removeprefix("file://"))
    files = {path for path in folder.rglob("*") if path.is_file()}
    left = [folder / "data/of-no-commit.parquet", folder / "metadata/of-no-commit.avro", folder / "elsewhere.parquet"]
    for path in left:
        path.write_bytes(b"left behind")
    for path in folder.rglob("*"):
        os.utime(path, (0, 0))
    young = folder / "data/of-a-commit-under-way.parquet"
    young.write_bytes(b"soon named")
    maintainer = pipe.target.maintainer()
    assert [one.removed for one in maintainer.maintain([table.table], dry_run=True)] == [2]
    assert [one.removed for one in maintainer.maintain([table.table])] == [2]
    assert {path for path in folder.rglob("*") if path.is_file()} == files | {left[2], young}
    assert not maintainer.maintain([table.table])
    assert pipe.state(table) == Counter((number, "a", 0) for number in range(3))
    for snapshot in bench.table(table.table).snapshots():
        assert bench.table(table.table).scan(snapshot_id=snapshot.snapshot_id).to_arrow().num_rows


@pytest.mark.parametrize(
    ("connection", "options", "said"),
    [
        ({}, {}, "nothing says which catalog has the tables"),
        ({"catalog": 5}, {}, "catalog in extra is no object"),
        ({"path": "/x"}, {"file_size": "1"}, "file_size"),
        ({"path": "/x"}, {"maintenance": {"keep": "1m"}}, "at least 1h"),
    ],
)
def test_options_that_cannot_be(connection: dict[str, Any], options: dict[str, Any], said: str) -> None:
    config = TargetConfig.model_validate({"name": "t", "type": "iceberg", "connection": "lake", "options": options})
    with pytest.raises(ConfigError, match=said):
        IcebergTarget(config, Endpoint("lake", "generic", "", extra=connection), "p")


def test_a_rest_catalog_is_asked_and_its_secrets_are_not_shown() -> None:
    """Nothing listens there: the error names the catalog, not the login."""
    config = TargetConfig.model_validate({"name": "t", "type": "iceberg", "connection": "lake"})
    endpoint = Endpoint(
        "lake", "http", "127.0.0.1", 9, "me", "very-secret-word", "http", {"catalog": {"token": "t0ken-abc"}}
    )
    target = IcebergTarget(config, endpoint, "p")
    assert target.tables.format.place.properties["uri"] == "http://127.0.0.1:9"
    with pytest.raises(TargetUnavailable) as raised:
        target.checkpoints.read()
    assert "http://127.0.0.1:9" in str(raised.value)
    for secret in ("very-secret-word", "t0ken-abc"):
        assert secret not in str(raised.value) + repr(target.tables)
