"""The state of one pipeline in ZooKeeper: a facade over one part per concern, and the moves that need several of them
at once.

Every move is one compare-and-set. A move that needs several parts collects their steps into one transaction, which
happens as a whole or not at all. Paths and formats: :mod:`sluice.coordination.layout`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from sluice.coordination.acknowledgements import Acknowledgement, Acknowledgements
from sluice.coordination.alerts import Alerts
from sluice.coordination.announcements import Announcements
from sluice.coordination.batches import Batches
from sluice.coordination.bundles import Bundles, WaitingBatches
from sluice.coordination.channel_side import (
    ChannelMembership,
    ChannelSide,
    begin_mark_key,
    leave_channel,
    read_mark_key,
    require_channel,
)
from sluice.coordination.completions import Completions
from sluice.coordination.cursor import Cursor, CursorNode
from sluice.coordination.dumps import DumpStates
from sluice.coordination.failures import StageFailure, StageFailures
from sluice.coordination.group_member import GroupMember
from sluice.coordination.identity import Identity
from sluice.coordination.incomplete import IncompleteTables
from sluice.coordination.layout import AUDIT, LEASE, MAPPED, Layout, lease_epoch, lease_node
from sluice.coordination.leader_election import LeaderElection
from sluice.coordination.leases import Lease, holding, owner_label, raise_epoch, taking, transact_as
from sluice.coordination.migrations import MigrationNode
from sluice.coordination.pause_switch import PauseSwitch
from sluice.coordination.port import Create, Put, Remove, Step, Znodes, committed
from sluice.coordination.quarantine import Quarantine
from sluice.coordination.read_cache import ReadCache
from sluice.coordination.run_progress import RunProgress, WaitingTasks
from sluice.coordination.subscriptions import Subscriptions
from sluice.coordination.target_checkpoints import TargetRecords
from sluice.errors import OutOfOrder, SluiceError
from sluice.model.batches import Batch, BatchNumber, BatchState
from sluice.model.offset import Offset


class MappedNames:
    """Column names of the mapping that one pipeline has looked up."""

    def __init__(self, znodes: Znodes, layout: Layout) -> None:
        self._z = znodes
        self._path = layout.mapped_names

    def read(self) -> frozenset[str]:
        """Return all names that were found."""
        return self._read()[0]

    def add(self, names: Iterable[str]) -> None:
        """Remember more."""
        new = frozenset(names)
        while True:
            remembered, version = self._read()
            if new <= remembered:
                return
            if version == -1:
                self._z.ensure(self._path)
                version = 0
            if committed(self._z, Put(self._path, MAPPED.encode({"names": sorted(remembered | new)}), version)):
                return

    def _read(self) -> tuple[frozenset[str], int]:
        node = self._z.get(self._path)
        if node is None or not node.data:
            return frozenset(), node.version if node else -1
        return frozenset(MAPPED.decode(self._path, node.data)["names"]), node.version


KEPT_AUDIT = 1000
"""Entries that are kept."""


class Audit:
    """The audit log of one pipeline."""

    def __init__(self, znodes: Znodes, layout: Layout) -> None:
        self._z = znodes
        self._at = layout

    def note(self, *, by: str, what: str, details: dict[str, Any]) -> None:
        """Add an entry. Entries sort by time; the oldest beyond a thousand go."""
        self._z.ensure(self._at.audit)
        now = time.time_ns()
        entry = {"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "by": by, "what": what, **details}
        self._z.transact([Create(self._at.audit_entry(now), AUDIT.encode(entry))])
        self._remove(self._z.children(self._at.audit)[:-KEPT_AUDIT])

    def entries(self) -> list[dict[str, Any]]:
        """Return all entries, oldest first."""
        paths = [f"{self._at.audit}/{name}" for name in self._z.children(self._at.audit)]
        return [AUDIT.decode(path, node.data) for path in paths if (node := self._z.get(path))]

    def forget(self, *, before_s: float, dry_run: bool = False) -> int:
        """Remove the entries that were made before that time (seconds since 1970); returns how many."""
        old = [name for name in self._z.children(self._at.audit) if int(name) < before_s * 1e9]
        self._remove([] if dry_run else old)
        return len(old)

    def _remove(self, names: list[str]) -> None:
        for name in names:
            committed(self._z, Remove(f"{self._at.audit}/{name}"))


KEPT_BATCHES = 200
"""Batch nodes kept below the last one that every target has acknowledged: a retried run still finds its batch there."""


class PipelineState:
    """Reads and moves the state of ``pipeline`` below ``root``.

    Attributes:
        batches, acks, pause_switch, audit: the batches, what targets have acknowledged, the pause switch, what people
            did; each is asked and changed by itself, and the state has the moves that need several of them.
        layout: where its nodes are; election: which installation leads; quarantine: which targets are in quarantine;
            completions: up to which times target tables are complete;
            incomplete: which tables lack something; mapped_names: of the mapping, looked up; alerts: whose lag is too
            large; member: which server of the source group is read; subscriptions: of readers; side: of a channel,
            None: it is in none; runs: how far the stages of runs have come; waiting_tasks: pipelines without a worker.
    """

    def __init__(
        self,
        znodes: Znodes,
        root: str,
        pipeline: str,
        targets: Sequence[str],
        *,
        lease_wait_s: float,
        session_timeout_s: float = 10.0,
        membership: ChannelMembership | None = None,
        caches_reads: bool = False,
        commit_every: Mapping[str, float] | None = None,
    ) -> None:
        """Open the state. ``caches_reads``: for a process that asks often, see :mod:`sluice.coordination.read_cache`.

        ``commit_every``: target -> seconds.
        """
        known_znodes: Znodes = znodes
        if caches_reads:
            kept_cache = ReadCache(znodes)
            known_znodes, znodes = kept_cache, kept_cache.fresh
        layout = Layout(root, pipeline)
        self.side = ChannelSide(known_znodes, layout, membership) if membership is not None else None
        self._z = znodes
        self._known = known_znodes
        self.runs = RunProgress(known_znodes, layout)
        self.waiting_tasks = WaitingTasks(known_znodes, layout)
        self._wait_s = lease_wait_s
        self.layout = layout
        self.targets = tuple(targets)
        self.election = LeaderElection(znodes, layout, session_timeout_s=session_timeout_s)
        self.quarantine = Quarantine(known_znodes, layout, self.targets)
        self._failures = StageFailures(known_znodes, layout)
        self.announcements = Announcements(known_znodes, layout)
        self.completions = Completions(znodes, root)
        self.incomplete = IncompleteTables(znodes, layout)
        self.mapped_names = MappedNames(known_znodes, layout)
        self.alerts = Alerts(znodes, layout)
        self.member = GroupMember(known_znodes, layout.member)
        self._identity = Identity(known_znodes, layout)
        self._cursor = CursorNode(znodes, layout)
        self.pause_switch = PauseSwitch(known_znodes, layout, self.side)
        self.batches = Batches(known_znodes, layout, self.pause_switch)
        self.acks = Acknowledgements(known_znodes, layout, self._identity)
        self.subscriptions = Subscriptions(znodes, layout, self._identity)
        self._bundles = Bundles(commit_every or {}, self.batches, self.acks)
        self.audit = Audit(znodes, layout)

    def on_change(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` called when something that was read here has changed.

        Only with ``caches_reads``: what is not kept has no watch.
        """
        assert isinstance(self._known, ReadCache)
        self._known.on_change(callback)

    def notify(self, changed: Callable[..., None]) -> None:
        """Have ``changed`` called when something changes next by which a pipeline that waits may have work, see
        :meth:`Znodes.notify`.

        The captured position is not among it, see :meth:`notify_cursor`.
        """
        at = self.layout
        for path in (
            at.pause_switch,
            at.member,
            at.quarantine,
            *(at.acknowledgement(target) for target in self.targets),
        ):
            self._z.notify(path, changed)
        for path in (at.batches, at.dumping, *((self.side.folder,) if self.side is not None else ())):
            self._z.notify(path, changed, children=True)

    def notify_cursor(self, changed: Callable[..., None]) -> None:
        """Have ``changed`` called when the captured position moves next."""
        self._z.notify(self.layout.cursor, changed)

    def step_over(self, cursor: Cursor, position: Offset, owner: str) -> Cursor | None:
        """Move the captured position over log that holds nothing for us: lease taken, position moved, lease given back,
        all in one step.

        None, and nothing is done, if somebody captures now or the position moved meanwhile.
        """
        folder = self.layout.replicator
        epoch = self._z.get(lease_epoch(folder))
        if epoch is None:
            return None
        _, lease_steps = taking(folder, epoch, owner)
        moved = replace(cursor, position=position)
        committed_all = committed(self._z, *lease_steps, self._cursor.moved(cursor, moved), Remove(lease_node(folder)))
        return replace(moved, version=cursor.version + 1) if committed_all else None

    @property
    def home(self) -> str:
        """The pipeline's own node, for people."""
        return self.layout.home

    @property
    def dumps(self) -> DumpStates:
        """The pipeline's dumps."""
        return DumpStates(self._known, self.layout, owner_label())

    def target_records(self, target: str) -> TargetRecords:
        """Return the checkpoint of a target that keeps nothing itself."""
        return TargetRecords(self._z, self.layout, target)

    def migration(self, name: str) -> MigrationNode:
        """Return the node of a migration, which is none of this pipeline alone."""
        return MigrationNode(self._z, self.layout.root, name, lease_wait_s=self._wait_s)

    def identity(self) -> str:
        """Return the random id of this state, "" before the first capture."""
        return self._identity.read()

    # -- leases ------------------------------------------------------------------------------------------------------

    @contextmanager
    def replicator(self, owner: str | None = None, *, wait_s: float | None = None) -> Iterator[Lease]:
        """Hold the lease of the capture; wait up to ``wait_s`` for its current owner. Raises LeaseHeld."""
        patience_s = self._wait_s if wait_s is None else wait_s
        with holding(self._z, self.layout.replicator, wait_s=patience_s, owner=owner) as lease:
            yield lease

    @contextmanager
    def consumer(self, target: str, owner: str | None = None, *, above: int = 0) -> Iterator[Lease]:
        """Hold the lease of the loader of ``target``, with an epoch higher than ``above``."""
        folder = self.layout.consumer(target)
        with holding(self._z, folder, wait_s=self._wait_s, owner=owner) as lease:
            if lease.epoch > above:
                yield lease
                return
            raise_epoch(self._z, lease, above)
        with holding(self._z, folder, wait_s=self._wait_s, owner=owner) as lease:
            yield lease

    def consumer_epoch(self, target: str) -> int:
        """Return the highest epoch that a loader of ``target`` got, 0 if there was none."""
        node = self._z.get(lease_epoch(self.layout.consumer(target)))
        return int(node.data or b"0") if node else 0

    @property
    def alive(self) -> bool:
        """False once the session is gone, and every lease with it."""
        return self._z.alive

    def owner(self, target: str | None = None) -> str | None:
        """Return the label of the process that captures (or loads ``target``) now."""
        path = lease_node(self.layout.consumer(target) if target else self.layout.replicator)
        node = self._z.get(path)
        return str(LEASE.decode(path, node.data)["owner"]) if node and node.data else None

    # -- capture: the cursor moves -------------------------------------------------------------------------------------

    def cursor(self) -> Cursor | None:
        """Return the captured position, or None before the first capture."""
        return self._cursor.read()

    def begin(
        self,
        lease: Lease,
        position: Offset,
        next_batch: int = 1,
        *,
        schema: str = "",
        targets: Sequence[str] = (),
    ) -> Cursor:
        """Write the first cursor, a new identity, and the first acknowledgements of ``targets``: all of it or
        nothing.
        """
        cursor = Cursor(position, BatchNumber(next_batch), schema=schema).jumped()
        self._z.ensure(self.layout.batches)
        self._z.ensure(self.layout.claims)
        identity, written = self._identity.renewed()
        last = BatchNumber(next_batch - 1)
        first = Acknowledgement(last, position, last, identity=identity)
        begun = [self.acks.begun(target, first) for target in targets]
        self._transact(lease, "writing the first position", [self._cursor.created(cursor), written, *begun])
        return replace(cursor, version=0)

    def advance(
        self,
        lease: Lease,
        cursor: Cursor,
        position: Offset,
        *,
        schema: str | None = None,
        partner_batch: int = 0,
        jumps: bool = False,
    ) -> Cursor:
        """Move the captured position over a stretch of log that held nothing for us.

        ``schema`` None: the history stays as it is. ``jumps``: what lies between is not read, or is read again.
        """
        kept_schema = cursor.schema if schema is None else schema
        if position == cursor.position:
            partner_batch = max(partner_batch, cursor.partner_batch)
        moved = cursor.moved_to(position, schema=kept_schema, partner_batch=partner_batch)
        moved = moved.jumped() if jumps else moved
        return self._move(lease, f"moving the captured position to {position}", cursor, moved)

    def commit(
        self,
        lease: Lease,
        cursor: Cursor,
        batch: Batch,
        also: Sequence[Step] = (),
        *,
        schema: str | None = None,
        partner_batch: int = 0,
    ) -> Cursor:
        """Record the batch, move the captured position after it and do ``also``: all of it, or nothing.

        This ends phase one.

        ``schema``: see ``advance``.
        """
        kept_schema = cursor.schema if schema is None else schema
        moved = cursor.moved_over(batch, schema=kept_schema, partner_batch=partner_batch)
        steps = [*self.batches.created(batch), *also]
        return self._move(lease, f"recording batch {batch.number}", cursor, moved, steps)

    def seek(self, lease: Lease, cursor: Cursor, position: Offset, *, schema: str = "") -> Cursor:
        """Move the captured position anywhere; refused while a batch is undelivered (they would be out of order)."""
        waiting = self.undelivered()
        if waiting:
            name = self.layout.pipeline
            raise OutOfOrder(
                f"batches {waiting[0]} to {waiting[-1]} of {name} are not delivered yet",
                where=self.layout.batches,
                hint=f"wait until they are delivered, or drop them: `sluice seek {name} POSITION --drop-undelivered`",
            )
        return self.advance(lease, cursor, position, schema=schema, jumps=True)

    def drop(self, lease: Lease, cursor: Cursor, position: Offset, batches: Sequence[int]) -> Cursor:
        """Move the captured position, and let ``batches`` go in the same step: they count as delivered and are loaded
        nowhere.
        """
        steps = [step for number in batches for step in self.batches.dropped(number)]
        moved = cursor.moved_to(position).jumped()
        return self._move(lease, f"moving the captured position to {position}", cursor, moved, steps)

    def fail_over(
        self, lease: Lease, cursor: Cursor, position: Offset, connection: str, at_ms: int, *, schema: str
    ) -> Cursor:
        """Continue at ``position``, the same place in the log of another server, and read that server from now on."""
        moved = cursor.moved_to(position, schema=schema)
        chosen = self.member.chosen(connection, at_ms)
        return self._move(lease, f"going on at {position} of {connection}", cursor, moved, [chosen])

    def abandon(self, lease: Lease, cursor: Cursor, batches: Sequence[int]) -> Cursor:
        """Abandon batches like :meth:`drop`; the captured position and its schema history stay as they are."""
        steps = [step for number in batches for step in self.batches.dropped(number)]
        return self._move(lease, f"letting batches {list(batches)} go", cursor, replace(cursor), steps)

    def recaptured(self, lease: Lease, batch: Batch) -> Batch | None:
        """Record the new files of a batch that was captured again; what was made of the old ones is forgotten.

        None: it changed meanwhile.
        """

        def changed(before: Batch) -> Batch:
            return replace(
                before,
                epoch=batch.epoch,
                manifest=batch.manifest,
                changes=batch.changes,
                size_bytes=batch.size_bytes,
                state=BatchState.DRAINED,
                changeset=None,
                stages=(),
                reread=False,
            )

        return self.batches.rewrite(batch.number, changed, [lease.fence])

    def rebuild(
        self,
        lease: Lease,
        position: Offset,
        batches: Sequence[Batch],
        acknowledged: Mapping[str, tuple[int, Offset]],
        next_batch: int,
        identity: str,
        *,
        also: Sequence[Step] = (),
    ) -> None:
        """Write a state that was lost, or that is older than what the targets hold: over what is there, in one
        transaction.

        ``acknowledged``: batch and position of each target; ``identity``: "" for a new one; ``also``: steps of the same
        transaction.
        """
        for folder in (self.layout.batches, self.layout.claims, self.layout.cursor.rpartition("/")[0]):
            self._z.ensure(folder)
        self.batches.forget_all()
        new_identity, written = self._identity.renewed(identity)
        now, cursor = self._z.get(self.layout.cursor), Cursor(position, BatchNumber(next_batch)).jumped()
        steps: list[Step] = [
            self._cursor.created(cursor)
            if now is None
            else self._cursor.moved(replace(cursor, version=now.version), cursor),
            written,
        ]
        for target, (batch, at) in acknowledged.items():
            held_number = BatchNumber(batch)
            steps.append(self.acks.begun(target, Acknowledgement(held_number, at, held_number, identity=new_identity)))
        self.batches.remember(batches)
        self._transact(lease, "rebuilding the state", [*steps, *also])

    def raise_epochs(self, above: int) -> None:
        """Give every later owner of any lease of this pipeline an epoch higher than ``above``.

        Raises LeaseHeld while a process has one.
        """
        for folder in (self.layout.replicator, *(self.layout.consumer(target) for target in self.targets)):
            node = self._z.get(lease_epoch(folder))
            if int((node.data if node else b"") or b"0") >= above:
                continue
            with holding(self._z, folder, wait_s=self._wait_s) as lease:
                raise_epoch(self._z, lease, above)

    def highest_epoch(self) -> int:
        """Return the highest epoch of any lease of this pipeline."""
        folders = (self.layout.replicator, *(self.layout.consumer(target) for target in self.targets))
        nodes = [self._z.get(lease_epoch(folder)) for folder in folders]
        return max(int(node.data or b"0") if node else 0 for node in nodes)

    def _move(self, lease: Lease, doing: str, before: Cursor, after: Cursor, also: Sequence[Step] = ()) -> Cursor:
        self._transact(lease, doing, [self._cursor.moved(before, after), *also])
        return replace(after, version=before.version + 1)

    def _transact(self, lease: Lease, doing: str, steps: Sequence[Step]) -> None:
        transact_as(self._z, lease, doing, steps)

    # -- batches -----------------------------------------------------------------------------------------------------

    def undelivered(self) -> list[int]:
        """Return the numbers of the batches that some target has not acknowledged, ascending."""
        last_delivered = self.delivered()
        return [n for n in self.batches.numbers() if n > last_delivered]

    def lacking(self) -> list[int]:
        """Return the numbers of the batches that some target lacks, ascending; quarantined targets don't count."""
        last_delivered = self.delivered(self.quarantine.active_targets())
        return [n for n in self.batches.numbers() if n > last_delivered]

    def in_window(self) -> list[int]:
        """Return :meth:`lacking` without the batches that wait on purpose.

        A target that gets batches together does not hold up the others, nor the capture.
        """
        last_passed = self.passed()
        return [n for n in self.batches.numbers() if n > last_passed]

    def passed(self) -> int:
        """Return the last batch that every target has, or waits for on purpose; 0 if none.

        Quarantined targets don't count.
        """
        going = self.quarantine.active_targets()
        waiting = {target: bundle for target, bundle in self._bundles.waiting(going).items() if not bundle.overdue}
        acknowledged = [ack.batch for target in going if target not in waiting and (ack := self.acks.get(target))]
        return min([*acknowledged, *(bundle.last for bundle in waiting.values())], default=0)

    def waiting(self) -> dict[str, WaitingBatches]:
        """Return what targets get later, together, without quarantined ones.

        See :mod:`sluice.coordination.bundles`.
        """
        return self._bundles.waiting(self.quarantine.active_targets())

    def due(self) -> list[int]:
        """Return the first batches of :meth:`waiting` whose time has come, ascending."""
        return sorted({bundle.first for bundle in self.waiting().values() if bundle.is_due})

    def forget(self, keep: int = KEPT_BATCHES) -> list[int]:
        """Drop batch nodes far below what every target has acknowledged. Returns their numbers."""
        numbers = self.batches.forget(self.delivered() - keep)
        if numbers:
            self.runs.forget(self.batches.claims())
        return numbers

    def forget_batches(self) -> None:
        """Drop every batch node: of a state whose captured position is gone. Their files stay in the store."""
        if self.cursor() is None:
            self.batches.forget_all()

    # -- targets: acknowledgements -------------------------------------------------------------------------------------

    def beginning(self, target: str, batch: BatchNumber, position: Offset) -> Step:
        """Return the step that writes a target's first acknowledgement, for :meth:`commit`.

        See :meth:`Acknowledgements.begin`.
        """
        first = Acknowledgement(batch, position, batch, identity=self._identity.read())
        return self.acks.begun(target, first)

    def redeliver(self, lease: Lease, target: str, position: Offset, batches: Sequence[Batch]) -> Acknowledgement:
        """Take acknowledgements back: ``batches`` (all that follow, ascending, known again) are to be delivered once
        more.
        """
        self.batches.remember(batches)
        return self.acks.take_back(lease, target, batches[0].number - 1, position)

    def target_member(self, target: str) -> GroupMember:
        """Return which server of a target group is written."""
        return GroupMember(self._z, self.layout.target_member(target))

    def switch_target(self, lease: Lease, target: str, connection: str, at_ms: int) -> None:
        """Write another server of a target group from now on.

        An acknowledgement that is being made of what the first server said is refused, as this moves its node's
        version.
        """
        steps = [self.acks.unchanged(target), self.target_member(target).chosen(connection, at_ms)]
        self._transact(lease, f"writing target {target} at {connection}", steps)

    def delivered(self, targets: Sequence[str] | None = None) -> int:
        """Return the last batch that every target (or every one of ``targets``) has acknowledged; 0 if none."""
        return self.acks.delivered(self.targets if targets is None else targets)

    # -- what people do ------------------------------------------------------------------------------------------------

    def require_channel(self) -> None:
        """See :func:`sluice.coordination.channel_side.require_channel`; once the pipeline has begun.

        Raises ConfigError.
        """
        require_channel(self._z, self.layout, self.side.channel if self.side is not None else "")

    def mark_key(self, channel: str) -> str:
        """See :func:`sluice.coordination.channel_side.read_mark_key`."""
        return read_mark_key(self._z, self.layout.root, channel)

    def begin_mark_keys(self) -> None:
        """Make the keys of the pipeline's channel, and of pipelines in none, if nothing was written with others.

        See :func:`sluice.coordination.channel_side.begin_mark_key`.
        """
        root, own = self.layout.root, self.layout.pipeline
        if self.side is not None:
            begin_mark_key(self._z, root, self.side.channel, [own, self.side.partner])
        begin_mark_key(self._z, root, "", [own, *self._z.children(root)])

    def leave_channel(self) -> None:
        """See :func:`sluice.coordination.channel_side.leave_channel`."""
        leave_channel(self._z, self.layout)

    @contextmanager
    def reporting(self, part: str) -> Iterator[None]:
        """Note what goes wrong inside, see :mod:`sluice.coordination.failures`.

        A channel stops its other pipeline after a while.

        ``part``: drain, merge, rule.{name} or load-{target}.
        """
        side = self.side.reporting(part) if self.side is not None else nullcontext()
        with side, self._failures.reporting(part, lambda: self._progress(part)):
            yield

    def note_failure(self, part: str, error: SluiceError) -> None:
        """Note that a part failed in a process that left no word: it was killed, or a person marked its task.

        ``part``: see :meth:`reporting`.
        """
        self._failures.note(part, error, self._progress(part))

    def failures(self) -> list[StageFailure]:
        """Return what the pipeline fails at now: no part that has gone on since, and none of a quarantined target."""
        quarantined = self.quarantine.all()
        return [
            failure
            for failure in self._failures.all()
            if failure.target not in quarantined and self._progress(failure.part) == failure.at
        ]

    def error_counts(self) -> dict[tuple[str, str], int]:
        """Return how often each part failed since the pipeline began, by (part, who has to act)."""
        return self._failures.counts()

    def _progress(self, part: str) -> str:
        """Return how far a part of the pipeline has come."""
        if part.startswith("load-"):
            held_acknowledgement = self.acks.get(part.removeprefix("load-"))
            return f"batch {held_acknowledgement.batch}" if held_acknowledgement is not None else ""
        cursor = self.cursor()
        if part == "drain":
            return f"{cursor.position} before batch {cursor.next_batch}" if cursor is not None else ""
        waiting = (self.batches.get(number) for number in self.undelivered())
        return next((f"batch {batch.number}" for batch in waiting if batch is not None and not batch.changeset), "")
