"""The one loop of every stage: for each batch of the run, in order, that is ready for the stage, process and record it.

The state of a batch is in ZooKeeper and at the targets, and each stage records there what it did. A :class:`Board`
tells the loops of one run about each other: which batches the run has, which of them the earlier stages have passed,
and whether more will come. A loop waits until its board is notified; it does not poll.

A stage that fails ends: the stages after it process what it has left them, the others continue with what is captured,
and no further batch is captured.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from sluice.flows.stages import Stage, StageKind, leaves
from sluice.segments.changeset import RuleTotal


@dataclass(frozen=True, slots=True)
class Done:
    """The outcome of one stage for one batch.

    Attributes:
        rows: passed on, or written and deleted at the target.
        errors: rows on which a rule failed.
        later: why the target gets the batch at another time, "" if it has it; later stages then skip the batch.
        rules: what each rule that ran in this stage did.
        already: an earlier attempt or another process had done it, or the rule does not apply to the batch.
    """

    batch: int
    seconds: float = 0.0
    rows: int = 0
    errors: int = 0
    later: str = ""
    rules: tuple[RuleTotal, ...] = ()
    already: bool = False


class NeverReady(Exception):
    """No further batch will come: an earlier stage failed, or the process is about to end.

    Attributes:
        behind: the stage that failed, at ``batch``; "" if none did.
    """

    def __init__(self, why: str, *, behind: str = "", batch: int = 0) -> None:
        super().__init__(why)
        self.behind = behind
        self.batch = batch


class Board(Protocol):
    """The state that the stage loops of one run share."""

    def take(self, stage: Stage, after: int) -> int | None:
        """Wait for the first batch after ``after`` to be ready for ``stage``. None: the run has no further one.

        Raises NeverReady.
        """

    def left(self, stage: Stage, batch: int) -> str:
        """Return the reason for which a stage before left this batch for another time; "" if none did."""

    def done(self, stage: Stage, done: Done) -> None:
        """Record that a batch has passed the stage."""

    def gave_up(self, stage: Stage, error: BaseException) -> None:
        """Record that the stage ends with an error."""


def work(stage: Stage, board: Board, do: Callable[[Stage, int], Done], *, after: int = 0) -> int:
    """Run ``stage`` for every batch of the run after batch ``after``. Returns how many there were.

    Raises:
        NeverReady: an earlier stage failed.
        What ``do`` raises: the batch stays, and the stage ends.
    """
    count = 0
    try:
        while (batch := board.take(stage, after)) is not None:
            later = board.left(stage, batch)
            board.done(stage, Done(batch, later=later) if later else do(stage, batch))
            after, count = batch, count + 1
    except BaseException as error:
        board.gave_up(stage, error)
        raise
    return count


_MERGES_EARLY = 1.5
"""How early a batch is closed before a load is expected to end, in times of the last merge: it may be a larger one."""


class ThreadBoard:
    """A board for the threads of one process.

    Args:
        stages: of the pipeline; the capture calls :meth:`captured` and :meth:`end`, and waits for room; each other one
            has a loop.
        through: called with each batch that has passed all stages, and what they did, in the order of the batches and
            by one thread at a time.
        clock: the time in seconds.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        through: Callable[[int, Mapping[str, Done]], None] = lambda batch, done: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._telling = threading.Lock()
        self._through = through
        self._leaves = {stage.name for stage in leaves(stages)}
        self._transforms = {stage.name for stage in stages if stage.transforms}
        self._loads = [stage.name for stage in stages if stage.kind is StageKind.LOAD]
        self._took: dict[str, float] = {}  # seconds of each stage for the last batch on which it worked
        self._begun: dict[str, tuple[int, float]] = {}  # the batch that each stage took last, and when
        self._under_way: dict[int, dict[str, Done]] = {}  # outcome of each stage, by batch in ascending order
        self._ended = False
        self._over = False
        self._gave_up: dict[str, BaseException] = {}

    # -- for the capture -----------------------------------------------------------------------------------------------

    def captured(self, batch: int) -> None:
        """Add a captured batch to the run."""
        with self._changed:
            self._under_way[batch] = {}
            self._changed.notify_all()

    def end(self) -> None:
        """Note that the run has no further batch."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def stop(self) -> None:
        """Stop all stages before their next batch, because the process is about to end."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def wait_for_room(self, most: int) -> None:
        """Wait until at most ``most`` batches are under way. Raises what a stage gave up with."""
        with self._changed:
            while not self._gave_up and len(self._under_way) > most:
                self._changed.wait()
            if self._gave_up:
                raise next(iter(self._gave_up.values()))

    @property
    def is_busy(self) -> bool:
        """True if a batch that is captured now would wait: for the merge of the one before it, for the load of the one
        before that, or merged for a load that lasts longer than its merge.

        Changes that come meanwhile are in it then, and not in the batch after it, a whole load later. How long a load
        lasts is known of the last one. False once a stage gave up: this run delivers nothing any more, and the next run
        waits for its end.
        """
        with self._changed:
            waiting = self._under_way
            if self._gave_up or self._over:
                return False
            if len(waiting) > 1 or any(not done.keys() >= self._transforms for done in waiting.values()):
                return True
            merge_s = sum(self._took.get(name, 0.0) for name in self._transforms)
            return any(self._loading_s(batch) > _MERGES_EARLY * merge_s for batch in waiting)

    def _loading_s(self, batch: int) -> float:
        """Return in how many seconds the first target that gets ``batch`` is expected to have it; 0 if that is not
        known.
        """
        passed, now = self._under_way[batch], self._clock()
        left = []
        for name in self._loads:
            if name in passed and passed[name].later:
                continue
            taken, at = self._begun.get(name, (0, now))
            left.append(0.0 if name in passed else self._took.get(name, 0.0) - (now - at if taken == batch else 0.0))
        return min(left, default=0.0)

    # -- for the loops -------------------------------------------------------------------------------------------------

    def take(self, stage: Stage, after: int) -> int | None:
        """See :class:`Board`."""
        with self._changed:
            while True:
                if self._over:
                    raise NeverReady("the process is to end")
                batch = next((number for number in self._under_way if number > after), None)
                if batch is None and self._ended:
                    return None
                missing = self._missing(stage, batch) if batch is not None else []
                if batch is not None and not missing:
                    self._begun[stage.name] = batch, self._clock()
                    return batch
                if any(name in self._gave_up for name in missing or stage.needs):
                    raise NeverReady("a stage before this one gave up")
                self._changed.wait()

    def _missing(self, stage: Stage, batch: int) -> list[str]:
        """Return the stages that ``batch`` still has to pass before ``stage``."""
        passed = self._under_way.get(batch, {})
        return [name for name in stage.needs if name != StageKind.CAPTURE and name not in passed]

    def left(self, stage: Stage, batch: int) -> str:
        """See :class:`Board`."""
        with self._changed:
            passed = self._under_way.get(batch, {})
            return next((passed[name].later for name in stage.needs if name in passed and passed[name].later), "")

    def done(self, stage: Stage, done: Done) -> None:
        """See :class:`Board`."""
        with self._changed:
            self._under_way[done.batch][stage.name] = done
            if not done.already and not done.later:
                self._took[stage.name] = done.seconds
            self._changed.notify_all()
        self._announce()

    def gave_up(self, stage: Stage, error: BaseException) -> None:
        """See :class:`Board`."""
        with self._changed:
            self._gave_up.setdefault(stage.name, error)
            self._over |= not isinstance(error, Exception)
            self._changed.notify_all()

    def _announce(self) -> None:
        """Report the batches that have passed all stages; only then is there room for further ones."""
        with self._telling:
            while True:
                with self._changed:
                    oldest = min(self._under_way, default=None)
                    if oldest is None or not self._under_way[oldest].keys() >= self._leaves:
                        return
                    passed = self._under_way[oldest]
                self._through(oldest, passed)
                with self._changed:
                    del self._under_way[oldest]
                    self._changed.notify_all()


__all__ = ["Board", "Done", "NeverReady", "ThreadBoard", "work"]
