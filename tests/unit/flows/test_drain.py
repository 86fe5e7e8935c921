"""The drain, on a source in memory: no server, no ZooKeeper."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.errors import DecodeError, LostPosition, WrongServer
from sluice.flows.capture.drain import head_of
from sluice.flows.dump.automatic import due_dumps, record_due
from sluice.flows.released_log import release_delivered
from sluice.model.dumps import POSITION_LOST
from sluice.sources.memory.log import RowChange
from tests.support.twins.serverless import Serverless, serverless


@pytest.fixture
def made(tmp_path: Path):
    with serverless(tmp_path) as found:
        found.begin()
        yield found


def test_a_batch_holds_what_was_written(made: Serverless) -> None:
    made.case.commit(("insert", "a", (1, "x")), ("insert", "a", (2, "y")))
    made.case.commit(("update", "a", (1, "z")), ("delete", "a", (2,)))
    outcome = made.drain()
    assert (outcome.batch, outcome.changes) == (1, 4)
    assert made.replayed() == made.rows() == {1: "z"}
    with made.runtime().state() as state:
        cursor = state.cursor()
        assert cursor is not None
        assert (cursor.position, cursor.next_batch) == (head_of(made.runtime()), 2)


def test_an_idle_source_is_no_batch(made: Serverless) -> None:
    outcome = made.drain(until=None)
    assert (outcome.batch, outcome.closed_by) == (None, "idle")


def test_the_same_claim_gets_its_batch_again(made: Serverless) -> None:
    made.case.commit(("insert", "a", (1, "x")))
    first = made.drain(claim="test:one:1", deliver=False)
    made.case.commit(("insert", "a", (2, "y")))
    again = made.drain(claim="test:one:1", deliver=False)
    assert (again.batch, again.position, again.adopted) == (first.batch, first.position, True)
    assert made.drain(deliver=False).batch == 2


@pytest.mark.promise("B5", "B8")
def test_a_full_window_takes_up_the_oldest_batch(made: Serverless) -> None:
    for number in range(made.case.config.window):
        made.case.commit(("insert", "a", (number, "x")))
        assert made.drain(deliver=False).batch == number + 1
    made.case.commit(("insert", "a", (99, "x")))
    outcome = made.drain(deliver=False)
    assert (outcome.batch, outcome.closed_by) == (1, "the window is full")


def test_what_is_in_the_log_is_captured_however_late_the_reader_looks(made: Serverless) -> None:
    """Look when the time for a first change is over, as it may be on a busy machine."""
    made.case.commit(("insert", "a", (1, "x")))
    outcome = made.drain(idle_wait_s=0.0)
    assert (outcome.batch, outcome.changes) == (1, 1)
    assert made.drain(idle_wait_s=0.0).batch is None


def test_rows_moved_to_another_key_leave_the_old_one(made: Serverless) -> None:
    made.case.commit(("insert", "a", (1, "x")))
    made.case.store.update(made.table, (1,), id=2)
    made.drain()
    assert made.replayed() == made.rows() == {2: "x"}


def test_a_batch_ends_before_what_cannot_be_read_and_the_next_drain_raises_it(made: Serverless) -> None:
    made.case.commit(("insert", "a", (1, "x")))
    made.case.store.commit(RowChange(made.table, None, {"id": 2, "v": "y"}), damage="an event of kind 99")
    made.case.commit(("insert", "a", (3, "z")))
    outcome = made.drain()
    assert (outcome.batch, outcome.changes) == (1, 1)
    with pytest.raises(DecodeError, match="kind 99"):
        made.drain()
    assert made.replayed() == {1: "x"}


def test_a_lost_position_stops(made: Serverless) -> None:
    made.case.commit(("insert", "a", (1, "x")))
    made.case.store.release(len(made.case.store.log))
    with pytest.raises(LostPosition):
        made.drain()


def test_another_server_stops(made: Serverless) -> None:
    made.case.store.server = "memory:another"
    with pytest.raises(WrongServer):
        made.drain()


def test_another_log_at_the_same_place_stops(made: Serverless) -> None:
    made.case.commit(("insert", "a", (1, "x")))
    made.drain()
    made.case.store.begin_anew()
    with pytest.raises(LostPosition, match="not the one that was captured"):
        made.drain()


def test_a_lost_position_may_be_made_good_by_a_dump(tmp_path: Path) -> None:
    with serverless(tmp_path, capture={"on_lost_position": "dump"}) as made:
        made.begin()
        made.case.commit(("insert", "a", (1, "x")))
        made.case.store.release(len(made.case.store.log))
        outcome = made.drain()
        with made.runtime().state() as state:
            (dump,) = state.dumps.active()
            assert (dump.reason, [r.table for r in dump.tables]) == (POSITION_LOST, [made.table])
            assert outcome.due == (dump.id,)
            cursor = state.cursor()
            assert cursor is not None
            assert not cursor.position.follows(head_of(made.runtime()))


def test_which_dumps_are_due_is_a_question(tmp_path: Path) -> None:
    """Asked twice it answers the same, and nothing is written; recorded, they are due no more."""
    with serverless(tmp_path, source={"start": "dump"}) as made:
        made.case.commit(("insert", "a", (1, "x")))
        runtime = made.runtime()
        with runtime.state() as state, runtime.source.open() as source:
            nodes = dict(made.tree.nodes)
            due = due_dumps(runtime, state, source, None)
            assert due_dumps(runtime, state, source, None) == due
            assert made.tree.nodes == nodes
            assert [(d.id, d.reason, dict(d.tables)) for d in due.dumps] == [("initial", "initial", {made.table: 1})]
            record_due(runtime.pipeline, runtime.rules_path, state, source, due)
            made.begin()
            assert due_dumps(runtime, state, source, state.cursor()).dumps == ()
            assert [d.id for d in state.dumps.active()] == ["initial"]
        made.case.create("b")
        made.case.config = made.case.config.model_copy(
            update={"capture": made.case.config.capture.model_copy(update={"include": (".*",)})}
        )
        runtime = made.runtime()
        with runtime.state() as state, runtime.source.open() as source:
            due = due_dumps(runtime, state, source, state.cursor())
            assert [d.reason for d in due.dumps] == []  # the old pattern took the new table, too
            assert due.selection is not None


def test_a_source_keeps_its_log_until_every_target_has_it(made: Serverless) -> None:
    made.case.commit(("insert", "a", (1, "x")))
    made.drain()
    made.case.commit(("insert", "a", (2, "y")))
    made.drain(deliver=False)
    with made.runtime().state() as state:
        release_delivered(made.runtime().source, made.runtime().pipeline.targets, state)
        process = state.acks.get("t")
    assert process is not None
    assert made.case.store.released == process.position.row_place[1] == len(made.case.store.log) - 1
    made.case.commit(("insert", "a", (3, "z")))
    assert made.drain(deliver=False).batch == 3
