"""Batches and operations: values only."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NewType

from sluice.model.offset import Offset

Epoch = NewType("Epoch", int)
BatchNumber = NewType("BatchNumber", int)


class Op(StrEnum):
    """The operation of a stored row (column ``_op``)."""

    INSERT = "i"
    UPDATE = "u"
    DELETE = "d"
    KEY_MOVED = "k"
    """An update moved the row to another key: a delete of ``_before``'s key, stored in that key's bucket in addition to
    the ``u`` row (same ``_seq``) in the new key's bucket. Only merge reads it; streams of changes leave it out.
    """
    READ = "r"
    """A row read by a dump at a high watermark."""


class StageKind(StrEnum):
    """The kind of work of a stage of a pipeline; the value begins the names of its tasks."""

    CAPTURE = "drain"
    MERGE = "merge"
    RULE = "rule"
    LOAD = "load"
    ACKNOWLEDGE = "ack"

    @property
    def has_subject(self) -> bool:
        """True if a pipeline has a stage of this kind for each rule or for each target."""
        return self not in {StageKind.CAPTURE, StageKind.MERGE}


class BatchState(StrEnum):
    """The progress of a batch; it moves only forward."""

    DRAINED = "drained"
    MERGED = "merged"


@dataclass(frozen=True, slots=True)
class Batch:
    """A numbered run of changes, delivered as a unit; stored in ZooKeeper.

    Attributes:
        number: from 1, without gaps.
        epoch: lease epoch of the capture that wrote it.
        claim: which run delivers it (``airflow:<installation>:<run id>`` or ``cli:<host>:<pid>``).
        manifest: path of the segment manifest, relative to the pipeline's store.
        first, last: position before the first and after the last transaction.
        changes: row changes in it; size_bytes: Parquet bytes.
        stages: manifests that the stages of rules with a task of their own left, as far as they are done.
        reread: a stage failed since; the next attempt takes the rule files as they are then.
        created_ms: wall clock of the capture that wrote it, milliseconds since 1970; for people and for finding
            orphans.
        first_commit_time_us: commit time of its first transaction, microseconds since 1970.
        targets: the only targets it is for (a dump for some of them); empty: all.
        snapshot: it is all rows of the pipeline's snapshot as of this batch, which the load of its targets reads; 0: it
            is not.
        replaces: rows of its targets that the snapshot does not have go.
        dropped: a person let it go: it is not loaded anywhere, and counts as delivered.
        state: see BatchState; changeset: path of the changeset manifest once merged, relative to the store.
    """

    number: BatchNumber
    epoch: Epoch
    claim: str
    manifest: str
    first: Offset
    last: Offset
    changes: int
    size_bytes: int
    state: BatchState = BatchState.DRAINED
    changeset: str | None = None
    created_ms: int = 0
    first_commit_time_us: int = 0
    targets: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()
    reread: bool = False
    dropped: bool = False
    snapshot: int = 0
    replaces: bool = False

    def is_for(self, target: str) -> bool:
        """Return True if ``target`` gets rows of this batch. Another target only acknowledges it."""
        return not self.dropped and (not self.targets or target in self.targets)

    @property
    def needs_merge(self) -> bool:
        """True if it has no changeset yet, and a merge makes it."""
        return not self.changeset and not self.snapshot

    def age_ms(self) -> int | None:
        """Return the milliseconds since its first commit; None if that is not known."""
        first_us = self.first_commit_time_us
        return max(int(time.time() * 1000) - first_us // 1000, 0) if first_us else None

    def to_json(self) -> dict[str, Any]:
        """Return the content of the batch's node, without its version."""
        return {
            "number": self.number,
            "epoch": self.epoch,
            "claim": self.claim,
            "manifest": self.manifest,
            "first": self.first.to_json(),
            "last": self.last.to_json(),
            "changes": self.changes,
            "size_bytes": self.size_bytes,
            "state": self.state.value,
            "changeset": self.changeset,
            "created_ms": self.created_ms,
            "first_commit_time_us": self.first_commit_time_us,
            "targets": list(self.targets),
            "stages": list(self.stages),
            "reread": self.reread,
            "dropped": self.dropped,
            **({"snapshot": self.snapshot} if self.snapshot else {}),
            **({"replaces": True} if self.replaces else {}),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Batch:
        """Read what :meth:`to_json` returned."""
        return cls(
            number=BatchNumber(data["number"]),
            epoch=Epoch(data["epoch"]),
            claim=data["claim"],
            manifest=data["manifest"],
            first=Offset.from_json(data["first"]),
            last=Offset.from_json(data["last"]),
            changes=data["changes"],
            size_bytes=data["size_bytes"],
            state=BatchState(data["state"]),
            changeset=data["changeset"],
            created_ms=data.get("created_ms", 0),
            first_commit_time_us=data.get("first_commit_time_us", 0),
            targets=tuple(data.get("targets", ())),
            stages=tuple(data.get("stages", ())),
            reread=data.get("reread", False),
            dropped=data.get("dropped", False),
            snapshot=data.get("snapshot", 0),
            replaces=data.get("replaces", False),
        )


@dataclass(frozen=True, slots=True)
class DrainOutcome:
    """The result of a capture.

    Attributes:
        batch: the batch to deliver, None if there was nothing.
        position: captured position afterwards.
        changes: row changes in the batch; closed_by: what closed it (bytes, changes, time, ddl, head, idle).
        due: dumps that became due automatically and that no worker reads.
        adopted: the batch existed already: this run's own from an earlier try, or one whose run is gone.
        merged: no batch of the run needs a merge any more.
    """

    batch: int | None
    position: Offset
    changes: int = 0
    closed_by: str = "idle"
    adopted: bool = False
    merged: bool = False
    due: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return what a task hands on and prints."""
        return {
            "batch": self.batch,
            "position": self.position.to_json(),
            "changes": self.changes,
            "closed_by": self.closed_by,
            "adopted": self.adopted,
            "merged": self.merged,
        }
