"""pause, resume, rollback, skip, seek: what a person does to a pipeline.

Each has a plan that can be shown before it is done.
"""

from __future__ import annotations

import getpass
import json
import os
import socket
import time
from typing import Any

from sluice.config.pipeline import PipelineConfig, StartPosition
from sluice.coordination.state import PipelineState
from sluice.errors import ConfigError, OutOfOrder, SegmentError, SluiceError
from sluice.flows.capture.failover import fail_over, find_member
from sluice.flows.capture.schema_history import is_another_log
from sluice.flows.checkpoints import CheckpointCheck, require_no_checkpoints
from sluice.flows.runtime import Runtime
from sluice.flows.stored import known_again, lost_segment
from sluice.model.batches import Batch
from sluice.model.grace import MAX_GRACE
from sluice.model.offset import Offset
from sluice.operations.deadletters.store import copy_of
from sluice.operations.plan import ActionPlan
from sluice.segments.manifest import SegmentManifest
from sluice.segments.schemas import SchemaStore
from sluice.segments.store import SegmentStore
from sluice.targets.port import Checkpoint
from sluice.targets.registry import equal_again


def who() -> str:
    """Return ``user@host`` for the audit; the user's number if the machine has no name for it, as in many
    containers.
    """
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # depends on the version of Python
        user = f"uid-{os.getuid()}"
    return f"{user}@{socket.gethostname()}"


def pause(runtime: Runtime, *, by: str, reason: str = "") -> ActionPlan:
    """Stop the pipeline: no task starts or continues, and running work stops at its next safe point.

    Nothing is lost.
    """
    with runtime.state() as state:
        state.pause_switch.set(open_=False, by=by, reason=reason)
        state.audit.note(by=by, what="pause", details={"reason": reason})
    return ActionPlan("pause", (f"{runtime.name} is paused; tasks under way stop within seconds",))


def resume(runtime: Runtime, *, by: str) -> ActionPlan:
    """Undo :func:`pause`. In a channel, recorded failures are cleared, so that both pipelines may try."""
    with runtime.state() as state:
        state.pause_switch.set(open_=True, by=by, reason="")
        if state.side is not None:
            state.side.forget()
        state.audit.note(by=by, what="resume", details={})
    return ActionPlan("resume", (f"{runtime.name} goes on",))


def restart(runtime: Runtime, *, by: str, reason: str = "", grace_s: float | None = None) -> ActionPlan:
    """Stop all running work and start it again from the same batches.

    Args:
        grace_s: how long no other installation takes over, so that workers or the scheduler may be restarted meanwhile;
            by default ``coordination.grace``.
    """
    grace = runtime.pipeline.coordination.grace.total_seconds() if grace_s is None else grace_s
    if not 0 <= grace <= MAX_GRACE.total_seconds():  # also refuses NaN
        raise ConfigError(
            f"a grace of {grace:g} s is out of range: from 0 to {MAX_GRACE.total_seconds():.0f} s ({MAX_GRACE.days} "
            "days)",
            hint=f"for longer: `sluice pause {runtime.name}`",
        )
    with runtime.state() as state:
        state.election.announce_restart(grace)
        state.pause_switch.set(open_=None, by=by, reason=reason)
        state.audit.note(by=by, what="restart", details={"reason": reason, "grace_s": grace})
    return ActionPlan(
        "restart",
        (
            f"tasks of {runtime.name} under way stop within seconds and begin again from the same batches",
            f"for {grace:g} s no other installation takes over",
        ),
    )


def rollback(runtime: Runtime, *, by: str, dry_run: bool) -> ActionPlan:
    """Forget what was made of the undelivered batches: the next attempt merges the same batches anew, from the same
    segments.

    A batch whose segments are damaged or gone keeps what was made of it: it could not be made again.
    """
    with runtime.state() as state:
        waiting, steps = [], []
        for number in state.undelivered():
            record = state.batches.get(number)
            lost = "" if record is None or record.dropped else lost_segment(runtime.store, record)
            if lost:
                steps.append(f"batch {number}: {lost} is damaged or gone, so that its changeset is kept as it is")
            else:
                waiting.append(number)
                steps.append(f"batch {number}: its changeset is forgotten and made anew")
        if not steps:
            steps = ["every batch is acknowledged: there is nothing to roll back"]
        if not dry_run:
            # processes that work on one of them start again
            state.pause_switch.set(open_=None, by=by, reason="rollback")
            for number in waiting:
                state.batches.unmerge(number)
            state.audit.note(by=by, what="rollback", details={"batches": waiting})
    return ActionPlan("rollback", tuple(steps))


def skip(
    runtime: Runtime, target: str, batch: int, *, by: str, reason: str, dry_run: bool, lost: bool = False
) -> ActionPlan:
    """Skip a batch that ``target`` cannot take. Its changes are kept in the dead-letter store.

    Args:
        lost: the batch's files are damaged or gone. They are not read, nothing is kept, and the answer says what is
            lost, as far as known.

    Raises:
        OutOfOrder: it is not the next batch of that target.
        SegmentError: a file of it is damaged or gone, and ``lost`` is not given.
        CheckpointError: the target's checkpoint does not match ZooKeeper.
    """
    runtime.pipeline.target(target)  # raises if there is none
    with runtime.state() as state:
        record = state.batches.require(batch)
        process = state.acks.get(target)
        following = (process.batch if process else 0) + 1
        if batch != following:
            raise OutOfOrder(
                f"the next batch of target {target} is {following}; batch {batch} cannot be skipped now",
                where=f"pipeline {runtime.name}",
            )
        manifest = None if lost else _whole_manifest(runtime.name, runtime.store, record, target)
        folder = f"dead-letters/{target}/batch={batch:010d}"
        if manifest is None:
            consequences = _what_is_lost(runtime.pipeline, runtime.store, state, record, target)
        else:
            again = f"`sluice dead-letters replay {runtime.name}` delivers them later"
            consequences = (f"its {len(manifest.files)} files are copied to {folder}; {again}", *_not_run(manifest))
        plan = ActionPlan(
            "skip",
            (
                f"batch {batch} ({record.changes} changes, {record.first} to {record.last}) is not loaded into "
                f"{target}",
                *consequences,
                f"{target} goes on with batch {batch + 1}; its rows may then differ from the source's",
            ),
        )
        if dry_run:
            return plan
        if manifest is not None:
            _keep_skipped(
                runtime.store, folder, manifest, {"batch": batch, "target": target, "by": by, "reason": reason}
            )
        with state.consumer(target) as lease:
            check = CheckpointCheck(runtime, state, target)
            if check.take_over(lease) < batch:
                check.checkpoints.advance(Checkpoint(lease.epoch, batch, record.last))
            state.acks.acknowledge(target, record)
        details: dict[str, Any] = {"lost": list(consequences)} if manifest is None else {"kept_in": folder}
        state.audit.note(by=by, what="skip", details={"target": target, "batch": batch, "reason": reason, **details})
    return plan


def _keep_skipped(store: SegmentStore, folder: str, manifest: SegmentManifest, note: dict[str, Any]) -> None:
    """Copy the files of a skipped batch to the dead-letter store, with a note on who skipped it."""
    for file in manifest.files:
        store.write_bytes(f"{folder}/{copy_of(file)}", store.read_bytes(file.path))
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    full_note = {**note, "at": at, "manifest": json.loads(manifest.to_json())}
    store.write_bytes(f"{folder}/skipped.json", json.dumps(full_note, ensure_ascii=False, indent=1).encode())


def _whole_manifest(name: str, store: SegmentStore, record: Batch, target: str) -> SegmentManifest:
    """Return the batch's manifest. Raises SegmentError if a file is damaged, as its copy could not be replayed."""
    damaged = lost_segment(store, record)
    if damaged:
        raise SegmentError(
            f"batch {record.number} cannot be kept for a replay: a file of it is damaged or gone",
            where=damaged,
            hint=f"`sluice skip {name} {target} {record.number} --lost` goes on without its changes; "
            f"`sluice seek {name} --drop-undelivered` reads them again from the log, while the server still "
            "has it",
        )
    return store.read_manifest(record.manifest)


def _what_is_lost(
    pipeline: PipelineConfig, store: SegmentStore, state: PipelineState, record: Batch, target: str
) -> tuple[str, ...]:
    """Describe a batch whose files are gone, from ZooKeeper and from its manifest if that still exists."""
    steps = [
        f"its files are not read and not kept: the {record.changes} changes of the log from {record.first} to "
        f"{record.last} are lost for {target}, and no replay restores them"
    ]
    try:
        manifest = store.read_manifest(record.manifest)
    except SluiceError:
        tables = ", ".join(pipeline.capture.include)
        steps.append(f"which tables they are of is not known, as its manifest cannot be read; captured are {tables}")
    else:
        tables = ", ".join(sorted({str(file.table_id) for file in manifest.files}))
        steps += [f"tables: {tables or 'none'}", *_not_run(manifest)]
    steps += _dumped(state, record)
    steps.append(f"{equal_again(pipeline, target, 'SCHEMA.TABLE')} makes a table equal again")
    return tuple(steps)


def _dumped(state: PipelineState, *batches: Batch) -> list[str]:
    """Name the dumps that may have placed rows in a batch. The log does not have these rows."""
    oldest = min((batch.created_ms for batch in batches), default=0)
    newest = max((batch.created_ms for batch in batches), default=0)
    ids = [dump.id for dump in state.dumps.under_way_since(oldest) if dump.created_ms <= newest]
    return [f"rows that these dumps placed in it are not in the log, start them anew: {', '.join(ids)}"] if ids else []


def _not_run(manifest: SegmentManifest) -> list[str]:
    """Describe the schema changes that a target misses if it skips a batch, and that no replay applies."""
    if not manifest.ddl:
        return []
    statements = "; ".join(" ".join(record.sql.split())[:100] for record in manifest.ddl[:3])
    more = f" and {len(manifest.ddl) - 3} more" if len(manifest.ddl) > 3 else ""
    return [f"what it changed in definitions is not done there, and no replay does it: {statements}{more}"]


def redeliver(runtime: Runtime, target: str, *, by: str, dry_run: bool, from_batch: int | None = None) -> ActionPlan:
    """Load acknowledged batches again from their segments: after a target was restored from a backup or replaced.

    ``from_batch`` None: from the batch after the one the target says it holds.

    Raises:
        SegmentError: a batch is no longer stored. CheckpointError: the target holds batches of another state.
    """
    runtime.pipeline.target(target)  # raises if there is none
    with runtime.state() as state:
        process = state.acks.get(target)
        if process is None:
            raise OutOfOrder(f"target {target} has no acknowledged position yet", where=f"pipeline {runtime.name}")
        check = CheckpointCheck(runtime, state, target)
        checkpoint = check.checkpoints.read()
        wrong = check.disagreement(checkpoint)
        if wrong is not None and wrong.kind not in {"behind", "gone"}:
            raise wrong
        held_batch = checkpoint.batch if checkpoint else process.began
        first = from_batch or held_batch + 1
        store = runtime.store
        batches = [known_again(runtime.state, store, target, number) for number in range(first, process.batch + 1)]
        if not batches:
            return ActionPlan(
                "redeliver", (f"target {target} holds batch {held_batch}, as acknowledged: nothing is missing",)
            )
        plan = ActionPlan(
            "redeliver",
            (f"batches {first} to {process.batch} are loaded into {target} again, in order, from the segments",),
        )
        if dry_run:
            return plan
        with state.consumer(target) as lease:
            check.checkpoints.rewind(Checkpoint(lease.epoch, first - 1, batches[0].first, state.identity()))
            state.redeliver(lease, target, batches[0].first, batches)
        state.audit.note(by=by, what="redeliver", details={"target": target, "first": first, "last": process.batch})
    return plan


def seek(runtime: Runtime, to: str | Offset, *, by: str, dry_run: bool, drop: bool = False) -> ActionPlan:
    """Move the captured position: ``latest``, ``earliest``, ``file:offset``, a GTID set or an ISO 8601 timestamp; or an
    offset of the same log.

    ``drop``: do without the undelivered batches; they count as delivered. ``to`` may then be empty: where the first of
    them begins, so that the log is read again from there.

    Raises:
        OutOfOrder: a batch is undelivered, and ``drop`` is not given.
        ConfigError: ``to`` is none of those, or the server has no such position. LostPosition: it has it no more.
        CheckpointError: nothing is captured yet, and a target holds something already.
    """
    with runtime.state() as state:
        cursor = state.cursor()
        waiting = [b for b in map(state.batches.get, state.undelivered()) if b and not b.dropped] if drop else []
        if drop and cursor is None:
            raise ConfigError(f"nothing of {runtime.name} is captured yet: there is no batch to drop")
        if drop and not to and not waiting:
            raise ConfigError(f"every batch of {runtime.name} is delivered: say which position to go to")
        if not drop and not to:
            raise ConfigError(
                "say which position to go to",
                hint="latest, earliest, binlog.000042:1234, a GTID set or 2026-01-31T12:00:00Z",
            )
        if cursor is None:
            require_no_checkpoints(runtime, state)
        with runtime.source.open() as source:
            if to:
                position = to if isinstance(to, Offset) else source.resolve_start(parse_position(to))
            else:
                position = waiting[0].first
                source.require_ready(position)
            replaced = (
                cursor is not None
                and cursor.position.log_epoch == position.log_epoch
                and is_another_log(source, cursor.position)
            )
        now = str(cursor.position) if cursor else "none"
        direction, back = "", False
        if cursor and cursor.position.log_epoch == position.log_epoch:
            back = cursor.position.order > position.order
            direction = "changes between are read again" if back else "changes between are NOT delivered"
        steps = [f"captured position: {now} -> {position}", direction or "the next capture begins there"]
        if cursor and not back:
            steps.append(
                f"afterwards, with the pipeline running, `sluice verify {runtime.name} --repair` finds the rows that "
                "differ and makes them equal"
            )
        if replaced:
            steps.append(
                "the log is not the one that was captured: what was stored of its tables' definitions is forgotten"
            )
        dropped = list(_dropped(state, waiting, position)) if waiting else []
        steps += dropped
        plan = ActionPlan("seek", tuple(steps))
        if dry_run:
            return plan
        if waiting:
            state.pause_switch.set(open_=None, by=by, reason="seek")  # processes that work on one of them start again
        with state.replicator() as lease:
            cursor = state.cursor()
            if replaced:  # first: once the cursor has moved, nobody could tell
                SchemaStore(runtime.store).forget(position)
            if cursor is None:
                following = max(runtime.store.batches(), default=0) + 1  # numbers that an earlier state did not use
                state.begin(lease, position, following, targets=[target.name for target in runtime.pipeline.targets])
            elif drop:
                state.drop(lease, cursor, position, [batch.number for batch in waiting])
            else:
                state.seek(lease, cursor, position)
        details: dict[str, Any] = {"from": now, "to": str(position)}
        if waiting:
            details["dropped"] = dropped
        state.audit.note(by=by, what="seek", details=details)
    return plan


def _dropped(state: PipelineState, waiting: list[Batch], position: Offset) -> list[str]:
    """Describe what happens if the ``waiting`` batches are discarded and the log is read again from ``position``."""
    first, last = waiting[0], waiting[-1]
    steps = [
        f"batch {b.number} ({b.changes} changes, {b.first} to {b.last}) is dropped: no target that lacks it gets it"
        for b in waiting
    ]
    if first.first.log_epoch == position.log_epoch and position.order <= first.first.order:
        steps.append(
            "all of their changes are read again from the log; a target that has some of them gets those twice, and "
            "ends equal"
        )
        steps.append("a table without a key may get rows twice where a target has a part of these batches")
    else:
        steps.append(
            f"changes between {first.first} and {min(position, last.last, key=lambda p: p.order)} are NOT delivered"
        )
    return steps + _dumped(state, *waiting)


def failover(runtime: Runtime, to: str, *, by: str, reason: str, dry_run: bool) -> ActionPlan:
    """Read another server of the source group from now on: ``to``, or "" for the first other one that has everything
    that was read.

    Raises:
        ConfigError: the source is no group. LostPosition: a server lacks transactions that were read, or purged what
            follows.
        LeaseHeld: the pipeline drains now. OutOfOrder: a dump is being read.
    """
    with runtime.state() as state:
        cursor = state.cursor()
        if cursor is None:
            raise ConfigError(
                f"nothing of {runtime.name} is captured yet: there is no position to find on another server",
                hint="put the server to begin with first in source.connections",
            )
        member = find_member(runtime, state, cursor, to)
        now = runtime.member(state)
        plan = ActionPlan(
            "failover",
            (
                f"read from now on: {member.connection} ({member.where}), instead of {now}",
                f"captured position: {cursor.position} -> {member.position}, the same place by GTIDs; nothing is read "
                "twice or left out",
                *(
                    (f"LOOK FIRST: {member.doubts}; `sluice verify run {runtime.name}` afterwards compares all rows",)
                    if member.lost
                    else ()
                ),
            ),
        )
        if dry_run:
            return plan
        # processes that read the present server start again
        state.pause_switch.set(open_=None, by=by, reason="failover")
        with state.replicator() as lease:
            cursor = state.cursor()
            assert cursor is not None
            fail_over(
                runtime,
                state,
                lease,
                cursor,
                find_member(runtime, state, cursor, member.connection),
                by=by,
                reason=reason,
            )
    return plan


def parse_position(text: str) -> Any:
    """Parse one word into a value that ``source.start`` accepts. Raises ConfigError."""
    if text in {"latest", "earliest"}:
        return text
    file, colon, offset = text.rpartition(":")
    try:
        if colon and offset.isdigit() and "." in file and "-" not in offset and file.count("-") < 4:
            return StartPosition(file=file, offset=int(offset))
        if "T" in text and text[:4].isdigit():
            return StartPosition(timestamp=text)
        return StartPosition(gtid=text)
    except ValueError as error:
        raise ConfigError(
            f"{text!r} is not a position",
            hint="write latest, earliest, binlog.000042:1234, a GTID set or 2026-01-31T12:00:00Z",
        ) from error
