"""The checkpoint of a target that keeps a document for each row: a document, too, changed by compare-and-set.

It has a term beside the epoch: a term begins when an epoch takes the target over, or when the checkpoint is moved back.
The versions of documents begin with it, so that whatever a loader of an earlier term still sends is older.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from sluice.errors import CheckpointError, Fenced, SluiceError
from sluice.model.offset import Offset
from sluice.targets.fencing import require_batch, require_no_newer, require_own, require_unedited, seal_of
from sluice.targets.port import Agrees, Checkpoint, Fence

FORMAT_VERSION = 1
_BATCH_BITS = 31


class RecordPlace(Protocol):
    """The names of a target and of its checkpoint."""

    @property
    def pipeline(self) -> str:
        """The name of the pipeline."""

    @property
    def target(self) -> str:
        """The name of the target."""

    @property
    def owner(self) -> str:
        """The pipeline and the target, by name."""

    @property
    def record_place(self) -> str:
        """The location of the checkpoint, for messages."""


@dataclass(frozen=True, slots=True)
class Record:
    """The document.

    Attributes:
        term: of the writer. tables: target tables that the pipeline wrote. at: seconds since 1970 of the last batch.
        statements: (batch, number) up to which schema changes are done. seen: what a compare-and-set compares, None if
            there is no document.
    """

    checkpoint: Checkpoint
    term: int = 0
    tables: frozenset[str] = frozenset()
    at: float = 0.0
    statements: tuple[int, int] = (0, 0)
    seen: Any = field(default=None, compare=False)

    def version(self, batch: int) -> int:
        """Return the version of documents that a batch writes: a later term wins, within a term a later batch."""
        return self.term << _BATCH_BITS | batch

    def to_document(self, place: RecordPlace) -> dict[str, Any]:
        """Return the document."""
        held = self.checkpoint
        position = held.position.to_json() if held.position else None
        return {
            "format": FORMAT_VERSION, "pipeline": place.pipeline, "target": place.target, "epoch": held.epoch,
            "term": self.term, "batch": held.batch, "identity": held.identity,
            "position": json.dumps(position, sort_keys=True) if position else "",
            "seal": seal_of([place.owner], held.batch, position), "tables": sorted(self.tables),
            "at": self.at, "statements": list(self.statements),
        }  # fmt: skip

    def followed(self, fence: Fence, number: int) -> bool:
        """Return True if the schema change with this number is done."""
        batch, done = self.statements
        return batch == fence.batch and done > number


def record_of(data: Mapping[str, Any], owner: str, seen: Any, *, where: str, pipeline: str) -> Record:
    """Return the record of an owner from its document. Raises CheckpointError."""
    try:
        if data["format"] != FORMAT_VERSION:
            raise ValueError(f"format {data['format']}")
        position = Offset.from_json(json.loads(data["position"])) if data["position"] else None
        edited = data["seal"] != seal_of([owner], data["batch"], position.to_json() if position else None)
        held = Checkpoint(int(data["epoch"]), int(data["batch"]), position, str(data["identity"]), edited)
        batch, number = map(int, data["statements"])
        return Record(held, int(data["term"]), frozenset(data["tables"]), float(data["at"]), (batch, number), seen)
    except (ValueError, KeyError, TypeError, SluiceError) as error:
        raise CheckpointError(
            f"the checkpoint of {owner} cannot be read: {error!r}",
            where=where,
            hint=f"was it written by a newer version, or by hand? `sluice check {pipeline}` says what to do",
        ) from error


def next_term(held: Record) -> int:
    """Return a later term: by the clock, so that a pipeline that begins anew is later than what it was before."""
    return max(held.term + 1, int(time.time()))


def require_record(found: Record | None, place: RecordPlace, epoch: int) -> Record:
    """Return the record of a target that ``epoch`` took over. Raises Fenced."""
    if found is None:
        raise Fenced(
            "the target's checkpoint is gone",
            where=place.record_place,
            hint=f"was it removed? `sluice check {place.pipeline}` says what to do",
        )
    require_own(found.checkpoint, epoch, place.record_place)
    return found


def require_guarded(found: Record | None, place: RecordPlace, fence: Fence) -> Record:
    """Return the record, if it is what a unit of ``fence`` was told. Raises Fenced, CheckpointError."""
    held = require_record(found, place, fence.epoch)
    require_unedited(held.checkpoint, place.pipeline, place.record_place)
    require_batch(held.checkpoint.batch, fence, place.record_place)
    return held


Change = Callable[[Record | None], Record]
"""Returns the record that takes the place of the one that is there. Raises Fenced."""


class RecordCheckpoints(ABC):
    """See :class:`sluice.targets.port.CheckpointStore`. A kind reads and changes the document."""

    def __init__(self, place: RecordPlace) -> None:
        self._at = place

    @property
    def place(self) -> str:
        """The document, and its server."""
        return self._at.record_place

    @abstractmethod
    def _read(self) -> Record | None:
        """Return the record, None if there is none. Raises CheckpointError."""

    @abstractmethod
    def _change(self, made: Change, *, anew: bool) -> Record:
        """Change the record by compare-and-set.

        ``anew``: a term may begin, and writers of earlier ones are to be shut out.
        """

    def read(self) -> Checkpoint | None:
        """Return the target's checkpoint, None if there is none."""
        found = self._read()
        return found.checkpoint if found is not None else None

    def take_over(self, epoch: int, first: int = 0, *, identity: str = "", agrees: Agrees | None = None) -> Checkpoint:
        """Take the target over. Raises Fenced, and what ``agrees`` raises."""

        def made(found: Record | None) -> Record:
            if agrees is not None:
                agrees(found.checkpoint if found else None)
            held = found or Record(Checkpoint(0, first))
            require_no_newer(held.checkpoint, epoch, self.place)
            same = found is not None and held.checkpoint.epoch == epoch
            taken = replace(held.checkpoint, epoch=epoch, identity=identity or held.checkpoint.identity)
            return replace(held, checkpoint=taken, term=held.term if same else next_term(held))

        return self._change(made, anew=True).checkpoint

    def advance(self, to: Checkpoint, tables: Iterable[str] = ()) -> None:
        """Store a later checkpoint. ``tables``: that the batch wrote. Raises Fenced."""

        def made(found: Record | None) -> Record:
            held = require_record(found, self._at, to.epoch)
            if held.checkpoint.batch > to.batch:
                raise Fenced(
                    f"the target holds batch {held.checkpoint.batch} by now, and batch {to.batch} was to be recorded",
                    where=self.place,
                    hint="another run delivered it; this one has nothing left to do",
                )
            moved = replace(to, identity=to.identity or held.checkpoint.identity)
            return replace(held, checkpoint=moved, tables=held.tables.union(tables), at=round(time.time(), 3))

        self._change(made, anew=False)

    def rewind(self, to: Checkpoint, *, anew: bool = False) -> None:
        """Store a checkpoint that may be earlier. Raises Fenced."""

        def made(found: Record | None) -> Record:
            held = found or Record(Checkpoint(0, to.batch))
            require_no_newer(held.checkpoint, to.epoch, self.place)
            moved = replace(to, identity=to.identity or held.checkpoint.identity)
            return replace(held, checkpoint=moved, term=next_term(held), statements=(0, 0))

        self._change(made, anew=True)


__all__ = [
    "FORMAT_VERSION", "Change", "Record", "RecordCheckpoints", "RecordPlace", "next_term", "record_of",
    "require_guarded", "require_record",
]  # fmt: skip
