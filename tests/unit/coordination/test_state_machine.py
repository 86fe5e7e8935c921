"""The batch protocol as a model: any interleaving of drains, loads, crashes and session losses keeps the promises.

Each actor is a process that did the first half of its work and may finish it much later (it was paused), die, or lose
its session; people pause, resume, roll back and redeliver in between. After every step nothing is acknowledged that its
target does not hold, batches have no gap, no write of a replaced owner has gone through, and nothing that was made
before a rollback is delivered after it.
"""

from __future__ import annotations

import itertools
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from sluice.coordination.leases import release, try_acquire
from sluice.coordination.memory import MemoryTree
from sluice.coordination.port import Put
from sluice.coordination.sqlite import SqliteZnodes
from sluice.coordination.state import PipelineState
from sluice.errors import CoordinationUnavailable, Fenced, LeaseHeld, OutOfOrder, Paused, Restarted
from sluice.model.batches import Batch, BatchNumber
from sluice.model.offset import Offset

ROOT = "/data/sync"
TARGETS = ("a", "b")


def position(offset: int) -> Offset:
    return Offset.at("uuid", "binlog.000001", offset)


class Protocol(RuleBasedStateMachine):
    """``holds``: what each target itself says that it holds; the data and this number move together there, under the
    loader's epoch.
    """

    drains = Bundle("drains")
    merges = Bundle("merges")
    loads = Bundle("loads")
    acks = Bundle("acks")

    tells = True

    @initialize()
    def begin(self) -> None:
        self.tree = self.new_tree()
        self.truth, self.looks = self.session()
        self.committed: list[int] = []
        self.holds = dict.fromkeys(TARGETS, 0)
        self.round_of: dict[str, int] = {}
        self.rolled_back = 0
        state, session = self.session()
        lease = try_acquire(session, f"{ROOT}/p/replicator", "first")
        for target in TARGETS:
            state.acks.begin(target, BatchNumber(0), position(4))
        state.begin(lease, position(4))
        release(session, lease)

    def new_tree(self):
        """The store of positions."""
        return MemoryTree(tells=self.tells)

    def session(self):
        session = self.tree.session()
        return PipelineState(session, ROOT, "p", TARGETS, lease_wait_s=0), session

    def actor(self):
        """The state and the session of a process that begins to work."""
        return self.session()

    # -- drain ---------------------------------------------------------------------------------------------------------
    @rule(target=drains)
    def start_drain(self):
        state, session = self.actor()
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
        last = position(cursor.position.row_place[1] + size)
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

    @rule(size=st.integers(1, 50))
    def drain_at_once(self, size) -> None:
        started = self.start_drain()
        if isinstance(started, tuple):
            self.end_drain(started, crash=False, expire=False, size=size)

    @rule(drain=drains)
    def lose_session(self, drain) -> None:
        drain[1].expire()

    # -- merge ---------------------------------------------------------------------------------------------------------
    @rule(target=merges, back=st.integers(0, 2))
    def start_merge(self, back):
        state, session = self.actor()
        number = len(self.committed) - back
        try:
            switch = state.pause_switch.require()
        except Paused:
            return multiple()
        if number not in self.committed:
            return multiple()
        return state, session, number, switch

    @rule(merge=consumes(merges))
    def end_merge(self, merge) -> None:
        """What it made counts only if nobody rolled back, restarted or paused since it began."""
        state, session, number, switch = merge
        if not session.alive:
            return
        made = f"{number}/{len(self.round_of)}"
        self.round_of[made] = switch.round
        now = self.truth.pause_switch.read()
        known = self.truth.batches.require(number).changeset
        try:
            kept = state.batches.merged(number, made, under=switch).changeset
        except Paused:
            assert not now.open
        except Restarted:
            assert now.round != switch.round
        else:
            assert kept == known or now.round == switch.round

    # -- load and acknowledge ------------------------------------------------------------------------------------------
    @rule(target=loads, name=st.sampled_from(TARGETS))
    def start_load(self, name):
        _, session = self.session()
        try:
            lease = try_acquire(session, f"{ROOT}/p/consumers/{name}", "load")
        except LeaseHeld:
            return multiple()
        return session, lease, name, self.holds[name] + 1

    @rule(load=consumes(loads), expire=st.booleans())
    def end_load(self, load, expire) -> None:
        """The target's own fence: the newest epoch, and the batch before this one held."""
        session, lease, name, number = load
        newest = self.current_epoch(f"consumers/{name}") == lease.epoch
        if newest and number == self.holds[name] + 1 and number in self.committed:
            self.holds[name] = number
        if expire:
            session.expire()
        else:
            release(session, lease)

    @rule(name=st.sampled_from(TARGETS))
    def load_at_once(self, name) -> None:
        started = self.start_load(name)
        if isinstance(started, tuple):
            self.end_load(started, expire=False)

    @rule(load=loads)
    def lose_loader(self, load) -> None:
        load[0].expire()

    @rule(target=acks, name=st.sampled_from(TARGETS), ahead=st.integers(1, 2))
    def start_ack(self, name, ahead):
        """It reads the acknowledgement, then asks the target; then it may sleep for as long as it likes."""
        state, session = self.actor()
        seen = state.acks.get(name)
        number = seen.batch + ahead
        if self.holds[name] < number or number not in self.committed:
            return multiple()
        return state, session, name, state.batches.require(number), seen

    @rule(ack=consumes(acks), expire=st.booleans())
    def end_ack(self, ack, expire) -> None:
        state, session, name, batch, seen = ack
        before = self.process(name)
        expire = expire or not session.alive
        if expire:
            session.expire()
        try:
            state.acks.acknowledge(name, batch, seen=seen)
        except OutOfOrder:
            assert before.batch != batch.number - 1 or before.version != seen.version
        except CoordinationUnavailable:
            assert expire
        else:
            after = self.process(name)
            assert after.batch in {before.batch, before.batch + 1}
            assert after.batch == before.batch or (after.batch == batch.number and before.version == seen.version)

    # -- what people do ------------------------------------------------------------------------------------------------
    @rule(name=st.sampled_from(TARGETS), back=st.integers(1, 3))
    def restore_and_redeliver(self, name, back) -> None:
        """The target is put back to an older state; its acknowledgement follows."""
        state, session = self.session()
        process = self.process(name)
        first = max(process.batch - back + 1, 1)
        batches = [state.batches.require(n) for n in range(first, process.batch + 1)]
        if not batches:
            return
        try:
            lease = try_acquire(session, f"{ROOT}/p/consumers/{name}", "person")
        except LeaseHeld:
            return
        state.redeliver(lease, name, batches[0].first, batches)
        self.holds[name] = first - 1
        release(session, lease)

    @rule()
    def pause(self) -> None:
        self.truth.pause_switch.set(open_=False, by="p", reason="")

    @rule()
    def resume(self) -> None:
        self.truth.pause_switch.set(open_=True, by="p", reason="")

    @rule()
    def roll_back(self) -> None:
        state = self.truth
        self.rolled_back = state.pause_switch.set(open_=None, by="p", reason="").round
        for number in state.undelivered():
            state.batches.unmerge(number)

    # -- what must hold ------------------------------------------------------------------------------------------------
    def process(self, name: str):
        process = self.truth.acks.get(name)
        assert process is not None
        return process

    def current_epoch(self, folder: str) -> int:
        node = self.looks.get(f"{ROOT}/p/{folder}/epoch")
        return int(node.data)

    @invariant()
    def nothing_is_acknowledged_that_the_target_does_not_hold(self) -> None:
        if not hasattr(self, "committed"):
            return
        assert self.committed == list(range(1, len(self.committed) + 1))
        for name in TARGETS:
            assert self.process(name).batch <= self.holds[name] <= len(self.committed)

    @invariant()
    def no_changeset_is_older_than_the_last_rollback(self) -> None:
        if not hasattr(self, "committed"):
            return
        state = self.truth
        for number in state.undelivered():
            changeset = state.batches.require(number).changeset
            assert changeset is None or self.round_of[changeset] >= self.rolled_back

    @invariant()
    def cursor_is_behind_the_last_batch(self) -> None:
        if not hasattr(self, "committed"):
            return
        state = self.truth
        cursor = state.cursor()
        assert cursor.next_batch == len(self.committed) + 1
        if self.committed:
            assert state.batches.get(self.committed[-1]).last == cursor.position
        firsts = [state.batches.get(n) for n in self.committed]
        for earlier, later in itertools.pairwise(firsts):
            assert earlier.last == later.first


class ProtocolOfLoops(Protocol):
    """The same with processes that work on and on, keep what they read, and hear late of what others change."""

    tells = False

    def actor(self):
        self.actors = [one for one in getattr(self, "actors", []) if one[1].alive]
        if len(self.actors) < 2:
            session = self.tree.session()
            self.actors.append((PipelineState(session, ROOT, "p", TARGETS, lease_wait_s=0, caches_reads=True), session))
        self.actors.reverse()
        return self.actors[0]

    @rule()
    def hear(self) -> None:
        self.tree.tell()


class FileTree:
    """The file in place of the model's tree: sessions that a test can end, as another process would."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._file = Path(self._folder.name) / "positions.db"
        self._sessions: list[SqliteZnodes] = []

    def session(self) -> SqliteZnodes:
        session = SqliteZnodes(self._file, 3_600_000, 5.0)
        session.expire = lambda: self._end(session)
        self._sessions.append(session)
        return session

    def _end(self, session: SqliteZnodes) -> None:
        with closing(sqlite3.connect(self._file, timeout=10)) as db, db:
            db.execute("DELETE FROM sessions WHERE id = ?", (session._id,))
        with pytest.raises(CoordinationUnavailable):
            session.transact([Put("/", b"", 0)])

    def close(self) -> None:
        for session in self._sessions:
            session.close()
        self._folder.cleanup()


class ProtocolOnAFile(Protocol):
    """The batch protocol with its positions in a file."""

    def new_tree(self) -> FileTree:
        return FileTree()

    def teardown(self) -> None:
        self.tree.close()


ProtocolOnAFile.TestCase.settings = settings(max_examples=max(settings().max_examples // 10, 5), deadline=None)
TestProtocolOnAFile = ProtocolOnAFile.TestCase

ProtocolOfLoops.TestCase.settings = settings()
TestProtocolOfLoops = ProtocolOfLoops.TestCase

Protocol.TestCase.settings = settings()
TestProtocol = Protocol.TestCase


def fresh() -> tuple[PipelineState, MemoryTree]:
    tree = MemoryTree()
    return PipelineState(tree.session(), ROOT, "p", TARGETS, lease_wait_s=0), tree


def test_a_retried_drain_gets_its_own_batch_back() -> None:
    state, _ = fresh()
    with state.replicator() as lease:
        cursor = state.begin(lease, position(4))
        state.commit(lease, cursor, Batch(BatchNumber(1), lease.epoch, "run-1", "m", position(4), position(9), 1, 1))
    assert state.batches.claimed("run-1").number == 1
    assert state.batches.claimed("run-2") is None


def test_the_first_changeset_of_a_batch_stays() -> None:
    state, _ = fresh()
    with state.replicator() as lease:
        cursor = state.begin(lease, position(4))
        state.commit(lease, cursor, Batch(BatchNumber(1), lease.epoch, "run-1", "m", position(4), position(9), 1, 1))
    assert state.batches.merged(1, "first").changeset == "first"
    assert state.batches.merged(1, "second").changeset == "first"


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
            state.acks.begin(target, BatchNumber(0), position(4))
        for n in range(1, 8):
            batch = Batch(BatchNumber(n), lease.epoch, f"run-{n}", "m", cursor.position, position(4 + n), 1, 1)
            cursor = state.commit(lease, cursor, batch)
    for target in TARGETS:
        with state.consumer(target) as lease:
            for n in range(1, 7):
                state.acks.acknowledge(target, state.batches.require(n))
    assert state.forget(keep=2) == [1, 2, 3, 4]
    assert state.batches.numbers() == [5, 6, 7]
    assert state.undelivered() == [7]


def test_old_entries_of_the_audit_go_by_age(monkeypatch: pytest.MonkeyPatch) -> None:
    state = PipelineState(MemoryTree().session(), ROOT, "p", TARGETS, lease_wait_s=0)
    for at_s in (100, 200, 300):
        monkeypatch.setattr("sluice.coordination.state.time.time_ns", lambda at_s=at_s: at_s * 10**9)
        state.audit.note(by="me", what=f"pause {at_s}", details={})
    assert state.audit.forget(before_s=250, dry_run=True) == 2
    assert len(state.audit.entries()) == 3
    assert state.audit.forget(before_s=250) == 2
    assert [entry["what"] for entry in state.audit.entries()] == ["pause 300"]
    assert state.audit.forget(before_s=float("-inf")) == 0


@pytest.mark.parametrize("batches", [3, 150])
def test_a_fresh_drain_reads_no_more_with_a_longer_history(batches: int) -> None:
    state, tree = fresh()
    with state.replicator() as lease:
        cursor = state.begin(lease, position(4), targets=TARGETS)
        for number in range(1, batches + 1):
            first, last = position(3 + number), position(4 + number)
            batch = Batch(BatchNumber(number), lease.epoch, f"run-{number}", "m", first, last, 1, 1)
            cursor = state.commit(lease, cursor, batch)
    reads = 0
    session = tree.session()
    get, children = session.get, session.children

    def counted(read):
        def call(path):
            nonlocal reads
            reads += 1
            return read(path)

        return call

    session.get, session.children = counted(get), counted(children)
    looking = PipelineState(session, ROOT, "p", TARGETS, lease_wait_s=0)
    assert looking.batches.claimed("a new run") is None
    assert reads == 2
    assert looking.batches.claimed("run-2").number == 2
    assert reads == 5


def test_claims_of_an_older_version_are_found_and_old_ones_go() -> None:
    state, tree = fresh()
    with state.replicator() as lease:
        cursor = state.begin(lease, position(4), targets=TARGETS)
        for number in range(1, 6):
            batch = Batch(
                BatchNumber(number), lease.epoch, f"run-{number}", "m", position(3 + number), position(4 + number), 1, 1
            )
            cursor = state.commit(lease, cursor, batch)
    claims = f"{ROOT}/p/claims"
    for path in [path for path in tree.nodes if path.startswith(claims)]:
        del tree.nodes[path]
    assert state.batches.claimed("run-3").number == 3
    assert state.batches.reclaim(3, "run-9").claim == "run-9"
    assert state.batches.claimed("run-3") is None
    assert state.batches.claimed("run-9").number == 3
    for target in TARGETS:
        for number in range(1, 6):
            state.acks.acknowledge(target, state.batches.require(number))
    assert state.forget(keep=1) == [1, 2, 3, 4]
    assert [name[:10] for name in tree.session().children(claims)] == ["0000000005"]


def test_a_state_keeps_its_identity_and_a_new_one_has_another() -> None:
    state, tree = fresh()
    assert state.identity() == ""
    with state.replicator() as lease:
        state.begin(lease, position(4), targets=TARGETS)
    first = state.identity()
    assert first == state.identity() == state.acks.get("a").identity
    del tree.nodes[f"{ROOT}/p/replicator/cursor"]
    with state.replicator() as lease:
        state.begin(lease, position(4))
    assert state.identity() not in {"", first}
    del tree.nodes[f"{ROOT}/p/identity"]  # as an older version left it
    assert state.identity() == state.identity() != ""


def test_a_loader_gets_an_epoch_above_the_one_asked_for() -> None:
    state, _ = fresh()
    with state.consumer("a") as lease:
        assert lease.epoch == 1
    with state.consumer("a", above=40) as lease:
        assert lease.epoch == 41
        with pytest.raises(LeaseHeld), state.consumer("a"):
            pass
    with state.consumer("a", above=40) as lease:
        assert lease.epoch == 42
