"""Tables of ClickHouse's engine: refused rows, every type, removed keys, definitions, views, what `sluice check`
says.
"""

from __future__ import annotations

import datetime as dt
import re
from collections import Counter
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from devstack.clickhouse import ClickHouseServer
from sluice.errors import ConfigError, LoadError, MappingError, TargetUnavailable
from sluice.model.column_types import ColumnKind
from sluice.model.schema_changes import ChangeKind
from sluice.model.tables import Column, TableId, TableSchema
from sluice.targets.clickhouse.client import connected
from sluice.targets.clickhouse.values import ALL_YEARS, FEW_YEARS
from sluice.targets.clickhouse.writer import years_of
from sluice.targets.port import comparer_of
from sluice.targets.rows_in_memory import planned_table
from sluice.testing.targets import Pipe, _definition, _schema_change, _table, changed, gone, new, people
from tests.support.benches.by_key import (
    a_pipeline_that_begins_anew_is_newer,
    listed_keys_and_whole_tables_are_removed,
    prepared,
    way_to_forget_another_pipeline,
)
from tests.support.benches.clickhouse_bench import ClickHouseBench

K = ColumnKind


def made(
    server: ClickHouseServer, options: dict[str, Any] | None = None, table: TableSchema | None = None, **config: Any
) -> tuple[ClickHouseBench, TableSchema, Pipe]:
    bench = ClickHouseBench(server, options=options)
    return bench, *prepared(bench, table, **config)


def test_rows_that_the_server_refuses_are_left_out_one_by_one(clickhouse: ClickHouseServer) -> None:
    """A constraint of the table refuses whole inserts: the rows are found by halves, and a refused row keeps its old
    state.
    """
    _, table, pipe = made(clickhouse, on_error="dead_letter")
    pipe.deliver((table, [new(n, "a", n) for n in range(20)]))
    kept: list[Any] = []
    ops = [
        changed((n, "a", n), (n + 100 if n == 7 else n, "x" * 100 if n in {3, 7, 19} else "b", n)) for n in range(19)
    ]
    pipe.write(
        pipe.given([(table, [*ops, gone(19, "a", 19)])]), rejected=lambda part, name, rejected: kept.extend(rejected)
    )
    assert sorted(one.row["id"].to_pylist()[0] for one in kept) == [3, 107]
    assert {one.where for one in kept} == {"469"}
    assert pipe.state(table) == Counter((n, "a" if n in {3, 7} else "b", n) for n in range(19))


_ROW = (
    (Column("id", K.INT, "int", nullable=False), 1),
    (Column("tiny", K.TINYINT, "tinyint unsigned", unsigned=True), 255),
    (Column("medium", K.MEDIUMINT, "mediumint"), -(2**23)),
    (Column("u64", K.BIGINT, "bigint unsigned", unsigned=True), 2**64 - 1),
    (Column("y", K.YEAR, "year"), 2155),
    (Column("bits", K.BIT, "bit(33)", length=33), 2**33 - 1),
    (Column("dec", K.DECIMAL, "decimal(65,30)", precision=65, scale=30), Decimal(f"-{'9' * 35}.{'9' * 30}")),
    (Column("f", K.FLOAT, "float"), 0.10000000149011612),
    (Column("d", K.DOUBLE, "double"), -0.0),
    (Column("day", K.DATE, "date"), dt.date(9999, 12, 31)),
    (Column("at", K.DATETIME, "datetime(6)", fsp=6), dt.datetime(1000, 1, 1, 0, 0, 0, 1)),
    (Column("ts", K.TIMESTAMP, "timestamp(3)", fsp=3), dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)),
    (Column("span", K.TIME, "time(6)", fsp=6), -dt.timedelta(hours=838, minutes=59, seconds=59)),
    (Column("c", K.CHAR, "char(5)", length=5, charset="utf8mb4"), "ä😀"),
    (Column("txt", K.TEXT, "text", charset="utf8mb4"), "it's \\ \x00\n"),
    (Column("e", K.ENUM, "enum('a','b')", labels=("a", "b"), charset="utf8mb4"), "b"),
    (Column("s", K.SET, "set('a','b')", labels=("a", "b"), charset="utf8mb4"), "a,b"),
    (Column("j", K.JSON, "json"), '{"b": 1, "a": [1.50, null]}'),
    (Column("bin", K.BINARY, "binary(3)", length=3), b"\x00\xff\x00"),
    (Column("blob", K.BLOB, "blob"), b""),
    (Column("geo", K.GEOMETRY, "point", shape="point"), bytes(25)),
    (Column("v", K.VECTOR, "vector(1)", length=1), b"\x00\x00\x80?"),
    (Column("u", K.UUID, "uuid"), "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    (Column("i4", K.INET4, "inet4"), "192.0.2.1"),
    (Column("i6", K.INET6, "inet6"), "2001:db8::1"),
)  # fmt: skip
"""A column of each kind, with a value at an edge."""


def every_type() -> tuple[TableSchema, tuple[Any, ...]]:
    assert {column.kind for column, _ in _ROW} >= set(ColumnKind) - {K.SMALLINT, K.VARCHAR, K.VARBINARY}
    return TableSchema(TableId("s", "types"), tuple(column for column, _ in _ROW), ("id",)), tuple(
        value for _, value in _ROW
    )


@pytest.mark.parametrize("enums", ["text", "enum"])
def test_values_of_every_type_arrive_and_are_verified(clickhouse: ClickHouseServer, enums: str) -> None:
    schema, row = every_type()
    _, table, pipe = made(clickhouse, {"enums": enums}, schema)
    nothing = (2, *(None for _ in row[1:]))
    pipe.deliver((table, [new(*row), new(*nothing)]))
    without_zone = tuple(value.replace(tzinfo=None) if isinstance(value, dt.datetime) else value for value in row)
    assert pipe.state(table) == Counter([without_zone, nothing])
    comparer = comparer_of(pipe.target)
    assert comparer is not None
    found = comparer.compare(planned_table(table), _table(table, [new(*row), new(*nothing)], 0), None, values=True)
    assert (found.missing, found.different) == ((), ())
    other = (1, *(None for _ in row[1:]))
    found = comparer.compare(planned_table(table), _table(table, [new(*other)], 0), None)
    assert [len(one.columns) for one in found.different] == [len(row) - 1]


def test_types_of_the_options(clickhouse: ClickHouseServer) -> None:
    """JSON and addresses get types of the server's own; a type that cannot hold the values is refused before the
    first row.
    """
    schema, row = every_type()
    given = {
        "j": "JSON",
        "u": "UUID",
        "i4": "IPv4",
        "i6": "IPv6",
        "day": "String",
        "at": "String",
        "span": "String",
        "txt": "LowCardinality(Nullable(String))",
    }
    options = {"types": {f"SCHEMA.types.{name}": declared for name, declared in given.items()}}
    bench, table, pipe = made(clickhouse, options, schema)
    pipe.deliver((table, [new(*row)]))
    [found] = bench.select("j.a, toString(u), toString(i4), toString(i6), day, at, span", table.table)
    assert found[1:] == [
        row[22],
        "192.0.2.1",
        "2001:db8::1",
        "9999-12-31",
        "1000-01-01 00:00:00.000001",
        "-838:59:59.000000",
    ]
    comparer = comparer_of(pipe.target)
    assert comparer is not None
    told = comparer.compare(planned_table(table), _table(table, [new(*row)], 0), None, values=True)
    assert not told.different
    schema_of = bench.target().schema()
    assert schema_of is not None
    said = {one.column: one.why for one in schema_of.compare([planned_table(table)]) if one.severity == "warning"}
    assert "the order and the repetition of its names" in said["j"]
    bench.options["types"] = {f"{bench.schema}.narrow.u64": "Int32"}
    narrow = replace(table, table=TableId(bench.schema, "narrow"))
    why = [
        one.why
        for one in schema_of.__class__(bench.target().place).compare([planned_table(narrow)])
        if one.column == "u64"
    ]  # type: ignore[attr-defined]
    assert why == ["options.types makes it Int32, which cannot hold values of bigint unsigned"]


def test_dates_that_no_column_holds(clickhouse: ClickHouseServer) -> None:
    """They are refused row by row, or become NULL; in a column of the type String they are there as the source's
    text.
    """
    columns = (
        Column("id", K.INT, "int", nullable=False),
        Column("day", K.DATE, "date"),
        Column("kept", K.DATE, "date"),
    )
    bench, table, pipe = made(
        clickhouse,
        {"types": {"SCHEMA.days.kept": "String"}},
        TableSchema(TableId("s", "days"), columns, ("id",)),
        on_error="dead_letter",
    )
    batch = pipe.given([(table, [new(1, dt.date(2024, 1, 1), None), new(2, dt.date(2024, 1, 1), dt.date(2024, 1, 1))])])
    [one] = batch.tables
    [file] = one.files
    from sluice.model.temporal import special_date

    odd = pa.array([special_date(0, 0, 0), None], pa.int32()).view(pa.date32())
    data = file.data  # type: ignore[attr-defined]
    zero = replace(file, data=data.set_column(1, data.schema.field(1), odd).set_column(2, data.schema.field(2), odd))  # type: ignore[type-var]
    batch = replace(batch, tables=(replace(one, files=(zero,)),))
    kept: list[Any] = []
    pipe.write(batch, rejected=lambda part, name, rejected: kept.extend(rejected))
    assert [one.reason for one in kept] == ["column day: Nullable(Date32) cannot hold this date (options.unfit_dates)"]
    bench.options["unfit_dates"] = "null"
    pipe.epoch, pipe.batch = 2, 1
    pipe.checkpoints.rewind(replace(pipe.checkpoints.read(), epoch=2, batch=0))  # type: ignore[type-var, arg-type]
    pipe.epoch = 3
    pipe.write(batch)
    assert sorted(bench.select("id, day, kept", table.table)) == [[1, None, "0000-00-00"], [2, None, None]]


def test_null_is_refused_where_the_table_takes_none(clickhouse: ClickHouseServer) -> None:
    """The server would write 0 or an empty text instead."""
    bench, table, pipe = made(clickhouse)
    clickhouse.query(
        f"ALTER TABLE `{bench.schema}`.people MODIFY COLUMN points Int32 DEFAULT 0 SETTINGS mutations_sync = 2"
    )
    with pytest.raises(
        LoadError, match=r"a row of .* is refused, key \(2,\): column points: NULL in a column that takes none"
    ):
        pipe.deliver((table, [new(1, "a", 1), new(2, "b", None)]))


def test_listed_keys_and_whole_tables_are_removed(clickhouse: ClickHouseServer) -> None:
    listed_keys_and_whole_tables_are_removed(*made(clickhouse)[1:])


def test_a_key_that_becomes_wider_or_gets_another_name(clickhouse: ClickHouseServer) -> None:
    """The server changes no key in place: the table is written anew, with its removed rows, and takes the place of
    the old one.
    """
    bench, table, pipe = made(clickhouse, {"view": "{table}_now"})
    pipe.deliver((table, [new(1, "a", 1), new(2, "b", 2)]))
    pipe.deliver((table, [gone(2, "b", 2)]))
    before = _definition(bench.schema, "people")
    wide = replace(before, columns=(replace(before.columns[0], type="bigint"), *before.columns[1:]))
    sql = f"ALTER TABLE `{bench.schema}`.`people` MODIFY id BIGINT NOT NULL"
    pipe.write(pipe.given([], schema_changes=(_schema_change(pipe, 0, sql, (ChangeKind.WIDEN_COLUMN,), before, wide),)))
    assert clickhouse.query(
        f"SELECT type FROM system.columns WHERE database = '{bench.schema}' AND table = 'people' AND name = 'id' FORMAT JSONCompactEachRow"
    ) == [["Int64"]]
    named = replace(
        wide,
        columns=(replace(wide.columns[0], name="number"), *wide.columns[1:]),
        indexes=(replace(wide.indexes[0], columns=(("number", 0),)),),
    )
    sql = f"ALTER TABLE `{bench.schema}`.`people` CHANGE id number BIGINT NOT NULL"
    pipe.write(pipe.given([], schema_changes=(_schema_change(pipe, 0, sql, (ChangeKind.RENAME_COLUMN,), wide, named),)))
    columns = (Column("number", K.BIGINT, "bigint", nullable=False), *table.columns[1:])
    moved = TableSchema(table.table, columns, ("number",))
    pipe.deliver((moved, [new(2**40, "c", 3)]))
    assert pipe.state(moved) == Counter([(1, "a", 1), (2**40, "c", 3)])
    view = clickhouse.query(f"SELECT * FROM `{bench.schema}`.people_now ORDER BY number FORMAT JSONCompactEachRow")
    assert [[int(row[0]), *row[1:]] for row in view] == [[1, "a", 1], [2**40, "c", 3]]
    left = clickhouse.query(
        f"SELECT name FROM system.tables WHERE database = '{bench.schema}' ORDER BY name FORMAT JSONCompactEachRow"
    )
    assert left == [["people"], ["people_now"]]


def test_a_table_of_changes_keeps_its_columns(clickhouse: ClickHouseServer) -> None:
    """Columns come and become wider; one with another name, and a table with another name, is another one."""
    bench = ClickHouseBench(clickhouse, "all")
    table = people(bench.schema)
    bench.create_table(table)
    pipe = Pipe(bench)
    pipe.deliver((table, [new(1, "a", 1)]))
    before = _definition(bench.schema, "people")
    extra = replace(before.columns[2], name="_op")  # a name that Sluice has in such a table
    wide = replace(before.columns[2], type="bigint")
    mail = replace(before.columns[1], name="mail")
    moved = TableId(bench.schema, "moved")
    steps = [
        (ChangeKind.ADD_COLUMN, "ADD COLUMN _op INT", (*before.columns, extra)),
        (ChangeKind.WIDEN_COLUMN, "MODIFY points BIGINT", (*before.columns[:2], wide, extra)),
        (ChangeKind.RENAME_COLUMN, "RENAME COLUMN email TO mail", (before.columns[0], mail, wide, extra)),
        (ChangeKind.DROP_COLUMN, "DROP COLUMN _op", (before.columns[0], mail, wide)),
    ]
    for kind, said, columns in steps:
        after = replace(before, columns=columns)
        sql = f"ALTER TABLE `{bench.schema}`.`people` {said}"
        change = _schema_change(pipe, 0, sql, (kind,), before, after)
        batch = pipe.given([], schema_changes=(change,))
        pipe.write(batch)
        before = after
    types = dict(
        clickhouse.query(
            f"SELECT name, type FROM system.columns WHERE database = '{bench.schema}' AND table = 'people' "
            "AND (name = '$_op' OR name NOT LIKE '\\_%') FORMAT JSONCompactEachRow"
        )
    )
    assert types == {
        "id": "Nullable(Int32)", "email": "Nullable(String)", "points": "Nullable(Int64)", "$_op": "Nullable(Int32)",
        "mail": "Nullable(String)",
    }  # fmt: skip
    sql = f"RENAME TABLE `{bench.schema}`.`people` TO `{bench.schema}`.`moved`"
    after = replace(before, table=moved)
    renamed = _schema_change(pipe, 0, sql, (ChangeKind.RENAME_TABLE,), before, after, moved)
    pipe.write(pipe.given([], schema_changes=(renamed,)))
    columns = (table.columns[0], replace(table.columns[1], name="mail"), replace(table.columns[2], sql_type="bigint"))
    pipe.deliver((TableSchema(moved, columns, ("id",)), [changed((1, "a", 1), (1, "b", 2**31 - 1))]))
    assert bench.select("id, mail, points, JSONExtractString(_before, 'mail')", moved, final=False) == [
        [1, "b", 2**31 - 1, "a"]
    ]
    assert bench.select("id, email, points, mail", table.table, final=False) == [[1, "a", 1, None]]


def test_labels_that_come_keep_the_numbers_of_those_that_are_there(clickhouse: ClickHouseServer) -> None:
    column = Column("e", K.ENUM, "enum('a','b')", labels=("a", "b"), charset="utf8mb4")
    key = Column("id", K.INT, "int", nullable=False)
    bench, table, pipe = made(clickhouse, {"enums": "enum"}, TableSchema(TableId("s", "t"), (key, column), ("id",)))
    pipe.deliver((table, [new(1, "a"), new(2, "b"), new(3, "")]))
    before = _definition(bench.schema, "t")
    enum = replace(before.columns[1], name="e", type="enum('a','b')", labels=("a", "b"))
    before = replace(before, columns=(before.columns[0], enum))
    longer = replace(enum, type="enum('new','a','b')", labels=("new", "a", "b"))
    sql = f"ALTER TABLE `{bench.schema}`.`t` MODIFY e ENUM('new','a','b')"
    change = _schema_change(
        pipe, 0, sql, (ChangeKind.CHANGE_COLUMN,), before, replace(before, columns=(before.columns[0], longer))
    )
    pipe.write(pipe.given([], schema_changes=(change,)))
    wide = replace(table, columns=(key, replace(column, labels=("new", "a", "b"))))
    pipe.deliver((wide, [new(4, "new")]))
    assert pipe.state(wide) == Counter([(1, "a"), (2, "b"), (3, ""), (4, "new")])
    assert sorted(bench.select("CAST(e, 'Nullable(Int8)')", table.table)) == [[0], [1], [2], [3]]


def test_a_table_that_is_copied_again_gets_the_new_types(clickhouse: ClickHouseServer) -> None:
    bench, table, pipe = made(clickhouse)
    pipe.deliver((table, [new(1, "a", 1), new(2, "b", 2)]))
    before = _definition(bench.schema, "people")
    columns = (*before.columns[:2], replace(before.columns[2], type="varchar(20)", charset="utf8mb4"))
    sql = f"ALTER TABLE `{bench.schema}`.`people` MODIFY points VARCHAR(20)"
    change = _schema_change(pipe, 0, sql, (ChangeKind.CHANGE_COLUMN,), before, replace(before, columns=columns))
    pipe.write(pipe.given([], schema_changes=(replace(change, copies=frozenset({before.table}), recopies=True),)))
    assert not pipe.state(table)
    text = replace(table, columns=(*table.columns[:2], Column("points", K.VARCHAR, "varchar(20)", charset="utf8mb4")))
    pipe.deliver((text, [new(1, "a", "one")]))
    assert pipe.state(text) == Counter([(1, "a", "one")])


def test_tombstones_are_removed_as_the_page_says(clickhouse: ClickHouseServer) -> None:
    bench, table, pipe = made(clickhouse)
    pipe.deliver((table, [new(1, "a", 1), new(2, "b", 2)]))
    pipe.deliver((table, [gone(1, "a", 1)]))
    page = (Path(__file__).parents[3] / "docs" / "clickhouse-target.md").read_text(encoding="utf-8")
    lines = re.findall(r"^(?:ALTER|OPTIMIZE) TABLE shop\.orders .*;$", page, re.MULTILINE)
    assert len(lines) == 2
    for line in lines:
        clickhouse.query(line.rstrip(";").replace("shop.orders", f"`{bench.schema}`.people"))
    count = f"SELECT toInt32(count()) FROM `{bench.schema}`.people FORMAT JSONCompactEachRow"
    assert clickhouse.query(count) == [[1]]
    pipe.deliver((table, [new(3, "c", 3)]))
    assert pipe.state(table) == Counter([(2, "b", 2), (3, "c", 3)])


def test_a_server_is_asked_for_its_range_of_dates_each_time(
    clickhouse: ClickHouseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upgraded server, or another one behind the same address, has another."""
    bench, _, _ = made(clickhouse)
    with connected(bench.target().place) as client:
        assert years_of(client) in {ALL_YEARS, FEW_YEARS}
        for answer, years in (("0", FEW_YEARS), ("1", ALL_YEARS)):
            ask = client.ask
            older = lambda doing, statement, ask=ask, answer=answer: ask(  # noqa: E731
                doing, f"SELECT {answer} FORMAT JSONCompactEachRow"
            )
            monkeypatch.setattr(client, "ask", older)
            assert years_of(client) == years
            monkeypatch.setattr(client, "ask", ask)


def test_what_check_says_of_tables(clickhouse: ClickHouseServer) -> None:
    bench, table, pipe = made(clickhouse, {"settings": {"fsync_after_insert": 0}, "view": "{table}_now"})
    wide = replace(table, columns=(*table.columns, Column("note", K.TEXT, "text")))
    schema = bench.target().schema()
    assert schema is not None
    [finding] = schema.compare([planned_table(wide)])
    assert (finding.severity, finding.column, finding.absent) == ("error", "note", True)
    assert finding.statement.startswith(
        f"ALTER TABLE `{bench.schema}`.`people` ADD COLUMN IF NOT EXISTS `note` Nullable(String)"
    )
    with pytest.raises(MappingError, match="has no column 'note'"):
        pipe.deliver((wide, [new(1, "a", 1, "n")]))
    pipe.batch -= 1
    schema.apply(finding.statement)
    found = {(one.severity, one.why.split(":")[0]) for one in schema.compare([planned_table(wide)])}
    assert ("warning", "fsync_after_insert is off") in found
    pipe.deliver((wide, [new(1, "a", 1, "n")]))
    assert clickhouse.query(f"SELECT note FROM `{bench.schema}`.people_now FORMAT JSONCompactEachRow") == [["n"]]
    with pytest.raises(LoadError, match="no statement that `sluice check` proposes"):
        schema.apply(f"DROP TABLE `{bench.schema}`.`people`")
    clickhouse.query(f"CREATE TABLE `{bench.schema}`.theirs (id Int32) ENGINE = MergeTree ORDER BY id")
    [taken] = schema.compare([planned_table(replace(table, table=TableId(bench.schema, "theirs")))])
    assert "has no column '_sluice_version'" in taken.why


def test_names_that_sluice_has_are_refused(clickhouse: ClickHouseServer) -> None:
    columns = (Column("id", K.INT, "int", nullable=False), Column("_sluice_version", K.INT, "int"))
    _, table, pipe = made(clickhouse, {}, TableSchema(TableId("s", "odd"), columns, ("id",)))
    with pytest.raises(MappingError, match="has the name of one that Sluice keeps"):
        pipe.deliver((table, [new(1, 1)]))
    dollars = (Column("id", K.INT, "int", nullable=False), Column("$cost", K.INT, "int"), Column("a`b'c", K.INT, "int"))
    _, named, other = made(clickhouse, {}, TableSchema(TableId("s", "odd`na'me"), dollars, ("id",)))
    other.deliver((named, [new(1, 2, 3)]))
    assert clickhouse.query(
        f"SELECT * EXCEPT (_sluice_version, _sluice_deleted, _sluice_writer) FROM `{named.table.schema}`.`odd\\`na'me` FINAL FORMAT JSONCompactEachRow"
    ) == [[1, 2, 3]]


def test_other_pipelines_at_the_server_are_named(clickhouse: ClickHouseServer) -> None:
    _, table, pipe = made(clickhouse)
    forget = way_to_forget_another_pipeline(table, pipe)
    pipe.deliver((table, [new(2, "a", 1)]))
    reconciler = pipe.target.reconciler()
    assert reconciler is not None
    assert [one.pipeline for one in reconciler.others()] == ["other"]
    clickhouse.query(forget)
    assert reconciler.others() == ()


def test_a_pipeline_that_begins_anew_is_newer_than_it_was(clickhouse: ClickHouseServer) -> None:
    a_pipeline_that_begins_anew_is_newer(*made(clickhouse)[1:])


def test_connections_are_checked(clickhouse: ClickHouseServer) -> None:
    bench = ClickHouseBench(clickhouse, options={"retry_for": "1s"})
    bench.connection = replace(bench.connection, password="wrong")
    with pytest.raises(ConfigError, match=r"error 516") as told:
        bench.target().checkpoints.take_over(1)  # type: ignore[union-attr]
    assert "wrong" not in str(told.value)
    bench.connection = replace(bench.connection, port=1)
    with pytest.raises(TargetUnavailable, match="does not answer"):
        bench.target().checkpoints.take_over(1)  # type: ignore[union-attr]
    bench.connection = replace(bench.connection, extra={"no_such_field": "x"})
    with pytest.raises(ConfigError, match="no_such_field"):
        bench.target()
