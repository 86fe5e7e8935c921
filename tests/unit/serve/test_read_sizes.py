"""A reader chooses how much comes at once, how much a read has, and how long it waits: by Flight, by HTTP and in
Python.
"""

from __future__ import annotations

import json
import threading
from contextlib import closing
from itertools import islice
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import flight

from devstack.ports import free_port
from sluice import client as sluice_client
from sluice.client import StoredBatch, Subscription, subscribe
from sluice.serve import feed
from sluice.serve.read import PieceSize
from tests.support.pipelines.case import Case
from tests.support.pipelines.subscribing import Exchanger, by_http, documents, serving, write
from tests.support.running.waiting import counted, ended, wait_until

CHANGES = "/pipelines/case/changes"


def write_rows(made: Case, first: int, count: int, note: str = "a") -> int:
    """A batch of so many rows; its number."""
    rows = ", ".join(f"({first + number}, {number}, '{note}')" for number in range(count))
    return write(made, f"INSERT INTO orders VALUES {rows}")


@given(st.lists(st.binary(max_size=300), max_size=40), st.none() | st.integers(1, 9), st.none() | st.integers(1, 900))
def test_pieces_are_no_larger_than_asked_and_as_large_as_may_be(
    values: list[bytes], rows: int | None, size_bytes: int | None
) -> None:
    whole = pa.record_batch([pa.array(values, pa.binary())], ["v"])
    pieces = list(PieceSize(rows, size_bytes).split(whole))
    assert [value for piece in pieces for value in piece.column("v").to_pylist()] == values
    start = 0
    for piece in pieces:
        assert piece.num_rows <= (rows or len(values))
        assert size_bytes is None or piece.num_rows == 1 or piece.nbytes <= size_bytes
        more = whole.slice(start, piece.num_rows + 1)
        start += piece.num_rows
        if start < len(values):
            assert piece.num_rows == rows or (size_bytes is not None and more.nbytes > size_bytes)


@pytest.mark.promise("G3")
def test_a_reader_chooses_rows_or_bytes_of_a_piece(shop: Case) -> None:
    number = write_rows(shop, 1, 25)
    large = write_rows(shop, 100, 3, "x" * 200)
    with serving(shop) as (server, reader):
        read = reader.read(piece_rows=10, to=number)
        assert [piece.num_rows for piece in read.pieces] == [10, 10, 5]
        small = reader.read(piece_bytes=2000)
        assert max(piece.nbytes for piece in small.pieces) <= 2000 < small.table.nbytes
        assert [row["id"] for row in small.rows()] == [*range(1, 26), 100, 101, 102]
        assert [piece.num_rows for piece in reader.read(piece_bytes=1, from_={"batch": large}).pieces] == [1, 1, 1]
        named = Exchanger(reader, follow=False, piece_rows=10)
        named.until(large)
        named.leave()
        assert len(named.rows) == 28
        for name in (None, "mine_in_python"):
            given = list(subscribe(f"grpc://127.0.0.1:{server.port}", "case", name=name, follow=False, piece_rows=10))
            pieces = [(one.number, one.piece, one.rows.num_rows, one.is_last) for one in given if one.rows.num_rows]
            assert pieces == [(number, 1, 10, False), (number, 2, 10, False), (number, 3, 5, True), (large, 1, 3, True)]
            assert all(bool(one.position) == one.is_last for one in given)
    with by_http(shop) as http:
        asked = {"piece_rows": 10, "to": number}
        with http.stream("GET", CHANGES, params=asked, headers={"Accept-Encoding": "identity"}) as answer:
            assert len("".join(answer.iter_text()).splitlines()) == 25


def test_a_piece_is_not_acknowledged_before_the_last_one(shop: Case) -> None:
    number = write_rows(shop, 1, 25)
    write_rows(shop, 100, 1)
    with serving(shop) as (server, _):
        address = f"grpc://127.0.0.1:{server.port}"
        begin = {"batch": number}
        with closing(subscribe(address, "case", name="mine", start=begin, window=1, piece_rows=10)) as batches:
            first = next(batches)
            with pytest.raises(RuntimeError, match="more pieces of batch"):
                first.ack()
            batches.close()  # the link breaks inside the batch
            assert [one.piece for one in islice(batches, 3)] == [1, 2, 3]
            with pytest.raises(RuntimeError, match="not acknowledged"):
                next(batches)
            batches.rollback()
            last = list(islice(batches, 3))[-1]
            last.ack()
            assert next(batches).rows["id"].to_pylist() == [100]


@pytest.mark.promise("G3")
def test_a_read_ends_with_the_batch_that_has_as_much_as_was_asked_for(shop: Case) -> None:
    numbers = [write_rows(shop, 100 * n, 10) for n in range(1, 5)]
    start = {"batch": numbers[0]}

    def had(**asked: Any) -> list[int]:
        return [mark["batch"] for mark in reader.read(from_=start, **asked).marks]

    with serving(shop) as (_, reader), by_http(shop) as http:
        assert had(max_rows=1) == numbers[:1]
        assert had(max_rows=10) == numbers[:1]
        assert had(max_rows=11) == numbers[:2]
        assert had(max_rows=1000) == numbers
        assert had(max_bytes=1) == numbers[:1]
        assert had(max_rows=1000, max_bytes=1) == numbers[:1]
        assert had(max_rows=21, to=numbers[1]) == numbers[:2]
        assert had(max_rows=1, tables=[".*nothing.*"]) == numbers, "rows of other tables do not count"
        with pytest.raises(flight.FlightServerError, match="leave out max_rows"):
            reader.read(max_rows=1, follow=True)
        got, following = [], numbers[0]
        while True:  # gets of a poll: each has the number to go on with
            answer = http.get(CHANGES, params={"from_batch": following, "max_rows": 15})
            if not (found := documents(answer)):
                break
            got.append([one["after"]["id"] for one in found])
            following = int(answer.headers["sluice-next-batch"])
        assert [len(one) for one in got] == [20, 20]
        assert sorted(row for one in got for row in one) == [100 * n + row for n in range(1, 5) for row in range(10)]


@pytest.mark.promise("G3")
def test_a_reader_chooses_how_long_it_waits_for_a_batch(shop: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "_PATIENCE_S", 0.05)
    number = write_rows(shop, 1, 3)
    with serving(shop) as (server, reader), by_http(shop) as http:
        stream = reader.stream(follow=True, wait=0.3, from_={"batch": number})
        said = [json.loads(chunk.app_metadata.to_pybytes()) for chunk in stream if chunk.app_metadata]
        assert [one.get("batch") for one in said] == [number, None]
        assert said[-1] == {"end": {"timed_out": True}}
        assert reader.read(from_={"batch": number + 1}, wait=0.1).marks == []
        lines = documents(http.get(CHANGES, params={"follow": True, "wait": 0.3, "marks": True}))
        assert lines[-1] == {"end": {"timed_out": True}}
        events = http.get(CHANGES, params={"follow": True, "wait": 0.3}, headers={"Accept": "text/event-stream"}).text
        assert events.endswith('event: end\ndata: {"timed_out": true}\n\n')
        named = Exchanger(reader, wait=0.3, from_={"batch": number})
        assert named.said("end") == {"end": {"timed_out": True}}
        with pytest.raises(flight.FlightServerError, match="waits for nothing"):
            Exchanger(reader, "other", follow=False, wait=1)
        address = f"grpc://127.0.0.1:{server.port}"
        begin = {"batch": number}
        assert [one.number for one in subscribe(address, "case", start=begin, timeout_s=0.3)] == [number]
        batches = subscribe(address, "case", name="python", start=begin, timeout_s=0.3)
        assert isinstance(batches, Subscription)
        assert [one.number for one in batches] == [number]
        more = write_rows(shop, 10, 3)
        assert [one.number for one in batches] == [more], "it goes on when it is asked again"
        batches.close()


def test_a_reader_that_was_busy_gets_what_came_meanwhile(shop: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service's wait is over while the reader works on a batch: that is no timeout of the reader."""
    monkeypatch.setattr(feed, "_PATIENCE_S", 0.05)
    number = write_rows(shop, 1, 3)
    with serving(shop) as (server, _):
        for name in (None, "python"):
            batches = subscribe(
                f"grpc://127.0.0.1:{server.port}", "case", name=name, start={"batch": number}, timeout_s=0.2
            )
            assert next(batches).number == number
            threading.Event().wait(1.0)  # longer than the service waits: it has said so
            more = write_rows(shop, 10 if name else 100, 3)
            assert next(batches).number == (more if name is None else more - 1)
            batches.close()  # type: ignore[attr-defined]


def test_a_read_waits_without_limit_if_it_says_so(shop: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "_PATIENCE_S", 0.05)
    number = write_rows(shop, 1, 3)
    with serving(shop) as (_, reader), by_http(shop) as http, counted(feed.Feed, "after") as waits:
        found: dict[str, list[int]] = {}

        def by_flight() -> None:
            read = reader.read(from_={"batch": number + 1}, wait="unlimited")
            found["flight"] = [mark["batch"] for mark in read.marks]

        def over_http() -> None:
            answer = http.get(CHANGES, params={"from_batch": number + 1, "wait": "unlimited"})
            found["http"] = [int(answer.headers["sluice-next-batch"]) - 1]

        readers = [threading.Thread(target=one, daemon=True) for one in (by_flight, over_http)]
        for one in readers:
            one.start()
        wait_until(lambda: len(waits.by_thread) >= 2, "that both wait")
        assert not found
        more = write_rows(shop, 10, 3)
        for one in readers:
            ended(one)
        assert found == {"flight": [more], "http": [more]}
        refused = http.post("/changes", params={"wait": 1}, json={"pipeline": "case", "wait": "unlimited"})
        assert refused.status_code == 400
        assert "both the ticket and the query" in refused.json()["detail"]
        assert http.get(CHANGES, params={"wait": "long"}).status_code == 400


@pytest.mark.promise("G4")
@pytest.mark.parametrize(("name", "start"), [(None, "earliest"), (None, "latest"), ("mine", "earliest")])
def test_a_reader_that_finds_no_service_waits_as_long_as_it_is_told_to(
    shop: Case, monkeypatch: pytest.MonkeyPatch, name: str | None, start: str
) -> None:
    monkeypatch.setattr(sluice_client, "_PAUSE_S", 0.02)
    write_rows(shop, 1, 3)
    port = free_port()
    address = f"grpc://127.0.0.1:{port}"
    with pytest.raises(flight.FlightUnavailableError):
        next(subscribe(address, "case", name=name, start=start, patience_s=0.1))
    found: list[StoredBatch] = []
    with counted(sluice_client._Server, "connect") as tries:

        def read() -> None:
            batches = subscribe(address, "case", name=name, start=start, patience_s=None)
            found.extend(islice(batches, 1))
            batches.close()  # type: ignore[attr-defined]

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        tries.more(5)
        assert not found
    with serving(shop, port=port), counted(feed.Feed, "after") as waits:
        if start == "latest":
            wait_until(lambda: waits.by_thread, "that it waits for a batch")
            write_rows(shop, 10, 3)
        ended(reader)
    assert [one.rows["id"].to_pylist() for one in found if one.rows.num_rows] in ([], [[1, 2, 3]], [[10, 11, 12]])
    assert found
