"""Rows of old changes are sent as the source has them now, through the flows of a real pipeline."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.config.connections import Endpoint
from sluice.errors import SourceUnavailable
from sluice.flows.load.load import load
from sluice.flows.run import run
from sluice.flows.runtime import Runtime
from sluice.flows.transform.merge import merge
from sluice.flows.transform.read_back import ReadBack, replaced
from sluice.sources.memory.source import MemorySource
from tests.support.twins.pipes import Pipe, pipe


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Pipe]:
    yield from pipe(tmp_path, "copy", capture={"batch": {"max_changes": 1}})


def runtime(made: Pipe, after: timedelta | None = timedelta()) -> Runtime:
    found = made.made.runtime()
    found.read_back_after = after
    return found


def deliver(made: Pipe, batches: int, after: timedelta | None = timedelta()) -> None:
    for _ in run(runtime(made, after), batches=batches):
        pass


def test_a_row_is_sent_as_it_is_now(made: Pipe) -> None:
    """Not as the log has it; later changes of it come all the same, and the end is the source's."""
    made.commit(("insert", "a", (1, "x")))
    made.commit(("insert", "a", (2, "x")))
    made.commit(("insert", "a", (3, "x")))
    made.commit(("update", "a", (1, "y")))
    made.commit(("delete", "a", (2,)))
    deliver(made, 1)
    assert made.rows() == {1: "y"}
    deliver(made, 1)
    assert made.rows() == {1: "y"}  # 2 is gone by now
    made.commit(("insert", "a", (2, "again")))
    deliver(made, 3)
    assert made.rows() == {1: "y", 2: "again", 3: "x"}
    deliver(made, 1)
    assert made.rows() == made.made.rows()


def test_what_is_young_is_sent_as_logged(made: Pipe) -> None:
    for after in (timedelta(hours=1), None):
        made.commit(("insert", "a", (1, "x")))
        made.commit(("update", "a", (1, "y")))
        deliver(made, 1, after)
        assert made.rows() == {1: "x"}
        made.commit(("delete", "a", (1,)))
        deliver(made, 2, after)


def test_rules_see_what_is_sent(made: Pipe) -> None:
    folder = made.made.folder / "rules"
    (folder / "shout.py").write_text("def transform(row, context):\n    return {**row, 'v': row['v'].upper()}\n")
    (folder / "engine.yaml").write_text("rules: [{name: shout, path: shout.py, type: row}]\n")
    made.made.case.config = made.made.case.config.model_copy(update={"rules": "engine.yaml"})
    made.commit(("insert", "a", (1, "x")))
    made.commit(("update", "a", (1, "y")))
    deliver(made, 1)
    assert made.rows() == {1: "Y"}


def test_what_waited_for_its_target_is_read_again(made: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch was merged when its change was young, and is loaded much later."""
    made.commit(("insert", "a", (1, "x")))
    made.made.drain(deliver=False)
    late = runtime(made, timedelta(seconds=60))
    merge(late, 1)
    made.commit(("update", "a", (1, "y")))
    hour = iter([3600.0])
    import time

    clock = SimpleNamespace(time=lambda: time.time() + next(hour, 0.0), monotonic=time.monotonic)
    monkeypatch.setattr("sluice.flows.load.load.time", clock)
    monkeypatch.setattr("sluice.flows.transform.read_back.age_limit_us", lambda after: 2**62)
    load(late, "copy", 1)
    assert made.rows() == {1: "y"}


def test_a_source_that_is_gone_holds_nothing_back(made: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was captured of it is delivered as logged, whether it is gone before the merge or meanwhile."""

    def gone(*_: object, **__: object) -> None:
        raise SourceUnavailable("it is gone")

    for number, verb in enumerate(("open", "open_chunks"), 1):
        made.commit(("insert", "a", (number, "x")))
        made.made.drain(deliver=False)
        made.commit(("update", "a", (number, "y")))
        with monkeypatch.context() as patch:
            patch.setattr(MemorySource, verb, gone)
            load(runtime(made), "copy", 2 * number - 1)
        assert made.rows()[number] == "x"
        deliver(made, 2)
        assert made.rows()[number] == "y"


def test_it_travels_and_tells_no_secret(made: Pipe) -> None:
    with made.made.runtime().state() as state:
        there = made.made.runtime().at_workers(state)
    reads = ReadBack(there, 0, frozenset({made.made.table}))
    assert pickle.loads(pickle.dumps(reads)).tables == reads.tables
    secret = Endpoint("e", "mysql", "h", 1, "u", "hidden password", "s", {})
    there.resolver = type(there.resolver)({"x": secret})  # type: ignore[call-arg]
    assert "hidden password" not in repr(reads)


BEFORE = pa.struct([("id", pa.int64()), ("v", pa.int64())])
ROWS = st.dictionaries(st.integers(0, 9), st.tuples(st.sampled_from("iud"), st.booleans()), min_size=1)


@given(rows=ROWS, now=st.dictionaries(st.integers(0, 9), st.integers(0, 9)), asked=st.sets(st.integers(0, 9)))
def test_each_row_is_what_is_there_now_or_gone(
    rows: dict[int, tuple[str, bool]], now: dict[int, int], asked: set[int]
) -> None:
    keys = sorted(rows)
    merged = pa.table({
        "id": pa.array(keys, pa.int64()),
        "v": pa.array([-1] * len(keys), pa.int64()),
        "_op": [rows[key][0] for key in keys],
        "_before": pa.array([{"id": key, "v": -2} if rows[key][1] else None for key in keys], BEFORE),
    })
    places = [place for place, key in enumerate(keys) if key in asked]
    found = pa.table({"v": pa.array(list(now.values()), pa.int64()), "id": pa.array(list(now), pa.int64())})
    at = [list(now).index(keys[place]) if keys[place] in now else -1 for place in places]
    result = replaced(merged, np.array(places, np.int64), np.array(at, np.int64), found)
    assert result.schema == merged.schema
    for key, row in zip(keys, result.to_pylist(), strict=True):
        op, had = rows[key]
        expected = (op, -1)
        if key in asked:
            expected = ("i" if op == "d" else op, now[key]) if key in now else ("d", -1)
        assert (row["id"], row["_op"], row["v"]) == (key, *expected)
        assert (row["_before"] is not None) == had


@given(rows=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 2)), min_size=1))
def test_what_the_log_does_not_change_counts_as_unchanged(rows: list[tuple[int, int, int]]) -> None:
    """So that a column that is somebody else's is not sent; one that was changed is what it is now."""
    then, logged, now = zip(*rows, strict=True)
    keys = list(range(len(rows)))
    before = pa.array([{"id": key, "v": old} for key, old in zip(keys, then, strict=True)], BEFORE)
    merged = pa.table({"id": keys, "v": logged, "_op": ["u"] * len(keys), "_before": before})
    at = np.arange(len(keys))
    result = replaced(merged, at, at, pa.table({"id": keys, "v": now})).to_pylist()
    assert [row["v"] for row in result] == list(now)
    for row, old, new in zip(result, then, logged, strict=True):
        assert row["_before"]["v"] == (old if old != new else row["v"])
