"""``sluice verify`` between two databases of PostgreSQL: each server computes checksums of key ranges itself."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.postgresql.range_digest import DigestColumn, digest_sql
from tests.support.pipelines.dumping import delivering
from tests.support.pipelines.pg_source import COPY, PgCase, pg_case

VALUES = {
    "b": ("boolean", "i % 2 = 0", "NOT b"),
    "s": ("smallint", "i % 100", "s + 1"),
    "l": ("bigint", "i * 1000000007::bigint", "-l - 1"),
    "n": ("numeric(12,4)", "i / 7.0", "n + 0.0001"),
    "u": ("numeric", "i / 3.0", "trunc(u, 2)"),
    "r": ("real", "i / 3.0", "r * 1.000001"),
    "d": ("double precision", "i / 3.0", "d * (1 + 1e-15)"),
    "z": ("double precision", "0", "'-0'"),
    "t": ("text", "repeat('t', i % 50)", "t || ' '"),
    "e": ("text", "''", "NULL"),
    "v": ("varchar(20)", "'(' || i || ',\"'", "upper(v) || '!'"),
    "c": ("character(5)", "'c' || i % 9", "'d'"),
    "x": ("bytea", "decode(lpad(to_hex(i), 8, '0'), 'hex')", "x || '\\x00'"),
    "y": ("date", "date '2020-01-01' + i", "'infinity'"),
    "w": ("timestamp(3)", "timestamp '2020-01-01' + i * interval '1 ms'", "w + interval '1 ms'"),
    "a": ("timestamptz", "timestamptz '2020-01-01 00:00:00+00' + i * interval '1 s'", "a + interval '1 us'"),
    "k": ("interval", "i * interval '1 hour'", "k + interval '1 day' - interval '24 hours'"),
    "j": ("jsonb", "jsonb_build_object('i', i)", "j || '{\"more\": 1}'"),
    "o": ("json", "'{\"a\": 1}'", "'{\"a\":1}'"),
    "g": ("uuid", "('00000000-0000-0000-0000-' || lpad(i::text, 12, '0'))::uuid", "gen_random_uuid()"),
    "q": ("integer[]", "ARRAY[i, NULL, 2]", "q[1:1]"),
    "m": ("inet", "'10.0.0.1'", "'10.0.0.2'"),
    "h": ("int4range", "int4range(i, i + 5)", "int4range(1, 2)"),
    "p": ("mood", "'ok'", "'sad'"),
    "i2": ("amount", "i", "i2 + 1"),
    "p2": ("pair", "ROW(i, 'x')", "ROW(1, NULL)"),
    "f": ("bit(9)", "(i % 512)::bit(9)", "~f"),
}  # fmt: skip
"""By column: its type, the value of row i, and another value than that of the row."""
ROWS = 300
_numbers = itertools.count(1)


@pytest.fixture(params=["postgresql_source", pytest.param("postgresql_15", marks=pytest.mark.full)])
def made(
    request: pytest.FixtureRequest, tmp_path: Path, postgresql_source: Any, zookeeper: Any, fresh_pg_schema: Any
) -> Iterator[PgCase]:
    """From version 18 to itself, and to 15."""
    columns = ", ".join(f"{name} {kind}" for name, (kind, *_) in VALUES.items())
    values = ", ".join(f"({value})::{kind}" for kind, value, _ in VALUES.values())
    source = postgresql_source
    schema = f"digests_{next(_numbers)}"
    types = (
        "CREATE TYPE mood AS ENUM ('ok', 'sad')",
        "CREATE DOMAIN amount AS int CHECK (value > 0)",
        "CREATE TYPE pair AS (a int, b text)",
    )
    tables = (
        *types,
        f"CREATE TABLE vals (id int PRIMARY KEY, {columns})",
        f"INSERT INTO vals SELECT i, {values} FROM generate_series(1, {ROWS}) i",
        "CREATE TABLE keyed (id uuid, at timestamptz, raw bytea, v int, PRIMARY KEY (id, at, raw))",
        "INSERT INTO keyed SELECT gen_random_uuid(), now() + i * interval '1 us', sha256(i::text::bytea), i "
        "FROM generate_series(1, 50) i",
        "CREATE TABLE named (name text PRIMARY KEY, cash money)",
        "INSERT INTO named SELECT 'name ' || i, i::numeric::money FROM generate_series(1, 50) i",
    )
    other = request.getfixturevalue(request.param) if request.param != "postgresql_source" else None
    if other is not None:
        other.execute(f"CREATE SCHEMA {schema}")
    with pg_case(
        tmp_path, source, zookeeper, schema=schema, tables=tables, start="dump", target=other, kind="postgresql"
    ) as case:
        try:
            case.prepare()
            case.run_until_head()
            yield case
        finally:
            if other is not None:
                other.execute(f"DROP SCHEMA {schema} CASCADE")


def at_target(made: PgCase, *statements: str) -> None:
    database = COPY if made.target is made.source else "postgres"
    made.target.execute(f"SET search_path = {made.schema}", *statements, database=database)


def verified(made: PgCase, *more: str) -> dict[str, dict[str, Any]]:
    found = made.cli("verify", made.name, "--json", *more)
    assert found.returncode in {0, 3}, found.stdout + found.stderr
    return {table["table"].rpartition(".")[2]: table for table in json.loads(found.stdout)["tables"]}


def test_an_equal_table_is_told_by_checksums(made: PgCase) -> None:
    """Also one whose key is a UUID, a time and bytes; a key of text is no range at another server."""
    with delivering(made):
        found = verified(made)
    ways = {name: (table["way"], table["equal"], table["different"]) for name, table in found.items()}
    assert ways == {
        "vals": ("checksums", ROWS, 0), "keyed": ("checksums", 50, 0), "named": ("rows of the source", 50, 0),
    }  # fmt: skip


def test_each_value_enters_the_checksum(made: PgCase) -> None:
    """Alone: no other difference leads to the row."""
    database = COPY if made.target is made.source else "postgres"
    columns = [DigestColumn("id", "integer"), *(DigestColumn(name, kind) for name, (kind, *_) in VALUES.items())]
    sql = digest_sql(f"{made.schema}.vals AS t", columns, "true", "t")
    [(rows, checksum)] = made.target.execute(sql, database=database)
    assert (rows, checksum) == made.source.execute(sql)[0]
    found = {checksum}
    with made.target.connect(database) as connection:
        for name, (_, _, other) in VALUES.items():
            with connection.transaction(force_rollback=True):
                connection.execute(f"UPDATE {made.schema}.vals SET {name} = {other} WHERE id = 10")
                found.add(connection.execute(sql).fetchone()[1])
    assert len(found) == 1 + len(VALUES)


def test_every_kind_of_difference_is_found_and_repaired(made: PgCase) -> None:
    """One column of one row each, a row that is missing, and one that only the target has."""
    planted = {10 + at: (name, other) for at, (name, (_, _, other)) in enumerate(VALUES.items())}
    with delivering(made):
        at_target(
            made,
            *(f"UPDATE vals SET {name} = {other} WHERE id = {number}" for number, (name, other) in planted.items()),
            "DELETE FROM vals WHERE id = 200",
            "INSERT INTO vals (id) VALUES (5000)",
            "DELETE FROM keyed WHERE v = 7",
            "INSERT INTO keyed SELECT id, at + interval '1 us', raw, 51 FROM keyed WHERE v = 8",
        )
        found = verified(made)
        odd = {int(row["key"][0]): (row["kind"], row["columns"]) for row in found["vals"]["differences"]}
        assert odd == {
            **{number: ("different", [name]) for number, (name, _) in planted.items()},
            200: ("missing", []), 5000: ("extra", []),
        }  # fmt: skip
        assert [found["keyed"][name] for name in ("missing", "extra", "equal")] == [1, 1, 49]
        verified(made, "--repair", "--yes")
        found = verified(made)
    assert {name: (table["equal"], table["different"] + table["missing"] + table["extra"]) for name, table in found.items()} == {
        "vals": (ROWS, 0), "keyed": (50, 0), "named": (50, 0),
    }  # fmt: skip
