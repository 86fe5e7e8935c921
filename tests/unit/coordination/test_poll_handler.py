"""The handler that kazoo looks at its sockets by answers as kazoo's own."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from kazoo.handlers.utils import selector_select

from sluice.coordination.zookeeper import PollHandler

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    one, other = socket.socketpair()
    yield one, other
    one.close()
    other.close()


def fill(pair: Pair) -> None:
    pair[0].setblocking(False)
    with suppress(BlockingIOError):
        while True:
            pair[0].send(b"x" * 65536)


STATES: dict[str, Callable[[Pair], object]] = {
    "nothing to read": lambda pair: None,
    "something to read": lambda pair: pair[1].send(b"x"),
    "no room to write": fill,
    "the peer has gone": lambda pair: pair[1].close(),
    "the peer sends no more": lambda pair: pair[1].shutdown(socket.SHUT_WR),
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("asks", ["read", "write"])
def test_it_answers_as_kazoos_own(pair: Pair, state: str, asks: str) -> None:
    STATES[state](pair)
    readers = [pair[0]] if asks != "write" else []
    writers = [pair[0]] if asks != "read" else []
    assert PollHandler().select(readers, writers, [], 0.0)[:2] == selector_select(readers, writers, [], 0.0)[:2]


def test_a_closed_socket_is_an_error(pair: Pair) -> None:
    number = pair[0].fileno()
    pair[0].close()
    for asked in (pair[0], number):
        with pytest.raises(ValueError, match="closed"):
            PollHandler().select([asked], [], [], 0.0)


def test_it_waits_for_what_is_asked_first_and_returns_all_that_is_ready(pair: Pair) -> None:
    pair[1].send(b"x")
    quiet, other = socket.socketpair()
    with quiet, other:
        assert PollHandler().select([quiet, pair[0]], [other], [], None) == ([pair[0]], [other], [])
