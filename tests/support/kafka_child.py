"""A process that loads one batch into Kafka and dies, or stops, at one call of its client."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from sluice.errors import SluiceError
from sluice.targets.kafka import channel as module


@dataclass
class At:
    """Sends itself ``number`` at call ``call`` of the client (0: the first), before it or, ``after``, when it returned."""

    call: int
    after: bool
    number: int

    def __post_init__(self) -> None:
        self.calls: list[str] = []

    def watch(self, name: str, work: Any) -> Any:
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


class Watched:
    """A producer whose calls are counted; polls are not, as their number depends on the clock."""

    def __init__(self, producer: Any, at: At) -> None:
        self._producer, self._at = producer, at

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._producer, name)
        return found if name in {"poll", "list_topics", "purge"} else self._at.watch(name, found)


def load(bench: Any, batch: Any, epoch: int, at: At, said: Any) -> None:
    """Take over, write, commit; ``said`` gets the calls and the error's type."""
    make = module.Place.producer
    module.Place.producer = lambda place, report: Watched(make(place, report), at)  # type: ignore[method-assign,assignment]
    error = ""
    try:
        target = bench.target()
        target.checkpoints.take_over(epoch)
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
        said.put((at.calls, error))
