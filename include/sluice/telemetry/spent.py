"""The time that a thread waited for ZooKeeper and for the segment store, added up while spans are wanted."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

Server = Literal["zookeeper", "store"]
SERVERS: tuple[Server, ...] = ("zookeeper", "store")


@dataclass(frozen=True, slots=True)
class Spent:
    """Calls to a server and the seconds that they took."""

    calls: int = 0
    seconds: float = 0.0

    def __sub__(self, before: Spent) -> Spent:
        return Spent(self.calls - before.calls, self.seconds - before.seconds)


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.sums: dict[Server, Spent] = {}
        self.under_way: set[Server] = set()


_mine = _OfThread()


def so_far() -> dict[Server, Spent]:
    """Return what this thread has spent since it began."""
    return {server: _mine.sums.get(server, Spent()) for server in SERVERS}


@contextmanager
def spending(server: Server) -> Iterator[None]:
    """Count the block as one call to ``server``; calls inside of it belong to it."""
    if server in _mine.under_way:
        yield
        return
    _mine.under_way.add(server)
    began = time.perf_counter()
    try:
        yield
    finally:
        _mine.under_way.discard(server)
        total = _mine.sums.get(server, Spent())
        _mine.sums[server] = Spent(total.calls + 1, total.seconds + time.perf_counter() - began)
