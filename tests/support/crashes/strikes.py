"""A signal that a process sends itself at one call of a target's client; and what such a process does."""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import psutil

from sluice.errors import SluiceError

children = multiprocessing.get_context("forkserver")


def start(
    watch: Callable[[At], None], bench: Any, batches: Iterable[Any], epoch: int, at: At | None
) -> tuple[Any, Any]:
    """A process that delivers batches, and the queue on which it says what it did.

    ``watch``: what counts as a call (:mod:`tests.support.crashes.calls`). ``at``: None: nothing is struck.
    """
    said = children.SimpleQueue()
    child = children.Process(target=_deliver, args=(watch, bench, batches, epoch, at, said))
    child.start()
    return child, said


def stands_still(child: Any) -> bool:
    """Wait until a process stands still; return False if it ended."""
    try:
        process = psutil.Process(child.pid)
        while child.exitcode is None and process.status() != psutil.STATUS_STOPPED:
            child.join(0.02)
    except psutil.NoSuchProcess:  # it ended after its exit code was asked for
        child.join(60)
    return child.exitcode is None


def twice_arrived(bench: Any) -> list[str]:
    """Ids of the messages that were received more than once."""
    return [name for name, times in Counter(one.id for one in bench.received()).items() if times > 1]


@dataclass
class At:
    """Sends itself ``number`` at call ``call`` of the client (0: the first), before it or, ``after``, when it
    returned.
    """

    call: int
    after: bool
    number: int
    calls: list[str] = field(default_factory=list)

    def watch(self, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """``work``, counted as ``name``."""

        def watched(*args: Any, **more: Any) -> Any:
            due = len(self.calls) == self.call
            self.calls.append(name)
            if due and not self.after:
                os.kill(os.getpid(), self.number)
            found = work(*args, **more)
            if due and self.after:
                os.kill(os.getpid(), self.number)
            return found

        return watched


def _deliver(
    watch: Callable[[At], None], bench: Any, batches: Iterable[Any], epoch: int, at: At | None, said: Any
) -> None:
    """Take over, write what is not there yet, commit; ``said`` gets the calls and the error, and "begun" first where
    nothing is struck.
    """
    error = ""
    if at is not None:
        watch(at)
    try:
        target = bench.target()
        reached = target.checkpoints.take_over(epoch).batch
        if at is None:
            said.put("begun")
        for batch in batches:
            if batch.number <= reached:
                continue
            with target.open(epoch) as session:
                writer = session.begin(batch)
                writer.prepare()
                results = [unit.write() for phase in writer.plan(1) for unit in phase]
                writer.commit(results)
    except SluiceError as raised:
        error = f"{type(raised).__name__}: {raised}"
    except BaseException as raised:
        error = repr(raised)
    finally:
        said.put((at.calls if at is not None else [], error))
