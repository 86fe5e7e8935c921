"""The Oracle target on H2 in Oracle mode: statements, empty texts, keys, parts of rows, definitions in doubt.

No Oracle server was ever asked: see docs/oracle-target.md.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from sluice.errors import ConfigError, LoadError, MappingError, TargetUnavailable
from sluice.model.column_types import ColumnKind
from sluice.model.dialects import UNKNOWN
from sluice.model.schema_changes import ChangeKind
from sluice.model.tables import Column, TableId, TableSchema
from sluice.targets.oracle.target import OracleTarget
from sluice.targets.port import KeyRange, StoredRange
from sluice.targets.rows_in_memory import RowsInMemory, planned_table
from sluice.testing.targets import Pipe, _definition, _schema_change, _table, changed, gone, new, people
from tests.support.benches.oracle_bench import OracleBench
from tests.support.twins.oracle_statements import STATEMENTS, followed, proposed
from tests.support.twins.oracle_twin import OracleTwin

T = 'CREATE TABLE "S"."T" ("ID" NUMBER(10) PRIMARY KEY, "A" NUMBER(10), "B" VARCHAR2(9 CHAR))'


@pytest.fixture
def bench(oracle_twin: OracleTwin) -> OracleBench:
    return OracleBench(oracle_twin)


def made(
    bench: OracleBench, *columns: Column, key: tuple[str, ...] = ("id",), **config: Any
) -> tuple[TableSchema, Pipe]:
    table = TableSchema(TableId(bench.schema, "t"), columns, key) if columns else people(bench.schema)
    bench.create_table(table)
    return table, Pipe(bench, config=config)


@pytest.mark.parametrize("sql", STATEMENTS)
def test_h2_runs_the_kept_statements(sql: str, oracle_twin: OracleTwin) -> None:
    """On a table without rows, so that each type may become each other."""
    oracle_twin.run("CREATE SCHEMA IF NOT EXISTS S", T)
    try:
        oracle_twin.run(*followed(sql, rows=False) or ["SELECT 1 FROM dual"])
    finally:
        oracle_twin.run("DROP SCHEMA S CASCADE")


def test_a_proposed_table_is_made(oracle_twin: OracleTwin) -> None:
    try:
        oracle_twin.run("CREATE SCHEMA IF NOT EXISTS S", proposed())
        [row] = oracle_twin.run("SELECT COUNT(*) FROM S.T")
        assert row == (0,)
    finally:
        oracle_twin.run("DROP SCHEMA S CASCADE")


def test_check_proposes_what_it_then_finds(bench: OracleBench) -> None:
    table = people(bench.schema)
    target = bench.target()
    assert isinstance(target, OracleTarget)
    plan = planned_table(table)
    [missing, *lossy] = target.compare([plan])
    assert (missing.severity, missing.absent, missing.table) == ("error", True, table.table)
    assert [one.column for one in lossy] == ["EMAIL"]
    target.apply(missing.statement)
    left = target.compare([plan])
    assert [(one.severity, one.column) for one in left] == [("warning", "EMAIL")], left
    assert "options.empty_strings" in left[0].why


@pytest.mark.parametrize(("policy", "stored"), [("null", None), ("blank", " ")])
def test_empty_texts_by_policy(bench: OracleBench, policy: str, stored: str | None) -> None:
    table, pipe = made(bench, options={"empty_strings": policy})
    pipe.deliver((table, [new(1, "", 1), new(2, "a", 2)]))
    assert pipe.state(table) == Counter([(1, stored, 1), (2, "a", 2)])
    comparer = pipe.target.comparer()  # type: ignore[attr-defined]
    rows = _table(table, [new(1, "", 1), new(2, "a", 2)], 0)
    found = comparer.compare(planned_table(table), rows, None)
    assert not found.different
    assert not found.missing


def test_empty_texts_are_refused_one_by_one(bench: OracleBench) -> None:
    table, pipe = made(bench, options={"empty_strings": "refuse"}, on_error="dead_letter")
    kept: list[Any] = []
    rows = [new(n, "" if n in {2, 3} else "a", n) for n in range(6)]
    pipe.write(pipe.given([(table, rows)]), rejected=lambda part, name, rejected: kept.extend(rejected))
    assert [one.row["id"].to_pylist() for one in kept] == [[2], [3]]
    assert "options.empty_strings" in kept[0].reason
    assert {row[0] for row in pipe.state(table)} == {0, 1, 4, 5}


ODD: dict[str, tuple[Column, str, Any]] = {
    "scale": (
        Column("v", ColumnKind.DECIMAL, "decimal(9,3)", precision=9, scale=3), "NUMBER(9,2)", Decimal("1.234")
    ),
    "digits": (
        Column("v", ColumnKind.DECIMAL, "decimal(60,0)", precision=60), "NUMBER", Decimal(10**40 + 1)
    ),
    "range": (Column("v", ColumnKind.INT, "int"), "NUMBER(3)", 1000),
    "micros": (Column("v", ColumnKind.DATETIME, "datetime(6)", fsp=6), "TIMESTAMP(3)", dt.datetime(2024, 1, 1, 0, 0, 0, 1)),
    "time": (Column("v", ColumnKind.TIME, "time(6)", fsp=6), "INTERVAL DAY(2) TO SECOND(0)", dt.timedelta(microseconds=1)),
    "double": (Column("v", ColumnKind.DOUBLE, "double"), "BINARY_FLOAT", 0.1),
    "long": (Column("v", ColumnKind.VARCHAR, "varchar(9)", length=9, charset="utf8mb4"), "VARCHAR2(3 CHAR)", "abcd"),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_values_that_oracle_would_round_or_cut_are_refused(bench: OracleBench, name: str) -> None:
    column, declared, value = ODD[name]
    table, pipe = made(bench, Column("id", ColumnKind.INT, "int", nullable=False), column)
    bench.twin.run("DROP TABLE SHOP.T", f"CREATE TABLE SHOP.T (ID NUMBER(10) PRIMARY KEY, V {declared})")
    with pytest.raises(LoadError):
        pipe.deliver((table, [new(1, value)]))
    assert not pipe.state(table)


def test_long_values_and_all_bytes(bench: OracleBench) -> None:
    columns = (
        Column("id", ColumnKind.INT, "int", nullable=False),
        Column("t", ColumnKind.TEXT, "longtext", charset="utf8mb4"),
        Column("b", ColumnKind.BLOB, "longblob"),
        Column("j", ColumnKind.JSON, "json"),
        Column("m", ColumnKind.BIT, "bit(64)", length=64),
    )
    table, pipe = made(bench, *columns)
    rows = [(1, "ä" * 5000, bytes(range(256)) * 40, '{"a": 1}', 2**64 - 1), (2, "x", b"y", None, 0)]
    pipe.deliver((table, [new(*row) for row in rows]))
    pipe.deliver((table, [changed(rows[1], (2, "é" * 40_000, b"\0" * 9000, "[]", 1))]))
    found = {int(row[0]): row[1:] for row in pipe.state(table)}
    assert found[1] == (rows[0][1], rows[0][2], rows[0][3], Decimal(2**64 - 1))
    assert found[2] == ("é" * 40_000, b"\0" * 9000, "[]", Decimal(1))


COMPOSITE = (
    Column("a", ColumnKind.INT, "int", nullable=False),
    Column("b", ColumnKind.VARCHAR, "varchar(20)", nullable=False, length=20, charset="utf8mb4"),
    Column("v", ColumnKind.INT, "int"),
)


def test_keys_of_several_columns(bench: OracleBench) -> None:
    table, pipe = made(bench, *COMPOSITE, key=("a", "b"))
    pipe.deliver((table, [new(1, "x", 1), new(1, "X", 2), new(2, "x", 3)]))
    pipe.deliver((table, [gone(1, "x", 1), gone(2, "x", 3), new(2, "y", 4), changed((1, "X", 2), (1, "X", 5))]))
    assert pipe.state(table) == Counter([(1, "X", 5), (2, "y", 4)])
    comparer = pipe.target.comparer()  # type: ignore[attr-defined]
    plan = planned_table(table)
    assert comparer.not_listed(plan) == ""
    [keys] = list(comparer.keys(plan))
    assert sorted(keys.to_pylist(), key=str) == [{"a": 1, "b": "X"}, {"a": 2, "b": "y"}]
    listed = pa.table({"a": pa.array([1, 2, 2], pa.int32()), "b": ["X", "y", "z"]})
    found = comparer.compare(plan, _table(table, [new(1, "X", 5)], 0), KeyRange(("a", "b"), listed=listed))
    assert [tuple(row.values()) for row in found.extra.to_pylist()] == [(2, "y")]


def test_ranges_of_keys_of_several_columns(bench: OracleBench) -> None:
    columns = (COMPOSITE[0], replace(COMPOSITE[0], name="b"), COMPOSITE[2])
    table, pipe = made(bench, *columns, key=("a", "b"))
    every = [(a, b, 0) for a in range(4) for b in range(4)]
    pipe.deliver((table, [new(*row) for row in every]))
    plan = planned_table(table)
    key = replace(plan, columns=plan.columns[:2], dialect=UNKNOWN)

    def at(*values: int) -> pa.Table:
        return pa.table({name: pa.array([v], pa.int32()) for name, v in zip("ab", values, strict=False)})

    kept = pa.table(
        {"a": pa.array([1], pa.int32()), "b": pa.array([3], pa.int32())},
        schema=pa.schema([table.field(column) for column in columns[:2]]),
    )
    stretch = KeyRange(("a", "b"), after=at(1, 1), upto=at(2, 2), kept=kept)
    pipe.write(pipe.given([], reconcile=(StoredRange(key, stretch),)))
    gone_keys = {(1, 2), (2, 0), (2, 1), (2, 2)}
    assert {row[:2] for row in pipe.state(table)} == {row[:2] for row in every} - gone_keys


def test_a_part_of_a_row_that_takes_another_key_has_the_rest_from_the_target(bench: OracleBench) -> None:
    table, pipe = made(bench)
    pipe.deliver((table, [new(1, "a", 1), new(2, "b", 2)]))
    batch = pipe.given([(table, [changed((1, None, None), (3, None, 7))])])
    [one] = batch.tables
    [file] = one.files
    assert isinstance(file, RowsInMemory)
    moved = file.data.set_column(file.data.schema.get_field_index("_op"), "_op", pa.array(["i"]))
    known = pa.array([bytes([0b101, 0b001])], pa.binary())
    partly = replace(one, files=(RowsInMemory(file.table, moved.append_column("_present", known)),))
    pipe.write(replace(batch, tables=(partly,)))
    assert pipe.state(table) == Counter([(3, "a", 7), (2, "b", 2)])


def test_what_oracle_would_do_besides_is_refused(bench: OracleBench) -> None:
    table, pipe = made(bench)
    bench.twin.run("CREATE TABLE SHOP.CHILD (ID NUMBER(10) PRIMARY KEY, P NUMBER(10) REFERENCES SHOP.PEOPLE (ID))")
    try:
        with pytest.raises(MappingError, match="foreign keys") as caught:
            pipe.deliver((table, [new(1, "a", 1)]))
        assert "DISABLE CONSTRAINT" in str(caught.value.hint)
    finally:
        bench.twin.run("DROP TABLE SHOP.CHILD")
    with pytest.raises(ConfigError, match="foreign_keys: ordered is not offered"):
        bench.target(options={"foreign_keys": "ordered"})


def test_a_table_without_a_key_has_no_lob(bench: OracleBench) -> None:
    table, pipe = made(bench, Column("t", ColumnKind.TEXT, "text", charset="utf8mb4"), key=())
    with pytest.raises(MappingError, match="CLOB, which Oracle does not compare"):
        pipe.deliver((table, [new("a")]))


def test_a_name_that_is_too_long_is_refused(bench: OracleBench) -> None:
    table = people(bench.schema, "n" * 129)
    with pytest.raises(MappingError, match="129 bytes, and Oracle takes 128"):
        Pipe(bench).deliver((table, [new(1, "a", 1)]))


def test_a_statement_in_doubt_is_run_again(bench: OracleBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process dies after Oracle committed the definition, before it noted that."""
    table, pipe = made(bench)
    bench.create_table(replace(table, table=TableId(bench.schema, "t")))
    pipe.deliver((table, [new(1, "a", 1)]))
    before, after = _definition(bench.schema, "t"), _definition(bench.schema, "t", "more", "other")
    sql = "ALTER TABLE `shop`.`t` ADD COLUMN more INT, ADD COLUMN other INT"
    change = _schema_change(pipe, 0, sql, (ChangeKind.ADD_COLUMN,), before, after)
    batch = pipe.given([], schema_changes=(change,))
    runs = OracleTarget._run

    def dies(self: OracleTarget, session: Any, change: Any, statement: str, *, doubtful: bool) -> None:
        runs(self, session, change, statement, doubtful=doubtful)
        raise RuntimeError("killed")

    monkeypatch.setattr(OracleTarget, "_run", dies)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            pipe.write(batch)
        pipe.epoch += 1
    monkeypatch.setattr(OracleTarget, "_run", runs)
    pipe.write(batch)
    assert bench.columns(TableId(bench.schema, "t")) == ["id", "email", "points", "more", "other"]
    assert pipe.held == batch.number


def test_names_as_the_source_spells_them(bench: OracleBench) -> None:
    table = people(bench.schema)
    bench.twin.run(
        'CREATE SCHEMA IF NOT EXISTS "shop"',
        'CREATE TABLE "shop"."people" ("id" NUMBER(10) PRIMARY KEY, "email" VARCHAR2(80 CHAR), "points" NUMBER(10))',
    )
    try:
        pipe = Pipe(bench, config={"options": {"identifiers": "quoted"}})
        pipe.deliver((table, [new(1, "a", 1)]))
        assert bench.twin.run('SELECT "id", "email" FROM "shop"."people"') == [(Decimal(1), "a")]
    finally:
        bench.twin.run('DROP SCHEMA "shop" CASCADE')


@pytest.mark.full  # a batch has some forty statements; the contract suite crashes after every call
@pytest.mark.parametrize("done", [False, True], ids=["before it", "after it"])
def test_a_connection_that_is_lost_at_any_statement(bench: OracleBench, done: bool) -> None:
    """Rows and checkpoint commit together: a table without a key would have rows twice, or none, if they did not."""
    keyed, heap = people(bench.schema), people(bench.schema, "heap", key=False)
    for number in range(1, 200):
        for table in (keyed, heap):
            bench.create_table(table)
        pipe = Pipe(bench, name=f"copy{number}")
        pipe.deliver((keyed, [new(1, "a", 1), new(2, "b", 2)]), (heap, [new(1, "x", 1)] * 3))
        batch = pipe.given([
            (keyed, [changed((1, "a", 1), (1, "z", 9)), gone(2, "b", 2), new(3, "c", 3)]),
            (heap, [gone(1, "x", 1), new(2, "y", None), new(2, "y", None)]),
        ])
        bench.twin.lost_at, bench.twin.done = number, done
        lost = False
        try:
            pipe.write(batch)
        except TargetUnavailable:
            lost = True
        left, bench.twin.lost_at = bench.twin.lost_at, 0
        bench.kill()
        pipe.epoch += 1
        if pipe.take_over() < batch.number:
            pipe.write(batch)
        assert pipe.held == batch.number
        assert pipe.state(keyed) == Counter([(1, "z", 9), (3, "c", 3)]), number
        assert pipe.state(heap) == Counter({(1, "x", 1): 2, (2, "y", None): 2}), number
        if left:
            assert number > 20, f"a batch of two tables took {number} statements"
            return
        assert lost or done, number
    raise AssertionError("a batch of two tables takes more than 200 statements")
