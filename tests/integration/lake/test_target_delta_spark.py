"""The Delta target with Spark as the writer of large tables: equal to delta-rs, exactly once beside it, whoever dies or
comes back.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from sluice.config.connections import parse_connection
from sluice.errors import ConfigError, Fenced, LoadError, SluiceError
from sluice.flows.load.load import SparkStatements
from sluice.model.column_types import ColumnKind
from sluice.model.tables import Column, TableId, TableSchema
from sluice.spark.connect import ConnectRunner
from sluice.spark.local import LocalRunner
from sluice.targets.lake.commit import holds
from sluice.targets.port import Fence
from sluice.targets.rows_in_memory import planned_table
from sluice.testing.targets import CHECKS, Check, Pipe, changed, gone, new, people
from tests.support.crashes.strikes import At, children, start, twice_arrived
from tests.support.pipelines.case import case
from tests.support.readers import duckdb_reader
from tests.support.values.boundary_values import BOTH, LENIENT, MYSQL, leniently
from tests.support.values.lake_keys import KEYS, values_of

pytest.importorskip("deltalake")

from tests.support.benches.delta_bench import DeltaBench
from tests.support.crashes import calls
from tests.support.readers.lakes import Lake

children.set_forkserver_preload([
    "tests.support.crashes.calls",
    "tests.support.benches.delta_bench",
    "sluice.spark.connect",
])
TYPES = BOTH | MYSQL
K = ColumnKind
FIRST = [new(n, "a", 0) for n in range(4)]
SECOND = [changed((n, "a", 0), (n, "b", 1)) for n in range(3)] + [gone(3, "a", 0), new(4, "b", 1)]
EXPECTED = Counter([*((n, "b", 1) for n in range(3)), (4, "b", 1)])


@pytest.fixture(scope="module")
def statements(spark_delta: Any) -> SparkStatements:
    return SparkStatements(ConnectRunner(parse_connection("spark", spark_delta.connection_json())), "a test")


@dataclass(frozen=True)
class Interrupted:
    """``before`` is called before the first statement, as if the process had stood still there."""

    statements: SparkStatements
    before: Callable[[], None]

    def run(self, statement: str, settings: Mapping[str, str], required: Mapping[str, str]) -> None:
        self.before()
        self.statements.run(statement, settings, required)


@pytest.mark.parametrize("changes", ["latest", "all"])
@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_contract(check: Check, changes: str, tmp_path: Path, statements: SparkStatements) -> None:
    """What is about rows and repeats; ``SLUICE_CUTS=1``: all of it. A MERGE of few rows takes seconds."""
    if check.number not in {2, 11, 14, 15, 18} and os.environ.get("SLUICE_CUTS") != "1":
        pytest.skip("it is the same without Spark")
    bench = DeltaBench(tmp_path, changes, spark=statements)
    if not check.applies(bench):
        pytest.skip("the target does not offer it")
    check.run(bench)


def test_both_writers_make_the_same_table(
    tmp_path: Path, mysql_source: Any, zookeeper: Any, fresh_schema: Any, spark_delta: Any
) -> None:
    """Every type at its boundaries; new rows, rows that change and rows that move.

    Also what DuckDB reads, and types and their widths.
    """
    schema = fresh_schema(mysql_source, options="CHARACTER SET utf8mb4")
    columns = ", ".join(f"`{name}` {kind}" for name, (kind, _) in TYPES.items())
    for table in ("k", "v"):
        leniently(
            mysql_source, schema, f"CREATE TABLE {table} (id INT PRIMARY KEY, mark INT, {columns}) COLLATE utf8mb4_bin"
        )
    count = max(len(values) for _, values in TYPES.values()) + 1
    lines = []
    for row in range(count):
        cells = [values[row % len(values)] if row < count - 1 else "NULL" for _, values in TYPES.values()]
        lines.append(f"({row + 1}, 0, {', '.join(cells)})")
    every = ", ".join(f"a.`{name}` = b.`{name}`" for name in TYPES)
    work = [
        *(f"INSERT INTO {table} VALUES {', '.join(lines)}" for table in ("k", "v")),
        f"UPDATE k a JOIN v b ON b.id = a.id % {count} + 1 SET {every}, a.mark = 1",
        f"UPDATE k a JOIN v b ON b.id = (a.id + 3) % {count} + 1 SET {every}, a.id = a.id + 5000 WHERE a.id % 2",
        "DELETE FROM k WHERE id % 3 = 0",
    ]
    made = []
    for execution, mode in (("units", "local"), ("frame", "connect")):
        folder = tmp_path / execution
        options = f"options: {{zero_dates: 'null', wide_decimals: string, execution: {execution}, frame_from: 1}}"
        with case(
            folder, mysql_source, Lake(folder / "lake"), zookeeper, schema, kind="delta", name=execution,
            target_extra=f"    {options}",
        ) as one:  # fmt: skip
            one.connections["spark_connect_default"] = spark_delta.connection_json()
            one.make_missing()
            one.run_until_head()
            made.append((one, mode))
    with mysql_source.connect(schema) as connection, connection.cursor() as cursor:
        cursor.execute(LENIENT)
        for statement in work:
            cursor.execute(statement)
            for one, mode in made:
                one.run_until_head(mode)
            rust, spark = (one.target.table(schema, "k") for one, _ in made)
            assert rust.schema() == spark.schema()
            rows = [table.to_pyarrow_table().sort_by("id") for table in (rust, spark)]
            assert rows[0].schema == rows[1].schema
            for name in rows[0].schema.names:
                assert rows[0][name].to_pylist() == rows[1][name].to_pylist(), name
            assert made[1][0].target.duckdb_rows(schema, "k").num_rows == rows[0].num_rows
    assert spark.history(1)[0]["engineInfo"].startswith("Apache-Spark")
    assert rust.protocol() == spark.protocol()


def test_rows_are_found_again_by_keys_of_every_type(tmp_path: Path, statements: SparkStatements) -> None:
    """delta-rs wrote the files, whose bounds Spark reads; then the other way round. A table a type, all in each batch:
    a batch of Spark takes seconds, however few its rows are.
    """
    bench = DeltaBench(tmp_path, spark=statements)
    tables: dict[TableSchema, list[Any]] = {}
    for number, key in enumerate(KEYS):
        columns = (replace(key[0], nullable=False), Column("v", K.INT, "int"))
        tables[TableSchema(TableId("shop", f"t{number}"), columns, ("k",))] = values_of(*key)
    for table in tables:
        bench.create_table(table)

    def hold(pipe: Pipe, expected: Callable[[list[Any]], list[int]]) -> None:
        found = {table: sorted(row[1] for row in pipe.state(table).elements()) for table in tables}
        wrong = {
            str(table.columns[0].sql_type): found[table]
            for table, values in tables.items()
            if found[table] != expected(values)
        }
        assert not wrong

    rust = Pipe(bench, config={"options": {"execution": "units"}})
    for place in range(max(map(len, tables.values()))):  # a file each
        rust.deliver(*((table, [new(values[place], 0)]) for table, values in tables.items() if place < len(values)))
    hold(rust, lambda values: [0] * len(values))
    spark = Pipe(bench, epoch=rust.epoch, batch=rust.batch, seq=rust.seq)
    spark.deliver(*((table, [changed((one, 0), (one, 1)) for one in values]) for table, values in tables.items()))
    hold(spark, lambda values: [1] * len(values))
    rust.batch = spark.batch
    rust.deliver(*((table, [changed((one, 1), (one, 2)) for one in values]) for table, values in tables.items()))
    hold(rust, lambda values: [2] * len(values))
    spark.batch = rust.batch
    spark.deliver(*((table, [gone(one, 2) for one in values[1:]]) for table, values in tables.items()))
    hold(spark, lambda values: [2])


def test_both_writers_read_one_note(tmp_path: Path, statements: SparkStatements) -> None:
    """A batch that one of them wrote is not written again by the other; deletes of rows that are not there are
    noted, too.
    """
    bench = DeltaBench(tmp_path, spark=statements)
    table = people("shop")
    bench.create_table(table)
    units = {"options": {"execution": "units"}}
    pipe = Pipe(bench)
    for number, (one, other) in enumerate(((units, {}), ({}, units)) * 2, 1):
        batch = pipe.given([(table, [new(number, "a", number)])])
        for config in (one, other):
            pipe.config = config
            pipe.take_over()
            writer = pipe.writer(batch)
            stored = [unit.write() for phase in writer.plan(1) for unit in phase]
            if config is not units:
                stored_by_spark = [one for one in stored if one.message]
                writer.spark.commit(writer._about, statements, writer.fence, stored_by_spark)
        versions = bench.table(table.table).version()
        pipe.write(batch)
        assert bench.table(table.table).version() == versions
    assert pipe.state(table) == Counter((n, "a", n) for n in range(1, 5))
    pipe.config = {}
    pipe.deliver((table, [gone(77, "x", 0)]))
    assert pipe.held == 5
    assert pipe.state(table).total() == 4
    [last] = bench.table(table.table).history(1)
    assert '"sluice.batch": "5"' in last["userMetadata"]
    assert not list((tmp_path / "_sluice/~stored/p/copy").iterdir())


@pytest.mark.parametrize("rewound", [False, True], ids=["taken-over", "rewound"])
@pytest.mark.parametrize(
    ("old", "newer", "changes"),
    [("units", "frame", "all"), ("frame", "units", "all"), ("frame", "frame", "all"), ("frame", "frame", "latest")],
)
def test_an_old_writer_that_comes_back(
    tmp_path: Path, statements: SparkStatements, changes: str, rewound: bool, newer: str, old: str,
    monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """It stands still when it has asked the fence; a newer one takes over, delivers the batch and the next; then it
    goes on.
    """
    bench = DeltaBench(tmp_path, changes, spark=statements)
    table = people("shop")
    bench.create_table(table)
    pipe = Pipe(bench)
    pipe.deliver((table, FIRST))
    pipe.deliver((table, [changed((0, "a", 0), (0, "a", 0))]))
    batch = pipe.given([(table, SECOND)])
    late = Pipe(bench, epoch=1, batch=2, config={"options": {"execution": old}})
    late.take_over()
    happened = []

    def meanwhile() -> None:
        if happened:
            return
        happened.append(True)
        pipe.epoch, pipe.config = 5, {"options": {"execution": newer}}
        if rewound:
            there = pipe.checkpoints.read()
            assert there is not None
            pipe.checkpoints.rewind(replace(there, epoch=5, batch=1))
            again = [changed((0, "a", 0), (0, "a", 0))]
            pipe.batch = 1
            pipe.deliver((table, again))
        pipe.write(batch)
        pipe.batch = 3
        pipe.deliver((table, [changed((0, "b", 1), (0, "d", 3)), new(9, "z", 9)]))

    if old == "frame":
        given = replace(batch, spark=Interrupted(statements, meanwhile))
    else:
        given = batch
        from sluice.targets.delta import format as delta_format

        noting = delta_format.noting

        def stands_still(found: Any, note: Any, **more: Any) -> Any:
            made = noting(found, note, **more)
            meanwhile()
            return made

        monkeypatch.setattr(delta_format, "noting", stands_still)
    with pytest.raises(Fenced):
        late.write(given)
    assert happened
    assert pipe.held == 4
    assert pipe.state(table) == EXPECTED - Counter([(0, "b", 1)]) + Counter([(0, "d", 3), (9, "z", 9)])
    assert not bench.appends or not twice_arrived(bench)


@pytest.mark.parametrize("changes", ["latest", "all"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_killed_at_a_statement(tmp_path: Path, statements: SparkStatements, changes: str, after: bool) -> None:
    """Rows are stored, and Spark has them or not; the next process finds out."""
    bench = DeltaBench(tmp_path, changes, spark=statements)
    table = people("shop")
    bench.create_table(table)
    rust = Pipe(bench, config={"options": {"execution": "units"}})
    rust.deliver((table, FIRST))
    pipe = Pipe(bench, batch=1, seq=rust.seq, epoch=3)
    batch = pipe.given([(table, SECOND)])
    child, _ = start(calls.delta_by_spark, bench, [batch], 2, At(0, after, signal.SIGKILL))
    child.join(300)
    assert child.exitcode == -signal.SIGKILL
    assert pipe.held == 1
    assert (pipe.state(table) == EXPECTED) is after
    left = list((tmp_path / "_sluice/~stored/p/copy").iterdir())
    assert len(left) == 1
    version = bench.table(table.table).version()
    pipe.write(batch)
    assert pipe.state(table) == EXPECTED
    assert pipe.held == 2
    assert (bench.table(table.table).version() == version) is after
    assert not bench.appends or not twice_arrived(bench)


def test_refused_rows_and_odd_names(tmp_path: Path, statements: SparkStatements) -> None:
    """A row that the table cannot hold stops the load, or is left out; names are quoted; columns that rows do not have
    stay as they are.
    """
    names = ["order", "a.b", "Größe😀", "it's", "t", "s", "c0", "SELECT", '"q"', "a`b"]
    columns = [
        Column("k`x", K.INT, "int", nullable=False),
        *(Column(n, K.VARCHAR, "varchar(9)", charset="utf8mb4") for n in names),
    ]
    table = TableSchema(TableId("s p", "a/b"), tuple(columns), ("k`x",))
    bench = DeltaBench(tmp_path, spark=statements)
    target: Any = bench.target()
    [finding] = target.schema().compare([planned_table(table)])
    target.schema().apply(finding.statement)
    pipe = Pipe(bench)
    pipe.deliver((table, [new(1, *names), new(2, *names)]))
    pipe.deliver((table, [changed((1, *names), (1, *reversed(names))), gone(2, *names)]))
    [row] = target.tables.open(table.table).to_pyarrow_table().to_pylist()
    assert list(row.values()) == [1, *reversed(names)]
    pipe.batch, pipe.name = 0, "other"
    with pytest.raises(LoadError, match=r"NULL in a column of the key"):
        pipe.deliver((table, [new(None, *names)]))
    kept: list[Any] = []
    batch = pipe.given([(table, [new(None, *names), new(5, *names)])])
    pipe.write(replace(batch, number=1, held=0), rejected=lambda part, table, rows: kept.extend(rows))
    assert len(kept) == 1
    assert target.tables.open(table.table).to_pyarrow_table().num_rows == 2


def test_what_spark_says_is_said(tmp_path: Path, statements: SparkStatements, spark_delta: Any) -> None:
    """A server that is away can be tried again; a statement that is refused names the table; without Spark nothing is
    tried.
    """
    runner = statements.runner
    with pytest.raises(LoadError, match="PARSE_SYNTAX_ERROR"):
        statements.run("MERGE nonsense", {}, {})
    assert runner._under_way.sessions == {}
    bench = DeltaBench(tmp_path, spark=SparkStatements(LocalRunner(), "loading"))
    table = people("shop")
    bench.create_table(table)
    with pytest.raises(ConfigError, match=r"loading needs Spark.*mode: connect"):
        Pipe(bench).deliver((table, FIRST))
    away = replace(parse_connection("spark", spark_delta.connection_json()), port=1)
    bench.spark = SparkStatements(ConnectRunner(away), "loading")
    with pytest.raises(SluiceError, match="no Spark Connect server answers"):
        Pipe(bench).deliver((table, FIRST))
    assert not Pipe(bench).state(table)


def test_others_read_what_spark_wrote(tmp_path: Path, statements: SparkStatements) -> None:
    """DuckDB by the table's own log; delta-rs what is noted, from a checkpoint that Spark made of the log; an older
    batch by time travel.
    """
    bench = DeltaBench(tmp_path, spark=statements)
    table = people("shop")
    bench.create_table(table)
    statements.run(
        f"ALTER TABLE delta.`{bench.uri(table.table)}` SET TBLPROPERTIES (delta.checkpointInterval = 1)", {}, {}
    )
    pipe = Pipe(bench)
    pipe.deliver((table, FIRST))
    version = bench.table(table.table).version()
    batch = pipe.deliver((table, SECOND))
    assert Counter(duckdb_reader.delta(tmp_path / "shop/people", "id, email, points")) == EXPECTED
    old = bench.table(table.table)
    old.load_as_version(version)
    assert old.to_pyarrow_table().num_rows == len(FIRST)
    log = tmp_path / "shop/people/_delta_log"
    last = max(int(path.name.split(".")[0]) for path in log.glob("*.checkpoint*.parquet"))
    assert last == bench.table(table.table).version()
    for path in log.glob("*.json"):
        if int(path.name.split(".")[0]) < last:
            path.unlink()
    target: Any = bench.target()
    assert holds(target.tables, Fence(1, batch.held, batch.number), table.table, "shop.people")
    assert not holds(target.tables, Fence(1, batch.number, batch.number + 1), table.table, "shop.people")
