"""Copies of PostgreSQL tables without a key: ranges of pages at one snapshot, while the tables are written."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sluice.flows.dump import worker
from sluice.flows.dump.progress import TableView, one_view, views
from sluice.flows.dump.start import start
from sluice.flows.dump.worker import work
from sluice.model.dumps import Chunk, ChunkId, Marking, TableRequest
from sluice.model.tables import TableId
from sluice.sources.port import ReadsInParts
from sluice.sources.postgresql.snapshot import chunk_reader, page_ranges
from tests.support.pipelines.pg_source import PgCase, pg_case

ROWS = 40_000
_NUMBERS = itertools.count()
HEAP = (
    "CREATE TABLE heap (n int, v text) WITH (autovacuum_enabled = false)",
    "ALTER TABLE heap REPLICA IDENTITY FULL",
    f"INSERT INTO heap SELECT i % 30000, repeat(md5(i::text), 3) FROM generate_series(1, {ROWS}) i",
)
PARTED = (
    "CREATE TABLE parted (n int, v text) PARTITION BY RANGE (n)",
    "CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (10000)",
    "CREATE TABLE parted_2 PARTITION OF parted FOR VALUES FROM (10000) TO (100000)",
    "ALTER TABLE parted REPLICA IDENTITY FULL", "ALTER TABLE parted_1 REPLICA IDENTITY FULL",
    "ALTER TABLE parted_2 REPLICA IDENTITY FULL",
    "INSERT INTO parted SELECT n, v FROM heap",
)  # fmt: skip


@pytest.fixture
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """About 60 ranges a table."""
    monkeypatch.setattr(page_ranges, "PAGES", 16)


@pytest.fixture
def shop(tmp_path: Path, postgresql_source: Any, zookeeper: Any, small_ranges: None) -> Iterator[PgCase]:
    with pg_case(
        tmp_path, postgresql_source, zookeeper, schema=f"keyless_{next(_NUMBERS)}", tables=(*HEAP, *PARTED), start="dump",
        extra="dump: {parallelism: 3}",
    ) as made:  # fmt: skip
        yield made


def writes(shop: PgCase, table: str, seed: int) -> None:
    """Move rows to other pages, remove some and add some, in one transaction."""
    chance = random.Random(seed)
    with shop.source.connect(options=f"-c search_path={shop.schema}") as connection, connection.transaction():
        connection.execute(f"UPDATE {table} SET v = 'new ' || v WHERE n % 50 = {chance.randrange(50)}")
        connection.execute(f"DELETE FROM {table} WHERE n % 60 = {chance.randrange(60)}")
        connection.execute(
            f"INSERT INTO {table} SELECT i, 'more' FROM generate_series({chance.randrange(9000)}, 9500) i"
        )


@pytest.mark.parametrize("readers", [1, 3])
@pytest.mark.parametrize("table", ["heap", "parted"])
def test_the_ranges_have_the_rows_of_one_snapshot(shop: PgCase, table: str, readers: int) -> None:
    """Rows that are updated move to pages that are read later, or were read before."""
    request = TableRequest(TableId(shop.schema, table), keyless=True)
    chunk = Chunk(ChunkId("one", 0, 1))
    before = sorted(shop.source.execute(f"SELECT n, v FROM {shop.schema}.{table}"))
    with shop.runtime().source.open_chunks(Marking.SNAPSHOT, "one") as reader:
        assert isinstance(reader, ReadsInParts)
        with reader.watermarks.reading(chunk):
            writes(shop, table, 0)
            reader.schema(request.table)
            pieces: list[pa.Table] = []
            for number, piece in enumerate(reader.rows_in_parts(request, chunk, readers)):
                pieces.append(piece)
                if number % 10 == 0:
                    writes(shop, table, number + 1)
    found = pa.concat_tables(pieces)
    assert len([piece for piece in pieces if piece.num_rows]) > 20
    assert sorted(zip(found["n"].to_pylist(), found["v"].to_pylist(), strict=True)) == before
    assert sorted(shop.source.execute(f"SELECT n, v FROM {shop.schema}.{table}")) != before


def test_a_failure_of_one_connection_ends_all(shop: PgCase, monkeypatch: pytest.MonkeyPatch) -> None:
    request, chunk = TableRequest(TableId(shop.schema, "heap"), keyless=True), Chunk(ChunkId("one", 0, 1))
    runtime = shop.runtime()
    with runtime.source.open_chunks(Marking.SNAPSHOT, "one") as reader, reader.watermarks.reading(chunk):
        assert isinstance(reader, ReadsInParts)
        reader.schema(request.table)
        rows = reader.rows_in_parts(request, chunk, 3)
        next(rows)
        [(killed,)] = shop.source.execute(
            "SELECT count(*) FROM (SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid IN "
            "(SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'sluice%copy' AND backend_xmin IS NOT NULL "
            "ORDER BY backend_start DESC LIMIT 1)) k"
        )
        assert killed == 1
        with pytest.raises(Exception, match=r"terminat|closed|connection"):
            list(rows)
        assert not [thread for thread in threading.enumerate() if thread.name == "pages"]


def test_a_copy_under_writes_ends_equal(shop: PgCase) -> None:
    """Each attempt that a change has overtaken is read again; what comes after the copy is applied to it."""
    shop.prepare()
    stop = threading.Event()

    def disturb() -> None:
        for seed in range(6):
            for table in ("heap", "parted"):
                writes(shop, table, seed)
            if stop.wait(0.3):
                return

    with ThreadPoolExecutor(1) as beside:
        disturbing = beside.submit(disturb)
        try:
            deadline = time.monotonic() + 120
            while not disturbing.done() or any(view.state != "done" for view in views(shop.runtime())):
                assert time.monotonic() < deadline, views(shop.runtime())
                shop.run_until_head()
        finally:
            stop.set()
        disturbing.result()
    writes(shop, "heap", 99)
    shop.run_until_head()
    for table in ("heap", "parted"):
        ours, theirs = map(Counter, shop.rows(table))
        assert (list((theirs - ours).items())[:5], list((ours - theirs).items())[:5]) == ([], []), table


def captured(shop: PgCase, place: str) -> None:
    """Wait until the capture has passed a place of the log."""
    deadline = time.monotonic() + 60
    with shop.runtime().state() as state:
        while (cursor := state.cursor()) is None or not cursor.position.has_reached(place):
            assert time.monotonic() < deadline, (cursor, place)
            time.sleep(0.02)


@pytest.mark.promise("C9")
@pytest.mark.parametrize("replace", [False, True], ids=["from nothing", "replacing"])
def test_changes_that_a_copy_does_not_see_come_after_it(
    shop: PgCase, monkeypatch: pytest.MonkeyPatch, replace: bool
) -> None:
    """Each read of a table is overtaken by changes; no copy is read twice for that."""
    shop.prepare()
    if replace:
        copied(shop)
    whole = chunk_reader.PostgresChunkReader.rows_in_parts
    overtaken: list[str] = []

    def disturbed(
        reader: chunk_reader.PostgresChunkReader, request: TableRequest, chunk: Chunk, readers: int
    ) -> Iterator[pa.Table]:
        pieces = whole(reader, request, chunk, readers)
        yield next(pieces)
        writes(shop, request.table.table, len(overtaken))
        overtaken.append(request.table.table)
        captured(shop, reader.end_of_log())
        writes(shop, request.table.table, 20 + len(overtaken))
        yield from pieces

    monkeypatch.setattr(chunk_reader.PostgresChunkReader, "rows_in_parts", disturbed)
    with ThreadPoolExecutor(1) as beside:
        if replace:
            dump = start(
                shop.runtime(), tables=[f"{shop.schema}.{table}" for table in ("heap", "parted")], replace=True
            )
            beside.submit(work, shop.runtime(), dump.id)
        copied(shop)
    writes(shop, "heap", 99)
    shop.run_until_head()
    assert sorted(overtaken) == ["heap", "parted"]
    for table in ("heap", "parted"):
        ours, theirs = map(Counter, shop.rows(table))
        assert (list((theirs - ours).items())[:5], list((ours - theirs).items())[:5]) == ([], []), table


def copied(shop: PgCase) -> None:
    """Run until every dump is placed."""
    deadline = time.monotonic() + 280
    while any(view.state != "done" for view in views(shop.runtime())) or not views(shop.runtime()):
        assert time.monotonic() < deadline, views(shop.runtime())
        shop.run_until_head()


def test_a_copy_says_how_far_it_is(shop: PgCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows are one chunk, and its rows are counted while they are read."""
    shop.prepare()
    copied(shop)
    monkeypatch.setattr(worker, "SAY_EVERY_S", 0.0)
    shop.source.execute("ANALYZE")
    dump = start(shop.runtime(), tables=[f"{shop.schema}.heap"], replace=True)
    seen: list[TableView] = []
    stop = threading.Event()

    def told(step: str, _: Chunk) -> None:
        if step == "selected":
            seen.append(one_view(shop.runtime(), dump.id).tables[0])
            stop.set()

    work(shop.runtime(), dump.id, hook=told, stop=stop)
    assert [(one.state, one.rows) for one in seen] == [("reading", 0)]
    assert 0 < seen[0].reading <= ROWS
    assert 0.5 < seen[0].share < 1
    copied(shop)
    [done] = one_view(shop.runtime(), dump.id).tables
    assert (done.state, done.rows, done.reading, done.share) == ("done", ROWS, 0, 1.0)
