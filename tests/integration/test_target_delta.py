"""The Delta target: whole pipelines from MySQL, values at their boundaries, keys of every type, and what each refusal says."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from sluice.config.connections import Endpoint, parse_connection
from sluice.config.pipeline import TargetConfig
from sluice.errors import ConfigError, LoadError, MappingError
from sluice.flows.deadletters.store import letters
from sluice.flows.operate.check import check
from sluice.model.column_types import ColumnKind
from sluice.model.tables import Column, TableId, TableSchema
from sluice.targets.contract import Pipe, changed, gone, new, people
from sluice.targets.delta.target import DeltaTarget
from sluice.targets.rows_in_memory import RowsInMemory, planned_table
from tests.support import delta_values, pg_values
from tests.support.boundary_values import BOTH, LENIENT, MYSQL, leniently
from tests.support.delta_bench import DeltaBench
from tests.support.pipelines import Case, case

deltalake = pytest.importorskip("deltalake")


TYPES = BOTH | MYSQL
COLUMNS = {"id": "int", "mark": "int", **{name: kind for name, (kind, _) in TYPES.items()}}
K = ColumnKind


class Lake:
    """A folder as a server of the stack."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def connection_json(self) -> str:
        return f'{{"conn_type": "fs", "extra": {{"path": "{self.folder}"}}}}'

    def table(self, schema: str, table: str) -> Any:
        return deltalake.DeltaTable(str(self.folder / schema / table))

    def rows(self, schema: str, table: str) -> pa.Table:
        return self.table(schema, table).to_pyarrow_table()

    def duckdb_rows(self, schema: str, table: str) -> pa.Table:
        """As DuckDB reads the files of the newest version."""
        with duckdb.connect() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            files = self.table(schema, table).file_uris()
            return connection.sql(
                "SELECT * FROM read_parquet($1, union_by_name = true)", params=[files]
            ).to_arrow_table()


@contextmanager
def pipeline(folder: Path, source: Any, zookeeper: Any, schema: str, *lines: str, **more: Any) -> Iterator[Case]:
    extra = "\n".join(f"    {line}" for line in lines)
    lake = Lake(folder / "lake")
    with case(folder, source, lake, zookeeper, schema, kind="delta", target_extra=extra, **more) as made:
        yield made


def test_every_value_arrives(tmp_path: Path, mysql_source: Any, zookeeper: Any, fresh_schema: Any) -> None:
    """New rows, rows that change and rows that move; read by delta-rs and by DuckDB."""
    schema = fresh_schema(mysql_source, options="CHARACTER SET utf8mb4")
    columns = ", ".join(f"`{name}` {kind}" for name, (kind, _) in TYPES.items())
    for table in ("k", "v"):
        leniently(
            mysql_source, schema, f"CREATE TABLE {table} (id INT PRIMARY KEY, mark INT, {columns}) COLLATE utf8mb4_bin"
        )
    options = "options: {zero_dates: 'null', wide_decimals: string}"
    with pipeline(tmp_path, mysql_source, zookeeper, schema, options) as made:
        made.make_missing()
        assert not check(made.runtime()).failed
        made.run_until_head()
        count = max(len(values) for _, values in TYPES.values()) + 1
        lines = []
        for row in range(count):
            cells = [values[row % len(values)] if row < count - 1 else "NULL" for _, values in TYPES.values()]
            lines.append(f"({row + 1}, 0, {', '.join(cells)})")
        leniently(mysql_source, schema, *(f"INSERT INTO {table} VALUES {', '.join(lines)}" for table in ("k", "v")))
        made.run_until_head()

        def arrived() -> None:
            sent = pg_values.rows(mysql_source, f"`{schema}`.k", COLUMNS, mysql=True)
            for there in (made.target.rows(schema, "k"), made.target.duckdb_rows(schema, "k")):
                for one, other in zip(sent, delta_values.rows(there, COLUMNS), strict=True):
                    differ = {name: (a, b) for name, a, b in zip(COLUMNS, one, other, strict=True) if a != b}
                    assert not differ, f"row {one[0]}: {differ}"

        arrived()
        every = ", ".join(f"a.`{name}` = b.`{name}`" for name in TYPES)
        with mysql_source.connect(schema) as connection, connection.cursor() as cursor:
            cursor.execute(LENIENT)
            for change in (
                f"UPDATE k a JOIN v b ON b.id = a.id % {count} + 1 SET {every}, a.mark = 1",
                f"UPDATE k a JOIN v b ON b.id = (a.id + 3) % {count} + 1 SET {every}, a.id = a.id + 5000 WHERE a.id % 2",
                "DELETE FROM k WHERE id % 3 = 0",
            ):
                cursor.execute(change)
                made.run_until_head()
                arrived()


KEYS: tuple[tuple[Column, tuple[Any, ...]], ...] = (
    (Column("k", K.BIGINT, "bigint unsigned", unsigned=True), (0, 2**63 - 1, 2**63, 2**64 - 1)),
    (Column("k", K.BIGINT, "bigint"), (-(2**63), -1, 0, 2**63 - 1)),
    (Column("k", K.DECIMAL, "decimal(38,10)", precision=38, scale=10), ("-9999999999999999999999999999.9999999999", "0.0000000001", "1", "2")),
    (Column("k", K.VARCHAR, "varchar(200)", charset="utf8mb4"), ("", "x" * 40 + "1", "x" * 40 + "2", "ü😀'\"`\\", "a", "A", "a ")),
    (Column("k", K.VARBINARY, "varbinary(90)"), (b"", b"\xff" * 40 + b"1", b"\xff" * 40 + b"2", b"\x00", b"'")),
    (Column("k", K.DATE, "date"), ("0001-01-01", "1582-10-10", "1969-12-31", "9999-12-31")),
    (Column("k", K.DATETIME, "datetime(6)", fsp=6), ("0001-01-01T00:00:00.000001", "1969-12-31T23:59:59.999999", "9999-12-31T23:59:59.999999")),
    (Column("k", K.TIMESTAMP, "timestamp(6)", fsp=6), ("1970-01-01T00:00:01.000001", "2038-01-19T03:14:07.999999")),
    (Column("k", K.TIME, "time(6)", fsp=6), (-3020399000000, -1, 0, 3020399000000)),
    (Column("k", K.DOUBLE, "double"), (-1.5, 0.1, 5e-324, 1.7976931348623157e308)),
)  # fmt: skip


@pytest.mark.parametrize("key", KEYS, ids=lambda key: str(key[0].sql_type))
@pytest.mark.parametrize("second", [False, True], ids=["alone", "of-two"])
def test_rows_are_found_again_by_keys_of_every_type(tmp_path: Path, key: Any, second: bool) -> None:
    """A key whose bounds in the log are cut, rounded or misread would lose its row from sight, and the row would be doubled."""
    column, texts = key
    values = _values(column, texts)
    columns = [
        replace(column, nullable=False),
        Column("n", K.INT, "int", nullable=not second),
        Column("v", K.INT, "int"),
    ]
    table = TableSchema(TableId("shop", "t"), tuple(columns), ("k", "n") if second else ("k",))
    bench = DeltaBench(tmp_path)
    bench.create_table(table)
    pipe = Pipe(bench)
    for value in values:  # a file each
        pipe.deliver((table, [new(value, 1, 0)]))
    assert len(pipe.state(table)) == len(values)
    for step in range(3):
        pipe.deliver((table, [changed((value, 1, step), (value, 1, step + 1)) for value in values]))
        assert sorted(row[2] for row in pipe.state(table).elements()) == [step + 1] * len(values)
    for number, value in enumerate(values):
        pipe.deliver((table, [gone(value, 1, 3)]))
        assert sum(pipe.state(table).values()) == len(values) - number - 1


def _values(column: Column, texts: Any) -> list[Any]:
    kind = column.type.arrow_type
    if column.kind in {K.DATE, K.DATETIME, K.TIMESTAMP, K.DECIMAL}:
        naive = pa.timestamp("us") if pa.types.is_timestamp(kind) else kind
        found: list[Any] = pa.array(texts, pa.string()).cast(naive).cast(kind).to_pylist()
        return found
    return list(pa.array(texts, kind).to_pylist())


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
        [row] = deltalake.DeltaTable(target.site.uri(table.table)).to_pyarrow_table().to_pylist()
        assert list(row.values()) == [1, *reversed(names)]
    blank = TableSchema(TableId("s", "t"), (Column("id", K.INT, "int"), Column("a b", K.INT, "int")), ("id",))
    [finding] = target.schema().compare([planned_table(blank)])
    assert (finding.column, finding.severity) == ("a b", "error")
    assert "rename it" in finding.hint


@pytest.mark.parametrize("changes", ["latest", "all"])
def test_a_random_history_ends_as_the_source(
    tmp_path: Path, mysql_source: Any, zookeeper: Any, fresh_schema: Any, changes: str
) -> None:
    """Keys that move and come back, a table that is made, emptied and gets columns on the way; batches small and large."""
    schema = fresh_schema(mysql_source)
    mysql_source.execute(
        f"CREATE TABLE {schema}.a (id INT, part VARCHAR(9) COLLATE utf8mb4_bin, v INT, PRIMARY KEY (part, id))"
    )
    options = f"options: {{partition_by: {{{schema}.a: [part]}}}}"
    chosen = random.Random(3)
    with pipeline(tmp_path, mysql_source, zookeeper, schema, f"changes: {changes}", options) as made:
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
    with pipeline(tmp_path, mysql_source, zookeeper, schema) as made:
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


def test_check_proposes_and_says_what_does_not_fit(tmp_path: Path) -> None:
    bench = DeltaBench(tmp_path)
    table = people("shop")
    target: Any = bench.target(options={"partition_by": {"shop.people": ["points"]}})
    schema = target.schema()
    [finding] = schema.compare([planned_table(table)])
    assert finding.statement == (
        f"CREATE TABLE delta.`{tmp_path}/shop/people` (`id` INT, `email` STRING, `points` INT) USING DELTA PARTITIONED BY (`points`)"
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
    with pytest.raises(MappingError, match=r"has no column 'more'.*check --apply"):
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
    assert "Delta has no numbers of more than 38 digits" in finding.why
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
        ({"storage_options": {"AWS_S3_ALLOW_UNSAFE_RENAME": True}}, {"location": "s3://b/l"}, "two writers commit the same version"),
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
    assert target.site.place.root == "s3://bucket/lake"
    assert target.site.place.storage == {
        "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "s3cret", "AWS_REGION": "eu-west-1", "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
        "AWS_ALLOW_HTTP": "true", "aws_conditional_put": "etag",
    }  # fmt: skip
    assert "s3cret" not in repr(target.site)


def test_another_writer_of_the_table_does_not_stop_it(tmp_path: Path) -> None:
    """It compacts between the reading and the commit: the merge is refused, read again and repeated."""
    bench = DeltaBench(tmp_path)
    table = people("shop")
    bench.create_table(table)
    pipe = Pipe(bench)
    for number in range(5):
        pipe.deliver((table, [new(number, "a", 0)]))
    before = deltalake.DeltaTable(bench.uri(table.table)).version()
    from sluice.targets.delta.merging import Merging

    work, compacted = Merging._write, []

    def compact_first(self: Any, *arguments: Any) -> Any:
        if not compacted:
            compacted.append(deltalake.DeltaTable(bench.uri(table.table)).optimize.compact())
        return work(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Merging, "_write", compact_first)
        pipe.deliver((table, [changed((n, "a", 0), (n, "b", 1)) for n in range(5)]))
    assert compacted[0]["numFilesRemoved"] == 5
    assert pipe.state(table) == Counter((n, "b", 1) for n in range(5))
    assert deltalake.DeltaTable(bench.uri(table.table)).version() == before + 2


def test_rows_of_one_batch_with_different_columns(tmp_path: Path) -> None:
    """Of a column that a row never had nothing is written: the target keeps its value."""
    bench = DeltaBench(tmp_path)
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
