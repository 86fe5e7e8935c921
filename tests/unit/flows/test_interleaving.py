"""Chunks of a dump between changes, on a source in memory: whatever is written and drained while a chunk is read,
nothing is lost or goes back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluice.flows.dump.start import start
from sluice.flows.dump.worker import work
from sluice.model.column_types import ColumnKind
from sluice.model.dumps import Chunk, DumpState, Tuning
from sluice.model.tables import Column, TableSchema
from sluice.sources.memory.log import RowChange
from tests.support.suite.examples import examples
from tests.support.twins.serverless import Serverless, serverless

STEPS = ("claimed", "low", "selected", "stored", "high", "marked")


def dumped(made: Serverless, hook: Callable[[str, Chunk], Any], *, chunk_rows: int = 50) -> None:
    """Copy the table, one thread; ``hook`` is called at each step of each chunk, and a drain follows each chunk."""
    runtime = made.runtime()

    def told(step: str, chunk: Chunk) -> None:
        hook(step, chunk)
        while step == "marked" and made.drain().batch is not None:
            pass

    dump = start(runtime, tuning=Tuning(chunk_rows=chunk_rows, parallelism=1))
    stop = threading.Event()
    watch = threading.Timer(60, stop.set)
    watch.start()
    try:
        assert work(made.runtime(), dump.id, stop=stop, hook=told).state is DumpState.DONE
    finally:
        watch.cancel()
    made.drain()


@pytest.fixture
def made(tmp_path: Path):
    with serverless(tmp_path) as found:
        found.case.commit(*(("insert", "a", (number, "old")) for number in range(10)))
        found.begin()
        yield found


def test_a_quiet_table_is_copied_whole(made: Serverless) -> None:
    dumped(made, lambda *_: None, chunk_rows=3)
    assert made.replayed() == made.rows() == dict.fromkeys(range(10), "old")
    assert {c.op for c in made.changes()} == {"r"}


@pytest.mark.parametrize("step", STEPS)
def test_a_row_that_changes_at_any_step_is_the_newest(made: Serverless, step: str) -> None:
    def write(now: str, _: Chunk) -> None:
        if now == step:
            made.case.commit(
                ("update", "a", (3, f"new at {step}")),
                ("delete", "a", (4,)) if 4 in made.rows() else ("insert", "a", (4, "again")),
            )

    dumped(made, write)
    assert made.replayed() == made.rows()


@pytest.mark.promise("C9")
def test_keys_that_changed_in_the_window_are_left_out_of_the_chunk(made: Serverless) -> None:
    def write(step: str, _: Chunk) -> None:
        if step == "selected":
            made.case.commit(("update", "a", (3, "new")))

    dumped(made, write)
    read = [c.after["id"] for c in made.changes() if c.op == "r" and c.after]
    assert sorted(read) == [0, 1, 2, 4, 5, 6, 7, 8, 9]


def test_a_chunk_whose_mark_was_drained_before_it_was_stored_stands_in_the_next_batch(made: Serverless) -> None:
    def write(step: str, _: Chunk) -> None:
        if step in {"low", "selected", "stored", "high"}:
            made.case.commit(("update", "a", (5, f"new at {step}")))
            made.drain()

    dumped(made, write)
    assert made.replayed() == made.rows()
    assert made.rows()[5] == "new at high"


def test_a_table_redefined_in_the_window_is_read_again(made: Serverless) -> None:
    attempts = []

    def alter(step: str, chunk: Chunk) -> None:
        if step == "claimed":
            attempts.append(chunk.attempt)
        if step == "selected" and len(attempts) == 1:
            schema = made.case.store.tables[made.table]
            more = Column("w", ColumnKind.INT, "int")
            made.case.store.define(TableSchema(schema.table, (*schema.columns, more), schema.primary_key))

    dumped(made, alter)
    assert len(attempts) == 2
    assert made.replayed() == made.rows()


ids = st.integers(0, 7)
write = st.one_of(
    st.tuples(st.just("set"), ids, st.integers(0, 99)), st.tuples(st.just("remove"), ids),
    st.tuples(st.just("move"), ids, ids),
    st.tuples(st.just("drain")),
)  # fmt: skip


@settings(max_examples=examples(0.25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at_first=st.sets(ids), script=st.lists(st.lists(write, max_size=3), max_size=24), chunk_rows=st.integers(1, 5))
def test_whatever_happens_the_target_ends_as_the_source(
    tmp_path_factory: Any, at_first: set[int], script: list[list[Any]], chunk_rows: int
) -> None:
    with serverless(tmp_path_factory.mktemp("any")) as made:
        store, table = made.case.store, made.table
        for number in at_first:
            store.insert(table, {"id": number, "v": "first"})
        made.begin()
        left = list(script)

        def happen(_: str, __: Chunk) -> None:
            for verb, *values in left.pop(0) if left else ():
                have = made.rows()
                if verb == "drain":
                    made.drain()
                elif verb == "set":
                    store.upsert(table, {"id": values[0], "v": f"v{values[1]}"})
                elif verb == "remove" and values[0] in have:
                    store.delete(table, (values[0],))
                elif verb == "move" and values[0] in have and values[1] not in have:
                    before = {"id": values[0], "v": have[values[0]]}
                    store.commit(RowChange(table, before, {**before, "id": values[1]}))

        dumped(made, happen, chunk_rows=chunk_rows)
        assert made.replayed() == made.rows()
