"""The Delta target: whole pipelines from MySQL, values at their boundaries, keys of every type, and what each refusal
says.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import threading
from collections import Counter
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from sluice.config.connections import Endpoint, parse_connection
from sluice.config.pipeline import TargetConfig
from sluice.errors import ConfigError, LoadError, MappingError
from sluice.model.column_types import ColumnKind
from sluice.model.definitions import ColumnDefinition
from sluice.model.schema_changes import ChangeKind
from sluice.model.tables import Column, TableId, TableSchema
from sluice.operations.deadletters.replay import replay
from sluice.operations.deadletters.store import letters
from sluice.orchestration.dags.retention import MaintainTargetsOperator
from sluice.orchestration.retry import TaskError
from sluice.targets.delta.client import Place
from sluice.targets.delta.format import DeltaFormat
from sluice.targets.delta.recast import Recast
from sluice.targets.delta.target import DeltaTarget
from sluice.targets.delta.types import info_of, schema_of
from sluice.targets.lake.follower import LakeFollower
from sluice.targets.lake.types import LakeColumn, arrow_of, widens
from sluice.targets.port import Fence
from sluice.targets.rows_in_memory import RowsInMemory, planned_table
from sluice.testing.targets import Pipe, _Crash, _crash_at, _definition, _schema_change, changed, gone, new, people
from tests.support.benches.delta_bench import DeltaBench
from tests.support.pipelines.lake_bundles import lake_pipeline
from tests.support.readers import duckdb_reader
from tests.support.tables.offsets import committed_at
from tests.support.values.boundary_values import leniently
from tests.support.values.lake_keys import KEYS, values_of

deltalake = pytest.importorskip("deltalake")


K = ColumnKind


def test_odd_names_of_tables_and_columns(tmp_path: Path) -> None:
    names = ["order", "1y", "a.b", "a-b", "Größe😀", "it's", "t", "s", "c0", "SELECT", '"q"', "a`b", "_op2", "100%"]
    columns = [
        Column("k`x", K.INT, "int", nullable=False),
        *(Column(name, K.VARCHAR, "varchar(9)", charset="utf8mb4") for name in names),
    ]
    for number, place in enumerate(("a/b", "a b%2F", "..", "ü😀", "x" * 60, "_sluice", "~", "A", "a")):
        table = TableSchema(TableId("s p", place), tuple(columns), ("k`x",))
        bench = DeltaBench(tmp_path)
        target: Any = bench.target()
        [finding] = target.schema().compare([planned_table(table)])
        assert finding.severity == "error"
        target.schema().apply(finding.statement)
        [finding] = target.schema().compare([planned_table(table)])
        assert finding.severity == "ok", finding
        pipe = Pipe(bench, name=f"copy{number}")
        pipe.deliver((table, [new(1, *names), new(2, *names)]))
        pipe.deliver((table, [changed((1, *names), (1, *reversed(names))), gone(2, *names)]))
        [row] = deltalake.DeltaTable(target.format.uri(table.table)).to_pyarrow_table().to_pylist()
        assert list(row.values()) == [1, *reversed(names)]
    blank = TableSchema(TableId("s", "t"), (Column("id", K.INT, "int"), Column("a b", K.INT, "int")), ("id",))
    [finding] = target.schema().compare([planned_table(blank)])
    assert (finding.column, finding.severity) == ("a b", "error")
    assert "rename it" in finding.hint


@pytest.mark.parametrize("changes", ["latest", "all"])
def test_a_random_history_ends_as_the_source(
    tmp_path: Path, mysql_source: Any, zookeeper: Any, fresh_schema: Any, changes: str
) -> None:
    """Keys that move and come back, a table that is made, emptied and gets columns on the way; batches small and
    large.
    """
    schema = fresh_schema(mysql_source)
    mysql_source.execute(
        f"CREATE TABLE {schema}.a (id INT, part VARCHAR(9) COLLATE utf8mb4_bin, v INT, PRIMARY KEY (part, id))"
    )
    options = f"options: {{partition_by: {{{schema}.a: [part]}}}}"
    chosen = random.Random(3)
    with lake_pipeline("delta", tmp_path, mysql_source, zookeeper, schema, f"changes: {changes}", options) as made:
        made.make_missing()
        made.run_until_head()
        mysql_source.execute(
            f"CREATE TABLE {schema}.b (id INT PRIMARY KEY, v INT)", f"INSERT INTO {schema}.b VALUES (-1, 0)"
        )
        for step in range(8):
            work = []
            for _ in range(chosen.choice([1, 5, 40])):
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
                        f"DELETE FROM b WHERE id = {n}",
                    ])
                )
            if step == 3:
                work.insert(
                    len(work) // 2,
                    "ALTER TABLE a ADD COLUMN extra VARCHAR(9) NOT NULL DEFAULT 'it''s', ADD COLUMN plain INT",
                )
            if step == 5 and changes == "latest":
                work.insert(len(work) // 2, "TRUNCATE TABLE b")
            if step == 6:
                work.append("UPDATE a SET extra = 'new', plain = id")
            mysql_source.execute(f"USE {schema}", *work)
            made.run_until_head()
            if changes == "all":
                continue
            for table in ("a", "b"):
                names = [row[0] for row in mysql_source.execute(f"SHOW COLUMNS FROM {schema}.{table}")]
                found = made.target.rows(schema, table).to_pylist()
                expected = Counter(mysql_source.execute(f"SELECT * FROM {schema}.{table}"))
                assert Counter(tuple(row[name] for name in names) for row in found) == expected, (step, table)
        if changes == "latest":
            return
        for table, key in (("a", ("part", "id")), ("b", ("id",))):
            rows = made.target.duckdb_rows(schema, table).to_pylist()
            rows.sort(key=lambda row: (row["_batch"], row["_seq"], row["_row"], row["_part"]))
            there: dict[Any, Any] = {}
            names = [row[0] for row in mysql_source.execute(f"SHOW COLUMNS FROM {schema}.{table}")]
            for row in rows:
                assert (row["_before"] is None) == (row["_op"] == "i"), row
                if row["_before"] is not None:
                    was = there.pop(tuple(row["_before"][name] for name in key))
                    assert was["v"] == row["_before"]["v"], "each change goes on from the one before it"
                if row["_op"] != "d":
                    there[tuple(row[name] for name in key)] = row
            assert all(row["_file"] and row["_offset"] and row["_commit_time"].year >= 2026 for row in rows)
            expected = {row["id"] if key == ("id",) else (row["part"], row["id"]) for row in there.values()}
            source = mysql_source.execute(f"SELECT {', '.join(key)} FROM {schema}.{table}")
            assert expected == {row[0] if len(row) == 1 else row for row in source}
            values = {k: row["v"] for k, row in there.items()}
            assert values == {
                tuple(row[:-1]): row[-1]
                for row in mysql_source.execute(f"SELECT {', '.join(key)}, v FROM {schema}.{table}")
            }


def test_what_it_cannot_hold_is_refused_with_its_key(
    tmp_path: Path, mysql_source: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    schema = fresh_schema(mysql_source)
    mysql_source.execute(f"CREATE TABLE {schema}.odd (id INT PRIMARY KEY, d DATE, at DATETIME)")
    with lake_pipeline("delta", tmp_path, mysql_source, zookeeper, schema) as made:
        made.make_missing()
        made.run_until_head()
        leniently(mysql_source, schema, "INSERT INTO odd VALUES (1, '2024-02-29', NULL), (7, '0000-00-00', NULL)")
        with pytest.raises(LoadError, match=r"column d: a date that no calendar has.*the row with \(id\) = \(7\)"):
            made.run_until_head()
        assert made.target.rows(schema, "odd").num_rows == 0
        made.path.write_text(
            made.yaml.replace(
                "    connection: case_target\n", "    connection: case_target\n    on_error: dead_letter\n"
            )
        )
        leniently(mysql_source, schema, "INSERT INTO odd VALUES (8, NULL, '2024-02-31 00:00:00'), (9, NULL, NULL)")
        made.run_until_head()
        assert sorted(made.target.rows(schema, "odd")["id"].to_pylist()) == [1, 9]
        assert len(letters(made.runtime())) == 2
        version = made.target.table(schema, "odd").version()
        assert {one.outcome for one in replay(made.runtime(), [], by="test")} == {"failed"}
        assert made.target.table(schema, "odd").version() == version
        connection = "    connection: case_target\n"
        made.path.write_text(made.yaml.replace(connection, f"{connection}    options: {{zero_dates: 'null'}}\n"))
        assert {one.outcome for one in replay(made.runtime(), [], by="test")} == {"replayed"}
        rows = made.target.rows(schema, "odd").sort_by("id").to_pylist()
        assert [(row["id"], row["d"] is None, row["at"]) for row in rows] == [
            (1, False, None),
            *((n, True, None) for n in (7, 8, 9)),
        ]
        made.run_until_head()
        mysql_source.execute(f"UPDATE {schema}.odd SET d = '2000-01-01' WHERE id = 9")
        made.run_until_head()
        assert made.target.rows(schema, "odd").sort_by("id")["d"].to_pylist()[-1].year == 2000


def test_check_proposes_and_says_what_does_not_fit(tmp_path: Path) -> None:
    bench = DeltaBench(tmp_path)
    table = people("shop")
    target: Any = bench.target(options={"partition_by": {"shop.people": ["points"]}})
    schema = target.schema()
    [finding] = schema.compare([planned_table(table)])
    assert finding.statement == (
        f"CREATE TABLE delta.`{tmp_path}/shop/people` (`id` INT, `email` STRING, `points` INT) USING DELTA "
        "PARTITIONED BY (`points`)"
    )
    schema.apply(finding.statement)
    schema.apply(finding.statement)  # a repeat is harmless
    assert deltalake.DeltaTable(bench.uri(table.table)).metadata().partition_columns == ["points"]
    wider = TableSchema(
        table.table, (*table.columns, Column("more", K.BIGINT, "bigint unsigned", unsigned=True)), ("id",)
    )
    [finding] = schema.compare([planned_table(wider)])
    assert finding.statement == f"ALTER TABLE delta.`{tmp_path}/shop/people` ADD COLUMNS (`more` DECIMAL(20,0))"
    pipe = Pipe(bench)
    with pytest.raises(MappingError, match=r"has no column 'more'.*check \w+ --apply"):
        pipe.deliver((wider, [new(1, "a", 1, 2**64 - 1)]))
    schema.apply(finding.statement)
    schema.apply(finding.statement)
    assert not [one for one in schema.compare([planned_table(wider)]) if one.severity == "error"]
    narrow = TableSchema(
        table.table, (replace(table.columns[0], kind=K.BIGINT, sql_type="bigint"), *table.columns[1:]), ("id",)
    )
    [finding] = schema.compare([planned_table(narrow)])
    assert "column 'id' is INT, which cannot hold values of bigint" in finding.why
    huge = TableSchema(
        TableId("shop", "h"), (table.columns[0], Column("n", K.DECIMAL, "decimal(39,0)", precision=39)), ("id",)
    )
    [finding] = schema.compare([planned_table(huge)])
    assert "no lake format has numbers of more than 38 digits" in finding.why
    [finding] = schema.compare([planned_table(people("shop", key=False))])
    assert "it has no key" in finding.why
    for bad in (
        "DROP TABLE x",
        f"CREATE TABLE delta.`{tmp_path}/../x` (`id` INT) USING DELTA",
        "CREATE TABLE delta.`/x/y` (`id` INT) USING DELTA",
        "",
    ):
        with pytest.raises(LoadError):
            schema.apply(bad)


def test_a_table_of_changes_is_made_and_extended(tmp_path: Path) -> None:
    bench = DeltaBench(tmp_path, "all")
    table = people("shop")
    target: Any = bench.target()
    odd = TableSchema(table.table, (*table.columns, Column("_op", K.VARCHAR, "varchar(9)", charset="utf8mb4")), ("id",))
    for plan in (table, odd):
        [finding] = target.schema().compare([planned_table(plan)])
        target.schema().apply(finding.statement)
        assert not [one for one in target.schema().compare([planned_table(plan)]) if one.severity == "error"]
    pipe = Pipe(bench)
    pipe.deliver((odd, [new(1, "a", 1, "mine"), changed((1, "a", 1, "mine"), (1, "b", 1, "yours"))]))
    pipe.deliver((table, [gone(1, "b", 1)]))
    rows = (
        deltalake
        .DeltaTable(bench.uri(table.table))
        .to_pyarrow_table()
        .sort_by([("_batch", "ascending"), ("_seq", "ascending")])
        .to_pylist()
    )
    assert [(row["_op"], row["$_op"], row["_before"] and row["_before"]["$_op"]) for row in rows] == [
        ("i", "mine", None), ("u", "yours", "mine"), ("d", None, None),
    ]  # fmt: skip
    with pytest.raises(MappingError, match="it is a table of changes"):
        Pipe(DeltaBench(tmp_path)).deliver((table, [new(1, "a", 1)]))


@pytest.mark.parametrize(
    ("extra", "options", "said"),
    [
        ({}, {}, "nothing says where the tables lie"),
        ({"path": "lake"}, {}, "neither an absolute folder nor a URL"),
        ({"storage_options": {"AWS_S3_ALLOW_UNSAFE_RENAME": True}}, {"location": "s3://b/l"}, "two writers commit the "
        "same version"),
        ({"storage_options": ["s3cret"]}, {"location": "/l"}, "storage_options in extra is no object"),
        ({}, {"location": "/l", "table": "{schema}"}, "must have {table} in it"),
        ({}, {"location": "/l", "table": "../{table}"}, "a path within location"),
        ({}, {"location": "/l", "table": "{tabel}"}, "{tabel} is not known"),
        ({}, {"location": "/l", "mode": "x"}, "options.mode"),
    ],
)  # fmt: skip
def test_options_that_cannot_be(extra: dict[str, Any], options: dict[str, Any], said: str) -> None:
    config = TargetConfig(name="lake", type="delta", connection="lake", options=options)
    with pytest.raises(ConfigError) as raised:
        DeltaTarget(config, Endpoint("lake", "aws", "", password="s3cret", extra=extra), "p")
    assert said in str(raised.value)
    assert "s3cret" not in str(raised.value)


def test_an_aws_connection() -> None:
    text = '{"conn_type": "aws", "login": "key", "password": "s3cret", "extra": {"region_name": "eu-west-1", "endpoint_url": "http://127.0.0.1:1"}}'
    config = TargetConfig(name="lake", type="delta", connection="lake", options={"location": "s3://bucket/lake/"})
    target = DeltaTarget(config, parse_connection("lake", text), "p")
    assert target.format.place.root == "s3://bucket/lake"
    assert target.format.place.storage == {
        "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "s3cret", "AWS_REGION": "eu-west-1",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
        "AWS_ALLOW_HTTP": "true", "aws_conditional_put": "etag",
    }  # fmt: skip
    assert "s3cret" not in repr(target.tables)


def test_another_writer_of_the_table_does_not_stop_it(tmp_path: Path) -> None:
    """It compacts between the reading and the commit: the merge is refused, read again and repeated."""
    bench = DeltaBench(tmp_path)
    table = people("shop")
    bench.create_table(table)
    pipe = Pipe(bench)
    for number in range(5):
        pipe.deliver((table, [new(number, "a", 0)]))
    before = deltalake.DeltaTable(bench.uri(table.table)).version()
    merge, compacted = DeltaFormat.merge, []

    def compact_first(self: Any, *arguments: Any) -> Any:
        if not compacted:
            compacted.append(deltalake.DeltaTable(bench.uri(table.table)).optimize.compact())
        return merge(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeltaFormat, "merge", compact_first)
        pipe.deliver((table, [changed((n, "a", 0), (n, "b", 1)) for n in range(5)]))
    assert compacted[0]["numFilesRemoved"] == 5
    assert pipe.state(table) == Counter((n, "b", 1) for n in range(5))
    assert deltalake.DeltaTable(bench.uri(table.table)).version() == before + 2


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_rows_of_one_batch_with_different_columns(tmp_path: Path, kind: str) -> None:
    """Of a column that a row never had nothing is written: the target keeps its value."""
    if kind == "iceberg":
        pytest.importorskip("pyiceberg")
        from tests.support.benches.iceberg_bench import IcebergBench

    bench = DeltaBench(tmp_path) if kind == "delta" else IcebergBench(tmp_path)
    table = people("shop")
    bench.create_table(table)
    pipe = Pipe(bench)
    pipe.deliver((table, [new(1, "a", 1), new(2, "b", 2)]))
    batch = pipe.given([
        (
            table,
            [
                changed((1, "a", 1), (1, "x", None)),
                changed((2, "b", 2), (2, "y", 5)),
                new(3, "z", None),
                new(4, "z", 4),
            ],
        )
    ])
    [one] = batch.tables
    data = one.files[0].data  # type: ignore[attr-defined]
    some, before = data.take([0, 2]).drop_columns(["points"]), data["_before"].combine_chunks().take(pa.array([0, 2]))
    fields = [field for field in before.type if field.name != "points"]
    struct = pa.StructArray.from_arrays(
        [before.field(field.name) for field in fields], fields=fields, mask=before.is_null()
    )
    some = some.set_column(some.schema.get_field_index("_before"), pa.field("_before", struct.type), struct)
    files = tuple(RowsInMemory(table.table, rows) for rows in (some, data.take([1, 3])))
    pipe.write(replace(batch, tables=(replace(one, files=files),)))
    assert pipe.state(table) == Counter([(1, "x", 1), (2, "y", 5), (3, "z", None), (4, "z", 4)])


PARTITIONS: tuple[tuple[Column, tuple[Any, ...]], ...] = (
    *(
        (column, values)
        for column, values in KEYS
        if column.kind in {K.BIGINT, K.DATE, K.DATETIME, K.TIMESTAMP, K.TIME}
    ),
    (Column("k", K.VARCHAR, "varchar(20)", charset="utf8mb4"), ("a/b", "ü%=x", " x ", "a", "A", "null", "%2F", "..")),
)


@pytest.mark.parametrize("key", PARTITIONS, ids=lambda key: str(key[0].sql_type))
def test_partitions_keep_their_values(tmp_path: Path, key: Any) -> None:
    column, texts = key
    values = [*values_of(column, texts), None]
    columns = (Column("id", K.INT, "int", nullable=False), column, Column("v", K.INT, "int"))
    table = TableSchema(TableId("shop", "t"), columns, ("id",))
    bench = DeltaBench(tmp_path)
    target: Any = bench.target(options={"partition_by": {"shop.t": ["k"]}})
    [finding] = target.schema().compare([planned_table(table)])
    target.schema().apply(finding.statement)
    pipe = Pipe(bench)
    pipe.deliver((table, [new(n, value, 0) for n, value in enumerate(values)]))
    stored = [bench.stored(replace(column, name="u64"), value) if column.unsigned else value for value in values]
    assert pipe.state(table) == Counter((n, value, 0) for n, value in enumerate(stored))
    last = len(values) - 1
    pipe.deliver((table, [changed((n, value, 0), (n, values[last - n], 1)) for n, value in enumerate(values)]))
    assert pipe.state(table) == Counter((n, stored[last - n], 1) for n in range(len(values)))


def test_partitions_that_would_change_values_are_refused(tmp_path: Path) -> None:
    columns = [Column("id", K.INT, "int", nullable=False)]
    columns += [
        Column("t", K.VARCHAR, "varchar(9)", charset="utf8mb4"),
        Column("b", K.VARBINARY, "varbinary(9)"),
        Column("f", K.DOUBLE, "double"),
    ]
    columns += [Column("d", K.DECIMAL, "decimal(9,2)", precision=9, scale=2)]
    table = TableSchema(TableId("shop", "t"), tuple(columns), ("id",))
    bench = DeltaBench(tmp_path)
    for name in "bfd":
        target: Any = bench.target(options={"partition_by": {"shop.t": [name]}})
        [finding] = target.schema().compare([planned_table(table)])
        assert "cannot be partitioned by" in finding.why
        assert not finding.statement
    target = bench.target(options={"partition_by": {"shop.t": ["t"]}})
    [finding] = target.schema().compare([planned_table(table)])
    target.schema().apply(finding.statement)
    for text in ("", "__HIVE_DEFAULT_PARTITION__"):
        with pytest.raises(LoadError, match=r"column t: an empty text is NULL in a column.*\(id\) = \(1\)"):
            Pipe(bench, name=f"copy{len(text)}").deliver((table, [new(1, text, None, None, None)]))
    assert not bench.rows(table)


def test_the_sources_ddl(tmp_path: Path, mysql_source: Any, zookeeper: Any, fresh_schema: Any) -> None:
    """What needs no rewriting is followed; the rest stops the load and says so, until a person decides."""
    schema = fresh_schema(mysql_source)
    create = f"CREATE TABLE {schema}.t (id INT PRIMARY KEY, v INT, s VARCHAR(9), e ENUM('a'))"
    mysql_source.execute(create)
    with lake_pipeline("delta", tmp_path, mysql_source, zookeeper, schema) as made:
        made.make_missing()
        made.run_until_head()

        def policy(ddl: str) -> None:
            connection = "    connection: case_target\n"
            made.path.write_text(made.yaml.replace(connection, f"{connection}    ddl: {ddl}\n"))

        def arrived(*names: str) -> None:
            made.run_until_head()
            rows = made.target.rows(schema, "t").to_pylist()
            source = mysql_source.execute(f"SELECT {', '.join(names)} FROM {schema}.t")
            assert Counter(tuple(row[name] for name in names) for row in rows) == Counter(source)

        def alter(change: str, *more: str) -> None:
            mysql_source.execute(f"USE {schema}", f"ALTER TABLE t {change}", *more)

        mysql_source.execute(f"INSERT INTO {schema}.t VALUES (2, 2, 'y', 'a')")
        arrived("id", "v", "s", "e")
        alter(
            "MODIFY s VARCHAR(500), MODIFY e ENUM('a','b') NOT NULL, ADD INDEX (v), COMMENT 'x', ALTER v SET DEFAULT 7",
            "INSERT INTO t VALUES (3, 3, REPEAT('z', 400), 'b')",
        )
        arrived("id", "v", "s", "e")
        alter(
            "ADD n DECIMAL(9,2) NOT NULL DEFAULT 1.50, ADD d DATE DEFAULT '2024-02-29', ADD b BIT(4) DEFAULT b'101', "
            "ADD f DOUBLE NOT NULL FIRST"
        )
        arrived("id", "v", "s", "e", "n", "d", "f")
        assert set(made.target.rows(schema, "t")["b"].to_pylist()) == {5}
        alter(
            "DROP COLUMN d, RENAME COLUMN s TO s2, CHANGE v big BIGINT UNSIGNED, MODIFY n DECIMAL(38,4), ADD z INT "
            "NOT NULL DEFAULT 4",
            "INSERT INTO t (id, big, s2, e, n, b, f) VALUES (4, 18446744073709551615, 't', 'a', 7.0001, 0, 1)",
        )
        arrived("id", "big", "s2", "e", "n", "f", "z")
        fields = {field.name: field.type.type for field in made.target.table(schema, "t").schema().fields}
        assert (fields["big"], fields["n"]) == ("decimal(20,0)", "decimal(38,4)")
        assert "d" not in fields
        assert made.target.duckdb_rows(schema, "t").num_rows == 3
        alter("ADD seen DATETIME DEFAULT CURRENT_TIMESTAMP")
        arrived("id", "seen")
        for change, said, ignored in (
            ("ADD at INT DEFAULT (1 + 1)", "would get other values in the new column at than at the source",
                "add_column"),
            ("DROP COLUMN z, ADD COLUMN z INT", "a column is dropped and another of its name is added",
                "drop_column: ignore, add_column"),
            ("MODIFY f VARCHAR(40)", "column f was double not null and is varchar", "change_column"),
            ("MODIFY n DECIMAL(40,4)", "no lake format has numbers of more than 38 digits", "change_column"),
        ):  # fmt: skip
            alter(change)
            with pytest.raises(LoadError, match=said):
                made.run_until_head()
            policy(f"{{{ignored}: ignore}}")
            made.run_until_head()
            policy("apply")
        mysql_source.execute(f"UPDATE {schema}.t SET big = 9 WHERE id = 3")
        with pytest.raises(MappingError, match=r"has no column 'at'|numbers of more than 38|cannot hold values of"):
            made.run_until_head()


def test_a_table_that_is_written_anew_is_bounded_and_done_once(tmp_path: Path) -> None:
    """Rows that arrived before the change stay as they were there; a repeat finds the change, and the batch that a
    later change follows.
    """
    bench = DeltaBench(tmp_path)
    table = people("shop")
    bench.create_table(table)
    small = Pipe(bench, config={"options": {"rewrite_up_to": 10}})
    small.deliver((table, [new(1, "a", 1), new(2, "b", 2)]))
    before = _definition("shop", "people")
    columns = {column.name: column for column in before.columns}
    wide = replace(before, columns=(columns["id"], replace(columns["points"], name="marks", type="bigint unsigned")))
    kinds = (ChangeKind.DROP_COLUMN, ChangeKind.RENAME_COLUMN, ChangeKind.WIDEN_COLUMN)
    text = "ALTER TABLE shop.people DROP COLUMN email, CHANGE points marks BIGINT UNSIGNED"
    change = _schema_change(small, 0, text, kinds, before, wide)
    batch = small.given([(table, [changed((1, "a", 1), (1, "a", 7)), new(3, "c", 3)])], schema_changes=(change,))
    with pytest.raises(LoadError, match=r"has \d+ bytes \(options.rewrite_up_to: 10\)"):
        small.write(batch)
    pipe = Pipe(bench)
    pipe.batch, pipe.epoch = small.batch, small.epoch
    for call in ("write", "commit"):
        pipe.epoch += 1
        with contextlib.suppress(_Crash):
            pipe.write(batch, after=_crash_at(call))
    versions = bench.table(table.table).version()
    # the rows and the change are there, the checkpoint is put back to before them, as after a crash between the two
    assert pipe.held == batch.number
    assert bench.columns(table.table) == ["id", "marks"]
    found = bench.table(table.table).to_pyarrow_table().to_pylist()
    assert Counter((row["id"], int(row["marks"])) for row in found) == Counter([(1, 7), (2, 2), (3, 3)])
    LakeFollower(bench.target().tables, Fence(pipe.epoch, batch.number, batch.number), change).run()
    assert bench.table(table.table).version() == versions
    # DuckDB, by the table's own log
    assert sorted(duckdb_reader.delta(tmp_path / "shop/people", "id, marks::VARCHAR")) == [(1, "7"), (2, "2"), (3, "3")]


def test_a_crash_between_a_change_that_follows_rows_and_the_checkpoint(tmp_path: Path) -> None:
    """The rows have a column that the table no longer has: they are there already."""
    bench = DeltaBench(tmp_path)
    table = people("shop")
    bench.create_table(table)
    pipe = Pipe(bench)
    pipe.deliver((table, [new(1, "a", 1)]))
    before = _definition("shop", "people")
    after = replace(before, columns=before.columns[:2])
    change = _schema_change(
        pipe, 0, "ALTER TABLE shop.people DROP COLUMN points", (ChangeKind.DROP_COLUMN,), before, after
    )
    batch = pipe.given([(table, [new(2, "b", 2)])], schema_changes=(change,))
    pipe.take_over()
    writer = pipe.writer(batch)
    for phase in writer.plan(1):
        for unit in phase:
            unit.write()
    writer._follow(before_rows=False)
    assert bench.columns(table.table) == ["id", "email"]
    pipe.epoch += 1
    pipe.write(batch)
    found = bench.table(table.table).to_pyarrow_table().to_pylist()
    assert Counter((row["id"], row["email"]) for row in found) == Counter([(1, "a"), (2, "b")])
    assert pipe.held == 2


@pytest.mark.parametrize(
    ("there", "wanted", "values"),
    [
        ("byte", "long", [-128, 127, None]), ("integer", "decimal(20,0)", [-(2**31), 2**31 - 1]),
        ("long", "decimal(38,19)", [-(2**63), 2**63 - 1]),
        ("decimal(20,2)", "decimal(38,4)", [Decimal("-999999999999999999.99"), None]),
        ("float", "double", [0.1, -0.0]), ("integer", "double", [2**31 - 1]),
    ],
)  # fmt: skip
def test_values_become_wider_unchanged(tmp_path: Path, there: str, wanted: str, values: list[Any]) -> None:
    place = Place(str(tmp_path))
    old = (
        LakeColumn("id", "long", nullable=False),
        LakeColumn("was", (LakeColumn("v", there),)),
        LakeColumn("p", "string"),
    )
    deltalake.DeltaTable.create(place.uri("t"), schema_of(old), partition_by=["p"])
    table = deltalake.DeltaTable(place.uri("t"))
    exact = pa.array(values, arrow_of(there))
    rows = pa.table({
        "id": range(len(values)), "was": pa.StructArray.from_arrays([exact], ["v"]),
        "p": ["x", None, "y"][: len(values)],
    })  # fmt: skip
    deltalake.write_deltalake(table, rows, mode="append")
    assert widens(there, wanted)
    assert not widens(wanted, there)
    made = Recast.of(info_of(table), kinds={"was": (LakeColumn("v", wanted),)}, names={"id": "key"})
    assert made is not None
    made.run(place, "t", table, None)
    table = deltalake.DeltaTable(place.uri("t"))
    assert info_of(table).columns == (
        LakeColumn("key", "long", nullable=False), LakeColumn("was", (LakeColumn("v", wanted),)),
        LakeColumn("p", "string", partition=True, as_null=("", "__HIVE_DEFAULT_PARTITION__")),
    )  # fmt: skip
    found = sorted(table.to_pyarrow_table().to_pylist(), key=lambda row: row["key"])
    expected = pa.array([pc.cast(one, pa.float64()).as_py() if wanted == "double" else one.as_py() for one in exact])
    assert [row["was"]["v"] for row in found] == expected.to_pylist()


def test_the_sources_ddl_in_a_table_of_changes(
    tmp_path: Path, mysql_source: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    """Old columns stay for the changes that have them, new ones are made."""
    schema = fresh_schema(mysql_source)
    mysql_source.execute(f"CREATE TABLE {schema}.t (id INT PRIMARY KEY, v INT)")
    with lake_pipeline("delta", tmp_path, mysql_source, zookeeper, schema, "changes: all") as made:
        made.make_missing()
        made.run_until_head()
        mysql_source.execute(
            f"USE {schema}", "INSERT INTO t VALUES (1, 1)", "ALTER TABLE t RENAME COLUMN v TO w", "UPDATE t SET w = 2",
            "ALTER TABLE t DROP COLUMN w, ADD x VARCHAR(9) DEFAULT 'd'", "UPDATE t SET x = 'e'", "RENAME TABLE t TO u",
            "DELETE FROM u",
            "ALTER TABLE u MODIFY id BIGINT", "INSERT INTO u VALUES (5000000000, 'w')",
        )  # fmt: skip
        made.run_until_head()
        rows = made.target.rows(schema, "t").sort_by([("_batch", "ascending"), ("_seq", "ascending")]).to_pylist()
        found = [(row["_op"], row["v"], row["w"], row["x"]) for row in rows]
        assert found == [("i", 1, None, None), ("u", None, 2, None), ("u", None, None, "e")]
        row, last = made.target.rows(schema, "u").sort_by([("_batch", "ascending"), ("_seq", "ascending")]).to_pylist()
        assert (row["_op"], row["id"], row["x"], row["_before"]["x"]) == ("d", 1, "e", "e")
        assert (last["_op"], last["id"]) == ("i", 5_000_000_000)
        mysql_source.execute(f"TRUNCATE TABLE {schema}.u")
        with pytest.raises(LoadError, match="cannot follow truncate table"):
            made.run_until_head()


@pytest.mark.parametrize("kind", [ChangeKind.TRUNCATE_TABLE, ChangeKind.ADD_COLUMN])
def test_a_change_before_the_rows_is_followed_once(tmp_path: Path, kind: ChangeKind) -> None:
    """A repeat after the rows were written must not empty the table again, nor set the default in rows that have a
    value by now.
    """
    bench = DeltaBench(tmp_path)
    table = people("shop")
    bench.create_table(table)
    pipe = Pipe(bench)
    pipe.deliver((table, [new(1, "a", 1), new(2, "b", 2)]))
    before = _definition("shop", "people")
    after = before
    if kind is ChangeKind.ADD_COLUMN:
        column = ColumnDefinition("extra", "int", nullable=False, default="5")
        after = replace(before, columns=(*before.columns, column))
    change = replace(_schema_change(pipe, 0, "the statement", (kind,), before, after), before_rows=True)
    wide = TableSchema(table.table, (*table.columns, Column("extra", K.INT, "int", nullable=False)), ("id",))
    if kind is ChangeKind.ADD_COLUMN:
        rows = [changed((1, "a", 1, 5), (1, "a", 1, 6)), new(3, "c", 3, 7)]
        batch = pipe.given([(wide, rows)], schema_changes=(change,))
        expected = Counter([(1, "a", 1, 6), (2, "b", 2, 5), (3, "c", 3, 7)])
    else:
        wide = table
        batch = pipe.given([(table, [new(3, "c", 3)])], schema_changes=(change,))
        expected = Counter([(3, "c", 3)])
    for number in range(3):
        pipe.epoch += 1
        with contextlib.suppress(_Crash):
            pipe.write(batch, after=_crash_at("write" if number else "prepare"))
    pipe.epoch += 1
    pipe.write(batch)
    assert pipe.state(wide) == expected
    assert pipe.held == 2


def test_a_version_is_found_by_batch_and_by_the_time_at_the_source(tmp_path: Path) -> None:
    """Each commit says where its batch ends in the log, and when that was."""
    bench = DeltaBench(tmp_path)
    table = people("shop")
    bench.create_table(table)
    pipe = Pipe(bench)
    for number in range(2):
        batch = pipe.given([(table, [new(number, "a", 1)])])
        pipe.write(replace(batch, position=committed_at(batch.position, 1_763_683_200_000_000 + number)))
    newest, older = bench.table(table.table).history(2)
    assert (older["sluice.batch"], older["sluice.commit_time"]) == ("1", "2025-11-21T00:00:00.000000+00:00")
    assert (newest["sluice.commit_time"], newest["sluice.offset"]) == ("2025-11-21T00:00:00.000001+00:00", "204")
    then = deltalake.DeltaTable(bench.uri(table.table), version=older["version"])
    assert then.to_pyarrow_table()["id"].to_pylist() == [0]


def test_a_dead_letter_in_several_pieces(tmp_path: Path) -> None:
    """Each piece is written, also when the letter is replayed once more; the batches that are noted stay so."""
    bench = DeltaBench(tmp_path)
    table = people("shop")
    bench.create_table(table)
    pipe = Pipe(bench)
    pipe.deliver((table, [new(1, "a", 1)]))
    for number in (2, 3, 2):
        piece = replace(
            pipe.given([(table, [new(number, "r", 0)])]), number=1, held=1, replay="dead letter x shop.people"
        )
        writer = pipe.writer(piece)
        writer.commit([unit.write() for phase in writer.plan(1) for unit in phase])
        pipe.batch = 1
    assert pipe.state(table) == Counter([(1, "a", 1), (2, "r", 0), (3, "r", 0)])
    assert pipe.held == 1
    pipe.deliver((table, [gone(2, "r", 0)]))
    assert pipe.state(table) == Counter([(1, "a", 1), (3, "r", 0)])
    every = Pipe(DeltaBench(tmp_path / "all", "all"))
    every.bench.create_table(table)
    every.deliver((table, [new(1, "a", 1)]))
    with pytest.raises(LoadError, match="a table of changes takes nothing else"):
        every.writer(replace(piece, held=1)).plan(1)


def test_files_are_maintained_while_batches_are_loaded(tmp_path: Path) -> None:
    """Compactions and loads meet; every row is there once, a file that is needed stays, one that no commit named
    goes.
    """
    bench = DeltaBench(tmp_path)
    table = people("shop")
    bench.create_table(table)
    config = {"options": {"maintenance": {"small_files": 2, "keep": "1h"}}}
    pipe = Pipe(bench, config=config)
    for number in range(6):
        pipe.deliver((table, [new(number, "a", 0)]))
    maintainer = pipe.target.maintainer()
    [wanted] = maintainer.maintain([table.table, TableId("shop", "absent")], dry_run=True)
    assert (wanted.merged, wanted.written) == (6, 0)
    [stuck] = DeltaBench(tmp_path).target(options={"maintenance": {"compact": False}}).maintainer().maintain([
        table.table
    ]) or [None]
    assert stuck is None
    merged, stop = [], threading.Event()

    def look_after() -> None:
        while not stop.is_set():
            merged.extend(maintainer.maintain([table.table]))

    worker = threading.Thread(target=look_after)
    worker.start()
    try:
        for points in range(1, 9):
            pipe.deliver((
                table,
                [*(changed((n, "a", points - 1), (n, "a", points)) for n in range(6)), new(100 + points, "b", 0)],
            ))
    finally:
        stop.set()
        worker.join()
    assert not [one.error for one in merged if one.error]
    assert sum(one.merged for one in merged) > sum(one.written for one in merged)
    assert pipe.state(table) == Counter([*((n, "a", 8) for n in range(6)), *((100 + n, "b", 0) for n in range(1, 9))])
    folder = tmp_path / "shop/people"
    orphan = folder / "part-00000-of-no-commit.snappy.parquet"
    orphan.write_bytes(b"left behind")
    files = set(folder.glob("*.parquet"))
    maintainer.maintain([table.table])
    assert set(folder.glob("*.parquet")) >= files, "files of less than an hour stay"
    for path in folder.glob("*.parquet"):
        os.utime(path, (0, 0))
    for path in (folder / "_delta_log").glob("*.json"):  # as if all of it was two hours ago
        path.write_text(re.sub(r'("(?:deletionTimestamp|modificationTime)":)\d+', r"\g<1>1000", path.read_text()))
    for path in (folder / "_delta_log").glob("*checkpoint*"):
        path.unlink()
    [done] = maintainer.maintain([table.table])
    assert done.removed > 0
    assert not orphan.exists()
    assert set(map(str, folder.glob("*.parquet"))) == {
        uri.removeprefix("file://") for uri in bench.table(table.table).file_uris()
    }
    assert pipe.state(table).total() == 14


def test_the_tables_of_a_pipeline_are_maintained(
    tmp_path: Path, mysql_source: Any, zookeeper: Any, fresh_schema: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the command line, where the mapping says that they are; a target without files is left out."""
    schema = fresh_schema(mysql_source)
    mysql_source.execute(f"CREATE TABLE {schema}.t (id INT PRIMARY KEY)")
    with lake_pipeline(
        "delta", tmp_path, mysql_source, zookeeper, schema, "options: {maintenance: {small_files: 2}}"
    ) as made:
        made.make_missing()
        made.run_until_head()
        for number in range(3):
            mysql_source.execute(f"INSERT INTO {schema}.t VALUES ({number})")
            made.run_until_head()
        said = json.loads(made.cli("targets", "maintain", made.name, "--json", "--dry-run").stdout)
        assert [(one["target"], [row["merged"] for row in one["tables"]]) for one in said] == [("copy", [3])]
        assert made.cli("targets", "maintain", made.name).returncode == 0
        assert len(made.target.table(schema, "t").file_uris()) == 1
        assert made.target.rows(schema, "t").num_rows == 3
        for name, value in made.environment.items():
            monkeypatch.setenv(name, value)
        mysql_source.execute(f"INSERT INTO {schema}.t VALUES (7)")
        made.run_until_head()
        task = MaintainTargetsOperator(task_id="targets.case", pipeline=str(made.path))
        assert task.execute({"params": {"dry_run": True}}) == {"copy": 1}
        assert len(made.target.table(schema, "t").file_uris()) == 2
        assert task.execute({"params": {"dry_run": False}}) == {"copy": 1}
        assert len(made.target.table(schema, "t").file_uris()) == 1
        (made.target.folder / schema / "t/_delta_log/00000000000000000002.json").write_text("{broken")
        for path in (made.target.folder / schema / "t/_delta_log").glob("*checkpoint*"):
            path.unlink()
        with pytest.raises(TaskError, match="1 tables could not be maintained"):
            task.execute({"params": {"dry_run": False}})
