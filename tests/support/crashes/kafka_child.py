"""A process that loads one batch into Kafka and dies, or stops, at one call of its client."""

from __future__ import annotations

from typing import Any

from sluice.targets.kafka.place import Place
from tests.support.crashes.strikes import At, deliver


class Watched:
    """A producer whose calls are counted; polls are not, as their number depends on the clock."""

    def __init__(self, producer: Any, at: At) -> None:
        self._producer, self._at = producer, at

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._producer, name)
        return found if name in {"poll", "list_topics", "purge"} else self._at.watch(name, found)


def load(bench: Any, batch: Any, epoch: int, at: At, said: Any) -> None:
    """See :func:`tests.support.crashes.strikes.deliver`."""
    make = Place.producer
    Place.producer = lambda place, report: Watched(make(place, report), at)  # type: ignore[method-assign,assignment]
    deliver(bench, [batch], epoch, at, said)
