"""Every built-in type of PostgreSQL, copied and then changed in the log, arrives at PostgreSQL and at MySQL as the value
that the source's own text tells.
"""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from sluice.operations.deadletters.store import letters
from tests.support.pipelines.dumping import delivering, dumped
from tests.support.pipelines.pg_source import COPY, PgCase, pg_case
from tests.support.values import postgresql_types as types

STREAMED = 1_000
"""The first id of the rows that come by the log."""


def change(made: PgCase, kinds: types.Types) -> None:
    """Insert every value, then give rows the values of others, NULL among them, and delete some."""
    count = types.insert(made.source, made.schema, "t", kinds, first=STREAMED)
    every = ", ".join(f'"{name}" = b."{name}"' for name in kinds)
    made.write(
        f"UPDATE t AS a SET {every} FROM t AS b WHERE a.id >= {STREAMED} AND a.id % 2 = 0 "
        f"AND b.id = (a.id - {STREAMED} + 1) % {count}",
        f"UPDATE t SET id = id + 5000 WHERE id = {STREAMED + 1}",
        f"DELETE FROM t WHERE id = {STREAMED + count - 1}",
    )


def carried(made: PgCase, kinds: types.Types) -> None:
    """A copy of rows that were there before, and changes of the log."""
    made.prepare()
    made.run_until_head()
    assert dumped(made, tables=[f"{made.schema}.t"]).state == "done"
    change(made, kinds)
    made.run_until_head()


def assert_verified(made: PgCase) -> None:
    """``sluice verify`` finds no difference."""
    with delivering(made):
        found = made.cli("verify", made.name)
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.promise("B50")
def test_every_type_arrives_at_postgresql(tmp_path: Path, postgresql_source: Any, zookeeper: Any) -> None:
    kinds = types.BOTH | types.BEYOND
    with pg_case(tmp_path, postgresql_source, zookeeper, schema="every_type") as made:
        made.write(*types.USERS)
        types.make(made.source, made.schema, "t", kinds)
        carried(made, kinds)
        ours = types.texts(made.source, made.schema, "t", list(kinds))
        theirs = types.texts(made.source, made.schema, "t", list(kinds), database=COPY)
        assert sorted(theirs) == sorted(ours)
        for number, row in ours.items():
            differ = {name: (text, theirs[number][name]) for name, text in row.items() if theirs[number][name] != text}
            assert not differ, f"row {number}: {differ}"
        assert_verified(made)
        declared = dict(
            made.source.execute(
                "SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attnum > 0 AND "
                f"attrelid = '{made.schema}.t'::regclass",
                database=COPY,
            )
        )
        kept = {name: declared[name] for name in ("bool", "iv_s3", "r4", "a4", "js", "ch", "t_3", "n", "mood", "addr")}
        assert kept == {
            "bool": "boolean", "iv_s3": "interval second(3)", "r4": "int4range", "a4": "integer[]", "js": "json",
            "ch": "character(4)", "t_3": "time(3) without time zone", "n": "numeric", "mood": "text", "addr": "text",
        }  # fmt: skip


@pytest.mark.full
def test_types_of_extensions_arrive_as_their_text(tmp_path: Path, postgis: Any, zookeeper: Any) -> None:
    """hstore, and PostGIS's EWKB with its SRID, at a database that has neither extension."""
    kinds: types.Types = {
        "h": ("public.hstore", ("'a => 1, \"b c\" => NULL'", "''")),
        "g": ("public.geometry", ("'SRID=4326;POINT(1 2)'", "'LINESTRING(0 0, 1 1.5)'")),
        "p": ("public.geometry(PointZ, 3857)", ("'SRID=3857;POINT Z (1 2 -1e-300)'",)),
        "w": ("public.geography", ("'POINT(-71 42)'",)),
    }
    postgis.execute("CREATE EXTENSION IF NOT EXISTS hstore")
    with pg_case(tmp_path, postgis, zookeeper, schema="extended") as made:
        types.make(made.source, made.schema, "t", kinds)
        carried(made, kinds)
        ours = types.texts(made.source, made.schema, "t", list(kinds))
        assert types.texts(made.source, made.schema, "t", list(kinds), database=COPY) == ours
        assert str(ours[0]["g"]).startswith("0101000020E6100000")  # a point with its SRID, 4326
        assert_verified(made)


MYSQL = types.BOTH


def form(name: str, text: str | None) -> Any:
    """The source's text of a value in one form with what :func:`mysql_rows` reads."""
    kind = types.BOTH[name][0]
    if text is None:
        return None
    if kind == "boolean":
        return "1" if text == "t" else "0"
    if kind.startswith("character("):
        return text.rstrip(" ")
    if name in {"b_1", "b_64"}:
        return str(int(text, 2))
    if kind in {"json", "jsonb"}:
        return json.loads(text, parse_float=Decimal)
    if kind == "bytea":
        return text[2:].upper()
    if kind.startswith(("time", "timestamp")) and kind != "time with time zone":
        return _micros(text.removesuffix("+00"))
    return text


def _micros(text: str) -> str:
    whole, _, fraction = text.partition(".")
    return f"{whole}.{fraction.ljust(6, '0')}"


def mysql_rows(made: PgCase) -> dict[int, dict[str, Any]]:
    shown = []
    for name, (kind, _) in MYSQL.items():
        column = f"`{name}`"
        if kind == "bytea":
            shown.append(f"HEX({column})")
        elif name in {"b_1", "b_64"}:
            shown.append(f"CAST({column} + 0 AS CHAR)")
        else:
            shown.append(f"CAST({column} AS CHAR)")
    found = {}
    for number, *values in made.target.execute(f"SELECT id, {', '.join(shown)} FROM `{made.schema}`.t"):
        row = dict(zip(MYSQL, values, strict=True))
        for name, value in row.items():
            kind = MYSQL[name][0]
            if value is None:
                continue
            if kind in {"json", "jsonb"}:
                row[name] = json.loads(value, parse_float=Decimal)
            elif kind.startswith(("time", "timestamp")) and kind != "time with time zone":
                row[name] = _micros(value)
        found[number] = row
    return found


@pytest.mark.promise("B50")
def test_every_type_arrives_at_mysql(
    tmp_path: Path, postgresql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    schema = fresh_schema(mysql_target, options="CHARACTER SET utf8mb4")
    with pg_case(
        tmp_path,
        postgresql_source,
        zookeeper,
        schema=schema,
        target=mysql_target,
        kind="mysql",
        target_extra=f"    accept_loss: ['{schema}.t.j[sb]']",
    ) as made:
        made.write(*types.USERS)
        types.make(made.source, made.schema, "t", MYSQL)
        carried(made, MYSQL)
        ours = types.texts(made.source, made.schema, "t", list(MYSQL))
        theirs = mysql_rows(made)
        assert sorted(theirs) == sorted(ours)
        for number, row in ours.items():
            wanted = {name: form(name, text) for name, text in row.items()}
            differ = {
                name: (text, theirs[number][name]) for name, text in wanted.items() if theirs[number][name] != text
            }
            assert not differ, f"row {number}: {differ}"
        assert_verified(made)
        said = made.cli("check", made.name)
        assert "it is the text of interval" in said.stdout


@pytest.mark.full
def test_what_mysql_does_not_have_is_refused_and_not_changed(
    tmp_path: Path, postgresql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    """Each value that PostgreSQL alone has is a dead letter with its row, and the others arrive."""
    schema = fresh_schema(mysql_target, options="CHARACTER SET utf8mb4")
    odd = {
        "f8": ("'NaN'", "'Infinity'", "'-Infinity'"), "f4": ("'NaN'",), "d": ("'infinity'", "'0044-03-15 BC'", "'10000-01-01'"),
        "ts": ("'-infinity'", "'0044-03-15 12:00:00 BC'"), "tsz": ("'20000-01-01 00:00:00+00'", "'infinity'"),
        "n": ("1",),
    }  # fmt: skip
    kinds = {"f8": "float8", "f4": "float4", "d": "date", "ts": "timestamp", "tsz": "timestamptz", "n": "int"}
    with pg_case(
        tmp_path, postgresql_source, zookeeper, schema=schema, target=mysql_target, kind="mysql",
        target_extra="    on_error: dead_letter",
    ) as made:  # fmt: skip
        made.write(f"CREATE TABLE odd (id int PRIMARY KEY, {', '.join(f'{n} {k}' for n, k in kinds.items())})")
        made.prepare()
        made.run_until_head()
        rows = [(name, value) for name, values in odd.items() for value in values]
        made.write(*(f"INSERT INTO odd (id, {name}) VALUES ({i}, {value})" for i, (name, value) in enumerate(rows)))
        made.run_until_head()
        there = made.target.execute(f"SELECT * FROM `{schema}`.odd")
        assert list(there) == [(len(rows) - 1, None, None, None, None, None, 1)]
        assert len(letters(made.runtime())) == len(rows) - 1
