"""What every source keeps, whatever it is.

A new source adds one line to CASES and a way to write to it (tests/support/twins/source_kinds.py).
"""

from __future__ import annotations

import datetime as dt
import inspect
import itertools
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sluice.config.pipeline import Event
from sluice.errors import ConfigError, LostPosition, SluiceError, SourceUnavailable, WrongServer
from sluice.model.changes import Change
from sluice.model.column_types import ColumnKind, ColumnType
from sluice.model.dialects import MYSQL, Dialect
from sluice.model.dumps import Chunk, ChunkId, Mark, TablePlanned, TableRequest
from sluice.model.fields import neutral_type
from sluice.model.load_marks import LoadMark, MarkRules, origin_number
from sluice.model.offset import Offset
from sluice.model.schema_changes import ChangeKind, TableChange
from sluice.segments.writer import SegmentWriter
from sluice.sources import KINDS, executed
from sluice.sources.memory.log import RowChange
from sluice.sources.port import ChunkReader, SourceSession
from tests.support.twins.source_kinds import (
    MemoryCase,
    PostgreSQLCase,
    Reader,
    SourceCase,
    memory_case,
    postgresql_case,
    server_case,
)

CASES = {
    "memory": "memory", "mysql_source": "mysql", "mariadb": "mysql", "mariadb_11_8": "mysql",
    "postgresql_source": "postgresql",
}  # fmt: skip
"""``memory`` or the fixture of a server -> the kind of source it is."""
ONLY_IN_FULL = {"mariadb_11_8": pytest.mark.full}


@pytest.fixture(params=[pytest.param(name, marks=ONLY_IN_FULL.get(name, ())) for name in CASES])
def case(request: pytest.FixtureRequest, fresh_schema: Any) -> Iterator[SourceCase]:
    """A source with one empty table ``a`` (id, v)."""
    if request.param == "memory":
        with memory_case() as made:
            made.create("a")
            yield made
        return
    server = request.getfixturevalue(request.param)
    if CASES[request.param] == "postgresql":
        with postgresql_case(server) as made:
            made.create("a")
            yield made
        return
    made = server_case(server, fresh_schema(server))
    made.create("a")
    yield made


@pytest.fixture
def reader(case: SourceCase, tmp_path: Path) -> Reader:
    """From the head of now."""
    return Reader(case, tmp_path, head(case))


def head(case: SourceCase) -> Offset:
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


# -- offsets -----------------------------------------------------------------------------------------------------------


def test_an_offset_is_json_and_comes_back(case: SourceCase, reader: Reader) -> None:
    case.commit(("insert", "a", (1, "x")))
    at = reader.once().last
    again = Offset.from_json(json.loads(json.dumps(at.to_json())))
    assert again == at
    assert json.dumps(again.to_json()) == json.dumps(at.to_json())
    assert (again.log_epoch, again.order, again.commit_time_us) == (at.log_epoch, at.order, at.commit_time_us)


def test_offsets_are_in_the_order_of_the_log(case: SourceCase, reader: Reader) -> None:
    offsets = [reader.at]
    for number in range(4):
        case.commit(("insert", "a", (number, "x")))
        offsets.append(reader.once().last)
    assert all(b.follows(a) and b.order > a.order for a, b in itertools.pairwise(offsets))
    assert all(b.has_reached(a.place) and not a.has_reached(b.place) for a, b in itertools.pairwise(offsets))
    assert all(one.has_reached(one.place) for one in offsets)
    assert len({offset.log_epoch for offset in offsets}) == 1


def test_a_place_orders_as_its_offset(case: SourceCase, reader: Reader) -> None:
    case.commit(("insert", "a", (1, "x")))
    at = reader.once().last
    assert at.order_of(at.place) == at.order


def test_starts_that_need_no_place(case: SourceCase) -> None:
    case.commit(("insert", "a", (1, "x")))
    with case.source.open() as session:
        latest, earliest = session.resolve_start("latest"), session.resolve_start("earliest")
        assert latest == session.head == session.resolve_start("dump")
        assert latest.log_epoch == earliest.log_epoch
        assert latest.follows(earliest)


def test_all_that_was_committed_before_a_settled_time_is_in_front_of_its_position(
    case: SourceCase, reader: Reader
) -> None:
    """Also in an idle log the settled time goes on, and no later transaction bears an earlier time."""
    began = time.time_ns() // 1000
    case.commit(("insert", "a", (1, "x")))
    end = time.monotonic() + 60
    with case.source.open() as session:
        while (settled := session.settled()).time_us < began + 2_000_000:
            assert time.monotonic() < end, "the settled time does not go on"
            time.sleep(0.1)
        again = session.settled()
    assert not reader.once().last.follows(settled.at)
    assert again.time_us >= settled.time_us
    assert not settled.at.follows(again.at)
    case.commit(("insert", "a", (2, "x")))
    later = reader.once().last
    assert later.follows(again.at)
    assert later.commit_time_us >= again.time_us


@pytest.mark.full
def test_no_late_transaction_bears_an_earlier_time_under_load(case: SourceCase, reader: Reader) -> None:
    """Several sessions commit while settled positions are asked for; each is compared with the log afterwards."""
    stop, errors, numbers, written = threading.Event(), list[BaseException](), itertools.count(1), list[int]()

    def write() -> None:
        try:
            while not stop.is_set():
                number = next(numbers)
                case.commit(("insert", "a", (number, "x")))
                written.append(number)
        except BaseException as error:
            errors.append(error)

    writers = [threading.Thread(target=write, daemon=True) for _ in range(4)]
    for writer in writers:
        writer.start()
    with case.source.open() as session:
        found = [session.settled() for _ in range(300)]
        while len(written) <= 50 and not errors:  # the writers may not have had their turn yet
            found.append(session.settled())
    stop.set()
    for writer in writers:
        writer.join(60)
    assert errors == []
    changes = reader.changes(reader.all())
    assert len(changes) > 50
    for settled in found:
        at = settled.at.order
        late = [
            change
            for change in changes
            if settled.at.order_of(f"{change.file}:{change.offset}") > at and change.commit_time_us < settled.time_us
        ]
        assert not late, f"{late[0]} came after {settled.at}, which was settled up to {settled.time_us}"


def test_the_lag_is_the_log_behind_a_place(case: SourceCase) -> None:
    at = head(case)
    with case.source.open() as session:
        assert session.lag_bytes(at) == 0
    case.commit(("insert", "a", (1, "x")))
    with case.source.open() as session:
        assert (session.lag_bytes(at) or 0) > 0
        assert session.lag_bytes(head(case)) == 0


# -- before reading ----------------------------------------------------------------------------------------------------


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


# -- the log -----------------------------------------------------------------------------------------------------------


@pytest.mark.promise("B50")
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


@pytest.mark.promise("A11")
@pytest.mark.parametrize("kind", ["insert", "update", "delete"])
def test_kinds_of_changes_that_are_not_wanted_stay_away(case: SourceCase, reader: Reader, kind: str) -> None:
    capture = case.config.capture.model_copy(update={"events": (Event(kind),)})
    case.config = case.config.model_copy(update={"capture": capture})
    case.commit(("insert", "a", (1, "x")), ("insert", "a", (2, "y")))
    case.commit(("update", "a", (1, "z")))
    case.commit(("delete", "a", (2,)))
    ops = [change[0] for change in brief(reader.changes(reader.all()))]
    assert ops == {"insert": ["i", "i"], "update": ["u"], "delete": ["d"]}[kind]


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
        said = session.identity.dialect
    assert case.source.dialect(head(case)) == (MYSQL if said == Dialect("Memory") else said)


# -- tables and chunks -------------------------------------------------------------------------------------------------


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
    """The same from the log, from a chunk and from the list of tables, and the values are of the Arrow type that it
    decides.
    """
    case.commit(("insert", "a", (1, "x")))
    manifest = reader.once().manifest
    with reader.store.open_input(manifest.files[0].path) as file:
        logged = pq.read_schema(file)
    with case.source.open() as session:
        [listed] = session.tables(lambda table: table == case.table("a"))
        planned = session.chunk_table(case.table("a")).schema
    with case.source.open_chunks(case.marking, "w") as chunks:
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
    with case.source.open_chunks(case.marking, "w") as chunks:
        assert chunks.schema(case.table("a")).primary_key == ("id",)
        rows = next(iter(chunks.rows(TableRequest(case.table("a")), Chunk(ChunkId("d", 0, 1))))).select([0])
    column = next(c for c in schema.columns if c.name == "id")
    keys = case.source.keys.literals([column], rows)
    assert keys == [(case.source.keys.typed(column, text),) for text in ("-7", "12")]


@pytest.mark.promise("C19")
@pytest.mark.parametrize("size", [1, 3, 7, 50])
def test_chunks_cut_every_row_into_exactly_one(case: SourceCase, size: int) -> None:
    ids = [-5, -1, 0, 3, 4, 9, 10, 11, 400, 401]
    case.commit(*(("insert", "a", (number, f"v{number}")) for number in ids))
    request, planned, found, last = TableRequest(case.table("a")), TablePlanned(), [], False
    with case.source.open_chunks(case.marking, "w") as chunks:
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
    with case.source.open_chunks(case.marking, "w") as chunks:
        assert [row[0] for row in rows_of(chunks, request, Chunk(ChunkId("d", 0, 1)))] == [3, 4, 5]
        listed = TableRequest(table, key_file="somewhere", estimate=2)
        rows = rows_of(chunks, listed, Chunk(ChunkId("d", 0, 1), upto=("2",)), [[high, low]])
        assert sorted(row[0] for row in rows) == [3, 5]


def test_watermarks_stand_in_the_log_around_the_read(case: SourceCase, reader: Reader) -> None:
    """What is committed between them stands between them, and what was there before the low one is in the chunk."""
    case.commit(("insert", "a", (1, "x")))
    with case.source.open() as session:
        assert session.choose_marking() is case.marking
    reader.at = head(case)
    case.commit(("insert", "a", (2, "z")))
    chunk, request = Chunk(ChunkId("d", 0, 1)), TableRequest(case.table("a"))
    with case.source.open_chunks(case.marking, "w") as chunks:
        before = chunks.end_of_log()
        low = chunks.watermarks.low(chunk)
        with chunks.watermarks.reading(chunk) as snapshot:
            rows = rows_of(chunks, request, chunk)
            case.commit(("update", "a", (1, "y")))
        chunks.watermarks.high(chunk)
        after = chunks.end_of_log()
    assert sorted(rows) == [(1, "x"), (2, "z")]
    assert before != after
    marked = case.source.watermark_table
    result = reader.once()
    changes = reader.changes([result])
    if marked is None:  # the chunk remembers the snapshot that it was read in
        assert [c.table for c in changes] == [case.table("a")] * 2
        with reader.store.open_input(result.manifest.files[0].path) as file:
            logged = pq.read_table(file)
        seen = case.source.is_exact(case.marking, snapshot or low)
        unseen = case.source.after_low(case.marking, snapshot or low, logged.sort_by("_seq"))
        assert unseen.tolist() == [not seen, True]
        return
    assert not case.source.is_exact(case.marking, low)
    assert [c.table for c in changes] == [case.table("a"), marked, case.table("a"), marked]
    marks = [Mark.parse(c.after["mark"]) for c in changes if c.table == marked and c.after]
    assert [(m.chunk, m.attempt, m.high) for m in marks if m] == [
        (chunk.id, chunk.attempt, high) for high in (False, True)
    ]


def test_a_table_that_is_gone_is_refused(case: SourceCase) -> None:
    """Before a dump is planned, and while its chunks are read."""
    with case.source.open() as session, case.source.open_chunks(case.marking, "w") as chunks:
        chunks.schema(case.table("a"))
        case.execute("DROP TABLE a")
        for ask in (session.chunk_table, chunks.schema):
            with pytest.raises(SluiceError, match=r"\ba\b"):
                ask(case.table("a"))


def test_how_busy_it_is(case: SourceCase) -> None:
    with case.source.open_replica("test") as load:
        assert load.running() >= 1
        assert load.replica_lag_s() is None


# -- values, keys, definitions, loads: what SQL does -------------------------------------------------------------------

MYSQL_VALUES: list[tuple[str, str, Any]] = [
    ("TINYINT", "-128", -128),
    ("SMALLINT UNSIGNED", "65535", 65535),
    ("MEDIUMINT", "-8388608", -8388608),
    ("INT UNSIGNED", "4294967295", 4294967295),
    ("BIGINT", "-9223372036854775808", -(2**63)),
    ("DECIMAL(12,3)", "'-123456789.001'", Decimal("-123456789.001")),
    ("FLOAT", "0.5", 0.5),
    ("DOUBLE", "-0.125", -0.125),
    ("BIT(9)", "257", 257),
    ("DATE", "'2024-02-29'", dt.date(2024, 2, 29)),
    ("DATETIME(6)", "'2024-02-29 23:59:59.000001'", dt.datetime(2024, 2, 29, 23, 59, 59, 1)),
    ("TIMESTAMP(3) NULL", "'2024-02-29 23:59:59.5'", dt.datetime(2024, 2, 29, 23, 59, 59, 500_000, dt.UTC)),
    ("TIME(6)", "'-30:00:00.000001'", -dt.timedelta(hours=30, microseconds=1)),
    ("YEAR", "2024", 2024),
    ("CHAR(5)", "'ab'", "ab"),
    ("VARCHAR(9)", "'ä😀'", "ä😀"),
    ("LONGTEXT", "'text'", "text"),
    ("VARBINARY(9)", "x'00ff'", b"\0\xff"),
    ("LONGBLOB", "x'00'", b"\0"),
    ("ENUM('a','b')", "'b'", "b"),
    ("SET('x','y')", "'x,y'", "x,y"),
]
"""A type, a literal of SQL, and the value that a reader of the log gets."""

POSTGRESQL_VALUES: list[tuple[str, str, Any]] = [
    ("boolean", "true", 1),
    ("smallint", "-32768", -32768),
    ("integer", "2147483647", 2147483647),
    ("bigint", "-9223372036854775808", -(2**63)),
    ("numeric(12,3)", "-123456789.001", Decimal("-123456789.001")),
    ("numeric", "1e-9", "0.000000001"),
    ("real", "0.5", 0.5),
    ("double precision", "-0.125", -0.125),
    ("date", "'2024-02-29'", dt.date(2024, 2, 29)),
    ("timestamp", "'2024-02-29 23:59:59.000001'", dt.datetime(2024, 2, 29, 23, 59, 59, 1)),
    ("timestamptz(3)", "'2024-02-29 23:59:59.5+00'", dt.datetime(2024, 2, 29, 23, 59, 59, 500_000, dt.UTC)),
    ("time", "'23:00:00.000001'", dt.timedelta(hours=23, microseconds=1)),
    ("char(5)", "'ab'", "ab"),
    ("varchar(9)", "'ä😀'", "ä😀"),
    ("text", "'text'", "text"),
    ("bytea", r"'\x00ff'", b"\0\xff"),
    ("uuid", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    ("json", """'{"a": 1}'""", '{"a": 1}'),
    ("int[]", "'{1,NULL,3}'", "{1,NULL,3}"),
    ("int4range", "'[1,5)'", "[1,5)"),
    ("inet", "'10.0.0.1/8'", "10.0.0.1/8"),
    ("interval", "'1 year 2 days 03:04:05'", "1 year 2 days 03:04:05"),
]


@dataclass(frozen=True)
class Words:
    """What tests say in the words of one kind of source."""

    utc: str
    options: str
    values: list[tuple[str, str, Any]]
    keys: Mapping[str, tuple[str, list[str]]]


def words(case: SourceCase) -> Words:
    if case.config.source.type == "postgresql":
        return Words("SET timezone = 'UTC'", "", POSTGRESQL_VALUES, POSTGRESQL_KEYS)
    return Words("SET time_zone = '+00:00'", " DEFAULT CHARSET utf8mb4", MYSQL_VALUES, MYSQL_KEYS)


def test_a_value_of_every_type_comes_from_the_log_and_in_a_chunk(case: SourceCase, reader: Reader) -> None:
    said = words(case)
    names = [f"c{number}" for number in range(len(said.values))]
    columns = ", ".join(f"{name} {kind}" for name, (kind, _, _) in zip(names, said.values, strict=True))
    case.execute(
        said.utc,
        f"CREATE TABLE v (id INT PRIMARY KEY, {columns}){said.options}",
        *case.whole_images("v"),
        f"INSERT INTO v VALUES (1, {', '.join(literal for _, literal, _ in said.values)})",
        "INSERT INTO v (id) VALUES (2)",
        f"UPDATE v SET {', '.join(f'{name} = NULL' for name in names)} WHERE id = 1",
    )
    values = dict(zip(names, (value for *_, value in said.values), strict=True))
    full, empty = {"id": 1, **values}, {"id": 2, **dict.fromkeys(names)}
    cleared = {**empty, "id": 1}
    changes = reader.changes(reader.all())
    assert [(c.op, c.before, c.after) for c in changes] == [
        ("i", None, full),
        ("i", None, empty),
        ("u", full, cleared),
    ]
    case.execute(
        said.utc,
        f"UPDATE v SET {', '.join(f'{n} = {literal}' for n, (_, literal, _) in zip(names, said.values, strict=True))} "
        "WHERE id = 2",
    )
    request = TableRequest(case.table("v"))
    with case.source.open_chunks(case.marking, "w") as chunks:
        rows = rows_of(chunks, request, Chunk(ChunkId("d", 0, 1)))
    assert [dict(zip(["id", *names], row, strict=True)) for row in rows] == [cleared, {**full, "id": 2}]


MYSQL_KEYS = {
    "number": ("BIGINT UNSIGNED", ["0", "7", "18446744073709551615", "9223372036854775808"]),
    "text": ("VARCHAR(20) COLLATE utf8mb4_bin", ["''", "'a'", "'B'", "'a b'", "'ä'"]),
    "bytes": ("VARBINARY(9)", ["x''", "x'00'", "x'ff'", "x'00ff'"]),
    "decimal": ("DECIMAL(12,3)", ["'-1.5'", "'0.001'", "'10'", "'9.999'"]),
    "date": ("DATE", ["'2024-02-29'", "'1999-12-31'", "'2024-01-01'"]),
    "moment": ("DATETIME(3)", ["'2024-02-29 10:00:00.001'", "'2024-02-29 10:00:00'", "'1999-12-31 00:00:00'"]),
    "time": ("TIME(3)", ["'-10:00:00.5'", "'00:00:00'", "'100:00:00'"]),
}
POSTGRESQL_KEYS = {
    "number": ("bigint", ["0", "7", "9223372036854775807", "-9223372036854775808"]),
    "text": ("varchar(20)", ["''", "'a'", "'B'", "'a b'", "'ä'"]),
    "bytes": ("bytea", [r"'\x'", r"'\x00'", r"'\xff'", r"'\x00ff'"]),
    "decimal": ("numeric(12,3)", ["-1.5", "0.001", "10", "9.999"]),
    "date": ("date", ["'2024-02-29'", "'1999-12-31'", "'2024-01-01'"]),
    "moment": ("timestamp(3)", ["'2024-02-29 10:00:00.001'", "'2024-02-29 10:00:00'", "'1999-12-31 00:00:00'"]),
    "time": ("time(3)", ["'10:00:00.5'", "'00:00:00'", "'23:59:59'"]),
}


@pytest.mark.promise("C5")
@pytest.mark.parametrize("kind", MYSQL_KEYS)
def test_keys_of_every_type_cut_a_table_into_chunks(case: SourceCase, kind: str) -> None:
    """Also as the second column of a key. A list of keys finds its rows."""
    said = words(case)
    declared, literals = said.keys[kind]
    case.execute(
        f"CREATE TABLE k (n INT, k {declared}, PRIMARY KEY (n, k)){said.options}",
        f"INSERT INTO k VALUES {', '.join(f'({n}, {one})' for n in (1, 2) for one in literals)}",
    )
    request, planned, found, last = TableRequest(case.table("k")), TablePlanned(), [], False
    with case.source.open_chunks(case.marking, "w") as chunks:
        while not last:
            upto, last = chunks.next_border(request, planned, 3)
            chunk = Chunk(ChunkId("d", 0, planned.chunks + 1), after=planned.upto, upto=upto)
            found += sorted(rows_of(chunks, request, chunk))
            planned = TablePlanned(upto, planned.chunks + 1)
        assert len(found) == len(set(found)) == 2 * len(literals)
        assert found == sorted(found)
        schema = chunks.schema(case.table("k"))
        layout = pa.schema([schema.field(column) for column in schema.columns])
        table = pa.Table.from_pylist([dict(zip(("n", "k"), row, strict=True)) for row in found[1:3]], schema=layout)
        keys = case.source.keys.literals(schema.columns, table)
        listed = TableRequest(case.table("k"), key_file="somewhere", estimate=2)
        assert sorted(rows_of(chunks, listed, Chunk(ChunkId("d", 0, 1), upto=("2",)), [keys])) == found[1:3]


def test_statements_that_change_definitions_come_between_the_rows(case: SourceCase, reader: Reader) -> None:
    """With what they did, and the definitions before and after; rows have the columns of their time."""
    kinds = ChangeKind
    logged = case.config.source.type != "postgresql"  # else the log shows a new definition with the next row
    widen = "ALTER TABLE a MODIFY n BIGINT DEFAULT 7" if logged else "ALTER TABLE a ALTER COLUMN n TYPE BIGINT"
    steps = [
        ("ALTER TABLE a ADD COLUMN n INT DEFAULT 7", [kinds.ADD_COLUMN], ("a", ["id", "v"], ["id", "v", "n"])),
        ("ALTER TABLE a RENAME COLUMN v TO w", [kinds.RENAME_COLUMN], ("a", ["id", "v", "n"], ["id", "w", "n"])),
        ("ALTER TABLE a DROP COLUMN w", [kinds.DROP_COLUMN], ("a", ["id", "w", "n"], ["id", "n"])),
        (widen, None, ("a", ["id", "n"], ["id", "n"])),
        ("CREATE TABLE b (id INT PRIMARY KEY, n INT)", [kinds.CREATE_TABLE], ("b", None, ["id", "n"])),
        ("TRUNCATE TABLE b", [kinds.TRUNCATE_TABLE], ("b", ["id", "n"], ["id", "n"])),
        ("RENAME TABLE b TO c", [kinds.RENAME_TABLE], ("b", ["id", "n"], ["id", "n"])),
        ("DROP TABLE c", [kinds.DROP_TABLE], ("c", ["id", "n"], None)),
    ]
    rows: Mapping[str, tuple[str, ...]] = {}
    if not logged:
        steps[6:] = [("ALTER TABLE b RENAME TO c", *steps[6][1:])]
        rows = {steps[4][0]: ("INSERT INTO b VALUES (1, 1)",), steps[6][0]: ("INSERT INTO c VALUES (2, 2)",)}
    case.commit(("insert", "a", (1, "x")))
    told, columns = [], []
    reader.once()
    for number, (statement, _, _) in enumerate(steps):
        case.execute(statement, *rows.get(statement, ()), f"INSERT INTO a (id) VALUES ({10 + number})")
        results = reader.all()
        told += [record for result in results for record in result.manifest.ddl]
        columns += [list(c.after or ()) for c in reader.changes(results) if c.table == case.table("a")]
    said = [record.sql.replace("`", "").partition(" /*")[0] for record in told]  # a server writes a DROP anew
    assert not logged or said == [statement for statement, _, _ in steps]
    assert columns[:4] == [["id", "v", "n"], ["id", "w", "n"], ["id", "n"], ["id", "n"]]
    for record, (_, wanted, (name, before, after)) in zip(told, steps, strict=True):
        [change] = map(TableChange.from_json, record.changes)
        assert change.table == case.table(name)
        assert wanted is None or list(change.kinds) == wanted
        assert [c.name for c in change.before.columns] == before if before else change.before is None
        assert [c.name for c in change.after.columns] == after if after else change.after is None
    with case.source.open_chunks(case.marking, "w") as chunks:
        found = rows_of(chunks, TableRequest(case.table("a")), Chunk(ChunkId("d", 0, 1)))
    assert (found[0], found[-1]) == ((1, 7), (9 + len(steps), 7))


def test_rows_of_a_table_without_a_key(case: SourceCase, reader: Reader) -> None:
    """Equal rows are told by their number; an update and a delete have the whole row before."""
    case.create("k", key=False)
    case.execute("INSERT INTO k VALUES (1, 'x'), (1, 'x'), (2, 'y')", "UPDATE k SET v = 'z' WHERE id = 2")
    case.execute("DELETE FROM k WHERE id = 2")
    changes = reader.changes(reader.all())
    assert brief(changes) == [
        ("i", "k", 1, None, "x"), ("i", "k", 1, None, "x"), ("i", "k", 2, None, "y"), ("u", "k", 2, "y", "z"),
        ("d", "k", 2, "z", None),
    ]  # fmt: skip
    assert {c.key for c in changes} == {()}
    with case.source.open_chunks(case.marking, "w") as chunks:
        rows = rows_of(chunks, TableRequest(case.table("k"), keyless=True), Chunk(ChunkId("d", 0, 1)))
    assert rows == [(1, "x"), (1, "x")]


def test_a_transaction_that_was_rolled_back_is_not_there(case: SourceCase, reader: Reader) -> None:
    case.execute("BEGIN", "INSERT INTO a VALUES (1, 'x')", "ROLLBACK")
    case.execute("BEGIN", "INSERT INTO a VALUES (2, 'y')", "UPDATE a SET v = 'z'", "COMMIT")
    changes = reader.changes(reader.all())
    assert brief(changes) == [("i", "a", 2, None, "y"), ("u", "a", 2, "y", "z")]
    assert {c.txn for c in changes} == {changes[0].txn}


def test_a_large_transaction_is_in_one_batch(case: SourceCase, reader: Reader) -> None:
    case.commit(*(("insert", "a", (number, "x" * 40)) for number in range(3000)))
    case.commit(("insert", "a", (5000, "y")))
    results = reader.all(max_changes=100, max_bytes=1000)
    assert [result.changes for result in results] == [3000, 1]
    assert [c.after["id"] for c in reader.changes(results) if c.after] == [*range(3000), 5000]


def test_marked_loads_are_told_from_what_applications_write(case: SourceCase, reader: Reader) -> None:
    """Those of a pipeline that would get its own changes back are dropped, others have its number; a mark without the
    key is none.
    """
    mine, other = (LoadMark(name, "ch", "", "the key") for name in ("there", "elsewhere"))
    forged = LoadMark("there", "ch", "", "another key")
    case.loads = MarkRules({"ch": "the key"}, dropped=frozenset({"there"}))
    for number, mark in enumerate((mine, other, forged), start=1):
        case.load(mark.token(f"n{number}"), ("insert", "a", (number, "x")))
    case.commit(("insert", "a", (9, "x")))
    changes = [c for c in reader.changes(reader.all()) if c.table == case.table("a")]
    assert [c.after["id"] for c in changes if c.after] == [2, 3, 9]
    assert changes[0].origin == origin_number("elsewhere")
    assert origin_number("there") not in {c.origin for c in changes}


def test_a_transaction_has_a_name_by_which_its_place_is_found(case: SourceCase, reader: Reader) -> None:
    case.commit(("insert", "a", (1, "x")), ("insert", "a", (2, "x")))
    first = reader.once()
    case.commit(("insert", "a", (3, "x")))
    second = reader.once()
    names = [c.gtid for c in reader.changes([first, second])]
    assert names[0] == names[1] != names[2]
    assert all(names)
    kind = case.config.source.type
    assert executed(kind, first.last) != executed(kind, second.last)
    with case.source.open() as session:
        for at in (first.last, second.last):
            found = session.relocate(at)
            assert (found.log_epoch, found.order) == (at.log_epoch, at.order)


def test_another_member_of_a_group_has_the_same_transactions_elsewhere(tmp_path: Path) -> None:
    """Without a server: those of MySQL and MariaDB are in tests/integration/capture/test_failover.py."""
    with memory_case() as case:
        case.create("a")
        reader = Reader(case, tmp_path, head(case))
        case.commit(("insert", "a", (1, "x")))
        at = reader.once().last
        with memory_case() as member:
            case.store.replica(member.schema)
            other = member.store
            other.commit(RowChange(case.table("a"), None, {"id": 7, "v": "of the member alone"}))
            case.commit(("insert", "a", (2, "y")))
            later = reader.once().last
            with member.source.open() as session:
                with pytest.raises(LostPosition, match="lacks transactions"):
                    session.relocate(later)
                other.follow(case.store)
                assert session.relocate(at).order == at.order
                assert session.relocate(later).order == (later.order[0], later.order[1] + 1)
                assert session.relocate(later).server != later.server
                other.release(len(other.log))
                with pytest.raises(LostPosition, match="no longer kept"):
                    session.relocate(at)


ASKED = [
    *sorted(name for name in vars(SourceSession) if not name.startswith("_") and name not in {"history", "stream"}),
    "history.snapshot",
    "history.definition",
    "stream",
]
"""What a session answers."""


@pytest.mark.parametrize("question", ASKED)
def test_a_session_that_the_server_ends_raises_no_error_of_a_driver(
    case: SourceCase, reader: Reader, question: str
) -> None:
    """It still answers what it knows by heart, or asks on another connection."""
    if isinstance(case, MemoryCase):
        pytest.skip("it has no connection")
    table = case.table("a")
    if isinstance(case, PostgreSQLCase):
        case.execute("ALTER TABLE a REPLICA IDENTITY FULL")  # so that a table of the log is asked for
    case.commit(("insert", "a", (1, "x")))
    with case.source.open() as session:
        at = session.head
        given = {"start": "latest", "at": at, "delivered": at, "tables": [table], "table": table, "named": table,
                 "wants": lambda _: True, "table_filter": case.wanted, "fields": [], "questions": []}  # fmt: skip
        asked = session.history if "." in question else session
        if asked is None:
            pytest.skip("its log contains definitions")
        end_session(case, session)
        never_known = question in {"tables", "estimates", "empty_tables", "keyless"}
        with pytest.raises(SourceUnavailable) if never_known else suppress(SluiceError):
            if question == "stream":
                reader.once(session)
                return
            answer = getattr(asked, question.rpartition(".")[2])
            if callable(answer):
                names = inspect.signature(answer).parameters
                answer = answer(**{name: given[name] for name in names if name in given})
            if isinstance(answer, Iterator):
                list(answer)


def end_session(case: SourceCase, session: Any) -> None:
    """Have the server end the connection of a session."""
    if isinstance(case, PostgreSQLCase):
        case.server.execute(f"SELECT pg_terminate_backend({session.connection.info.backend_pid}, 5000)")
    else:
        case.server.execute(f"KILL {session.connection.thread_id()}")
