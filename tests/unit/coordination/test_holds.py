"""Which targets are held, and that never all of them are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sluice.coordination.layout import Layout
from sluice.coordination.memory import MemoryTree
from sluice.coordination.target_holds import Holds

TARGETS = ("a", "b", "c")


def holds(tree: MemoryTree, *targets: str) -> Holds:
    return Holds(tree.session(), Layout("/data/sync", "p"), targets or TARGETS)


def test_a_held_target_says_why_since_when_and_how_often() -> None:
    made = holds(MemoryTree())
    assert made.of("a") is None
    first = made.hold("a", "it does not answer")
    second = made.hold("a", "it still does not answer")
    assert first is not None
    assert second is not None
    assert (second.error, second.since, second.attempts) == ("it still does not answer", first.since, 2)
    assert made.active_targets() == ("b", "c")
    made.release("a")
    made.release("a")
    assert made.active_targets() == TARGETS


def test_the_last_one_that_goes_is_never_held() -> None:
    made = holds(MemoryTree())
    assert made.hold("a", "x")
    assert made.hold("b", "x")
    assert made.hold("c", "x") is None
    assert made.active_targets() == ("c",)


def test_a_target_that_was_taken_out_of_the_file_counts_no_more() -> None:
    tree = MemoryTree()
    holds(tree).hold("a", "x")
    holds(tree).hold("b", "x")
    left = holds(tree, "a", "b")  # c, the last one that went, is gone: a and b have to hold the pipeline themselves
    assert left.active_targets() == ("a", "b")
    assert left.of("a") is None
    assert left.hold("c", "x") is not None or left.active_targets() == ("a", "b")


@given(st.lists(st.tuples(st.sampled_from(TARGETS), st.booleans(), st.integers(0, 1)), max_size=40))
def test_some_target_always_goes_whoever_writes(moves: list[tuple[str, bool, int]]) -> None:
    tree = MemoryTree()
    sessions = [holds(tree), holds(tree)]
    expected: set[str] = set()
    for target, hold, who in moves:
        if not hold:
            sessions[who].release(target)
            expected.discard(target)
        elif sessions[who].hold(target, "x") is not None:
            expected.add(target)
        assert set(sessions[1 - who].all()) == expected
        assert sessions[1 - who].active_targets()
