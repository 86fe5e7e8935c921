"""Whole documents, field by field and in order, as Debezium, Maxwell and canal publish them for the same changes.

The expected documents are those of the projects' own documentation and of their serializers; where we deviate,
``docs/formats.md`` says so.
"""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from sluice import __version__
from sluice.errors import DecodeError
from sluice.formats import FORMATS, Statement
from sluice.formats.canal import java_float
from sluice.formats.common import Raw, json_text
from sluice.formats.debezium import unscaled
from sluice.formats.wkt import wkt
from sluice.model.changes import Change
from sluice.model.definitions import ColumnDefinition, IndexDefinition, TableDefinition
from sluice.model.schema_changes import ChangeKind, TableChange
from sluice.model.tables import TableId
from tests.support.tables.product_changes import GTID, OLD, ROW, US, change, field


def documents(name: str, made: Change) -> list[dict[str, Any]]:
    return [json.loads(line, parse_float=Decimal) for line in FORMATS[name].row(made, "shop")]


def debezium(op: str, before: Any, after: Any, **source: Any) -> dict[str, Any]:
    return {
        "before": before,
        "after": after,
        "source": {
            "version": __version__, "connector": "mysql", "name": "shop", "ts_ms": 1589373560798, "snapshot": "false",
            "db": "inventory",
            "sequence": None, "ts_us": US, "ts_ns": US * 1000, "table": "products", "server_id": 223344, "gtid": GTID,
            "file": "mysql-bin.000003", "pos": 484, "row": 0, "thread": None, "query": None, **source,
        },
        "transaction": None,
        "op": op,
        "ts_ms": 1589373560798,
        "ts_us": US,
        "ts_ns": US * 1000,
    }  # fmt: skip


def maxwell(kind: str, data: Any, **more: Any) -> dict[str, Any]:
    head = {"database": "inventory", "table": "products", "type": kind, "ts": 1589373560, "xid": 3, "commit": True}
    return {**head, "position": "mysql-bin.000003:484", "gtid": GTID, "data": data, **more}


def canal(kind: str, data: Any, old: Any = None, **more: Any) -> dict[str, Any]:
    return {
        "data": [data],
        "database": "inventory",
        "es": 1589373560798,
        "gtid": GTID,
        "id": 9,
        "isDdl": False,
        "mysqlType": {"id": "int", "name": "varchar(255)", "description": "varchar(512)", "weight": "float"},
        "old": old,
        "pkNames": ["id"],
        "sql": "",
        "sqlType": {"id": 4, "name": 12, "description": 12, "weight": 7},
        "table": "products",
        "ts": 1589373560798,
        "type": kind,
        **more,
    }


SHOWN = {"id": 111, "name": "scooter", "description": "Big 2-wheel scooter", "weight": Decimal("5.18")}
WAS = {**SHOWN, "weight": Decimal("5.15")}
TEXTS = {"id": "111", "name": "scooter", "description": "Big 2-wheel scooter", "weight": "5.18"}
MOVED = {**ROW, "id": 112}

PROGRAMS = ["debezium-json", "maxwell-json", "canal-json"]

WHOLE = {
    "insert": (change("i", None, ROW), [debezium("c", None, SHOWN)], [maxwell("insert", SHOWN)],
        [canal("INSERT", TEXTS)]),
    "update": (
        change("u", OLD, ROW), [debezium("u", WAS, SHOWN)], [maxwell("update", SHOWN, old={"weight": Decimal("5.15")})],
        [canal("UPDATE", TEXTS, [{"weight": "5.15"}])],
    ),
    "delete": (
        change("d", OLD, None), [debezium("d", WAS, None)], [maxwell("delete", WAS)],
        [canal("DELETE", {**TEXTS, "weight": "5.15"})],
    ),
    "key change": (
        change("u", ROW, MOVED), [debezium("d", SHOWN, None), debezium("c", None, {**SHOWN, "id": 112})],
        [maxwell("update", {**SHOWN, "id": 112}, old={"id": 111})],
        [canal("UPDATE", {**TEXTS, "id": "112"}, [{"id": "111"}])],
    ),
    "nothing changed": (
        change("u", ROW, dict(ROW)), [debezium("u", SHOWN, SHOWN)], [maxwell("update", SHOWN)],
        [canal("UPDATE", TEXTS)],
    ),
    "row read by a dump": (
        change("r", None, ROW, gtid=None), [debezium("r", None, SHOWN, snapshot="true", gtid=None)],
        [{"database": "inventory", "table": "products", "type": "bootstrap-insert", "ts": 1589373560,
            "position": "mysql-bin.000003:484",
          "data": SHOWN}],
        [canal("INSERT", TEXTS, gtid="")],
    ),
    "minimal image": (
        change("u", {"id": 111}, {"weight": ROW["weight"]}),
        [debezium("u", {"id": 111}, {"id": 111, "weight": Decimal("5.18")})],
        [maxwell("update", {"id": 111, "weight": Decimal("5.18")})],
        [canal("UPDATE", {"id": "111", "weight": "5.18"}, mysqlType={"id": "int", "weight": "float"},
            sqlType={"id": 4, "weight": 7})],
    ),
    "minimal image, deleted": (
        change("d", {"id": 111}, None), [debezium("d", {"id": 111}, None)], [maxwell("delete", {"id": 111})],
        [canal("DELETE", {"id": "111"}, mysqlType={"id": "int"}, sqlType={"id": 4})],
    ),
    "minimal image, key change": (
        change("u", {"id": 111}, {"id": 112}), [debezium("d", {"id": 111}, None), debezium("c", None, {"id": 112})],
        [maxwell("update", {"id": 112}, old={"id": 111})],
        [canal("UPDATE", {"id": "112"}, [{"id": "111"}], mysqlType={"id": "int"}, sqlType={"id": 4})],
    ),
    "to and from NULL": (
        change("u", {**ROW, "description": None}, {**ROW, "weight": None}),
        [debezium("u", {**SHOWN, "description": None}, {**SHOWN, "weight": None})],
        [maxwell("update", {**SHOWN, "weight": None}, old={"description": None, "weight": Decimal("5.18")})],
        [canal("UPDATE", {**TEXTS, "weight": None}, [{"description": None, "weight": "5.18"}])],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WHOLE)
@pytest.mark.parametrize("number", [0, 1, 2], ids=PROGRAMS)
def test_a_change_as_a_whole(case, number) -> None:
    made, *expected = WHOLE[case]
    found = documents(PROGRAMS[number], made)
    assert found == expected[number]
    for one, other in zip(found, expected[number], strict=True):
        assert [list(one), *([list(one["source"])] if number == 0 else [])] == [
            list(other),
            *([list(other["source"])] if number == 0 else []),
        ]


def test_a_row_inside_of_a_transaction() -> None:
    (document,) = documents("maxwell-json", change("i", None, ROW, last_in_txn=False))
    assert list(document)[4:6] == ["xid", "xoffset"]
    assert document["xoffset"] == 2


def stored(srid: int, wkb: str) -> bytes:
    return srid.to_bytes(4, "little") + bytes.fromhex(wkb)


POINT = "0101000000000000000000f03f0000000000000040"
DAY, MOMENT = dt.date(2024, 2, 29), dt.datetime(2018, 6, 20, 13, 37, 3, 120_000)
VALUES: list[tuple[str, pa.DataType, Any, Any, Any, str, int]] = [
    # type, Arrow type, value, Debezium, Maxwell, canal, java.sql.Types
    ("tinyint(1)", pa.int8(), 1, 1, 1, "1", -6),
    ("tinyint unsigned", pa.uint8(), 127, 127, 127, "127", -6),
    ("tinyint unsigned", pa.uint8(), 200, 200, 200, "200", 5),
    ("smallint unsigned", pa.uint16(), 40000, 40000, 40000, "40000", 4),
    ("mediumint unsigned", pa.uint32(), 2**24 - 1, 2**24 - 1, 2**24 - 1, "16777215", 4),
    ("int unsigned", pa.uint32(), 2**32 - 1, 2**32 - 1, 2**32 - 1, "4294967295", -5),
    ("bigint unsigned", pa.uint64(), 2**64 - 1, 2**64 - 1, 2**64 - 1, "18446744073709551615", 3),
    ("bigint", pa.int64(), -(2**63), -(2**63), -(2**63), "-9223372036854775808", -5),
    ("decimal(5,2)", pa.decimal128(5, 2), Decimal("3.14"), "ATo=", Decimal("3.14"), "3.14", 3),
    ("decimal(5,2)", pa.decimal128(5, 2), Decimal("-1.28"), "gA==", Decimal("-1.28"), "-1.28", 3),
    ("decimal(40,38)", pa.decimal256(40, 38), Decimal("0E-38"), "AA==", Decimal("0." + "0" * 38), "0." + "0" * 38, 3),
    ("float", pa.float32(), 1.100000023841858, Decimal("1.1"), Decimal("1.1"), "1.1", 7),
    ("double", pa.float64(), 1e10, Decimal("10000000000.0"), Decimal("10000000000.0"), "1.0E10", 8),
    ("bit(1)", pa.uint64(), 1, True, 1, "1", -7),
    ("bit(10)", pa.uint64(), 0x201, "AQI=", 0x201, "513", -7),
    ("bit(64)", pa.uint64(), 2**64 - 1, "//////////8=", 2**64 - 1, "18446744073709551615", -7),
    ("date", pa.date32(), DAY, 19782, "2024-02-29", "2024-02-29", 91),
    ("datetime", pa.timestamp("us"), MOMENT.replace(microsecond=0), 1529501823000, "2018-06-20 13:37:03",
        "2018-06-20 13:37:03", 93),
    ("datetime(3)", pa.timestamp("us"), MOMENT, 1529501823120, "2018-06-20 13:37:03.120", "2018-06-20 13:37:03.120",
        93),
    ("datetime(6)", pa.timestamp("us"), MOMENT, 1529501823120000, "2018-06-20 13:37:03.120000",
        "2018-06-20 13:37:03.120000", 93),
    ("datetime(2)", pa.timestamp("us"), dt.datetime(1, 1, 1, 0, 0, 0, 10_000), -62135596799990,
        "0001-01-01 00:00:00.01", "0001-01-01 00:00:00.01", 93),
    ("timestamp", pa.timestamp("us", "UTC"), MOMENT.replace(microsecond=0), "2018-06-20T13:37:03Z",
        "2018-06-20 13:37:03", "2018-06-20 13:37:03", 93),
    ("timestamp(3)", pa.timestamp("us", "UTC"), MOMENT, "2018-06-20T13:37:03.120Z", "2018-06-20 13:37:03.120",
        "2018-06-20 13:37:03.120", 93),
    ("time(2)", pa.duration("us"), dt.timedelta(microseconds=-3020399_990_000), -3020399990000, "-838:59:59.99",
        "-838:59:59.99", 92),
    ("year", pa.uint16(), 2155, 2155, 2155, "2155", 12),
    ("year", pa.uint16(), 0, 0, 0, "0000", 12),
    ("char(3)", pa.string(), "é", "é", "é", "é", 1),
    ("longtext", pa.string(), 'a"\n\u2028\ue00012', 'a"\n\u2028\ue00012', 'a"\n\u2028\ue00012', 'a"\n\u2028\ue00012',
        2005),
    ("binary(3)", pa.binary(), b"\x00\xff\x00", "AP8A", "AP8A", "\x00ÿ\x00", 2004),
    ("mediumblob", pa.binary(), b"", "", "", "", 2004),
    ("enum('a','bé','')", pa.string(), "bé", "bé", "bé", "2", 4),
    ("enum('a','bé','')", pa.string(), "", "", "", "3", 4),
    ("enum('a','bé','')", pa.string(), "\x00", "", "", "0", 4),
    ("enum('a','it''s')", pa.string(), "", "", "", "0", 4),
    ("set('p','q','r')", pa.string(), "p,r", "p,r", ["p", "r"], "5", -7),
    ("set('p','q','r')", pa.string(), "", "", [], "0", -7),
    ("json", pa.string(), '{"a": 1.10, "b": [null]}', '{"a": 1.10, "b": [null]}', {"a": Decimal("1.10"), "b": [None]},
        '{"a": 1.10, "b": [null]}', 12),
    ("geometry", pa.binary(), stored(0, POINT), {"wkb": "AQEAAAAAAAAAAADwPwAAAAAAAABA", "srid": None}, "POINT (1 2)",
        stored(0, POINT).decode("latin-1"), 2004),
    ("point", pa.binary(), stored(4326, POINT), {"x": Decimal("1.0"), "y": Decimal("2.0"),
        "wkb": "AQEAAAAAAAAAAADwPwAAAAAAAABA", "srid": 4326}, "POINT (1 2)", stored(4326, POINT).decode("latin-1"),
        2004),
    ("vector(2)", pa.binary(), b"\x00\x00\x80?\xcd\xcc\x8c?", [Decimal("1.0"), Decimal("1.1")], "AACAP83MjD8=",
        "\x00\x00\x80?ÍÌ\x8c?", 2004),
    ("date", pa.date32(), "2024-00-15", None, "2024-00-15", "2024-00-15", 91),
    ("datetime", pa.timestamp("us"), "0000-00-00 00:00:00.000000", None, "0000-00-00 00:00:00", "0000-00-00 00:00:00",
        93),
    ("datetime(3)", pa.timestamp("us"), "2024-05-00 01:02:03.456000", None, "2024-05-00 01:02:03.456",
        "2024-05-00 01:02:03.456", 93),
    ("timestamp(1)", pa.timestamp("us", "UTC"), "0000-00-00 00:00:00.000000", None, "0000-00-00 00:00:00.0",
        "0000-00-00 00:00:00.0", 93),
]  # fmt: skip


@pytest.mark.parametrize(
    ("sql_type", "arrow", "value", "debezium_value", "maxwell_value", "canal_value", "java"), VALUES
)
def test_a_value_of_each_type(sql_type, arrow, value, debezium_value, maxwell_value, canal_value, java) -> None:
    made = change("i", None, {"c": value}, (field("c", sql_type, arrow),), ())
    assert documents("debezium-json", made)[0]["after"] == {"c": debezium_value}
    assert documents("maxwell-json", made)[0]["data"] == {"c": maxwell_value}
    (message,) = documents("canal-json", made)
    assert message["data"] == [{"c": canal_value}]
    assert (message["mysqlType"], message["sqlType"]) == ({"c": sql_type}, {"c": java})


@pytest.mark.parametrize(
    ("sql_type", "arrow", "epoch"),
    [("date", pa.date32(), 0), ("datetime(6)", pa.timestamp("us"), 0),
        ("timestamp", pa.timestamp("us", "UTC"), "1970-01-01T00:00:00Z")],
)  # fmt: skip
def test_a_zero_date_that_must_not_be_null_is_the_epoch_to_debezium(sql_type, arrow, epoch) -> None:
    fields = (field("c", sql_type, arrow, required=True),)
    made = change("i", None, {"c": "0000-00-00 00:00:00.000000"}, fields, ())
    assert documents("debezium-json", made)[0]["after"] == {"c": epoch}


@pytest.mark.parametrize(
    ("sql_type", "java"),
    [("text", -4), ("tinytext", -3), ("set('a')", -2), ("json", 1111), ("point", -2), ("binary(2)", -2),
        ("varbinary(2)", -3),
     ("blob", -4), ("int", 4), ("bigint unsigned", -5), ("enum('a')", 4)],
)  # fmt: skip
def test_null_has_types_of_its_own_in_canal(sql_type, java) -> None:
    made = change("i", None, {"c": None}, (field("c", sql_type, pa.string()),), ())
    (message,) = documents("canal-json", made)
    assert (message["data"], message["sqlType"], message["pkNames"]) == ([{"c": None}], {"c": java}, None)


@pytest.mark.parametrize(
    ("number", "text"),
    [(0.0, "0.0"), (-0.0, "-0.0"), (100.0, "100.0"), (1e7, "1.0E7"), (12345678.9, "1.23456789E7"),
        (9999999.0, "9999999.0"),
     (0.001, "0.001"), (0.00012, "1.2E-4"), (-5e-324, "-5.0E-324"), (1.7976931348623157e308, "1.7976931348623157E308")],
)  # fmt: skip
def test_numbers_as_java_prints_them(number, text) -> None:
    assert java_float(number) == text


@pytest.mark.parametrize("number", [0, 1, -1, 127, 128, -128, -129, 255, 2**63, -(2**63), 10**65 - 1, 1 - 10**65])
def test_unscaled_digits_read_back(number) -> None:
    data = unscaled(Decimal(number).scaleb(0) if abs(number) < 10**28 else Decimal(str(number)))
    assert int.from_bytes(data, "big", signed=True) == number
    assert len(data) == 1 or (data[0], data[1] >> 7) not in {(0, 0), (255, 1)}  # no byte too many


@pytest.mark.parametrize(
    ("wkb", "text"),
    [
        (
            "010200000002000000000000000000f03f00000000000000400000000000000840cdcccccccccc1040",
            "LINESTRING (1 2, 3 4.2)",
        ),
        ("01030000000100000001000000000000000000f03f0000000000000040", "POLYGON ((1 2))"),
        ("010400000001000000" + POINT, "MULTIPOINT ((1 2))"),
        ("010700000001000000" + POINT, "GEOMETRYCOLLECTION (POINT (1 2))"),
        ("010700000000000000", "GEOMETRYCOLLECTION EMPTY"),
        ("0000000001bff00000000000004341c37937e08000", "POINT (-1 10000000000000000)"),
    ],
)
def test_geometries_as_text(wkb, text) -> None:
    assert wkt(stored(0, wkb)) == text


@pytest.mark.parametrize("wkb", ["", "01", "0101000000", POINT + "00", "0109000000"])
def test_bytes_that_are_no_geometry(wkb) -> None:
    with pytest.raises(DecodeError, match="geometry"):
        wkt(stored(0, wkb))


def test_json_keeps_every_digit_and_every_character() -> None:
    digits = "12345678901234567890.123456789012345678901234567890"
    value = {
        "d": Decimal(digits),
        "e": Decimal("1E-10"),
        "r": Raw('{"x": 1.0}'),
        'q"': ["\ue000", "\n", True, None, {}, []],
    }
    text = json_text(value)
    assert text == (
        '{"d":' + digits + ',"e":0.0000000001,"r":{"x": 1.0},"q\\"":["\ue000","\\n",true,null,{},[]]}'
    )  # fmt: skip
    with pytest.raises(TypeError):
        json_text({"x": object()})


CUSTOMERS = TableDefinition(
    TableId("inventory", "customers"),
    (
        ColumnDefinition("id", "int unsigned", nullable=False, auto_increment=True),
        ColumnDefinition(
            "name", "varchar(255)", charset="utf8mb4", collation="utf8mb4_bin", default="'x'", comment="full"
        ),
        ColumnDefinition("paid", "decimal(10,2)"),
        ColumnDefinition("kind", "enum('a','b')", labels=("a", "b"), charset="utf8mb4"),
        ColumnDefinition("seen", "timestamp(6)"),
    ),
    (IndexDefinition("PRIMARY", (("id", 0),), unique=True),),
    charset="utf8mb4",
)
MAXWELL_DEFINITION = {
    "database": "inventory",
    "charset": "utf8mb4",
    "table": "customers",
    "columns": [
        {"type": "int", "name": "id", "signed": False},
        {"type": "varchar", "name": "name", "charset": "utf8mb4"},
        {"type": "decimal", "name": "paid"},
        {"type": "enum", "name": "kind", "enum-values": ["a", "b"]},
        {"type": "timestamp", "name": "seen", "column-length": 6},
    ],
    "primary-key": ["id"],
}


def column(position: int, name: str, jdbc: int, type_name: str, **more: Any) -> dict[str, Any]:
    return {
        "name": name, "jdbcType": jdbc, "nativeType": None, "typeName": type_name, "typeExpression": type_name,
        "charsetName": None,
        "length": None, "scale": None, "position": position, "optional": True, "autoIncremented": False,
        "generated": False,
        "comment": None, "defaultValueExpression": None, "enumValues": [], **more,
    }  # fmt: skip


DEBEZIUM_TABLE = {
    "defaultCharsetName": "utf8mb4",
    "primaryKeyColumnNames": ["id"],
    "columns": [
        column(1, "id", 4, "INT UNSIGNED", optional=False, autoIncremented=True, generated=True),
        column(
            2, "name", 12, "VARCHAR", charsetName="utf8mb4", length=255, comment="full", defaultValueExpression="'x'"
        ),
        column(3, "paid", 3, "DECIMAL", length=10, scale=2),
        column(4, "kind", 1, "ENUM", charsetName="utf8mb4", length=1, enumValues=["'a'", "'b'"]),
        column(5, "seen", 2014, "TIMESTAMP", length=6),
    ],
    "comment": None,
}
STATEMENTS = {
    "create": ((ChangeKind.CREATE_TABLE,), None, CUSTOMERS, None, "CREATE", "CREATE", "table-create"),
    "alter": ((ChangeKind.ADD_COLUMN,), CUSTOMERS, CUSTOMERS, None, "ALTER", "ALTER", "table-alter"),
    "rename": ((ChangeKind.RENAME_TABLE,), CUSTOMERS, CUSTOMERS, TableId("inventory", "buyers"), "ALTER", "RENAME",
        "table-alter"),
    "drop": ((ChangeKind.DROP_TABLE,), CUSTOMERS, None, None, "DROP", "ERASE", "table-drop"),
    "truncate": ((ChangeKind.TRUNCATE_TABLE,), CUSTOMERS, CUSTOMERS, None, "ALTER", "TRUNCATE", None),
}  # fmt: skip


@pytest.mark.parametrize("case", STATEMENTS)
def test_a_statement_as_a_whole(case) -> None:
    kinds, before, after, renamed, debezium_type, canal_type, maxwell_type = STATEMENTS[case]
    table = TableId("inventory", "customers")
    effect = TableChange(table, kinds, before, after, (), renamed)
    made = Statement("mysql-bin.000003", 484, GTID, US, "inventory", "the SQL", (effect,), table)
    read = {name: [json.loads(line) for line in chosen.statement(made, "shop")] for name, chosen in FORMATS.items()}
    names = '"inventory"."customers"' + (',"inventory"."buyers"' if renamed else "")
    source = debezium("c", None, None, table="customers", server_id=0)["source"]
    assert read["debezium-json"] == [
        {
            "source": source,
            "ts_ms": 1589373560798,
            "databaseName": "inventory",
            "schemaName": None,
            "ddl": "the SQL",
            "tableChanges": [{"type": debezium_type, "id": names, "table": DEBEZIUM_TABLE if after else None}],
        }
    ]
    assert read["canal-json"] == [{
        "data": None, "database": "inventory", "es": 1589373560798, "gtid": GTID, "id": 0, "isDdl": True,
        "mysqlType": None, "old": None,
        "pkNames": None, "sql": "the SQL", "sqlType": None, "table": "customers", "ts": 1589373560798,
        "type": canal_type,
    }]  # fmt: skip
    expected: dict[str, Any] = {"type": maxwell_type, "database": "inventory", "table": "customers"}
    if maxwell_type == "table-alter":
        expected["old"] = MAXWELL_DEFINITION
    if maxwell_type in {"table-alter", "table-create"}:
        expected["def"] = MAXWELL_DEFINITION
    expected |= {"ts": 1589373560000, "sql": "the SQL", "position": "mysql-bin.000003:484", "gtid": GTID}
    assert read["maxwell-json"] == ([expected] if maxwell_type else [])
