"""Capture a batch again: the same number, the same part of the log, the same content, into new files."""

from __future__ import annotations

import math
import time

import structlog

from sluice.coordination.leases import Lease
from sluice.coordination.state import PipelineState
from sluice.errors import OutOfOrder, SegmentError, SluiceError
from sluice.flows.capture.schema_history import schema_at
from sluice.flows.dump.interleaver import ChunkInterleaver, InterleavingSegmentWriter
from sluice.flows.runtime import Runtime
from sluice.model.batches import Batch
from sluice.model.dumps import Dump
from sluice.model.tables import TableId
from sluice.segments.manifest import SegmentManifest
from sluice.segments.store import SegmentStore
from sluice.sources.port import SourceSession, StreamLimits
from sluice.sources.table_filter import Selection

_log = structlog.get_logger()

_NO_LIMIT = 2**62
_PATIENCE_S = 30.0
"""Seconds to wait for the log of the batch. The log is there: a longer wait is for a server that does not answer."""


def require_log_of(source: SourceSession, record: Batch) -> None:
    """Require that the source still has the log that the batch was made of.

    Raises LostPosition, WrongServer, PreflightError.
    """
    source.require_ready(record.first)
    source.confirm(record.first)


def recapture(runtime: Runtime, state: PipelineState, lease: Lease, record: Batch) -> Batch:
    """Read the log of a batch again and record its new files.

    Rows that dumps placed in it are not in the log, see :func:`placed_tables`.

    Raises:
        LostPosition, WrongServer: the source does not have that log. CaptureError: it cannot be read. SegmentError: it
            ends elsewhere.
    """
    store, pipeline = runtime.store, runtime.pipeline
    with runtime.source.open(to_stream=True) as source:
        who = source.identity
        if not record.first.is_at(record.last):
            require_log_of(source, record)
        placer = ChunkInterleaver(
            state,
            store,
            runtime.source,
            runtime.source.watermark_table,
            who.origin,
            dialect=who.dialect,
            small_files=pipeline.capture.segments.small_files,
        )
        writer = placer.writer(record.number, lease.epoch)
        writer.targets = record.targets
        manifest = None
        if not record.first.is_at(record.last):
            manifest = _read(runtime, source, placer, writer, record)
        if manifest is None:  # the log has none of its rows: a dump placed all of them
            at_us = record.first_commit_time_us or time.time_ns() // 1000
            writer.finish(record.first, record.last, changes=0, first_commit_time_us=at_us, last_commit_time_us=at_us)
            manifest = writer.seal(placer.plan)
    batch = Batch(
        number=record.number,
        epoch=lease.epoch,
        claim=record.claim,
        manifest=store.manifest_path(record.number, lease.epoch),
        first=record.first,
        last=record.last,
        changes=manifest.changes,
        size_bytes=manifest.size_bytes,
    )
    kept_batch = state.recaptured(lease, batch)
    if kept_batch is None:
        raise OutOfOrder(
            f"batch {record.number} changed while it was captured again", where=f"pipeline {pipeline.pipeline}"
        )
    _log.info("batch_recaptured", pipeline=runtime.name, batch=record.number, changes=manifest.changes)
    return kept_batch


def _read(
    runtime: Runtime,
    source: SourceSession,
    placer: ChunkInterleaver,
    writer: InterleavingSegmentWriter,
    record: Batch,
) -> SegmentManifest | None:
    history = source.history
    result = source.stream(
        record.first,
        StreamLimits(
            max_changes=_NO_LIMIT,
            max_bytes=_NO_LIMIT,
            max_wait_s=math.inf,
            idle_wait_s=_PATIENCE_S,
            max_event_bytes=runtime.pipeline.capture.max_event,
            stop_at=record.last,
        ),
        Selection.compile(runtime.pipeline.capture),
        lambda: writer,
        definitions=(lambda: schema_at(runtime, history, record.first)) if history is not None else None,
    )
    if result.manifest is not None and not result.last.is_at(record.last):
        writer.abort()
        raise SegmentError(
            f"batch {record.number} cannot be captured again: the log from {record.first} was read to {result.last}, "
            f"and the batch ends at {record.last}",
            where=f"pipeline {runtime.name}",
            hint=f"`sluice seek {runtime.name} --drop-undelivered` reads the log again from where the undelivered "
            "batches begin",
        )
    return None if result.manifest is None else placer.interleave(result.manifest)


def placed_tables(store: SegmentStore, state: PipelineState, record: Batch) -> tuple[set[TableId], set[TableId]]:
    """Return the tables of which a dump placed rows in a batch: (those to copy again, those whose rows have to be
    replaced).

    The manifest tells them; without it every dump counts that was running then.
    """
    try:
        manifest = store.read_manifest(record.manifest)
    except SluiceError:
        dumps = [d for d in state.dumps.under_way_since(record.created_ms) if d.created_ms <= record.created_ms]
        return _of_dumps([d for d in dumps if not d.targets or d.targets == record.targets])
    copied = {file.table_id for file in manifest.files if file.reads or file.place is not None}
    keyless = {file.table_id for file in manifest.files if file.table_id in copied and not file.primary_key}
    replaced = {TableId(replace.schema_, replace.table) for replace in manifest.replaces}
    held_tables = {_table(name) for name in manifest.held}
    tables = keyless | replaced | held_tables
    return copied - tables, tables


def _of_dumps(dumps: list[Dump]) -> tuple[set[TableId], set[TableId]]:
    tables = {request.table for dump in dumps for request in dump.tables if request.replace or request.keyless}
    return {request.table for dump in dumps for request in dump.tables} - tables, tables


def _table(name: str) -> TableId:
    schema, _, table = name.partition(".")
    return TableId(schema, table)
