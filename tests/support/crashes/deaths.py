"""The loading process killed at every call of its client, and one that stands still and comes back: what must hold, for
any kind of target with a bench.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sluice.testing.targets import Bench, Pipe, changed, gone, new, people
from tests.support.crashes.strikes import At, stands_still, start, twice_arrived

FIRST = [new(n, "a", 0) for n in range(4)]
SECOND = [changed((0, "a", 0), (7, "b", 1)), gone(1, "a", 0), *(changed((n, "a", 0), (n, "b", 1)) for n in (2, 3))]
EXPECTED = Counter([(7, "b", 1), (2, "b", 1), (3, "b", 1)])

Watch = Callable[[At], None]
"""A function of :mod:`tests.support.crashes.calls`, which tells an :class:`At` of each call."""


def first_delivered(bench: Bench) -> tuple[Any, Pipe]:
    """The table ``people`` with its first rows, and the pipeline that delivered them."""
    table = people(bench.schema)
    bench.create_table(table)
    pipe = Pipe(bench)
    pipe.deliver((table, FIRST))
    return table, pipe


def killed_at_every_call(watch: Watch, fresh: Callable[[], Bench], step: int, *, sides: int = 2) -> None:
    """Each time in a fresh bench; another process then delivers what is missing.

    ``step``: at every so many points; ``SLUICE_CUTS=1``: at each. ``sides``: 2: before and after each call; 1: before.
    """
    step = 1 if os.environ.get("SLUICE_CUTS") == "1" else step
    point, deaths = 0, 0
    while True:
        bench = fresh()
        table, pipe = first_delivered(bench)
        batch = pipe.given([(table, SECOND)])
        child, said = start(watch, bench, [batch], 2, At(point // sides, point % sides == 1, signal.SIGKILL))
        child.join(300)
        if child.exitcode == 0:
            calls, error = said.get()
            assert not error
            break
        assert child.exitcode == -signal.SIGKILL
        deaths += 1
        assert pipe.held < batch.number or pipe.state(table) == EXPECTED, "the checkpoint is ahead of the rows"
        pipe.epoch = 3
        if pipe.checkpoints.take_over(3).batch < batch.number:
            pipe.write(batch)
        assert pipe.state(table) == EXPECTED
        assert pipe.held == batch.number
        assert not bench.appends or not twice_arrived(bench)
        point += step
    assert deaths == -(-sides * len(calls) // step)


def an_old_writer_comes_back(watch: Watch, fresh: Callable[[], Bench], first: int, step: int) -> None:
    """It stands still at each call in turn, from the ``first`` on; a newer one delivers the batch and the next; then the
    old one goes on and changes nothing.
    """
    stopped, call = 0, first
    while True:
        bench = fresh()
        table, pipe = first_delivered(bench)
        batch = pipe.given([(table, SECOND)])
        child, said = start(watch, bench, [batch], 2, At(call, False, signal.SIGSTOP))
        if not stands_still(child):
            break
        stopped += 1
        pipe.epoch = 3
        again = pipe.checkpoints.take_over(3).batch < batch.number
        if again:
            pipe.write(batch)
        pipe.deliver((table, [new(9, "z", 9), changed((2, "b", 1), (2, "c", 2)), gone(3, "b", 1)]))
        error = _goes_on(child, said)
        assert error.startswith("Fenced") or not again, (error, call)
        assert pipe.state(table) == Counter([(7, "b", 1), (9, "z", 9), (2, "c", 2)])
        assert pipe.held == 3
        assert not bench.appends or not twice_arrived(bench)
        call += step
    assert stopped >= 3


@contextmanager
def standing_still(watch: Watch, bench: Bench, batch: Any) -> Iterator[None]:
    """An old process stands still at the first call that counts; it goes on at the end of the context, and is
    fenced.
    """
    child, said = start(watch, bench, [batch], 2, At(0, False, signal.SIGSTOP))
    assert stands_still(child)
    yield
    error = _goes_on(child, said)
    assert error.startswith("Fenced"), error


def _goes_on(child: Any, said: Any) -> str:
    """Let a process go on to its end. Return its error."""
    os.kill(child.pid, signal.SIGCONT)
    _, error = said.get()
    child.join(300)
    return str(error)
