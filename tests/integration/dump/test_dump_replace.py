"""Dumps that make both sides equal: what the target holds and the source does not, goes, and nothing else ever does."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from sluice.errors import ConfigError
from sluice.flows.dump.progress import one_view
from sluice.flows.dump.start import start
from sluice.flows.dump.worker import work
from sluice.model.dumps import DumpState
from tests.support.pipelines.case import Case, case
from tests.support.pipelines.dumping import KEYS, Watcher, Writers, begin, both, delivering, dumped, fill
from tests.support.running.waiting import ended, wait_until

ALL = bool(os.environ.get("SLUICE_FAULTS"))
"""Every case; some of them otherwise, as with the faults."""

TABLE = "CREATE TABLE t (id INT PRIMARY KEY, version BIGINT NOT NULL, note VARCHAR(40))"


@pytest.fixture
def shop(tmp_path, mysql_source, mysql_target, zookeeper, fresh_schema) -> Iterator[Case]:
    schema = fresh_schema(mysql_source, mysql_target)
    with case(tmp_path, mysql_source, mysql_target, zookeeper, schema) as made:
        settings(made, "dump: {chunk_rows: 50, parallelism: 2}")
        yield made


def settings(made: Case, text: str) -> None:
    made.yaml += f"\n{text}\n"
    made.path.write_text(made.yaml, encoding="utf-8")


def at_target(made: Case, *statements: str) -> Any:
    return made.target.execute(f"USE `{made.schema}`", *statements)


def at_source(made: Case, *statements: str) -> Any:
    return made.source.execute(f"USE `{made.schema}`", *statements)


class Stays(Watcher):
    """Rows that stand at both sides all the time, and that nobody writes, must be there at every moment."""

    def __init__(self, made: Case, table: str, keys: set[int]) -> None:
        super().__init__(made, table)
        self.keys = keys
        self.gone: set[int] = set()

    def _run(self) -> None:
        with self.made.target.connect(self.made.schema) as connection, connection.cursor() as cursor:
            while not self.stop.is_set():
                cursor.execute(f"SELECT id FROM `{self.table}`")
                self.gone |= self.keys - {row[0] for row in cursor.fetchall()}
                self.polls += 1
                time.sleep(0.005)


@pytest.mark.promise("E13")
@pytest.mark.parametrize(
    ("chunk_rows", "consistency"),
    [(100, "table"), (60, "batch"), (5000, "row"), *([(3, "row"), (23, "row")] if ALL else [(31, "row")])],
)
def test_random_writers_while_rows_are_replaced(shop: Case, chunk_rows: int, consistency: str) -> None:
    """The target lacks rows, has old ones, and has hundreds that the source does not have, on keys that the writers
    use, too.
    """
    shop.yaml = shop.yaml.replace(
        "dump: {chunk_rows: 50, parallelism: 2}", f"dump: {{chunk_rows: {chunk_rows}, parallelism: 3}}"
    )
    shop.yaml = shop.yaml.replace(
        "connection: case_target\n", f"connection: case_target\n    consistency: {consistency}\n"
    )
    shop.path.write_text(shop.yaml, encoding="utf-8")
    both(shop, TABLE)
    fill(shop, "t", 500)
    steady = set(range(600, 700))
    for server in (shop.source, shop.target):
        server.execute(f"USE `{shop.schema}`", *(f"INSERT INTO t VALUES ({i}, 0, 'steady')" for i in steady))
    begin(shop)
    dice = random.Random(chunk_rows)
    extra = {*(dice.randrange(-300, 1500) for _ in range(700))} - steady
    at_target(shop, f"INSERT IGNORE INTO t VALUES {','.join(f'({i}, 0, NULL)' for i in extra)}")
    with (
        Watcher(shop, "t") as watcher,
        Stays(shop, "t", steady) as stays,
        Writers(shop, "t", 290, seed=chunk_rows) as writers,
        delivering(shop),
    ):
        dump = start(shop.runtime(), replace=True)
        assert work(shop.runtime(), dump.id).state is DumpState.DONE
        polls, changes = watcher.polls + stays.polls, writers.changes
        wait_until(lambda: watcher.polls + stays.polls > polls + 40 and writers.changes > changes + 40, "more of both")
    shop.run_until_head()
    shop.assert_equal("t")
    assert writers.changes
    assert stays.polls
    assert watcher.back == []
    assert stays.gone == set()


@pytest.mark.parametrize("server", ["mysql_target", "mariadb"] if ALL else ["mysql_target"])
def test_keys_of_every_type_are_replaced(server, request, tmp_path, mysql_source, zookeeper, fresh_schema) -> None:
    target = request.getfixturevalue(server)
    schema = fresh_schema(mysql_source, target)
    rows, mine = 130, dict(KEYS)
    if server == "mariadb":
        del mine["text"], mine["latin1"]  # collations that the two may sort in two ways
        mine["binary text"] = ("a VARCHAR(30) COLLATE utf8mb4_bin PRIMARY KEY", KEYS["text"][1])
    with case(tmp_path, mysql_source, target, zookeeper, schema) as made:
        settings(made, "dump: {chunk_rows: 40, parallelism: 2}")
        for name, (columns, values) in mine.items():
            both(made, f"CREATE TABLE `k {name}` ({columns}, v INT) DEFAULT CHARSET utf8mb4 COLLATE utf8mb4_bin")
            lines = [values.replace("{i}", str(i)) for i in range(rows)]
            at_source(made, f"INSERT INTO `k {name}` VALUES {','.join(line for i, line in enumerate(lines) if i % 5)}")
            at_target(made, f"INSERT INTO `k {name}` VALUES {','.join(line for i, line in enumerate(lines) if i % 3)}")
        begin(made)
        dumped(made, replace=True)
        for name in mine:
            kept = [
                s.execute(f"SELECT HEX(CAST(a AS BINARY)), v FROM `{schema}`.`k {name}` ORDER BY v")
                for s in (made.source, target)
            ]
            assert kept[0] == kept[1]
            assert len(kept[0]) == rows - rows // 5


def test_only_what_is_asked_for_is_replaced(shop: Case) -> None:
    both(shop, TABLE)
    fill(shop, "t", 300)
    begin(shop)
    at_target(shop, f"INSERT INTO t VALUES {','.join(f'({i}, -1, NULL)' for i in range(-50, 400))}")
    at_source(shop, "DELETE FROM t WHERE id % 10 = 0")
    shop.run_until_head()
    at_target(shop, f"INSERT IGNORE INTO t VALUES {','.join(f'({i}, -1, NULL)' for i in range(-50, 400))}")
    table = [f"{shop.schema}.t"]

    def extra() -> list[int]:
        return [
            row[0]
            for row in at_target(shop, "SELECT id FROM t WHERE id % 10 = 0 OR id NOT BETWEEN 0 AND 299 ORDER BY id")
        ]

    before = extra()
    dumped(shop, tables=table, lower=["95"], upper=["155"], replace=True)
    assert sorted(set(before) - set(extra())) == [100, 110, 120, 130, 140, 150]
    dumped(shop, tables=table, keys=["200", "201", "205", "210", "350", "9999"], replace=True)
    assert sorted(set(before) - set(extra())) == [100, 110, 120, 130, 140, 150, 200, 210, 350]
    dumped(shop, tables=table, lower=["290"], replace=True)
    assert [i for i in extra() if i >= 290] == []
    dumped(shop, tables=table)
    assert at_target(shop, "SELECT COUNT(*) FROM t WHERE id < 0") == [(50,)]
    dumped(shop, tables=table, replace=True)
    shop.assert_equal("t")


def test_a_unique_value_that_a_lost_row_still_holds(shop: Case) -> None:
    """Chunks of the other range are placed later; the value is free all the same."""
    both(shop, "CREATE TABLE t (id INT PRIMARY KEY, email VARCHAR(40), UNIQUE (email))")
    begin(shop)
    at_source(shop, f"INSERT INTO t VALUES {','.join(f'({i}, {chr(39)}mail {i}{chr(39)})' for i in range(200))}")
    shop.run_until_head()
    at_target(
        shop,
        "DELETE FROM t WHERE id < 40",
        "UPDATE t SET email = CONCAT('mail ', 199 - id) WHERE id > 1000",
        f"INSERT INTO t VALUES {','.join(f'({i + 5000}, {chr(39)}mail {i}{chr(39)})' for i in range(40))}",
    )
    dumped(shop, replace=True)
    shop.assert_equal("t")


def test_what_cannot_be_replaced_is_refused(shop: Case) -> None:
    both(shop, TABLE)
    both(shop, "CREATE TABLE log (a INT, b VARCHAR(20))")
    at_source(shop, "CREATE TABLE words (w VARCHAR(20) COLLATE utf8mb4_0900_ai_ci PRIMARY KEY)")
    at_target(shop, "CREATE TABLE words (w VARCHAR(20) COLLATE utf8mb4_bin PRIMARY KEY)")
    begin(shop)
    table = [f"{shop.schema}.t"]
    for wanted, why in (
        ({"tables": table, "where": "id > 3"}, "under a condition"),
        ({"tables": [f"{shop.schema}.words"]}, "sorted by utf8mb4_bin"),
        ({"tables": [f"{shop.schema}.log"], "lower": ["1"]}, "only be replaced whole"),
    ):
        with pytest.raises(ConfigError, match=why):
            start(shop.runtime(), replace=True, **wanted)
    dump = start(shop.runtime(), replace=True)
    assert "words" in dump.note
    assert {str(r.table): r.replace for r in dump.tables}[f"{shop.schema}.words"] is False
    shop.path.write_text(shop.yaml.replace("capture:\n", "capture:\n  events: [insert, update]\n"), encoding="utf-8")
    with pytest.raises(ConfigError, match="does not capture deletes"):
        start(shop.runtime(), tables=table, replace=True)
    settings(shop, f"mapping: [{{from: '{shop.schema}.words', to: '{shop.schema}.t'}}]")
    with pytest.raises(ConfigError, match="other source tables"):
        start(shop.runtime(), tables=table, replace=True)


@pytest.mark.parametrize("shared", [False, True] if ALL else [False])
def test_rows_deleted_in_a_lost_stretch_go(shared: bool, tmp_path, mysql_target, zookeeper, fresh_schema) -> None:
    """``on_lost_position: dump``.

    Where another pipeline delivers to the same target, nothing is removed, and the dump says so.
    """
    from devstack.mysql import MySQLServer

    with MySQLServer(tmp_path / "server", name="mysql-own", server_id=78) as source:
        schema = fresh_schema(mysql_target)
        source.execute(f"CREATE DATABASE `{schema}`")
        with case(tmp_path, source, mysql_target, zookeeper, schema) as made:
            made.yaml = made.yaml.replace("capture:\n", "capture:\n  on_lost_position: dump\n")
            made.path.write_text(made.yaml, encoding="utf-8")
            both(made, TABLE)
            both(made, "CREATE TABLE log (a INT, b VARCHAR(20))")
            begin(made)
            fill(made, "t", 300)
            at_source(made, "INSERT INTO log VALUES (1, 'x'), (1, 'x'), (2, NULL)")
            made.run_until_head()
            made.assert_equal("t", "log")
            if shared:
                at_target(
                    made,
                    "INSERT INTO _sluice_ack (pipeline, target, scope, epoch, batch) VALUES ('another', 'copy', '', "
                    "1, 1)",
                )
            at_source(
                made,
                "UPDATE t SET version = 5 WHERE id > 100",
                "DELETE FROM t WHERE id % 3 = 0",
                "DELETE FROM log WHERE a = 1 LIMIT 1",
                "INSERT INTO log VALUES (3, 'new')",
                "FLUSH BINARY LOGS",
                "FLUSH BINARY LOGS",
            )
            logs = source.execute("SHOW BINARY LOGS")
            source.execute(f"PURGE BINARY LOGS TO '{logs[-1][0]}'")
            made.run_until_head()
            note = one_view(made.runtime(), "").note
            if shared:
                assert "another" in note
                assert at_target(made, "SELECT COUNT(*) FROM t") == [(300,)]
                assert at_target(made, "SELECT COUNT(*) FROM t WHERE version = 5 AND id % 3 > 0") == at_source(
                    made, "SELECT COUNT(*) FROM t WHERE version = 5"
                )
            else:
                assert note == ""
                made.assert_equal("t", "log")


@pytest.mark.parametrize("key", ["primary", "by the mapping"])
def test_a_table_cut_by_another_index(shop: Case, key: str) -> None:
    """Writers move rows along the index, to NULL and back, while it is read: each row is there, as it is now."""
    primary = "PRIMARY KEY (id)" if key == "primary" else "UNIQUE (id)"
    at_source(
        shop,
        f"CREATE TABLE t (id INT NOT NULL, place INT, at DATE, version BIGINT NOT NULL, {primary}, KEY by_place "
        "(place, at))",
    )
    at_target(shop, "CREATE TABLE t (id INT NOT NULL PRIMARY KEY, place INT, at DATE, version BIGINT NOT NULL)")
    if key != "primary":
        settings(shop, f"mapping: [{{from: '{shop.schema}.t', to: '{shop.schema}.t', key: [id]}}]")
    place = "NULLIF({i} * 7 % 60, 13), IF({i} % 9, '2026-01-01' + INTERVAL {i} % 5 DAY, NULL)"
    at_source(shop, "INSERT INTO t VALUES " + ",".join(f"({i}, {place.replace('{i}', str(i))}, 0)" for i in range(600)))
    begin(shop)
    stop = threading.Event()

    def move() -> None:
        dice = random.Random(11)
        with shop.source.connect(shop.schema) as connection, connection.cursor() as cursor:
            while not stop.wait(0.001):
                sql = "UPDATE t SET place = %s, version = version + 1 WHERE id = %s"
                cursor.execute(sql, (dice.choice([None, *range(60)]), dice.randrange(600)))

    mover = threading.Thread(target=move, daemon=True)
    mover.start()
    seen = dumped(shop, tables=[f"{shop.schema}.t"], index="by_place")
    stop.set()
    ended(mover)
    shop.run_until_head()
    rows = [s.execute(f"SELECT * FROM `{shop.schema}`.t ORDER BY id") for s in (shop.source, shop.target)]
    assert rows[0] == rows[1]
    assert len(rows[0]) == 600
    assert seen.tables[0].chunks > 5
    with pytest.raises(ConfigError, match="no index 'nothing'"):
        start(shop.runtime(), tables=[f"{shop.schema}.t"], index="nothing")
