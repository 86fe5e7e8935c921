"""``sluice verify`` between a MySQL (or MariaDB) and a PostgreSQL: both servers compute the same checksums where they write
values alike.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sluice.model.tables import TableId
from sluice.mysql import shared_digest as mysql_digest
from sluice.mysql.range_digest import DigestColumn
from sluice.postgresql import shared_digest as pg_digest
from sluice.postgresql.range_digest import DigestColumn as PgColumn
from tests.support.pipelines.case import Case, case
from tests.support.pipelines.dumping import delivering
from tests.support.pipelines.pg_source import pg_case

ROWS = 200
MYSQL = {
    "t": ("TINYINT", "id % 100 - 50", "t + 1"),
    "u": ("BIGINT UNSIGNED", "18446744073709551615 - id", "u - 1"),
    "n": ("DECIMAL(12,4)", "-id / 7", "n + 0.0001"),
    "v": ("VARCHAR(40)", "CONCAT('straße 😀 ', id)", "v || ' '"),
    "w": ("VARCHAR(10) CHARACTER SET latin1", "'caf\u00e9'", "'cafe'"),
    "e": ("VARCHAR(10)", "''", "NULL"),
    "l": ("LONGTEXT", "REPEAT(CONCAT('long ', id), 300)", "l || '!'"),
    "b": ("VARBINARY(20)", "UNHEX(LPAD(HEX(id), 6, '0'))", "'\\x00'"),
    "d": ("DATE", "DATE '2020-01-01' + INTERVAL id DAY", "d + 1"),
    "a": ("DATETIME(3)", "TIMESTAMP '2020-01-01 00:00:00' + INTERVAL id * 1001 MICROSECOND", "a + interval '1 ms'"),
    "s": ("TIMESTAMP(6) NULL", "TIMESTAMP '2020-01-01 00:00:00.5' + INTERVAL id SECOND", "s + interval '1 us'"),
    "k": ("ENUM('x','y')", "IF(id % 2, 'x', 'y')", "'z'"),
}
"""By column: its type, the value of a row, and another one at the PostgreSQL."""
POSTGRESQL = {
    "t": ("boolean", "i % 2 = 0", "1 - t"),
    "u": ("bigint", "-i * 1000000007::bigint", "u - 1"),
    "n": ("numeric(12,4)", "-i / 7.0", "n + 0.0001"),
    "x": ("numeric", "i / 3.0", "'1.5'"),
    "v": ("varchar(40)", "'straße 😀 ' || i", "CONCAT(v, ' ')"),
    "c": ("character(9)", "'c' || i", "'d'"),
    "l": ("text", "repeat('long ' || i, 300)", "CONCAT(l, '!')"),
    "b": ("bytea", "decode(lpad(to_hex(i), 8, '0'), 'hex')", "x'00'"),
    "d": ("date", "date '2020-01-01' + i", "d + INTERVAL 1 DAY"),
    "a": ("timestamp(3)", "timestamp '2020-01-01' + i * interval '1 ms'", "a + INTERVAL 1000 MICROSECOND"),
    "s": ("timestamptz", "timestamptz '2020-01-01 00:00:00.5+00' + i * interval '1 s'", "s + INTERVAL 1 MICROSECOND"),
    "g": ("uuid", "('00000000-0000-0000-0000-' || lpad(i::text, 12, '0'))::uuid", "REPLACE(g, '0', '1')"),
    "h": ("inet", "('10.0.0.' || i)::inet", "'10.0.0.0'"),
    "k": ("interval", "i * interval '1 hour'", "'1 day'"),
    "m": ("int[]", "ARRAY[i, NULL]", "'{1}'"),
}


def verified(made: Case, *more: str) -> dict[str, dict[str, Any]]:
    found = made.cli("verify", made.name, "--json", *more)
    assert found.returncode in {0, 3}, found.stdout + found.stderr
    return {table["table"].rpartition(".")[2]: table for table in json.loads(found.stdout)["tables"]}


def assert_found(made: Case, planted: dict[int, str]) -> None:
    """Each planted difference, and no other, after which a repair leaves none."""
    found = verified(made)["vals"]
    assert {int(row["key"][0]): row["columns"] for row in found["differences"]} == {n: [c] for n, c in planted.items()}
    verified(made, "--repair", "--yes")
    found = verified(made)["vals"]
    assert (found["way"], found["equal"], found["different"]) == ("checksums", ROWS, 0)


def assert_each_enters_alone(connection: Any, place: str, sql: str, others: dict[str, str]) -> None:
    """A changed value of one column leads to another checksum, whatever the others have."""
    cursor = connection.cursor()
    found = set()
    for change in ("", *(f"UPDATE {place} SET {name} = {other} WHERE id = 10" for name, other in others.items())):
        cursor.execute("BEGIN")
        if change:
            cursor.execute(change)
        cursor.execute(sql)
        found.add(cursor.fetchone()[1])
        cursor.execute("ROLLBACK")
    assert len(found) == 1 + len(others)


@contextmanager
def _from_mysql(folder: Path, source: Any, postgresql: Any, zookeeper: Any, schema: str) -> Iterator[Case]:
    extra = f"    options: {{ack_schema: {schema}}}"
    with case(
        folder, source, postgresql, zookeeper, schema, kind="postgresql", target_extra=extra, start="dump"
    ) as made:
        columns = ", ".join(f"{name} {kind}" for name, (kind, *_) in MYSQL.items())
        values = ", ".join(value for _, value, _ in MYSQL.values())
        source.execute(
            f"USE `{schema}`",
            f"CREATE TABLE vals (id INT PRIMARY KEY, {columns}) DEFAULT CHARSET utf8mb4",
            "SET SESSION time_zone = '+02:00'",
            f"INSERT INTO vals WITH RECURSIVE s (id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM s WHERE id < {ROWS}) "
            f"SELECT id, {values} FROM s",
            "CREATE TABLE floating (id INT PRIMARY KEY, d DOUBLE)",
            "INSERT INTO floating VALUES (1, 0.1)",
        )
        assert made.cli("check", "case", "--apply", "--yes").returncode == 0
        made.run_until_head()
        yield made


@pytest.mark.parametrize("kind", ["mysql_source", pytest.param("mariadb", marks=pytest.mark.full)])
def test_from_a_mysql(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, postgresql: Any, zookeeper: Any, fresh_schema: Any,
    fresh_pg_schema: Any,
) -> None:  # fmt: skip
    """A table with a type that both write otherwise is compared by rows."""
    source = request.getfixturevalue(kind)
    schema = fresh_pg_schema(fresh_schema(source, options="CHARACTER SET utf8mb4"))
    with _from_mysql(tmp_path, source, postgresql, zookeeper, schema) as made, delivering(made):
        found = {name: (table["way"], table["equal"], table["different"]) for name, table in verified(made).items()}
        assert found == {"vals": ("checksums", ROWS, 0), "floating": ("rows", 1, 0)}
        types = postgresql.execute(
            "SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute "
            f"WHERE attrelid = '\"{schema}\".vals'::regclass AND attnum > 0"
        )
        sql = pg_digest.shared_digest_sql(f'"{schema}".vals AS t', [PgColumn(*one) for one in types], "true", "t")
        with postgresql.connect() as connection:
            others = {name: other for name, (_, _, other) in MYSQL.items()}
            assert_each_enters_alone(connection, f'"{schema}".vals', sql, others)
        planted = {10 + number: name for number, name in enumerate(MYSQL)}
        postgresql.execute(
            f'SET search_path = "{schema}"',
            *(f"UPDATE vals SET {name} = {MYSQL[name][2]} WHERE id = {number}" for number, name in planted.items()),
        )
        assert_found(made, planted)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["mysql_target", "mariadb"])
def test_from_a_postgresql(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, postgresql_source: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    target = request.getfixturevalue(kind)
    schema = fresh_schema(target, options="CHARACTER SET utf8mb4")
    columns = ", ".join(f"{name} {kind}" for name, (kind, *_) in POSTGRESQL.items())
    values = ", ".join(f"({value})::{kind}" for kind, value, _ in POSTGRESQL.values())
    tables = (
        f"CREATE TABLE vals (id int PRIMARY KEY, {columns})",
        f"INSERT INTO vals SELECT i, {values} FROM generate_series(1, {ROWS}) i",
        "CREATE TABLE floating (id int PRIMARY KEY, d double precision)",
        "INSERT INTO floating VALUES (1, 0.1)",
    )
    with pg_case(
        tmp_path, postgresql_source, zookeeper, schema=schema, tables=tables, target=target, kind="mysql", start="dump"
    ) as made:
        made.prepare()
        made.run_until_head()
        with delivering(made):
            found = {name: (table["way"], table["equal"], table["different"]) for name, table in verified(made).items()}
            assert found == {"vals": ("checksums", ROWS, 0), "floating": ("rows", 1, 0)}
            types = target.execute(
                "SELECT column_name, column_type FROM information_schema.columns "
                f"WHERE table_schema = '{schema}' AND table_name = 'vals'"
            )
            sql = mysql_digest.shared_digest_sql(
                TableId(schema, "vals"), [DigestColumn(*one) for one in types], mariadb=kind == "mariadb"
            )
            with target.connect(schema) as connection:
                others = {name: other for name, (_, _, other) in POSTGRESQL.items()}
                assert_each_enters_alone(connection, "vals", sql, others)
            planted = {10 + number: name for number, name in enumerate(POSTGRESQL)}
            target.execute(
                f"USE `{schema}`",
                *(f"UPDATE vals SET {name} = {POSTGRESQL[name][2]} WHERE id = {n}" for n, name in planted.items()),
            )
            assert_found(made, planted)
