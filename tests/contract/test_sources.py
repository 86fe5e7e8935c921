"""What every source keeps, whatever it is. A new source adds one line to CASES and a way to write to it (tests/support/twins/source_kinds.py)."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from sluice.errors import ConfigError, LostPosition, SluiceError, WrongServer
from sluice.model.changes import Change
from sluice.model.column_types import ColumnKind, ColumnType
from sluice.model.dumps import Chunk, ChunkId, Mark, Marking, TablePlanned, TableRequest
from sluice.model.fields import neutral_type
from sluice.model.positions import Position
from sluice.segments.writer import SegmentWriter
from sluice.sources import KINDS
from sluice.sources.base import ChunkReader
from tests.support.twins.source_kinds import Reader, SourceCase, memory_case, server_case

CASES = {"memory": "memory", "mysql_source": "mysql", "mariadb": "mysql"}
"""``memory`` or the fixture of a server -> the kind of source it is."""


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, fresh_schema: Any) -> Iterator[SourceCase]:
    """A source with one empty table ``a`` (id, v)."""
    if request.param == "memory":
        with memory_case() as made:
            made.create("a")
            yield made
        return
    server = request.getfixturevalue(request.param)
    made = server_case(server, fresh_schema(server))
    made.create("a")
    yield made


@pytest.fixture
def reader(case: SourceCase, tmp_path: Path) -> Reader:
    """From the head of now."""
    return Reader(case, tmp_path, head(case))


def head(case: SourceCase) -> Position:
    with case.source.open() as session:
        assert session.head is not None
        return session.head


def brief(changes: list[Change]) -> list[tuple[Any, ...]]:
    """(operation, table, id, text before, text after)."""
    found = []
    for c in changes:
        row = c.after or c.before or {}
        found.append((c.op, c.table.table, row["id"], (c.before or {}).get("v"), (c.after or {}).get("v")))
    return found


def rows_of(chunks: ChunkReader, request: TableRequest, chunk: Chunk, keys: Any = ()) -> list[tuple[Any, ...]]:
    """The rows of a chunk, a tuple each."""
    return [
        row
        for piece in chunks.rows(request, chunk, keys)
        for row in zip(*(c.to_pylist() for c in piece.columns), strict=True)
    ]


def test_every_kind_is_tested() -> None:
    assert set(CASES.values()) == set(KINDS)


# -- offsets ------------------------------------------------------------------------------------------------------------------


def test_an_offset_is_json_and_comes_back(case: SourceCase, reader: Reader) -> None:
    case.commit(("insert", "a", (1, "x")))
    at = reader.once().last
    again = Position.from_json(json.loads(json.dumps(at.to_json())))
    assert again == at
    assert again.last_event == at.last_event
    assert (again.log_epoch, again.order, again.commit_time_us) == (at.log_epoch, at.order, at.commit_time_us)


def test_offsets_are_in_the_order_of_the_log(case: SourceCase, reader: Reader) -> None:
    offsets = [reader.at]
    for number in range(4):
        case.commit(("insert", "a", (number, "x")))
        offsets.append(reader.once().last)
    assert all(b.follows(a) and b.order > a.order for a, b in itertools.pairwise(offsets))
    assert len({offset.log_epoch for offset in offsets}) == 1


def test_a_place_orders_as_its_offset(case: SourceCase, reader: Reader) -> None:
    from sluice.model.positions import order_of

    case.commit(("insert", "a", (1, "x")))
    at = reader.once().last
    assert order_of(at.place) == at.order


def test_starts_that_need_no_place(case: SourceCase) -> None:
    case.commit(("insert", "a", (1, "x")))
    with case.source.open() as session:
        latest, earliest = session.resolve_start("latest"), session.resolve_start("earliest")
        assert latest == session.head == session.resolve_start("dump")
        assert latest.log_epoch == earliest.log_epoch
        assert latest.follows(earliest)


def test_the_lag_is_the_log_behind_a_place(case: SourceCase) -> None:
    at = head(case)
    with case.source.open() as session:
        assert session.lag_bytes(at) == 0
    case.commit(("insert", "a", (1, "x")))
    with case.source.open() as session:
        assert (session.lag_bytes(at) or 0) > 0
        assert session.lag_bytes(head(case)) == 0


# -- before reading -----------------------------------------------------------------------------------------------------------


def test_a_good_source_is_ready(case: SourceCase, reader: Reader) -> None:
    case.commit(("insert", "a", (1, "x")))
    at = reader.once().last
    with case.source.open() as session:
        assert [f for f in session.preflight(at) if f.severity == "error"] == []
        session.require_ready(None)
        session.require_ready(at)
        session.confirm(at)
        assert session.identity == session.identity


def test_an_offset_of_another_server_stops(case: SourceCase) -> None:
    with case.source.open() as session, pytest.raises(WrongServer):
        session.require_ready(case.of_another_server(head(case)))


def test_an_offset_that_is_no_longer_kept_is_lost(case: SourceCase) -> None:
    at = head(case)
    case.commit(("insert", "a", (1, "x")))
    gone = case.lost(at)
    with case.source.open() as session:
        with pytest.raises(LostPosition):
            session.require_ready(gone)
        assert session.lag_bytes(gone) is None


# -- the log ------------------------------------------------------------------------------------------------------------------


def test_every_change_comes_once_with_its_images(case: SourceCase, reader: Reader) -> None:
    case.commit(("insert", "a", (1, "one")), ("insert", "a", (2, "two")))
    case.commit(("update", "a", (1, "eins")))
    case.commit(("delete", "a", (2,)), ("insert", "a", (3, None)))
    changes = reader.changes(reader.all())
    assert brief(changes) == [
        ("i", "a", 1, None, "one"),
        ("i", "a", 2, None, "two"),
        ("u", "a", 1, "one", "eins"),
        ("d", "a", 2, "two", None),
        ("i", "a", 3, None, None),
    ]
    assert [c.last_in_txn for c in changes] == [False, True, True, False, True]
    assert all(c.key == ("id",) and c.commit_time_us > 0 for c in changes)


def test_tables_that_are_not_wanted_stay_away(case: SourceCase, reader: Reader) -> None:
    case.create("b")
    case.config = case.config.model_copy(
        update={"capture": case.config.capture.model_copy(update={"exclude": (rf"{case.schema}\.b",)})}
    )
    reader.at = head(case)
    case.commit(("insert", "a", (1, "x")), ("insert", "b", (1, "y")), ("insert", "a", (2, "z")))
    assert [c[1:3] for c in brief(reader.changes(reader.all()))] == [("a", 1), ("a", 2)]


def test_a_batch_ends_at_the_end_of_a_transaction(case: SourceCase, reader: Reader) -> None:
    for first in (1, 11, 21):
        case.commit(*(("insert", "a", (first + n, "x")) for n in range(3)))
    results = reader.all(max_changes=2)
    assert [result.changes for result in results] == [3, 3, 3]
    assert [result.transactions for result in results] == [1, 1, 1]
    assert results[0].closed_by == "changes"
    assert [c.after["id"] for c in reader.changes(results) if c.after] == [1, 2, 3, 11, 12, 13, 21, 22, 23]


def test_reading_goes_on_where_it_ended(case: SourceCase, reader: Reader) -> None:
    """Whether the session confirmed the offset first or not."""
    found = []
    for number in range(4):
        case.commit(("insert", "a", (number, "x")))
        with case.source.open(to_stream=True) as session:
            if number % 2:
                session.confirm(reader.at)
            found.append(reader.once(session))
    assert [c.after["id"] for c in reader.changes(found) if c.after] == [0, 1, 2, 3]


def test_an_idle_log_is_no_batch(case: SourceCase, reader: Reader) -> None:
    result = reader.once(stop_at=None, idle_wait_s=0.2)
    assert (result.manifest, result.changes, result.closed_by, result.reached_head) == (None, 0, "idle", True)
    assert not reader.at.follows(result.last)


def test_it_stops_where_it_is_told(case: SourceCase, reader: Reader) -> None:
    case.commit(("insert", "a", (1, "x")))
    stop = head(case)
    case.commit(("insert", "a", (2, "y")))
    result = reader.once(stop_at=stop)
    assert (result.closed_by, result.reached_head) == ("head", True)
    assert (result.last.log_epoch, result.last.order) == (stop.log_epoch, stop.order)
    assert [c.after["id"] for c in reader.changes([result]) if c.after] == [1]
    again = reader.once(stop_at=stop)
    assert (again.manifest, again.last) == (None, result.last)


def test_a_sink_that_fails_is_aborted(case: SourceCase, reader: Reader) -> None:
    aborted = []

    class Failing(SegmentWriter):
        def finish(self, *_: Any, **__: Any) -> Any:
            raise RuntimeError("no space")

        def abort(self) -> None:
            aborted.append(self.batch)
            super().abort()

    case.commit(("insert", "a", (1, "x")))
    with pytest.raises(RuntimeError, match="no space"):
        reader.once(sink=lambda: Failing(reader.store, 1, 1))
    assert aborted == [1]
    assert [c.after["id"] for c in reader.changes([reader.once()]) if c.after] == [1]


def test_progress_ends_it(case: SourceCase, reader: Reader) -> None:
    def stop(**_: Any) -> None:
        raise SluiceError("a person says so")

    with pytest.raises(SluiceError, match="a person"):
        reader.once(progress=stop, stop_at=None)


def test_what_is_delivered_may_be_released(case: SourceCase, reader: Reader) -> None:
    case.commit(("insert", "a", (1, "x")))
    reader.once()
    with case.source.open() as session:
        session.release(reader.at)
    case.commit(("insert", "a", (2, "y")))
    assert [c.after["id"] for c in reader.changes([reader.once()]) if c.after] == [2]


def test_definitions_come_with_rows_or_with_a_history(case: SourceCase) -> None:
    with case.source.open() as session:
        history = session.history
        if history is None:
            with pytest.raises(ConfigError):
                case.source.stored_definitions({}, [])
            return
        at = head(case)
        known = history.snapshot(at, case.wanted)
        found = known.find(case.table("a"))
        assert found is not None
        assert [c.name for c in found.columns] == ["id", "v"]
        assert history.has(at)
        assert history.is_same_log(at)
        assert history.definition(case.table("a"), at) == found
        history.fold(known, at, head(case))
        assert known.find(case.table("a")) == found
        again = case.source.stored_definitions(json.loads(json.dumps(known.to_json())), [])
        assert again.to_json() == known.to_json()
        known.put(replace(found, table=case.table("b")))
        again = case.source.stored_definitions(again.to_json(), [json.loads(json.dumps(known.part(known.touched)))])
        assert (again.to_json(), again.touched) == (known.to_json(), set())
        history.fold(again, at, head(case))


def test_statements_are_in_a_dialect(case: SourceCase) -> None:
    with case.source.open() as session:
        said = session.identity.dialect.lower()
    assert case.source.dialect(head(case)) == {"memory": "mysql"}.get(said, said)


# -- tables and chunks --------------------------------------------------------------------------------------------------------


def test_tables_as_they_are_now(case: SourceCase) -> None:
    case.create("keyless", key=False)
    with case.source.open() as session:
        tables = {t.id.table: t for t in session.tables(case.wanted.wants)}
        assert {name: t.schema.primary_key for name, t in tables.items()} == {"a": ("id",), "keyless": ()}
        assert [(c.name, str(c.arrow_type)) for c in tables["a"].schema.columns] == [("id", "int32"), ("v", "string")]
        assert case.table("keyless") in session.keyless()
        assert case.table("a") not in session.keyless()
        assert {case.table("a"), case.table("keyless")} <= set(session.table_rows())
        assert set(session.estimates([case.table("a")])) == {case.table("a")}


def test_columns_are_described_by_neutral_types(case: SourceCase, reader: Reader) -> None:
    """The same from the log, from a chunk and from the list of tables, and the values are of the Arrow type that it decides."""
    case.commit(("insert", "a", (1, "x")))
    manifest = reader.once().manifest
    with reader.store.open_input(manifest.files[0].path) as file:
        logged = pq.read_schema(file)
    with case.source.open() as session:
        [listed] = session.tables(lambda table: table == case.table("a"))
        planned = session.chunk_table(case.table("a")).schema
    with case.source.open_chunks(Marking.TABLE, "w") as chunks:
        schema = chunks.schema(case.table("a"))
        piece = next(iter(chunks.rows(TableRequest(case.table("a")), Chunk(ChunkId("d", 0, 1)))))
    number, text = (column.type for column in schema.columns)
    assert number == ColumnType(ColumnKind.INT)
    assert (text.kind, text.length, text.charset[:4]) == (ColumnKind.VARCHAR, 40, "utf8")
    for described in (listed.schema, planned):
        assert [column.type for column in described.columns] == [number, text]
    assert [neutral_type(logged.field(name)) for name in ("id", "v")] == [number, text]
    assert [column.type for column in piece.columns] == [number.arrow_type, text.arrow_type]


def test_a_typed_key_is_the_key_of_the_row(case: SourceCase) -> None:
    """What a person types and what a chunk stores are the same text, so that a list of keys finds its rows."""
    case.commit(("insert", "a", (-7, "x")), ("insert", "a", (12, "y")))
    with case.source.open() as session:
        schema = session.chunk_table(case.table("a")).schema
    with case.source.open_chunks(Marking.TABLE, "w") as chunks:
        assert chunks.schema(case.table("a")).primary_key == ("id",)
        rows = next(iter(chunks.rows(TableRequest(case.table("a")), Chunk(ChunkId("d", 0, 1))))).select([0])
    column = next(c for c in schema.columns if c.name == "id")
    keys = case.source.keys.literals([column], rows)
    assert keys == [(case.source.keys.typed(column, text),) for text in ("-7", "12")]


@pytest.mark.parametrize("size", [1, 3, 7, 50])
def test_chunks_cut_every_row_into_exactly_one(case: SourceCase, size: int) -> None:
    ids = [-5, -1, 0, 3, 4, 9, 10, 11, 400, 401]
    case.commit(*(("insert", "a", (number, f"v{number}")) for number in ids))
    request, planned, found, last = TableRequest(case.table("a")), TablePlanned(), [], False
    with case.source.open_chunks(Marking.TABLE, "w") as chunks:
        while not last:
            upto, last = chunks.next_border(request, planned, size)
            chunk = Chunk(ChunkId("d", 0, planned.chunks + 1), after=planned.upto, upto=upto)
            rows = rows_of(chunks, request, chunk)
            assert len(rows) <= size
            found += rows
            planned = TablePlanned(upto, planned.chunks + 1)
    assert sorted(found) == [(number, f"v{number}") for number in ids]


def test_a_key_range_and_a_list_of_keys(case: SourceCase) -> None:
    case.commit(*(("insert", "a", (number, "x")) for number in range(10)))
    text_of, table = case.source.keys, case.table("a")
    with case.source.open() as session:
        there = session.chunk_table(table)
        column = there.schema.columns[0]
        low, high = (text_of.typed(column, "3"),), (text_of.typed(column, "5"),)
        assert there.is_reversed(high, low)
        assert not there.is_reversed(low, high)
        request = TableRequest(table, lower=low, upper=high)
        assert there.key(request).names == ("id",)
        there.require_taken(request, there.key(request), [low, high])
    with case.source.open_chunks(Marking.TABLE, "w") as chunks:
        assert [row[0] for row in rows_of(chunks, request, Chunk(ChunkId("d", 0, 1)))] == [3, 4, 5]
        listed = TableRequest(table, key_file="somewhere", estimate=2)
        rows = rows_of(chunks, listed, Chunk(ChunkId("d", 0, 1), upto=("2",)), [[high, low]])
        assert sorted(row[0] for row in rows) == [3, 5]


def test_watermarks_stand_in_the_log_around_the_read(case: SourceCase, reader: Reader) -> None:
    """What is committed between them stands between them, and what was there before the low one is in the chunk."""
    case.commit(("insert", "a", (1, "x")))
    with case.source.open() as session:
        assert session.choose_marking() is Marking.TABLE
    reader.at = head(case)
    chunk, request = Chunk(ChunkId("d", 0, 1)), TableRequest(case.table("a"))
    with case.source.open_chunks(Marking.TABLE, "w") as chunks:
        before = chunks.end_of_log()
        chunks.watermarks.low(chunk)
        with chunks.watermarks.reading(chunk):
            rows = rows_of(chunks, request, chunk)
            case.commit(("update", "a", (1, "y")))
        chunks.watermarks.high(chunk)
        after = chunks.end_of_log()
    assert rows == [(1, "x")]
    marked = case.source.watermark_table
    changes = reader.changes([reader.once()])
    assert [c.table for c in changes] == [marked, case.table("a"), marked]
    marks = [Mark.parse(c.after["mark"]) for c in changes if c.table == marked and c.after]
    assert [(m.chunk, m.attempt, m.high) for m in marks if m] == [
        (chunk.id, chunk.attempt, high) for high in (False, True)
    ]
    assert before != after


def test_how_busy_it_is(case: SourceCase) -> None:
    with case.source.open_replica("test") as load:
        assert load.running() >= 1
        assert load.replica_lag_s() is None
