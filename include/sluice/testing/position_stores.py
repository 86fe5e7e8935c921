"""Promises that a store of positions has to keep: ZooKeeper keeps them, and so must what takes its place.

A test runs each of :data:`CHECKS` on it::

    @pytest.mark.parametrize("check", CHECKS, ids=str)
    def test_contract(check: Check) -> None:
        with open_store() as (connect, root):   # connect() opens a session; below root nothing is there
            check.run(connect, root)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass

from sluice.coordination.port import Check as At
from sluice.coordination.port import Conflict, Create, Put, Remove, Step, Znodes

Open = Callable[[], AbstractContextManager[Znodes]]
"""Opens a session of its own."""

PATIENCE_S = 60.0
"""Seconds to wait for what happens by itself."""


@dataclass(frozen=True, slots=True)
class Check:
    """One promise, as a sentence, and what tries it."""

    says: str
    run: Callable[[Open, str], None]

    def __str__(self) -> str:
        return self.says


def _until(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen within {PATIENCE_S:.0f} s"
        time.sleep(0.05)


def _refused(znodes: Znodes, *steps: Step) -> Conflict:
    try:
        znodes.transact(steps)
    except Conflict as conflict:
        return conflict
    raise AssertionError(f"{steps} happened")


def _nodes(connect: Open, root: str) -> None:
    with connect() as znodes, connect() as two:
        assert znodes.get(f"{root}/a") is None
        assert znodes.children(f"{root}/a") == []
        znodes.ensure(f"{root}/a/b")
        znodes.ensure(f"{root}/a/b")
        znodes.transact([Create(f"{root}/a/2", b"x"), Create(f"{root}/a/10", bytes(500_000))])
        assert two.children(f"{root}/a") == ["10", "2", "b"]
        znode, empty, large = two.get(f"{root}/a/2"), two.get(f"{root}/a/b"), two.get(f"{root}/a/10")
        assert znode is not None
        assert (znode.data, znode.version) == (b"x", 0)
        assert empty is not None
        assert empty.data == b""
        assert large is not None
        assert large.data == bytes(500_000)
        znodes.transact([Remove(f"{root}/a/2")])
        assert two.get(f"{root}/a/2") is None


def _versions(connect: Open, root: str) -> None:
    with connect() as znodes:
        znodes.ensure(root)
        znodes.transact([Create(f"{root}/n", b"0")])
        znodes.transact([Put(f"{root}/n", b"1", 0)])
        znodes.transact([Put(f"{root}/n", b"2", -1)])
        assert _refused(znodes, Put(f"{root}/n", b"3", 0)).failed == 0
        assert _refused(znodes, Remove(f"{root}/n", 1)).failed == 0
        assert _refused(znodes, At(f"{root}/n", 1)).failed == 0
        assert _refused(znodes, Create(f"{root}/n", b"")).failed == 0
        znode = znodes.get(f"{root}/n")
        assert znode is not None
        assert (znode.data, znode.version) == (b"2", 2)
        znodes.transact([Remove(f"{root}/n", 2), Create(f"{root}/n", b"new")])
        again = znodes.get(f"{root}/n")
        assert again is not None
        assert again.version == 0, "a node that is made again begins to count again"


def _all_or_nothing(connect: Open, root: str) -> None:
    with connect() as znodes:
        znodes.ensure(root)
        znodes.transact([Create(f"{root}/a", b"a")])
        conflict = _refused(znodes, Create(f"{root}/b"), Put(f"{root}/a", b"changed", 0), At(f"{root}/a", 7))
        assert (conflict.failed, conflict.step.path) == (2, f"{root}/a")
        assert znodes.children(root) == ["a"]
        znode = znodes.get(f"{root}/a")
        assert znode is not None
        assert (znode.data, znode.version) == (b"a", 0)


def _no_orphans(connect: Open, root: str) -> None:
    with connect() as znodes:
        znodes.ensure(f"{root}/folder/node")
        assert _refused(znodes, Remove(f"{root}/folder")).failed == 0
        assert _refused(znodes, Create(f"{root}/absent/node")).failed == 0
        znodes.transact([Create(f"{root}/own", ephemeral=True)])
        assert _refused(znodes, Create(f"{root}/own/node")).failed == 0
        znodes.transact([Create(f"{root}/new"), Create(f"{root}/new/node")])
        znodes.transact([Remove(f"{root}/folder/node"), Remove(f"{root}/folder")])
        assert znodes.children(root) == ["new", "own"]


def _large_nodes(connect: Open, root: str) -> None:
    with connect() as znodes, connect() as two:
        znodes.ensure(root)
        content = bytes(range(250)) * 4000
        znodes.transact([Create(f"{root}/large", content)])
        znode = two.get(f"{root}/large")
        assert znode is not None
        assert znode.data == content


def _one_of_many_wins(connect: Open, root: str) -> None:
    with connect() as first:
        first.ensure(root)
        first.transact([Create(f"{root}/n", b"0")])
    errors: list[BaseException] = []

    def add(times: int) -> None:
        try:
            with connect() as znodes:
                for _ in range(times):
                    while True:
                        node = znodes.get(f"{root}/n")
                        assert node is not None
                        try:
                            znodes.transact([Put(f"{root}/n", str(int(node.data) + 1).encode(), node.version)])
                            break
                        except Conflict:
                            continue
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=add, args=(25,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not errors, errors[0]
    with connect() as last:
        node = last.get(f"{root}/n")
    assert node is not None
    assert (node.data, node.version) == (b"100", 100)


def _ephemeral(connect: Open, root: str) -> None:
    with connect() as watching, ExitStack() as owned:
        owner = owned.enter_context(connect())
        owner.ensure(root)
        owner.transact([Create(f"{root}/node", b"me", ephemeral=True), Create(f"{root}/stays", b"")])
        node, stays = watching.get(f"{root}/node"), watching.get(f"{root}/stays")
        assert node is not None
        assert node.ephemeral
        assert stays is not None
        assert not stays.ephemeral
        assert owner.alive
        owned.close()
        _until(lambda: watching.get(f"{root}/node") is None, "the end of an ephemeral node")
        assert watching.get(f"{root}/stays") is not None


def _notices(connect: Open, root: str) -> None:
    with connect() as znodes, connect() as two:
        znodes.ensure(f"{root}/folder")
        znodes.transact([Create(f"{root}/n", b"0")])
        notices: list[str] = []
        node = two.get(f"{root}/n", lambda *_: notices.append("get"))
        assert node is not None
        two.notify(f"{root}/n", lambda *_: notices.append("node"))
        two.notify(f"{root}/folder", lambda *_: notices.append("children"), children=True)
        znodes.transact([Put(f"{root}/n", b"1", -1)])
        _until(lambda: {"get", "node"} <= set(notices), "the notice of a change")
        znodes.transact([Create(f"{root}/folder/x")])
        _until(lambda: "children" in notices, "the notice of a new child")


def _reads_its_own_writes(connect: Open, root: str) -> None:
    """Read what the session wrote; meet in a transaction what another session committed before."""
    with connect() as znodes, connect() as two:
        znodes.ensure(root)
        for number in range(50):
            znodes.transact([Create(f"{root}/{number}", b"")])
            assert znodes.get(f"{root}/{number}") is not None
            assert _refused(two, Create(f"{root}/{number}")).failed == 0


CHECKS = (
    Check("nodes are made, read, listed in order and removed", _nodes),
    Check("versions count changes, and a step with another version is refused", _versions),
    Check("a transaction happens as a whole or not at all, and says which step was refused", _all_or_nothing),
    Check("a node with children is not removed, and none is created below a missing or an ephemeral one", _no_orphans),
    Check("a node holds a million bytes", _large_nodes),
    Check("of sessions that change a node at the same time one wins each time", _one_of_many_wins),
    Check("ephemeral nodes go with their session", _ephemeral),
    Check("changes are noticed", _notices),
    Check("a session reads its own writes, and no transaction is behind another session's", _reads_its_own_writes),
)

__all__ = ["CHECKS", "Check", "Open"]
