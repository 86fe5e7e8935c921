"""All positions move from one store to another, and each of the two refuses where the other one counts."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.config.connections import Endpoint
from sluice.coordination import moving, sqlite
from sluice.coordination.leases import release, try_acquire
from sluice.coordination.memory import MemoryTree, MemoryZnodes
from sluice.coordination.moving import Store, move, note_of, require_here
from sluice.coordination.port import Create, Put
from sluice.coordination.state import PipelineState
from sluice.errors import ConfigError, CoordinationUnavailable, LeaseHeld
from sluice.model.batches import Batch, BatchNumber
from sluice.model.offset import Offset

ROOT = "/data/sync"


def position(offset: int) -> Offset:
    return Offset.at("uuid", "binlog.000001", offset)


def state_in(tree: MemoryTree) -> tuple[PipelineState, MemoryZnodes]:
    session = tree.session()
    return PipelineState(session, ROOT, "p", ["a", "b"], lease_wait_s=0), session


def one_batch(tree: MemoryTree) -> None:
    state, session = state_in(tree)
    lease = try_acquire(session, f"{ROOT}/p/replicator", "drain")
    cursor = state.cursor()
    if cursor is None:
        for target in ("a", "b"):
            state.acks.begin(target, BatchNumber(0), position(4))
            release(session, try_acquire(session, f"{ROOT}/p/consumers/{target}", "load"))
        cursor = state.begin(lease, position(4))
    last = position(cursor.position.row_place[1] + 5)
    state.commit(lease, cursor, Batch(cursor.next_batch, lease.epoch, "run", "m", cursor.position, last, 1, 1))
    release(session, lease)
    session.expire()


def stores(*trees: MemoryTree) -> list[Store]:
    return [Store(tree.session(), f"zookeeper://{name}") for name, tree in zip("xyz", trees, strict=False)]


def content(tree: MemoryTree) -> dict[str, bytes]:
    return {path: node.data for path, (node, owner) in tree.nodes.items() if owner is None and path.startswith(ROOT)}


@pytest.mark.promise("G7")
def test_everything_moves_and_the_old_place_refuses() -> None:
    old, new = MemoryTree(), MemoryTree()
    one_batch(old)
    _, worker = state_in(old)  # has a session all the time
    worker.transact([Create(f"{ROOT}/p/replicator/installations-of-the-test", b"x", ephemeral=True)])
    before = content(old)
    x, y = stores(old, new)
    assert move(x, y, ROOT, wait_s=0) == len(before)
    moved = content(new)
    epochs = [path for path in before if path.endswith("/epoch")]
    assert {path for path in moved if moved[path] != before[path]} == set(epochs), "the move held each lease"
    assert all(int(moved[path]) == int(before[path]) + 1 for path in epochs)
    with pytest.raises(ConfigError, match="the positions were moved to zookeeper://y at 20"):
        require_here(old.session(), ROOT)
    with pytest.raises(ConfigError, match="the positions were moved to zookeeper://y at 20"):
        try_acquire(worker, f"{ROOT}/p/replicator", "drain")
    require_here(new.session(), ROOT)
    one_batch(new)
    moved = content(new)
    assert move(y, x, ROOT, wait_s=0) == len(moved), "and back"
    require_here(old.session(), ROOT)
    one_batch(old)
    assert state_in(old)[0].cursor().next_batch == 4


def test_a_batch_under_way_is_waited_for() -> None:
    old, new = MemoryTree(), MemoryTree()
    one_batch(old)
    _, session = state_in(old)
    lease = try_acquire(session, f"{ROOT}/p/consumers/a", "load")
    x, y = stores(old, new)
    with pytest.raises(LeaseHeld):
        move(x, y, ROOT, wait_s=0)
    require_here(old.session(), ROOT)
    release(session, lease)
    move(x, y, ROOT, wait_s=0)


def test_what_is_there_is_not_written_over() -> None:
    old, new = MemoryTree(), MemoryTree()
    x, y = stores(old, new)
    with pytest.raises(ConfigError, match="there are no positions of a pipeline here"):
        move(x, y, ROOT, wait_s=0)
    one_batch(old)
    one_batch(new)
    before = content(new)
    with pytest.raises(ConfigError, match="there are positions already, of p"):
        move(x, y, ROOT, wait_s=0)
    assert content(new) == before
    move(x, stores(old, new, third := MemoryTree())[2], ROOT, wait_s=0)
    assert content(third)
    with pytest.raises(ConfigError, match="the positions were moved to zookeeper://z"):
        move(x, Store(MemoryTree().session(), "zookeeper://other"), ROOT, wait_s=0)


class Killed(Exception):
    pass


@pytest.mark.promise("G7")
@given(st.lists(st.integers(0, 40), max_size=4), st.integers(1, 3))
def test_a_move_that_is_killed_anywhere_is_begun_anew(kills: list[int], batches: int) -> None:
    """A pipeline works in one of the two stores, or in none, after each kill; the last move ends with all of it."""
    old, new = MemoryTree(), MemoryTree()
    for _ in range(batches):
        one_batch(old)
    for kill in kills:
        x, y = stores(old, new)
        steps = itertools.count()

        def struck(call: Any, kill: int = kill, steps: Any = steps) -> Any:
            def transact(what: Any) -> None:
                if next(steps) == kill:
                    raise Killed
                call(what)

            return transact

        for store in (x, y):
            store.znodes.transact = struck(store.znodes.transact)
        try:
            assert move(x, y, ROOT, wait_s=0) or works(new), "an earlier one had come to its end"
        except Killed:
            open_stores = [tree for tree in (old, new) if works(tree)]
            assert len(open_stores) <= 1
            if open_stores == [old]:
                one_batch(old)
                batches += 1
        for store in (x, y):
            store.znodes.expire()
    if not works(new):
        move(*stores(old, new), ROOT, wait_s=0)
    assert not works(old)
    assert state_in(new)[0].cursor().next_batch == batches + 1
    one_batch(new)


def works(tree: MemoryTree) -> bool:
    """A process that opens a session finds a pipeline, and may take its lease."""
    session = tree.session()
    try:
        require_here(session, ROOT)
        release(session, try_acquire(session, f"{ROOT}/p/replicator", "drain"))
    except ConfigError:
        return False
    finally:
        session.expire()
    return bool(moving.pipelines_of(tree.session(), ROOT))


def test_a_store_that_changes_under_the_copy_keeps_the_positions() -> None:
    old, new = MemoryTree(), MemoryTree()
    one_batch(old)
    x, y = stores(old, new)
    transact = y.znodes.transact

    def meddled(steps: Any) -> None:
        transact(steps)
        if new.nodes.get(f"{ROOT}/p/replicator/cursor"):
            new.session().transact([Put(f"{ROOT}/p/replicator/cursor", b"{}", -1)])

    y.znodes.transact = meddled
    with pytest.raises(CoordinationUnavailable, match="the copy differs from what was copied"):
        move(x, y, ROOT, wait_s=0)
    assert works(old)


@pytest.mark.promise("G7")
def test_a_disk_that_is_full_at_any_place_of_a_move_leaves_the_old_place_at_work(tmp_path: Path) -> None:
    """A disk that has three pages more at each attempt."""
    old = MemoryTree()
    one_batch(old)
    old.session().transact([Create(f"{ROOT}/p/large{number}", bytes(10_000)) for number in range(30)])
    with sqlite.connect(Endpoint("here", "sqlite", str(tmp_path / "positions.db")), session_timeout_s=30) as session:
        x, y = Store(old.session(), "zookeeper://x"), Store(session, "sqlite:///y")
        session.ensure("/elsewhere")
        refusals: list[str] = []
        moved = 0
        pages = session._db.execute("PRAGMA page_count").fetchone()[0]
        while not moved:
            session._db.execute(f"PRAGMA max_page_count = {pages}")
            try:
                moved = move(x, y, ROOT, wait_s=0)
            except CoordinationUnavailable as error:
                refusals.append(str(error))
                pages += 3
                assert works(old)
                assert note_of(session, ROOT) is not None or not moving.pipelines_of(session, ROOT)
        assert len(refusals) > 10
        assert all("database or disk is full" in text for text in refusals)
        assert not works(old)
        require_here(session, ROOT)
        assert {path: session.get(path).data for path in content(old) if "large" in path} == {
            f"{ROOT}/p/large{number}": bytes(10_000) for number in range(30)
        }
