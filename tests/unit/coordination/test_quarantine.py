"""Which targets are held, and that never all of them are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sluice.coordination.layout import Layout
from sluice.coordination.memory import MemoryTree
from sluice.coordination.quarantine import Quarantine

TARGETS = ("a", "b", "c")


def quarantine(tree: MemoryTree, *targets: str) -> Quarantine:
    return Quarantine(tree.session(), Layout("/data/sync", "p"), targets or TARGETS)


def test_a_held_target_says_why_since_when_and_how_often() -> None:
    made = quarantine(MemoryTree())
    assert made.reason("a") is None
    first = made.add("a", "it does not answer")
    second = made.add("a", "it still does not answer")
    assert first is not None
    assert second is not None
    assert (second.error, second.since, second.attempts) == ("it still does not answer", first.since, 2)
    assert made.active_targets() == ("b", "c")
    made.release("a")
    made.release("a")
    assert made.active_targets() == TARGETS


def test_the_last_one_that_goes_is_never_held() -> None:
    made = quarantine(MemoryTree())
    assert made.add("a", "x")
    assert made.add("b", "x")
    assert made.add("c", "x") is None
    assert made.active_targets() == ("c",)


def test_a_target_that_was_taken_out_of_the_file_counts_no_more() -> None:
    tree = MemoryTree()
    quarantine(tree).add("a", "x")
    quarantine(tree).add("b", "x")
    left = quarantine(
        tree, "a", "b"
    )  # c, the last one that went, is gone: a and b have to hold the pipeline themselves
    assert left.active_targets() == ("a", "b")
    assert left.reason("a") is None
    assert left.add("c", "x") is not None or left.active_targets() == ("a", "b")


@given(st.lists(st.tuples(st.sampled_from(TARGETS), st.booleans(), st.integers(0, 1)), max_size=40))
def test_some_target_always_goes_whoever_writes(moves: list[tuple[str, bool, int]]) -> None:
    tree = MemoryTree()
    sessions = [quarantine(tree), quarantine(tree)]
    expected: set[str] = set()
    for target, hold, who in moves:
        if not hold:
            sessions[who].release(target)
            expected.discard(target)
        elif sessions[who].add(target, "x") is not None:
            expected.add(target)
        assert set(sessions[1 - who].all()) == expected
        assert sessions[1 - who].active_targets()
