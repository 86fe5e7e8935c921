"""Spatial columns at a PostgreSQL target with PostGIS: shapes as its own type, by every way in which rows are
written.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.pipelines.case import case
from tests.support.pipelines.dumping import delivering

SHAPES = {
    "p": ("POINT", "POINT(1 2)"),
    "l": ("LINESTRING", "LINESTRING(0 0,1 1.5,2 0)"),
    "a": ("POLYGON", "POLYGON((0 0,4 0,4 4,0 4,0 0),(1 1,2 1,2 2,1 2,1 1))"),
    "mp": ("MULTIPOINT", "MULTIPOINT((0 0),(1 -1e-300))"),
    "ml": ("MULTILINESTRING", "MULTILINESTRING((0 0,1 1),(2 2,3 3))"),
    "ma": ("MULTIPOLYGON", "MULTIPOLYGON(((0 0,1 0,1 1,0 0)))"),
    "c": ("GEOMETRYCOLLECTION", "GEOMETRYCOLLECTION(POINT(1 1),LINESTRING(0 0,1 1))"),
    "g": ("GEOMETRY", "POINT(7 -8)"),
}
SRIDS = (0, 4326, 3857)
COPIED = 1_500
"""More rows than are sent as parameters."""


@pytest.fixture
def schema(mysql_source: Any, postgis: Any, fresh_schema: Any) -> str:
    """An empty schema of the same name on both sides."""
    name = str(fresh_schema(mysql_source))
    postgis.execute(f'CREATE SCHEMA "{name}"')
    return name


def test_shapes_arrive_as_postgis_has_them(
    tmp_path: Path, mysql_source: Any, postgis: Any, zookeeper: Any, schema: str
) -> None:
    """Of every type and several SRIDs: new, changed and removed rows, few and many, with a key and without; a column
    that comes later; verify.
    """
    columns = ", ".join(f"{name} {kind}" for name, (kind, _) in SHAPES.items())
    mysql_source.execute(
        f"CREATE TABLE {schema}.t (id INT PRIMARY KEY, {columns})", f"CREATE TABLE {schema}.unkeyed (n INT, {columns})"
    )

    def arrived(*tables: str) -> None:
        for table in tables:
            first = "n" if table == "unkeyed" else "id"
            names = [row[0] for row in mysql_source.execute(f"SHOW COLUMNS FROM {schema}.{table}")][1:]
            mine = ", ".join(f"HEX(ST_AsWKB({n}, 'axis-order=long-lat')), ST_SRID({n})" for n in names)
            theirs = ", ".join(
                f"upper(encode(public.ST_AsBinary({n}, 'NDR'), 'hex')), public.ST_SRID({n})" for n in names
            )
            here = mysql_source.execute(f"SELECT {first}, {mine} FROM {schema}.{table} ORDER BY 1, 2")
            there = postgis.execute(f'SELECT {first}, {theirs} FROM "{schema}".{table} ORDER BY 1, 2')
            assert there == here

    def shapes(srid: int) -> str:
        given = f", {srid}, 'axis-order=long-lat'" if srid == 4326 else f", {srid}"
        return ", ".join(f"ST_GeomFromText('{text}'{given})" for _, text in SHAPES.values())

    lines = f"    options: {{ack_schema: {schema}}}"
    with case(
        tmp_path, mysql_source, postgis, zookeeper, schema, kind="postgresql", target_extra=lines, start="dump"
    ) as made:
        planned = json.loads(made.cli("check", "case", "--json").stdout)["statements"][0]["statement"]
        assert '"p" public.geometry(point), "l" public.geometry(linestring)' in planned
        assert '"c" public.geometry(geometrycollection), "g" public.geometry)' in planned.replace(", PRIMARY KEY", ")")
        made.make_missing()
        assert "it is bytes" not in made.cli("check", "case", "--json").stdout
        nothing = ", ".join(["NULL"] * len(SHAPES))
        for table in ("t", "unkeyed"):
            rows = ", ".join(f"({number}, {shapes(srid)})" for number, srid in enumerate(SRIDS))
            mysql_source.execute(f"INSERT INTO {schema}.{table} VALUES {rows}, (9, {nothing})")
        made.run_until_head()
        arrived("t", "unkeyed")
        mysql_source.execute(
            f"USE {schema}",
            "SET cte_max_recursion_depth = 10000",
            "INSERT INTO t (id, p, g) WITH RECURSIVE k (n) AS (SELECT 100 UNION ALL SELECT n + 1 FROM k WHERE n < "
            f"{100 + COPIED}) SELECT n, POINT(n, -n), LINESTRING(POINT(0, n), POINT(n, 0)) FROM k",
            "UPDATE t SET g = a, p = NULL WHERE id < 3",
            "DELETE FROM unkeyed WHERE n = 1",
            "UPDATE unkeyed SET p = POINT(5, 5) WHERE n = 0",
        )
        made.run_until_head()
        arrived("t", "unkeyed")
        mysql_source.execute(
            f"USE {schema}",
            "UPDATE t SET g = p, p = POINT(id, 1) WHERE id > 100",
            "ALTER TABLE t ADD COLUMN later POLYGON",
            "UPDATE t SET later = a WHERE id = 2",
            "CREATE TABLE fresh (id INT PRIMARY KEY, place POINT NOT NULL SRID 4326)",
            "INSERT INTO fresh VALUES (1, ST_GeomFromText('POINT(48.2 16.4)', 4326))",
        )
        made.run_until_head()
        arrived("t", "fresh")
        assert postgis.execute(f'SELECT public.ST_X(place), public.ST_Y(place) FROM "{schema}".fresh') == [(16.4, 48.2)]
        with delivering(made):
            assert made.cli("verify", "case").returncode == 0
            postgis.execute(f'UPDATE "{schema}".t SET g = public.ST_Point(0, 0) WHERE id = 2')
            assert made.cli("verify", "case").returncode == 3
