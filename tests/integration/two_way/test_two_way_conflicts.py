"""Channels whose sites write the same rows, on real servers: what is in conflict goes back, conflicts are listed, late
changes are read back.
"""

from __future__ import annotations

import json
import random
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from sluice.errors import ConfigError
from sluice.flows.dump.start import start
from sluice.flows.dump.worker import work
from sluice.flows.run import run
from sluice.model.dumps import Chunk
from sluice.operations.metrics import gauges, samples
from sluice.operations.status import status
from sluice.segments.changeset import Changeset, read_changeset, read_changeset_file
from sluice.targets.mysql import target
from tests.support.crashes.cuts import Budget
from tests.support.pipelines.channels import Network, joined, network, two_sites
from tests.support.tables.site_writers import committed

ITEMS = "CREATE TABLE items (id INT PRIMARY KEY, site VARCHAR(10) NOT NULL, n INT NOT NULL DEFAULT 0)"
NAMES = "CREATE TABLE names (name VARCHAR(40) COLLATE utf8mb4_0900_ai_ci PRIMARY KEY, site VARCHAR(10))"
REPAIRS = "consistency: time_intersection"


pair = two_sites(ITEMS)


def late(made: Network, name: str) -> None:
    """Deliver what is new, as if it had been written long ago."""
    for _ in run(replace(made.runtime(name), read_back_after=timedelta()), until_head=True):
        pass


def changesets(made: Network, name: str) -> list[Changeset]:
    store = made.runtime(name).store
    files = [path for number in store.batches() for path, _ in store.files(number)]
    return [read_changeset(store, path) for path in files if re.search(r"/changeset-[^/]*/manifest\.json", path)]


def sent(made: Network, name: str) -> int:
    """Rows that a pipeline has sent so far."""
    return sum(each.rows for each in changesets(made, name))


def keys_sent(made: Network, name: str) -> set[int]:
    """Keys of ``items`` that a pipeline has sent so far."""
    store = made.runtime(name).store
    found: set[int] = set()
    for changeset in changesets(made, name):
        for file in (file for table in changeset.manifest.tables for file in table.files):
            rows = read_changeset_file(store, file)
            found.update(rows["id"].to_pylist())
    return found


def fight(made: Network, site: str, seed: int, transactions: int) -> None:
    """Mostly rows of the site's own, and now and then one of ten that both write."""
    choose = random.Random(seed)
    own = 1000 if site == "a" else 100_000
    with made.servers[site].connect(made.schema) as connection:
        for number in range(transactions):
            key = choose.randrange(10) if choose.random() < 0.05 else own + choose.randrange(200)
            if choose.random() < 0.15:
                committed(connection, f"DELETE FROM items WHERE id = {key}")
            else:
                committed(connection, f"REPLACE INTO items (id, site, n) VALUES ({key}, '{site}', {number})")


def fought(made: Network) -> tuple[int, int]:
    """Writers at both sites, both pipelines at work; then both sites are equal.

    Rows that went to the other site, and from there.
    """
    made.at_work(*(partial(fight, made, site, seed, 600) for seed, site in enumerate("ab", start=7)))
    made.settle(rounds=2)
    assert made.assert_equal("items")
    made.assert_still()
    return sent(made, "a_to_b"), sent(made, "b_to_a")


def test_writers_fight_over_some_rows_and_few_rows_go_back(pair: Network) -> None:
    name = joined(pair, channel=REPAIRS)
    there, _ = fought(pair)
    keys = keys_sent(pair, "b_to_a")
    assert any(key >= 100_000 for key in keys)
    assert not [key for key in keys if 1000 <= key < 100_000], "rows that only site a writes do not go back to it"
    told = json.loads(pair.cli("channel", "conflicts", name, "--json").stdout)
    assert 0 < told["count"] < there / 4
    assert {int(line["key"]["id"]) for line in told["conflicts"]} <= set(range(10))


@pytest.mark.promise("B40")
def test_a_row_written_by_both_sites_goes_back_and_is_listed(pair: Network) -> None:
    name = joined(pair, channel=REPAIRS, extra='masked: [".*\\\\.items\\\\.site"]')
    pair.execute("a", "INSERT INTO items VALUES (1, 'a', 1), (2, 'a', 1), (4, 'a', 1)")
    pair.once("a_to_b", "b_to_a")
    pair.execute("a", "UPDATE items SET n = 2 WHERE id IN (1, 2)", "DELETE FROM items WHERE id = 4")
    pair.execute("b", "UPDATE items SET n = 3 WHERE id IN (1, 4)", "INSERT INTO items VALUES (3, 'b', 1)")
    pair.once("b_to_a", "a_to_b", "b_to_a")
    assert pair.assert_equal("items") == [(1, "a", 2), (2, "a", 2), (3, "b", 1)]
    pair.assert_still()
    told = json.loads(pair.cli("channel", "conflicts", name, "--json").stdout)
    assert told["count"] == 2
    assert told["won"] == "site_a"
    found = {line["key"]["id"]: line for line in told["conflicts"]}
    assert (found["1"]["table"], found["1"]["main"], found["1"]["other"]) == ("items", {"n": "2"}, {"n": "3"})
    assert (found["4"]["main"], found["4"]["other"]) == (None, {"id": "4", "site": "***", "n": "3"})
    assert "2 conflicts; site_a won" in pair.cli("channel", "conflicts", name).stdout
    assert gauges(samples(status(pair.runtime("b_to_a"))))["sluice.b_to_a.conflicts"] == 2
    assert "sluice.a_to_b.conflicts" not in gauges(samples(status(pair.runtime("a_to_b"))))
    assert f"sluice channel conflicts {name}" in pair.cli("status", "b_to_a").stdout


@pytest.mark.parametrize(
    ("consistency", "first"),
    [("time_intersection", "a_to_b"), ("time_intersection", "b_to_a"), ("loop_back", "b_to_a")],
)
def test_a_key_change_at_one_site_against_an_update_at_the_other(pair: Network, consistency: str, first: str) -> None:
    """The main site's word about the old key wins, whichever pipeline is earlier; the list names the old key."""
    name = joined(pair, channel=f"consistency: {consistency}")
    pair.execute("a", "INSERT INTO items VALUES (1, 'a', 1), (2, 'a', 1), (3, 'a', 1)")
    pair.once("a_to_b", "b_to_a")
    pair.execute("a", "UPDATE items SET id = 10 WHERE id = 1", "UPDATE items SET n = 7 WHERE id = 2")
    pair.execute("b", "UPDATE items SET n = 5 WHERE id = 1", "UPDATE items SET id = 20 WHERE id = 2")
    second = "b_to_a" if first == "a_to_b" else "a_to_b"
    pair.once(first, second, first, second)
    assert pair.assert_equal("items") == [(2, "a", 7), (3, "a", 1), (10, "a", 1), (20, "a", 1)]
    pair.assert_still()
    if consistency == "time_intersection":
        told = json.loads(pair.cli("channel", "conflicts", name, "--json").stdout)
        found = {line["key"]["id"]: (line["main"], line["other"]) for line in told["conflicts"]}
        assert found == {
            "1": (None, {"id": "1", "site": "a", "n": "5"}),
            "2": ({"id": "2", "site": "a", "n": "7"}, None),
        }


def test_sites_that_write_one_row_in_turn_are_not_in_conflict(pair: Network) -> None:
    """Each after it has the other's change: nothing goes back, whatever the time between."""
    name = joined(pair, channel=REPAIRS)
    pair.execute("a", "INSERT INTO items VALUES (1, 'a', 0)")
    pair.once("a_to_b", "b_to_a")
    for number in range(1, 7):
        site, pipeline = (("a", "a_to_b"), ("b", "b_to_a"))[number % 2]
        pair.execute(site, f"UPDATE items SET n = {number} WHERE id = 1")
        assert pair.once(pipeline) == 1
    pair.settle()
    assert pair.assert_equal("items") == [(1, "a", 6)]
    assert json.loads(pair.cli("channel", "conflicts", name, "--json").stdout)["count"] == 0
    assert sent(pair, "b_to_a") == 3


def test_keys_that_the_server_takes_for_equal_are_one(pair: Network) -> None:
    pair.everywhere(NAMES)
    joined(pair, channel=REPAIRS)
    pair.execute("a", "INSERT INTO names VALUES ('straße', 'a'), ('Ann', 'a'), ('x', 'a')")
    pair.execute("b", "INSERT INTO names VALUES ('STRASSE', 'b'), ('ann', 'b'), ('y', 'b')")
    pair.once("b_to_a", "a_to_b", "b_to_a")
    assert {row[0].lower(): row[1] for row in pair.assert_equal("names")} == {
        "straße": "a",
        "ann": "a",
        "x": "a",
        "y": "b",
    }
    pair.assert_still()


COLUMNS = "mapping: [{{from: {0}.*, to: {0}.*, send: changed_columns}}]"


def test_different_columns_of_a_row_both_survive(pair: Network) -> None:
    """Also one that was changed back within a batch while the other site wrote it, and one of a row that is gone at the
    other site.
    """
    joined(pair, channel=REPAIRS, extra=COLUMNS.format(pair.schema))
    pair.execute("a", *(f"INSERT INTO items VALUES ({key}, 'a', 1)" for key in range(1, 6)))
    pair.settle()
    pair.execute("a", "UPDATE items SET site = 'main' WHERE id IN (1, 2)", "UPDATE items SET site = 'x' WHERE id = 3")
    pair.execute("b", "UPDATE items SET n = 2 WHERE id IN (1, 3)", "DELETE FROM items WHERE id = 2")
    pair.execute("b", "UPDATE items SET site = 'b' WHERE id = 3", "UPDATE items SET id = 50, n = 5 WHERE id = 5")
    pair.execute("a", "UPDATE items SET site = 'a' WHERE id = 3", "UPDATE items SET id = 40 WHERE id = 4")
    pair.once("a_to_b", "b_to_a")
    assert pair.assert_equal("items") == [(1, "main", 2), (3, "a", 2), (40, "a", 1), (50, "a", 5)]
    pair.assert_still()


def fight_over_columns(made: Network, site: str, transactions: int) -> None:
    """Ten rows, of which each site counts in a column of its own, and both write a third one; now and then a row
    goes.
    """
    choose = random.Random(site)
    with made.servers[site].connect(made.schema) as connection:
        for number in range(transactions):
            key = choose.randrange(10)
            statements = [f"DELETE FROM counted WHERE id = {key}"] * (choose.random() < 0.1)
            statements.append(
                f"INSERT INTO counted (id, {site}) VALUES ({key}, 1) ON DUPLICATE KEY UPDATE {site} = {site} + 1"
            )
            statements += [f"UPDATE counted SET both_ = {number} WHERE id = {key}"] * (choose.random() < 0.5)
            committed(connection, *statements)


def test_writers_fight_over_columns(pair: Network) -> None:
    pair.everywhere("CREATE TABLE counted (id INT PRIMARY KEY, a INT DEFAULT 0, b INT DEFAULT 0, both_ INT)")
    joined(pair, channel=REPAIRS, extra=COLUMNS.format(pair.schema))
    pair.at_work(*(partial(fight_over_columns, pair, site, 300) for site in "ab"))
    pair.settle(rounds=2)
    assert len(pair.assert_equal("counted")) == 10
    pair.assert_still()


def test_changed_columns_of_a_table_with_a_further_unique_key_are_refused(pair: Network) -> None:
    pair.everywhere("CREATE TABLE coded (id INT PRIMARY KEY, code VARCHAR(9) UNIQUE)")
    joined(pair, channel=REPAIRS, extra=COLUMNS.format(pair.schema))
    pair.execute("a", "INSERT INTO coded VALUES (1, 'x')")
    with pytest.raises(ConfigError, match="coded: it has a unique key besides the primary one"):
        pair.once("a_to_b")
    findings = json.loads(pair.cli("check", "a_to_b", "--json").stdout)["findings"]
    assert [line["value"] for line in findings if line["setting"] == "send: changed_columns"] == [
        f"{pair.schema}.coded"
    ]


def test_a_load_in_several_transactions_counts_when_all_of_it_is_there(pair: Network) -> None:
    """Of tables, one transaction each: the acknowledgement alone says that the other site holds the batch."""
    extra = "    consistency: table"
    pair.channel(pair.pipe("a", "b", target_extra=extra), pair.pipe("b", "a", target_extra=extra), extra=REPAIRS)
    pair.once()
    for number in range(3):
        pair.execute("b", f"REPLACE INTO items VALUES (1, 'b', {number})")
        pair.once("b_to_a")
        pair.execute("a", f"REPLACE INTO items VALUES (1, 'a', {number})")
        pair.once("a_to_b")
    pair.settle()
    assert pair.assert_equal("items") == [(1, "a", 2)]
    assert status(pair.runtime("b_to_a")).conflicts == 0
    pair.assert_still()


def test_sparks_workers_mark_what_they_load_and_tell_conflicts(pair: Network, spark_connect) -> None:
    name = joined(pair, channel=REPAIRS)
    pair.execute("a", *(f"INSERT INTO items (id, site) VALUES ({i}, 'a')" for i in range(1, 40)))
    connections = {**pair.connections, "spark_connect_default": spark_connect.connection_json()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Network, "connections", property(lambda _: connections))
        assert pair.once("a_to_b", mode="connect") == 1
        pair.once("b_to_a", mode="connect")
        assert sent(pair, "b_to_a") == 0
        pair.execute("a", "UPDATE items SET n = 2 WHERE id IN (1, 2)")
        pair.execute("b", "UPDATE items SET n = 3 WHERE id IN (2, 3)")
        pair.once("b_to_a", "a_to_b", "b_to_a", mode="connect")
    assert sent(pair, "b_to_a") == 3
    assert [row[2] for row in pair.assert_equal("items")] == [2, 2, 3, *[0] * 36]
    [told] = json.loads(pair.cli("channel", "conflicts", name, "--json").stdout)["conflicts"]
    assert (told["key"], told["main"], told["other"]) == ({"id": "2"}, {"n": "2"}, {"n": "3"})
    pair.assert_still()


def test_looping_back_counts_what_meets_in_a_batch(pair: Network) -> None:
    name = joined(pair, channel="consistency: loop_back")
    pair.execute("a", "INSERT INTO items VALUES (1, 'a', 1), (2, 'a', 1)")
    pair.execute("b", "INSERT INTO items VALUES (1, 'b', 1)")
    pair.once("a_to_b", "b_to_a")
    assert json.loads(pair.cli("channel", "conflicts", name, "--json").stdout)["count"] == 1
    assert pair.assert_equal("items") == [(1, "a", 1), (2, "a", 1)]


def test_without_a_repair_no_conflict_is_told(pair: Network) -> None:
    name = joined(pair)
    told = pair.cli("channel", "conflicts", name)
    assert told.returncode != 0
    assert "which tells no conflicts" in told.stderr + told.stdout


@pytest.mark.promise("B41")
def test_late_changes_are_sent_as_their_rows_are_now(pair: Network) -> None:
    """The log says otherwise, and the other site has newer rows meanwhile."""
    pair.everywhere("CREATE TABLE coded (id INT PRIMARY KEY, code VARCHAR(9) UNIQUE)")
    pair.everywhere("CREATE TABLE altered (id INT PRIMARY KEY, n INT)")
    joined(pair, channel="read_back_after: 1s")
    pair.execute(
        "a", "INSERT INTO items VALUES (1, 'a', 1), (2, 'a', 1), (3, 'a', 1)", "INSERT INTO coded VALUES (1, 'x')"
    )
    pair.execute("a", "INSERT INTO altered VALUES (1, 1)")
    runtime = pair.runtime("a_to_b")
    assert runtime.read_back_after == timedelta(seconds=1)
    first = replace(runtime, read_back_after=timedelta())
    pair.execute("b", "INSERT INTO items VALUES (4, 'b', 1)")
    steps = run(first, batches=1)
    for step in steps:
        if step.phase == "merging":  # what is drained is older than what follows
            pair.execute("a", "UPDATE items SET n = 9 WHERE id = 1", "DELETE FROM items WHERE id = 2")
            pair.execute("a", "UPDATE coded SET code = 'y' WHERE id = 1")
            pair.servers["a"].execute("ALTER TABLE altered ADD COLUMN m INT", database=pair.schema)
            pair.execute("a", "UPDATE altered SET n = 2, m = 3")
    assert pair.rows("b", "items") == [(1, "a", 9), (3, "a", 1), (4, "b", 1)]
    assert pair.rows("b", "coded") == [(1, "x")]  # y may still be another row's
    assert pair.rows("b", "altered") == [(1, 1)]  # the column comes later in the log
    late(pair, "a_to_b")
    late(pair, "b_to_a")
    assert pair.assert_equal("items") == [(1, "a", 9), (3, "a", 1), (4, "b", 1)]
    assert pair.assert_equal("coded") == [(1, "y")]
    assert pair.assert_equal("altered") == [(1, 2, 3)]
    pair.assert_still()


def test_late_changes_of_some_columns_leave_the_others_alone(pair: Network) -> None:
    """The other site's column is older at the source than where it is written."""
    mapping = f"mapping: [{{from: {pair.schema}.*, to: {pair.schema}.*, send: changed_columns}}]"
    joined(pair, channel="read_back_after: 1s", extra=mapping)
    pair.execute("a", "INSERT INTO items VALUES (1, 'a', 0)")
    pair.once()
    pair.execute("a", "UPDATE items SET site = 'late' WHERE id = 1")
    pair.execute("b", "UPDATE items SET n = 1 WHERE id = 1")
    pair.once("b_to_a")
    pair.execute("b", "UPDATE items SET n = 2 WHERE id = 1")
    late(pair, "a_to_b")
    assert pair.rows("b", "items") == [(1, "late", 2)]
    late(pair, "b_to_a")
    assert pair.assert_equal("items") == [(1, "late", 2)]


TYPES = """CREATE TABLE typed (
 name VARCHAR(20) COLLATE utf8mb4_0900_ai_ci, at DATETIME(3), raw BINARY(4), d DECIMAL(20, 4), kind ENUM('x', 'y'), flags SET('p', 'q'),
 doc JSON, place POINT, seen TIMESTAMP(6) NULL, big BIGINT UNSIGNED, bits BIT(9), t TIME(3), text LONGTEXT, blob_ BLOB, n INT,
 PRIMARY KEY (name, at, raw, d))"""


def test_late_rows_of_all_types_are_read(pair: Network) -> None:
    """By a key of several columns: none of them is sent as logged."""
    pair.everywhere(TYPES)
    joined(pair)
    values = (
        "('Ä b', '2026-01-02 03:04:05.678', x'01020000', 12.5, 'y', 'p,q', '{\"a\": [1, 2.50]}', POINT(1, 2), "
        "'2026-01-02 03:04:05.678901', 18446744073709551615, b'101', '-00:00:01.5', 'text', x'00FF', 1)"
    )
    pair.execute("a", f"INSERT INTO typed VALUES {values}")
    for step in run(replace(pair.runtime("a_to_b"), read_back_after=timedelta()), batches=1):
        if step.phase == "merging":
            pair.execute("a", "UPDATE typed SET n = 2, kind = 'x', doc = '{\"b\": null}'")
    assert pair.rows("b", "typed") == pair.rows("a", "typed")
    assert pair.rows("b", "typed")[0][-1] == 2


@pytest.mark.parametrize("after", [False, True])
def test_a_load_that_is_cut_anywhere_and_repeated_counts_as_not_seen(
    pair: Network, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """The main site writes the rows after a part of the batch was there; the repeat writes over them, and they come
    back.
    """
    pair.everywhere("CREATE TABLE others (id INT PRIMARY KEY, site VARCHAR(10), n INT)")
    extra = "    consistency: table"
    pair.channel(pair.pipe("a", "b", target_extra=extra), pair.pipe("b", "a", target_extra=extra), extra=REPAIRS)
    pair.once()
    budget = Budget()
    budget.after = after
    monkeypatch.setattr(target, "connect", budget.wrap(target.connect))
    cuts, lost = 0, True
    while lost:
        cuts += 1
        rows = [f"REPLACE INTO {table} VALUES (1, '{{0}}', {cuts})" for table in ("items", "others")]
        pair.execute("b", *(row.format("b") for row in rows))
        lost = pair.lost(budget, cuts, "b_to_a")
        pair.execute("a", *(row.format("a") for row in rows))
        pair.settle()
        for table in ("items", "others"):
            assert pair.assert_equal(table) == [(1, "a", cuts)]
    assert cuts > 10
    pair.assert_still()


def test_a_row_that_was_copied_before_the_other_sites_change_arrived_goes_back(pair: Network) -> None:
    """It was read, then the other site's change came, and was overtaken by the copy: the sites must not keep one of
    them each.
    """
    joined(pair, channel=REPAIRS)
    pair.execute("a", "INSERT INTO items VALUES (1, 'a', 1), (2, 'a', 1)")
    pair.settle()
    pair.execute("b", "UPDATE items SET n = 2 WHERE id = 1")
    dump = start(pair.runtime("a_to_b"), tables=[f"{pair.schema}.items"], overwrite=True)
    arrived = threading.Event()

    def arrive(step: str, _: Chunk) -> None:
        if step == "selected" and not arrived.is_set():
            pair.once("a_to_b", "b_to_a")
            arrived.set()

    with ThreadPoolExecutor(1) as reading:
        read = reading.submit(work, pair.runtime("a_to_b"), dump.id, hook=arrive)
        arrived.wait(60)
        while not read.done():
            pair.once("a_to_b")
        read.result()
    pair.once("a_to_b")
    assert pair.rows("b", "items")[0][2] == 1
    pair.settle()
    assert pair.assert_equal("items") == [(1, "a", 1), (2, "a", 1)]
    pair.assert_still()


def test_a_copy_to_the_main_site_is_not_asked_about(pair: Network) -> None:
    """What is newer there comes again, but for rows that the copy would remove."""
    joined(pair, channel=REPAIRS)
    pair.execute("a", "INSERT INTO items VALUES (1, 'a', 1)")
    pair.settle()
    pair.execute("a", "UPDATE items SET n = 2 WHERE id = 1")
    with pytest.raises(ConfigError, match="takes writes of its own"):
        start(pair.runtime("b_to_a"), replace=True)
    dump = start(pair.runtime("b_to_a"))
    with pair.running("b_to_a"):
        work(pair.runtime("b_to_a"), dump.id)
    assert pair.rows("a", "items") == [(1, "a", 1)]
    pair.settle()
    assert pair.assert_equal("items") == [(1, "a", 2)]
    pair.assert_still()


def test_mariadb_as_the_other_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mysql_source, mariadb, zookeeper, fresh_schema
) -> None:
    schema = fresh_schema(mysql_source, mariadb)
    with network(tmp_path, monkeypatch, zookeeper, schema, a=mysql_source, b=mariadb) as made:
        made.everywhere(ITEMS)
        joined(made, channel=REPAIRS)
        fought(made)


def test_definitions_change_between_rows_that_stay_and_rows_that_go_back(pair: Network) -> None:
    """Of one batch: some rows are of the old definition, and what is left out is of the new one."""
    name = joined(pair, channel=REPAIRS)
    pair.execute("a", "INSERT INTO items VALUES (1, 'a', 0), (2, 'a', 0)")
    pair.once()
    pair.execute("b", "UPDATE items SET n = 1 WHERE id = 1")
    pair.servers["a"].execute(
        "ALTER TABLE items ADD COLUMN colour VARCHAR(9) NOT NULL DEFAULT 'red'", database=pair.schema
    )
    pair.execute("a", "UPDATE items SET colour = 'blue' WHERE id = 2")
    pair.once("a_to_b", "b_to_a")
    assert pair.assert_equal("items") == [(1, "a", 1, "red"), (2, "a", 0, "blue")]
    assert json.loads(pair.cli("channel", "conflicts", name, "--json").stdout)["count"] == 0
    pair.execute("b", "UPDATE items SET n = 2 WHERE id = 2")
    pair.servers["a"].execute("ALTER TABLE items ADD COLUMN size INT", database=pair.schema)
    pair.execute("a", "UPDATE items SET size = 7 WHERE id = 2")
    pair.settle()
    assert pair.assert_equal("items")[1] == (2, "a", 0, "blue", 7)
    assert json.loads(pair.cli("channel", "conflicts", name, "--json").stdout)["count"] == 1
    pair.assert_still()
