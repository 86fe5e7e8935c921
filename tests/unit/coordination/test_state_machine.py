"""The batch protocol as a model: any interleaving of drains, loads, crashes and session losses keeps the promises.

Each actor is a process that did the first half of its work and may finish it much later (it was paused), die, or lose its session. After
every step the history of acknowledgements must be gapless and strictly increasing, and no write of a replaced owner may go through.
"""

from __future__ import annotations

import itertools

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from sluice.coordination.leases import release, try_acquire
from sluice.coordination.memory import MemoryTree
from sluice.coordination.state import PipelineState
from sluice.errors import CoordinationUnavailable, Fenced, LeaseHeld, OutOfOrder
from sluice.model.batches import Batch
from sluice.model.positions import BatchNumber, Position

ROOT = "/data/sync"
TARGETS = ("a", "b")


def position(offset: int) -> Position:
    return Position("uuid", "binlog.000001", offset)


class Protocol(RuleBasedStateMachine):
    drains = Bundle("drains")
    loads = Bundle("loads")

    @initialize()
    def begin(self) -> None:
        self.tree = MemoryTree()
        self.committed: list[int] = []
        self.acked: dict[str, list[int]] = {t: [] for t in TARGETS}
        state, session = self.session()
        lease = try_acquire(session, f"{ROOT}/p/replicator", "first")
        for target in TARGETS:
            state.begin_process(target, BatchNumber(0), position(4))
        state.begin(lease, position(4))
        release(session, lease)

    def session(self):
        session = self.tree.session()
        return PipelineState(session, ROOT, "p", TARGETS, lease_wait_s=0), session

    @rule(target=drains)
    def start_drain(self):
        state, session = self.session()
        try:
            lease = try_acquire(session, f"{ROOT}/p/replicator", "drain")
        except LeaseHeld:
            return multiple()
        return state, session, lease, state.cursor()

    @rule(drain=consumes(drains), crash=st.booleans(), expire=st.booleans(), size=st.integers(1, 50))
    def end_drain(self, drain, crash, expire, size) -> None:
        state, session, lease, cursor = drain
        newest = self.current_epoch("replicator") == lease.epoch
        expire = expire or not session.alive
        if expire:
            session.expire()
        if crash:
            session.expire()
            return
        number = cursor.next_batch
        last = position(cursor.position.offset + size)
        batch = Batch(number, lease.epoch, "run", "m", cursor.position, last, 1, 1)
        try:
            state.commit(lease, cursor, batch)
        except (Fenced, CoordinationUnavailable):
            assert expire or not newest
        else:
            assert newest
            assert not expire
            self.committed.append(number)
            release(session, lease)

    @rule(drain=drains)
    def lose_session(self, drain) -> None:
        drain[1].expire()

    @rule(target=loads, name=st.sampled_from(TARGETS), number=st.integers(1, 8))
    def start_load(self, name, number):
        state, session = self.session()
        batch = state.batch(number)
        if batch is None:
            return multiple()
        try:
            lease = try_acquire(session, f"{ROOT}/p/consumers/{name}", "load")
        except LeaseHeld:
            return multiple()
        return state, session, lease, name, batch

    @rule(load=consumes(loads), expire=st.booleans())
    def end_load(self, load, expire) -> None:
        state, session, lease, name, batch = load
        before = self.acked[name][-1] if self.acked[name] else 0
        expire = expire or not session.alive
        if expire:
            session.expire()
        try:
            state.acknowledge(name, batch)
        except OutOfOrder:
            assert batch.number > before + 1
        except CoordinationUnavailable:
            assert expire
        else:
            assert not expire
            if batch.number == before + 1:
                self.acked[name].append(batch.number)
            else:
                assert batch.number <= before
            release(session, lease)

    @rule(load=loads)
    def lose_loader(self, load) -> None:
        load[1].expire()

    def current_epoch(self, folder: str) -> int:
        node = self.tree.session().get(f"{ROOT}/p/{folder}/epoch")
        return int(node.data)

    @invariant()
    def histories_are_gapless(self) -> None:
        if not hasattr(self, "committed"):
            return
        assert self.committed == list(range(1, len(self.committed) + 1))
        for name in TARGETS:
            assert self.acked[name] == list(range(1, len(self.acked[name]) + 1))
            process = self.session()[0].process(name)
            assert process.batch == len(self.acked[name]) <= len(self.committed)

    @invariant()
    def cursor_is_behind_the_last_batch(self) -> None:
        if not hasattr(self, "committed"):
            return
        state = self.session()[0]
        cursor = state.cursor()
        assert cursor.next_batch == len(self.committed) + 1
        if self.committed:
            assert state.batch(self.committed[-1]).last == cursor.position
        firsts = [state.batch(n) for n in self.committed]
        for earlier, later in itertools.pairwise(firsts):
            assert earlier.last == later.first


Protocol.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestProtocol = Protocol.TestCase


def fresh() -> tuple[PipelineState, MemoryTree]:
    tree = MemoryTree()
    return PipelineState(tree.session(), ROOT, "p", TARGETS, lease_wait_s=0), tree


def test_a_retried_drain_gets_its_own_batch_back() -> None:
    state, _ = fresh()
    with state.replicator() as lease:
        cursor = state.begin(lease, position(4))
        state.commit(lease, cursor, Batch(BatchNumber(1), lease.epoch, "run-1", "m", position(4), position(9), 1, 1))
    assert state.claimed("run-1").number == 1
    assert state.claimed("run-2") is None


def test_the_first_changeset_of_a_batch_stays() -> None:
    state, _ = fresh()
    with state.replicator() as lease:
        cursor = state.begin(lease, position(4))
        state.commit(lease, cursor, Batch(BatchNumber(1), lease.epoch, "run-1", "m", position(4), position(9), 1, 1))
    assert state.merged(1, "first").changeset == "first"
    assert state.merged(1, "second").changeset == "first"


def test_a_lease_is_free_when_its_session_ends() -> None:
    tree = MemoryTree()
    dead, alive = tree.session(), tree.session()
    try_acquire(dead, f"{ROOT}/p/replicator", "dead")
    with pytest.raises(LeaseHeld, match="dead holds the lease"):
        try_acquire(alive, f"{ROOT}/p/replicator", "alive")
    dead.expire()
    assert try_acquire(alive, f"{ROOT}/p/replicator", "alive").epoch == 2


def test_forget_keeps_what_a_retry_may_ask_for() -> None:
    state, _ = fresh()
    with state.replicator() as lease:
        cursor = state.begin(lease, position(4))
        for target in TARGETS:
            state.begin_process(target, BatchNumber(0), position(4))
        for n in range(1, 8):
            batch = Batch(BatchNumber(n), lease.epoch, f"run-{n}", "m", cursor.position, position(4 + n), 1, 1)
            cursor = state.commit(lease, cursor, batch)
    for target in TARGETS:
        with state.consumer(target) as lease:
            for n in range(1, 7):
                state.acknowledge(target, state.require(n))
    assert state.forget(keep=2) == [1, 2, 3, 4]
    assert state.numbers() == [5, 6, 7]
    assert state.undelivered() == [7]
