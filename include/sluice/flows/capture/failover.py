"""Failover: continue in the log of another server of the source group, at the same position.

The position is found by GTIDs, which the servers of a group share. Another server is another *log epoch*: files and
offsets of the two never compare. Nothing that was captured is read again, and a server that lacks a part of it is
refused.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import structlog

from sluice.config.pipeline import PipelineConfig
from sluice.coordination.cursor import Cursor
from sluice.coordination.leases import Lease
from sluice.coordination.state import PipelineState
from sluice.errors import ConfigError, LostPosition, OutOfOrder, SegmentError, SluiceError, SourceUnavailable
from sluice.flows.capture.lost_tables import LostTable, lost_tables, shown
from sluice.flows.runtime import Runtime
from sluice.model.dumps import ChunkState
from sluice.model.offset import Offset
from sluice.segments.schemas import SchemaStore
from sluice.segments.store import SegmentStore
from sluice.sources import executed
from sluice.sources.port import FollowsTimelines, Source, SourceSession

_log = structlog.get_logger()

BY = "sluice"
"""The name in the audit if no person did it."""
PATIENCE_S = 10.0
"""Seconds that a failover waits for a replica to apply what was read already."""


@dataclass(frozen=True, slots=True)
class Relocation:
    """A server of the group that has the captured position: ``connection``, its address, and that position in its own
    log.

    ``lost``: captured tables of which a target holds rows and this server none. Users may have removed them since, so
    they do not prevent a failover.
    """

    connection: str
    where: str
    position: Offset
    lost: tuple[LostTable, ...] = ()

    @property
    def doubts(self) -> str:
        """The tables to look at before or after the failover, in words; "" if there are none."""
        return (
            f"{shown(self.lost)}: if no user removed them there, it did not get all changes (replication that was "
            "filtered, or skipped errors)"
            if self.lost
            else ""
        )


def find_member(runtime: Runtime, state: PipelineState, cursor: Cursor, to: str = "") -> Relocation:
    """Find the server to fail over to: ``to``, or the first other one of the group that has everything that was
    captured. Writes nothing.

    Raises:
        ConfigError: the source is no group, or ``to`` is not in it.
        LostPosition: no server has everything.
        SourceUnavailable: no server answers.
    """
    source, now = runtime.pipeline.source, runtime.member(state)
    if not source.connections:
        raise ConfigError(
            f"the source of {runtime.name} is one server, {source.connection}",
            hint="name all servers that replicate each other: source: {connections: [db1, db2]}",
        )
    if to and to not in source.connections:
        raise ConfigError(
            f"{to} is not a server of the source", hint=f"source.connections are: {', '.join(source.connections)}"
        )
    others = [to] if to else [name for name in source.connections if name != now]
    errors: list[SluiceError] = []
    for name in others:
        try:
            return relocated(runtime, cursor, name)
        except SluiceError as error:
            error.message = f"{name}: {error.message}"
            errors.append(error)
    if not errors:
        raise ConfigError(f"{now} is the only server of the source", hint="source.connections needs a second one")
    if len(errors) == 1:
        raise errors[0]
    kind = SourceUnavailable if all(isinstance(error, SourceUnavailable) for error in errors) else LostPosition
    raise kind("; ".join(error.message for error in errors), hint=errors[0].hint)


def relocated(runtime: Runtime, cursor: Cursor, name: str) -> Relocation:
    """Translate the captured position to the server that answers at the connection ``name``.

    Raises LostPosition, ConfigError, PreflightError, SourceUnavailable.
    """
    source = runtime.source_at(name)
    with source.open() as session:
        same = session.identity.server == cursor.position.server
        position = cursor.position if same else session.relocate(cursor.position, patience_s=PATIENCE_S)
        session.require_ready(position)
        with runtime.state() as state:
            lost = () if same else tuple(lost_tables(runtime, state, session, cursor.position))
        return Relocation(name, source.where, position, lost)


def fail_over(
    runtime: Runtime, state: PipelineState, lease: Lease, cursor: Cursor, place: Relocation, *, by: str, reason: str
) -> Cursor:
    """Read ``place`` from now on. Definitions go along: they are those of the same transaction.

    Raises OutOfOrder while somebody reads tables for a dump: its places are of the log of the other server.
    """
    reading = [dump.id for dump in state.dumps.active() if state.dumps.readers(dump.id)]
    if reading:
        raise OutOfOrder(
            f"a dump is being read from the present server: {', '.join(reading)}",
            where=f"pipeline {runtime.name}",
            hint=f"stop its readers first: `sluice dump pause {runtime.name} {reading[0]}`, or wait until they have "
            "noticed",
        )
    _read_again(state)
    _mark_anew(runtime, state, place)
    schema = _schema(runtime.source, runtime.store, lease, cursor, place.position)
    before = runtime.member(state)
    moved = state.fail_over(lease, cursor, place.position, place.connection, int(time.time() * 1000), schema=schema)
    _read_again(state)  # chunks that a reader marked meanwhile
    details = {
        "from": f"{before}, {cursor.position}",
        "to": f"{place.connection}, {place.position}",
        "gtids": executed(runtime.pipeline.source.type, cursor.position),
        "reason": reason,
        **({"doubts": place.doubts} if place.lost else {}),
    }
    if place.lost:
        _log.warning("source_rows_missing", pipeline=runtime.name, connection=place.connection, reason=place.doubts)
    state.audit.note(by=by, what="failover", details=details)
    _log.warning(
        "source_failed_over",
        pipeline=runtime.name,
        previous=before,
        connection=place.connection,
        position=str(place.position),
    )
    return moved


def follow(
    runtime: Runtime, state: PipelineState, lease: Lease, source: SourceSession, cursor: Cursor | None
) -> Cursor | None:
    """Go on in the log of the same server under its present name: that of a standby which was promoted.

    Chunks of dumps and undelivered batches stay as they are: their places are in front of what has the new name.
    """
    if cursor is None or not isinstance(source, FollowsTimelines):
        return cursor
    position = source.followed(cursor.position)
    if position.is_at(cursor.position):
        return cursor
    schema = _schema(runtime.source, runtime.store, lease, cursor, position)
    moved = state.advance(lease, cursor, position, schema=schema, partner_batch=cursor.partner_batch)
    _log.warning("source_log_followed", pipeline=runtime.name, previous=str(cursor.position), position=str(position))
    return moved


def _read_again(state: PipelineState) -> None:
    """Reset all unplaced chunks so that they are read again: their positions mean nothing in the log of another
    server.
    """
    for dump in state.dumps.active():
        for chunk in state.dumps.chunks(dump.id):
            if chunk.state is not ChunkState.TODO:
                state.dumps.redo(chunk)


def _mark_anew(runtime: Runtime, state: PipelineState, relocation: Relocation) -> None:
    """Switch the running dumps to the kind of watermark that the new server allows.

    Mark rows would be transactions that the new server's own source lacks. A chunk with one kind of mark never meets a
    mark of the other kind, so every unplaced chunk is read again.
    """
    dumps = state.dumps.active()
    if not dumps:
        return
    try:
        with runtime.source_at(relocation.connection).open() as session:
            marking = session.choose_marking()
    except SluiceError as error:  # a dump must not prevent a failover
        for dump in dumps:
            state.dumps.add_note(
                dump.id, f"{relocation.connection} cannot be copied from: {error.message}; cancel this dump"
            )
        return
    for dump in dumps:
        while (now := state.dumps.get(dump.id)) is not None and now.marking is not marking:
            state.dumps.update(replace(now, marking=marking))


def _schema(source: Source, store: SegmentStore, lease: Lease, cursor: Cursor, position: Offset) -> str:
    """Store the schema history under its new position and return its path; "" if there is none, so that the next
    capture builds it.
    """
    if not cursor.schema:
        return ""
    if position.log_epoch == cursor.position.log_epoch:
        return cursor.schema
    schemas = SchemaStore(store)
    try:
        known_definitions = schemas.load(cursor.schema, source.stored_definitions)
    except SegmentError:
        return ""
    return schemas.save(known_definitions, position, lease.epoch)


# -- by itself ---------------------------------------------------------------------------------------------------------


def answered(pipeline: PipelineConfig, state: PipelineState) -> None:
    """Clear the time since which the server has been silent, because it answered."""
    if pipeline.source.connections and state.member.read().silent_since_ms:
        state.member.silent_since(0)


def replaced(runtime: Runtime, state: PipelineState, lease: Lease, error: SourceUnavailable) -> None:
    """Fail over to another server after the delay, if ``failover: when_unreachable`` is set; otherwise raise ``error``.

    The hint of ``error`` says what happens next. Also raises whatever keeps the other servers from taking over.
    """
    source = runtime.pipeline.source
    if not source.connections:
        raise error
    now_ms = int(time.time() * 1000)
    silent_s = (now_ms - state.member.silent_since(now_ms).silent_since_ms) / 1000
    left_s = source.failover_delay.total_seconds() - silent_s
    if source.failover == "manual":
        error.hint = (
            f"{error.hint or 'start it again'}; or read another server of the group: `sluice failover {runtime.name}`"
        )
        raise error
    if left_s > 0:
        error.hint = f"{error.hint or 'start it again'}; another server of the group is read in {left_s:.0f} s"
        raise error
    cursor = state.cursor()
    if cursor is None:
        raise error
    reason = f"{runtime.member(state)} has been silent for {silent_s:.0f} s"
    fail_over(runtime, state, lease, cursor, find_member(runtime, state, cursor), by=BY, reason=reason)
