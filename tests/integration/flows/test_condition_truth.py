"""A condition means to the server what the person wrote: the same rows come for the text and for what is sent, whatever
the server's modes.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable
from typing import Any

import pymysql
import pytest

from sluice.config.connections import parse_connection
from sluice.errors import ConfigError
from sluice.model.tables import TableId
from sluice.mysql.condition import FUNCTIONS, rendered
from sluice.sources.mysql.server.connection import rows_of
from sluice.sources.mysql.snapshot.result_set import open_reader
from tests.support.servers.fixtures import setting
from tests.support.tables.conditions import NAMES, VALUES

COUNT = int(os.environ.get("SLUICE_TEST_CONDITIONS", "400"))
COLUMNS = ["id", "v", "w", "Näme", "d", "f", "j", "a`b"]
TABLE = (
    "CREATE TABLE `{}`.t (id INT PRIMARY KEY, v VARCHAR(20), w VARCHAR(20) CHARACTER SET latin1, `Näme` INT, d "
    "DATETIME, f DOUBLE, j JSON, `a``b` VARBINARY(10)) CHARACTER SET utf8mb4"
)
ROWS = [
    (1, "a", "A", 0, "2020-01-01 00:00:00", 1.5, "{}", b"a"),
    (2, "it's", "it's", 1, "2020-02-29 12:00:00", -2.0, '{"a": 1}', b"\x00\xff"),
    (3, 'q"q', "é", 2, None, 0.0, "[1]", b"\\"),
    (4, "\\", "\\", 3, "2021-12-31 23:59:59", None, None, b""),
    (5, "100%", "100%", None, "1999-01-01 00:00:00", 3.25, "1", None),
    (6, None, None, -1, "2020-01-01 00:00:01", 1e10, '"x"', b"x"),
    (7, "日本語", "a_b", 7, "2024-06-15 08:30:00", 0.1, '{"a": {"b": 2}}', b"a'b"),
    (8, "line\nfeed", "", 8, "2020-01-01 00:00:00", -0.5, "null", b"-- "),
]
CLOCKS = {
    "NOW", "CURDATE", "CURTIME", "CURRENT_DATE", "CURRENT_TIME", "CURRENT_TIMESTAMP", "UTC_DATE", "UTC_TIME",
    "UTC_TIMESTAMP",
}  # fmt: skip
CALLS = sorted(FUNCTIONS - CLOCKS - {"DATE_ADD", "DATE_SUB"})


def text(choose: random.Random, depth: int = 0) -> str:
    """An expression, parenthesized or not as it comes: precedence is what is asked about."""

    def part() -> str:
        return text(choose, depth + 1)

    if depth > 3 or choose.random() < 0.15:
        return choose.choice(VALUES) if choose.random() < 0.5 else choose.choice(NAMES)
    makers: list[Callable[[], str]] = [
        lambda: f"({part()})",
        lambda: f"{part()} {choose.choice(['=', '<=>', '<', '<=', '>', '>=', '<>', '!='])} {part()}",
        lambda: f"{part()} {choose.choice(['AND', 'OR', 'XOR', 'and', '&&'])} {part()}",
        lambda: f"{choose.choice(['NOT ', 'not not ', '- ', '~', '+', 'BINARY '])}{part()}",
        lambda: (
            f"{part()} {choose.choice(['+', '-', '*', '/', '%', 'DIV', 'MOD', '^', '|', '&', '<<', '>>'])} {part()}"
        ),
        lambda: f"{part()} {choose.choice(['', 'NOT '])}IN ({part()}, {part()})",
        lambda: f"{part()} {choose.choice(['', 'NOT '])}BETWEEN {part()} AND {part()}",
        lambda: f"{part()} {choose.choice(['', 'NOT '])}LIKE {part()}{choose.choice(['', '', ' ESCAPE ' + repr('x')])}",
        lambda: f"{part()} IS {choose.choice(['', 'NOT '])}{choose.choice(['NULL', 'TRUE', 'FALSE', 'UNKNOWN'])}",
        lambda: (
            f"CASE {choose.choice(['', part()])} WHEN {part()} THEN {part()} {choose.choice(['', 'ELSE ' + part()])} "
            "END"
        ),
        lambda: f"{choose.choice(CALLS)}({', '.join(part() for _ in range(choose.randint(0, 3)))})",
        lambda: f"d {choose.choice('+-')} INTERVAL {part()} {choose.choice(['DAY', 'hour', 'MONTH'])}",
        lambda: (
            f"CAST({part()} AS {choose.choice(['CHAR', 'SIGNED', 'unsigned integer', 'DECIMAL(10, 2)', 'DATE', 'BINARY(3)'])})"
        ),
        lambda: f"v COLLATE utf8mb4_bin {choose.choice(['=', '<', 'LIKE'])} {part()}",
        lambda: f"({part()}, {part()}) = ({part()}, {part()})",
    ]
    return choose.choice(makers)()


def ids(reader: Any, schema: str, condition: str) -> list[int] | None:
    """None: the server does not take it, or stumbles over a row."""
    with contextlib.suppress(pymysql.err.MySQLError):
        return [int(row[0]) for row in rows_of(reader, f"SELECT id FROM `{schema}`.t WHERE ({condition}) ORDER BY id")]
    return None


@pytest.mark.parametrize("server", ["mysql_source", "mariadb"])
@pytest.mark.parametrize("modes", ["", "ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT,HIGH_NOT_PRECEDENCE"])
def test_the_server_finds_the_same_rows(server: str, modes: str, request: Any, fresh_schema: Any) -> None:
    """Under the reader's own session, which is what a dump uses, and for the text that is sent under any."""
    there = request.getfixturevalue(server)
    schema = fresh_schema(there)
    there.execute(TABLE.format(schema))
    with there.connect(schema) as connection, connection.cursor() as cursor:
        cursor.executemany("INSERT INTO t VALUES (%s, %s, %s, %s, %s, %s, %s, %s)", ROWS)
        connection.commit()
    choose = random.Random(f"{server}{modes}")
    endpoint = parse_connection("x", there.connection_json())
    agreed = told = 0
    with setting(there, sql_mode=modes), open_reader(endpoint) as reader, open_reader(endpoint) as other:
        rows_of(other, f"SET SESSION sql_mode = '{modes}'")
        for _ in range(COUNT):
            given = text(choose)
            try:
                sent = rendered(given, TableId(schema, "t"), COLUMNS)
            except ConfigError:
                told += 1
                continue
            assert rendered(sent, TableId(schema, "t"), COLUMNS) == sent, given
            wanted = ids(reader, schema, given)
            if wanted is None:
                continue
            agreed += 1
            assert ids(reader, schema, sent) == wanted, f"{given}\nbecame\n{sent}"
            if "\\" not in given and "LIKE" not in sent:  # there the escape sign of LIKE itself depends on the mode
                assert ids(other, schema, sent) == wanted, f"{given}\nbecame\n{sent}"
    assert agreed > COUNT // 5
    assert told < COUNT // 2
