"""The server decides: what is claimed of the rows that a random ALTER converts is what SELECT says after it."""

from __future__ import annotations

import os
import random
from typing import Any

import pymysql
import pytest

from sluice.config.connections import parse_connection
from sluice.model.row_effects import Ran
from sluice.model.schema_changes import TableChange
from sluice.model.tables import TableId
from sluice.mysql.ddl.row_effects import row_effects
from sluice.sources.mysql.catalog.information_schema import flavour_of, read_tables
from sluice.sources.mysql.server.connection import open_connection, server_info
from tests.support.values.conversions import BITS, LIKELY, TYPES, Untold, after, family, literals, plain

CASES = int(os.environ.get("SLUICE_CONVERSIONS", "60"))
SEED = int(os.environ.get("SLUICE_CONVERSIONS_SEED", "1"))
MODES = {
    False: ("STRICT_TRANS_TABLES", "", "TIME_TRUNCATE_FRACTIONAL",
        "STRICT_ALL_TABLES,PAD_CHAR_TO_FULL_LENGTH,TIME_TRUNCATE_FRACTIONAL"),
    True: ("STRICT_TRANS_TABLES", "", "TIME_ROUND_FRACTIONAL,STRICT_ALL_TABLES", "PAD_CHAR_TO_FULL_LENGTH"),
}  # fmt: skip


@pytest.fixture(params=["mysql", "mariadb"])
def server(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue("mysql_source" if request.param == "mysql" else "mariadb")


def values(cursor: Any, declared: str) -> dict[int, Any]:
    kind = family(declared)
    read = "c + 0e0" if kind in {"float", "double"} else "c + 0" if kind == "bit" else "c"
    cursor.execute(f"SELECT id, {read} FROM t")
    return {int(key): plain(value, kind) for key, value in cursor.fetchall()}


def pair(chosen: random.Random) -> tuple[str, str]:
    if chosen.random() < 0.5:
        return chosen.choice(TYPES), chosen.choice(TYPES)
    one, other = chosen.choice(LIKELY)
    return tuple(chosen.choice([t for t in TYPES if family(t) == kind]) for kind in (one, other))  # type: ignore[return-value]


@pytest.mark.timeout(300 + 4 * CASES)
def test_values_are_what_is_claimed(server: Any, fresh_schema: Any) -> None:
    db = fresh_schema(server, options="CHARACTER SET utf8mb4")
    endpoint = parse_connection("source", server.connection_json())
    chosen, wrong, told = random.Random(SEED), [], dict.fromkeys(("same", "converted", "unknown", "refused"), 0)
    with open_connection(endpoint) as probe, server.connect(db, conv={}) as connection, connection.cursor() as cursor:
        info = server_info(probe)
        flavour, table = flavour_of(probe, info), TableId(db, "t")
        for _ in range(CASES):
            old, new = pair(chosen)
            more_old, more_new = chosen.choice([("", ""), ("", ""), ("", " NOT NULL"), (" NOT NULL", "")])
            if "TIMESTAMP" in old + new or "AUTO" in new:
                more_old = more_new = ""
            mode = chosen.choice(MODES[flavour.mariadb])
            cursor.execute("SET sql_mode = 'NO_AUTO_VALUE_ON_ZERO', time_zone = '+00:00'")
            cursor.execute("DROP TABLE IF EXISTS t")
            engine = chosen.choice(["", "", "", " ENGINE=MyISAM"])
            cursor.execute(f"CREATE TABLE t (id INT PRIMARY KEY, c {old}{more_old}){engine}")
            for number, literal in enumerate([*literals(old, chosen), "NULL"]):
                try:
                    cursor.execute(f"INSERT INTO t VALUES ({number}, {literal})")
                except pymysql.err.MySQLError:
                    continue
            had = values(cursor, old)
            before = {d.table: d for d in read_tables(probe, flavour, [table])}[table]
            statement = f"ALTER TABLE t MODIFY c {new}{more_new}"
            try:
                cursor.execute(f"SET sql_mode = '{mode}'")
                cursor.execute(statement)
            except pymysql.err.MySQLError:
                told["refused"] += 1
                continue
            cursor.execute("SET sql_mode = ''")
            has = values(cursor, new)
            definition = {d.table: d for d in read_tables(probe, flavour, [table])}[table]
            bits = sum(BITS[name] for name in mode.split(",") if name)
            change = TableChange(table, (), before, definition)
            for effect in row_effects(change, Ran(statement, db, bits), mariadb=flavour.mariadb):
                if effect.unknown:
                    told["unknown"] += 1
                    continue
                told["same" if effect.same else "converted"] += 1
                for key, value in had.items():
                    try:
                        expected = after(value, effect.steps)
                    except Untold:
                        continue
                    if expected != has.get(key):
                        wrong.append((
                            f"{old}{more_old} -> {new}{more_new}{engine} ({mode})",
                            effect.steps,
                            value,
                            expected,
                            has.get(key),
                        ))
                        break
    print(told)
    assert not wrong, "\n".join(map(str, wrong))
    assert all(told.values()), told
