"""Every column type reaches the target bit for bit: CHECKSUM TABLE of hand-written SQL and of what Sluice loads is the
same.
"""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sluice.errors import LoadError
from sluice.model.column_types import ColumnKind
from sluice.model.tables import Column, TableId, TableSchema
from sluice.model.temporal import special_date, special_timestamp
from tests.support.tables.batches import Delivery, checksum, segment_rows

K = ColumnKind
POINT = "E610000001010000000000000000000040000000000000F03F"

# name, column, [(SQL literal, stored Python value or number)]
COLUMNS: list[tuple[Column, list[tuple[str, Any]]]] = [
    (Column("t", K.TINYINT, "tinyint"), [("-128", -128), ("127", 127), ("0", 0)]),
    (Column("ut", K.TINYINT, "tinyint unsigned", unsigned=True), [("255", 255)]),
    (Column("s", K.SMALLINT, "smallint"), [("-32768", -32768)]),
    (Column("m", K.MEDIUMINT, "mediumint"), [("-8388608", -8388608)]),
    (Column("um", K.MEDIUMINT, "mediumint unsigned", unsigned=True), [("16777215", 16777215)]),
    (Column("i", K.INT, "int unsigned", unsigned=True), [("4294967295", 4294967295)]),
    (Column("b", K.BIGINT, "bigint"), [("-9223372036854775808", -(2**63)), ("9223372036854775807", 2**63 - 1)]),
    (Column("ub", K.BIGINT, "bigint unsigned", unsigned=True), [("18446744073709551615", 2**64 - 1)]),
    (
        Column("d", K.DECIMAL, "decimal(65,30)", precision=65, scale=30),
        [
            ("-99999999999999999999999999999999999.999999999999999999999999999999",
                Decimal("-" + "9" * 35 + "." + "9" * 30)),
            ("0.000000000000000000000000000001", Decimal("1e-30")),
        ],
    ),
    (Column("d2", K.DECIMAL, "decimal(10,2)", precision=10, scale=2),
        [("-0.01", Decimal("-0.01")), ("12345678.90", Decimal("12345678.9"))]),
    (Column("f", K.FLOAT, "float"), [("0.1", 0.1), ("3.40282e38", 3.40282e38), ("1e-38", 1e-38),
        ("16777216", 16777216.0), ("-0e0", -0.0)]),
    (Column("g", K.DOUBLE, "double"), [("0.1", 0.1), ("1.7976931348623157e308", 1.7976931348623157e308),
        ("5e-324", 5e-324), ("123456789.123456789", 123456789.123456789)]),
    (Column("bi", K.BIT, "bit(1)", length=1), [("b'1'", 1), ("b'0'", 0)]),
    (Column("bi64", K.BIT, "bit(64)", length=64), [("b'" + "1" * 64 + "'", 2**64 - 1)]),
    (Column("da", K.DATE, "date"), [("'0001-01-01'", dt.date(1, 1, 1)), ("'9999-12-31'", dt.date(9999, 12, 31)),
        ("'0000-00-00'", special_date(0, 0, 0)), ("'2024-00-15'", special_date(2024, 0, 15)),
        ("'0000-05-01'", special_date(0, 5, 1)), ("'2024-02-31'", special_date(2024, 2, 31))]),
    (Column("dt", K.DATETIME, "datetime"), [("'1000-01-01 00:00:01'", dt.datetime(1000, 1, 1, 0, 0, 1)),
        ("'0000-00-00 00:00:00'", special_timestamp(0, 0, 0, 0))]),
    (Column("dt6", K.DATETIME, "datetime(6)", fsp=6), [("'2024-02-29 23:59:59.000001'",
        dt.datetime(2024, 2, 29, 23, 59, 59, 1)), ("'2024-00-10 01:02:03.5'",
        special_timestamp(2024, 0, 10, 3_723_500_000))]),
    (Column("ts", K.TIMESTAMP, "timestamp"), [("'1970-01-01 00:00:01'",
        dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)), ("'0000-00-00 00:00:00'", special_timestamp(0, 0, 0, 0))]),
    (Column("ts3", K.TIMESTAMP, "timestamp(3)", fsp=3), [("'2038-01-19 03:14:07.999'",
        dt.datetime(2038, 1, 19, 3, 14, 7, 999000, tzinfo=dt.UTC))]),
    (Column("ti", K.TIME, "time"), [("'-838:59:59'", -dt.timedelta(hours=838, minutes=59, seconds=59)),
        ("'00:00:00'", dt.timedelta())]),
    (Column("ti6", K.TIME, "time(6)", fsp=6), [("'-00:00:00.12'", -dt.timedelta(microseconds=120000)),
        ("'838:59:58.999999'", dt.timedelta(hours=838, minutes=59, seconds=58, microseconds=999999))]),
    (Column("y", K.YEAR, "year"), [("'0000'", 0), ("2000", 2000), ("1901", 1901), ("2155", 2155)]),
    (Column("c", K.CHAR, "char(5)", charset="utf8mb4"), [("'a  '", "a"), ("''", ""), ("'😀é'", "😀é")]),
    (Column("vc", K.VARCHAR, "varchar(20)", charset="utf8mb4"),
        [("'a  '", "a  "), (r"'\\\'\"\n\t\0\Z%_'", "\\'\"\n\t\0\x1a%_"), ("'`;-- /*'", "`;-- /*")]),
    (Column("l1", K.VARCHAR, "varchar(20)", charset="latin1"), [("'é€'", "é€")]),
    (Column("gbk", K.VARCHAR, "varchar(20)", charset="gbk"), [("'中文\\\\'", "中文\\")]),
    (Column("u16", K.VARCHAR, "varchar(20)", charset="utf16"), [("'😀x'", "😀x")]),
    (Column("tx", K.TEXT, "mediumtext", charset="utf8mb4"), [("REPEAT('xy', 70000)", "xy" * 70000)]),
    (Column("bn", K.BINARY, "binary(4)", length=4), [("X'61000000'", b"a\0\0\0"), ("X'00000000'", b"\0\0\0\0")]),
    (Column("vb", K.VARBINARY, "varbinary(20)"), [("X''", b""), ("X'00FF275C0A'", b"\x00\xff'\\\n")]),
    (Column("bl", K.BLOB, "longblob"), [("REPEAT(X'00FF', 70000)", b"\x00\xff" * 70000)]),
    (Column("e", K.ENUM, "enum('a','2','1')", labels=("a", "2", "1")), [("'1'", "1"), ("'2'", "2"), ("'a'", "a")]),
    (Column("se", K.SET, "set('x','y','z')", labels=("x", "y", "z")), [("''", ""), ("'x,z'", "x,z")]),
    (Column("j", K.JSON, "json"), [("'{\"b\": [1, 2.5, true, null], \"a\": \"é😀\\\\\"\\\\n\"}'",
        '{"a": "é😀\\"\\n", "b": [1, 2.5, true, null]}'), ("'null'", "null"), ("'\"x\"'", '"x"'),
        ("'12345678901234567890'", "12345678901234567890")]),
    (Column("p", K.GEOMETRY, "point"), [("ST_GeomFromText('POINT(1 2)', 4326)", bytes.fromhex(POINT))]),
]  # fmt: skip


def column_sql(column: Column) -> str:
    text = column.sql_type
    if column.charset:
        text += f" CHARACTER SET {column.charset}"
    if column.kind is K.TIMESTAMP:
        text += " NULL DEFAULT NULL"
    return f"`{column.name}` {text}"


def array(column: Column, values: list[Any]) -> pa.Array:
    """Stored values; numbers beside dates are those of dates that no calendar has."""
    kind = column.arrow_type
    if column.kind in {K.DATE, K.DATETIME, K.TIMESTAMP}:
        plain = pa.array([None if isinstance(v, int) else v for v in values], kind)
        width = pa.int32() if column.kind is K.DATE else pa.int64()
        numbers = plain.view(width).to_pylist()
        return pa.array([v if isinstance(v, int) else n for v, n in zip(values, numbers, strict=True)], width).view(
            kind
        )
    return pa.array(values, kind)


def every_type(
    server: Any, db: str, columns: list[tuple[Column, list[tuple[str, Any]]]]
) -> tuple[TableSchema, pa.Table]:
    """Make ``source`` by hand-written SQL and an empty ``copy``; returns the rows as capture would store them."""
    definition = ", ".join(column_sql(column) for column, _ in columns)
    count = max(len(values) for _, values in columns) + 1  # the last row is all NULL
    lines = []
    for row in range(count):
        cells = [values[row % len(values)][0] if row < count - 1 else "NULL" for _, values in columns]
        lines.append(f"({row}, {', '.join(cells)})")
    with server.connect(db) as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = 'ALLOW_INVALID_DATES', time_zone = '+00:00'")
        for name in ("source", "copy"):
            cursor.execute(f"CREATE TABLE {name} (id INT PRIMARY KEY, {definition}) DEFAULT CHARSET utf8mb4")
        cursor.execute(f"INSERT INTO source VALUES {', '.join(lines)}")
        assert cursor.execute("SHOW WARNINGS") == 0, cursor.fetchall()
    schema = TableSchema(
        TableId(db, "copy"), (Column("id", K.INT, "int", nullable=False), *(c for c, _ in columns)), ("id",)
    )
    table = segment_rows(schema, [{"_op": "i", "id": row} for row in range(count)])
    for column, values in columns:
        stored = [values[row % len(values)][1] for row in range(count - 1)]
        index = table.schema.get_field_index(column.name)
        data = pa.concat_arrays([array(column, stored), pa.nulls(1, column.arrow_type)])
        table = table.set_column(index, table.schema.field(index), data)
    return schema, table


def differing(server: Any, db: str, columns: list[tuple[Column, Any]]) -> list[str]:
    """Names of the columns that differ, for a readable failure."""
    return [
        column.name
        for column, _ in columns
        if server.execute(f"SELECT COUNT(*) FROM {db}.source s JOIN {db}.copy c USING (id) WHERE NOT (HEX(s.`{column.name}`) <=> HEX(c.`{column.name}`))")[0][0]
    ]  # fmt: skip


@pytest.fixture(params=["upsert", "bulk"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways in which new rows may be written."""
    monkeypatch.setattr("sluice.targets.mysql.load_data.BULK_ROWS", 1 if request.param == "bulk" else 1 << 30)
    return str(request.param)


def test_every_type(tmp_path: Path, mysql_target: Any, fresh_schema: Any, way: str) -> None:
    db = fresh_schema(mysql_target)
    schema, table = every_type(mysql_target, db, COLUMNS)
    pipe = Delivery(tmp_path, mysql_target, target={"options": {"ack_schema": db}})
    pipe.deliver({schema: table})
    assert differing(mysql_target, db, COLUMNS) == []
    assert checksum(mysql_target, f"{db}.source") == checksum(mysql_target, f"{db}.copy")


def test_every_type_on_mariadb(tmp_path: Path, mariadb: Any, fresh_schema: Any, way: str) -> None:
    db = fresh_schema(mariadb)
    columns = [c for c in COLUMNS if c[0].kind not in {K.GEOMETRY, K.JSON}]
    schema, table = every_type(mariadb, db, columns)
    pipe = Delivery(tmp_path, mariadb, target={"options": {"ack_schema": db}})
    pipe.deliver({schema: table})
    assert differing(mariadb, db, columns) == []
    assert checksum(mariadb, f"{db}.source") == checksum(mariadb, f"{db}.copy")


@pytest.mark.promise("A29")
@pytest.mark.parametrize(("count", "loads", "inserts"), [(3_000, True, 0), (500, False, 2)])
def test_a_run_of_new_rows_is_one_bulk_statement(
    tmp_path: Path, mysql_target: Any, fresh_schema: Any, count: int, loads: bool, inserts: int
) -> None:
    """The server counts: LOAD DATA from `BULK_ROWS` on, and below it INSERT statements with many rows each."""
    db = fresh_schema(mysql_target)
    mysql_target.execute(f"CREATE TABLE {db}.t (id INT PRIMARY KEY, v VARCHAR(9))")
    schema = TableSchema(
        TableId(db, "t"), (Column("id", K.INT, "int"), Column("v", K.VARCHAR, "varchar(9)", charset="utf8mb4")), ("id",)
    )
    pipe = Delivery(tmp_path, mysql_target, target={"options": {"ack_schema": db}})
    pipe.deliver({schema: [{"_op": "i", "id": 0, "v": "first"}]})  # creates what a target has of its own
    before = statements(mysql_target)
    pipe.deliver({schema: [{"_op": "i", "id": number, "v": "x"} for number in range(1, count + 1)]})
    after = statements(mysql_target)
    assert mysql_target.execute(f"SELECT COUNT(*) FROM {db}.t") == [(count + 1,)]
    assert (after["Com_load"] > before["Com_load"]) is loads
    assert after["Com_insert"] - before["Com_insert"] <= inserts + 3  # and those of the checkpoint


def statements(server: Any) -> dict[str, int]:
    """Return how many statements of each kind the server has executed."""
    return {name: int(value) for name, value in server.execute("SHOW GLOBAL STATUS LIKE 'Com\\_%'")}


def test_bulk_never_cuts_a_value(
    tmp_path: Path, mysql_target: Any, fresh_schema: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.targets.mysql.load_data.BULK_ROWS", 1)
    db = fresh_schema(mysql_target)
    mysql_target.execute(f"CREATE TABLE {db}.t (id INT PRIMARY KEY, v VARCHAR(3))")
    schema = TableSchema(
        TableId(db, "t"), (Column("id", K.INT, "int"), Column("v", K.VARCHAR, "varchar(9)", charset="utf8mb4")), ("id",)
    )
    pipe = Delivery(tmp_path, mysql_target, target={"options": {"ack_schema": db}})
    with pytest.raises(LoadError, match=r"Data (too long|truncated) for column 'v'"):
        pipe.deliver({schema: [{"_op": "i", "id": 1, "v": "abcd"}]})
    assert mysql_target.execute(f"SELECT * FROM {db}.t") == []


def test_bulk_leaves_children_alone(
    tmp_path: Path, mysql_target: Any, fresh_schema: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repeat replaces the parent; its children stay, as foreign keys are not checked."""
    monkeypatch.setattr("sluice.targets.mysql.load_data.BULK_ROWS", 1)
    db = fresh_schema(mysql_target)
    mysql_target.execute(
        f"CREATE TABLE {db}.t (id INT PRIMARY KEY, v INT)",
        f"CREATE TABLE {db}.child (id INT PRIMARY KEY, t INT, FOREIGN KEY (t) REFERENCES {db}.t(id) ON DELETE CASCADE)",
    )
    schema = TableSchema(TableId(db, "t"), (Column("id", K.INT, "int"), Column("v", K.INT, "int")), ("id",))
    pipe = Delivery(tmp_path, mysql_target, target={"options": {"ack_schema": db}})
    pipe.deliver({schema: [{"_op": "i", "id": 1, "v": 1}]})
    mysql_target.execute(f"INSERT INTO {db}.child VALUES (1, 1)")
    pipe.deliver({schema: [{"_op": "i", "id": 1, "v": 2}]})
    assert mysql_target.execute(f"SELECT v FROM {db}.t") == [(2,)]
    assert mysql_target.execute(f"SELECT * FROM {db}.child") == [(1, 1)]


def test_enum_error_value(tmp_path: Path, mysql_target: Any, fresh_schema: Any) -> None:
    db = fresh_schema(mysql_target)
    with mysql_target.connect(db) as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = ''")
        for name in ("source", "copy"):
            cursor.execute(f"CREATE TABLE {name} (id INT PRIMARY KEY, e ENUM('a','b'))")
        cursor.execute("INSERT INTO source VALUES (1, 'a'), (2, 'nonsense'), (3, NULL)")
    column = Column("e", K.ENUM, "enum('a','b')", labels=("a", "b"))
    schema = TableSchema(TableId(db, "copy"), (Column("id", K.INT, "int"), column), ("id",))
    pipe = Delivery(tmp_path, mysql_target, target={"options": {"ack_schema": db}})
    pipe.deliver({schema: [{"_op": "i", "id": i, "e": e} for i, e in ((1, "a"), (2, ""), (3, None))]})
    assert checksum(mysql_target, f"{db}.source") == checksum(mysql_target, f"{db}.copy")
    assert mysql_target.execute(f"SELECT e + 0 FROM {db}.copy ORDER BY id") == [(1.0,), (0.0,), (None,)]


KEYS = [c for c in COLUMNS if c[0].kind not in {K.TEXT, K.BLOB, K.JSON, K.GEOMETRY}]


@pytest.mark.parametrize("column", KEYS, ids=lambda c: c[0].sql_type)
def test_every_type_as_a_key_is_updated_and_deleted(
    tmp_path: Path, mysql_target: Any, fresh_schema: Any, column: Any
) -> None:
    db = fresh_schema(mysql_target)
    key, values = column
    mysql_target.execute(
        f"CREATE TABLE {db}.t ({column_sql(key).replace(' NULL DEFAULT NULL', ' NOT NULL')} PRIMARY KEY, v INT)"
    )
    schema = TableSchema(TableId(db, "t"), (key, Column("v", K.INT, "int")), (key.name,))
    pipe = Delivery(tmp_path, mysql_target, target={"options": {"ack_schema": db}})
    stored = array(key, [value for _, value in values])

    def rows(op: str, v: int) -> pa.Table:
        table = segment_rows(schema, [{"_op": op, "v": v} for _ in values])
        return table.set_column(0, table.schema.field(0), stored)

    for v in (1, 2):
        pipe.deliver({schema: rows("i", v)})
        assert mysql_target.execute(f"SELECT v FROM {db}.t") == [(v,)] * len(values)
    pipe.deliver({schema: rows("d", 2)})
    assert mysql_target.execute(f"SELECT COUNT(*) FROM {db}.t") == [(0,)]


def test_every_type_without_a_key(tmp_path: Path, mysql_target: Any, fresh_schema: Any, way: str) -> None:
    """Rows of a keyless table are found by all of their values, whatever the types."""
    db = fresh_schema(mysql_target)
    schema, table = every_type(mysql_target, db, COLUMNS)
    mysql_target.execute(f"ALTER TABLE {db}.copy DROP PRIMARY KEY")
    pipe = Delivery(tmp_path, mysql_target, target={"options": {"ack_schema": db}})
    keyless = TableSchema(schema.table, schema.columns)
    bare = pa.table(table.columns, schema=keyless.arrow_schema)
    pipe.deliver({keyless: bare})
    assert checksum(mysql_target, f"{db}.source") == checksum(mysql_target, f"{db}.copy")
    index = bare.schema.get_field_index("_op")
    gone = bare.set_column(index, bare.schema.field(index), pa.array(["d"] * bare.num_rows))
    pipe.deliver({keyless: gone})
    assert mysql_target.execute(f"SELECT COUNT(*) FROM {db}.copy") == [(0,)]
