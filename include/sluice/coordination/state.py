"""The state of one pipeline in ZooKeeper: two cursors, numbered batches, acknowledgements. Every move is one compare-and-set.

All paths and formats: :mod:`sluice.coordination.layout`.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from sluice.coordination.active_installation import ActiveInstallation
from sluice.coordination.dumps import DumpStates
from sluice.coordination.layout import (
    ACKNOWLEDGEMENT,
    ALERT,
    AUDIT,
    BATCH,
    CURSOR,
    IDENTITY,
    LEASE,
    PERMIT,
    Layout,
    claim_suffix,
    lease_epoch,
    lease_node,
)
from sluice.coordination.leases import Lease, fenced, holding, owner_label, raise_epoch
from sluice.coordination.port import Check, Conflict, Create, Put, Remove, Step, Znode, Znodes
from sluice.coordination.target_checkpoints import TargetRecords
from sluice.coordination.target_holds import Holds
from sluice.errors import OutOfOrder, Paused, Restarted, SegmentError
from sluice.model.batches import Batch, BatchState
from sluice.model.positions import BatchNumber, Position
from sluice.model.stored_fields import known_fields

KEPT_BATCHES = 200
"""Batch nodes kept below the last one that every target has acknowledged: a retried run still finds its batch there."""


KEPT_AUDIT = 1000


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far the log is captured, and the number the next batch gets. ``version`` is ZooKeeper's.

    ``schema``: file of the schema history that belongs to the position (:mod:`sluice.segments.schemas`), ``""`` for none.
    """

    position: Position
    next_batch: BatchNumber
    version: int = -1
    schema: str = ""

    @classmethod
    def from_json(cls, data: dict[str, Any], version: int = -1) -> Cursor:
        position = Position.from_json(data["position"])
        return cls(position, BatchNumber(data["next_batch"]), version, data.get("schema", ""))

    def encoded(self) -> bytes:
        data: dict[str, Any] = {"position": self.position.to_json(), "next_batch": self.next_batch}
        return CURSOR.encode(data | ({"schema": self.schema} if self.schema else {}))


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """A target's acknowledgement: everything up to ``batch`` and ``position`` is in the target.

    ``began`` is the batch that was the last one when the target joined; equal to ``batch`` as long as nothing was acknowledged.
    ``identity``: of the state that it belongs to; "" if an older version wrote it.
    """

    batch: BatchNumber
    position: Position
    began: BatchNumber
    version: int = -1
    identity: str = ""

    @classmethod
    def from_json(cls, data: dict[str, Any], version: int = -1) -> Acknowledgement:
        position = Position.from_json(data["position"])
        batch, began = BatchNumber(data["batch"]), BatchNumber(data["began"])
        return cls(batch, position, began, version, data.get("identity", ""))

    def encoded(self) -> bytes:
        data: dict[str, Any] = {"batch": self.batch, "position": self.position.to_json(), "began": self.began}
        return ACKNOWLEDGEMENT.encode(data | ({"identity": self.identity} if self.identity else {}))


@dataclass(frozen=True, slots=True)
class Permit:
    """May the pipeline work? ``by`` and ``reason`` say who paused it and why.

    ``round`` grows with every pause, restart and rollback: work that began in an earlier round stops and begins again.
    """

    open: bool = True
    round: int = 0
    by: str = ""
    reason: str = ""
    since: str = ""
    version: int = -1


class PipelineState:
    """Reads and moves the state of ``pipeline`` below ``root``."""

    def __init__(
        self,
        znodes: Znodes,
        root: str,
        pipeline: str,
        targets: Sequence[str],
        *,
        lease_wait_s: float,
        session_timeout_s: float = 10.0,
    ) -> None:
        self._z = znodes
        self.layout = Layout(root, pipeline)
        self._pipeline = pipeline
        self.targets = tuple(targets)
        self._wait_s = lease_wait_s
        self.turns = ActiveInstallation(znodes, self.layout, session_timeout_s=session_timeout_s)
        self.holds = Holds(znodes, self.layout, self.targets)

    # -- leases ------------------------------------------------------------------------------------------------------

    @contextmanager
    def replicator(self, owner: str | None = None, *, wait_s: float | None = None) -> Iterator[Lease]:
        """Be the one that drains; waits up to ``wait_s`` for the one that does now. Raises LeaseHeld."""
        patience_s = self._wait_s if wait_s is None else wait_s
        with holding(self._z, self.layout.replicator, wait_s=patience_s, owner=owner) as lease:
            yield lease

    @contextmanager
    def consumer(self, target: str, owner: str | None = None, *, above: int = 0) -> Iterator[Lease]:
        """Be the one that loads ``target``, with an epoch higher than ``above``."""
        folder = self.layout.consumer(target)
        with holding(self._z, folder, wait_s=self._wait_s, owner=owner) as lease:
            if lease.epoch > above:
                yield lease
                return
            raise_epoch(self._z, lease, above)
        with holding(self._z, folder, wait_s=self._wait_s, owner=owner) as lease:
            yield lease

    def consumer_epoch(self, target: str) -> int:
        """The highest epoch that a loader of ``target`` got, 0 if there was none."""
        node = self._z.get(lease_epoch(self.layout.consumer(target)))
        return int(node.data or b"0") if node else 0

    def target_records(self, target: str) -> TargetRecords:
        """The checkpoint of a target that keeps nothing itself."""
        return TargetRecords(self._z, self.layout, target)

    @property
    def alive(self) -> bool:
        """False once the session is gone, and every lease with it."""
        return self._z.alive

    def owner(self, target: str | None = None) -> str | None:
        """Label of whoever drains (or loads ``target``) now."""
        path = lease_node(self.layout.consumer(target) if target else self.layout.replicator)
        node = self._z.get(path)
        return str(LEASE.decode(path, node.data)["owner"]) if node and node.data else None

    # -- phase one: capture -------------------------------------------------------------------------------------------

    def cursor(self) -> Cursor | None:
        """The captured position, or None before the first drain."""
        node = self._z.get(self.layout.cursor)
        if node is None or not node.data:
            return None
        return CURSOR.parse(self.layout.cursor, node.data, lambda data: Cursor.from_json(data, node.version))

    @property
    def home(self) -> str:
        """The pipeline's own node, for people."""
        return self.layout.home

    def identity(self) -> str:
        """The random id of this state, "" before the first drain. A state of an older version gets one here, once."""
        path = self.layout.identity
        while True:
            node = self._z.get(path)
            if node and node.data:
                return str(IDENTITY.decode(path, node.data)["id"])
            cursor = self._z.get(self.layout.cursor)
            if cursor is None or not cursor.data:
                return ""
            made: Step = Put(path, _new_identity()[1], node.version) if node else Create(path, _new_identity()[1])
            with suppress(Conflict):  # another process was first, or the cursor moved
                self._z.transact([Check(self.layout.cursor, cursor.version), made])

    def begin(
        self,
        lease: Lease,
        position: Position,
        next_batch: int = 1,
        *,
        schema: str = "",
        targets: Sequence[str] = (),
    ) -> Cursor:
        """Write the first cursor, a new identity, and the first acknowledgements of ``targets``: all of it or nothing."""
        cursor = Cursor(position, BatchNumber(next_batch), schema=schema)
        identity, encoded = _new_identity()
        self._z.ensure(self.layout.batches)
        self._z.ensure(self.layout.claims)
        left = self._z.get(self.layout.identity)
        steps: list[Step] = [
            lease.fence,
            Create(self.layout.cursor, cursor.encoded()),
            Put(self.layout.identity, encoded, left.version) if left else Create(self.layout.identity, encoded),
        ]
        last = BatchNumber(next_batch - 1)
        for target in targets:
            path = self.layout.acknowledgement(target)
            self._z.ensure(path)
            node = self._z.get(path)
            assert node is not None
            steps.append(Put(path, Acknowledgement(last, position, last, identity=identity).encoded(), node.version))
        self._transact(lease, "writing the first position", steps)
        return replace(cursor, version=0)

    def advance(self, lease: Lease, cursor: Cursor, position: Position, *, schema: str | None = None) -> Cursor:
        """Move the captured position over a stretch of log that held nothing for us. ``schema`` None: the history stays as it is."""
        moved = Cursor(position, cursor.next_batch, schema=cursor.schema if schema is None else schema)
        self._transact(
            lease,
            f"moving the captured position to {position}",
            [lease.fence, Put(self.layout.cursor, moved.encoded(), cursor.version)],
        )
        return replace(moved, version=cursor.version + 1)

    def commit(
        self, lease: Lease, cursor: Cursor, batch: Batch, also: Sequence[Step] = (), *, schema: str | None = None
    ) -> Cursor:
        """Phase one ends: the batch exists, the captured position is after it and ``also`` is done, or nothing. ``schema``: see ``advance``."""
        moved = Cursor(batch.last, BatchNumber(batch.number + 1), schema=cursor.schema if schema is None else schema)
        self._transact(
            lease,
            f"recording batch {batch.number}",
            [
                lease.fence,
                Put(self.layout.cursor, moved.encoded(), cursor.version),
                Create(self.layout.batch(batch.number), BATCH.encode(batch.to_json())),
                Create(self.layout.claim(batch.number, batch.claim)),
                *also,
            ],
        )
        return replace(moved, version=cursor.version + 1)

    # -- batches -----------------------------------------------------------------------------------------------------

    def batch(self, number: int) -> Batch | None:
        """One batch, or None if it is not (or no longer) known."""
        path = self.layout.batch(number)
        node = self._z.get(path)
        return BATCH.parse(path, node.data, Batch.from_json) if node else None

    def require(self, number: int) -> Batch:
        """As :meth:`batch`. Raises SegmentError if it is not known."""
        batch = self.batch(number)
        if batch is None:
            raise SegmentError(
                f"batch {number} of {self._pipeline} is not in ZooKeeper",
                where=self.layout.batch(number),
                hint=f"`sluice status {self._pipeline}` lists the batches there are",
            )
        return batch

    def numbers(self) -> list[int]:
        """Numbers of all known batches, ascending."""
        return [int(name) for name in self._z.children(self.layout.batches)]

    def undelivered(self) -> list[int]:
        """Numbers of the batches that some target has not acknowledged, ascending."""
        done = self.delivered()
        return [n for n in self.numbers() if n > done]

    def in_window(self) -> list[int]:
        """Numbers of the batches that some target lacks, ascending; quarantined targets don't count."""
        done = self.delivered(self.holds.going())
        return [n for n in self.numbers() if n > done]

    def claimed(self, claim: str) -> Batch | None:
        """The newest batch that ``claim`` delivers: what a retried drain gets again. Reads no batch of another claim."""
        if self._z.get(self.layout.claims) is None:
            self._index_claims()
        suffix = claim_suffix(claim)
        for name in reversed(self._z.children(self.layout.claims)):
            if name.endswith(suffix):
                batch = self.batch(self.layout.claimed_batch(name))
                if batch and batch.claim == claim:
                    return batch
        return None

    def _index_claims(self) -> None:
        """Once, for a state of an older version: the nodes that :meth:`commit` writes by now."""
        batches = [batch for batch in map(self.batch, self.numbers()) if batch]
        steps: list[Step] = [Create(self.layout.claims)]
        steps += [Create(self.layout.claim(batch.number, batch.claim)) for batch in batches]
        with suppress(Conflict):  # another process was first
            self._z.transact(steps)

    def reclaim(self, number: int, claim: str) -> Batch | None:
        """Let ``claim`` deliver a batch whose run is gone. None if the batch changed meanwhile."""
        path = self.layout.claim(number, claim)
        known = self._z.get(path) is not None
        return self._rewrite(number, lambda batch: replace(batch, claim=claim), [] if known else [Create(path)])

    def merged(self, number: int, changeset: str, *, under: Permit | None = None) -> Batch:
        """Record the changeset of a batch; the first one stays. Returns the batch as it then is.

        Raises Paused or Restarted if a person paused, restarted or rolled back the pipeline since ``under`` was read.
        """
        return self._recorded(
            number,
            lambda b: bool(b.changeset),
            lambda b: replace(b, state=BatchState.MERGED, changeset=changeset),
            under,
        )

    def staged(self, number: int, stage: int, path: str, *, under: Permit | None = None) -> Batch:
        """Record what stage ``stage`` (from 0) of a batch's rules left; the first one stays. As :meth:`merged`."""
        return self._recorded(
            number,
            lambda b: bool(b.changeset) or len(b.stages) != stage,
            lambda b: replace(b, stages=(*b.stages, path), reread=False),
            under,
        )

    def _recorded(
        self, number: int, is_done: Callable[[Batch], bool], change: Callable[[Batch], Batch], under: Permit | None
    ) -> Batch:
        while True:
            batch = self.require(number)
            if is_done(batch):
                return batch
            done = self._rewrite(
                number,
                lambda b: b if is_done(b) else change(b),
                [Check(self.layout.permit, under.version)] if under else [],
            )
            if done:
                return done
            if under:
                self.require_permit(since=under)
                under = self.permit()  # a person resumed meanwhile, and no more than that

    def stage_failed(self, number: int) -> None:
        """A rule failed: the next attempt takes the rule files as they are then."""
        self._rewrite(number, lambda batch: replace(batch, reread=True))

    def unmerge(self, number: int, *, made: Batch | None = None) -> None:
        """Forget a batch's changeset and stages, so that the next merge makes new ones; only if they still are those of ``made``."""

        def forgotten(batch: Batch) -> Batch:
            if made is not None and (batch.changeset, batch.stages) != (made.changeset, made.stages):
                return batch
            return replace(batch, state=BatchState.DRAINED, changeset=None, stages=(), reread=False)

        self._rewrite(number, forgotten)

    def _rewrite(self, number: int, change: Any, requirements: Sequence[Step] = ()) -> Batch | None:
        path = self.layout.batch(number)
        node = self._z.get(path)
        if node is None:
            return None
        batch: Batch = change(BATCH.parse(path, node.data, Batch.from_json))
        try:
            self._z.transact([*requirements, Put(path, BATCH.encode(batch.to_json()), node.version)])
        except Conflict:
            return None
        return batch

    # -- phase two: acknowledge -----------------------------------------------------------------------------------------

    def process(self, target: str) -> Acknowledgement | None:
        """What a target has acknowledged, or None before its first batch."""
        path = self.layout.acknowledgement(target)
        node = self._z.get(path)
        if node is None or not node.data:
            return None
        return ACKNOWLEDGEMENT.parse(path, node.data, lambda data: Acknowledgement.from_json(data, node.version))

    def begin_process(self, target: str, batch: BatchNumber, position: Position) -> Acknowledgement:
        """Write a target's first acknowledgement: everything up to ``batch`` counts as delivered. Keeps one that is there."""
        path = self.layout.acknowledgement(target)
        self._z.ensure(path)
        node = self._z.get(path)
        assert node is not None
        if not node.data:
            first = Acknowledgement(batch, position, batch, identity=self.identity())
            with suppress(Conflict):  # another process wrote it first; its value is as good
                self._z.transact([Put(path, first.encoded(), node.version)])
        process = self.process(target)
        assert process is not None
        return process

    def acknowledge(self, target: str, batch: Batch, *, seen: Acknowledgement | None = None) -> Acknowledgement:
        """Phase two ends: ``batch`` is delivered. Strictly the next one: raises OutOfOrder otherwise; a repeat is harmless.

        No lease is needed: what is acknowledged is what the target itself said, and the node's version guards the move. So an
        acknowledgement never waits for the load of the next batch. ``seen``: the acknowledgement as it was before the target was
        asked; if it was moved back since (redeliver), the target's answer is out of date, and the move is refused.
        """
        process = seen or self.process(target)
        if process is None:
            raise OutOfOrder(
                f"target {target} has no acknowledged position yet", where=self.layout.acknowledgement(target)
            )
        if batch.number <= process.batch:
            return process
        if batch.number != process.batch + 1:
            raise OutOfOrder(
                f"target {target} has acknowledged batch {process.batch}; batch {batch.number} cannot come next",
                where=self.layout.acknowledgement(target),
            )
        moved = replace(process, batch=batch.number, position=batch.last)
        path = self.layout.acknowledgement(target)
        try:
            self._z.transact([Put(path, moved.encoded(), process.version)])
        except Conflict as conflict:
            now = self.process(target)
            if now is not None and now.batch >= batch.number:
                return now
            raise OutOfOrder(
                f"acknowledging batch {batch.number}: the position moved meanwhile", where=path
            ) from conflict
        return replace(moved, version=process.version + 1)

    def redeliver(self, lease: Lease, target: str, position: Position, batches: Sequence[Batch]) -> Acknowledgement:
        """Take acknowledgements back: ``batches`` (all that follow, ascending, known again) are to be delivered once more."""
        process = self.process(target)
        assert process is not None
        for batch in batches:
            if self.batch(batch.number) is None:
                with suppress(Conflict):
                    self._z.transact([Create(self.layout.batch(batch.number), BATCH.encode(batch.to_json()))])
        back = replace(process, batch=BatchNumber(batches[0].number - 1), position=position)
        self._transact(
            lease,
            f"taking back the acknowledgements of target {target}",
            [lease.fence, Put(self.layout.acknowledgement(target), back.encoded(), process.version)],
        )
        return replace(back, version=process.version + 1)

    def adopt(self, lease: Lease, target: str, batch: int, position: Position, began: int) -> Acknowledgement:
        """Set a target's acknowledgement, of this state from now on, whatever it was."""
        path = self.layout.acknowledgement(target)
        self._z.ensure(path)
        node = self._z.get(path)
        assert node is not None
        made = Acknowledgement(BatchNumber(batch), position, BatchNumber(began), identity=self.identity())
        self._transact(
            lease,
            f"setting the acknowledgement of target {target}",
            [lease.fence, Put(path, made.encoded(), node.version)],
        )
        return replace(made, version=node.version + 1)

    def forget_process(self, target: str) -> None:
        """A target's acknowledgement is no longer known: it begins anew with the next drain."""
        path = self.layout.acknowledgement(target)
        node = self._z.get(path)
        if node is not None and node.data:
            self._moved(Put(path, b"", node.version))

    def delivered(self, targets: Sequence[str] | None = None) -> int:
        """The last batch that every target (or every one of ``targets``) has acknowledged; 0 if none.

        A target that has not begun yet will begin after all of them.
        """
        asked = self.targets if targets is None else targets
        return min((p.batch for p in map(self.process, asked) if p is not None), default=0)

    def forget(self, keep: int = KEPT_BATCHES) -> list[int]:
        """Drop batch nodes far below what every target has acknowledged. Returns their numbers."""
        limit = self.delivered() - keep
        gone = [n for n in self.numbers() if n <= limit]
        claims = (
            [name for name in self._z.children(self.layout.claims) if self.layout.claimed_batch(name) <= limit]
            if gone
            else []
        )
        for start in range(0, len(gone), 100):
            steps: list[Step] = [Remove(self.layout.batch(n)) for n in gone[start : start + 100]]
            try:
                self._z.transact(steps)
            except Conflict:
                break
        for name in claims:
            self._moved(Remove(f"{self.layout.claims}/{name}"))
        return gone

    def forget_batches(self) -> None:
        """Drop every batch node: of a state whose captured position is gone. Their files stay in the store."""
        if self.cursor() is not None:
            return
        for folder in (self.layout.batches, self.layout.claims):
            for name in self._z.children(folder):
                self._moved(Remove(f"{folder}/{name}"))

    # -- dumps ---------------------------------------------------------------------------------------------------------

    @property
    def dumps(self) -> DumpStates:
        """The pipeline's dumps."""
        return DumpStates(self._z, self.layout, owner_label())

    # -- what people do ------------------------------------------------------------------------------------------------

    def permit(self) -> Permit:
        """The permit; open by default."""
        node = self._z.get(self.layout.permit)
        if node is None or not node.data:
            return Permit(version=node.version if node else -1)
        return Permit(**known_fields(Permit, PERMIT.decode(self.layout.permit, node.data)), version=node.version)

    def set_permit(self, *, open_: bool | None, by: str, reason: str) -> Permit:
        """Pause, resume, or (``open_`` None) begin a new round as it is. The last word counts; only a resume keeps the round."""
        path = self.layout.permit
        self._z.ensure(path)
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        while True:
            current = self.permit()
            try:
                data = {
                    "open": current.open if open_ is None else open_,
                    "round": current.round + (open_ is not True),
                    "by": by,
                    "reason": reason,
                    "since": since,
                }
                self._z.transact([Put(path, PERMIT.encode(data), current.version)])
            except Conflict:
                continue
            return self.permit()

    def require_permit(self, *, since: Permit | None = None) -> Permit:
        """The permit. Raises Paused if a person paused the pipeline, Restarted if a new round began after ``since``."""
        permit = self.permit()
        if permit.version == -1:
            self._z.ensure(self.layout.permit)
            permit = self.permit()
        if not permit.open:
            raise Paused(
                f"{self._pipeline} was paused by {permit.by}" + (f": {permit.reason}" if permit.reason else ""),
                where=f"{self.layout.permit} since {permit.since}",
                hint=f"`sluice resume {self._pipeline}` lets it go on",
            )
        if since is not None and permit.round != since.round:
            raise Restarted(
                f"{self._pipeline} was restarted by {permit.by}" + (f": {permit.reason}" if permit.reason else ""),
                where=f"{self.layout.permit} since {permit.since}",
                hint="nothing: this work begins again from the same batch",
            )
        return permit

    def alert(self, target: str) -> str | None:
        """Since when the lag of ``target`` is above its limit (ISO 8601), or None."""
        path = self.layout.alert(target)
        node = self._z.get(path)
        return str(ALERT.decode(path, node.data)["since"]) if node and node.data else None

    def raise_alert(self, target: str, lag_ms: int) -> bool:
        """Note that the lag is too large. True for the one caller that notes it first, and so tells people."""
        path = self.layout.alert(target)
        self._z.ensure(path)
        node = self._z.get(path)
        if node is None or node.data:
            return False
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        return self._moved(Put(path, ALERT.encode({"since": since, "lag_ms": lag_ms}), node.version))

    def clear_alert(self, target: str) -> bool:
        """The opposite; True for the one caller that clears it."""
        path = self.layout.alert(target)
        node = self._z.get(path)
        if node is None or not node.data:
            return False
        return self._moved(Put(path, b"", node.version))

    def _moved(self, step: Step) -> bool:
        try:
            self._z.transact([step])
        except Conflict:
            return False
        return True

    def audit(self, *, by: str, what: str, details: dict[str, Any]) -> None:
        """Note what a person did. Entries sort by time; the oldest beyond a thousand go."""
        folder = self.layout.audit
        self._z.ensure(folder)
        now = time.time_ns()
        entry = {"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "by": by, "what": what, **details}
        self._z.transact([Create(self.layout.audit_entry(now), AUDIT.encode(entry))])
        names = self._z.children(folder)
        for name in names[:-KEPT_AUDIT]:
            with suppress(Conflict):
                self._z.transact([Remove(f"{folder}/{name}")])

    def audit_log(self) -> list[dict[str, Any]]:
        """All entries, oldest first."""
        folder = self.layout.audit
        paths = (f"{folder}/{name}" for name in self._z.children(folder))
        return [AUDIT.decode(path, node.data) for path in paths if (node := self._z.get(path))]

    def forget_audit(self, *, before_s: float, dry_run: bool = False) -> int:
        """Remove the entries that were made before that time (seconds since 1970); returns how many."""
        folder = self.layout.audit
        old = [name for name in self._z.children(folder) if int(name) < before_s * 1e9]
        for name in () if dry_run else old:
            with suppress(Conflict):
                self._z.transact([Remove(f"{folder}/{name}")])
        return len(old)

    def seek(self, lease: Lease, cursor: Cursor, position: Position, *, schema: str = "") -> Cursor:
        """Move the captured position anywhere; refused while a batch is undelivered (they would be out of order)."""
        waiting = self.undelivered()
        if waiting:
            raise OutOfOrder(
                f"batches {waiting[0]} to {waiting[-1]} of {self._pipeline} are not delivered yet",
                where=self.layout.batches,
                hint=f"wait until they are delivered, or drop them: `sluice seek {self._pipeline} POSITION --drop-undelivered`",
            )
        return self.advance(lease, cursor, position, schema=schema)

    def drop(self, lease: Lease, cursor: Cursor, position: Position, batches: Sequence[int]) -> Cursor:
        """Move the captured position, and let ``batches`` go in the same step: they count as delivered and are loaded nowhere."""
        moved = Cursor(position, cursor.next_batch)
        steps: list[Step] = [lease.fence, Put(self.layout.cursor, moved.encoded(), cursor.version)]
        for number in batches:
            path = self.layout.batch(number)
            node = self._z.get(path)
            if node is not None:
                batch = replace(BATCH.parse(path, node.data, Batch.from_json), dropped=True, changeset=None, stages=())
                steps.append(Put(path, BATCH.encode(batch.to_json()), node.version))
        self._transact(lease, f"moving the captured position to {position}", steps)
        return replace(moved, version=cursor.version + 1)

    def _transact(self, lease: Lease, doing: str, steps: Sequence[Step]) -> None:
        try:
            self._z.transact(steps)
        except Conflict as conflict:
            if isinstance(conflict.step, Check) and conflict.step == lease.fence:
                raise fenced(lease, doing) from conflict
            current: Znode | None = self._z.get(lease.epoch_path)
            if current is None or current.version != lease.epoch_version:
                raise fenced(lease, doing) from conflict
            raise OutOfOrder(
                f"{doing}: the state changed meanwhile ({conflict})", where=conflict.step.path
            ) from conflict


def _new_identity() -> tuple[str, bytes]:
    """(id, content of its node)."""
    made = uuid.uuid4().hex
    return made, IDENTITY.encode({"id": made, "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())})
