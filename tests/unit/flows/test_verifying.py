"""Verification without a server: source and target in memory, rows compared by the target, a repair through a dump."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest

from sluice.errors import ConfigError, OutOfOrder
from sluice.operations.status import status
from sluice.operations.verify import table_check, units
from sluice.operations.verify import verify as flow
from sluice.operations.verify.progress import Pace, Progress
from sluice.operations.verify.result import KEPT_RESULTS, VerifyResult, keep, kept, named
from sluice.operations.verify.table_check import SeenKeys, ahead, hashes_of
from sluice.operations.verify.verify import VerifySpec, verify
from sluice.spark.local import LocalRunner
from sluice.targets.memory import compare
from sluice.targets.memory.target import MemoryTarget
from tests.support.twins.pipes import Pipe, delivering


def verified(made: Pipe, **asked: Any) -> VerifyResult:
    return verify(made.made.runtime(), VerifySpec(by="anna", **asked))


def test_equal_sides(one: Pipe) -> None:
    one.commit(*(("insert", "a", (i, f"v{i}")) for i in range(50)))
    one.deliver()
    with delivering(one):
        result = verified(one)
    [table] = result.tables
    assert (result.outcome, table.rows, table.equal, table.way) == ("equal", 50, 50, "rows")
    assert "equal, 50 rows" in status(one.made.runtime()).verified


@pytest.mark.promise("F5")
def test_differences_are_found_kept_and_repaired(one: Pipe) -> None:
    one.commit(*(("insert", "a", (i, f"v{i}")) for i in range(50)))
    one.deliver()
    rows = one.stores["copy"].tables[one.made.table].rows
    del rows[7,]
    rows[8,] = {"id": 8, "v": None}
    rows[900,] = {"id": 900, "v": "extra"}
    with delivering(one):
        result = verified(one, values=True)
        assert {(d.key, d.kind, d.columns, d.values) for d in result.tables[0].differences} == {
            (("7",), "missing", (), ()),
            (("8",), "different", ("v",), (("v8", None),)),
            (("900",), "extra", (), ()),
        }
        assert (result.outcome, result.tables[0].equal) == ("different", 48)
        assert named(one.made.runtime().store, "p", result.id) == result
        fixed = verified(one, repair=True)
        assert (fixed.outcome, fixed.tables[0].repaired, fixed.tables[0].equal) == ("equal", 3, 50)
    assert one.rows() == one.made.rows()
    with one.made.runtime().state() as state:
        assert [entry["rows"] for entry in state.audit.entries() if entry["what"] == "repair"] == [
            {str(one.made.table): 3}
        ]


@pytest.mark.parametrize("spread", [False, True], ids=["here", "by workers"])
def test_extra_rows_of_a_target_without_ranges_are_found_by_its_keys(
    one: Pipe, monkeypatch: pytest.MonkeyPatch, spread: bool
) -> None:
    one.commit(*(("insert", "a", (i, f"v{i}")) for i in range(50)))
    one.deliver()
    monkeypatch.setattr(MemoryTarget, "reconciler", lambda self: None)
    monkeypatch.setattr(flow, "MOST_RANGE_ROWS", 10)
    runtime = one.made.runtime()
    if spread:
        runtime.mode, runtime._runner = "connect", _Elsewhere()
        spark = runtime.pipeline.spark.model_copy(update={"from_changes": 10})
        runtime.pipeline = runtime.pipeline.model_copy(update={"spark": spark})
    rows = one.stores["copy"].tables[one.made.table].rows
    del rows[7,]
    for number in (-3, 900, 901):
        rows[number,] = {"id": number, "v": "extra"}
    with delivering(one):
        [table] = verify(runtime, VerifySpec(repair=True)).tables
        assert {(d.key, d.kind) for d in table.differences} == {
            (("7",), "missing"),
            *(((str(number),), "extra") for number in (-3, 900, 901)),
        }
        assert (table.way, table.repaired, table.extra) == ("rows", 1, 3)
        assert "a repair removes no rows" in table.note
        [sampled] = verified(one, sample=0.999).tables
        assert (sampled.way, sampled.extra) == ("rows of the source", 0)
        assert "a sample was asked for" in sampled.note


def test_a_key_is_known_again_by_its_hash() -> None:
    seen = SeenKeys()
    keys = [(str(number), "x'00'") for number in range(1000)]
    assert not seen.among(keys).any()
    for number in range(0, 1000, 100):
        seen.add(hashes_of(keys[number : number + 50]))
        assert seen.among(keys).sum() == number // 2 + 50
    assert seen.among([]).tolist() == []


def test_only_the_first_differences_are_listed_and_all_are_repaired(one: Pipe) -> None:
    one.commit(*(("insert", "a", (i, f"v{i}")) for i in range(50)))
    one.deliver()
    one.stores["copy"].tables[one.made.table].rows.clear()
    with delivering(one):
        result = verified(one, most=5, repair=True)
    assert (len(result.tables[0].differences), result.tables[0].repaired, result.outcome) == (5, 50, "equal")


@pytest.mark.slow
def test_nothing_is_kept_of_each_row_of_a_table_that_differs_altogether(
    one: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "MOST_EXTRA", 7)
    monkeypatch.setattr(table_check, "KEYS_A_LOOK", 10)
    monkeypatch.setattr(flow, "MOST_RANGE_ROWS", 20)
    monkeypatch.setattr(flow, "READ_BYTES", 1 << 40)
    one.commit(*(("insert", "a", (i, f"v{i}")) for i in range(150)))
    one.deliver()
    rows = one.stores["copy"].tables[one.made.table].rows
    rows.clear()
    rows.update({(i,): {"id": i, "v": "extra"} for i in range(-90, 0)} | {(5,): {"id": 5, "v": "w"}})
    with delivering(one):
        result = verified(one, most=3)
        [table] = result.tables
        assert (table.missing, table.different, table.extra, len(table.differences)) == (149, 1, 90, 3)
        assert (table.rows, table.equal) == (150, 0)
        fixed = verified(one, repair=True, most=0)
        assert (fixed.outcome, fixed.tables[0].repaired) == ("equal", 240)
    assert one.rows() == one.made.rows()


class _Elsewhere(LocalRunner):
    """Units travel as to other processes."""

    def run(self, function: Any, units: Any, **more: Any) -> list[Any]:
        return [pickle.loads(pickle.dumps(function(pickle.loads(pickle.dumps(unit))))) for unit in units]


@pytest.mark.parametrize("most", [1000, 0])
def test_ranges_of_a_large_table_are_compared_by_workers(one: Pipe, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(units, "MOST_SUSPECTS", most)  # more of a range are looked at in the task
    monkeypatch.setattr(flow, "MOST_RANGE_ROWS", 20)
    monkeypatch.setattr(flow, "READ_BYTES", 1 << 40)
    one.commit(*(("insert", "a", (i, f"v{i}")) for i in range(500)))
    one.deliver()
    rows = one.stores["copy"].tables[one.made.table].rows
    del rows[7,]
    rows[8,] = {"id": 8, "v": None}
    rows[900,] = {"id": 900, "v": "extra"}
    runtime = one.made.runtime()
    runtime.mode, runtime._runner = "connect", _Elsewhere()
    spark = runtime.pipeline.spark.model_copy(update={"from_changes": 100})
    runtime.pipeline = runtime.pipeline.model_copy(update={"spark": spark})
    with delivering(one):
        [table] = verify(runtime, VerifySpec()).tables
    assert {(d.key, d.kind) for d in table.differences} == {
        (("7",), "missing"), (("8",), "different"), (("900",), "extra"),
    }  # fmt: skip
    assert (table.rows, table.equal) == (500, 498)


def test_a_pipeline_that_stands_still_is_said(one: Pipe) -> None:
    one.commit(("insert", "a", (1, "x")))
    with pytest.raises(OutOfOrder, match="nothing moved for 0 s"):
        verified(one, patience_s=0.2)


def test_what_cannot_be_asked_for(one: Pipe) -> None:
    with pytest.raises(ConfigError, match="is not captured"):
        verified(one, tables=["x.y"])
    with pytest.raises(ConfigError, match="a sample of"):
        verified(one, sample=1.5)
    with pytest.raises(ConfigError, match="nix"):
        verified(one, targets=["nix"])


def test_a_target_that_gets_every_change_is_refused(one: Pipe) -> None:
    config = one.made.case.config
    every = tuple(target.model_copy(update={"changes": "all"}) for target in config.targets)
    one.made.case.config = config.model_copy(update={"targets": every})
    with pytest.raises(ConfigError, match="cannot be verified: it gets every change"):
        verified(one)


def test_old_results_go_and_odd_ones_are_left_out(one: Pipe) -> None:
    store = one.made.runtime().store
    for number in range(KEPT_RESULTS + 3):
        keep(store, VerifyResult(id=f"2026-{number:04d}", pipeline="p"))
    store.write_bytes("verify/2027.json", b'{"format_version": 2}')
    found = kept(store)
    assert (len(found), found[-1].id) == (KEPT_RESULTS - 1, f"2026-{KEPT_RESULTS + 2:04d}")
    with pytest.raises(ConfigError, match="no result 'x'"):
        named(store, "p", "x")


def test_what_a_thread_ahead_raises_is_raised_and_an_early_end_stops_it() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        list(ahead(items(), 2))
    endless = iter(range(10**9))
    for number in ahead(endless, 2):
        if number == 5:
            break
    assert next(endless) < 100


def test_progress_says_the_rate_and_the_time_that_is_left() -> None:
    clock = iter([10.0, 10.5, 14.0, 20.0])
    pace = Pace(lambda: next(clock))
    said = [pace.words(Progress("s.t", "copy", rows, 1_000)) for rows in (0, 10, 400, 1_000)]
    assert said[:2] == [f"verifying s.t at copy: {rows} of about 1,000 rows" for rows in (0, 10)]
    assert said[2] == "verifying s.t at copy: 400 of about 1,000 rows, 100 rows/s, 6 s left"
    assert said[3].endswith(", 100 rows/s, 0 s left")
