"""The supervisor of the development stack: a slow server delays no other one, and the back-off is for what fails."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self, cast

import pytest

from devstack.development import Stack
from devstack.processes import ServerFailed
from devstack.server import Server
from devstack.supervisor import Attempts, heal


class Sleeper(Server):
    """A real process; ``ready`` is what its start waits for."""

    ready: Callable[[], None] = staticmethod(lambda: None)
    starts = 0

    def start(self) -> Self:
        self._spawn(["sleep", "600"])
        self.starts += 1
        self.ready()
        return self


class Servers:
    """The part of a stack that the supervisor uses."""

    def __init__(self, *servers: Sleeper) -> None:
        self.servers = {server.name: server for server in servers}
        self.saved = 0

    def dead(self) -> list[str]:
        return [name for name, server in self.servers.items() if not server.running]

    def save(self) -> None:
        self.saved += 1


def test_a_slow_start_delays_no_other_server(tmp_path: Path) -> None:
    slow, quick, late = (Sleeper(tmp_path, name) for name in ("a", "b", "c"))
    late.start()
    back = threading.Event()

    def all_others_are_back() -> None:
        assert back.wait(60)

    slow.ready = all_others_are_back
    quick.ready = late.kill  # one that dies while others are being started
    late.ready = back.set
    servers = Servers(slow, quick, late)
    try:
        heal(cast(Stack, servers), Attempts())
        assert (servers.dead(), late.starts, servers.saved) == ([], 2, 3)
    finally:
        for server in servers.servers.values():
            server.kill()


def test_a_server_that_does_not_start_is_tried_again_later(tmp_path: Path) -> None:
    server, attempts = Sleeper(tmp_path, "a"), Attempts()

    def fails() -> None:
        server.kill()
        raise ServerFailed("the port is taken")

    server.ready = fails
    heal(cast(Stack, Servers(server)), attempts)
    assert server.starts == 1


@pytest.mark.parametrize(("ran_s", "at_once"), [(30.0, True), (5.0, False)])
def test_only_what_ran_for_a_while_is_started_again_at_once(ran_s: float, at_once: bool) -> None:
    attempts = Attempts()
    assert attempts.due("spark", 0.0)
    attempts.ended("spark", 10.0, ready=True)
    assert attempts.due("spark", 10.0 + ran_s) is at_once
    assert attempts.due("spark", 12.0 + ran_s)


def test_the_wait_after_failed_starts_doubles_up_to_a_limit() -> None:
    attempts, now, waits = Attempts(), 0.0, []
    for _ in range(6):
        attempts.ended("spark", now, ready=False)
        wait = next(s for s in range(100) if attempts.due("spark", now + s))
        waits.append(wait)
        now += wait
    assert waits == [1, 2, 4, 8, 15, 15]
