"""A column that comes with a default: the value that its old rows have is the one the server gave them, or it is said
not to be known.
"""

from __future__ import annotations

import os
import random
import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pymysql
import pytest

from sluice.config.connections import parse_connection
from sluice.errors import LoadError, UnsupportedType
from sluice.model.schema_changes import StatementSession
from sluice.model.tables import TableId
from sluice.mysql.column_defaults import Statement, default_scalar
from sluice.mysql.ddl.catalog import Session
from sluice.mysql.type_loss import SqlType
from sluice.operations.verify.verify import VerifySpec, verify
from sluice.sources.mysql.catalog.information_schema import read_state
from sluice.sources.mysql.server.connection import open_connection, server_info
from tests.support.capture.capturing import printed, server_text, texts
from tests.support.pipelines.case import Case, case
from tests.support.readers.lakes import IcebergLake, Lake

ROUNDS = int(os.environ.get("SLUICE_TEST_DEFAULTS", "1"))
"""Rounds of random literals; a long run takes fifty."""

DATES = [
    "'2024-02-29'", "20240229", "240229", "'240229'", "'0000-00-00'", "'2024-00-00'", "'2024-02-00'", "'99-1-2'",
    "'70-01-01'", "'69-12-31'", "'2024/3/4'", "'2024.3.4'", "DATE'2020-01-01'", "'20240301'", "'1-2-3'",
    "'2024-02-31'", "'2024-12-31 23:59:59.4'", "'2024-12-31 23:59:59.5'", "'2024-12-31 23:59:59.4999999'",
    "'2024-02-28T23:59:59.9999996'", "20241231235959.7", "'2024-02-30 23:59:59.7'", "'2024-02-00 23:59:59.7'",
    "'9999-12-31 23:59:59.7'", "0",
]  # fmt: skip
TIMES = [
    "'2024-02-29 01:02:03'", "20240229010203", "240229010203", "'240229010203'", "'2402290102'",
    "'0000-00-00 00:00:00'", "'0000-00-00'", "'2024-01-01'", "'2024-01-01 10'", "'2024-01-01 10:11'",
    "'2024-01-01 1011'", "'2024-07-01T10:11:12'", "'2024-1-1 1:2:3'", "'2024-01-01 00:00:59.5'",
    "'2024-01-01 00:00:00.1239'", "'2024-12-31 23:59:59.9999995'", "'2024-12-31 23:59:59.4999995'",
    "TIMESTAMP'2020-01-01 00:00:01'", "TIMESTAMP'2020-01-01 00:00:01.56'", "20240101101112.5", "'2024.01.02 03.04.05'",
    "'2024-03-31 02:30:00'", "'2024-10-27 02:30:00'", "0", "CURRENT_TIMESTAMP", "NOW()",
]  # fmt: skip
TEXTS = [
    "'ab'", "'ab '", "'  ab  '", "'it''s'", "''", "5", "1.50", ".5", "5.", "+7", "007", "-0", "-0.0", "1e3", "-1.5e3",
    "1e-3", "x'616263'", "0x6162", "b'1000001'", "'é'", "'😀'", "TRUE", "FALSE", "_utf8mb4'ü'", "_latin1'u'",
    "_latin1 x'e9'", "_utf8mb4 x'c3a9'", "N'x'", "'a' 'b'", r"'a\\b'", r"'a\nb'", r"'a\%b'", "'12345678'",
    "'123456789  '", "'ab     '", "18446744073709551616",
]  # fmt: skip
NUMBERS = [
    "0", "1", "-1", "'1'", "' 7'", "'-0.5'", "1.5", "'1.5'", "2.5", "2.5e0", "'2.5e0'", "-0.5", "1e2", "b'101'",
    "0x15", "x'3132'", "TRUE", "FALSE", "+7", "007", ".9", "5.", "1.005", "'1.005'", "2.675", "1.239", "1.23456",
    "-1.23456", "'0.1'", "-0.0", "'-0.0'", "1e-7",
]  # fmt: skip


def _each(types: tuple[str, ...], literals: list[str]) -> dict[str, list[str]]:
    return dict.fromkeys(types, literals)


LITERALS: dict[str, list[str]] = {
    **_each(("tinyint(1)", "tinyint", "smallint", "mediumint", "int", "bigint", "tinyint unsigned", "smallint unsigned",
        "int unsigned zerofill", "decimal(5,2)", "decimal(10,0)", "decimal(38,10)", "decimal(65,30)", "float",
        "float(7,2)", "float(30)", "double", "double(9,3)", "double unsigned"), NUMBERS),
    "bigint unsigned": [*NUMBERS, "18446744073709551615", "'18446744073709551615'", "0xFFFFFFFFFFFFFFFF"],
    "decimal(38,20)": ["123456789012345678.12345678901234567890", "'-123456789012345678.123456789012345678905'"],
    "bit(1)": ["b'1'", "1", "0", "TRUE"],
    "bit(12)": ["b'10101'", "21", "0x15", "'A'", "'AB'", "x'0fff'", "1.5"],
    "bit(64)": ["b'1111111111111111111111111111111111111111111111111111111111111111'", "18446744073709551615"],
    "year": ["24", "'24'", "0", "'0'", "'00'", "'0000'", "70", "'70'", "69", "1901", "'2155'", "2024", "99", "'99'"],
    "date": [*DATES, "'2024-01-01 10:11:12'", "(CURRENT_DATE)", "(CURDATE())"],
    **_each(("datetime", "datetime(3)", "datetime(6)", "timestamp", "timestamp(2)", "timestamp(6)"), TIMES),
    **_each(("datetime(3)", "timestamp(3)"), [*TIMES, "CURRENT_TIMESTAMP(3)", "NOW(3)"]),
    **_each(("time", "time(2)", "time(6)"), ["'-838:59:59'", "'1:2'", "10203", "'11:12:13.6'", "'1 02:03:04'", "-123",
        "'12'", "TIME'01:02:03'", "TIME'01:02:03.456'", "0", "'-01:02:03.456'", "'00:00:00.999'", "1.5", "'12:99:00'",
        "'10:11:12.1234567'"]),
    **_each(("char(8)", "varchar(8)", "varchar(8) character set latin1", "varchar(8) character set utf8mb3",
        "char(8) collate utf8mb4_bin"), TEXTS),
    **_each(("binary(5)", "varbinary(8)"), ["'ab'", "'ab '", "x'00ff'", "0x0102", "''", "5", "1.50", "b'100000001'",
        "'é'", "_latin1'a'", "TRUE", "x'010203040506'"]),
    "enum('a','bé','','it''s','3')": ["'a'", "'A'", "'bé'", "'BÉ'", "'be'", "''", "'it''s'", "'3'", "3", "'a '",
        "_utf8mb4'a'", "x'61'"],
    "enum('a','b') collate utf8mb4_bin": ["'a'", "'A'"],
    "enum('x','X') collate utf8mb4_bin": ["'X'", "'x'"],
    "set('p','q','ré','s')": ["''", "'p'", "'q,p'", "'ré,p,p'", "'P'", "'RE,s'", "'q,p '", "3"],
    "text": ["('abc')", "'abc'", "('x ')"],
    "blob": ["('abc')", "'abc'", "(x'00ff')"],
    "json": ["(JSON_OBJECT())", "(JSON_ARRAY())", "('{}')", "('[1, 2]')", """('{"bb": 1, "a": [true, null, "x"]}')""",
        "('1.5')", "'{}'"],
    "uuid": ["'AABBCCDD-0011-2233-4455-66778899AABB'", "'aabbccdd00112233445566778899aabb'", "uuid()"],
    "inet4": ["'10.0.0.1'"],
    "inet6": ["'::1'", "'2001:DB8:0:0:0:0:0:1'", "'::ffff:1.2.3.4'", "'::1.2.3.4'"],
}  # fmt: skip
EXPRESSIONS = ["('1.5')", "(1.5)", "('24')", "(24)", "('B')", "(2)", "(1 + 1)", "('2024-01-01')", "(UUID())"]
STRICT = "STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO"
SESSIONS = [
    ("", "+00:00"),
    (STRICT, "+05:30"),
    ("ALLOW_INVALID_DATES", "-08:00"),
    ("NO_BACKSLASH_ESCAPES", "+00:00"),
    ("FRACTION", "SYSTEM"),
]
"""(sql_mode, time_zone); FRACTION: the mode in which the server treats fractions of a second as the other one does."""
REFUSED = {
    1067, 1101, 1118, 1264, 1292, 1366, 4025, 1064, 1406, 1265, 1525, 3770, 1267, 1301, 1273, 4161, 3140, 1411, 1300,
    1691, 4078, 1690, 1674, 3107, 1901, 1425, 1439, 1105, 1277,
}  # fmt: skip
"""The errors by which a server refuses a declaration."""
NOT_KNOWN = 0.45
"""At most this share of the answers may be that the value is not known."""


def declared(dice: random.Random) -> Iterator[tuple[str, str]]:
    """(type, what stands behind it)."""
    for sql_type, literals in LITERALS.items():
        yield sql_type, "NOT NULL"
        yield sql_type, "NULL"
        for literal in [*literals, *EXPRESSIONS]:
            yield sql_type, f"{dice.choice(['', 'NOT NULL '])}DEFAULT {literal}"
    for _ in range(40 * ROUNDS):
        whole, digits = dice.randint(1, 12), dice.randint(0, 8)
        number = (
            f"{dice.choice(['', '-'])}{dice.randint(0, 10 ** dice.randint(0, whole))}.{dice.randint(0, 10**digits)}"
        )
        number = dice.choice([number, f"'{number}'", number + f"e{dice.randint(-5, 3)}"])
        precision, scale = dice.randint(8, 20), dice.randint(0, 6)
        sql_type = dice.choice(["float", "double", "decimal", "int", "bigint"])
        brackets = f"({precision},{scale})" if sql_type not in {"int", "bigint"} and dice.random() < 0.7 else ""
        yield sql_type + brackets, f"DEFAULT {number}"
    for _ in range(30 * ROUNDS):
        kind, digits = dice.choice(["datetime", "timestamp", "time"]), dice.randint(0, 6)
        clock = f"{dice.randint(0, 23)}:{dice.randint(0, 59):02}:{dice.randint(0, 59):02}"
        fraction = "".join(dice.choice("0459") for _ in range(dice.randint(0, 8)))
        clock += f".{fraction}" if fraction else ""
        day = f"{dice.randint(1971, 2037)}-{dice.randint(1, 12)}-{dice.randint(1, 28)} "
        yield f"{kind}({digits})", f"DEFAULT '{'' if kind == 'time' else day}{clock}'"


@pytest.mark.parametrize(("mode", "zone"), SESSIONS)
@pytest.mark.parametrize("kind", ["mysql_source", "mariadb"])
def test_old_rows_have_the_value_that_the_server_gave_them(kind, mode, zone, request, fresh_schema) -> None:
    server = request.getfixturevalue(kind)
    mariadb = kind == "mariadb"
    schema = fresh_schema(server, options="CHARACTER SET utf8mb4")
    if mode == "FRACTION":
        mode = "TIME_ROUND_FRACTIONAL" if mariadb else "TIME_TRUNCATE_FRACTIONAL"
    dice = random.Random(f"{mode} {zone}")
    wrong: list[str] = []
    answers: Counter[bool] = Counter()
    with open_connection(parse_connection("source", server.connection_json())) as reader:
        state = read_state(reader, server_info(reader))
    with server.connect(schema) as connection, connection.cursor() as cursor:
        cursor.execute(f"SET NAMES utf8mb4, sql_mode = '{mode}', time_zone = '{zone}', timestamp = 1718454896.789012")
        bits = _bits(cursor, mode)
        todo = list(declared(dice))
        for start in range(0, len(todo), 60):
            table = TableId(schema, f"t{start}")
            create = f"CREATE TABLE {table.table} (id INT PRIMARY KEY) CHARACTER SET utf8mb4"
            cursor.execute(create)
            cursor.execute(f"INSERT INTO {table.table} VALUES (1)")
            state.fold(create, schema, Session(bits))
            made: list[tuple[str, str, str]] = []
            for number, (sql_type, default) in enumerate(todo[start : start + 60]):
                sql = f"ALTER TABLE {table.table} ADD COLUMN c{number} {sql_type} {default}"
                try:
                    cursor.execute(sql)
                except pymysql.Error as refused:
                    if refused.args[0] not in REFUSED:
                        raise
                    continue
                state.fold(sql, schema, Session(bits))
                made.append((f"c{number}", sql_type, default))
            if not made:
                continue
            cursor.execute("SET time_zone = '+00:00'")
            cursor.execute(f"SELECT {', '.join(printed(name, t) for name, t, _ in made)} FROM {table.table}")
            row = cursor.fetchone()
            cursor.execute(f"SET time_zone = '{zone}'")
            definition = state.find(table)
            assert definition is not None, state.why_unknown(table)
            statement = Statement(mariadb, bits, StatementSession(1718454896789012, zone))
            for (name, sql_type, default), answer in zip(made, row, strict=True):
                column = definition.column(name)
                neutral = SqlType.parse(column.type, column.charset or "").neutral(column.collation or "")
                assert neutral is not None
                try:
                    value = default_scalar(column, neutral, statement)
                except UnsupportedType:
                    answers[False] += 1
                    continue
                answers[True] += 1
                rows = pa.table({name: _array(value)})
                (found,) = texts(rows, name, sql_type.split(" char")[0].split(" coll")[0])
                if found != server_text(answer, sql_type):
                    wrong.append(f"{sql_type} {default}: {found!r}, the server {server_text(answer, sql_type)!r}")
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong)
    assert answers[True] > 500, answers
    assert answers[False] < NOT_KNOWN * answers.total(), answers


def _array(value: pa.Scalar) -> pa.Array:
    return (
        pa.nulls(1, value.type)
        if not value.is_valid
        else pa.concat_arrays([pa.array([None], value.type), _one(value)])[1:]
    )


def _one(value: pa.Scalar) -> pa.Array:
    """Repeated by Arrow, as ``as_py`` knows no date that no calendar has."""
    return pa.repeat(value, 1)


def _bits(cursor: Any, mode: str) -> int:
    """The bits of the session's sql_mode, as a query event has them."""
    known = {
        "ALLOW_INVALID_DATES": 1 << 25,
        "NO_BACKSLASH_ESCAPES": 1 << 20,
        "STRICT_TRANS_TABLES": 1 << 22,
        "TIME_TRUNCATE_FRACTIONAL": 1 << 32,
        "TIME_ROUND_FRACTIONAL": 1 << 34,
    }
    cursor.execute("SELECT @@sql_mode")
    assert not mode or mode.split(",")[0] in cursor.fetchone()[0]
    return sum(known.get(word, 0) for word in mode.split(","))


COMES = [
    "flag TINYINT(1) NOT NULL DEFAULT 0", "sm SMALLINT DEFAULT 7", "near INT DEFAULT 1.5", "big BIGINT UNSIGNED NOT "
    "NULL DEFAULT 18446744073709551615",
    "cents DECIMAL(5,2) DEFAULT 1.005", "long_d DECIMAL(38,10) DEFAULT 1234567890123456789012345678.0123456789",
    "f FLOAT DEFAULT 0.1",
    "f2 FLOAT(7,2) DEFAULT 1.239", "d2 DOUBLE(9,3) DEFAULT 1.23456", "y YEAR DEFAULT 24", "b1 BIT(1) DEFAULT b'1'",
    "b12 BIT(12) NOT NULL DEFAULT 21",
    "c CHAR(5) DEFAULT 'ab '", "v VARCHAR(30) NOT NULL DEFAULT 'it''s \\\\ ä😀'", "l1 VARCHAR(9) CHARACTER SET latin1 "
    "DEFAULT 'é'",
    "bi BINARY(4) DEFAULT 'ab'", "vb VARBINARY(9) NOT NULL DEFAULT x'00ff27'", "e ENUM('a','b') NOT NULL DEFAULT 'B'",
    "e0 ENUM('x','y') NOT NULL",
    "s SET('a','b') DEFAULT 'b,a'", "dy DATE DEFAULT '24-2-29'", "dt0 DATETIME DEFAULT 20240229010203",
    "dt3 DATETIME(3) DEFAULT '2024-02-29 01:02:03.4567'",
    "ts TIMESTAMP NULL DEFAULT '2024-07-01 12:00:00'", "ts6 TIMESTAMP(6) NULL DEFAULT '2024-07-01 12:00:00.123456'",
    "tm TIME(1) DEFAULT '-1:2:3.44'",
    "now_ TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP", "now6 DATETIME(6) DEFAULT CURRENT_TIMESTAMP(6)",
    "n0 INT NOT NULL", "t0 VARCHAR(9) NOT NULL",
    "nul DOUBLE DEFAULT NULL",
]  # fmt: skip


def _target(kind: str, folder: Any, request: Any) -> tuple[Any, str]:
    """The server or lake, and the options of a target of one kind; ``{}``: the schema."""
    if kind == "postgresql":
        return request.getfixturevalue("postgresql"), "    options: {{ack_schema: {0}}}"
    if kind == "mysql":
        return request.getfixturevalue("mysql_target"), ""
    return (Lake if kind == "delta" else IcebergLake)(
        folder / "lake"
    ), "    options: {{partition_by: {{{0}.p: [part]}}}}"


@pytest.mark.parametrize("target_kind", ["delta", "iceberg", "postgresql"])
@pytest.mark.parametrize("kind", ["mysql_source", "mariadb"])
def test_columns_that_come_with_defaults_arrive(
    kind: str, target_kind: str, request: Any, tmp_path: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    """Through the log, in tables of several files, with and without partitions: the comparison finds no difference in
    rows that were there.
    """
    source = request.getfixturevalue(kind)
    schema = fresh_schema(source, options="CHARACTER SET utf8mb4")
    target, options = _target(target_kind, tmp_path, request)
    for table in ("t", "p"):
        source.execute(f"CREATE TABLE {schema}.{table} (id INT PRIMARY KEY, part VARCHAR(9) NOT NULL)")
    if target_kind != "postgresql":
        source.execute(f"ALTER TABLE {schema}.p DROP PRIMARY KEY, ADD PRIMARY KEY (part, id)")
    with case(
        tmp_path, source, target, zookeeper, schema, kind=target_kind, target_extra=options.format(schema)
    ) as made:
        made.make_missing()
        made.run_until_head()
        for first in range(0, 60, 20):
            rows = ", ".join(f"({n}, '{'xyz'[n % 3]}')" for n in range(first, first + 20))
            source.execute(f"USE {schema}", *(f"INSERT INTO {t} VALUES {rows}" for t in ("t", "p")))
            made.run_until_head()
        mode = "SET NAMES utf8mb4, sql_mode = '', time_zone = '+05:30', timestamp = 1718454896.789012"
        for table in ("t", "p"):
            for start in range(0, len(COMES), 4):
                parts = ", ".join(f"ADD COLUMN {column}" for column in COMES[start : start + 4])
                source.execute(f"USE {schema}", mode, f"ALTER TABLE {table} {parts}")
        made.run_until_head()
        source.execute(f"USE {schema}", "UPDATE t SET near = 3 WHERE id = 7", "UPDATE p SET near = 4 WHERE id = 8")
        made.run_until_head()
        _assert_equal(made)


@pytest.mark.parametrize("target_kind", ["delta", "iceberg", "postgresql"])
def test_a_default_that_is_not_known_stops_with_a_way_on_that_works(
    target_kind: str, request: Any, tmp_path: Any, mysql_source: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    schema = fresh_schema(mysql_source, options="CHARACTER SET utf8mb4")
    target, options = _target(target_kind, tmp_path, request)
    for table in ("t", "p"):
        mysql_source.execute(f"CREATE TABLE {schema}.{table} (id INT PRIMARY KEY, part VARCHAR(9))")
    with case(
        tmp_path, mysql_source, target, zookeeper, schema, kind=target_kind, target_extra=options.format(schema)
    ) as made:
        made.make_missing()
        made.run_until_head()
        mysql_source.execute(f"INSERT INTO {schema}.t VALUES (1, 'a'), (2, 'b')")
        made.run_until_head()
        mysql_source.execute(f"ALTER TABLE {schema}.t ADD COLUMN twice INT DEFAULT (1 + 1)")
        with pytest.raises(LoadError, match=r"new column twice .*its default .* is an expression") as caught:
            made.run_until_head()
        assert caught.value.hint is not None
        if target_kind == "postgresql":
            [statement] = re.findall(r"\((ALTER TABLE [^()]*)\)", caught.value.hint)
            target.execute(statement)
            made.run_until_head()
        else:
            assert "set add_column to ignore" in caught.value.hint
            made.path.write_text(made.yaml.replace("    options:", "    ddl: {add_column: ignore}\n    options:"))
            made.run_until_head()
            made.path.write_text(made.yaml)
            assert made.cli("check", "--apply", "--yes", str(made.path)).returncode in {0, 1}
        with ThreadPoolExecutor(1) as beside:
            copying = beside.submit(made.cli, "dump", "start", str(made.path), "--table", f"{schema}.t")
            while not copying.done():
                made.run_until_head()
            assert copying.result().returncode == 0, copying.result()
        _assert_equal(made)


def _assert_equal(made: Case) -> None:
    """The comparison of ``sluice verify``, while the pipeline goes on."""
    with ThreadPoolExecutor(1) as beside:
        waiting = beside.submit(verify, made.runtime(), VerifySpec())
        while not waiting.done():
            made.run_until_head()
        result = waiting.result()
    assert len(result.tables) == 2
    for table in result.tables:
        assert (table.differing, table.skipped) == (0, ""), (table.table, table.skipped, table.differences)
