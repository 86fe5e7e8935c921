"""Boundary values of every type, as SQL expressions, and the tables that have each of them."""

from __future__ import annotations

from typing import Any

from tests.support.pipelines.case import Case

BOTH: dict[str, tuple[str, list[str]]] = {
    "ti": ("tinyint", ["-128", "127", "0"]),
    "ub": ("bigint unsigned", ["18446744073709551615", "9223372036854775808", "0"]),
    "de": ("decimal(65,30)", ["-" + "9" * 35 + "." + "9" * 30, "1e-30", "0"]),
    "fl": ("float", ["3.4028234663852886e38", "-3.4028234663852886e38", "1.401298464324817e-45",
        "1.1754943508222875e-38", "-0e0", "0e0", "0.1", "16777217"]),
    "f93": ("float(9,3)", ["1e30", "-1e30", "999999.999", "0.001", "0.1"]),
    "f50": ("float(5,0)", ["1e30", "99999", "0.5"]),
    "f30": ("float(24,1)", ["1e38", "-1e38", "0.1"]),
    "fun": ("float unsigned", ["3.4028234663852886e38", "0", "-0e0"]),
    "db": ("double", ["1.7976931348623157e308", "-1.7976931348623157e308", "5e-324", "2.2250738585072014e-308", "-0e0",
        "0e0", "0.1", "1e23"]),
    "d205": ("double(20,5)", ["1e300", "-1e300", "123456789012345.12345", "0.00001", "999999999999999.99999"]),
    "d5330": ("double(53,30)", ["1e300", "1.000000000000000000000000000001", "0.1"]),
    "b1": ("bit(1)", ["b'1'", "b'0'"]),
    "b64": ("bit(64)", [f"b'{'1' * 64}'", "b'0'", "b'1" + "0" * 63 + "'"]),
    "da": ("date", ["'0000-00-00'", "'2024-00-15'", "'2024-02-31'", "'9999-12-31'", "'0001-01-01'"]),
    "dt": ("datetime(6)", ["'0000-00-00 00:00:00'", "'9999-12-31 23:59:59.999999'", "'2024-00-10 01:02:03.5'",
        "'0001-01-01 00:00:00.000001'"]),
    "ts": ("timestamp(3) null", ["'0000-00-00 00:00:00'", "'1970-01-01 00:00:01.001'", "'2038-01-19 03:14:07.999'"]),
    "tm": ("time(6)", ["'-838:59:59'", "'838:59:58.999999'", "'-00:00:00.000001'", "'-00:00:01.5'", "'00:00:00'"]),
    "yr": ("year", ["'0000'", "1901", "2155", "2000"]),
    "vc": ("varchar(30)", [r"'a  '", "''", r"'\\\'\"\n\t\0\Z%_'", "'😀é'", "'a'", "'A'", "'null'", r"'\\N'"]),
    "ch": ("char(9)", ["'a  '", "''", "' a'"]),
    "gbk": ("varchar(20) character set gbk", ["'中文\\\\'", "'y'", "'~'"]),
    "sj": ("varchar(20) character set sjis", ["'漢あ\\\\'", "'ｱ'"]),
    "u16": ("varchar(20) character set utf16", ["'😀x'", "''"]),
    "lt": ("longtext character set latin1", ["'é€'", "''"]),
    "bn": ("binary(4)", ["x'61'", "x''", "x'61000020'"]),
    "vb": ("varbinary(20)", ["x''", "x'00FF275C0A'", "x'20'", "x'2000'"]),
    "bl": ("longblob", ["x''", "x'0000FF27'", "REPEAT(x'00275C', 3000)"]),
    "en": ("enum('a','A','2','1','') character set utf8mb4 collate utf8mb4_general_ci", ["1", "2", "3", "4", "5", "0"]),
    "en2": ("enum('x','it''s','b\\\\c','é')", ["1", "2", "3", "4", "0", "NULL"]),
    "eng": ("enum('y','~') character set gbk", ["1", "2"]),
    "eu": ("enum('é','É','e') character set utf16", ["1", "2", "3"]),
    "se": ("set('b','B','é','') character set utf8mb4 collate utf8mb4_general_ci", ["1", "2", "3", "7", "4", "0"]),
    "s64": ("set(" + ",".join(f"'m{i}'" for i in range(64)) + ")",
        ["18446744073709551615", "9223372036854775808", "0", "1"]),
    "ge": ("geometry", ["ST_GeomFromText('POINT(1 2)', 4326)", "ST_GeomFromText('LINESTRING(0 0,1 1)')"]),
}  # fmt: skip
MYSQL: dict[str, tuple[str, list[str]]] = {
    "js": ("json", [
        "JSON_ARRAY(CAST('123456789012345678901234567890.12' AS DECIMAL(40,2)))",
        "JSON_ARRAY(CAST('1' AS DECIMAL(5,2)))", "JSON_ARRAY(1)",
        "JSON_ARRAY('x', CAST(1.5 AS DECIMAL(5,2)))", "CAST(CAST('-0.10' AS DECIMAL(4,2)) AS JSON)",
        "CAST('null' AS JSON)", "'\"1.00\"'",
        r"""JSON_OBJECT('a"b', JSON_ARRAY(1.50, JSON_OBJECT('', 1.0e0, 'k', -2.50)), '😀 $.x', CAST(12345678901234567890123 AS DECIMAL(30)), 'e\\n"', 7.00, '1.0', '1.00')""",
        "JSON_ARRAY(18446744073709551615, -9223372036854775808, 1.7976931348623157e308, 5e-324, -0e0, 1e15, 1e16, "
        "0.1, 100.0)",
        "JSON_ARRAY(CAST('2020-01-02' AS DATE), CAST('-01:02:03.4' AS TIME(1)), CAST('2020-01-02 03:04:05' AS "
        "DATETIME), x'00ff', b'101', TRUE, NULL)",
        "JSON_ARRAY(CAST('0.000000000000000000000000000001' AS DECIMAL(65,30)), CAST('99999999999999999999' AS "
        "DECIMAL(20)), CAST('0.00' AS DECIMAL(3,2)))",
    ]),
    "ve": ("vector(3)", ["STRING_TO_VECTOR('[1,2,3]')", "STRING_TO_VECTOR('[0]')", "x'FFFF7F7F'"]),
}  # fmt: skip
MARIADB: dict[str, tuple[str, list[str]]] = {
    "js": ("json", ["'{\"b\":1.00,  \"a\":[1.50]}'", "'[1]'"]),
    "uu": ("uuid", ["'00000000-0000-0000-0000-000000000000'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'"]),
    "i6": ("inet6", ["'::'", "'::ffff:1.2.3.4'"]),
}  # fmt: skip

LENIENT = "SET sql_mode = 'ALLOW_INVALID_DATES,NO_AUTO_VALUE_ON_ZERO', time_zone = '+00:00'"

TABLES = {"k": " PRIMARY KEY", "heap": "", "v": " PRIMARY KEY"}
Types = dict[str, tuple[str, list[str]]]


def leniently(server: Any, schema: str, *statements: str) -> None:
    """Run in a session that takes every value and every definition."""
    with server.connect(schema) as connection, connection.cursor() as cursor:
        for statement in (LENIENT, *statements):
            cursor.execute(statement)


def insert(made: Case, types: Types) -> int:
    """Every value in all three tables at the source. Returns the number of rows in each."""
    rows = max(len(values) for _, values in types.values()) + 1
    lines = []
    for row in range(rows):
        cells = [values[row % len(values)] if row < rows - 1 else "NULL" for _, values in types.values()]
        lines.append(f"({row + 1}, 0, {', '.join(cells)})")
    leniently(made.source, made.schema, *(f"INSERT INTO {table} VALUES {', '.join(lines)}" for table in TABLES))
    return rows
