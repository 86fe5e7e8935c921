"""What a session keeps of its answers: its own writes are seen at once, another session's when ZooKeeper says so."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.coordination.memory import MemoryTree, MemoryZnodes
from sluice.coordination.port import Check, Conflict, Create, Put, Remove
from sluice.coordination.read_cache import ReadCache
from sluice.errors import CoordinationUnavailable

LEAVES = ("/a/x", "/a/y", "/b")
NODES = ("/a", *LEAVES)


class Counting(MemoryZnodes):
    """Counts what it is asked."""

    asked = 0

    def get(self, path, changed=None):
        self.asked += 1
        return super().get(path, changed)

    def children(self, path, changed=None):
        self.asked += 1
        return super().children(path, changed)


@pytest.fixture
def tree() -> MemoryTree:
    return MemoryTree(tells=False)


@pytest.fixture
def asking(tree: MemoryTree) -> Counting:
    return Counting(tree, 99)


def test_an_answer_is_asked_for_once_until_it_changes(tree: MemoryTree, asking: Counting) -> None:
    kept, other = ReadCache(asking), tree.session()
    other.ensure("/a")
    before = kept.get("/a")
    assert kept.get("/a") == before
    assert asking.asked == 1
    other.transact([Put("/a", b"new", 0)])
    assert kept.get("/a") == before
    assert kept.fresh.get("/a").data == b"new"
    tree.tell()
    assert kept.get("/a").data == b"new"
    assert kept.get("/a").data == b"new"
    assert asking.asked == 3


def test_that_a_node_is_not_there_is_kept_too(tree: MemoryTree, asking: Counting) -> None:
    kept, other = ReadCache(asking), tree.session()
    assert kept.get("/a") is None
    assert kept.children("/a") == []
    asked = asking.asked
    assert kept.get("/a") is None
    assert kept.children("/a") == []
    assert asking.asked == asked
    other.ensure("/a/x")
    tree.tell()
    assert kept.get("/a") is not None
    assert kept.children("/a") == ["x"]


def test_what_was_refused_is_asked_for_again(tree: MemoryTree, asking: Counting) -> None:
    kept, other = ReadCache(asking), tree.session()
    for path in ("/a", "/b"):
        other.ensure(path)
        kept.get(path)
        other.transact([Put(path, b"new", 0)])
    with pytest.raises(Conflict):
        kept.transact([Check("/b", 0), Put("/a", b"mine", 0)])
    assert kept.get("/a").version == 1
    assert kept.get("/b").version == 1


def test_a_session_that_ended_answers_nothing(tree: MemoryTree, asking: Counting) -> None:
    kept = ReadCache(asking)
    kept.ensure("/a")
    kept.get("/a")
    asking.expire()
    for question in (lambda: kept.get("/a"), lambda: kept.children("/a"), lambda: kept.ensure("/a")):
        with pytest.raises(CoordinationUnavailable):
            question()


STEPS = st.one_of(
    st.builds(Put, st.sampled_from(NODES), st.binary(max_size=2), st.just(-1)),
    st.builds(Create, st.sampled_from(LEAVES), st.binary(max_size=2)),
    st.builds(Remove, st.sampled_from(LEAVES)),
)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from(["mine", "fresh", "other"]), st.lists(STEPS, min_size=1, max_size=3)),
            st.sampled_from(["tell", "read"]),
        )
    )
)
def test_own_writes_are_seen_at_once_and_all_others_once_they_are_told(happens) -> None:
    tree = MemoryTree(tells=False)
    kept, other = ReadCache(tree.session()), tree.session()
    other.ensure("/a")  # ZooKeeper creates no node without its parent, and removes none that has children
    writers = {"mine": kept, "fresh": kept.fresh, "other": other}
    unheard: set[str] = set()
    for one in happens:
        if one == "tell":
            tree.tell()
            unheard.clear()
        elif one != "read":
            who, steps = one
            try:
                writers[who].transact(steps)
            except Conflict:
                continue
            unheard |= {step.path for step in steps} if who == "other" else set()
        for path in NODES:
            if path not in unheard:
                assert kept.get(path) == other.get(path)
            if not any(name.startswith(f"{path}/") for name in unheard):
                assert kept.children(path) == other.children(path)


@pytest.mark.parametrize("fresh", [False, True])
def test_a_node_that_this_session_makes_is_seen_before_its_event_arrives(asking: Counting, fresh: bool) -> None:
    """ZooKeeper sends the event of a watch on its own time; the answer to the next question must not be the old one."""
    kept = ReadCache(asking)
    assert kept.get("/a/b/c") is None
    assert kept.children("/a") == kept.children("/a/b") == []
    (kept.fresh if fresh else kept).ensure("/a/b/c")
    assert kept.get("/a/b/c") is not None
    assert (kept.children("/a"), kept.children("/a/b")) == (["b"], ["c"])


def test_a_node_that_this_session_makes_is_there_before_its_watch_fires(tree: MemoryTree, asking: Counting) -> None:
    kept = ReadCache(asking)
    assert kept.get("/a/x") is None
    assert kept.get("/a") is None
    assert kept.children("/a") == []
    kept.ensure("/a/x")
    assert kept.get("/a/x") is not None
    assert kept.get("/a") is not None
    assert kept.children("/a") == ["x"]
