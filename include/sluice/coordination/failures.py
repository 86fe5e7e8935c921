"""Present failures of a pipeline. Each part of its work (drain, merge, rules, load) notes its failure here.

It removes the note when it works again.

It removes the note when it works again.

A page can say so as soon as an attempt failed, whoever made it: a task of Airflow, a micro-batch loop, or the command
line.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace

from sluice.coordination.layout import FAILURE, Layout
from sluice.coordination.port import Create, Put, Remove, Znodes, committed
from sluice.errors import CoordinationUnavailable, Fenced, LeaseHeld, OutOfOrder, Paused, Restarted, SluiceError
from sluice.model.stored_fields import known_fields

NO_FAILURE = (Paused, Restarted, LeaseHeld, OutOfOrder, Fenced, CoordinationUnavailable)
"""A person said so, or another process works."""

_MOST_WORDS = 2000


@dataclass(frozen=True, slots=True)
class StageFailure:
    """A part of a pipeline that failed, and has not gone on since.

    Attributes:
        part: drain, merge, rules-{stage} or load-{target}. error: the message of the last attempt, with what to do
            next.
        since: of the first attempt that failed here (ISO 8601); attempts: how many did.
        at: how far the part had come: once it is further, the failure is over.
    """

    part: str
    error: str
    since: str
    attempts: int = 1
    at: str = ""

    @property
    def target(self) -> str:
        """The target that is loaded; "" for another part."""
        return self.part.removeprefix("load-") if self.part.startswith("load-") else ""

    def __str__(self) -> str:
        doing = f"loading into {self.target}" if self.target else self.part.replace("-", " ")
        times = "once" if self.attempts == 1 else f"{self.attempts} times"
        return f"{doing} failed {times} since {self.since}, and has not gone on: {self.error}"


class StageFailures:
    """Failures of one pipeline, noted by part."""

    def __init__(self, znodes: Znodes, layout: Layout) -> None:
        self._z = znodes
        self._at = layout

    def all(self) -> list[StageFailure]:
        """Return the noted failures by part."""
        found = (self._of(name) for name in sorted(self._z.children(self._at.failures)))
        return [one for one in found if one is not None]

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
                said = str(error) if isinstance(error, SluiceError) else f"{type(error).__name__}: {error}"
                self._note(part, said, progress())
            raise
        path = self._at.failure(part)
        if self._z.get(path) is not None:
            committed(self._z, Remove(path))

    def _of(self, part: str) -> StageFailure | None:
        path = self._at.failure(part)
        return FAILURE.read(self._z, path, lambda data, _: StageFailure(**known_fields(StageFailure, data)))

    def _note(self, part: str, error: str, at: str) -> None:
        path, before = self._at.failure(part), self._of(part)
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        made = StageFailure(part, error[:_MOST_WORDS], now, 1, at)
        if before is not None and before.at == at:
            made = replace(made, since=before.since, attempts=before.attempts + 1)
        content = FAILURE.encode(asdict(made))
        node = self._z.get(path)
        self._z.ensure(self._at.failures)
        committed(self._z, Put(path, content, node.version) if node is not None else Create(path, content))
