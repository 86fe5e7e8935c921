"""Channels with a PostgreSQL at one site or both: both are written to, both end equal, and nothing goes round."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluice.coordination.layout import mark_key
from sluice.coordination.port import Remove, committed
from sluice.flows.capture.drain import drain
from sluice.model.findings import Finding
from sluice.model.load_marks import LoadMark, public_key
from sluice.operations.check import check
from sluice.postgresql.load_messages import MARK_PREFIX
from tests.support.pipelines.pg_channels import Channel, two_sites

_numbers = itertools.count(1)


@pytest.fixture
def pair(tmp_path: Path, postgresql_source: Any, zookeeper: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Channel]:
    """Two databases of one server: each has a log of its own to a slot."""
    with two_sites(tmp_path, {"a": postgresql_source, "b": postgresql_source}, zookeeper, monkeypatch) as made:
        yield made


def test_what_one_site_gets_it_does_not_send_back(pair: Channel) -> None:
    """Rows, many rows, deletes and a truncate; what applications write there goes."""
    a, b = pair.sites["a"], pair.sites["b"]
    a.write("INSERT INTO items SELECT n, 'a', 0, repeat('x', 100) FROM generate_series(1, 5000) n")
    assert [pair.once("a_to_b"), pair.once("b_to_a")] == [1, 0]
    b.write("UPDATE items SET n = n + 1 WHERE id <= 3", "INSERT INTO items VALUES (9000, 'b')")
    assert [pair.once("b_to_a"), pair.once("a_to_b")] == [1, 0]
    a.write("DELETE FROM items WHERE id > 3", "UPDATE items SET id = 4 WHERE id = 3")
    assert [pair.once("a_to_b"), pair.once("b_to_a")] == [1, 0]
    assert [row[:3] for row in pair.equal()] == [(1, "a", 1), (2, "a", 1), (4, "a", 1)]
    a.write("TRUNCATE items", "INSERT INTO items VALUES (5, 'a')")
    assert [pair.once("a_to_b"), pair.once("b_to_a")] == [1, 0]
    assert [row[0] for row in pair.equal()] == [5]


def test_definitions_go_one_way(pair: Channel) -> None:
    """Follow them with what they do to rows, and let the other pipeline read rows of the new form."""
    a, b = pair.sites["a"], pair.sites["b"]
    a.write("INSERT INTO items VALUES (1, 'a')")
    pair.settle()
    a.write("ALTER TABLE items ADD extra int NOT NULL DEFAULT 7", "INSERT INTO items VALUES (2, 'a')")
    assert pair.once("a_to_b") == 1
    b.write("INSERT INTO items (id, site, extra) VALUES (3, 'b', 8)", "UPDATE items SET extra = 9 WHERE id = 1")
    assert pair.once("b_to_a") == 1
    pair.settle()
    pair.equal()
    query = "SELECT id, extra FROM shop.items ORDER BY id"
    for site in (a, b):
        assert site.server.execute(query, database=site.database) == [(1, 9), (2, 7), (3, 8)]


def test_a_message_that_somebody_else_wrote_says_nothing(pair: Channel) -> None:
    """Send what follows it: the seal is missing, is that of another channel, or is made with a text that anybody knows.

    Any role may write messages; this one may do nothing but insert rows.
    """
    a, b = pair.sites["a"], pair.sites["b"]
    a.write("INSERT INTO items VALUES (1000, 'a')")
    assert [pair.once("a_to_b"), pair.once("b_to_a")] == [1, 0]
    mark = pair.runtime("a_to_b").mark
    assert mark is not None
    token = mark.token("n")  # with the key that the channel's file has: none
    keys = ("", "no channel", public_key(mark.channel), mark.pipeline)
    named = LoadMark(mark.pipeline, "", "", public_key(""))
    b.write(
        "CREATE ROLE sluice_forger", "GRANT USAGE ON SCHEMA shop TO sluice_forger",
        "GRANT INSERT ON items TO sluice_forger",
    )  # fmt: skip
    try:
        tokens = [replace(mark, key=key).token("n") for key in keys]
        for content in (token, token[:-1] + "x", "1.x.y.z.n.seal", "", named.token("n"), *tokens):
            b.write(
                "SET ROLE sluice_forger", "BEGIN",
                f"SELECT pg_logical_emit_message(true, '{MARK_PREFIX}', '{content}')",
                f"INSERT INTO items VALUES ({next(_numbers)}, 'b')", "COMMIT",
            )  # fmt: skip
            assert pair.once("b_to_a") == 1, content
        pair.settle()
        assert len(pair.equal()) == 10
    finally:
        b.write("DROP OWNED BY sluice_forger", "DROP ROLE sluice_forger")


def test_a_channel_that_began_with_a_public_key_gets_one_of_its_own(pair: Channel) -> None:
    """An older version sealed what is in the logs: it is understood until the channel's file has a key, and after."""
    a, b = pair.sites["a"], pair.sites["b"]
    a.write("INSERT INTO items VALUES (1, 'a')")
    pair.settle()
    with pair.runtime("a_to_b").state() as state:  # as the older version left it
        committed(state._z, Remove(mark_key(state.layout.root, pair.name)))
    a.write("INSERT INTO items VALUES (2, 'a')")
    assert [pair.once("a_to_b"), pair.once("b_to_a")] == [1, 0]
    [finding] = [one for one in check(pair.runtime("b_to_a")).findings if one.setting == "key"]
    assert (finding.severity, "former_key: " + public_key(pair.name) in finding.fix) == ("error", True)

    a.write("INSERT INTO items VALUES (3, 'a')")
    assert pair.once("a_to_b") == 1  # its mark is in the log, with the public key, when the file gets another
    path = pair.folder / "channels" / "both.yaml"
    text = path.read_text(encoding="utf-8")
    path.write_text(f"{text}key: {'4f1d' * 8}\nformer_key: {public_key(pair.name)}\n", encoding="utf-8")
    assert pair.once("b_to_a") == 0
    a.write("INSERT INTO items VALUES (4, 'a')")
    b.write("INSERT INTO items VALUES (5, 'b')")
    assert [pair.once("a_to_b"), pair.once("b_to_a"), pair.once("a_to_b")] == [1, 1, 0]
    path.write_text(f"{text}key: {'4f1d' * 8}\n", encoding="utf-8")
    assert [one for one in check(pair.runtime("b_to_a")).findings if one.setting == "key"] == []
    pair.settle()
    assert len(pair.equal()) == 5


@pytest.mark.full
def test_rows_of_late_changes_are_read_at_the_source(pair: Channel) -> None:
    """They are sent as they are there now: also one that is gone."""
    path = pair.folder / "channels" / "both.yaml"
    path.write_text(path.read_text(encoding="utf-8") + "read_back_after: 1s\n", encoding="utf-8")
    a = pair.sites["a"]
    a.write("INSERT INTO items VALUES (1, 'a'), (2, 'a')")
    until = pair.runtime("a_to_b")
    with until.source.open() as source:
        head = source.head
    a.write("UPDATE items SET n = 7 WHERE id = 1", "DELETE FROM items WHERE id = 2")
    time.sleep(1.5)
    assert head is not None
    drain(until, claim="test:a:1", until=head, idle_wait_s=5.0)
    assert pair.once("a_to_b") >= 1
    assert [row[:3] for row in pair.equal()] == [(1, "a", 7)]
    assert pair.once("b_to_a") == 0


def works(pair: Channel) -> None:
    """Both sites write rows of their own, while both pipelines deliver; then both sites are equal."""
    done = threading.Event()

    def writes(name: str, low: int) -> None:
        for i in range(low, low + 200):
            pair.sites[name].write(
                f"INSERT INTO items (id, site, note) VALUES ({i}, '{name}', '{'x' * (i % 50)}')",
                *[f"UPDATE items SET n = n + 1 WHERE id = {i}"] * (i % 3),
                *([f"DELETE FROM items WHERE id = {i - 1}"] if i % 5 == 1 else []),
                *([f"UPDATE items SET id = id + 5000000 WHERE id = {i}"] if i % 5 == 4 else []),
            )

    def delivers(way: str) -> None:
        while not done.is_set():
            pair.once(way)

    with ThreadPoolExecutor(4) as pool:
        ways = [pool.submit(delivers, way) for way in ("a_to_b", "b_to_a")]
        written = [pool.submit(writes, "a", 1000), pool.submit(writes, "b", 2_000_000)]
        try:
            for one in written:
                one.result()
        finally:
            done.set()
        for one in ways:
            one.result()
    pair.settle()
    rows = pair.equal()
    assert {row[1] for row in rows} == {"a", "b"}
    assert len(rows) > 300


@pytest.mark.full
def test_both_sites_are_written_to_at_the_same_time_and_end_equal(pair: Channel) -> None:
    works(pair)


def test_a_check_says_what_both_sites_need(pair: Channel) -> None:
    """The ends meet. Sequences give the same numbers until they go in steps."""
    findings = check(pair.runtime("a_to_b")).findings
    assert [(one.severity, "the ends meet" in one.why) for one in findings if one.part == "channel"] == [("ok", True)]
    assert [one for one in findings if one.setting == "sequences"] == []
    pair.sites["a"].write("CREATE TABLE numbered (id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY)")
    [said] = [one for one in check(pair.runtime("a_to_b")).findings if one.setting == "sequences"]
    assert (said.severity, "shop.numbered" in said.why) == ("warning", True)
    pair.sites["a"].write("ALTER SEQUENCE numbered_id_seq INCREMENT BY 2")
    assert [one for one in check(pair.runtime("a_to_b")).findings if one.setting == "sequences"] == []


def test_a_check_names_tables_whose_updates_may_lose_against_a_delete(pair: Channel) -> None:
    """Those with values out of line, also in partitions, until the printed statements were run."""
    site = pair.sites["a"]
    site.write(
        "CREATE TABLE parted (id bigint PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE part_1 PARTITION OF parted FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE short (id bigint PRIMARY KEY, v varchar(10))",
    )

    def said() -> list[Finding]:
        return [one for one in check(pair.runtime("a_to_b")).findings if one.setting == "replica identity"]

    [found] = said()
    assert (found.severity, found.value) == ("warning", "2")
    assert "shop.items, shop.parted" in found.why
    site.write(*found.fix.partition(":")[0].split("; "))
    assert said() == []


@pytest.mark.full
def test_a_mysql_and_a_postgresql(
    tmp_path: Path, mysql_source: Any, postgresql_source: Any, zookeeper: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The MySQL is the main site: its definitions go to the PostgreSQL."""
    with two_sites(tmp_path, {"a": mysql_source, "b": postgresql_source}, zookeeper, monkeypatch, mysql="a") as made:
        a, b = made.sites["a"], made.sites["b"]
        a.write("INSERT INTO items (id, site) VALUES (1, 'a'), (2, 'a')")
        assert [made.once("a_to_b"), made.once("b_to_a")] == [1, 0]
        b.write("UPDATE items SET n = n + 1 WHERE id = 1", "INSERT INTO items VALUES (3, 'b')")
        assert [made.once("b_to_a"), made.once("a_to_b")] == [1, 0]
        assert [row[:3] for row in made.equal()] == [(1, "a", 1), (2, "a", 0), (3, "b", 0)]
        works(made)


@pytest.mark.full
def test_definitions_of_a_postgresql_go_to_a_mysql(
    tmp_path: Path, mysql_source: Any, postgresql_source: Any, zookeeper: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The PostgreSQL is the main site; the statement does not go round, and rows of the new form go back."""
    servers = {"a": postgresql_source, "b": mysql_source}
    with two_sites(tmp_path, servers, zookeeper, monkeypatch, mysql="b") as made:
        a, b = made.sites["a"], made.sites["b"]
        a.write("INSERT INTO items VALUES (1, 'a')")
        made.settle()
        a.write("ALTER TABLE items ADD extra int NOT NULL DEFAULT 7", "INSERT INTO items VALUES (2, 'a')")
        assert made.once("a_to_b") == 1
        b.write("INSERT INTO items (id, site, extra) VALUES (3, 'b', 8)", "UPDATE items SET extra = 9 WHERE id = 1")
        assert made.once("b_to_a") == 1
        made.settle()
        assert [(row[0], row[-1]) for row in made.equal()] == [(1, 9), (2, 7), (3, 8)]
