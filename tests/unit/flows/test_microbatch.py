"""Loops: one run that delivers batch after batch, without a server.

Whatever ends one, its run's own tasks finish what it left.
"""

from __future__ import annotations

import itertools
import os
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sluice.coordination.memory import MemoryZnodes
from sluice.errors import DecodeError, LoadError, RuleError
from sluice.flows import job, stages
from sluice.flows.job import MicrobatchOutcome, run_microbatches, run_stage
from sluice.flows.load.isolation import catch_up, deliver
from sluice.flows.load.load import LoadOutcome
from sluice.flows.stage_sums import DeliveredBatch, StageSums, table
from sluice.flows.stages import stages_of
from sluice.flows.transform.merge import merge
from sluice.operations import control
from sluice.operations.metrics import gauges, samples
from sluice.operations.status import stages_claimed, status
from sluice.sources.memory.log import RowChange
from tests.support.running.waiting import ended
from tests.support.twins.pipes import Pipe

_claims = itertools.count(1)


class Killed(BaseException):
    """The process ends here."""


def small_batches(made: Pipe, changes: int = 1, **run: Any) -> None:
    """Each batch closes after so many changes; what else the file says of runs."""
    config = made.made.case.config
    data = config.model_dump(mode="json", by_alias=True, exclude_unset=True)
    data["capture"]["batch"] = {"max_changes": changes}
    made.made.case.config = type(config).model_validate({**data, **({"run": run} if run else {})})


def insert(made: Pipe, *numbers: int) -> None:
    for number in numbers:
        made.commit(("insert", "a", (number, f"v{number}")))


def go(made: Pipe, claim: str = "", **named: Any) -> MicrobatchOutcome:
    claim = claim or f"test:loops:{next(_claims)}"
    return run_microbatches(made.made.runtime(), claim=claim, idle_wait_s=0.05, **named)


def finish(made: Pipe, claim: str, last: int) -> list[bool]:
    """What the run's own tasks do. Returns for each target whether it has all of it."""
    runtime = made.made.runtime()
    for stage in stages_of(runtime.pipeline, runtime.rules_folder)[1:]:
        run_stage(runtime, stage.name, claim=claim, marked=("drain", *stage.needs))
    return [made.acknowledged(target.name) >= last for target in runtime.pipeline.targets]


def sums_of(made: Pipe, claim: str, stage: str) -> StageSums:
    with made.made.runtime().state() as state:
        progress = state.runs.read(claim, stage)
    return StageSums.from_json(progress.sums) if progress is not None and progress.sums else StageSums()


def unmerged(made: Pipe, claim: str) -> list[int]:
    with made.made.runtime().state() as state:
        return [int(batch.number) for batch in state.batches.claimed_all(claim) if batch.needs_merge]


def at_batch(number: int, do: Callable[[], object]) -> Callable[[DeliveredBatch], None]:
    def told(carried: DeliveredBatch) -> None:
        if carried.batch == number:
            do()

    return told


def waiting(made: Pipe) -> list[int]:
    with made.made.runtime().state() as state:
        return state.undelivered()


def ruled(made: Pipe, text: str) -> None:
    rules = made.made.folder / "rules"
    (rules / "engine.yaml").write_text("rules: [{name: up, path: up.py}]\n")
    (rules / "up.py").write_text(text)
    config = made.made.case.config
    made.made.case.config = config.model_copy(update={"rules": "engine.yaml"})


@pytest.mark.promise("B7")
def test_a_load_delivers_the_batches_that_wait_in_their_order(one: Pipe) -> None:
    insert(one, 1)
    first = one.made.drain(deliver=False).batch
    one.commit(("update", "a", (1, "newest")))
    second = one.made.drain(deliver=False).batch
    runtime = one.made.runtime()
    for batch in (second, first):
        merge(runtime, batch)
    outcome = deliver(runtime, "copy", second)
    assert isinstance(outcome, LoadOutcome)
    assert (outcome.batches, one.rows()) == (2, {1: "newest"})


MEETS_THE_OTHER = """
import time
from pathlib import Path

def transform(row, context):
    Path(FOLDER, str(row["id"])).touch()
    ends = time.monotonic() + 60
    while len(list(Path(FOLDER).iterdir())) < 2:
        if time.monotonic() > ends:
            raise TimeoutError("the other batch is not transformed at the same time")
        time.sleep(0.01)
    return row
"""


@pytest.mark.promise("B6")
def test_two_batches_are_transformed_at_the_same_time(one: Pipe, tmp_path: Path) -> None:
    """The rule returns the row of one batch only when it has that of the other one, too."""
    (met := tmp_path / "met").mkdir()
    ruled(one, MEETS_THE_OTHER.replace("FOLDER", repr(str(met))))
    batches = []
    for number in (1, 2):
        insert(one, number)
        batches.append(one.made.drain(deliver=False).batch)
    with ThreadPoolExecutor(2) as workers:
        merged = list(workers.map(lambda batch: merge(one.made.runtime(), batch), batches))
    assert [(done.batch, done.rows) for done in merged] == [(1, 1), (2, 1)]


@pytest.mark.promise("B5", "B7")
@pytest.mark.parametrize("window", [1, 2, 3])
def test_a_loop_delivers_and_acknowledges_batch_after_batch(one: Pipe, window: int) -> None:
    small_batches(one, 2)
    one.made.case.config = one.made.case.config.model_copy(update={"window": window})
    insert(one, *range(10))
    told: list[DeliveredBatch] = []
    outcome = go(one, "test:one:1", on_delivered=told.append)
    assert (outcome.last.batch, outcome.last.merged, outcome.ended_by) == (5, True, "idle")
    assert [c.batch for c in outcome.delivered] == [c.batch for c in told] == [1, 2, 3, 4, 5]
    assert one.rows() == one.made.rows() == {n: f"v{n}" for n in range(10)}
    assert (one.acknowledged(), waiting(one)) == (5, [])
    lines = table(outcome.delivered).splitlines()
    assert [line.split()[0] for line in lines] == ["batch", "1", "2", "3", "4", "5"]
    for stage, rows in (("drain", 10), ("merge", 10), ("load.copy", 10), ("ack.copy", 0)):  # what its task shows
        sums = sums_of(one, "test:one:1", stage)
        assert (sums.batches, sums.rows, sums.first) == (5, rows, 1), stage
        assert [done.batch for done in sums.newest] == [1, 2, 3, 4, 5]
        assert sums.seconds > 0
    assert go(one).last.batch is None
    assert sums_of(one, "test:one:2", "merge").batches == 0


def test_each_fused_rule_is_seen_in_what_the_merge_did_and_in_the_metrics(one: Pipe) -> None:
    ruled(one, "def transform(row, context):\n    return {**row, 'v': row['v'].upper()} if row['id'] % 2 else None\n")
    small_batches(one, 2)
    insert(one, *range(6))
    go(one, "test:one:1")
    [rule] = sums_of(one, "test:one:1", "merge").result()["rules"]
    assert (rule["name"], rule["rows_in"], rule["rows_out"], rule["changed"], rule["errors"]) == ("up", 6, 3, 3, 0)
    assert rule["seconds"] > 0
    stages = {one["stage"]: one for one in stages_claimed(one.made.runtime(), "test:one:1")}
    assert list(stages) == ["drain", "merge", "load.copy", "ack.copy"]
    assert (stages["merge"]["rows"], stages["load.copy"]["rows"], stages["merge"]["rules"]) == (3, 3, [rule])
    found = gauges(samples(status(one.made.runtime())))
    base = f"sluice.{one.made.runtime().name}.rules.up"
    assert [found[f"{base}.{name}"] for name in ("rows_in", "rows_out", "changed", "errors", "dead_letters")] == [
        2,
        1,
        1,
        0,
        0,
    ]
    assert found[f"{base}.seconds"] > 0


def test_the_claim_of_a_loop_gets_its_last_batch_again_and_no_further_one(one: Pipe) -> None:
    small_batches(one)
    insert(one, 1, 2, 3)
    assert go(one, "test:one:1").last.batch == 3
    insert(one, 4)
    again = go(one, "test:one:1")
    assert (again.last.batch, again.last.adopted, again.last.merged, again.delivered) == (3, True, True, ())
    assert one.acknowledged() == 3
    assert go(one).last.batch == 4


@pytest.mark.parametrize(("run", "batches"), [({"max_batches": 2}, 2), ({"max_time": "1ms"}, 1)])
def test_a_loop_ends_at_its_limits(one: Pipe, run: dict[str, Any], batches: int) -> None:
    small_batches(one, **run)
    insert(one, 1, 2, 3)
    outcome = go(one)
    assert (outcome.last.batch, outcome.ended_by) == (batches, f"run.{next(iter(run))}")
    assert one.acknowledged() == batches


@pytest.mark.parametrize("run", [{"max_batches": 1}, {"max_time": "0s"}])
def test_a_run_of_one_batch_leaves_it_to_its_tasks(one: Pipe, run: dict[str, Any]) -> None:
    small_batches(one, **run)
    insert(one, 1, 2)
    outcome = go(one, "test:one:1")
    assert (outcome.last.batch, outcome.last.merged, outcome.delivered) == (1, False, ())  # the merge is a task, too
    assert one.acknowledged() == 0
    assert finish(one, "test:one:1", 1) == [True]
    assert one.rows() == {1: "v1"}


def test_a_reason_to_stop_ends_a_loop(one: Pipe) -> None:
    small_batches(one)
    insert(one, 1, 2, 3)
    outcome = go(one, stop=lambda: "the file changed")
    assert (outcome.last.batch, outcome.ended_by, one.acknowledged()) == (1, "the file changed", 1)


def test_a_change_of_definitions_has_tasks_of_its_own(one: Pipe) -> None:
    small_batches(one)
    insert(one, 1)
    one.made.case.store.define(one.made.case.store.tables[one.made.table])
    insert(one, 2)
    outcome = go(one, "test:one:1")
    assert (outcome.last.batch, outcome.last.closed_by, outcome.ended_by) == (2, "ddl", "a change of definitions")
    assert (one.acknowledged(), waiting(one)) == (1, [2])
    finish(one, "test:one:1", 2)
    assert go(one).last.batch == 3
    assert one.rows() == {1: "v1", 2: "v2"}


def test_a_large_batch_has_tasks_of_its_own(one: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    small_batches(one, 2)
    one.made.case.config = one.made.case.config.model_copy(
        update={"spark": one.made.case.config.spark.model_copy(update={"from_changes": 0})}
    )
    insert(one, 1, 2)
    one.commit(*(("insert", "a", (n, "x")) for n in range(10, 20)))
    insert(one, 3)
    monkeypatch.setattr(job, "SIDE_BY_SIDE", 10)
    outcome = go(one, "test:one:1")
    assert (outcome.last.batch, outcome.ended_by, outcome.last.merged) == (2, "a large batch", False)
    assert (one.acknowledged(), waiting(one)) == (1, [2])
    finish(one, "test:one:1", 2)
    go(one)
    assert one.rows() == one.made.rows()


def test_a_loop_begins_after_the_batches_of_other_runs(one: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for them a little; if they stay, its batch is one for the tasks, in their order."""
    small_batches(one)
    monkeypatch.setattr(job, "EARLIER_WAIT_S", 0.2)
    insert(one, 1)
    one.made.drain(claim="test:another:1", until=None, deliver=False)
    insert(one, 2, 3)
    outcome = go(one, "test:one:1")
    assert (outcome.last.batch, outcome.delivered) == (2, ())
    assert "before this one" in outcome.ended_by
    finish(one, "test:another:1", 1)
    finish(one, "test:one:1", 2)
    assert go(one).last.batch == 3
    assert one.rows() == {1: "v1", 2: "v2", 3: "v3"}


def test_what_cannot_be_read_ends_a_loop_and_is_raised_by_the_next_run(one: Pipe) -> None:
    small_batches(one)
    insert(one, 1, 2)
    one.made.case.store.commit(RowChange(one.made.table, None, {"id": 9, "v": "y"}), damage="an event of kind 99")
    outcome = go(one)
    assert (outcome.last.batch, one.acknowledged()) == (2, 2)
    assert "kind 99" in outcome.ended_by
    with pytest.raises(DecodeError, match="kind 99"):
        go(one)


def test_a_target_that_fails_ends_a_loop_and_its_task_shows_the_error(one: Pipe) -> None:
    small_batches(one)
    insert(one, 1, 2)
    one.commit(("insert", "a", (3, "bad")))
    insert(one, 4, 5)
    one.refuse("a constraint")
    outcome = go(one, "test:one:1")
    last = int(outcome.last.batch or 0)
    assert last in {3, 4, 5}  # those after it may have been made meanwhile
    assert "a constraint" in outcome.ended_by
    assert one.acknowledged() == 2
    with pytest.raises(LoadError, match="a constraint"):
        finish(one, "test:one:1", last)
    one.refuse("")
    assert finish(one, "test:one:1", last) == [True]
    go(one)
    assert one.rows() == one.made.rows()
    assert waiting(one) == []


def test_a_target_that_is_quarantined_in_mid_loop_stops_no_other(two: Pipe) -> None:
    small_batches(two)
    insert(two, 1, 2)
    two.commit(("insert", "a", (3, "bad")))
    insert(two, 4, 5, 6)
    two.refuse("no", "archive")
    outcome = go(two, "test:two:1")
    assert (outcome.last.batch, outcome.ended_by) == (6, "idle")
    assert [dict(c.loaded)["archive"] is None for c in outcome.delivered] == [False, False, True, True, True, True]
    assert (two.acknowledged("copy"), two.acknowledged("archive")) == (6, 2)
    assert finish(two, "test:two:1", 6) == [True, False]
    two.refuse("", "archive")
    assert not catch_up(two.made.runtime(), "archive").quarantined
    assert two.rows("archive") == two.rows("copy") == two.made.rows()
    assert finish(two, "test:two:1", 6) == [True, True]


def test_a_rule_that_starts_failing_is_the_merges_to_report(one: Pipe) -> None:
    small_batches(one)
    right = "def transform(row, context):\n    return {**row, 'v': row['v'].upper()}\n"
    ruled(one, right)
    insert(one, 1)
    assert len(go(one, "test:one:1").delivered) == 1
    insert(one, *range(2, 13))
    broken = one.made.folder / "rules/up.py"
    outcome = go(one, "test:one:2", on_delivered=at_batch(3, lambda: broken.write_text(right.replace("'v'", "'w'"))))
    done = one.acknowledged()
    assert 3 <= done < 12  # those within the window may have been merged meanwhile
    assert not outcome.last.merged
    assert "rule 'up'" in outcome.ended_by
    last = int(outcome.last.batch or 0)
    assert unmerged(one, "test:one:2") == list(range(done + 1, last + 1))
    with pytest.raises(RuleError, match="rule 'up'"):
        finish(one, "test:one:2", last)
    broken.write_text(right)
    finish(one, "test:one:2", last)
    go(one)
    assert one.rows() == {n: f"V{n}" for n in range(1, 13)}


def test_slow_rules_have_tasks_of_their_own(one: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    small_batches(one)
    ruled(one, "def transform(row, context):\n    return row\n")
    insert(one, 1)
    go(one, "test:one:1")
    monkeypatch.setattr(stages, "SLOW_RULES_S", -1.0)
    insert(one, 2)
    outcome = go(one, "test:one:2")
    assert (outcome.delivered, outcome.last.merged) == ((), False)
    assert "slow" in outcome.ended_by
    finish(one, "test:one:2", 2)
    assert one.rows() == one.made.rows()


@pytest.mark.parametrize("action", ["pause", "restart", "rollback"])
def test_what_a_person_says_in_mid_loop_is_obeyed(one: Pipe, action: str) -> None:
    small_batches(one)
    insert(one, *range(1, 9))

    def act() -> None:
        runtime = one.made.runtime()
        more = {"dry_run": False} if action == "rollback" else {}
        getattr(control, action)(runtime, by="anna", **more)

    outcome = go(one, "test:one:1", on_delivered=at_batch(3, act))
    last = int(outcome.last.batch or 0)
    assert 3 <= last < 8
    if action == "pause":
        control.resume(one.made.runtime(), by="anna")
    assert go(one, "test:one:1").last.batch == last
    assert finish(one, "test:one:1", last) == [True]
    go(one)
    assert one.rows() == one.made.rows()
    assert waiting(one) == []


def killed(made: Pipe, claim: str, tell: Callable[[DeliveredBatch], None]) -> None:
    """A loop that may be killed; like a process, it leaves no thread."""
    before = set(threading.enumerate())
    with suppress(Killed):
        go(made, claim, on_delivered=tell)
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith(("merge", "rule.", "load.", "ack.")):
            ended(thread, 60)


@pytest.mark.promise("E5")
@pytest.mark.parametrize("seed", range(int(os.environ.get("SLUICE_TEST_VALUES", "10"))))
def test_a_loop_that_is_killed_anywhere_loses_and_doubles_nothing(
    two: Pipe, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Killed at any write to ZooKeeper, by either thread; then the same claim tries again, is killed again, and its
    tasks finish.
    """
    choose = random.Random(seed)
    small_batches(two)
    two.made.case.config = two.made.case.config.model_copy(update={"window": choose.choice((1, 2, 3))})
    own, left = MemoryZnodes.transact, [0]
    moves: list[int] = []

    def counted(self: MemoryZnodes, steps: Any) -> None:
        left[0] -= 1
        if left[0] <= 0 and left[0] > -50:  # the whole process ends, with all its threads
            raise Killed
        own(self, steps)

    monkeypatch.setattr(MemoryZnodes, "transact", counted)
    number = 0
    for run in range(4):
        claim = f"test:killed:{run}"
        for _ in range(choose.randint(1, 5)):
            number += 1
            insert(two, number)
            if number > 2 and choose.random() < 0.5:
                two.commit(("update", "a", (number - 1, f"w{number}")))
        for _attempt in range(choose.choice((1, 2, 3))):
            left[0] = choose.randint(1, 60)
            killed(two, claim, lambda carried: moves.append(carried.batch))
        left[0] = 10**9
        outcome = go(two, claim)
        if outcome.last.batch is not None:
            assert finish(two, claim, outcome.last.batch) == [True, True]
    left[0] = 10**9
    for _ in range(8):
        done = go(two)
        if done.last.batch is None:
            break
        assert finish(two, "test:last", done.last.batch) == [True, True]
    assert two.rows("copy") == two.rows("archive") == two.made.rows()
    assert waiting(two) == []
    assert moves == sorted(set(moves))
