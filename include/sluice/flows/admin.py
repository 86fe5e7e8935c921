"""pause, resume, rollback, skip, seek: what a person does to a pipeline. Each has a plan that can be shown before it is done."""

from __future__ import annotations

import getpass
import json
import socket
import time
from dataclasses import dataclass
from typing import Any

from sluice.binlog.connection import open_connection, server_info
from sluice.binlog.positions import resolve_start
from sluice.config.pipeline import MAX_GRACE, StartPosition
from sluice.errors import ConfigError, OutOfOrder, SegmentError
from sluice.flows.inspect import manifest_of
from sluice.flows.runtime import Runtime, server_id_of
from sluice.model.batches import Batch
from sluice.model.positions import BatchNumber, Epoch, Position
from sluice.segments.manifest import SegmentManifest
from sluice.segments.store import SegmentStore
from sluice.targets import open_target


def who() -> str:
    """``user@host``, for the audit."""
    return f"{getpass.getuser()}@{socket.gethostname()}"


@dataclass(frozen=True, slots=True)
class Plan:
    """What would be done, in sentences."""

    what: str
    steps: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {"what": self.what, "steps": list(self.steps)}


def pause(runtime: Runtime, *, by: str, reason: str = "") -> Plan:
    """No task starts or goes on; work under way stops at its next safe point. Nothing is lost."""
    with runtime.state() as state:
        state.set_permit(open_=False, by=by, reason=reason)
        state.audit(by=by, what="pause", details={"reason": reason})
    return Plan("pause", (f"{runtime.name} is paused; tasks under way stop within seconds",))


def resume(runtime: Runtime, *, by: str) -> Plan:
    """The opposite of :func:`pause`."""
    with runtime.state() as state:
        state.set_permit(open_=True, by=by, reason="")
        state.audit(by=by, what="resume", details={})
    return Plan("resume", (f"{runtime.name} goes on",))


def restart(runtime: Runtime, *, by: str, reason: str = "", grace_s: float | None = None) -> Plan:
    """Everything under way stops and begins again from the same batches. ``grace_s`` (default: ``coordination.grace``): so long no
    other installation takes over, so that workers or the scheduler may be restarted meanwhile."""
    grace = runtime.pipeline.coordination.grace.total_seconds() if grace_s is None else grace_s
    if not 0 <= grace <= MAX_GRACE.total_seconds():  # nor for NaN
        raise ConfigError(
            f"a grace of {grace:g} s is none: from 0 to {MAX_GRACE.total_seconds():.0f} s ({MAX_GRACE.days} days)",
            hint=f"for longer: `sluice pause {runtime.name}`",
        )
    with runtime.state() as state:
        state.turns.announce_restart(grace)
        state.set_permit(open_=None, by=by, reason=reason)
        state.audit(by=by, what="restart", details={"reason": reason, "grace_s": grace})
    return Plan(
        "restart",
        (
            f"tasks of {runtime.name} under way stop within seconds and begin again from the same batches",
            f"for {grace:g} s no other installation takes over",
        ),
    )


def rollback(runtime: Runtime, *, by: str, dry_run: bool) -> Plan:
    """Forget what was made of the undelivered batches: the next attempt merges the same batches anew, from the same segments."""
    with runtime.state() as state:
        waiting = state.undelivered()
        steps = [f"batch {n}: its changeset is forgotten and made anew" for n in waiting]
        if not waiting:
            steps = ["every batch is acknowledged: there is nothing to roll back"]
        if not dry_run:
            state.set_permit(open_=None, by=by, reason="rollback")  # who is at work on one of them begins again
            for number in waiting:
                state.unmerge(number)
            state.audit(by=by, what="rollback", details={"batches": waiting})
    return Plan("rollback", tuple(steps))


def skip(runtime: Runtime, target: str, batch: int, *, by: str, reason: str, dry_run: bool) -> Plan:
    """Let ``target`` do without a batch that it can't take. Its changes are kept in the dead-letter store for ever.

    Raises:
        OutOfOrder: it is not the next batch of that target.
    """
    config = runtime.pipeline.target(target)
    with runtime.state() as state:
        record = state.require(batch)
        process = state.process(target)
        following = (process.batch if process else 0) + 1
        if batch != following:
            raise OutOfOrder(
                f"the next batch of target {target} is {following}; batch {batch} cannot be skipped now",
                where=f"pipeline {runtime.name}",
            )
        store = runtime.store
        manifest = manifest_of(runtime, store, batch)
        assert manifest is not None
        folder = f"dead-letters/{target}/batch={batch:010d}"
        plan = Plan(
            "skip",
            (
                f"batch {batch} ({record.changes} changes, {record.first} to {record.last}) is not loaded into {target}",
                f"its {len(manifest.files)} files are copied to {folder}; `sluice dead-letters replay {runtime.name}` delivers them later",
                *_not_run(manifest),
                f"{target} goes on with batch {batch + 1}; its rows may then differ from the source's",
            ),
        )
        if dry_run:
            return plan
        for file in manifest.files:
            store.write_bytes(f"{folder}/{file.path.split('/', 1)[1]}", store.read_bytes(file.path))
        note = {
            "batch": batch,
            "target": target,
            "by": by,
            "reason": reason,
            "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "manifest": json.loads(manifest.to_json()),
        }
        store.write_bytes(f"{folder}/skipped.json", json.dumps(note, ensure_ascii=False, indent=1).encode())
        with state.consumer(target) as lease:
            loader = open_target(config, runtime.resolver, runtime.name)
            held = loader.begin_load(lease.epoch)
            if held < batch:
                loader.finish_load(lease.epoch, batch, record.last)
            state.acknowledge(target, record)
        state.audit(by=by, what="skip", details={"target": target, "batch": batch, "reason": reason, "kept_in": folder})
    return plan


def _not_run(manifest: SegmentManifest) -> list[str]:
    """What a target that skips a batch does not get, and no replay brings."""
    if not manifest.ddl:
        return []
    shown = "; ".join(" ".join(record.sql.split())[:100] for record in manifest.ddl[:3])
    more = f" and {len(manifest.ddl) - 3} more" if len(manifest.ddl) > 3 else ""
    return [f"what it changed in definitions is not done there, and no replay does it: {shown}{more}"]


def redeliver(runtime: Runtime, target: str, *, by: str, dry_run: bool, from_batch: int | None = None) -> Plan:
    """Load acknowledged batches again from their segments: after a target was restored from a backup or replaced.

    ``from_batch`` None: from the batch behind the one the target says it holds.

    Raises:
        SegmentError: a batch is no longer stored.
    """
    config = runtime.pipeline.target(target)
    with runtime.state() as state:
        process = state.process(target)
        if process is None:
            raise OutOfOrder(f"target {target} has no acknowledged position yet", where=f"pipeline {runtime.name}")
        held = open_target(config, runtime.resolver, runtime.name).acked_batch()
        first = from_batch or held + 1
        store = runtime.store
        batches = [_known_again(runtime, store, number) for number in range(first, process.batch + 1)]
        if not batches:
            return Plan("redeliver", (f"target {target} holds batch {held}, as acknowledged: nothing is missing",))
        plan = Plan(
            "redeliver",
            (f"batches {first} to {process.batch} are loaded into {target} again, in order, from the segments",),
        )
        if dry_run:
            return plan
        with state.consumer(target) as lease:
            loader = open_target(config, runtime.resolver, runtime.name)
            loader.reset_ack(lease.epoch, first - 1, batches[0].first)
            state.redeliver(lease, target, batches[0].first, batches)
        state.audit(by=by, what="redeliver", details={"target": target, "first": first, "last": process.batch})
    return plan


def _known_again(runtime: Runtime, store: SegmentStore, number: int) -> Batch:
    with runtime.state() as state:
        batch = state.batch(number)
    if batch:
        return batch
    manifest = manifest_of(runtime, store, number)
    if manifest is None:
        raise SegmentError(
            f"batch {number} is no longer stored",
            where=store.uri,
            hint="the target needs a new copy of the source's tables, or a backup that is not older than the retained segments",
        )
    return Batch(
        number=BatchNumber(number),
        epoch=Epoch(manifest.epoch),
        claim="redelivered",
        manifest=store.manifest_path(number, manifest.epoch),
        first=manifest.first.position,
        last=manifest.last.position,
        changes=manifest.changes,
        size_bytes=manifest.size_bytes,
        first_commit_time_us=manifest.first_commit_time_us,
    )


def seek(runtime: Runtime, to: str, *, by: str, dry_run: bool) -> Plan:
    """Move the captured position: ``latest``, ``earliest``, ``file:offset``, a GTID set or an ISO 8601 moment.

    Raises:
        OutOfOrder: a batch is undelivered.
        ConfigError: ``to`` is none of those, or the server has no such position.
    """
    with runtime.state() as state:
        with open_connection(runtime.source) as connection:
            info = server_info(connection)
            position: Position = resolve_start(
                runtime.source, connection, info, parse_position(to), server_id_of(runtime.pipeline)
            )
        cursor = state.cursor()
        now = str(cursor.position) if cursor else "none"
        direction = ""
        if cursor and cursor.position.server_uuid == position.server_uuid:
            back = cursor.position.order > position.order
            direction = "changes between are read again" if back else "changes between are NOT delivered"
        plan = Plan("seek", (f"captured position: {now} -> {position}", direction or "the next drain begins there"))
        if dry_run:
            return plan
        with state.replicator() as lease:
            cursor = state.cursor()
            if cursor is None:
                state.begin(lease, position)
            else:
                state.seek(lease, cursor, position)
        state.audit(by=by, what="seek", details={"from": now, "to": str(position)})
    return plan


def parse_position(text: str) -> Any:
    """What ``source.start`` takes, from one word."""
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
