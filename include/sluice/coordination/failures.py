"""Present failures of a pipeline. Each part of its work (drain, merge, rule, load) notes its failure here.

It removes the note when it works again. The failures are also counted, by part and by who has to act.

A page can say so as soon as an attempt failed, whoever made it: a task of Airflow, a micro-batch loop, or the command
line.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from sluice.coordination.layout import ERRORS, FAILURE, Layout
from sluice.coordination.port import Create, Put, Remove, Znodes, committed
from sluice.errors import (
    CoordinationUnavailable,
    Fault,
    Fenced,
    LeaseHeld,
    OutOfOrder,
    Paused,
    Restarted,
    SluiceError,
    fault_of,
    public_name_of,
)
from sluice.model.stored_fields import known_fields

NO_FAILURE = (Paused, Restarted, LeaseHeld, OutOfOrder, Fenced, CoordinationUnavailable)
"""A person said so, or another process works."""

_MOST_WORDS = 2000


@dataclass(frozen=True, slots=True)
class StageFailure:
    """A part of a pipeline that failed, and has not gone on since.

    Attributes:
        part: drain, merge, rule.{name} or load-{target}. error: the message of the last attempt, with what to do next.
        since: of the first attempt that failed here (ISO 8601); attempts: how many did.
        at: how far the part had come: once it is further, the failure is over.
        fault: who has to act (:class:`sluice.errors.Fault`); kind: the class of the error; name: its public name.
            "" if an older version noted it.
    """

    part: str
    error: str
    since: str
    attempts: int = 1
    at: str = ""
    fault: str = ""
    kind: str = ""
    name: str = ""

    @property
    def target(self) -> str:
        """The target that is loaded; "" for another part."""
        return self.part.removeprefix("load-") if self.part.startswith("load-") else ""

    def __str__(self) -> str:
        doing = f"loading into {self.target}" if self.target else self.part.replace(".", " ", 1)
        times = "once" if self.attempts == 1 else f"{self.attempts} times"
        words = f" ({Fault(self.fault).words})" if self.fault in set(Fault) else ""
        return f"{doing} failed {times} since {self.since}, and has not gone on{words}: {self.error}"


class StageFailures:
    """Failures of one pipeline, noted by part."""

    def __init__(self, znodes: Znodes, layout: Layout) -> None:
        self._z = znodes
        self._at = layout

    def all(self) -> list[StageFailure]:
        """Return the noted failures by part."""
        noted = (self._of(name) for name in sorted(self._z.children(self._at.failures)))
        return [failure for failure in noted if failure is not None]

    @contextmanager
    def reporting(self, part: str, progress: Callable[[], str]) -> Iterator[None]:
        """Note a failure inside; remove the note where none happens. ``progress``: how far the part has come."""
        try:
            yield
        except NO_FAILURE:
            raise
        except Exception as error:
            with suppress(SluiceError):  # the error that is there is the one to show
                if isinstance(error, SluiceError):
                    error.name_pipeline(self._at.pipeline)
                self._note(part, error, progress())
            raise
        path = self._at.failure(part)
        if self._z.get(path) is not None:
            committed(self._z, Remove(path))

    def note(self, part: str, error: SluiceError, at: str) -> None:
        """Note a failure of a part that left no word of its own, unless it has noted one since it came to ``at``."""
        error.name_pipeline(self._at.pipeline)
        noted = self._of(part)
        if noted is None or noted.at != at:
            self._note(part, error, at)

    def _of(self, part: str) -> StageFailure | None:
        path = self._at.failure(part)
        return FAILURE.read(self._z, path, lambda data, _: StageFailure(**known_fields(StageFailure, data)))

    def counts(self) -> dict[tuple[str, str], int]:
        """Return how often each part failed since the pipeline began, by (part, who has to act)."""
        return ERRORS.read(self._z, self._at.errors, lambda data, _: _counts(data)) or {}

    def _count(self, part: str, fault: Fault) -> None:
        """Count a failure. One that another process counts at the same time may be lost."""
        path = self._at.errors
        node = self._z.get(path)
        numbers = ERRORS.parse(path, node.data, _counts) if node is not None and node.data else {}
        numbers[part, fault.value] = numbers.get((part, fault.value), 0) + 1
        counts = [{"part": stage, "fault": whose, "count": count} for (stage, whose), count in sorted(numbers.items())]
        content = ERRORS.encode({"counts": counts})
        self._z.ensure(self._at.home)
        committed(self._z, Put(path, content, node.version) if node is not None else Create(path, content))

    def _note(self, part: str, error: Exception, at: str) -> None:
        path, before = self._at.failure(part), self._of(part)
        kind, name = type(error).__name__, public_name_of(error)
        message = str(error) if isinstance(error, SluiceError) else f"{kind}: {error} [{name}]"
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        failure = StageFailure(part, message[:_MOST_WORDS], now, 1, at, fault_of(error).value, kind, name)
        if before is not None and before.at == at:
            failure = replace(failure, since=before.since, attempts=before.attempts + 1)
        content = FAILURE.encode(asdict(failure))
        node = self._z.get(path)
        self._z.ensure(self._at.failures)
        committed(self._z, Put(path, content, node.version) if node is not None else Create(path, content))
        self._count(part, fault_of(error))


def _counts(data: Mapping[str, Any]) -> dict[tuple[str, str], int]:
    return {(entry["part"], entry["fault"]): entry["count"] for entry in data["counts"]}
