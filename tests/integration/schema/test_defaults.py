"""Columns that an inserted row leaves out (binlog_row_image=MINIMAL): the default in the segment is the one the server
stored.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pymysql
import pytest

from sluice.flows.capture.drain import drain
from sluice.flows.stored import manifest_of
from sluice.segments.reader import read_file
from tests.support.capture.capturing import printed, server_text, texts
from tests.support.pipelines.case import case
from tests.support.values.random_values import MODE, types_of

BIG = "12345678901234567890123456789012345678901234567890123456789012345"
WRITTEN: dict[str, list[str]] = {
    "decimal(30,28)": ["'1'", "1", "-1.5", "'0.1234567890123456789012345678'", "1e-28", "'1e1'",
        "1.23456789012345678901234567895"],
    "decimal(65,0)": [BIG, f"'{BIG}'", f"-{BIG}", "0", "'00012'", "1e64", "0.5", "-0.5", "1.5", "' 7'", "+7", ".9",
        "TRUE"],
    "decimal(65,30)": [f"{BIG[:35]}.{BIG[:30]}", f"'-{BIG[:35]}.{BIG[30:60]}'", "'.5'", "5.", "0x41"],
    "decimal(38,20)": [f"'{BIG[:18]}.{BIG[:20]}'", f"{BIG[:18]}.{BIG[:20]}"],
    "decimal(10,2)": ["1.005", "'2.675'", "-2.675", "99999999.99", "b'101'", "x'3132'"],
    "tinyint": ["'-128'", "127", "1.5", "'2.5'", "-0.5", "FALSE", "b'111'", "0x7F", "1e2"],
    "bigint unsigned": ["18446744073709551615", "'18446744073709551615'", "1e3", "0xFFFFFFFFFFFFFFFF"],
    "int(7) unsigned zerofill": ["42", "'0042'"],
    "float": ["1.1", "'3.4028234663852886e38'", "1e-30", "-0.0", "16777217", "1.23457", "'1.23456789'", "123456",
        "'3.40282e38'", "-0.000123457", "7654321"],
    "double": ["1.7976931348623157e308", "'5e-324'", "0.1", "-1e-7"],
    "bit(5)": ["b'10101'", "21", "0x15", "'A'"],
    "bit(64)": ["b'1111111111111111111111111111111111111111111111111111111111111111'", "18446744073709551615"],
    "date": ["'2024-02-29'", "20240229", "'0000-00-00'", "'2024-00-00'", "'99-1-2'", "'70-01-01'", "'2024/3/4'",
        "DATE '2020-01-01'", "'20240301'"],
    "datetime": ["'2024-02-29 01:02:03'", "20240229010203", "'0000-00-00 00:00:00'", "'2024-01-01'",
        "'2024-01-01T10:11:12'", "'2024-01-01 00:00:59.5'", "TIMESTAMP '2020-01-01 00:00:01'"],
    "datetime(3)": ["'2024-01-01 00:00:00.1239'", "'2024-12-31 23:59:59.9995'", "'0000-00-00 00:00:00'",
        "20240101101112.5"],
    "datetime(6)": ["'9999-12-31 23:59:59.999999'", "'1000-01-01 0:0:0.1'"],
    "time": ["'-838:59:59'", "'1:2'", "10203", "'11:12:13.6'", "'1 02:03:04'", "-123", "'12'", "TIME '01:02:03'", "0"],
    "time(2)": ["'-01:02:03.456'", "'00:00:00.999'", "1.5", "'10:11:12'"],
    "year": ["2024", "'24'", "0", "'0'", "70", "1901", "'2155'"],
    "char(10)": ["'ab'", "'it''s'", "5", "1.50", "''", "x'616263'", "b'1000001'", "'é😀'", "TRUE", "' pad '"],
    "varchar(40)": ["'a\\\\b'", "'a\\nb'", "-1.5e3", "_utf8mb4'ü'", "N'x'", "'a' 'b'", '"q"'],
    "binary(5)": ["'ab'", "x'00ff'", "0x0102", "''", "5"],
    "varbinary(9)": ["'ab'", "x'00ff'", "b'100000001'", "'é'", "12"],
    "enum('a','bé','','it''s','3')": ["'a'", "'bé'", "''", "'it''s'", "'A'", "'3'"],
    "set('p','q','ré','s')": ["''", "'p'", "'q,p'", "'ré,p,p'", "'P'"],
}  # fmt: skip
"""Literals that both servers may take as a default, by type; those that one refuses are left out there."""


ROUNDED = {
    ("datetime", "'2024-01-01 00:00:59.5'"), ("datetime(3)", "'2024-01-01 00:00:00.1239'"),
    ("datetime(3)", "'2024-12-31 23:59:59.9995'"),
    ("time", "'11:12:13.6'"), ("time(2)", "'-01:02:03.456'"), ("time(2)", "'00:00:00.999'"),
}  # fmt: skip
"""MySQL rounds these and MariaDB cuts them off: of a CREATE that was followed they are refused, with the way out."""
REFUSED = {1067, 1101, 1118, 1264, 1292, 1366, 4025}
"""The errors by which a server refuses a default."""


def declarations(dice: random.Random, types: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(type, what stands behind it): written and random defaults, and NOT NULL without one."""
    for sql_type in (
        "text",
        "mediumblob",
        *(("json",) if "vec" in types else ()),
    ):  # MariaDB's JSON refuses its own default
        yield sql_type, "NOT NULL"
    for group in (WRITTEN, made_up(dice, types)):
        for sql_type, literals in group.items():
            yield sql_type, "NOT NULL"
            for literal in literals:
                yield sql_type, f"{dice.choice(['', 'NOT NULL '])}DEFAULT {literal}"


def made_up(dice: random.Random, types: dict[str, Any]) -> dict[str, list[str]]:
    """Random literals of every type that may have a default."""
    found: dict[str, list[str]] = {}
    for sql_type, value in types.values():
        kind = sql_type.split("(")[0].split()[0]
        if "(300)" in sql_type or "(255)" in sql_type:
            continue  # a row has 64 KiB
        if kind.endswith(("text", "blob")) or kind in {"json", "geometry", "point", "vector", "timestamp"}:
            continue
        found.setdefault(sql_type, []).extend(value(dice) for _ in range(2))
    return found


@pytest.mark.parametrize("kind", ["mysql_source", "mariadb"])
def test_every_default_is_the_one_the_server_stored(
    kind, request, tmp_path, mysql_target, zookeeper, fresh_schema
) -> None:
    """Of tables that are there when the pipeline begins, and of tables whose CREATE it follows."""
    source = request.getfixturevalue(kind)
    schema = fresh_schema(source, mysql_target, options="CHARACTER SET utf8mb4")
    with (
        source.connect(schema) as connection,
        connection.cursor() as cursor,
        case(tmp_path, source, mysql_target, zookeeper, schema) as made,
    ):
        cursor.execute(MODE)
        columns = {
            f"c{i}": (sql_type, declared)
            for i, (sql_type, declared) in enumerate(
                (t, d)
                for t, d in declarations(random.Random(17), types_of(source))
                if told(t, d) and accepted(cursor, t, d)
            )
        }
        body = ", ".join(f"{name} {sql_type} {declared}" for name, (sql_type, declared) in columns.items())
        cursor.execute(f"CREATE TABLE known (id INT PRIMARY KEY, {body}) CHARACTER SET utf8mb4")
        cursor.execute("INSERT INTO known (id) VALUES (0)")
        drain(made.runtime(), claim="test:begin:1", idle_wait_s=0)  # the pipeline begins here
        rounded = {
            name
            for name, (t, d) in columns.items()
            if (t, d.removeprefix("NOT NULL ").removeprefix("DEFAULT ")) in ROUNDED
        }
        body = ", ".join(f"{name} {t} {'' if name in rounded else d}" for name, (t, d) in columns.items())
        cursor.execute(f"CREATE TABLE followed (id INT PRIMARY KEY, {body}) CHARACTER SET utf8mb4")
        drain(made.runtime(), claim="test:create:1", idle_wait_s=60)
        cursor.execute("SET SESSION binlog_row_image = 'MINIMAL'")
        said = {}
        for table in ("known", "followed"):
            cursor.execute(f"INSERT INTO {table} (id) VALUES (1)")
            listing = ", ".join(printed(name, sql_type) for name, (sql_type, _) in columns.items())
            cursor.execute(f"SELECT {listing} FROM {table} WHERE id = 1")
            said[table] = cursor.fetchone()
        drained = drain(made.runtime(), claim="test:rows:1", idle_wait_s=60)
        store = made.runtime().store
        manifest = manifest_of(made.runtime().state, store, drained.batch)
        found = {file.table: read_file(store, file) for file in manifest.files}
    assert len(columns) > 200
    assert found.keys() == {"known", "followed"}
    wrong = []
    for table, rows in sorted(found.items()):
        for (name, (sql_type, declared)), answer in zip(columns.items(), said[table], strict=True):
            (stored,) = texts(rows, name, sql_type)
            if stored != server_text(answer, sql_type):
                wrong.append(
                    f"{table}: {sql_type} {declared}: {stored!r}, the server {server_text(answer, sql_type)!r}"
                )
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong)


def told(sql_type: str, declared: str) -> bool:
    """False for what information_schema does not tell: see tests/unit/sources/mysql/test_defaults.py."""
    kind, literal = sql_type.split("(")[0], declared.rpartition("DEFAULT ")[2]
    if kind in {"binary", "varbinary"} and literal.startswith(("x'", "0x")):
        data = bytes.fromhex(literal[2:].rstrip("'"))
        return b"\0" not in data and max(data, default=0) < 0x80
    if (kind, literal) == ("decimal", "x'3132'"):
        return False
    return all(ord(char) < 0x10000 and char != "?" for char in literal)


def accepted(cursor: Any, sql_type: str, declared: str) -> bool:
    """True if the server takes the declaration."""
    try:
        cursor.execute(f"CREATE TEMPORARY TABLE probe (c {sql_type} {declared}) CHARACTER SET utf8mb4")
    except pymysql.Error as refused:
        if refused.args[0] not in REFUSED:
            raise
        return False
    cursor.execute("DROP TEMPORARY TABLE probe")
    return True
