"""The checkpoint as a record that the target itself stores: its codec, its seal, and every decision about it.

A kind says what it stores beside the checkpoint (a subclass of :class:`Record`) and brings two calls
(:class:`RecordStore`): read the record with a token, and swap it while the token holds. :class:`SwappedCheckpoints` is
the rest, once for all kinds.
"""

from __future__ import annotations

import json
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Generic, Protocol, Self, TypeVar

from typing_extensions import override

from sluice.errors import CheckpointError, Fenced, SluiceError, TargetUnavailable
from sluice.model.offset import Offset
from sluice.targets.port.checkpoint import Agrees, Checkpoint, CheckpointStore, Fence

FORMAT_VERSION = 1
_ATTEMPTS = 20


class RecordPlace(Protocol):
    """The names of a target and of its checkpoint."""

    @property
    def pipeline(self) -> str:
        """The name of the pipeline."""

    @property
    def owner(self) -> str:
        """The pipeline and the target, by name."""

    @property
    def record_place(self) -> str:
        """The location of the checkpoint, for messages."""


# -- the record --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Record:
    """The checkpoint; a subclass has fields for what its kind stores besides."""

    checkpoint: Checkpoint

    @classmethod
    def first(cls, batch: int) -> Self:
        """Return the record of a target that no epoch took over, and that holds ``batch``."""
        return cls(Checkpoint(0, batch))

    def taken_over(self, checkpoint: Checkpoint) -> Self:
        """Return the record after an epoch took the target over."""
        return replace(self, checkpoint=checkpoint)

    def advanced(self, checkpoint: Checkpoint, tables: Iterable[str]) -> Self:
        """Return the record after a later batch, which wrote ``tables``."""
        return replace(self, checkpoint=checkpoint)

    def rewound(self, checkpoint: Checkpoint, *, anew: bool) -> Self:
        """Return the record after the checkpoint was moved by hand, see :meth:`CheckpointStore.rewind`."""
        return replace(self, checkpoint=checkpoint)


@dataclass(frozen=True, slots=True)
class WriterRecord(Record):
    """A record that says who writes what, for other pipelines at the same server.

    Attributes:
        tables: target tables that the pipeline wrote.
        at: seconds since 1970 of the last batch.
    """

    tables: frozenset[str] = frozenset()
    at: float = 0.0

    @override
    def advanced(self, checkpoint: Checkpoint, tables: Iterable[str]) -> Self:
        return replace(self, checkpoint=checkpoint, tables=self.tables.union(tables), at=round(time.time(), 3))


@dataclass(frozen=True, slots=True)
class TermRecord(WriterRecord):
    """A record with a term beside the epoch. A term begins when an epoch takes the target over, or when the checkpoint
    is moved back. Versions of rows begin with it, so that a late row of an older term loses against newer ones.

    Attributes:
        term: the term of the writer.
        statements: (batch, number) up to which schema changes are done.
    """

    term: int = 0
    statements: tuple[int, int] = (0, 0)

    @property
    def next_term(self) -> int:
        """A later term: by the clock, so that a pipeline that begins anew is later than what it was before."""
        return max(self.term + 1, int(time.time()))

    @override
    def taken_over(self, checkpoint: Checkpoint) -> Self:
        same = self.term and self.checkpoint.epoch == checkpoint.epoch
        return replace(self, checkpoint=checkpoint, term=self.term if same else self.next_term)

    @override
    def rewound(self, checkpoint: Checkpoint, *, anew: bool) -> Self:
        return replace(self, checkpoint=checkpoint, term=self.next_term, statements=(0, 0))

    def followed(self, fence: Fence, number: int) -> bool:
        """Return True if the schema change with this number is done."""
        batch, last_number = self.statements
        return batch == fence.batch and last_number > number


# -- the codec ---------------------------------------------------------------------------------------------------------
def seal_of(owner: Sequence[str], batch: int, position: Any) -> int:
    """Return a checksum of a batch and its position (JSON values), which are written together.

    ``owner``: pipeline and target.
    """
    return zlib.crc32(json.dumps([*owner, batch, position], sort_keys=True).encode())


def fields_of(checkpoint: Checkpoint, owner: str) -> dict[str, Any]:
    """Return the stored fields of a checkpoint."""
    position = checkpoint.position.to_json() if checkpoint.position is not None else None
    return {
        "format": FORMAT_VERSION, "epoch": checkpoint.epoch, "batch": checkpoint.batch,
        "identity": checkpoint.identity, "position": position, "seal": seal_of([owner], checkpoint.batch, position),
    }  # fmt: skip


def position_text(fields: Mapping[str, Any]) -> str:
    """Return the position of stored fields as a text, "" if there is none: for kinds without nested values."""
    position = fields["position"]
    return json.dumps(position, sort_keys=True) if position is not None else ""


def checkpoint_of(fields: Mapping[str, Any], owner: str, *, sealed: bool = True) -> Checkpoint:
    """Parse the stored fields of a checkpoint; numbers and the position may be texts. Call it in :func:`reading`.

    ``sealed``: every version of Sluice wrote a seal, so that one without it was not written by Sluice.
    """
    if int(fields["format"]) != FORMAT_VERSION:
        raise ValueError(f"it has format {fields['format']}, and this version of Sluice knows {FORMAT_VERSION}")
    position, batch = fields["position"], int(fields["batch"])
    if isinstance(position, str):
        position = json.loads(position) if position else None
    seal = fields["seal"] if sealed else fields.get("seal")
    edited = seal is not None and int(seal) != seal_of([owner], batch, position)
    offset = Offset.from_json(position) if position is not None else None
    return Checkpoint(int(fields["epoch"]), batch, offset, str(fields["identity"]), edited)


@contextmanager
def reading(place: RecordPlace, *, owner: str = "", where: str = "") -> Iterator[None]:
    """Raise CheckpointError for a record that cannot be parsed. ``owner``, ``where``: of another target's record."""
    try:
        yield
    except (ValueError, KeyError, TypeError, SluiceError) as error:
        raise CheckpointError(
            f"the checkpoint of {owner or place.owner} cannot be read: {type(error).__name__}: {error}",
            where=where or place.record_place,
            hint=f"was it written by a newer version, or by hand? `sluice check {place.pipeline}` says what to do",
        ) from error


# -- the decisions -----------------------------------------------------------------------------------------------------
def require_no_newer(checkpoint: Checkpoint, epoch: int, where: str) -> None:
    """Raise Fenced if a higher epoch wrote to the target."""
    if checkpoint.epoch > epoch:
        raise Fenced(
            f"epoch {checkpoint.epoch} took this target over from epoch {epoch}",
            where=where,
            hint="a newer run is at work; this one must not write any more",
        )


def require_own(checkpoint: Checkpoint, epoch: int, where: str) -> None:
    """Raise Fenced unless ``epoch`` took the target over, and none did after it."""
    require_no_newer(checkpoint, epoch, where)
    if checkpoint.epoch != epoch:
        raise Fenced(f"epoch {epoch} did not take this target over", where=where)


def require_batch(delivered: int, fence: Fence, where: str) -> None:
    """Raise Fenced unless the target holds the batch after which ``fence`` writes."""
    if delivered != fence.held:
        raise Fenced(
            f"batch {fence.batch} was to be written after batch {fence.held}, and the target holds batch "
            f"{delivered} by now",
            where=where,
            hint="another run delivered it; this one has nothing left to do",
        )


R = TypeVar("R", bound=Record)
P = TypeVar("P", bound=RecordPlace)


def require_present(record: R | None, place: RecordPlace) -> R:
    """Return the record of a target that has one. Raises Fenced."""
    if record is None:
        raise Fenced(
            "the target's checkpoint is gone",
            where=place.record_place,
            hint=f"was it removed by hand, or was the target emptied? `sluice check {place.pipeline}` says what to do",
        )
    return record


def require_record(record: R | None, place: RecordPlace, epoch: int) -> R:
    """Return the record of a target that ``epoch`` took over. Raises Fenced."""
    present = require_present(record, place)
    require_own(present.checkpoint, epoch, place.record_place)
    return present


def require_guarded(record: R | None, place: RecordPlace, fence: Fence) -> R:
    """Return the record; raise Fenced unless its epoch and batch are those of ``fence``, CheckpointError if a person
    edited it.
    """
    current = require_record(record, place, fence.epoch)
    if current.checkpoint.edited:
        raise CheckpointError(
            "the target's checkpoint was edited: its batch and its position were not written together; nothing was "
            "written",
            where=place.record_place,
            hint=f"`sluice recover {place.pipeline}` shows every choice with its cost",
        )
    require_batch(current.checkpoint.batch, fence, place.record_place)
    return current


# -- the store ---------------------------------------------------------------------------------------------------------
class RecordStore(Protocol[R]):
    """The two calls of a kind: compare and set."""

    def read(self) -> tuple[R | None, Any]:
        """Return the record, None if there is none, and a token of its revision. Raises CheckpointError."""

    def swap(self, record: R | None, token: Any) -> bool:
        """Store ``record`` (None: remove it) in place of the revision of ``token``; False if that is no longer
        the newest one.
        """


Decision = Callable[[R | None], R | None]
"""Returns the record that takes the place of another one (None: there is none). Raises Fenced."""


def change_record(store: RecordStore[R], decide: Decision[R], place: RecordPlace) -> R | None:
    """Store what ``decide`` returns for the newest record; it decides again each time another process was faster."""
    for attempt in range(_ATTEMPTS):
        record, token = store.read()
        decided = decide(record)
        if decided == record or store.swap(decided, token):
            return decided
        time.sleep(min(0.01 * 2**attempt, 1.0))
    raise TargetUnavailable(
        "other processes changed the checkpoint again and again",
        where=place.record_place,
        hint=f"did a person remove the newest record there? Then remove it all: `sluice check {place.pipeline}` says "
        "what to do",
    )


class Move(StrEnum):
    """A move of the checkpoint."""

    TAKE_OVER = "taking the target over"
    ADVANCE = "advancing the checkpoint"
    REWIND = "rewinding the checkpoint"
    FORGET = "forgetting the checkpoint"


class RecordCheckpoints(CheckpointStore, ABC, Generic[P, R]):
    """A store of the checkpoint over a record, which a kind reads and changes."""

    def __init__(self, place: P, kind: type[R]) -> None:
        self._place, self._kind = place, kind

    @abstractmethod
    def _read(self) -> R | None:
        """Return the record, None if there is none. Raises CheckpointError."""

    @abstractmethod
    def _change(self, move: Move, epoch: int, decide: Decision[R]) -> R | None:
        """Store what ``decide`` returns for the newest record, while no other process changes it; return it."""

    @property
    def place(self) -> str:
        """The location of the checkpoint, for messages."""
        return self._place.record_place

    @override
    def read(self) -> Checkpoint | None:
        record = self._read()
        return record.checkpoint if record is not None else None

    @override
    def take_over(self, epoch: int, first: int = 0, *, identity: str = "", agrees: Agrees | None = None) -> Checkpoint:

        def decide(record: R | None) -> R:
            if agrees is not None:
                agrees(record.checkpoint if record is not None else None)
            record = record if record is not None else self._kind.first(first)
            checkpoint = record.checkpoint
            require_no_newer(checkpoint, epoch, self.place)
            return record.taken_over(replace(checkpoint, epoch=epoch, identity=identity or checkpoint.identity))

        record = self._change(Move.TAKE_OVER, epoch, decide)
        assert record is not None
        return record.checkpoint

    @override
    def advance(self, to: Checkpoint, tables: Iterable[str] = ()) -> None:
        """Record a later batch; a batch that is not later changes nothing. ``tables``: the tables that it wrote."""

        def decide(record: R | None) -> R:
            current = require_record(record, self._place, to.epoch)
            if current.checkpoint.batch >= to.batch:
                return current
            moved = replace(current.checkpoint, batch=to.batch, position=to.position, edited=False)
            return current.advanced(moved, tables)

        self._change(Move.ADVANCE, to.epoch, decide)

    @override
    def rewind(self, to: Checkpoint, *, anew: bool = False) -> None:

        def decide(record: R | None) -> R:
            record = record if record is not None else self._kind.first(to.batch)
            require_no_newer(record.checkpoint, to.epoch, self.place)
            identity = to.identity or record.checkpoint.identity
            return record.rewound(Checkpoint(to.epoch, to.batch, to.position, identity), anew=anew)

        self._change(Move.REWIND, to.epoch, decide)

    @override
    def forget(self) -> None:
        self._change(Move.FORGET, 0, lambda _: None)


class SwappedCheckpoints(RecordCheckpoints[P, R]):
    """A store of the checkpoint over the two calls of a kind."""

    @abstractmethod
    def _opened(self) -> AbstractContextManager[RecordStore[R]]:
        """Connect for the block."""

    def _read(self) -> R | None:
        with self._opened() as store:
            return store.read()[0]

    def _change(self, move: Move, epoch: int, decide: Decision[R]) -> R | None:
        with self._opened() as store:
            return change_record(store, decide, self._place)
