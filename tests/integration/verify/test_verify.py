"""``sluice verify`` on real servers: planted differences of every kind are found while writers work, and repaired;
nothing else is reported.
"""

from __future__ import annotations

import json
import random
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from sluice.errors import ConfigError, OutOfOrder, Paused
from sluice.model.dumps import Chunk
from sluice.model.tables import TableId
from sluice.mysql.range_digest import DigestColumn, digest_sql, row_text
from sluice.operations.control import pause
from sluice.operations.verify import units
from sluice.operations.verify import verify as flow
from sluice.operations.verify.verify import VerifySpec, verify
from sluice.targets.messages.arrow_messages import stream
from sluice.targets.mysql import connection as target_connection
from sluice.targets.postgresql import compare as listing
from sluice.targets.sql import compare
from tests.support.flows.verifying import VALUES, at, found, of, rewriting, verified
from tests.support.pipelines.case import Case, case
from tests.support.pipelines.dumping import KEYS, Writers, begin, both, delivering, fill
from tests.support.running.waiting import ended, wait_until

LIVE = "CREATE TABLE live (id INT PRIMARY KEY, version BIGINT NOT NULL, note VARCHAR(40))"
ROW = (
    "({i}, 'text {i}', 'padded', {i} / 7, {i} / 3, {i} / 9, 'caf\u00e9', '{{\"a\": {i}, \"b\": [1, 2.50]}}', "
    "'2024-03-01 10:00:00.123456' + INTERVAL {i} SECOND, "
    "x'00ff{h}', 1 + {i} % 3, {i} % 8, {i} * 3, REPEAT('long {i} ', 50))"
)
CHANGED = {
    1: ("txt = 'changed'", "txt"),
    2: ("txt = NULL", "txt"),
    3: ("pad = 'padded '", "pad"),
    4: ("dbl = -0.0e0", "dbl"),
    5: ("flt = -0.0e0", "flt"),
    6: ("dec_ = dec_ + 0.0001", "dec_"),
    7: ("word = 'cafe'", "word"),
    8: ("doc = JSON_SET(doc, '$.b[1]', 2.5001)", "doc"),
    9: ("at_ = at_ + INTERVAL 1 HOUR", "at_"),
    10: ("raw = x'00ff'", "raw"),
    11: ("kind = 'a'", "kind"),
    12: ("tags = 'x,z'", "tags"),
    13: ("bits = 4095", "bits"),
    14: ("long_ = CONCAT(long_, '!')", "long_"),
    16: ("flt = flt + 0.000001", "flt"),
    17: ("dbl = dbl + 1e-15", "dbl"),
    18: ("txt = 'TEXT 18'", "txt"),
    19: ("doc = NULL, raw = ''", "doc,raw"),
}
"""By id: what is changed at the target, and the columns that differ then."""

ANYWHERE = [
    ("txt", "NULL"), ("pad", "'padded '"), ("pad", "'PADDED'"), ("dbl", "dbl * (1 + 1e-15)"), ("flt", "-flt"),
    ("dec_", "dec_ + 0.0001"),
    ("word", "'caf'"), ("doc", "JSON_SET(doc, '$.b[1]', 2.51)"), ("doc", "NULL"), ("at_", "at_ + INTERVAL 1 HOUR"),
    ("at_", "at_ + INTERVAL 1 MICROSECOND"), ("raw", "x'00'"), ("bits", "bits ^ 1"), ("long_", "CONCAT(long_, ' ')"),
    ("long_", "UPPER(long_)"),
]  # fmt: skip
"""Columns and what they are at the target: another value whatever the row has."""


@pytest.fixture
def shop(tmp_path, mysql_source, mysql_target, zookeeper, fresh_schema) -> Iterator[Case]:
    schema = fresh_schema(mysql_source, mysql_target)
    with case(tmp_path, mysql_source, mysql_target, zookeeper, schema) as made:
        yield made


def settings(made: Case, text: str) -> None:
    made.yaml += f"\n{text}\n"
    made.path.write_text(made.yaml, encoding="utf-8")


@pytest.mark.parametrize("way", ["checksums", "rows"])
def test_every_planted_difference_is_found_while_writers_work_and_repaired(shop: Case, way: str) -> None:
    settings(shop, "dump: {chunk_rows: 900, parallelism: 2}")
    both(shop, LIVE)
    both(shop, VALUES)
    both(shop, "CREATE TABLE words (w VARCHAR(20) COLLATE utf8mb4_0900_ai_ci PRIMARY KEY, v INT)")
    both(shop, "CREATE TABLE shapes (id INT PRIMARY KEY, s GEOMETRY)")
    if way == "rows":  # another type at the target, in which no value is lost
        at(
            shop.target,
            shop,
            "ALTER TABLE vals MODIFY txt VARCHAR(30) CHARACTER SET utf8mb3, MODIFY dec_ DECIMAL(14,6)",
        )
        at(shop.target, shop, "ALTER TABLE live MODIFY note TEXT", "ALTER TABLE words MODIFY v BIGINT")
    begin(shop)
    fill(shop, "live", 2000)
    rows = ", ".join(ROW.format(i=i, h=f"{i % 256:02x}") for i in range(1, 1200))
    at(
        shop.source,
        shop,
        f"INSERT INTO vals VALUES {rows}, (5000, NULL, '', 0, 0, 0, '', NULL, NULL, '', NULL, '', 0, '')",
        "UPDATE vals SET dbl = 0, txt = '' WHERE id IN (2, 4)",
        "UPDATE vals SET txt = '' WHERE id % 2 AND id > 99",
        "UPDATE vals SET flt = 0 WHERE id = 5",
        "INSERT INTO shapes VALUES (1, ST_GeomFromText('POINT(1 1)')), (2, NULL)",
        "INSERT INTO words VALUES ('abc', 1), ('\u00e9t\u00e9', 2), ('plain', 3)",
    )
    shop.run_until_head()
    planted = {("vals", (str(i),), "different", tuple(columns.split(","))) for i, (_, columns) in CHANGED.items()}
    at(shop.target, shop, *(f"UPDATE vals SET {change} WHERE id = {i}" for i, (change, _) in CHANGED.items()))
    many = random.Random(7).sample(range(100, 1200), 180)  # any row, any kind
    for number, i in enumerate(many):
        if i == 600:
            continue
        kind = number % (len(ANYWHERE) + 2)
        if kind < len(ANYWHERE):
            name, value = ANYWHERE[kind]
            at(shop.target, shop, f"UPDATE vals SET {name} = {value} WHERE id = {i}")
            planted.add(("vals", (str(i),), "different", (name,)))
        elif kind == len(ANYWHERE):
            at(shop.target, shop, f"DELETE FROM vals WHERE id = {i}")
            planted.add(("vals", (str(i),), "missing", ()))
        else:
            at(shop.target, shop, f"INSERT INTO vals (id, txt) VALUES ({100_000 + i}, 'extra')")
            planted.add(("vals", (str(100_000 + i),), "extra", ()))
    at(
        shop.target,
        shop,
        "UPDATE vals SET doc = JSON_OBJECT('b', JSON_ARRAY(1, 2.50), 'a', id) WHERE id = 20",  # the same
        "UPDATE vals SET txt = NULL WHERE id = 5000",  # the same
        "DELETE FROM vals WHERE id IN (30, 31)",
        "INSERT INTO vals (id, txt) VALUES (-7, 'extra'), (700000, 'extra')",
        "UPDATE words SET w = 'ABC' WHERE w = 'abc'",
        "UPDATE words SET w = 'ete' WHERE w = '\u00e9t\u00e9'",
        "UPDATE shapes SET s = ST_GeomFromText('POINT(1 2)') WHERE id = 1",
        "DELETE FROM live WHERE id = 1900",
        "UPDATE live SET version = 77 WHERE id = 1500",
        "INSERT INTO live VALUES (1000000, 1, 'extra')",
    )
    planted |= {("vals", (str(i),), "missing", ()) for i in (30, 31)}
    planted |= {("vals", (str(i),), "extra", ()) for i in (-7, 700000)}
    planted |= {("words", (w,), "different", ("w",)) for w in ("abc", "\u00e9t\u00e9")}
    planted |= {("shapes", ("1",), "different", ("s",))}
    planted |= {
        ("live", ("1900",), "missing", ()),
        ("live", ("1500",), "different", ("version",)),
        ("live", ("1000000",), "extra", ()),
    }
    with Writers(shop, "live", 600, seed=3), rewriting(shop, "vals", 600), delivering(shop):
        first = verified(shop)
        assert found(first) == planted
        assert len(planted) >= 200
        assert first.outcome == "different"
        ways = {t.table.split(".")[1]: t.way for t in first.tables}
        assert ways == {"vals": way, "live": "checksums", "words": "checksums", "shapes": "rows"}
        assert of(first, "vals").rows == 1200
        repaired = verified(shop, repair=True, by="anna@here")
        assert found(repaired) == planted
        assert (repaired.outcome, repaired.differing) == ("equal", 0)
        assert sum(t.repaired for t in repaired.tables) == len(planted)
        again = verified(shop)
        assert (found(again), again.outcome) == (set(), "equal")
    shop.run_until_head()
    if way == "checksums":
        shop.assert_equal("vals", "words", "live", "shapes")
    with shop.runtime().state() as state:
        [entry] = [entry for entry in state.audit.entries() if entry["what"] == "repair"]
    assert (entry["by"], entry["dump"]) == ("anna@here", repaired.repair[0])


TOLD_APART = {
    "a": ("TINYINT", ("NULL", "-1", "0", "1")),
    "b": ("VARCHAR(9) CHARACTER SET latin1", ("NULL", "''", "','", "'1,'", "'0'", "' '", "'é'")),
    "c": ("BIGINT UNSIGNED", ("NULL", "0", "18446744073709551615")),
    "d": ("VARBINARY(9)", ("NULL", "x''", "x'2c'", "x'00'", "x'0000'", "x'e9'", "x'c3a9'")),
    "e": ("DOUBLE", ("NULL", "0", "-0e0", "1e0")),
    "f": ("DECIMAL(6,2)", ("NULL", "0", "1.1")),
    "g": ("VARCHAR(9) CHARACTER SET utf16", ("NULL", "''", "'é'", "','")),
}


@pytest.mark.parametrize("kind", ["mysql_source", "mariadb"])
def test_no_two_rows_have_the_same_text(kind: str, request: pytest.FixtureRequest, fresh_schema) -> None:
    server = request.getfixturevalue(kind)
    schema = fresh_schema(server)
    sets = [
        " UNION ALL ".join(f"SELECT {value} AS {name}" for value in values) for name, (_, values) in TOLD_APART.items()
    ]
    columns = [DigestColumn(name, declared.partition(" CHAR")[0].lower()) for name, (declared, _) in TOLD_APART.items()]
    conditions = [f"{name} IS NOT NULL" for name in TOLD_APART]
    rows = 1
    for _, values in TOLD_APART.values():
        rows *= len(values)
    text, bare = row_text(columns), row_text([replace(column, nullable=False) for column in columns])
    *_, [(count, texts, longest)] = [
        server.execute(f"USE `{schema}`", sql)
        for sql in (
            f"CREATE TABLE t ({', '.join(f'{name} {declared}' for name, (declared, _) in TOLD_APART.items())})",
            f"INSERT INTO t SELECT * FROM {', '.join(f'({some}) s{i}' for i, some in enumerate(sets))}",
            f"SELECT COUNT(*), COUNT(DISTINCT {text}), MAX(LENGTH({text})) FROM t",
        )
    ]
    distinct = rows if kind == "mysql_source" else rows * 3 // 4  # MariaDB writes -0e0 as 0
    assert (count, texts) == (rows, distinct)
    assert longest < 100
    # A column that may be NULL at one side only.
    [(same,)] = server.execute(f"SELECT MIN({text} <=> {bare}) FROM `{schema}`.t WHERE {' AND '.join(conditions)}")
    assert same == 1
    mariadb = kind == "mariadb"
    [[whole, checksum]] = server.execute(digest_sql(TableId(schema, "t"), columns, "", mariadb=mariadb))
    assert (whole, checksum > 2**32) == (rows, True)
    [[none, nothing]] = server.execute(digest_sql(TableId(schema, "t"), columns, "", "a > 99", mariadb=mariadb))
    assert (none, int(nothing)) == (0, 0)
    # Two rows swap a value: a CRC32 of the rows would stay.
    server.execute(f"USE `{schema}`", "CREATE TABLE u LIKE t", "INSERT INTO u (a, b) VALUES (0, 'x'), (1, 'y')")
    before = server.execute(digest_sql(TableId(schema, "u"), columns, "", mariadb=mariadb))
    server.execute(f"USE `{schema}`", "UPDATE u SET a = 1 - a")
    assert server.execute(digest_sql(TableId(schema, "u"), columns, "", mariadb=mariadb)) != before


@pytest.mark.parametrize("marks", ["auto", "none"])
def test_nothing_is_reported_that_is_on_its_way(shop: Case, marks: str) -> None:
    """Few rows, written without a pause, in pieces of which each differs at nearly every look."""
    settings(shop, f"dump: {{chunk_rows: 50, marks: {marks}}}")
    both(shop, LIVE)
    begin(shop)
    fill(shop, "live", 400)
    shop.run_until_head()
    with Writers(shop, "live", 150, seed=11, count=3) as writers, delivering(shop):
        for _ in range(2):
            result = verified(shop)
            assert found(result) == set()
            assert result.differing == 0
        assert writers.changes


def test_keys_of_every_type(shop: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing rows and rows that only the target has, by keys of every type; of the latter the target tells few at a
    time.
    """
    monkeypatch.setattr(compare, "MOST_EXTRA", 3)
    rows = 60
    for name, (columns, values) in KEYS.items():
        both(shop, f"CREATE TABLE `k {name}` ({columns}, v INT) DEFAULT CHARSET utf8mb4 COLLATE utf8mb4_bin")
        lines = [values.replace("{i}", str(i)) for i in range(rows)]
        at(
            shop.source,
            shop,
            f"INSERT INTO `k {name}` VALUES {','.join(line for i, line in enumerate(lines) if i % 5)}",
        )
        at(
            shop.target,
            shop,
            f"INSERT INTO `k {name}` VALUES {','.join(line for i, line in enumerate(lines) if i % 3)}",
        )
    begin(shop)
    missing = sum(1 for i in range(rows) if i % 5 and not i % 3)
    extra = sum(1 for i in range(rows) if i % 3 and not i % 5)
    with delivering(shop):
        result = verified(shop, repair=True)
    kinds = [[difference.kind for difference in table.differences] for table in result.tables]
    assert [(k.count("missing"), k.count("extra"), len(k)) for k in kinds] == [(missing, extra, missing + extra)] * len(
        KEYS
    )
    assert {table.way for table in result.tables} == {"checksums"}
    assert (result.outcome, sum(table.repaired for table in result.tables)) == ("equal", len(KEYS) * (missing + extra))
    for name in KEYS:
        here, there = (
            s.execute(f"SELECT v FROM `{shop.schema}`.`k {name}` ORDER BY v") for s in (shop.source, shop.target)
        )
        assert here == there
    literals = {key for table in result.tables for difference in table.differences for key in difference.key}
    assert not any("_utf8mb4" in key for key in literals)


def test_what_is_compared_is_what_would_be_loaded(shop: Case) -> None:
    """Another name, excluded and renamed columns, a generated column, and one that only the target has."""
    at(
        shop.source,
        shop,
        "CREATE TABLE t (a INT, b INT, c VARCHAR(20), d VARCHAR(20), s INT AS (a + b) STORED, PRIMARY KEY (b, a))",
    )
    at(
        shop.target,
        shop,
        "CREATE TABLE u (a2 INT, b INT, C VARCHAR(20), s INT AS (a2 + b) STORED, own VARCHAR(9) DEFAULT 'mine', "
        "PRIMARY KEY (b, a2))",
    )
    settings(
        shop,
        f"mapping: [{{from: {shop.schema}.t, to: {shop.schema}.u, columns: {{exclude: [d], rename: {{a: a2}}}}}}]\n"
        f"masked: ['{shop.schema}\\.t\\.c']",
    )
    begin(shop)
    at(
        shop.source,
        shop,
        f"INSERT INTO t (a, b, c, d) VALUES {','.join(f'({i}, {i % 5}, {i}, {i})' for i in range(300))}",
    )
    shop.run_until_head()
    with delivering(shop):
        assert verified(shop).outcome == "equal"
        at(shop.target, shop, "UPDATE u SET own = 'other'")
        assert verified(shop).outcome == "equal"
        at(
            shop.target,
            shop,
            "UPDATE u SET c = 'x' WHERE a2 = 7",
            "INSERT INTO u (a2, b) VALUES (999, 2)",
            "DELETE FROM u WHERE a2 = 12",
        )
        result = verified(shop, values=True)
        assert of(result, "t").way == "checksums"
        assert found(result) == {
            ("t", ("2", "7"), "different", ("C",)), ("t", ("2", "999"), "extra", ()), ("t", ("2", "12"), "missing", ()),
        }  # fmt: skip
        [shown] = [d.values for d in of(result, "t").differences if d.values]
        assert shown == (("***", "***"),)
        assert verified(shop, repair=True).outcome == "equal"
    assert at(shop.target, shop, "SELECT COUNT(*), SUM(own = 'other') FROM u") == [(300, 299)]


def test_rows_go_through_the_rules(shop: Case) -> None:
    both(shop, "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(40))")
    rules = shop.folder / "rules"
    (rules / "up.py").write_text(
        "def transform(row, context):\n    if context.op == 'update':\n        return None\n"
        "    return {**row, 'v': row['v'].upper()} if row['id'] % 10 else None\n",
        encoding="utf-8",
    )
    (rules / "engine.yaml").write_text("rules: [{name: up, path: up.py, type: row}]\n", encoding="utf-8")
    settings(shop, "rules: engine.yaml")
    begin(shop)
    at(shop.source, shop, f"INSERT INTO t VALUES {','.join(f'({i}, {chr(39)}v{i}{chr(39)})' for i in range(200))}")
    shop.run_until_head()
    with delivering(shop):
        equal = of(verified(shop), "t")
        assert (equal.way, equal.rows, equal.differing) == ("rows of the source", 200, 0)
        assert "keys for which the rules give nothing" in equal.note
        at(shop.target, shop, "UPDATE t SET v = 'v3' WHERE id = 3", "DELETE FROM t WHERE id = 4")
        result = verified(shop, repair=True)
        assert found(result) == {("t", ("3",), "different", ("v",)), ("t", ("4",), "missing", ())}
        assert result.outcome == "equal"
        (rules / "up.py").write_text(
            "import time\n\ndef transform(row, context):\n    return {**row, 'v': str(time.time_ns())}\n",
            encoding="utf-8",
        )
        assert "other rows of" in of(verified(shop), "t").skipped
        (rules / "up.sql").write_text("SELECT * REPLACE (v || random() AS v) FROM rows", encoding="utf-8")
        (rules / "engine.yaml").write_text("rules: [{name: up, path: up.sql, type: sql}]\n", encoding="utf-8")
        assert "other rows of" in of(verified(shop), "t").skipped
        at(shop.target, shop, "ALTER TABLE t ADD COLUMN op VARCHAR(9), ADD COLUMN origin BIGINT UNSIGNED")
        for what in ("op", "origin"):  # of an update, of another server's change
            (rules / "engine.yaml").write_text(
                f"rules: [{{name: up, builtin: add, params: {{metadata: {{{what}: {what}}}}}}}]\n", encoding="utf-8"
            )
            assert "other rows of an update" in of(verified(shop), "t").skipped.replace(f"of {shop.schema}.t of", "of")
    assert at(shop.target, shop, "SELECT COUNT(*), MIN(BINARY v LIKE 'V%') FROM t") == [(180, 1)]


def test_ranges_are_compared_on_spark(shop: Case, spark_connect, monkeypatch: pytest.MonkeyPatch) -> None:
    both(shop, "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(40))")
    both(shop, LIVE)
    rules = shop.folder / "rules"
    (rules / "up.py").write_text(
        "def transform(row, context):\n    return {**row, 'v': row['v'].upper()}\n", encoding="utf-8"
    )
    (rules / "engine.yaml").write_text(
        "rules: [{name: up, path: up.py, type: row, match: {table: t}}]\n", encoding="utf-8"
    )
    settings(shop, "rules: engine.yaml")
    shop.yaml = re.sub(r"(?m)^spark: .*$", "spark: {from_changes: 100}", shop.yaml)
    shop.path.write_text(shop.yaml, encoding="utf-8")
    shop.connections["spark_connect_default"] = spark_connect.connection_json()
    monkeypatch.setattr(flow, "MOST_RANGE_ROWS", 200)
    begin(shop)
    at(shop.source, shop, f"INSERT INTO t VALUES {','.join(f'({i}, {chr(39)}v{i}{chr(39)})' for i in range(2000))}")
    at(shop.source, shop, "ANALYZE TABLE t")
    shop.run_until_head()
    at(shop.target, shop, "UPDATE t SET v = 'v3' WHERE id = 3", "DELETE FROM t WHERE id = 1500")
    ran: list[int] = []
    original = units.Spread.__call__
    monkeypatch.setattr(units.Spread, "__call__", lambda self, some: ran.append(len(some)) or original(self, some))
    with Writers(shop, "live", 100, seed=8, count=1), rewriting(shop, "t", 700, "v"), delivering(shop):
        result = verify(shop.runtime("connect"), VerifySpec())
    assert found(result) == {("t", ("3",), "different", ("v",)), ("t", ("1500",), "missing", ())}
    assert of(result, "t").rows == 2000
    assert sum(ran) >= 10


def test_rows_go_through_a_rule_on_dataframes(shop: Case, spark_connect) -> None:
    both(shop, "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(40), n BIGINT UNSIGNED)")
    rules = shop.folder / "rules"
    (rules / "up.py").write_text(
        "def transform(row, context):\n    return {**row, 'v': row['v'] + '!'}\n", encoding="utf-8"
    )
    (rules / "frame.py").write_text(
        "from pyspark.sql import functions as F\n\n\ndef transform(frame, context):\n"
        "    return frame.where(F.col('id') % 10 > 0).withColumn('v', F.upper('v'))\n",
        encoding="utf-8",
    )
    (rules / "engine.yaml").write_text(
        "rules:\n  - {name: up, path: up.py, type: row, order: 1}\n  - {name: frame, path: frame.py, type: spark, "
        "order: 2}\n",
        encoding="utf-8",
    )
    settings(shop, "rules: engine.yaml")
    shop.connections["spark_connect_default"] = spark_connect.connection_json()
    begin(shop)
    at(
        shop.source,
        shop,
        f"INSERT INTO t VALUES {','.join(f'({i}, {chr(39)}v{i}{chr(39)}, {2**63 + i})' for i in range(50))}",
    )
    shop.run_until_head("connect")
    assert at(shop.target, shop, "SELECT COUNT(*), MIN(BINARY v LIKE 'V%!') FROM t") == [(45, 1)]
    at(shop.target, shop, "UPDATE t SET v = 'v3!' WHERE id = 3", "DELETE FROM t WHERE id = 4")
    with delivering(shop, "connect"):
        result = verify(shop.runtime("connect"), VerifySpec(repair=True))
    assert found(result) == {("t", ("3",), "different", ("v",)), ("t", ("4",), "missing", ())}
    assert (of(result, "t").rows, result.outcome) == (50, "equal")


def unwrapped(text: str) -> str:
    """Without the line breaks of the terminal's width."""
    return " ".join(text.split())


def test_rows_without_a_key_are_counted_however_long_the_target_is_waited_for(
    shop: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target's server ends a session that is silent for ``IDLE_S``, and the error names what stands still."""
    monkeypatch.setattr(target_connection, "IDLE_S", 8)
    both(shop, "CREATE TABLE keyless (a INT)")
    begin(shop)
    at(shop.source, shop, "INSERT INTO keyless VALUES (1)")
    shop.run_until_head()
    at(shop.source, shop, "INSERT INTO keyless VALUES (2)")  # which nobody captures
    with pytest.raises(OutOfOrder, match="nothing moved for 20 s"):
        verified(shop, patience_s=20)
    with delivering(shop):
        assert verified(shop).tables[0].equal == 2


def test_the_command(shop: Case) -> None:
    both(shop, "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(40))")
    both(shop, "CREATE TABLE keyless (a INT)")
    begin(shop)
    at(shop.source, shop, "INSERT INTO t VALUES (1, 'a'), (2, NULL)", "INSERT INTO keyless VALUES (1)")
    shop.run_until_head()
    with delivering(shop):
        name, table = str(shop.path), f"{shop.schema}.t"
        assert "not verified yet" in shop.cli("verify", "show", name).stderr
        all_ = shop.cli("verify", name)
        assert (all_.returncode, "it has no key: rows are counted" in unwrapped(all_.stdout)) == (0, True)
        assert shop.cli("verify", name, "--table", table).returncode == 0
        at(shop.target, shop, "UPDATE t SET v = '' WHERE id = 2")
        differs = shop.cli("verify", name, "--table", table, "--values")
        assert differs.returncode == 3
        assert "(2) v: NULL, at the target ''" in unwrapped(differs.stdout)
        shown = json.loads(shop.cli("verify", "show", name, "--json").stdout)
        assert (shown["outcome"], shown["tables"][0]["different"], shown["format_version"]) == ("different", 1, 1)
        repaired = shop.cli("verify", "--table", table, "--repair", "--yes", name)
        assert repaired.returncode == 0
        assert "before the repair: (2) differs in v" in unwrapped(repaired.stdout)
        assert len(json.loads(shop.cli("verify", "list", name, "--json").stdout)) == 4
        assert "verified" in shop.cli("status", name).stdout
        assert shop.cli("verify", name, "--table", f"{shop.schema}.nix").returncode == 1
        assert shop.cli("verify", name, "--sample", "0%").returncode == 1
    at(shop.source, shop, "UPDATE t SET v = 'later' WHERE id = 1")
    at(shop.target, shop, "DELETE FROM t WHERE id = 1")
    pause(shop.runtime(), by="anna", reason="a test")
    with pytest.raises(Paused, match="paused by anna"):
        verified(shop, tables=[table])


def test_a_sample(shop: Case) -> None:
    settings(shop, "dump: {chunk_rows: 10}")
    both(shop, LIVE)
    begin(shop)
    fill(shop, "live", 1000)
    shop.run_until_head()
    with delivering(shop):
        one = of(verified(shop, sample=0.3), "live")
    assert one.ranges == 101
    assert 0 < one.ranges_compared < 101
    assert one.rows <= one.ranges_compared * 10
    assert one.differing == 0


def test_a_target_of_the_other_dialect(tmp_path, mysql_source, mariadb, zookeeper, fresh_schema) -> None:
    schema = fresh_schema(mysql_source, mariadb)
    with case(tmp_path, mysql_source, mariadb, zookeeper, schema) as made:
        both(made, "CREATE TABLE t (id INT PRIMARY KEY, doc JSON, f FLOAT, b BLOB, at_ DATETIME(3))")
        begin(made)
        rows = [
            f"({i}, '{{\"z\": {i}, \"a\": 1}}', {i} / 3, x'{i:04x}', '2024-01-01' + INTERVAL {i} SECOND)"
            for i in range(500)
        ]
        at(made.source, made, f"INSERT INTO t VALUES {','.join(rows)}")
        made.run_until_head()
        with delivering(made):
            assert of(verified(made), "t").equal == 500
            at(
                made.target,
                made,
                "UPDATE t SET f = f + 1 WHERE id = 9",
                "INSERT INTO t (id) VALUES (-1)",
                "DELETE FROM t WHERE id = 499",
            )
            result = verified(made, repair=True)
            assert found(result) == {
                ("t", ("9",), "different", ("f",)),
                ("t", ("-1",), "extra", ()),
                ("t", ("499",), "missing", ()),
            }
            assert of(result, "t").way == "rows"
            assert result.outcome == "equal"


def test_a_source_whose_snapshots_are_marks(tmp_path, mariadb, mysql_target, zookeeper, fresh_schema) -> None:
    schema = fresh_schema(mariadb, mysql_target)
    with case(tmp_path, mariadb, mysql_target, zookeeper, schema) as made:
        settings(made, "dump: {chunk_rows: 100, marks: none}")
        both(made, LIVE)
        begin(made)
        fill(made, "live", 500)
        made.run_until_head()
        at(made.target, made, "UPDATE live SET note = NULL WHERE id = 450", "DELETE FROM live WHERE id = 451")
        with Writers(made, "live", 200, seed=5), delivering(made):
            result = verified(made, repair=True)
        planted = {("live", ("450",), "different", ("note",)), ("live", ("451",), "missing", ())}
        assert found(result) == planted
        assert (of(result, "live").way, result.outcome) == ("checksums", "equal")


def test_postgresql(
    tmp_path, mysql_source, postgresql, zookeeper, fresh_schema, fresh_pg_schema, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = fresh_pg_schema(fresh_schema(mysql_source, options="CHARACTER SET utf8mb4"))
    extra = f"    options: {{ack_schema: {schema}}}"
    with case(
        tmp_path, mysql_source, postgresql, zookeeper, schema, kind="postgresql", target_extra=extra, start="dump"
    ) as made:
        rows = [
            f"({i}, 'text {i}', {i} / 7, {i} / 3, '{{\"z\": {i}, \"a\": 1}}', x'{i:04x}', '2024-01-01' + INTERVAL {i} "
            f"SECOND, {i} / 8)"
            for i in range(1500)
        ]
        mysql_source.execute(
            f"USE `{schema}`",
            "CREATE TABLE t (id INT PRIMARY KEY, txt VARCHAR(30), d DOUBLE, f FLOAT, doc JSON, b BLOB, at_ "
            "DATETIME(3), n DECIMAL(20,6))",
            f"INSERT INTO t VALUES {','.join(rows)}, (5000, NULL, 0, NULL, NULL, NULL, NULL, NULL)",
            "CREATE TABLE bare (a INT, b VARCHAR(9))",
            "CREATE TABLE words (w VARCHAR(20), n INT, PRIMARY KEY (w, n))",
            f"INSERT INTO words VALUES {','.join(f'({chr(39)}wört {i}{chr(39)}, {i})' for i in range(300))}",
            "CREATE TABLE named (w VARCHAR(20) COLLATE utf8mb4_general_ci PRIMARY KEY, v INT)",
            # spaces at the end mean nothing
            "INSERT INTO named VALUES ('anna', 1), ('Bob', 2), ('it''s 5\\\\%', 3), ('x', 4)",
            "CREATE TABLE coded (c CHAR(5) PRIMARY KEY, v INT)",
            "INSERT INTO coded VALUES ('a', 1), ('b', 2)",
        )
        postgresql.execute(f'CREATE TABLE "{schema}".coded (c character(5) PRIMARY KEY, v integer)')
        assert made.cli("check", "case", "--apply", "--yes").returncode == 0
        made.run_until_head()
        mysql_source.execute(
            f"INSERT INTO `{schema}`.bare VALUES {','.join(f'({i % 10}, {i % 10})' for i in range(60))}"
        )
        with delivering(made):
            assert of(verified(made), "t").equal == 1501
            assert of(verified(made), "bare").equal == 60
            postgresql.execute(
                f'SET search_path = "{schema}"',
                "UPDATE t SET txt = txt || ' ' WHERE id = 1",
                "UPDATE t SET txt = '' WHERE id = 5000",
                "UPDATE t SET d = '-0', f = f + 0.000001 WHERE id = 0",
                'UPDATE t SET doc = \'{"a": 1, "z": 3}\' WHERE id = 3',  # the same
                'UPDATE t SET doc = \'{"a": 1.0, "z": 4}\', n = n + 0.000001 WHERE id = 4',
                "DELETE FROM t WHERE id = 1499",
                "INSERT INTO t (id) VALUES (-5), (-4), (7000), (7001)",
                "INSERT INTO bare VALUES (3, NULL), (3, ''), (4, '4')",
            )
            monkeypatch.setattr(compare, "MOST_EXTRA", 1)
            counts = of(verified(made), "bare")
            assert {(d.key, d.kind, d.copies) for d in counts.differences} == {
                (("3", "NULL"), "extra", 1), (("3", ""), "extra", 1), (("4", "4"), "extra", 1),
            }  # fmt: skip
            postgresql.execute(f'SET search_path = "{schema}"', "DELETE FROM bare")
            counts = of(verified(made), "bare")
            assert (counts.missing, counts.extra, len(counts.differences)) == (60, 0, 10)
            result = verified(made, repair=True, values=True, tables=[f"{schema}.t"])
            assert found(result) == {
                *(("t", (key,), "extra", ()) for key in ("-4", "7000", "7001")),
                ("t", ("1",), "different", ("txt",)), ("t", ("5000",), "different", ("txt",)),
                ("t", ("0",), "different", ("d", "f")),
                ("t", ("4",), "different", ("doc", "n")), ("t", ("1499",), "missing", ()), ("t", ("-5",), "extra", ()),
            }  # fmt: skip
            assert (of(result, "t").way, result.outcome) == ("rows", "equal")
            assert verified(made, tables=[f"{schema}.t"]).outcome == "equal"
            monkeypatch.setattr(listing, "KEYS_AT_A_TIME", 7)
            postgresql.execute(
                f'SET search_path = "{schema}"', "INSERT INTO words VALUES ('WÖRT 7', 7), ('wört 7 ', 7), ('wört 8', "
                "-8)",
                "DELETE FROM words WHERE n = 200",
            )  # fmt: skip
            result = verified(made, repair=True, tables=[f"{schema}.words"])
            extra = {("words", key, "extra", ()) for key in (("WÖRT 7", "7"), ("wört 7 ", "7"), ("wört 8", "-8"))}
            assert found(result) == {*extra, ("words", ("wört 200", "200"), "missing", ())}
            assert (of(result, "words").way, of(result, "words").repaired, result.outcome) == ("rows", 4, "equal")
            assert "rows" not in of(result, "words").note
            planted = ("", "ANNA", "Anna ", "änna", "bob", "Bob ", "it's 5\\", "x\t", "came", "came ")
            postgresql.execute(
                f'SET search_path = "{schema}"',
                "INSERT INTO named VALUES "
                + ", ".join(f"('{key.replace(chr(39), chr(39) * 2)}', 9)" for key in planted),
                "UPDATE named SET v = 7 WHERE w = 'x'",
                "INSERT INTO coded VALUES ('A', 1), ('', 1), ('b1', 1)",
            )

            def came() -> None:
                """With a batch before that of the chunk, so that nothing puts it back if it is removed."""
                mysql_source.execute(f"INSERT INTO `{schema}`.named VALUES ('came', 5)")
                there = f"SELECT 1 FROM \"{schema}\".named WHERE w = 'came' AND v = 5"
                wait_until(lambda: postgresql.execute(there), "the row that came meanwhile")

            with between_marks(monkeypatch, came):
                result = verified(made, repair=True, tables=[f"{schema}.named"])
            assert found(result) == {
                *(("named", (key,), "extra", ()) for key in planted), ("named", ("x",), "different", ("v",)),
            }  # fmt: skip
            assert (result.outcome, of(result, "named").repaired) == ("equal", 11)
            again = verified(made, repair=True)
            assert found(again) >= {("coded", (key,), "extra", ()) for key in ("A", "", "b1")}
            assert of(again, "coded").repaired == 3
            assert {one.table for one in again.tables if one.differing} == {f"{schema}.bare"}
            rows = postgresql.execute(f'SELECT w, v FROM "{schema}".named')
            assert set(rows) == {("anna", 1), ("Bob", 2), ("it's 5\\%", 3), ("x", 4), ("came", 5)}
            assert set(postgresql.execute(f'SELECT rtrim(c), v FROM "{schema}".coded')) == {("a", 1), ("b", 2)}


@contextmanager
def between_marks(monkeypatch: pytest.MonkeyPatch, do: Callable[[], Any]) -> Iterator[None]:
    """Something is done while the one chunk of a repair is read, after its rows were and before its high watermark."""
    steps: list[str] = []
    real = flow.work

    def hook(step: str, chunk: Chunk) -> None:
        steps.append(step)
        if step == "selected":
            do()

    with monkeypatch.context() as patched:
        patched.setattr(flow, "work", lambda *some, **more: real(*some, **more, hook=hook))
        yield
    assert steps.count("selected") == 1


def test_rows_of_another_pipeline_are_reported_and_stay(shop: Case) -> None:
    both(shop, "CREATE TABLE t (id INT PRIMARY KEY)")
    begin(shop)
    at(shop.source, shop, "INSERT INTO t VALUES (1)")
    at(shop.target, shop, "INSERT INTO t VALUES (7)")
    with delivering(shop):  # nothing was delivered before
        first = verified(shop)
        assert found(first) >= {("t", ("7",), "extra", ())}
        wait_until(lambda: at(shop.target, shop, "SELECT COUNT(*) FROM t") == [(2,)], "the row is delivered")
        ack = "INSERT INTO _sluice_ack (pipeline, target, scope, epoch, batch) VALUES ('another', 'copy', '', 1, 1)"
        at(shop.target, shop, ack)
        result = verified(shop, repair=True)
    assert found(result) == {("t", ("7",), "extra", ())}
    assert (result.outcome, of(result, "t").extra) == ("different", 1)
    assert "another" in of(result, "t").note
    assert at(shop.target, shop, "SELECT id FROM t ORDER BY id") == [(1,), (7,)]


KEYLESS = [
    ("a = 1", 1), ("a = a + 0.000001", 1), ("b = 'B'", 1), ("b = 'b '", 1), ("b = NULL", 1), ("c = -0.0e0", 1),
    ("d = 0x00", 1),
    ("e = '2024-01-01 00:00:00.001'", 1), ("j = '{\"b\": 3}'", 1), ("k = 'y'", 1), ("j = '{\"b\": 2, \"a\": 1}'", 0),
]  # fmt: skip
"""Changes of one row, and how many rows differ then."""


def test_rows_without_a_key_are_counted(shop: Case) -> None:
    columns = "a DOUBLE, b VARCHAR(20), c FLOAT, d VARBINARY(9), e DATETIME(3), j JSON, k ENUM('x','y')"
    both(shop, f"CREATE TABLE bare (n INT, {columns}) DEFAULT CHARSET utf8mb4")
    both(shop, "CREATE TABLE busy (a INT, b INT)")
    both(shop, "CREATE TABLE shared (a INT)")
    settings(shop, f"masked: ['{shop.schema}\\.bare\\.b']")
    begin(shop)
    row = "7, 'b', 0, 0x0001, '2024-01-01', '{\"a\": 1, \"b\": 2}', 'x'"
    at(shop.source, shop, f"INSERT INTO bare VALUES {','.join(f'({i % 40}, {row})' for i in range(200))}")
    at(shop.source, shop, f"INSERT INTO busy VALUES {','.join(f'({i}, {i})' for i in range(50))}")
    shop.run_until_head()
    for i, (change, _) in enumerate(KEYLESS):
        at(shop.target, shop, f"UPDATE bare SET {change} WHERE n = {i} LIMIT 1")
    at(shop.target, shop, "DELETE FROM bare WHERE n = 30 LIMIT 2", f"INSERT INTO bare VALUES (31, {row})")
    at(shop.target, shop, "UPDATE busy SET b = 1000 WHERE a = 7", "DELETE FROM busy WHERE a = 8")
    stop = threading.Event()

    def run() -> None:
        with shop.source.connect(shop.schema) as connection, connection.cursor() as cursor:
            while not stop.wait(0.05):
                cursor.execute("UPDATE busy SET b = b + 1 WHERE a = 40")

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        with delivering(shop):
            result = verified(shop, repair=True)
    finally:
        stop.set()
        ended(thread)
    bare, busy, changed = of(result, "bare"), of(result, "busy"), sum(n for _, n in KEYLESS)
    assert (bare.way, bare.rows, bare.missing, bare.extra, bare.undecided) == (
        "counts",
        200,
        changed + 2,
        changed + 1,
        0,
    )
    assert ("30", "missing", 2) in {(d.key[0], d.kind, d.copies) for d in bare.differences}
    assert ("31", "extra", 1) in {(d.key[0], d.kind, d.copies) for d in bare.differences}
    assert not any("b" in d.key or "B" in d.key for d in bare.differences)
    assert "--replace` copies it whole" in bare.note
    assert {("7", "7", "missing"), ("7", "1000", "extra"), ("8", "8", "missing")} == {
        (*d.key, d.kind) for d in busy.differences
    }
    with delivering(shop):
        shop.cli("dump", "start", str(shop.path), "--table", f"{shop.schema}.bare", "--replace", "--yes")
        assert shop.cli("dump", "work", str(shop.path)).returncode == 0
        assert of(verified(shop), "bare").differing == 0


def test_rows_under_a_condition(shop: Case) -> None:
    both(shop, "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(40), day DATE)")
    both(shop, "CREATE TABLE other (id INT PRIMARY KEY)")
    begin(shop)
    at(
        shop.source,
        shop,
        "INSERT INTO t VALUES "
        f"{','.join(f'({i}, {i}, {chr(39)}2024-01-{i % 28 + 1:02d}{chr(39)})' for i in range(300))}",
    )
    shop.run_until_head()
    table = f"{shop.schema}.t"
    with delivering(shop):
        at(
            shop.target,
            shop,
            "UPDATE t SET v = 'x' WHERE id IN (5, 6)",
            "DELETE FROM t WHERE id = 33",
            "INSERT INTO t VALUES (1000, 'e', '2024-01-06')",
        )
        condition = "day = '2024-01-06'"
        result = verified(shop, tables=[table], where=condition, repair=True)
        one = of(result, "t")
        assert found(result) == {("t", ("5",), "different", ("v",)), ("t", ("33",), "missing", ())}
        assert (one.rows, result.outcome, one.way) == (11, "equal", "rows of the source")
        assert "only the target has were not looked for: the condition" in one.note
        assert "`day` = '2024-01-06'" in result.where
        assert "under a condition" in result.in_a_line()
        left = verified(shop, tables=[table])
        assert found(left) == {("t", ("6",), "different", ("v",)), ("t", ("1000",), "extra", ())}
        for wrong, said in (
            ({"where": condition}, "is for one table, not for 2"),
            ({"tables": [table], "where": "day = (SELECT 1)"}, "SELECT"),
            ({"tables": [table], "where": "nix = 1"}, "nix"),
            ({"tables": [table], "where": "JSON_EXTRACT(CONCAT('x', v), '$.a') = 1"}, "condition"),
        ):
            with pytest.raises(ConfigError, match=said):
                verified(shop, **wrong)
        assert shop.cli("verify", str(shop.path), "--table", table, "--where", condition).returncode == 0


def _keyed_tables(source: Any, schema: str, rows: int = 12) -> dict[str, str]:
    """A table for each type of a key; statements that make and fill them."""
    made = {}
    for number, (columns, values) in enumerate(KEYS.values()):
        table = f"k{number}"
        made[table] = values
        source.execute(
            f"CREATE TABLE `{schema}`.{table} ({columns}, v INT) DEFAULT CHARSET utf8mb4 COLLATE utf8mb4_bin"
        )
        lines = ",".join(values.replace("{i}", str(i)) for i in range(rows))
        source.execute(f"INSERT INTO `{schema}`.{table} VALUES {lines}")
    return made


def _values_table(source: Any, schema: str) -> None:
    source.execute(
        f"CREATE TABLE `{schema}`.vals (id INT PRIMARY KEY, txt VARCHAR(30), dbl DOUBLE, flt FLOAT, dec_ "
        "DECIMAL(12,4), at_ DATETIME(6), day DATE, span TIME(3), raw VARBINARY(10), doc JSON, kind ENUM('a','b'), big "
        "BIGINT UNSIGNED, bits BIT(9))",
        f"INSERT INTO `{schema}`.vals VALUES "
        + ",".join(
            f"({i}, 'text {i}', {i} / 7, {i} / 3, {i} / 9, '2024-01-01' + INTERVAL {i} SECOND, '2024-01-01', "
            f"'-01:02:03.5', x'00ff', '{{\"a\": {i}}}', 'a', 18446744073709551615, b'101')"
            for i in range(200)
        ),
        f"CREATE TABLE `{schema}`.live (id INT PRIMARY KEY, version BIGINT NOT NULL, note VARCHAR(40))",
    )


def test_delta(tmp_path, mysql_source, zookeeper, fresh_schema) -> None:
    deltalake = pytest.importorskip("deltalake")
    from tests.support.readers.lakes import Lake

    schema = fresh_schema(mysql_source, options="CHARACTER SET utf8mb4")
    keyed = _keyed_tables(mysql_source, schema)
    _values_table(mysql_source, schema)
    extra = "    options: {wide_decimals: string}"
    lake = Lake(tmp_path / "lake")
    with case(
        tmp_path,
        mysql_source,
        lake,
        zookeeper,
        schema,
        kind="delta",
        target_extra=extra,
        start="dump",
        extra="window: 1",
    ) as made:
        assert made.cli("check", "case", "--apply", "--yes").returncode == 0
        made.run_until_head()
        fill(made, "live", 60)
        made.run_until_head()
        with Writers(made, "live", 60, seed=3, count=1), delivering(made):
            first = verified(made)
            assert (found(first), first.outcome) == (set(), "equal")
        made.run_until_head()
        planted = {
            1: ("txt", "'text 1 '"), 2: ("txt", "NULL"), 3: ("dbl", "CAST('-0.5' AS DOUBLE)"), 4: ("flt", "1.25"),
            5: ("at_", "NULL"),
            6: ("raw", "X'00'"), 7: ("doc", "'{\"a\": 8}'"), 8: ("big", "NULL"), 9: ("day", "NULL"),
            10: ("span", "NULL"),
        }  # fmt: skip
        table = deltalake.DeltaTable(str(lake.folder / schema / "vals"))
        for key, (name, value) in planted.items():
            table.update(updates={name: value}, predicate=f"id = {key}")
        table.delete("id IN (20, 21)")
        for name in keyed:
            deltalake.DeltaTable(str(lake.folder / schema / name)).delete("v < 3")
        unlogged(mysql_source, schema, "vals", "id IN (30, 31)", *((name, "v = 7") for name in keyed))
        wanted = {("vals", (str(key),), "different", (name,)) for key, (name, _) in planted.items()}
        wanted |= {("vals", (key,), "missing", ()) for key in ("20", "21")}
        wanted |= {("vals", (key,), "extra", ()) for key in ("30", "31")}
        with delivering(made):
            sampled = of(verified(made, tables=[f"{schema}.vals"], sample=0.99), "vals")
            assert (sampled.extra, sampled.way, "a sample was asked for" in sampled.note) == (
                0,
                "rows of the source",
                True,
            )
            result = verified(made, repair=True, values=True)
            assert {one for one in found(result) if one[0] == "vals"} == wanted
            assert of(result, "vals").way == "rows"
            unlisted = {name for name in keyed if "is not read back" in of(result, name).note}
            assert unlisted == {
                name for name, kind in kinds_of_keys().items() if kind in {"FLOAT", "DOUBLE", "ENUM", "SET"}
            }
            assert {of(result, name).repaired for name in keyed} == {4, 3}
            assert {name for name in keyed if of(result, name).repaired == 3} == unlisted
            assert result.outcome == "equal"
            again = verified(made)
            assert (again.outcome, found(again)) == ("equal", set())


def unlogged(source: Any, schema: str, table: str, condition: str, *more: tuple[str, str]) -> None:
    """Rows go from the source, and its log does not say so: only the target has them."""
    for name, some in ((table, condition), *more):
        source.execute("SET SESSION sql_log_bin = 0", f"DELETE FROM `{schema}`.`{name}` WHERE {some}")


def kinds_of_keys() -> dict[str, str]:
    """Name of each table that :func:`_keyed_tables` makes -> first word of its key's type."""
    return {f"k{number}": columns.split()[1].split("(")[0] for number, (columns, _) in enumerate(KEYS.values())}


@pytest.mark.parametrize(
    "form",
    ["debezium-json", "canal-json", "maxwell-json", "cloudevents-json", "debezium-avro", "debezium-protobuf"],
)
def test_kafka_has_the_newest_row_of_each_key(
    tmp_path, mysql_source, kafka, zookeeper, fresh_schema, form: str, request: pytest.FixtureRequest
) -> None:
    confluent_kafka = pytest.importorskip("confluent_kafka")
    from tests.support.pipelines.kafka_pipelines import pipeline
    from tests.support.readers import kafka_reading

    schema = fresh_schema(mysql_source)
    _values_table(mysql_source, schema)
    keyed = _keyed_tables(mysql_source, schema)
    options = f"format: {form}, create_topics: {{when: needed, partitions: 2}}"
    with pipeline(
        tmp_path, mysql_source, kafka, zookeeper, schema, f"    options: {{{options}}}\n", extra="window: 1"
    ) as made:
        if form in {"debezium-avro", "debezium-protobuf"}:
            connection = json.loads(made.connections["case_target"])
            connection["extra"]["schema.registry.url"] = request.getfixturevalue("schema_registry").url
            made.connections["case_target"] = json.dumps(connection)
        made.run_until_head()
        mysql_source.execute(
            f"UPDATE `{schema}`.vals SET txt = CONCAT(txt, '!')",
            *(f"UPDATE `{schema}`.{k} SET v = v + 1" for k in keyed),
        )
        fill(made, "live", 60)
        made.run_until_head()
        changed = ["vals", "live", *keyed]
        tables = [f"{schema}.{name}" for name in changed]
        if form == "debezium-json":
            with Writers(made, "live", 60, seed=4, count=1), delivering(made):
                first = verified(made, tables=tables)
                assert (found(first), first.outcome) == (set(), "equal")
                assert of(first, "vals").rows == 200
            made.run_until_head()
        messages = {one.key: one for one in kafka_reading.read(kafka, f"{schema}.vals")}
        producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap})
        wanted = set()
        for number, one in enumerate(sorted(messages.values(), key=lambda one: one.key)[:4]):
            [key] = {found.decode() for found in re.findall(rb"text (\d+)!", one.value)}
            value = None if number == 0 else one.value.replace(f"text {key}!".encode(), f"text {key} ".encode())
            long_ago_ms = 1  # the clock of who wrote it: in a partition the later message is the newer one all the same
            producer.produce(one.topic, value, one.key, one.partition, timestamp=long_ago_ms)
            wanted.add(("vals", (key,), "missing", ()) if number == 0 else ("vals", (key,), "different", ("txt",)))
        assert producer.flush(20) == 0
        unlogged(mysql_source, schema, "vals", "id IN (190, 191)", *((name, "v = 8") for name in keyed))
        wanted |= {("vals", (key,), "extra", ()) for key in ("190", "191")}
        with delivering(made):
            result = verified(made, tables=tables, repair=True)
            assert {one for one in found(result) if one[0] == "vals"} == wanted
            unlisted = {name for name in keyed if "is not read back" in of(result, name).note}
            odd = {"FLOAT", "DOUBLE", "ENUM", "SET", "TIME", "BIT"}
            assert unlisted == {name for name, kind in kinds_of_keys().items() if kind in odd}
            assert {name: of(result, name).repaired for name in keyed} == {
                name: int(name not in unlisted) for name in keyed
            }
            assert (result.outcome, of(result, "vals").equal) == ("equal", 198)
            again = verified(made, tables=tables)
            assert (again.outcome, found(again)) == ("equal", set())


def test_arrow_messages_have_the_newest_row_of_each_key(
    tmp_path, mysql_source, kafka, zookeeper, fresh_schema, monkeypatch: pytest.MonkeyPatch
) -> None:
    confluent_kafka = pytest.importorskip("confluent_kafka")
    from tests.support.pipelines.kafka_pipelines import pipeline
    from tests.support.readers import kafka_reading

    schema = fresh_schema(mysql_source)
    _values_table(mysql_source, schema)
    mysql_source.execute(
        f"CREATE TABLE `{schema}`.words (w VARCHAR(20), n INT, v INT, PRIMARY KEY (w, n)) COLLATE utf8mb4_0900_bin",
        f"INSERT INTO `{schema}`.words VALUES ('', 1, 1), ('anna', 1, 1), ('Anna', 1, 1), ('anna ', 1, 1), ('ännä', "
        "1, 1), ('came', 1, 1), ('came', 2, 1)",
    )
    keyed = _keyed_tables(mysql_source, schema)
    options = "format: arrow, partitioning: table, create_topics: {when: needed, partitions: 2}"
    with pipeline(
        tmp_path, mysql_source, kafka, zookeeper, schema, f"    options: {{{options}}}\n", extra="window: 1"
    ) as made:
        made.run_until_head()
        mysql_source.execute(
            f"UPDATE `{schema}`.words SET v = 2",
            *(f"UPDATE `{schema}`.{name} SET v = v + 1" for name in keyed),
        )
        mysql_source.execute(f"UPDATE `{schema}`.vals SET txt = CONCAT(txt, '!')")
        fill(made, "live", 60)
        made.run_until_head()
        [*_, message] = kafka_reading.read(kafka, f"{schema}.vals")
        rows = pa.ipc.open_stream(message.value).read_all()
        some = rows.filter(pc.is_in(rows["id"], pa.array([5, 6], pa.int32())))
        some = some.set_column(1, rows.schema.field("txt"), pa.array(["text 5!", "other"], pa.string()))
        some = some.set_column(
            rows.schema.names.index("_op"), rows.schema.field("_op"), pa.array(["d", "u"], pa.string())
        )
        producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap})
        producer.produce(message.topic, stream(some), None, message.partition)
        assert producer.flush(20) == 0
        unlogged(mysql_source, schema, "vals", "id = 190", *((name, "v = 8") for name in keyed))
        unlogged(mysql_source, schema, "words", "w IN ('', 'anna', 'anna ', 'came')")
        wanted = {
            ("vals", (key,), kind, columns)
            for key, kind, columns in (("5", "missing", ()), ("6", "different", ("txt",)))
        }
        wanted |= {("vals", ("190",), "extra", ())}
        gone = (("", "1"), ("anna", "1"), ("anna ", "1"), ("came", "1"), ("came", "2"))
        wanted |= {("words", key, "extra", ()) for key in gone}
        inserting = f"INSERT INTO `{schema}`.words VALUES ('came', 2, 3)"
        tables = [f"{schema}.{name}" for name in ("words", "vals", "live", *keyed)]
        with delivering(made):
            with between_marks(monkeypatch, lambda: mysql_source.execute(inserting)):
                words = verified(made, tables=[f"{schema}.words"], repair=True)
            assert (words.outcome, of(words, "words").repaired) == ("equal", 5)
            result = verified(made, tables=tables, repair=True)
            assert {one for one in (*found(words), *found(result)) if one[0] in {"words", "vals"}} == wanted
            unlisted = {name for name in keyed if "is not read back" in of(result, name).note}
            odd = {"FLOAT", "DOUBLE", "ENUM", "SET", "TIME", "BIT"}
            assert unlisted == {name for name, kind in kinds_of_keys().items() if kind in odd}
            assert {name: of(result, name).repaired for name in keyed} == {
                name: int(name not in unlisted) for name in keyed
            }
            assert result.outcome == "equal"
            again = verified(made, tables=tables)
            assert (again.outcome, found(again)) == ("equal", set())
        messages = [pa.ipc.open_stream(one.value).read_all() for one in kafka_reading.read(kafka, f"{schema}.words")]
        [removed] = [one for one in messages if set(one["_op"].to_pylist()) == {"d"}]
        assert {(row["w"], str(row["n"])) for row in removed.to_pylist()} == {*gone} - {("came", "2")}
        assert (json.loads(removed.schema.metadata[b"sluice.key"]), removed["_before"].null_count) == (["w", "n"], 4)


def test_a_repair_removes_rows_that_no_other_pipeline_writes(shop: Case) -> None:
    """A pipeline that writes other tables, or one that is gone, keeps no row; the line says which pipeline does, and
    what to do.
    """
    shop.run_until_head()
    shop.source.execute(f"CREATE TABLE `{shop.schema}`.alone (id INT PRIMARY KEY)")
    shop.source.execute(f"INSERT INTO `{shop.schema}`.alone VALUES (1), (2)")
    shop.run_until_head()
    noted = json.loads(
        shop.target.execute(
            f"SELECT position FROM `{shop.schema}`._sluice_ack WHERE pipeline = 'case' AND scope = '#tables'"
        )[0][0]
    )
    assert f"{shop.schema}.alone" in noted
    acks = (
        f"INSERT INTO `{shop.schema}`._sluice_ack (pipeline, target, scope, epoch, batch, position, updated_at) VALUES "
    )
    shop.target.execute(
        f"INSERT INTO `{shop.schema}`.alone VALUES (7)",
        acks + "('elsewhere', 'x', '', 1, 1, NULL, NOW(6)), ('elsewhere', 'x', '#tables', 1, 1, '[\"crm.t\"]', NOW(6))",
        acks + "('gone', 'x', '', 1, 1, NULL, NOW(6) - INTERVAL 3 DAY)",
        acks + "('sharing', 'x', '', 1, 1, NULL, NOW(6))",
    )
    asked = VerifySpec(tables=[f"{shop.schema}.alone"], repair=True)
    with delivering(shop):
        [found] = verify(shop.runtime(), asked).tables
        assert (found.extra, "run it once with this version, or, if it is gone, DELETE FROM" in found.note) == (1, True)
        forget = found.note[found.note.index("DELETE FROM") :]
        assert "'sharing'" in forget
        shop.target.execute(forget)
        [found] = verify(shop.runtime(), asked).tables
    assert (found.extra, found.repaired, found.note) == (0, 1, "")
    shop.target.execute(f"DELETE FROM `{shop.schema}`._sluice_ack WHERE pipeline IN ('elsewhere', 'gone')")
