"""Channels on real servers: both sites are written to, both end equal, and nothing goes round."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from sluice.errors import ConfigError, DecodeError, LoadError, Paused
from sluice.flows.cancellation import CancellationGuard
from sluice.model.load_marks import LoadMark, origin_number, public_key
from sluice.segments.reader import iter_changes
from sluice.targets.mysql import target
from sluice.targets.mysql.session import kept
from tests.support.crashes.cuts import Budget
from tests.support.pipelines.channels import Network, joined, network, two_sites
from tests.support.running.waiting import ended, wait_until
from tests.support.tables.site_writers import committed

ITEMS = (
    "CREATE TABLE items (id INT PRIMARY KEY, site VARCHAR(10) NOT NULL, n INT NOT NULL DEFAULT 0, code "
    "VARCHAR(40) UNIQUE, note TEXT)"
)


pair = two_sites(ITEMS)


WRITES_THE_SAME = pytest.mark.parametrize("consistency", ["loop_back", "time_intersection"])


def write(made: Network, site: str, low: int, count: int, stop: threading.Event | None = None) -> dict[int, int]:
    """Insert, update, re-key, delete and insert again ``count`` rows of the site's own; how often each was counted
    up.
    """
    counts: dict[int, int] = {}
    with made.servers[site].connect(made.schema) as connection:
        for i in range(low, low + count):
            insert = f"INSERT INTO items (id, site, code) VALUES ({i}, '{site}', '{site}{i}')"
            update = f"UPDATE items SET n = n + 1, note = REPEAT('x', {i % 50}) WHERE id = {i}"
            committed(connection, insert, *[update] * (i % 4))
            counts[i] = i % 4
            if i % 5 == 1:
                committed(connection, f"DELETE FROM items WHERE id = {i - 1}")
                counts.pop(i - 1, None)
            if i % 5 == 2:  # two rows swap a unique value
                committed(
                    connection,
                    f"UPDATE items SET code = 'swap' WHERE id = {i - 1}",
                    f"UPDATE items SET code = '{site}{i - 1}' WHERE id = {i}",
                    f"UPDATE items SET code = '{site}{i}' WHERE id = {i - 1}",
                )
            if i % 5 == 4:
                committed(connection, f"UPDATE items SET id = id + 5000000, n = n + 1 WHERE id = {i}")
                counts[i + 5000000] = counts.pop(i) + 1
            if stop is not None and stop.is_set():
                break
    return counts


@pytest.mark.promise("B30")
def test_what_one_site_gets_it_does_not_send_back(pair: Network) -> None:
    joined(pair)
    pair.execute("a", "INSERT INTO items (id, site) VALUES (1, 'a')", "INSERT INTO items (id, site) VALUES (2, 'a')")
    assert pair.once("a_to_b") == 1
    assert pair.once("b_to_a") == 0
    pair.execute("b", "UPDATE items SET n = n + 1 WHERE id = 1")
    assert pair.once("b_to_a") == 1
    assert pair.once("a_to_b") == 0
    assert [row[2] for row in pair.assert_equal("items")] == [1, 0]
    pair.assert_still()
    assert pair.servers["b"].execute("SELECT COUNT(*) FROM _sluice_origin", database=pair.schema)[0][0] == 0


def test_without_a_channel_it_goes_back(pair: Network) -> None:
    """What the other tests would look like if marks did nothing."""
    pair.pipe("a", "b")
    pair.pipe("b", "a")
    pair.once()
    pair.execute("a", "INSERT INTO items (id, site) VALUES (1, 'a')")
    assert [pair.once("a_to_b"), pair.once("b_to_a")] == [1, 1]


@pytest.mark.promise("B31")
def test_both_sites_are_written_to_at_the_same_time_and_end_equal(pair: Network) -> None:
    joined(pair)
    counts: dict[int, int] = {}

    def work(site: str, low: int) -> None:
        counts.update(write(pair, site, low, 300))

    pair.at_work(partial(work, "a", 1000), partial(work, "b", 2_000_000))
    pair.settle()
    rows = pair.assert_equal("items")
    assert {row[0]: row[2] for row in rows} == counts
    for site, gone in (("a", max(counts)), ("b", min(counts))):  # rows that the other site wrote, and both have
        pair.execute(site, f"DELETE FROM items WHERE id = {gone}")
        del counts[gone]
    pair.settle()
    rows = pair.assert_equal("items")
    assert {row[0]: row[2] for row in rows} == counts
    pair.assert_still()


def fight(made: Network, site: str, seed: int, transactions: int) -> None:
    """Write rows that the other site writes, too."""
    choose = random.Random(seed)
    with made.servers[site].connect(made.schema) as connection:
        for number in range(transactions):
            statements = []
            for key in sorted({
                choose.randrange(40) for _ in range(choose.randint(1, 3))
            }):  # in one order: few deadlocks
                kind = choose.random()
                if kind < 0.2:
                    statements.append(f"DELETE FROM items WHERE id = {key}")
                elif kind < 0.6:
                    statements.append(f"UPDATE items SET n = {number}, site = '{site}' WHERE id = {key}")
                else:
                    statements.append(f"REPLACE INTO items (id, site, n) VALUES ({key}, '{site}', {number})")
            committed(connection, *statements)


def test_both_sites_write_the_same_rows_and_end_equal(pair: Network) -> None:
    """What the main site sent comes back to it once."""
    joined(pair, channel="consistency: loop_back")
    pair.at_work(*(partial(fight, pair, site, seed, 400) for seed, site in enumerate("ab", start=7)))
    pair.settle(rounds=2)
    assert pair.assert_equal("items")
    pair.assert_still()


@pytest.mark.promise("B36")
def test_looping_back_the_last_word_is_the_main_sites(pair: Network) -> None:
    joined(pair, channel="consistency: loop_back")
    pair.execute("a", "INSERT INTO items (id, site) VALUES (1, 'a')")
    pair.execute("b", "INSERT INTO items (id, site) VALUES (1, 'b'), (2, 'b')")
    assert [pair.once("a_to_b"), pair.once("b_to_a"), pair.once("a_to_b")] == [1, 1, 0]
    assert [row[:2] for row in pair.assert_equal("items")] == [(1, "a"), (2, "b")]


@WRITES_THE_SAME
def test_looping_back_a_unique_value_that_has_gone_to_another_row_holds_nothing_up(
    pair: Network, consistency: str
) -> None:
    """What comes back is older than the site's own rows: one of them may have taken over a value meanwhile.

    It gives way, and comes back, too.
    """
    joined(pair, channel=f"consistency: {consistency}")
    pair.execute("a", "INSERT INTO items (id, site, code) VALUES (1, 'a', 'one'), (2, 'a', 'two')")
    pair.settle()
    pair.execute("a", "UPDATE items SET n = 1 WHERE id = 1")
    pair.once("a_to_b")
    pair.execute("a", "UPDATE items SET code = 'x' WHERE id = 1", "UPDATE items SET code = 'one' WHERE id = 2")
    pair.once("b_to_a")
    pair.settle()
    assert [(row[0], row[2], row[3]) for row in pair.assert_equal("items")] == [(1, 1, "x"), (2, 0, "one")]
    pair.assert_still()


@WRITES_THE_SAME
def test_looping_back_of_two_rows_with_one_unique_value_the_main_sites_stays(pair: Network, consistency: str) -> None:
    joined(pair, channel=f"consistency: {consistency}")
    pair.execute("a", "INSERT INTO items (id, site, code) VALUES (1, 'a', 'one'), (2, 'a', 'two')")
    pair.settle()
    pair.execute("a", "UPDATE items SET code = 'x' WHERE id = 1")
    pair.execute(
        "b", "UPDATE items SET code = 'x' WHERE id = 2", "INSERT INTO items (id, site, code) VALUES (3, 'b', 'y')"
    )
    pair.settle()
    assert [(row[0], row[3]) for row in pair.assert_equal("items")] == [(1, "x"), (3, "y")]
    pair.assert_still()


@WRITES_THE_SAME
def test_of_two_new_rows_with_one_unique_value_the_main_sites_stays(pair: Network, consistency: str) -> None:
    """They have different keys, so that neither site sees the other's row change.

    Each removes the other one where it arrives.
    """
    joined(pair, channel=f"consistency: {consistency}")
    pair.execute("a", "INSERT INTO items (id, site, code) VALUES (10, 'a', 'x')")
    pair.execute("b", "INSERT INTO items (id, site, code) VALUES (20, 'b', 'x')")
    pair.once("b_to_a")
    pair.settle()
    assert [(row[0], row[3]) for row in pair.assert_equal("items")] == [(10, "x")]
    pair.assert_still()


@WRITES_THE_SAME
@pytest.mark.parametrize("there", [False, True], ids=["new rows", "rows that the other site has"])
def test_two_rows_of_a_batch_may_have_one_unique_value(pair: Network, consistency: str, there: bool) -> None:
    """What b sent took the value from row 2 at a, and is not in the batch of a.

    So rows 2 and 1 are in it with one value: the later one keeps it.
    """
    if there:
        pair.everywhere("INSERT INTO items (id, site, code) VALUES (1, '', 'one'), (2, '', 'two'), (3, '', 'three')")
    joined(pair, channel=f"consistency: {consistency}")
    pair.execute("a", "REPLACE INTO items (id, site, code) VALUES (2, 'a', 'x'), (3, 'a', 'z')")
    pair.execute("b", "REPLACE INTO items (id, site, code) VALUES (1, 'b', 'X')")  # equal to the server
    pair.once("b_to_a")
    assert [(row[0], row[3]) for row in pair.rows("a", "items")] == [(1, "X"), (3, "z")]
    pair.execute("a", "UPDATE items SET n = n + 1 WHERE id = 1")
    pair.once("a_to_b")
    pair.settle()
    assert [(row[0], row[2], row[3]) for row in pair.assert_equal("items")] == [(1, 1, "X"), (3, 0, "z")]
    pair.assert_still()


def test_looping_back_a_table_needs_a_key(pair: Network) -> None:
    """Rows that come back would be there twice."""
    joined(pair, channel="consistency: loop_back")
    pair.everywhere("CREATE TABLE loose (a INT)")
    pair.execute("a", "INSERT INTO loose VALUES (1)")
    pair.once("a_to_b")
    with pytest.raises(ConfigError, match="loose has no primary key, and its channel loops back"):
        pair.once("b_to_a")
    assert pair.rows("a", "loose") == [(1,)]
    for pipeline in pair.names:
        report = json.loads(pair.cli("check", pipeline, "--json").stdout)
        said = [line for line in report["findings"] if line["setting"] == "primary key"]
        assert [(line["severity"], line["value"]) for line in said] == [("error", f"{pair.schema}.loose")]


def secret_key(pair: Network) -> str:
    """The key of the channel's marks, which ZooKeeper has."""
    with pair.runtime("a_to_b").state() as state:
        return state.mark_key("a_to_b_b_to_a")


def test_a_mark_that_somebody_writes_by_hand_changes_nothing(pair: Network) -> None:
    """Neither a made-up token, nor a real one of which only a half, or one around other rows, is there."""
    joined(pair)
    pair.execute("a", "INSERT INTO items (id, site) VALUES (1, 'a')")
    pair.once("a_to_b")
    key = secret_key(pair)
    real = LoadMark("a_to_b", "a_to_b_b_to_a", "", key).token("ff")
    public = LoadMark("a_to_b", "a_to_b_b_to_a", "", public_key("a_to_b_b_to_a")).token("ff")
    named = LoadMark("a_to_b", "", "", public_key("")).token("ff")
    other = LoadMark("a_to_b", "a_to_b_b_to_a", "", "another key of the channel").token("ff")
    foreign = LoadMark("c_to_b", "no_such_channel", "", key).token("ff")
    for number, token in enumerate((other, foreign, "by hand", real[:-1], public, named)):
        pair.execute(
            "b",
            f"INSERT INTO _sluice_origin VALUES ('{token}')",
            f"INSERT INTO items (id, site) VALUES ({10 + number}, 'b')",
            f"DELETE FROM _sluice_origin WHERE token = '{token}'",
        )
    pair.execute("b", "INSERT INTO _sluice_origin VALUES ('left there')", "UPDATE items SET n = 7 WHERE id = 10")
    pair.execute("b", "DELETE FROM _sluice_origin")
    pair.execute(  # a token stands in front of the first row that is captured, or it is none
        "b",
        "INSERT INTO items (id, site) VALUES (20, 'b')",
        f"INSERT INTO _sluice_origin VALUES ('{real}')",
        "INSERT INTO items (id, site) VALUES (21, 'b')",
        f"DELETE FROM _sluice_origin WHERE token = '{real}'",
        "INSERT INTO items (id, site) VALUES (22, 'b')",
    )
    pair.settle()
    assert [row[0] for row in pair.assert_equal("items")] == [1, 10, 11, 12, 13, 14, 15, 20, 21, 22]
    assert pair.rows("a", "items")[1][2] == 7
    pair.assert_still()


def test_a_load_without_its_end_stops_the_drain(pair: Network) -> None:
    """What Sluice did not write so is not guessed at."""
    joined(pair)
    pair.execute("a", "INSERT INTO items (id, site) VALUES (9, 'a')")
    pair.once("a_to_b")
    pair.once("a_to_b")
    real = LoadMark("a_to_b", "a_to_b_b_to_a", "", secret_key(pair)).token("ff")
    pair.execute("b", f"INSERT INTO _sluice_origin VALUES ('{real}')", "INSERT INTO items (id, site) VALUES (1, 'b')")
    with pytest.raises(DecodeError, match="none at its tail"):
        pair.once("b_to_a")
    assert [row[0] for row in pair.rows("a", "items")] == [9]


@pytest.mark.promise("B32")
@pytest.mark.parametrize("consistency", ["row", "table", "batch"])
def test_a_large_transaction_in_both_directions(pair: Network, consistency: str) -> None:
    """Read in many pieces, loaded by several connections in bulk or in one transaction, and logged in as many as the
    server likes.
    """
    names = pair.pipe("a", "b", target_extra=f"    consistency: {consistency}"), pair.pipe("b", "a")
    pair.channel(*names)
    pair.once()
    for site, low in (("a", 1), ("b", 50_001)):
        with pair.servers[site].connect(pair.schema) as connection, connection.cursor() as cursor:
            cursor.execute("SET SESSION cte_max_recursion_depth = 100000")
            cursor.execute(
                "INSERT INTO items (id, site, code, note) WITH RECURSIVE s (i) AS (SELECT 1 UNION ALL SELECT i + 1 "
                f"FROM s WHERE i < 15000) SELECT i + {low}, '{site}', CONCAT('{site}', i), REPEAT('y', 200) FROM s"
            )
            connection.commit()
    pair.once("a_to_b", "b_to_a")
    with pair.servers["a"].connect(pair.schema) as connection, connection.cursor() as cursor:
        cursor.execute("UPDATE items SET n = n + 1")
        connection.commit()
    assert pair.once("a_to_b") >= 1
    assert pair.once("b_to_a") == 0
    rows = pair.assert_equal("items")
    assert len(rows) == 30_000
    assert {row[2] for row in rows} == {1}
    pair.assert_still()


@contextmanager
def set_everywhere(made: Network, option: str, value: str, usual: str) -> Iterator[None]:
    """A global variable of all servers, for the block. Loads get new sessions."""
    for server in made.servers.values():
        server.execute(f"SET GLOBAL {option} = {value}")
    kept.end()
    try:
        yield
    finally:
        for server in made.servers.values():
            server.execute(f"SET GLOBAL {option} = {usual}")
        kept.end()


def test_a_compressed_or_partial_log_has_the_marks_too(pair: Network) -> None:
    joined(pair)
    for option, value, usual in (
        ("binlog_row_image", "MINIMAL", "FULL"),
        ("binlog_transaction_compression", "ON", "OFF"),
    ):
        with set_everywhere(pair, option, value, usual):
            low = 100 * (1 + len(pair.rows("a", "items")))
            pair.execute("a", f"INSERT INTO items (id, site) VALUES ({low}, 'a'), ({low + 1}, 'a')")
            pair.execute("b", f"INSERT INTO items (id, site) VALUES ({low + 2}, 'b')")
            pair.once()
            pair.execute("a", f"UPDATE items SET n = n + 1 WHERE id >= {low}")
            pair.settle()
            pair.execute("b", f"UPDATE items SET note = 'b' WHERE id = {low}")
            pair.settle()
            pair.assert_still()
            assert [row[2:] for row in pair.assert_equal("items")][-3:] == [
                (1, None, "b"),
                (1, None, None),
                (1, None, None),
            ]


def test_letters_that_are_replayed_are_marked(pair: Network) -> None:
    names = pair.pipe("a", "b", target_extra="    on_error: dead_letter"), pair.pipe("b", "a")
    pair.channel(*names)
    pair.once()
    pair.servers["b"].execute("ALTER TABLE items ADD CONSTRAINT few CHECK (n < 5)", database=pair.schema)
    pair.execute("a", "INSERT INTO items (id, site, n) VALUES (1, 'a', 9), (2, 'a', 1)")
    pair.settle()
    assert [row[0] for row in pair.rows("b", "items")] == [2]
    pair.servers["b"].execute("ALTER TABLE items DROP CONSTRAINT few", database=pair.schema)
    assert pair.cli("dead-letters", "replay", "a_to_b", "--yes").returncode == 0
    assert pair.once("b_to_a") == 0
    assert len(pair.assert_equal("items")) == 2
    pair.assert_still()


@pytest.mark.promise("B37")
def test_definitions_go_one_way_and_rows_of_before_still_fit(pair: Network) -> None:
    """Both sites change different columns of one row meanwhile: with send: changed_columns both stay."""
    joined(pair, extra=f"mapping: [{{from: {pair.schema}.*, to: {pair.schema}.*, send: changed_columns}}]")
    pair.execute("b", "INSERT INTO items (id, site) VALUES (1, 'b')")
    pair.once("b_to_a")
    pair.execute("b", "UPDATE items SET n = 1 WHERE id = 1", "INSERT INTO items (id, site) VALUES (2, 'b')")
    pair.servers["a"].execute(
        "ALTER TABLE items ADD COLUMN colour VARCHAR(9) NOT NULL DEFAULT 'red'", database=pair.schema
    )
    pair.execute("a", "UPDATE items SET colour = 'blue' WHERE id = 1")
    assert pair.once("b_to_a") == 1  # what was written at B under the old definition
    assert [row[2:3] + row[5:] for row in pair.rows("a", "items")] == [(1, "blue"), (0, "red")]
    pair.once("a_to_b")
    pair.execute("b", "UPDATE items SET colour = 'green' WHERE id = 2")
    pair.servers["b"].execute("CREATE TABLE only_b (id INT PRIMARY KEY)", database=pair.schema)
    pair.settle()
    rows = pair.assert_equal("items")
    assert [row[5] for row in rows] == ["blue", "green"]
    assert pair.servers["a"].execute("SHOW TABLES LIKE 'only_b'", database=pair.schema) in ((), [])
    pair.assert_still()


@pytest.mark.promise("B33", "B34")
def test_a_cascade_needs_no_setting_and_never_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mysql_source, mysql_target, mariadb, zookeeper, fresh_schema
) -> None:
    """A and B as a channel, B to C: what A sent to B goes on to C, and nothing of it back to A."""
    schema = fresh_schema(mysql_source, mysql_target, mariadb)
    servers = {"a": mysql_source, "b": mysql_target, "c": mariadb}
    with network(tmp_path, monkeypatch, zookeeper, schema, **servers) as made:
        made.everywhere(ITEMS)
        joined(made)
        made.pipe("b", "c")
        made.once()
        made.execute("a", "INSERT INTO items (id, site) VALUES (1, 'a')")
        made.execute("b", "INSERT INTO items (id, site) VALUES (2, 'b')")
        made.settle()
        made.execute("a", "UPDATE items SET n = n + 1")
        made.settle()
        made.execute("b", "UPDATE items SET n = n + 1")
        made.settle()
        assert [row[:3] for row in made.assert_equal("items")] == [(1, "a", 2), (2, "b", 2)]
        made.servers["a"].execute("ALTER TABLE items ADD COLUMN more INT", database=schema)
        made.execute("a", "UPDATE items SET more = 3")
        made.settle()
        assert [row[5] for row in made.assert_equal("items")] == [3, 3]
        made.assert_still()


@pytest.mark.promise("B35")
def test_a_named_mark_stops_a_cascade(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mysql_source, mysql_target, mariadb, zookeeper, fresh_schema
) -> None:
    """A to B to C, where C is to have what B writes itself only; rows and definitions."""
    schema = fresh_schema(mysql_source, mysql_target, mariadb)
    servers = {"a": mysql_source, "b": mysql_target, "c": mariadb}
    with network(tmp_path, monkeypatch, zookeeper, schema, **servers) as made:
        made.everywhere(ITEMS)
        made.pipe("a", "b", extra="mark: no_reporting")
        made.pipe("b", "c", extra="ignore_marks: [other, no_reporting]")
        made.once()
        made.execute("a", "INSERT INTO items (id, site) VALUES (1, 'a')")
        made.execute("b", "INSERT INTO items (id, site) VALUES (2, 'b')")
        made.settle()
        made.execute("b", "UPDATE items SET n = n + 1")
        made.servers["a"].execute("CREATE TABLE of_a (id INT PRIMARY KEY)", database=schema)
        made.servers["b"].execute("CREATE TABLE of_b (id INT PRIMARY KEY)", database=schema)
        made.settle()
        assert [row[:3] for row in made.rows("b", "items")] == [(1, "a", 1), (2, "b", 1)]
        assert [row[:3] for row in made.rows("c", "items")] == [(1, "a", 1), (2, "b", 1)]
        tables = {
            site: {row[0] for row in made.servers[site].execute("SHOW TABLES", database=schema)} for site in "abc"
        }
        assert {"of_a", "of_b"} <= tables["b"]
        assert tables["c"] - {"_sluice_ack"} == {"items", "of_b"}


@pytest.mark.promise("B38")
def test_a_star_of_three(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mysql_source, mysql_target, mariadb, zookeeper, fresh_schema
) -> None:
    """A main, B and C: two channels that meet in A. What B writes goes to A and on to C, and nothing goes round."""
    schema = fresh_schema(mysql_source, mysql_target, mariadb)
    servers = {"a": mysql_source, "b": mysql_target, "c": mariadb}
    with network(tmp_path, monkeypatch, zookeeper, schema, **servers) as made:
        made.everywhere(ITEMS)
        joined(made)
        joined(made, "a", "c")
        counts: dict[int, int] = {}

        def work(site: str, low: int) -> None:
            counts.update(write(made, site, low, 60))

        writers = [
            threading.Thread(target=work, args=(site, low), name=f"writer {site}")
            for site, low in (("a", 1000), ("b", 10_000), ("c", 20_000))
        ]
        with made.running():
            for writer in writers:
                writer.start()
            for writer in writers:
                ended(writer)
        made.settle()
        rows = made.assert_equal("items")
        assert {row[0]: row[2] for row in rows} == counts
        made.assert_still()


def test_a_channel_with_mariadb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mysql_source, mariadb, zookeeper, fresh_schema
) -> None:
    schema = fresh_schema(mysql_source, mariadb)
    with network(tmp_path, monkeypatch, zookeeper, schema, a=mysql_source, m=mariadb) as made:
        made.everywhere(ITEMS)
        joined(made, "a", "m")
        for compressed in ("OFF", "ON"):
            mariadb.execute(f"SET GLOBAL log_bin_compress = {compressed}, GLOBAL log_bin_compress_min_len = 10")
            kept.end()
            low = 1 if compressed == "OFF" else 1001
            counts = {**write(made, "a", low, 40), **write(made, "m", low + 500, 40)}
            made.settle()
            rows = made.assert_equal("items")
            assert {row[0]: row[2] for row in rows if row[0] % 5_000_000 >= low} == counts
            made.assert_still()
        mariadb.execute("SET GLOBAL log_bin_compress = OFF, GLOBAL log_bin_compress_min_len = 256")
        kept.end()


def test_one_command_makes_a_channel_and_check_looks_at_it(pair: Network) -> None:
    pair.pipe("a", "b")
    pair.pipe("b", "a")
    pair.pipe("x_of_a", "b")
    (pair.pipelines / "x_of_a_to_b.yaml").write_text(
        (pair.pipelines / "a_to_b.yaml").read_text().replace("a_to_b", "x_of_a_to_b").replace("site_x_of_a", "site_a")
    )
    made = pair.cli("channel", "new", "a_b", "--pipelines", "a_to_b", "b_to_a", "--main", "site_a")
    assert made.returncode == 0, made.stderr
    assert "key: " in (pair.channels / "a_b.yaml").read_text()
    shown = json.loads(pair.cli("channel", "show", "a_b", "--json").stdout)
    assert (shown["main"], shown["ddl"]) == ("a_to_b", "a_to_b")
    assert [line["target"] for line in shown["pipelines"]] == ["b", "a"]
    assert len({line["origin"] for line in shown["pipelines"]}) == 2
    refused = {
        ("b_to_a", "x_of_a_to_b"): "b_to_a is in channel a_b already",
        ("x_of_a_to_b", "c_to_a"): "there is no pipeline 'c_to_a'",
    }
    for pipelines, said in refused.items():
        done = pair.cli("channel", "new", "other", "--pipelines", *pipelines, "--main", pipelines[0])
        assert done.returncode == 1
        assert said in done.stderr
    (pair.channels / "a_b.yaml").unlink()
    done = pair.cli("channel", "new", "other", "--pipelines", "a_to_b", "x_of_a_to_b", "--main", "a")
    assert "the ends do not meet" in done.stderr
    assert not list(pair.channels.glob("*"))


def test_check_warns_of_what_both_sites_may_give_away(pair: Network) -> None:
    pair.channel(pair.pipe("a", "b"), pair.pipe("b", "a"))
    pair.everywhere("CREATE TABLE numbered (id INT AUTO_INCREMENT PRIMARY KEY)")

    def said() -> dict[str, str]:
        report = json.loads(pair.cli("check", "a_to_b", "--json").stdout)
        return {line["setting"]: line["why"] for line in report["findings"] if line["severity"] == "warning"}

    found = said()
    assert "same numbers" in found["auto_increment_increment"]
    assert f"{pair.schema}.numbered" in found["auto_increment_increment"]
    assert "two different rows" in found["unique keys"]
    servers = pair.servers.values()
    try:
        for server in servers:
            server.execute("SET GLOBAL auto_increment_increment = 2")
        assert "auto_increment_increment" not in said()
        assert "same numbers" in said()["auto_increment_offset"]
        pair.servers["b"].execute("SET GLOBAL auto_increment_offset = 2")
        assert not {name for name in said() if name.startswith("auto")}
    finally:
        for server in servers:
            server.execute("SET GLOBAL auto_increment_increment = 1")
            server.execute("SET GLOBAL auto_increment_offset = 1")


def test_check_warns_of_a_ring(pair: Network) -> None:
    def rings() -> list[str]:
        report = json.loads(pair.cli("check", "a_to_b", "--json").stdout)
        return [line["value"] for line in report["findings"] if line["setting"] == "ring"]

    first = pair.pipe("a", "b")
    assert rings() == []
    second = pair.pipe("b", "a")
    assert rings() == ["a_to_b -> b_to_a"]
    pair.channel(first, second)
    assert rings() == []


def test_a_channel_whose_pipeline_does_not_exist_is_named(pair: Network) -> None:
    pair.channel(pair.pipe("a", "b"), "b_to_a")
    report = json.loads(pair.cli("check", "a_to_b", "--json").stdout)
    [line] = [line for line in report["findings"] if line["part"] == "channel"]
    assert "there is no pipeline 'b_to_a'" in line["why"]
    [listed] = json.loads(pair.cli("channel", "list", "--json").stdout)
    assert "b_to_a" in listed["error"]


def test_the_origin_of_a_change_is_in_the_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mysql_source, mysql_target, mariadb, zookeeper, fresh_schema
) -> None:
    """What A sent to B, as the pipeline from B to C has it, which reads marks; what B wrote itself has B's server
    id.
    """
    schema = fresh_schema(mysql_source, mysql_target, mariadb)
    servers = {"a": mysql_source, "b": mysql_target, "c": mariadb}
    with network(tmp_path, monkeypatch, zookeeper, schema, **servers) as made:
        made.everywhere(ITEMS)
        made.pipe("a", "b", extra="mark: from_a")
        made.pipe("b", "c", extra="ignore_marks: [others]")
        made.once()
        made.execute("a", "INSERT INTO items (id, site) VALUES (1, 'a')")
        made.once("a_to_b")
        made.execute("b", "INSERT INTO items (id, site) VALUES (2, 'b')")
        made.once("b_to_c")
        runtime = made.runtime("b_to_c")
        with runtime.state() as state:
            manifest = runtime.store.read_manifest(state.batches.require(1).manifest)
        found = {change.after["id"]: change.origin for change in iter_changes(runtime.store, manifest)}
        assert found == {1: origin_number("a_to_b"), 2: 102}


def test_rules_drop_and_route_by_origin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mysql_source, mysql_target, mariadb, zookeeper, fresh_schema
) -> None:
    """A and B as a channel; C gets of B what was written at B, and in a table of its own what came from A; the second
    rule has a task of its own.
    """
    schema = fresh_schema(mysql_source, mysql_target, mariadb)
    servers = {"a": mysql_source, "b": mysql_target, "c": mariadb}
    rules = tmp_path / "rules"
    rules.mkdir()
    (rules / "engine.yaml").write_text(
        "rules:\n"
        f"  - {{name: sent, path: sent.py, type: row, order: 1, match: {{schema: {schema}}}}}\n"
        f"  - {{name: own, path: own.sql, type: sql, order: 2, task: own, match: {{schema: {schema}, table: items}}}}\n"
    )
    number = origin_number("a_to_b")
    (rules / "sent.py").write_text(
        f"def transform(row, context):\n    return context.to('sent', row) if context.origin == {number} and "
        "row['id'] < 9 else row\n"
    )
    (rules / "own.sql").write_text("SELECT * REPLACE (_origin AS n) FROM rows WHERE _origin = 102")
    with network(tmp_path, monkeypatch, zookeeper, schema, **servers) as made:
        monkeypatch.setenv("SLUICE_RULES", str(rules))
        made.everywhere(ITEMS)
        made.servers["c"].execute("CREATE TABLE sent LIKE items", database=schema)
        joined(made)
        made.pipe("b", "c", extra="rules: engine.yaml\nignore_marks: [others]")
        made.once()
        made.execute("a", "INSERT INTO items (id, site) VALUES (1, 'a'), (9, 'a')")
        made.once("a_to_b")
        made.execute("b", "INSERT INTO items (id, site) VALUES (2, 'b')")
        made.settle()
        assert [row[:3] for row in made.rows("c", "items")] == [(2, "b", 102)]
        assert [row[:2] for row in made.rows("c", "sent")] == [(1, "a")]


@pytest.mark.promise("B43")
def test_one_side_that_fails_stops_the_other_one_and_both_go_on_together(pair: Network) -> None:
    """The target of A to B refuses; after the grace nothing goes from B to A, not even what is under way."""
    pair.channel(pair.pipe("a", "b"), pair.pipe("b", "a"), extra="grace: 2s")
    pair.once()
    other = pair.runtime("b_to_a")
    with other.state() as state:
        under_way = CancellationGuard(state, "work that goes on for long")
        pair.servers["b"].execute("ALTER TABLE items ADD CONSTRAINT none CHECK (id < 0)", database=pair.schema)
        pair.execute("a", "INSERT INTO items (id, site) VALUES (1, 'a')")
        with pytest.raises(LoadError):
            pair.once("a_to_b")
        state.pause_switch.require()  # not at once
        wait_until(lambda: not state.pause_switch.read().open, "the other side stopped", 20)
        with pytest.raises(Paused, match="a_to_b does not work"):
            under_way()
    pair.servers["b"].execute("ALTER TABLE items DROP CONSTRAINT none", database=pair.schema)
    pair.execute("b", "INSERT INTO items (id, site) VALUES (2, 'b')")
    with pytest.raises(Paused, match="by channel a_to_b_b_to_a"):
        pair.once("b_to_a")
    shown = json.loads(pair.cli("status", "b_to_a", "--json").stdout)
    assert shown["state"] == "paused"
    assert "a_to_b does not work (load-b)" in shown["paused"]
    pair.settle()
    assert len(pair.assert_equal("items")) == 2


def test_a_pipeline_whose_channel_file_is_gone_stops_until_it_leaves(pair: Network) -> None:
    joined(pair)
    pair.once()
    [file] = pair.channels.glob("*.yaml")
    assert "remove the channel's file first" in pair.cli("channel", "leave", "a_to_b").stderr
    file.unlink()
    with pytest.raises(ConfigError, match="no channel file here names it"):
        pair.once("a_to_b")
    assert pair.cli("channel", "leave", "a_to_b").returncode == 0
    assert pair.once("a_to_b") == 0


def test_a_channel_is_paused_and_resumed_as_a_whole(pair: Network) -> None:
    name = pair.channel(pair.pipe("a", "b"), pair.pipe("b", "a"))
    pair.once()
    assert pair.cli("pause", name, "--reason", "lunch").returncode == 0
    for pipeline in pair.names:
        with pytest.raises(Paused, match="lunch"):
            pair.once(pipeline)
    assert pair.cli("resume", name).returncode == 0
    assert pair.once() == 0
    assert "there is no pipeline" in pair.cli("pause", "no_such").stderr


def test_a_dump_and_a_repair_are_marked(pair: Network) -> None:
    """And asked about: the other site takes writes of its own."""
    joined(pair)
    pair.execute("a", "INSERT INTO items (id, site) VALUES (1, 'a'), (2, 'a')")
    pair.settle()
    with pair.servers["b"].connect(pair.schema) as connection, connection.cursor() as cursor:
        connection.autocommit(True)
        for statement in (
            "SET sql_log_bin = 0",
            "DELETE FROM items WHERE id = 1",
            "UPDATE items SET n = 9 WHERE id = 2",
        ):
            cursor.execute(statement)
    copying = ("dump", "start", "a_to_b", "--table", f"{pair.schema}.items", "--replace", "--yes")
    for asked in (copying, ("verify", "a_to_b", "--repair", "--yes"), ("dump", "start", "b_to_a")):
        refused = pair.cli(*asked)
        assert refused.returncode != 0
        assert "takes writes of its own" in refused.stderr
        assert "--overwrite" in refused.stderr
    with pair.running("a_to_b"):
        done = pair.cli(*copying, "--overwrite")
    assert done.returncode == 0, done.stderr
    pair.once("a_to_b")
    assert pair.once("b_to_a") == 0
    pair.assert_equal("items")
    pair.assert_still()


def test_an_xa_transaction_of_an_application_goes_over_and_its_marks_say_nothing(pair: Network) -> None:
    joined(pair)
    pair.execute("a", "INSERT INTO items (id, site) VALUES (1, 'a')")
    pair.once("a_to_b")
    with pair.servers["b"].connect(pair.schema) as connection, connection.cursor() as cursor:
        cursor.execute("XA START 'app'")
        cursor.execute("INSERT INTO _sluice_origin VALUES ('by hand')")
        cursor.execute("INSERT INTO items (id, site) VALUES (2, 'b')")
        cursor.execute("DELETE FROM _sluice_origin WHERE token = 'by hand'")
        cursor.execute("XA END 'app'")
        cursor.execute("XA PREPARE 'app'")
        pair.once("b_to_a")
        cursor.execute("XA COMMIT 'app'")
    pair.settle()
    assert [row[0] for row in pair.assert_equal("items")] == [1, 2]
    pair.assert_still()


@pytest.mark.parametrize("after", [False, True])
def test_a_load_that_dies_between_any_two_statements_leaves_no_half_mark(
    pair: Network, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """Every connection to the target is lost at the first, second, … statement; the batch is loaded again, and nothing
    of it comes back.
    """
    joined(pair)
    budget = Budget()
    budget.after = after
    monkeypatch.setattr(target, "connect", budget.wrap(target.connect))
    cuts, lost = 0, True
    while lost:
        cuts += 1
        pair.execute("a", f"INSERT INTO items (id, site, n) VALUES ({cuts}, 'a', 0)", "UPDATE items SET n = n + 1")
        lost = pair.lost(budget, cuts, "a_to_b")
        pair.once("a_to_b")
        assert pair.once("b_to_a") == 0
        assert [row[2] for row in pair.assert_equal("items")] == list(range(cuts, 0, -1))
    assert cuts > 10
    pair.assert_still()
