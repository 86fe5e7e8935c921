"""A table is complete up to a time: never too early, also where nothing happens, and each time is told once."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sluice.config.pipeline import CompleteConfig
from sluice.coordination.acknowledgements import Acknowledgements
from sluice.coordination.completions import KEPT, Completions
from sluice.coordination.memory import MemoryTree
from sluice.errors import CoordinationUnavailable, PreflightError
from sluice.model.completeness import Settled, held_position, is_complete
from sluice.model.offset import Offset
from sluice.operations.check import check
from sluice.operations.completeness import TableWatch, Writer, complete_uri, confirm, take, watch
from sluice.sources.memory.log import RowChange
from sluice.sources.memory.source import MemorySession
from tests.support.twins.pipes import Pipe, pipe

SECOND = 1_000_000


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Pipe]:
    yield from pipe(tmp_path, "copy", "other")


@dataclass
class Clock:
    """The clock of the source."""

    now: int = 1_790_000_000 * SECOND

    def __call__(self) -> int:
        return self.now


def clocked(one: Pipe) -> Clock:
    made = Clock()
    one.made.case.store.clock = made
    return made


def watching(one: Pipe, until_us: int, target: str = "copy") -> TableWatch:
    return watch(one.made.runtime(), target, until_us)


def why(seen: TableWatch) -> list[str]:
    return [state.why for state in seen.look().values()]


# -- the rule ----------------------------------------------------------------------------------------------------------


def at(place: int, server: str = "s") -> Offset:
    return Offset.at(server, "log.000001", place)


def test_both_the_settled_time_and_the_held_position_count() -> None:
    assert is_complete(50, Settled(50, at(7)), at(7))
    assert is_complete(50, Settled(60, at(7)), at(8))
    assert not is_complete(50, Settled(49, at(7)), at(8)), "something earlier may come"
    assert not is_complete(50, Settled(60, at(7)), at(6)), "the target lacks something"
    assert not is_complete(50, Settled(60, at(7)), at(7, "another")), "positions of two logs say nothing"


def test_a_target_that_has_every_batch_holds_what_is_captured() -> None:
    assert held_position(at(9), 4, at(5), 3) == at(9)
    assert held_position(at(9), 4, at(5), 2) == at(5)


@pytest.mark.parametrize(
    ("every", "cron"),
    [("5m", "*/5 * * * *"), ("1h", "0 */1 * * *"), ("6h", "0 */6 * * *"), ("1d", "0 0 * * *")],
)
def test_times_are_parts_of_an_hour_or_a_day(every: str, cron: str) -> None:
    assert CompleteConfig.model_validate({"every": every}).cron == cron


@pytest.mark.parametrize("wrong", [{"every": "7m"}, {"every": "2d"}, {"every": "90s"}, {"timezone": "Mars/Olympus"}])
def test_other_times_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"write 5m|no time zone"):
        CompleteConfig.model_validate(wrong)


# -- through a pipeline ------------------------------------------------------------------------------------------------


def test_an_idle_table_becomes_complete_by_the_clock_of_its_source(one: Pipe) -> None:
    clock = clocked(one)
    one.commit(("insert", "a", (1, "x")))
    one.deliver()
    midnight = clock.now + SECOND
    seen = watching(one, midnight)
    assert "still committing" in why(seen)[0]
    clock.now = midnight
    assert why(seen) == [""]


def test_what_is_captured_and_not_delivered_holds_it_back(one: Pipe) -> None:
    clock = clocked(one)
    one.commit(("insert", "a", (1, "x")))
    clock.now += SECOND
    seen = watching(one, clock.now)
    assert "has to reach" in why(seen)[0]
    one.made.drain(deliver=False)
    assert "has to reach" in why(seen)[0]
    one.commit(("insert", "a", (2, "x")))
    one.deliver()
    assert why(seen) == [""], "what came later is not waited for"


def test_a_transaction_that_is_being_committed_is_waited_for(one: Pipe) -> None:
    clock = clocked(one)
    finish = one.made.case.store.committing_later(RowChange(one.made.table, None, {"id": 1, "v": "x"}))
    clock.now += SECOND
    seen = watching(one, clock.now)
    one.deliver()
    assert "still committing" in why(seen)[0]
    finish()
    assert "has to reach" in why(seen)[0]
    one.deliver()
    assert why(seen) == [""]


def test_a_copy_of_the_table_holds_it_back(one: Pipe) -> None:
    from sluice.flows.dump.start import start
    from sluice.model.dumps import Tuning

    clock = clocked(one)
    one.commit(("insert", "a", (1, "x")))
    one.deliver()
    start(one.made.runtime(), tuning=Tuning(chunk_rows=10, parallelism=1))
    one.deliver()
    [state] = watching(one, clock.now).look().values()
    assert state.is_blocked
    assert "a copy of it runs" in state.why


def test_dead_letters_of_a_table_hold_it_back(tmp_path: Path) -> None:
    for one in pipe(tmp_path, "copy", on_error="dead_letter"):
        clock = clocked(one)
        one.refuse("no")
        one.commit(("insert", "a", (1, "bad")))
        one.deliver()
        [state] = watching(one, clock.now).look().values()
        assert state.is_blocked
        assert "dead letters" in state.why


def test_each_target_is_complete_by_itself(one: Pipe) -> None:
    clock = clocked(one)
    one.commit(("insert", "a", (1, "x")))
    number = one.made.drain(deliver=False).batch
    with one.made.runtime().state() as state:
        state.acks.acknowledge("copy", state.batches.require(number or 0))
    for target, expected in (("copy", ""), ("other", "has to reach")):
        [state] = Writer(one.made.runtime(), target).look(clock.now).values()
        assert expected in state.why
        assert bool(expected) == bool(state.why)
    both = why(watching(one, clock.now))
    assert "other: " in both[0], "in memory, the tables of both targets have one address"


def test_a_table_that_two_pipelines_write_waits_for_both(one: Pipe, tmp_path_factory: pytest.TempPathFactory) -> None:
    clock = clocked(one)
    one.commit(("insert", "a", (1, "x")))
    one.deliver()
    second = tmp_path_factory.mktemp("second")
    name = f"{one.made.folder.name}-copy"
    mapping = [{"from": r"\w+\.a", "to": str(one.made.table)}]
    target = {"name": "same", "type": "memory", "connection": "t", "options": {"store": name}}
    opened = pipe(second, "unused", mapping=mapping)
    two = next(opened)
    config = two.made.case.config
    data = config.model_dump(mode="json", by_alias=True, exclude_unset=True)
    two.made.case.config = type(config).model_validate({**data, "targets": [target]})
    two.made.tree = one.made.tree
    two.made.begin()
    their_clock = clocked(two)
    two.commit(("insert", "a", (2, "x")))
    rival = two.made.runtime()
    their = rival.resolver
    rival.resolver = lambda id_: one.made.case.endpoint if id_ == "t" else their(id_)
    two.deliver()
    midnight = clock.now = clock.now + SECOND
    seen = watch(one.made.runtime(), "copy", midnight, [rival])
    assert "still committing" in why(seen)[0], "the clock of the other source counts"
    their_clock.now = midnight
    assert why(seen) == [""]
    assert list(opened) == []


# -- each time is told once --------------------------------------------------------------------------------------------


def test_a_time_is_told_by_one_run_and_again_only_by_its_own_failed_attempt() -> None:
    tree = MemoryTree()
    kept = Completions(tree.session(), "/data/sync")
    assert kept.take("mysql://a/b", 10, "run-1")
    assert not kept.take("mysql://a/b", 10, "run-2")
    assert kept.take("mysql://a/b", 10, "run-1"), "its first attempt failed"
    kept.confirm("mysql://a/b", 10, "run-1")
    assert not kept.take("mysql://a/b", 10, "run-1"), "somebody pressed Clear on a success"
    assert kept.take("mysql://a/b", 5, "run-3"), "the run of an earlier time was later"
    for time in range(20, 20 + KEPT):
        assert kept.take("mysql://a/b", time, "run")
    assert not kept.take("mysql://a/b", 10, "run-1")
    assert kept.read("mysql://a/b").until_us == 19 + KEPT


@dataclass
class Midnights:
    """Boundaries that runs wait for, with workers that are killed anywhere."""

    one: Pipe
    clock: Clock
    dice: random.Random
    waiting: dict[int, TableWatch] = field(default_factory=dict)
    taken: dict[int, list[str]] = field(default_factory=dict)
    told: list[tuple[int, set[int]]] = field(default_factory=list)

    def step(self) -> None:
        """A trigger looks, and a task tells; each attempt may die before its success is known."""
        for until in [one for one in self.waiting if self.dice.random() < 0.8]:
            if self.dice.random() < 0.2:  # the triggerer was killed
                self.waiting[until] = watching(self.one, until)
            seen = self.waiting[until]
            if not all(not state.why for state in seen.look().values()):
                continue
            attempts = [f"run-{until}"] if self.dice.random() < 0.8 else [f"run-{until}", f"other-{until}"]
            for claim in attempts:
                self._attempt(seen, until, claim)

    def _attempt(self, seen: TableWatch, until: int, claim: str) -> None:
        told = take(seen, seen.look().values(), claim)
        if self.dice.random() < 0.3:  # killed: Airflow drops the events of a task that did not succeed
            return
        if told:
            self.told.append((until, set(self.one.rows())))
        confirm(self.one.made.runtime(), [one.uri for one in told], until, claim)
        if claim.startswith("run"):
            self.waiting.pop(until, None)


def cut_over_midnights(one: Pipe, seed: int, midnights: int, patch: pytest.MonkeyPatch) -> None:
    dice, clock = random.Random(seed), clocked(one)
    runs, open_commits, number = Midnights(one, clock, dice), list[Callable[[], None]](), 0
    acknowledge = Acknowledgements.acknowledge
    begun = 0
    while begun < midnights or runs.waiting:
        clock.now += dice.randrange(1, SECOND)
        if begun < midnights:
            until = clock.now + dice.randrange(-SECOND // 10, SECOND)
            runs.waiting[until] = watching(one, until)
            begun += 1
        for _ in range(dice.randrange(3)):
            number += 1
            row = RowChange(one.made.table, None, {"id": number, "v": "x"})
            if dice.random() < 0.4:
                open_commits.append(one.made.case.store.committing_later(row))
            else:
                one.made.case.store.commit(row)
            clock.now += dice.randrange(3)
        while open_commits and (dice.random() < 0.5 or begun >= midnights):
            open_commits.pop(dice.randrange(len(open_commits)))()
        what = dice.random()
        if what < 0.5:
            one.deliver()
        elif what < 0.7:
            with patch.context() as killed:
                dies = lambda *_, **__: (_ for _ in ()).throw(CoordinationUnavailable("killed"))  # noqa: E731
                killed.setattr(Acknowledgements, "acknowledge", dies if dice.random() < 0.5 else acknowledge)
                with suppress(CoordinationUnavailable):
                    one.deliver()
        runs.step()
    log = one.made.case.store.log
    for until, held in runs.told:
        late = {
            change.after["id"]
            for transaction in log
            if transaction.commit_time_us < until
            for change in transaction.changes
            if change.table == one.made.table and change.after is not None
        } - held
        assert not late, f"{len(late)} rows came late"
    times = [until for until, _ in runs.told]
    assert len(times) == len(set(times)), "a time was told twice"
    assert len(times) > midnights // 2


def test_no_row_is_late_and_no_time_is_told_twice_over_random_midnights(
    one: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_over_midnights(one, seed=1, midnights=200, patch=monkeypatch)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(2, 7))
def test_a_thousand_midnights(one: Pipe, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_over_midnights(one, seed=seed, midnights=200, patch=monkeypatch)


def test_the_asset_of_times_has_an_address_of_its_own() -> None:
    assert complete_uri("mysql://db:3306/shop/orders") == "complete+mysql://db:3306/shop/orders"


# -- before the first time ---------------------------------------------------------------------------------------------


def test_check_says_that_the_source_cannot_tell(one: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only the task of the first midnight."""

    def refused(session: MemorySession) -> Settled:
        raise PreflightError("the login does not see which statements run", hint="GRANT PROCESS ON *.* TO sluice")

    def found() -> list[tuple[str, str]]:
        return [(f.severity, f.fix) for f in check(one.made.runtime()).findings if f.setting == "complete"]

    monkeypatch.setattr(MemorySession, "settled", refused)
    assert found() == [], "nobody asks for it"
    one.made.case.config = one.made.case.config.model_copy(update={"complete": CompleteConfig()})
    assert found() == [("error", "GRANT PROCESS ON *.* TO sluice")]
    monkeypatch.undo()
    assert found() == []
