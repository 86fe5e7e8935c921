"""Sessions of a process that only looks: shared, replaced when they end, and never waited for twice."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from sluice.config.connections import Endpoint
from sluice.coordination import watched_reads
from sluice.coordination.memory import MemoryTree, MemoryZnodes
from sluice.coordination.watched_reads import WatchedReads
from sluice.errors import CoordinationUnavailable

ONE, OTHER = (Endpoint("zookeeper_default", "zookeeper", f"127.0.0.1:{port}") for port in (1, 2))


class Ensembles:
    """Opens sessions on one tree; ``mute`` hosts do not answer before ``lets_go``."""

    def __init__(self) -> None:
        self.tree = MemoryTree()
        self.opened: list[MemoryZnodes] = []
        self.closed = threading.Semaphore(0)
        self.mute: set[str] = set()
        self.tried: list[str] = []
        self.asked, self.lets_go = threading.Event(), threading.Event()

    @contextmanager
    def connect(self, endpoint: Endpoint, **_: Any) -> Iterator[MemoryZnodes]:
        self.tried.append(endpoint.host)
        if endpoint.host in self.mute:
            self.asked.set()
            assert self.lets_go.wait(120)
            raise CoordinationUnavailable("ZooKeeper did not answer within 3 s")
        self.opened.append(self.tree.session())
        yield self.opened[-1]
        self.closed.release()


@pytest.fixture
def ensembles(monkeypatch: pytest.MonkeyPatch) -> Ensembles:
    found = Ensembles()
    monkeypatch.setattr(watched_reads, "connect", found.connect)
    return found


def test_lookers_share_a_session_until_it_expires(ensembles: Ensembles) -> None:
    looks = WatchedReads(answer_s=3.0)
    first = looks.get(ONE, 10.0)
    assert looks.get(ONE, 10.0) is first
    assert looks.get(OTHER, 10.0) is not first
    ensembles.opened[0].expire()
    assert looks.get(ONE, 10.0) is not first
    looks.close()


def test_a_session_that_did_not_answer_is_replaced(ensembles: Ensembles) -> None:
    looks = WatchedReads(answer_s=3.0)
    first = looks.get(ONE, 10.0)
    looks.drop(first)
    assert ensembles.closed.acquire(timeout=120)
    assert looks.get(ONE, 10.0) is not first
    looks.close()


def test_an_old_session_is_replaced_and_closed_once_nobody_uses_it(
    ensembles: Ensembles, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = WatchedReads(answer_s=3.0, idle_s=0.05)
    monkeypatch.setattr(watched_reads, "AGE_S", 0.0)
    first = looks.get(ONE, 10.0)
    assert looks.get(ONE, 10.0) is not first
    for _ in range(2):
        assert ensembles.closed.acquire(timeout=120)


def test_a_mute_zookeeper_is_waited_for_once_and_delays_no_other(ensembles: Ensembles) -> None:
    ensembles.mute.add(ONE.host)
    looks = WatchedReads(answer_s=3.0)
    at_the_lock = threading.Barrier(5)

    def look() -> None:
        at_the_lock.wait(120)
        looks.get(ONE, 10.0)

    with ThreadPoolExecutor(5) as pool:
        waiting = [pool.submit(look) for _ in range(5)]
        assert ensembles.asked.wait(120)
        assert looks.get(OTHER, 10.0).znodes.alive  # while the first is still waited for
        assert not any(one.done() for one in waiting)
        while any(place.waiting < 5 for place in looks._places.values() if place.session is None):
            threading.Event().wait(0.01)
        ensembles.lets_go.set()
        for one in waiting:
            with pytest.raises(CoordinationUnavailable):
                one.result(120)
    assert ensembles.tried.count(ONE.host) == 1
    looks.close()
