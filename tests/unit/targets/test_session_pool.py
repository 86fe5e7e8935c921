"""Sessions that are kept for the next verb."""

from __future__ import annotations

import os
import socket

import pytest

from sluice.config.connections import Endpoint
from sluice.targets.sql import session_pool
from sluice.targets.sql.session_pool import SessionPool

HERE = Endpoint("here", "mysql", "127.0.0.1", 3306, "sluice", "secret", extra={"ssl_mode": "REQUIRED"})


class Wire:
    """A session with a real socket; ``server`` is its other end."""

    def __init__(self) -> None:
        self.mine, self.server = socket.socketpair()

    def fileno(self) -> int:
        return self.mine.fileno()

    def close(self) -> None:
        self.mine.close()


def test_the_one_that_was_used_last_comes_first_and_each_once() -> None:
    kept_, first, second = SessionPool[Wire](), Wire(), Wire()
    kept_.give(HERE, first)
    kept_.give(HERE, second)
    assert [kept_.take(HERE) for _ in range(3)] == [second, first, None]


@pytest.mark.parametrize(
    "other", [{"port": 3307}, {"user": "root"}, {"password": "x"}, {"schema": "shop"}, {"extra": {}}]
)
def test_another_endpoint_gets_none_of_them(other: dict[str, object]) -> None:
    kept_ = SessionPool[Wire]()
    kept_.give(HERE, Wire())
    elsewhere = Endpoint(**{**HERE.__dict__, **other})
    assert kept_.take(elsewhere) is None
    assert kept_.take(HERE) is not None


def test_one_that_the_server_closed_or_said_something_on_is_not_given_out() -> None:
    kept_, hung_up, spoke, closed, good = SessionPool[Wire](), Wire(), Wire(), Wire(), Wire()
    for one in (good, hung_up, spoke, closed):
        kept_.give(HERE, one)
    hung_up.server.close()
    spoke.server.send(b"you were silent for too long")
    closed.close()
    assert kept_.take(HERE) is good
    assert kept_.take(HERE) is None
    assert hung_up.fileno() == spoke.fileno() == -1


def test_an_old_one_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    kept_, old = SessionPool[Wire](), Wire()
    kept_.give(HERE, old)
    monkeypatch.setattr(session_pool, "KEPT_S", -1.0)
    assert kept_.take(HERE) is None
    assert old.fileno() == -1


def test_no_more_than_so_many() -> None:
    kept_, wires = SessionPool[Wire](), [Wire() for _ in range(session_pool.MOST + 2)]
    for one in wires:
        kept_.give(HERE, one)
    assert [one.fileno() == -1 for one in wires] == [True, True] + [False] * session_pool.MOST


def test_a_forked_process_begins_with_none_and_leaves_the_parents_alone() -> None:
    kept_, one = SessionPool[Wire](), Wire()
    kept_.give(HERE, one)
    child = os.fork()
    if child == 0:
        os._exit(0 if kept_.take(HERE) is None else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert kept_.take(HERE) is one
    one.mine.send(b"still there")
    assert one.server.recv(20) == b"still there"
