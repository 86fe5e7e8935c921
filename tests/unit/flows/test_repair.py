"""What a merge takes for not seen by the main site: where that is not known, everything."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from sluice.coordination.state import PipelineState
from sluice.flows.transform.repair import MOST_UNSEEN, Repair, plan_repair
from sluice.model.load_marks import MarkRules
from sluice.segments.conflicts import ConflictRecord, kept_conflicts, note_conflicts, total_conflicts, write_sent
from sluice.segments.manifest import SegmentManifest
from sluice.segments.store import SegmentStore


@pytest.fixture
def store(tmp_path: Path) -> SegmentStore:
    return SegmentStore(tmp_path.as_uri(), "b_to_a")


def planned(
    store: SegmentStore, batch: int, saw: int | None, merged: list[int], *, repairs: bool = True
) -> Repair | None:
    """``merged``: batches that are drained and not merged yet; a merge notes that they send the key 5."""
    rules = MarkRules({}, sends_back=True, partner="a_to_b", repairs=repairs)

    def record(number: int) -> Any:
        return SimpleNamespace(dropped=False, changeset=None, stages=()) if number in merged else None

    manifest = SimpleNamespace(batch=batch, loads_saw=saw, files=())
    return plan_repair(
        rules,
        (),
        store,
        cast(PipelineState, SimpleNamespace(batches=SimpleNamespace(get=record))),
        cast(SegmentManifest, manifest),
        merged=lambda number: write_sent(store, number, np.array([5], np.uint64)),
        definitions=lambda: None,
    )


def test_keys_of_the_batches_that_were_not_seen(store: SegmentStore) -> None:
    for number in (1, 2, 3):
        write_sent(store, number, np.array([number], np.uint64))
    found = planned(store, 4, 1, [])
    assert found is not None
    assert found.unseen is not None
    assert found.unseen.tolist() == [2, 3]


def test_a_batch_that_waits_is_merged_first(store: SegmentStore) -> None:
    write_sent(store, 2, np.array([2], np.uint64))
    found = planned(store, 4, 1, [3])
    assert found is not None
    assert found.unseen is not None
    assert found.unseen.tolist() == [2, 5]


@pytest.mark.parametrize(
    ("batch", "saw"), [(4, 1), (MOST_UNSEEN + 3, 1), (4, None)], ids=["gone", "too many", "captured again"]
)
def test_what_is_not_known_may_be_in_conflict(store: SegmentStore, batch: int, saw: int | None) -> None:
    found = planned(store, batch, saw, [])
    assert found is not None
    assert found.unseen is None
    assert not found.loops_back


def test_looping_back_only_counts(store: SegmentStore) -> None:
    found = planned(store, 4, 0, [], repairs=False)
    assert found is not None
    assert found.loops_back
    assert planned(store, 4, None, [], repairs=False) is None


def test_the_list_is_bounded_and_the_number_is_not(store: SegmentStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.segments.conflicts.KEPT", 3)
    monkeypatch.setattr("sluice.segments.conflicts.LISTED", 2)
    one = ConflictRecord(schema_="s", table="t", key={"id": "1"}, main=None, other=None, at_us=1)
    for number in range(1, 8):
        note_conflicts(store, number, 10, [one] * 5)
    note_conflicts(store, 7, 4, [one])  # merged again
    assert total_conflicts(store) == 64
    assert [(batch.batch, batch.count, len(batch.listed)) for batch in kept_conflicts(store, 9)] == [
        (7, 4, 1), (6, 10, 2), (5, 10, 2),
    ]  # fmt: skip
