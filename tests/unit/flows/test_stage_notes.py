"""Notes of stages in the segment store, and the history that is made of them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sluice.errors import StorageUnavailable
from sluice.flows import stage_notes as notes
from sluice.flows.job import run_microbatches
from sluice.flows.stage_notes import FOLDER, KEPT_S, StageNotes, hour_folder, prune_notes
from sluice.operations.history import HistoryReader
from sluice.segments.store import SegmentStore
from tests.support.twins.pipes import pipe

NOON = 1_800_000_000 - 1_800_000_000 % 3600


@pytest.fixture
def pipeline(tmp_path: Path) -> Any:
    store = SegmentStore(f"file://{tmp_path}/store", "shop")
    return SimpleNamespace(store_uri=store.uri, name="shop", store=store)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A clock that stands still until a test moves it."""
    now = SimpleNamespace(s=NOON + 30.0)
    monkeypatch.setattr(notes.time, "time", lambda: now.s)
    return now


def deliver(made: StageNotes, pipeline: Any, batch: int, *, changes: int = 10, lag_s: float = 2.0) -> None:
    """Note a batch that was captured, merged and delivered."""
    made.captured(pipeline, batch=batch, claim=f"run-{batch}", changes=changes, size_bytes=1000, seconds=0.5)
    made.passed(pipeline, "merge", rows=changes, seconds=0.25)
    made.delivered(pipeline, "copy", int(lag_s * 1000))


def test_points_are_what_all_processes_noted(pipeline: Any, clock: Any) -> None:
    one, other = StageNotes(), StageNotes()
    deliver(one, pipeline, 1)
    deliver(other, pipeline, 2, changes=30, lag_s=5.0)
    for made in (one, other):
        made.write(pipeline)
    clock.s += 60
    deliver(one, pipeline, 3, changes=60)
    one.write(pipeline)
    for reader in (HistoryReader(), HistoryReader()):  # it survives restarts
        found = reader.history(pipeline.store, "1h", str.upper, now_s=clock.s)
        assert found["complete"]
        assert found["batches"] == 3
        assert found["at_s"][-2:] == [NOON, NOON + 60]
        assert found["changes"][-2:] == [40, 60]
        assert found["changes_per_s"][-2:] == [pytest.approx(40 / 60, abs=1e-3), 2.0]
        assert found["batch_changes"][-2:] == [20.0, 60.0]
        assert found["lag_ms"] == {"copy": [None] * 58 + [5000, 2000]}
        assert found["stage_ms"]["drain"][-2:] == [500.0, 500.0]
        assert found["stage_ms"]["merge"][-2:] == [250.0, 250.0]
        assert found["last_batch"][-2:] == [2, 3]
        assert found["run"][-3:] == [None, "RUN-2", "RUN-3"]
    day = HistoryReader().history(pipeline.store, "24h", now_s=clock.s)
    assert (day["step_s"], day["changes"][-1], sum(day["changes"])) == (300, 100, 100)
    curve = HistoryReader().curve(pipeline.store)
    assert len(curve["lag_ms"]) == 60


def test_a_reader_reads_each_file_once(pipeline: Any, clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made, reader, read = StageNotes(), HistoryReader(), list[str]()
    whole = SegmentStore.read_bytes
    monkeypatch.setattr(SegmentStore, "read_bytes", lambda self, path: read.append(path) or whole(self, path))
    for batch in range(1, 5):
        deliver(made, pipeline, batch)
        made.write(pipeline)
        assert reader.history(pipeline.store, "7d", now_s=clock.s)["batches"] == batch
        clock.s += 3600
    assert len(read) == len(set(read)) == 4


def test_time_that_is_over_leaves_the_rest_to_the_next_call(
    pipeline: Any, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = StageNotes()
    deliver(made, pipeline, 1)
    made.write(pipeline)
    reader = HistoryReader()
    with monkeypatch.context() as patch:
        patch.setattr("sluice.operations.history._READ_S", -1.0)
        found = reader.history(pipeline.store, "1h", now_s=clock.s)
        assert (found["complete"], found["batches"]) == (False, 0)
    assert reader.history(pipeline.store, "1h", now_s=clock.s)["batches"] == 1


def test_a_process_writes_every_half_minute_and_at_its_end(
    pipeline: Any, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = StageNotes()
    deliver(made, pipeline, 1)
    deliver(made, pipeline, 2)
    assert pipeline.store.list_files(FOLDER) == []
    made._written_s = {key: at - notes.WRITE_EVERY_S for key, at in made._written_s.items()}
    deliver(made, pipeline, 3)
    assert len(pipeline.store.list_files(FOLDER)) == 1
    made.write(pipeline)
    made.write(pipeline)  # nothing is left
    assert len(pipeline.store.list_files(FOLDER)) == 2
    (first, second) = (json.loads(pipeline.store.read_bytes(path)) for path in pipeline.store.list_files(FOLDER))
    assert first["format_version"] == second["format_version"] == 1


def test_a_store_that_fails_keeps_the_notes_for_the_next_time(
    pipeline: Any, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = StageNotes()
    deliver(made, pipeline, 1)
    with monkeypatch.context() as patch:

        def full(*_: Any) -> None:
            raise StorageUnavailable("the disk is full")

        patch.setattr(SegmentStore, "write_bytes", full)
        made.write(pipeline)
    made.write(pipeline)
    assert HistoryReader().history(pipeline.store, "1h", now_s=clock.s)["batches"] == 1


def test_a_run_leaves_notes_and_asks_zookeeper_nothing_for_them(tmp_path: Path) -> None:
    for made in pipe(tmp_path, "copy"):
        for number in range(3):
            made.commit(("insert", "a", (number, "v")))
        outcome = run_microbatches(made.made.runtime(), claim="test:notes", idle_wait_s=0.05)
        assert outcome.delivered
        found = HistoryReader().history(made.made.runtime().store, "1h", lambda claim: claim)
        assert found["batches"] == len(outcome.delivered)
        assert sum(found["changes"]) == 3
        assert set(found["stage_ms"]) == {"drain", "merge", "load.copy", "ack.copy"}
        assert max(lag for lag in found["lag_ms"]["copy"] if lag is not None) >= 0
        assert "test:notes" in found["run"]


def test_files_of_newer_versions_and_damaged_ones_are_left_out(pipeline: Any, clock: Any) -> None:
    folder = hour_folder(clock.s)
    stored = {"format_version": 1, "minutes": {str(NOON // 60): {"batches": 2, "changes": 7, "a_later_field": 1}}}
    pipeline.store.write_bytes(f"{folder}/1-a.json", json.dumps(stored).encode())
    pipeline.store.write_bytes(f"{folder}/2-b.json", json.dumps({**stored, "format_version": 2}).encode())
    pipeline.store.write_bytes(f"{folder}/3-c.json", b"{")
    found = HistoryReader().history(pipeline.store, "1h", now_s=clock.s)
    assert (found["batches"], sum(found["changes"])) == (2, 7)


def test_old_hours_are_removed(pipeline: Any, clock: Any) -> None:
    made = StageNotes()
    for at in (NOON - KEPT_S - 7200, NOON - KEPT_S + 7200, NOON):
        clock.s = at
        deliver(made, pipeline, 1)
        made.write(pipeline)
    clock.s = NOON
    assert prune_notes(pipeline.store, dry_run=True) == 1
    assert len(pipeline.store.folders(FOLDER)) == 3
    assert prune_notes(pipeline.store) == 1
    assert hour_folder(NOON - KEPT_S - 7200) not in pipeline.store.folders(FOLDER)
    assert len(pipeline.store.folders(FOLDER)) == 2
    assert time.time() == NOON
