"""The checkpoint of a target that keeps a document for each row: a document, too, changed by compare-and-set.

The versions of documents begin with the record's term, so that whatever a loader of an earlier term still sends is
older.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from sluice.targets.port.record import RecordPlace, TermRecord, checkpoint_of, fields_of, position_text, reading

_BATCH_BITS = 31


class DocumentPlace(RecordPlace, Protocol):
    """The names of a target and of its document."""

    @property
    def target(self) -> str:
        """The name of the target."""


@dataclass(frozen=True, slots=True)
class Record(TermRecord):
    """The document."""

    def version(self, batch: int) -> int:
        """Return the version of documents that a batch writes: a later term wins, within a term a later batch."""
        return self.term << _BATCH_BITS | batch

    def to_document(self, place: DocumentPlace) -> dict[str, Any]:
        """Return the document."""
        fields = fields_of(self.checkpoint, place.owner)
        return {
            "format": fields["format"], "pipeline": place.pipeline, "target": place.target, "epoch": fields["epoch"],
            "term": self.term, "batch": fields["batch"], "identity": fields["identity"],
            "position": position_text(fields), "seal": fields["seal"], "tables": sorted(self.tables), "at": self.at,
            "statements": list(self.statements),
        }  # fmt: skip


def record_of(data: Mapping[str, Any], place: RecordPlace, owner: str, where: str) -> Record:
    """Return the record of an owner from its document. Raises CheckpointError."""
    with reading(place, owner=owner, where=where):
        batch, number = map(int, data["statements"])
        tables, at = frozenset(data["tables"]), float(data["at"])
        return Record(checkpoint_of(data, owner), tables, at, int(data["term"]), (batch, number))
