"""Channels with a PostgreSQL whose sites write the same rows: both end equal, and the main site's word wins."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest

from sluice.errors import ConfigError
from sluice.operations.status import status
from tests.support.pipelines.pg_channels import Channel, Site, two_sites

CODED = "CREATE TABLE coded (id int PRIMARY KEY, site varchar(10), n int, code varchar(40) UNIQUE)"
SITES = {"postgresql": ("postgresql_source", "postgresql_source", ""), "mysql_main": ("mysql_source", "postgresql_source", "a"),
         "mysql_other": ("postgresql_source", "mysql_source", "b")}  # fmt: skip
"""What the servers of the main site and of the other one are, and which of them is a MySQL."""
KEYS = 40
LOST_RACES = {"23505", "40P01", "40001", "55P03", 1062, 1213, 1205}


@pytest.fixture(params=["loop_back", "time_intersection"])
def consistency(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(
    params=["postgresql", *(pytest.param(name, marks=pytest.mark.full) for name in SITES if "mysql" in name)]
)
def pair(
    request: pytest.FixtureRequest, consistency: str, tmp_path: Path, zookeeper: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Channel]:
    main, other, mysql = SITES[request.param]
    servers = {"a": request.getfixturevalue(main), "b": request.getfixturevalue(other)}
    with two_sites(tmp_path, servers, zookeeper, monkeypatch, f"consistency: {consistency}", mysql=mysql) as made:
        for site in made.sites.values():
            site.write(CODED)
        made.prepare()
        yield made


def conflicts(made: Channel) -> int | None:
    return status(made.runtime("b_to_a")).conflicts


def coded(made: Channel) -> list[tuple[Any, ...]]:
    """The rows of ``coded``, which are those of both sites."""
    found = [site.all("coded") for site in made.sites.values()]
    assert found[0] == found[1]
    return found[0]


def test_the_main_sites_word_wins(pair: Channel, consistency: str) -> None:
    """Updates against updates and deletes, inserts of one key, and rows that only one site writes."""
    a, b = pair.sites["a"], pair.sites["b"]
    a.write("INSERT INTO items (id, site, n) VALUES (1, 'a', 1), (2, 'a', 1), (4, 'a', 1), (5, 'a', 1)")
    pair.settle()
    a.write("UPDATE items SET n = 2 WHERE id IN (1, 2)", "DELETE FROM items WHERE id = 4", "INSERT INTO items (id, site) VALUES (6, 'a')",
            "UPDATE items SET n = 9 WHERE id = 5")  # fmt: skip
    b.write("UPDATE items SET n = 3 WHERE id IN (1, 4)", "INSERT INTO items (id, site) VALUES (3, 'b')",
            "INSERT INTO items (id, site) VALUES (6, 'b')", "DELETE FROM items WHERE id = 5")  # fmt: skip
    pair.once("b_to_a", "a_to_b", "b_to_a")
    wanted = [(1, "a", 2), (2, "a", 2), (3, "b", 0), (5, "a", 9), (6, "a", 0)]
    assert [row[:3] for row in pair.equal()] == wanted
    pair.settle()
    assert [row[:3] for row in pair.equal()] == wanted
    if consistency == "time_intersection":
        assert conflicts(pair) == 4


@pytest.mark.parametrize("first", ["a_to_b", "b_to_a"])
def test_a_key_that_one_site_changes_against_an_update_of_the_other(pair: Channel, first: str) -> None:
    """The main site's word about the old key wins, whichever pipeline is earlier."""
    a, b = pair.sites["a"], pair.sites["b"]
    a.write("INSERT INTO items (id, site, n) VALUES (1, 'a', 1), (2, 'a', 1), (3, 'a', 1)")
    pair.settle()
    a.write("UPDATE items SET id = 10 WHERE id = 1", "UPDATE items SET n = 7 WHERE id = 2")
    b.write("UPDATE items SET n = 5 WHERE id = 1", "UPDATE items SET id = 20 WHERE id = 2")
    second = "b_to_a" if first == "a_to_b" else "a_to_b"
    pair.once(first, second, first, second)
    pair.settle()
    assert [row[:3] for row in pair.equal()] == [(2, "a", 7), (3, "a", 1), (10, "a", 1), (20, "a", 1)]


def test_sites_that_write_one_row_in_turn_are_not_in_conflict(pair: Channel, consistency: str) -> None:
    pair.sites["a"].write("INSERT INTO items (id, site) VALUES (1, 'a')")
    pair.settle()
    for number in range(1, 5):
        site, way = (("a", "a_to_b"), ("b", "b_to_a"))[number % 2]
        pair.sites[site].write(f"UPDATE items SET n = {number} WHERE id = 1")
        assert pair.once(way) >= 1
    pair.settle()
    assert [row[:3] for row in pair.equal()] == [(1, "a", 4)]
    assert conflicts(pair) == 0


def test_a_unique_value_that_both_sites_give_away(pair: Channel) -> None:
    """The main site's row stays; two rows of a batch may have one value, too, of which the later one keeps it."""
    a, b = pair.sites["a"], pair.sites["b"]
    a.write("INSERT INTO coded VALUES (1, 'a', 1, 'x'), (2, 'a', 1, 'y'), (3, 'a', 1, 'w')")
    pair.settle()
    a.write("INSERT INTO coded VALUES (4, 'a', 1, 'z')", "UPDATE coded SET code = NULL WHERE id = 1",
            "UPDATE coded SET code = 'x' WHERE id = 3")  # fmt: skip
    b.write("INSERT INTO coded VALUES (5, 'b', 1, 'z')", "UPDATE coded SET code = 'v', n = 2 WHERE id = 2",
            "INSERT INTO coded VALUES (6, 'b', 1, 'y')")  # fmt: skip
    pair.once("b_to_a", "a_to_b", "b_to_a")
    pair.settle()
    assert coded(pair) == [
        (1, "a", 1, None), (2, "a", 2, "v"), (3, "a", 1, "x"), (4, "a", 1, "z"), (6, "b", 1, "y"),
    ]  # fmt: skip


@pytest.mark.full
def test_a_row_with_a_value_that_the_log_lacks_is_deleted_at_both(pair: Channel) -> None:
    """An update of the main site against a delete of the other one; with the whole row in the log the update wins."""
    a, b = pair.sites["a"], pair.sites["b"]
    if a.mysql:
        pytest.skip("its log has whole rows")
    a.write("ALTER TABLE items ALTER COLUMN note SET STORAGE EXTERNAL")
    a.write("INSERT INTO items SELECT n, 'a', 0, repeat('long ', 2000) FROM generate_series(1, 2) n")
    pair.settle()
    for number, kept in ((1, []), (2, [(2, "a", 2)])):
        a.write(f"UPDATE items SET n = 2 WHERE id = {number}")
        b.write(f"DELETE FROM items WHERE id = {number}")
        pair.once("b_to_a", "a_to_b", "b_to_a")
        pair.settle()
        assert [row[:3] for row in pair.equal() if row[0] == number] == kept
        a.write("ALTER TABLE items REPLICA IDENTITY FULL")


def test_what_a_channel_of_the_same_rows_refuses(pair: Channel) -> None:
    """A table without a key, and single columns of rows."""
    for site in pair.sites.values():
        site.write("CREATE TABLE bare (v int)")
    b = pair.sites["b"]
    if not b.mysql:
        b.write("ALTER TABLE bare REPLICA IDENTITY FULL", f"ALTER PUBLICATION {pair.publication('b')} ADD TABLE bare")
    b.write("INSERT INTO bare VALUES (1)")
    with pytest.raises(ConfigError, match="bare has no primary key, and its channel loops back"):
        pair.once("b_to_a")
    way = "a_to_b" if pair.sites["b"].mysql else "b_to_a"
    path = pair.folder / "pipelines" / f"{pair.name}_{way}.yaml"
    text = path.read_text(encoding="utf-8").partition("mapping:")[0]
    path.write_text(f"{text}mapping: [{{from: shop.*, to: shop.*, send: changed_columns}}]\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="does not say which columns an update changed, sends changed columns"):
        pair.runtime(way)


def fight(site: Site, name: str, seed: int, transactions: int) -> None:
    """Rows that both sites write at the same time: whatever happens to a row can happen."""
    choose = random.Random(seed)
    with site.server.connect(site.database, **({"autocommit": False} if site.mysql else {})) as connection:
        if not site.mysql:
            connection.autocommit = False
            connection.execute("SET search_path = shop")
            connection.commit()
        cursor = connection.cursor()
        for number in range(transactions):
            try:
                for _ in range(choose.choice((1, 1, 2, 5))):
                    cursor.execute(statement(site, name, choose, number))
                connection.commit()
            except (psycopg.Error, pymysql.MySQLError) as error:
                if (error.sqlstate if isinstance(error, psycopg.Error) else error.args[0]) not in LOST_RACES:
                    raise
                connection.rollback()


def statement(site: Site, name: str, choose: random.Random, number: int) -> str:
    key, other = choose.randrange(KEYS), choose.randrange(KEYS)
    table = choose.choice(("items", "coded", "coded"))
    code = f"c{choose.randrange(KEYS)}"
    values = f"({key}, '{name}', {number})" if table == "items" else f"({key}, '{name}', {number}, '{code}')"
    columns = "id, site, n" if table == "items" else "id, site, n, code"
    taken = (
        "ON DUPLICATE KEY UPDATE n = VALUES(n)"
        if site.mysql
        else "ON CONFLICT (id) DO UPDATE SET n = EXCLUDED.n, site = EXCLUDED.site"
    )
    return choose.choices(
        [
            f"INSERT INTO {table} ({columns}) VALUES {values} {taken}",
            f"UPDATE {table} SET n = {number}, site = '{name}' WHERE id = {key}",
            f"DELETE FROM {table} WHERE id = {key}",
            f"UPDATE {table} SET id = {other}, n = {number} WHERE id = {key}",
            f"UPDATE coded SET code = '{code}' WHERE id = {key}",
        ],
        [5, 4, 2, 1, 2],
    )[0]


@pytest.mark.full
@pytest.mark.parametrize("seed", [1, 2])
def test_writers_fight_over_rows_and_both_sites_end_equal(pair: Channel, seed: int) -> None:
    done = threading.Event()

    def delivers(way: str) -> None:
        while not done.is_set():
            pair.once(way)

    with ThreadPoolExecutor(4) as pool:
        ways = [pool.submit(delivers, way) for way in ("a_to_b", "b_to_a")]
        writers = [
            pool.submit(partial(fight, site, name, 10 * seed + at, 400))
            for at, (name, site) in enumerate(pair.sites.items())
        ]
        try:
            for one in writers:
                one.result()
        finally:
            done.set()
        for one in ways:
            one.result()
    pair.settle()
    assert pair.equal()
    assert coded(pair)
