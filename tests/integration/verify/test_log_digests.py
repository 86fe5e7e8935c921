"""Digests of decoded rows are those that the server computes in SQL, for every column type."""

from __future__ import annotations

import json
import math
import pickle
import random
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devstack.mariadb import MariaDBServer
from sluice.errors import ConfigError, RetryableError
from sluice.model.digests import RangeDigest
from sluice.model.tables import TableId
from sluice.mysql.range_digest import DigestColumn, digest_sql, digest_word
from sluice.mysql.row_digest import HashedColumn, digest_of, not_covered
from sluice.operations.check import check
from sluice.operations.verify.digests import DigestReport, SweepSpec, TableDigest, read_digests, sweep
from sluice.sources.mysql.catalog.live_table import read_definition
from sluice.sources.mysql.server.connection import collations, open_connection
from sluice.targets.sql.digest_rows import DigestRows
from sluice.targets.sql.writer import SqlBatchWriter
from tests.support.capture.capturing import draining
from tests.support.pipelines.case import Case, case
from tests.support.pipelines.dumping import begin, both, delivering
from tests.support.pipelines.small_units import small_units
from tests.support.running.waiting import ended, patiently, wait_until
from tests.support.values.random_values import MODE, create, groups, insert, types_of

ROWS = 60
NO_CHECKSUM = {"zf", "geo", "pt", "vec"}


@pytest.mark.parametrize("kind", ["mysql_source", "mariadb"])
def test_the_log_and_the_server_have_one_digest_of_every_type(kind, request, tmp_path, fresh_schema):
    server = request.getfixturevalue(kind)
    db = fresh_schema(server)
    types = types_of(server)
    dice = random.Random(5)
    tables = groups(types, 24)
    mariadb = kind == "mariadb"
    with server.connect(db) as connection, connection.cursor() as cursor, draining(server, tmp_path, db) as drain:
        cursor.execute("SET sql_mode = 'ALLOW_INVALID_DATES', time_zone = '+00:00', NAMES utf8mb4")
        for number, columns in enumerate(tables):
            cursor.execute(create(f"t{number}", columns, types))
            cursor.execute(insert(f"t{number}", range(ROWS), columns, types, dice))
        manifests = drain.all()
        odd, left_out = [], []
        for number in range(len(tables)):
            logged = drain.table(manifests, f"t{number}")
            with open_connection(drain.endpoint) as plain:
                schema = read_definition(plain, TableId(db, f"t{number}"), lambda: collations(plain)).plan.schema
            every = [c for c in schema.columns if not c.generated]
            covered = [c for c in every if not not_covered(HashedColumn.of(c))]
            left_out += [c.name for c in every if c not in covered]
            for some in [*([c] for c in covered), covered]:
                sql = digest_sql(
                    schema.table, [DigestColumn(c.name, c.sql_type, c.nullable) for c in some], "", mariadb=mariadb
                )
                cursor.execute(sql)
                said = tuple(map(int, cursor.fetchone()))
                mine = digest_of(
                    [HashedColumn.of(c) for c in some],
                    [logged[schema.field(c).name] for c in some],
                )
                if (mine.rows, mine.checksum) != said:
                    odd.append([c.sql_type for c in some])
    print(left_out)
    assert odd == []


NOT_ALIKE = {"fl", "db", "js"}
"""FLOAT, DOUBLE and JSON: MySQL and MariaDB print them each in its own way, or store them as another type."""


def test_mysql_and_mariadb_have_one_digest_of_the_same_rows_and_two_of_others(mysql_source, mariadb, fresh_schema):
    """It holds for each column that both describe alike; each server stores the values of one statement itself."""
    db = fresh_schema(mysql_source, mariadb)
    types = {name: kind for name, kind in types_of(mysql_source).items() if types_of(mariadb).get(name) == kind}
    alike, odd = set(), []
    with mysql_source.connect(db) as one, mariadb.connect(db) as other:
        for number, columns in enumerate(groups(types, 24)):
            place = TableId(db, f"t{number}")
            values = insert(place.table, range(ROWS), columns, types, random.Random(number))
            known = []
            for connection in (one, other):
                for sql in (MODE, create(place.table, columns, types), values):
                    asked(connection, sql)
                schema = read_definition(connection, place, lambda c=connection: collations(c)).plan.schema
                known.append({c.name: c for c in schema.columns})
            for name in columns:
                mine, theirs = (columns_of_server[name] for columns_of_server in known)
                word = digest_word(mine.sql_type, mine.charset)
                if not word or word != digest_word(theirs.sql_type, theirs.charset, mariadb=True):
                    continue
                alike.add(name)
                at_mysql = digest_sql(place, [DigestColumn(name, mine.sql_type)], "")
                at_mariadb = digest_sql(place, [DigestColumn(name, theirs.sql_type)], "", mariadb=True)
                equal = asked(one, at_mysql), asked(other, at_mariadb)
                pairs = f"{place.table} a JOIN {place.table} b ON b.id = a.id + 1"
                [[row]] = asked(other, f"SELECT MIN(a.id) FROM {pairs} WHERE NOT (HEX(a.`{name}`) <=> HEX(b.`{name}`))")
                asked(other, f"UPDATE {pairs} SET a.`{name}` = b.`{name}` WHERE a.id = {row}")
                changed = asked(other, at_mariadb)
                if equal[0] != equal[1] or changed == equal[1]:
                    odd.append((mine.sql_type, *equal, changed))
    assert odd == []
    assert alike >= types.keys() - NOT_ALIKE - NO_CHECKSUM
    assert not alike & NOT_ALIKE


def asked(connection: Any, sql: str) -> list[list[int]]:
    """The numbers that a statement answers."""
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return [[int(value) for value in row] for row in cursor.fetchall()]


# -- kept with the batches ---------------------------------------------------------------------------------------------
ORDERS = """CREATE TABLE orders (id BIGINT UNSIGNED PRIMARY KEY, state ENUM('new','paid','sent'), note VARCHAR(60),
  total DECIMAL(12,2), doc JSON, raw VARBINARY(20), at_ DATETIME(3) NULL, long_ TEXT,
  twice DECIMAL(13,2) AS (total * 2) VIRTUAL) DEFAULT CHARSET utf8mb4"""
WORDS = """CREATE TABLE words (w VARCHAR(20) COLLATE utf8mb4_0900_ai_ci, n INT, v INT NULL, PRIMARY KEY (w, n))
  DEFAULT CHARSET utf8mb4"""
SPELLED = ["abc", "ABC", "\u00e4bc", "x", "X ", "\u00e9t\u00e9", "ete", "Z"]


def at_the_target(made: Case, setting: str) -> None:
    """Set something of the target."""
    made.yaml = made.yaml.replace("connection: case_target", f"connection: case_target\n    {setting}")
    made.path.write_text(made.yaml, encoding="utf-8")


@pytest.fixture
def shop(tmp_path, mysql_source, mysql_target, zookeeper, fresh_schema) -> Iterator[Case]:
    schema = fresh_schema(mysql_source, mysql_target)
    with case(tmp_path, mysql_source, mysql_target, zookeeper, schema, extra="verify: {digest: log}") as made:
        yield made


def at(server: Any, made: Case, *statements: str) -> Any:
    return server.execute(f"USE `{made.schema}`", *statements)


def swept(made: Case, **asked: Any) -> DigestReport:
    return sweep(made.runtime(), SweepSpec(**asked))


def told(made: Case, there: str = "") -> DigestReport:
    """The kept digests, compared with what both servers say of the tables themselves.

    ``there``: the schema at the target, "" for the same.
    """
    report = read_digests(made.runtime())
    for one in report.tables:
        if one.state != "unknown":
            assert one.source == server_digest(made.source, made, one.table)
            assert one.at_target == server_digest(
                made.target, made, one.table.replace(made.schema, there or made.schema)
            )
    return report


def states(report: DigestReport) -> dict[str, str]:
    return {one.table.split(".")[1]: one.state for one in report.tables}


def server_digest(server: Any, made: Case, table: str) -> RangeDigest:
    place = TableId(*table.split("."))
    with server.connect(made.schema) as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00', NAMES utf8mb4")
        cursor.execute(
            "SELECT column_name, column_type FROM information_schema.columns WHERE table_schema = %s "
            "AND table_name = %s AND COALESCE(generation_expression, '') = '' ORDER BY ordinal_position",
            (place.schema, place.table),
        )
        columns = [DigestColumn(str(name), str(declared)) for name, declared in cursor.fetchall()]
        cursor.execute(digest_sql(place, columns, "", mariadb=isinstance(server, MariaDBServer)))
        rows, checksum = cursor.fetchone()
    return RangeDigest(int(rows), int(checksum) if rows else 0)


def order(dice: random.Random, number: int) -> str:
    return ", ".join([
        str(number),
        dice.choice(["NULL", "'new'", "'paid'", "3"]),
        dice.choice(["NULL", "''", f"'n{dice.random()}'", "'caf\u00e9 '"]),
        dice.choice(["NULL", f"{dice.uniform(-9e5, 9e5):.2f}"]),
        dice.choice(["NULL", f'\'{{"b": {dice.randint(0, 9)}, "a": [1, 2.50]}}\'']),
        dice.choice(["NULL", "x''", f"x'{dice.getrandbits(40):010x}'"]),
        dice.choice(["NULL", "'2024-02-29 23:59:59.999'", "'1970-01-01 00:00:00'"]),
        dice.choice(["NULL", "''", f"REPEAT('long {dice.random()}', 30)"]),
    ])


def fill_orders(made: Case, dice: random.Random, rows: int) -> None:
    values = "), (".join(order(dice, number) for number in range(rows))
    at(made.source, made, f"INSERT INTO orders ({ORDER_COLUMNS}) VALUES ({values})")
    made.run_until_head()


ORDER_COLUMNS = "id, state, note, total, doc, raw, at_, long_"


def change(dice: random.Random) -> str:
    """One statement that changes some rows of one of the tables, or none."""
    some = f"id % {dice.randint(2, 9)} = {dice.randint(0, 3)} AND id < 100000"
    word = lambda: f"'{dice.choice(SPELLED)}'"  # noqa: E731
    return dice.choice([
        f"REPLACE INTO orders ({ORDER_COLUMNS}) VALUES ({order(dice, dice.randint(1, 60))})",
        f"UPDATE orders SET note = 'u{dice.random()}', total = NULL WHERE {some}",
        f"UPDATE orders SET doc = JSON_SET(doc, '$.b', {dice.randint(0, 99)}) WHERE {some}",
        f"UPDATE IGNORE orders SET id = id + {dice.randint(1, 90)} WHERE {some} ORDER BY id DESC",
        f"DELETE FROM orders WHERE {some} LIMIT 3",
        f"REPLACE INTO words VALUES ({word()}, {dice.randint(0, 3)}, {dice.randint(0, 9)})",
        f"UPDATE IGNORE words SET w = {word()} WHERE w = {word()}",
        f"UPDATE IGNORE words SET n = n + 1, v = NULL WHERE w = {word()} ORDER BY n DESC",
        f"DELETE FROM words WHERE w = {word()} AND n = {dice.randint(0, 3)}",
    ])


@pytest.mark.parametrize(("units", "consistency"), [(0, "row"), (5, "row"), (5, "table"), (5, "batch")])
def test_the_digests_of_log_and_target_are_those_of_the_servers_after_any_changes(
    shop: Case, monkeypatch: pytest.MonkeyPatch, units: int, consistency: str
) -> None:
    """``units``: 0: a batch is one transaction; else it is many, as far as ``consistency`` allows."""
    at_the_target(shop, f"consistency: {consistency}")
    dice = random.Random(units + 1)
    both(shop, ORDERS)
    both(shop, WORDS)
    stays_equal(shop, dice, monkeypatch, units)


def test_the_digests_of_mariadb_are_those_of_the_servers_after_any_changes(
    tmp_path: Path, mariadb: Any, zookeeper: Any, fresh_schema: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema, there = fresh_schema(mariadb), fresh_schema(mariadb)
    more = f"verify: {{digest: log}}\nmapping: [{{from: {schema}.*, to: {there}.*}}]"
    with case(tmp_path, mariadb, mariadb, zookeeper, schema, extra=more) as made:
        for place in (schema, there):
            for table in (ORDERS, WORDS.replace("utf8mb4_0900_ai_ci", "utf8mb4_general_ci")):
                mariadb.execute(table, database=place)
        stays_equal(made, random.Random(9), monkeypatch, 0, there)


@pytest.mark.parametrize("kinds", [("mysql_source", "mariadb"), ("mariadb", "mysql_target")])
def test_mysql_and_mariadb_keep_one_digest_and_what_they_print_otherwise_is_compared_by_rows(
    tmp_path: Path, request: pytest.FixtureRequest, zookeeper: Any, fresh_schema: Any, monkeypatch: Any, kinds: Any
) -> None:
    source, target = map(request.getfixturevalue, kinds)
    schema = fresh_schema(source, target)
    with case(tmp_path, source, target, zookeeper, schema, extra="verify: {digest: log}") as made:
        both(made, ORDERS.replace("doc JSON", "doc TEXT"))
        both(made, WORDS.replace("utf8mb4_0900_ai_ci", "utf8mb4_general_ci"))
        stays_equal(made, random.Random(4), monkeypatch, 0)
        both(made, "CREATE TABLE printed (id INT PRIMARY KEY, d DOUBLE, doc JSON)")
        at(source, made, """INSERT INTO printed VALUES (1, 0.1, '{"b": 1.50, "a": "ä"}'), (2, 1e300, NULL)""")
        made.run_until_head()
        at(
            target,
            made,
            "UPDATE orders SET note = 'planted' WHERE id = 100001",
            "UPDATE printed SET d = 3 WHERE id = 2",
        )
        with delivering(made):
            report = swept(made)
            assert states(report) == {"orders": "different", "words": "equal", "printed": "unknown"}
            [printed] = [one for one in report.tables if one.table.endswith("printed")]
            assert "printed by the server in its own way" in printed.why
            found = made.cli("verify", made.name, "--json")
            assert found.returncode == 3, found.stderr
        tables = {one["table"].split(".")[1]: one for one in json.loads(found.stdout)["tables"]}
        assert {name: (one["way"], one["different"]) for name, one in tables.items()} == {
            "orders": ("checksums", 1), "words": ("rows of the source", 0), "printed": ("rows", 1),
        }  # fmt: skip


def stays_equal(made: Case, dice: random.Random, monkeypatch: pytest.MonkeyPatch, units: int, there: str = "") -> None:
    """Change the tables at random; after each batch all digests are those of the servers."""
    begin(made)
    fill_orders(made, dice, 30)
    at(made.source, made, "INSERT INTO orders (id) VALUES (100001)")  # which no change touches
    made.run_until_head()
    with delivering(made):
        assert states(swept(made)) == {"orders": "equal", "words": "equal"}
    if units:
        small_units(monkeypatch, units, 3)
    for _ in range(12):
        at(made.source, made, *(change(dice) for _ in range(dice.randint(1, 12))))
        made.run_until_head()
        report = told(made, there)
        assert states(report) == {"orders": "equal", "words": "equal"}
    assert {one.source.rows > 0 for one in report.tables if one.source} == {True}


@pytest.fixture
def kept(shop: Case) -> Case:
    """A pipeline whose table ``orders`` has 30 rows and a digest that is kept."""
    both(shop, ORDERS)
    begin(shop)
    fill_orders(shop, random.Random(3), 30)
    with delivering(shop):
        assert states(swept(shop)) == {"orders": "equal"}
    return shop


def the(report: DigestReport) -> TableDigest:
    [one] = report.tables
    return one


@pytest.mark.parametrize(
    "planted",
    [
        "UPDATE orders SET note = 'planted' WHERE id = 7",
        "UPDATE orders SET id = 7000 WHERE id = 7",
        "DELETE FROM orders WHERE id = 7",
        "INSERT INTO orders (id) VALUES (7000)",
    ],
)
def test_a_sweep_finds_what_was_changed_behind_our_back_and_the_hint_finds_the_row(kept: Case, planted: str) -> None:
    at(kept.target, kept, planted)
    at(kept.source, kept, "UPDATE orders SET note = 'another row' WHERE id = 8")
    kept.run_until_head()
    assert the(read_digests(kept.runtime())).state == "equal"  # nothing was read yet
    with delivering(kept):
        found = the(swept(kept))
    assert found.state == "different"
    assert "something else changed the table" in found.found[0]
    assert the(told(kept)).state == "different"
    hint = re.search(r"`sluice (verify [^`]+)`", found.found[0])
    assert hint is not None
    with delivering(kept):
        looked = kept.cli(*hint[1].split(), "--json")
        assert looked.returncode == 3, looked.stderr
        keys = {one["key"][0] for one in json.loads(looked.stdout)["tables"][0]["differences"]}
        assert keys <= {"7", "7000"}
        assert keys
        assert kept.cli("verify", kept.name, "--repair", "--yes").returncode == 0
        after = kept.cli("verify", "digest", kept.name, "--json")
        assert after.returncode == 4  # the repair wrote rows that the digest does not know
        hint = re.search(r"`sluice (verify sweep [^`]+)`", json.loads(after.stdout)["tables"][0]["why"])
        assert hint is not None
        assert kept.cli(*hint[1].split()).returncode == 0
    assert the(told(kept)).state == "equal"


def test_a_row_that_was_changed_behind_our_back_and_then_written_again_is_no_difference(kept: Case) -> None:
    at(kept.target, kept, "UPDATE orders SET note = 'planted' WHERE id = 7")
    with delivering(kept):
        assert the(swept(kept)).state == "different"
    at(kept.source, kept, "UPDATE orders SET note = 'written again' WHERE id = 7")
    kept.run_until_head()
    unknown = the(read_digests(kept.runtime()))
    assert unknown.state == "unknown"
    assert "may be right" in unknown.why
    with delivering(kept):
        swept(kept)
        assert the(told(kept)).state == "equal"


def test_a_change_that_is_not_in_the_log_is_found_at_the_source(kept: Case) -> None:
    at(kept.source, kept, "SET sql_log_bin = 0", "UPDATE orders SET note = 'not logged' WHERE id = 7")
    assert the(read_digests(kept.runtime())).state == "equal"
    with delivering(kept):
        found = the(swept(kept, source=True))
    assert found.state == "different"
    assert "not in the log that was captured" in found.found[0]
    assert the(told(kept)).state == "different"


def test_a_row_that_the_target_stores_otherwise_is_told_at_once(kept: Case) -> None:
    at_the_target(kept, "options: {triggers: fire}")
    at(
        kept.target,
        kept,
        "CREATE TRIGGER shortens BEFORE UPDATE ON orders FOR EACH ROW SET NEW.note = LEFT(NEW.note, 3)",
    )
    at(kept.source, kept, "UPDATE orders SET note = 'longer than that' WHERE id = 7")
    kept.run_until_head()
    assert the(told(kept)).state == "different"


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        (("SET binlog_row_image = 'MINIMAL'", "UPDATE orders SET note = 'part' WHERE id = 7"), "binlog_row_image"),
        (("ALTER TABLE orders ADD COLUMN more INT NOT NULL DEFAULT 3",), "definition of the table changed"),
        (("ALTER TABLE orders MODIFY total DECIMAL(14,4)",), "definition of the table changed"),
        (("TRUNCATE TABLE orders",), "definition of the table changed"),
    ],
)
def test_what_a_digest_cannot_follow_makes_it_unknown_until_the_hint_is_run(
    kept: Case, statement: tuple[str, ...], why: str
) -> None:
    at(kept.source, kept, *statement)
    at(kept.source, kept, "INSERT INTO orders (id, note) VALUES (900, 'after it')")
    kept.run_until_head()
    unknown = the(read_digests(kept.runtime()))
    assert unknown.state == "unknown"
    assert why in unknown.why
    with delivering(kept):
        hint = re.search(r"`sluice (verify sweep [^`]+)`", unknown.why)
        assert hint is not None
        assert kept.cli(*hint[1].split()).returncode == 0
        at(kept.source, kept, "UPDATE orders SET note = 'and goes on' WHERE id = 900")
    kept.run_until_head()
    assert the(told(kept)).state == "equal"
    kept.assert_equal("orders")


def test_a_dump_makes_the_digest_of_the_target_unknown_and_not_that_of_the_source(kept: Case) -> None:
    with delivering(kept):
        assert kept.cli("dump", "start", kept.name, "--table", f"{kept.schema}.orders").returncode == 0
        assert kept.cli("dump", "work", kept.name).returncode == 0
        wait_until(lambda: the(read_digests(kept.runtime())).state == "unknown", 60)
    unknown = the(read_digests(kept.runtime()))
    assert unknown.source == server_digest(kept.source, kept, unknown.table)
    assert "a dump wrote rows" in unknown.why
    with delivering(kept):
        assert the(swept(kept)).state == "equal"
    assert the(told(kept)).state == "equal"


class Struck(RetryableError):
    """The process ends here."""


@pytest.mark.parametrize("moment", ["before the commit", "after the commit"])
@pytest.mark.parametrize("units", [0, 5])
def test_a_batch_that_is_loaded_again_counts_once(
    kept: Case, monkeypatch: pytest.MonkeyPatch, moment: str, units: int
) -> None:
    if units:
        small_units(monkeypatch, units, 3)
    at(
        kept.source,
        kept,
        f"REPLACE INTO orders ({ORDER_COLUMNS}) VALUES ({order(random.Random(1), 3)})",
        "UPDATE orders SET note = CONCAT('u', id), total = NULL WHERE id % 2",
        "UPDATE orders SET id = 500 WHERE id = 4",
        "DELETE FROM orders WHERE id = 9",
    )
    struck = 0

    def strikes(original: Any) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            nonlocal struck
            assert pickle.loads(pickle.dumps(given[-1])) == given[-1]  # as it is sent to a worker
            result = original(*given, **named)
            struck += 1
            if struck == 1:
                raise Struck("struck")
            return result

        return call

    if moment == "before the commit":
        monkeypatch.setattr(DigestRows, "fold", strikes(DigestRows.fold))
    else:
        monkeypatch.setattr(SqlBatchWriter, "commit", strikes(SqlBatchWriter.commit))
    with pytest.raises(Struck):
        kept.run_until_head()
    kept.run_until_head()
    assert struck == (2 if moment == "before the commit" else 1)
    assert the(told(kept)).state == "equal"
    kept.assert_equal("orders")


def test_digests_are_right_after_processes_that_were_killed_while_they_delivered(kept: Case) -> None:
    dice = random.Random(11)
    kept.path.write_text(kept.yaml.replace("max_wait: 200ms", "max_wait: 10ms"), encoding="utf-8")
    for _ in range(4):
        before = the(read_digests(kept.runtime())).batch
        process = subprocess.Popen(
            kept.command("run", kept.name), env=kept.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            until, kills_at = time.monotonic() + 120, math.inf
            while time.monotonic() < kills_at:
                some = f"id % {dice.randint(2, 9)} = {dice.randint(0, 1)}"
                at(kept.source, kept, f"UPDATE orders SET note = 'u{dice.random()}', total = NULL WHERE {some}")
                at(
                    kept.source,
                    kept,
                    f"REPLACE INTO orders ({ORDER_COLUMNS}) VALUES ({order(dice, dice.randint(1, 60))})",
                )
                if kills_at == math.inf and the(read_digests(kept.runtime())).batch > before:
                    kills_at = time.monotonic() + dice.uniform(0.2, 0.8)
                assert time.monotonic() < until, "the process delivers nothing"
        finally:
            process.kill()
            process.wait()
    patiently(kept.run_until_head)
    assert the(told(kept)).state == "equal"
    kept.assert_equal("orders")


@pytest.mark.parametrize("idle", [True, False])
def test_digests_of_batches_that_were_delivered_without_them_are_unknown(kept: Case, idle: bool) -> None:
    with_it = kept.yaml
    kept.path.write_text(with_it.replace("digest: log", "digest: none"), encoding="utf-8")
    at(kept.source, kept, "UPDATE orders SET note = 'not counted' WHERE id = 7")
    kept.run_until_head()
    kept.path.write_text(with_it, encoding="utf-8")
    assert "no digest was kept since batch" in the(read_digests(kept.runtime())).why
    if idle:  # no batch comes before the table is read
        with delivering(kept):
            assert the(swept(kept)).state == "equal"
        kept.run_until_head()
        assert the(told(kept)).state == "equal"
        return
    at(kept.source, kept, "UPDATE orders SET note = 'counted' WHERE id = 8")
    kept.run_until_head()
    assert the(read_digests(kept.runtime())).state == "unknown"
    with delivering(kept):
        assert the(swept(kept)).state == "equal"
    assert the(told(kept)).state == "equal"


def test_a_sweep_while_writers_work(kept: Case) -> None:
    stop = threading.Event()

    def write() -> None:
        dice = random.Random(11)
        with kept.source.connect(kept.schema) as connection, connection.cursor() as cursor:
            while not stop.wait(0.005):
                cursor.execute(change(dice).replace("words", "orders_words"))

    at(kept.source, kept, WORDS.replace("words", "orders_words"))
    thread = threading.Thread(target=write, daemon=True)
    with delivering(kept):
        thread.start()
        try:
            for _ in range(3):
                found = swept(kept, source=True)
                assert {one.found for one in found.tables} == {()}
        finally:
            stop.set()
            ended(thread)
    kept.run_until_head()
    assert states(told(kept)) == {"orders": "equal", "orders_words": "equal"}


def test_the_check_names_what_has_no_digest_and_why(shop: Case) -> None:
    both(shop, ORDERS)
    both(shop, "CREATE TABLE floats (id INT PRIMARY KEY, f FLOAT)")
    both(shop, "CREATE TABLE keyless (id INT)")
    both(shop, "CREATE TABLE wider (id INT PRIMARY KEY, n INT)")
    shop.target.execute(f"ALTER TABLE `{shop.schema}`.wider MODIFY n BIGINT")
    begin(shop)
    fill_orders(shop, random.Random(3), 3)
    lines = {one.value.split(" at ")[0].split(".")[1]: one.why for one in check(shop.runtime()).findings
             if one.setting == "digest: log"}  # fmt: skip
    assert lines.keys() == {"floats", "keyless", "wider"}
    assert "column f (float)" in lines["floats"]
    assert "no primary key" in lines["keyless"]
    assert "other types" in lines["wider"]
    with delivering(shop):
        assert states(swept(shop)) == {"floats": "unknown", "keyless": "unknown", "orders": "equal", "wider": "unknown"}
        kept = read_digests(shop.runtime())
        assert states(kept) == {"floats": "unknown", "keyless": "unknown", "orders": "equal", "wider": "unknown"}
        assert "no digest is kept of it" in the_digest(shop, "floats").why
        asked = shop.cli("verify", "digest", shop.name)
        assert (asked.returncode, "floats" in asked.stdout) == (4, True), asked
        before = the_digest(shop, "orders").read_ms
        swept(shop, share=0.25)  # one table: not one of those that cannot be read
        assert the_digest(shop, "orders").read_ms > before


def the_digest(made: Case, table: str) -> TableDigest:
    return next(one for one in read_digests(made.runtime()).tables if one.table.endswith(f".{table}"))


def test_a_verification_that_sweeps_compares_what_digests_do_not_tell_equal(kept: Case) -> None:
    both(kept, "CREATE TABLE floats (id INT PRIMARY KEY, f FLOAT)")
    at(kept.source, kept, "INSERT INTO floats VALUES (1, 1.5)")
    kept.yaml = kept.yaml.replace("{digest: log}", "{digest: log, method: sweep}")
    kept.path.write_text(kept.yaml, encoding="utf-8")
    kept.run_until_head()
    sweeps = ("verify", kept.name)
    with delivering(kept):
        assert ways(kept.cli(*sweeps, "--json")) == {"orders": ("digests", 30, 0), "floats": ("checksums", 1, 0)}
        at(kept.target, kept, "UPDATE orders SET note = 'planted' WHERE id = 7", "UPDATE floats SET f = 2")
        sampled = kept.cli(*sweeps, "--sample", "50%", "--table", f"{kept.schema}.orders", "--json")
        assert ways(sampled) == {"orders": ("checksums", 30, 1)}  # what differs is compared whole
        [orders] = json.loads(sampled.stdout)["tables"]
        assert "something else changed the table" in orders["note"]
        assert [one["key"] for one in orders["differences"]] == [["7"]]
        assert ways(kept.cli(*sweeps, "--repair", "--yes", "--json")) == {
            "orders": ("checksums", 30, 0),
            "floats": ("checksums", 1, 0),
        }
        assert ways(kept.cli(*sweeps, "--json")) == {"orders": ("digests", 30, 0), "floats": ("checksums", 1, 0)}
        refused = kept.cli(*sweeps, "--where", "id = 7", "--table", f"{kept.schema}.orders")
        assert refused.returncode == 1
        hint = re.search(r"`sluice (verify [^`]+)`", refused.stderr.replace("\n", " "))
        assert hint is not None
        again = kept.cli(*hint[1].split(), "--where", "id = 7", "--table", f"{kept.schema}.orders", "--json")
        assert ways(again)["orders"][1:] == (1, 0)


def ways(said: Any) -> dict[str, tuple[str, int, int]]:
    """Return (how it was compared, its rows, those that differ) of each table."""
    assert said.stdout, said.stderr
    return {
        one["table"].split(".")[1]: (one["way"], one["rows"], one["different"] + one["missing"] + one["extra"])
        for one in json.loads(said.stdout)["tables"]
    }


def test_without_the_setting_nothing_is_kept(tmp_path, mysql_source, mysql_target, zookeeper, fresh_schema) -> None:
    schema = fresh_schema(mysql_source, mysql_target)
    with case(tmp_path, mysql_source, mysql_target, zookeeper, schema) as made:
        both(made, ORDERS)
        begin(made)
        fill_orders(made, random.Random(3), 3)
        [manifest] = sorted(tmp_path.glob("store/case/batch=*/manifest-*"))
        assert b'"digests"' not in manifest.read_bytes()
        assert made.target.execute(f"SHOW TABLES FROM `{schema}` LIKE '\\_sluice\\_digests'") == []
        with pytest.raises(ConfigError, match="keeps no digests"):
            read_digests(made.runtime())


def test_a_position_that_was_moved_makes_every_digest_unknown(kept: Case) -> None:
    at(kept.source, kept, "UPDATE orders SET note = 'never captured' WHERE id = 7")
    assert kept.cli("seek", kept.name, "latest", "--yes").returncode == 0
    at(kept.source, kept, "UPDATE orders SET note = 'captured' WHERE id = 8")
    kept.run_until_head()
    unknown = the(read_digests(kept.runtime()))
    assert unknown.state == "unknown"
    assert "the captured position was moved" in unknown.why
    with delivering(kept):
        assert the(swept(kept)).state == "different"
    assert the(told(kept)).state == "different"


def test_a_table_that_is_altered_at_the_target_has_no_digest_any_more(kept: Case) -> None:
    at(kept.target, kept, "ALTER TABLE orders MODIFY note VARCHAR(80) CHARACTER SET latin1")
    at(kept.source, kept, "UPDATE orders SET note = 'plain' WHERE id = 7")
    kept.run_until_head()
    unknown = the(read_digests(kept.runtime()))
    assert unknown.state == "unknown"
    assert "defined otherwise at the target" in unknown.why
    with delivering(kept):
        assert "other types" in the(swept(kept)).why


def test_a_row_that_the_target_refused_is_a_difference_until_it_is_delivered(kept: Case) -> None:
    at_the_target(kept, "on_error: dead_letter")
    at(kept.target, kept, "ALTER TABLE orders ADD CONSTRAINT few CHECK (total < 1000000)")
    at(kept.source, kept, "UPDATE orders SET total = 5000000 WHERE id = 7", "UPDATE orders SET note = 'x' WHERE id = 8")
    kept.run_until_head()
    assert the(told(kept)).state == "different"
    at(kept.target, kept, "ALTER TABLE orders DROP CONSTRAINT few")
    assert kept.cli("dead-letters", "replay", kept.name, "--yes").returncode == 0
    assert "dead letters were replayed" in the(read_digests(kept.runtime())).why
    with delivering(kept):
        assert the(swept(kept)).state == "equal"
    assert the(told(kept)).state == "equal"
