"""The acknowledgements of targets: the second of the two positions.

It moves batch by batch, and never before the target said so.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from sluice.coordination.identity import Identity
from sluice.coordination.layout import ACKNOWLEDGEMENT, Layout
from sluice.coordination.leases import Lease, transact_as
from sluice.coordination.port import Conflict, Put, Znode, Znodes, committed
from sluice.errors import OutOfOrder
from sluice.model.batches import Batch, BatchNumber
from sluice.model.offset import Offset


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """A target's acknowledgement: everything up to ``batch`` and ``position`` is in the target.

    ``began`` is the batch that was the last one when the target joined; equal to ``batch`` as long as nothing was
    acknowledged. ``identity``: of the state that it belongs to; "" if an older version wrote it. ``restart``: the batch
    with which the target starts again from the snapshot, as those before it are gone; 0: it goes on with the next one.
    ``changes``, ``size_bytes``: of all batches that were acknowledged since they are counted; for metrics only.
    """

    batch: BatchNumber
    position: Offset
    began: BatchNumber
    version: int = -1
    identity: str = ""
    restart: int = 0
    changes: int = field(default=0, compare=False)
    size_bytes: int = field(default=0, compare=False)

    @property
    def following(self) -> int:
        """The batch that comes next for the target."""
        return max(self.batch + 1, self.restart)

    @classmethod
    def from_json(cls, data: dict[str, Any], version: int = -1) -> Acknowledgement:
        """Parse a node's fields. Raises ConfigError for a position in a format that this version does not know."""
        position = Offset.from_json(data["position"])
        batch, began = BatchNumber(data["batch"]), BatchNumber(data["began"])
        return cls(
            batch,
            position,
            began,
            version,
            data.get("identity", ""),
            data.get("restart", 0),
            data.get("changes", 0),
            data.get("size_bytes", 0),
        )

    def encoded(self) -> bytes:
        """Return the content of its node."""
        data: dict[str, Any] = {"batch": self.batch, "position": self.position.to_json(), "began": self.began}
        if self.restart > self.batch:
            data["restart"] = self.restart
        data |= {name: value for name, value in (("changes", self.changes), ("size_bytes", self.size_bytes)) if value}
        return ACKNOWLEDGEMENT.encode(data | ({"identity": self.identity} if self.identity else {}))


class Acknowledgements:
    """The acknowledgements of one pipeline's targets."""

    def __init__(self, znodes: Znodes, layout: Layout, identity: Identity) -> None:
        self._z = znodes
        self._at = layout
        self._identity = identity

    def get(self, target: str) -> Acknowledgement | None:
        """Return what a target has acknowledged, or None before its first batch."""
        return ACKNOWLEDGEMENT.read(self._z, self._at.acknowledgement(target), Acknowledgement.from_json)

    def delivered(self, targets: Sequence[str]) -> int:
        """Return the last batch that every one of ``targets`` has acknowledged; 0 if none.

        A target that has not begun yet will begin after all of them, and does not count.
        """
        return min(
            (acknowledgement.batch for acknowledgement in map(self.get, targets) if acknowledgement is not None),
            default=0,
        )

    def begun(self, target: str, first: Acknowledgement) -> Put:
        """Return the step that writes a target's first acknowledgement over whatever is there."""
        return Put(self._at.acknowledgement(target), first.encoded(), self._node(target).version)

    def restarting(self, target: str, batch: int) -> Put:
        """Return the step after which a target starts again with ``batch``."""
        before = self.get(target)
        assert before is not None, "it lacks batches"
        return Put(self._at.acknowledgement(target), replace(before, restart=batch).encoded(), before.version)

    def unchanged(self, target: str) -> Put:
        """Return the step that writes a target's acknowledgement as it is, so that no move under way succeeds."""
        before = self.get(target)
        assert before is not None, "it has begun"
        return Put(self._at.acknowledgement(target), before.encoded(), before.version)

    def begin(self, target: str, batch: BatchNumber, position: Offset) -> Acknowledgement:
        """Write a target's first acknowledgement: everything up to ``batch`` counts as delivered.

        Keeps one that is there.
        """
        node = self._node(target)
        if not node.data:
            first = Acknowledgement(batch, position, batch, identity=self._identity.read())
            with suppress(Conflict):  # another process wrote it first; its value is as good
                self._z.transact([Put(self._at.acknowledgement(target), first.encoded(), node.version)])
        acknowledgement = self.get(target)
        assert acknowledgement is not None
        return acknowledgement

    def acknowledge(self, target: str, batch: Batch, *, seen: Acknowledgement | None = None) -> Acknowledgement:
        """Record that ``batch`` is delivered. Raises OutOfOrder unless it is the next one; a repeat is harmless.

        No lease is needed: what is acknowledged is what the target itself said, and the node's version guards the move.
        So an acknowledgement never waits for the load of the next batch. ``seen``: the acknowledgement as it was before
        the target was asked; if it was moved back since (redeliver), the target's answer is out of date, and the move
        is refused.
        """
        path = self._at.acknowledgement(target)
        before = seen or self.get(target)
        if before is None:
            raise OutOfOrder(f"target {target} has no acknowledged position yet", where=path)
        if batch.number <= before.batch:
            return before
        if batch.number != before.following:
            raise OutOfOrder(
                f"target {target} has acknowledged batch {before.batch}; batch {batch.number} cannot come next",
                where=path,
            )
        after = replace(
            before,
            batch=batch.number,
            position=batch.last,
            restart=0,
            changes=before.changes + batch.changes,
            size_bytes=before.size_bytes + batch.size_bytes,
        )
        try:
            self._z.transact([Put(path, after.encoded(), before.version)])
        except Conflict as conflict:
            now = self.get(target)
            if now is not None and now.batch >= batch.number:
                return now
            raise OutOfOrder(
                f"acknowledging batch {batch.number}: the position moved meanwhile", where=path
            ) from conflict
        return replace(after, version=before.version + 1)

    def take_back(self, lease: Lease, target: str, batch: int, position: Offset) -> Acknowledgement:
        """Move a target's acknowledgement back to ``batch``, which ends at ``position``."""
        before = self.get(target)
        assert before is not None
        after = replace(before, batch=BatchNumber(batch), position=position, restart=0)
        step = Put(self._at.acknowledgement(target), after.encoded(), before.version)
        transact_as(self._z, lease, f"taking back the acknowledgements of target {target}", [step])
        return replace(after, version=before.version + 1)

    def adopt(self, lease: Lease, target: str, batch: int, position: Offset, began: int) -> Acknowledgement:
        """Set a target's acknowledgement, of this state from now on, whatever it was."""
        node = self._node(target)
        acknowledgement = Acknowledgement(
            BatchNumber(batch), position, BatchNumber(began), identity=self._identity.read()
        )
        step = Put(self._at.acknowledgement(target), acknowledgement.encoded(), node.version)
        transact_as(self._z, lease, f"setting the acknowledgement of target {target}", [step])
        return replace(acknowledgement, version=node.version + 1)

    def forget(self, target: str) -> None:
        """Delete a target's acknowledgement: it begins anew with the next capture."""
        path = self._at.acknowledgement(target)
        node = self._z.get(path)
        if node is not None and node.data:
            committed(self._z, Put(path, b"", node.version))

    def _node(self, target: str) -> Znode:
        """Return a target's node, created if there is none."""
        path = self._at.acknowledgement(target)
        self._z.ensure(path)
        node = self._z.get(path)
        assert node is not None
        return node
