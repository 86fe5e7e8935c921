"""The capture's engine: read the log from a position, cut it into a batch at the end of a transaction, hand its rows to
a writer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic

from typing_extensions import TypeVar

from sluice.errors import CaptureError
from sluice.model.load_marks import PartnerLoads
from sluice.model.schema_changes import SchemaStatement
from sluice.sources.decoding_batch import DecodingBatch
from sluice.sources.port import ChangeSink, StreamLimits, StreamResult
from sluice.sources.postgresql.catalog.definitions import PostgreSQLDefinitions
from sluice.sources.postgresql.decoder import scan_kernel as sc
from sluice.sources.postgresql.decoder.in_progress import TransactionsInProgress
from sluice.sources.postgresql.decoder.rows import RowMessages, decode_arena
from sluice.sources.postgresql.decoder.scanner import BeginsBatch, Scanner
from sluice.sources.postgresql.position import Position
from sluice.sources.postgresql.protocol.replication import ReplicationStream
from sluice.sources.postgresql.reader.relations import (
    CatalogLookup,
    FilledLookup,
    RelationPlans,
    RelationTracker,
    TypeLookup,
)
from sluice.sources.table_filter import Selection

M = TypeVar("M", default=Any)

_PROGRESS_EVERY_S = 0.25
_ASK_EVERY_S = 1.0
"""How often the server is asked how far it is, by a batch that waits for a place of the log."""
_DECODED_S = 300.0
"""How long a capture that found nothing waits for the server to decode what the log has.

A server decodes again, from where the slot begins, what it kept for an old or a large transaction, and sends nothing
meanwhile. To a capture that took this for an idle log, and connected again, it would never send anything.
"""
_LOOK_S = 0.005
"""How often a batch whose time is over looks whether it still has to stay open."""


@dataclass
class OpenLog:
    """A log that is being read: the connection, and what was received and is known of it."""

    stream: ReplicationStream
    scanner: Scanner
    plans: RelationPlans
    all_noted: bool = False
    """Every DDL statement is in the log."""
    in_progress: TransactionsInProgress | None = None
    """Takes transactions that the server sends before they commit; None if it sends none."""

    def read(self, wait_s: float) -> int:
        """Give the scanner messages of the log; return how many, or 1 for some.

        Waits up to ``wait_s`` for a first one.
        """
        if self.in_progress is None:
            return self.stream.read(self.scanner, wait_s)
        return self.in_progress.read(self.stream, self.scanner, wait_s)

    def close(self) -> None:
        """End the connection."""
        self.stream.close()
        if self.in_progress is not None:
            self.in_progress.close()


@dataclass(frozen=True, slots=True)
class Lookups:
    """The questions to the catalog during a capture."""

    catalog: CatalogLookup
    types: TypeLookup
    filled: FilledLookup


def capture(
    log: OpenLog,
    start: Position,
    limits: StreamLimits,
    selection: Selection,
    sink: Callable[[], ChangeSink[M]],
    *,
    lookups: Lookups,
    definitions: Callable[[], PostgreSQLDefinitions] | None,
    head: int = 0,
    progress: Callable[..., None] | None = None,
) -> StreamResult[M]:
    """Read the log from ``start`` until a limit closes the batch, or nothing comes.

    Args:
        log: open at ``start``. sink: called at the first change.
        head: LSN of the end of the log; the log is not idle before the server has said that it decoded up to there.
        progress: called a few times a second (``changes=…, position=…``); what it raises ends the capture.

    Raises:
        SourceUnavailable, LostPosition, and CaptureErrors for what cannot be read: the writer was aborted. If whole
            transactions were captured before it, ``whole_until`` of the CaptureError is the end of the last of them.
    """
    with DecodingBatch(sink, decode_arena) as batch:
        reader = _Reader(log, start, limits, selection, batch, lookups=lookups, definitions=definitions)
        reader.head = head
        return reader.run(progress or _quiet)


def _quiet(**_: Any) -> None:
    return None


class _Reader(Generic[M]):
    """One batch: the scanner, the definitions and the clock."""

    def __init__(
        self,
        log: OpenLog,
        start: Position,
        limits: StreamLimits,
        selection: Selection,
        batch: DecodingBatch[M, RowMessages],
        *,
        lookups: Lookups,
        definitions: Callable[[], PostgreSQLDefinitions] | None,
    ) -> None:
        self.log, self.stream, self.scanner = log, log.stream, log.scanner
        self.start, self.limits, self.batch = start, limits, batch
        self.statements = self.head = 0
        self._first_us = self._last_us = 0
        self._last_seal = False
        self.relations = RelationTracker(
            self.scanner,
            log.plans,
            selection,
            start,
            catalog=lookups.catalog,
            types=lookups.types,
            filled=lookups.filled,
            definitions=definitions,
            note=self._note,
            all_noted=log.all_noted,
            needs_keys=self.scanner.sends_back,
        )
        self.scanner.begin(
            self.relations,
            lambda rows: batch.seal(rows, last=self._last_seal),
            events=selection.row_events,
            max_changes=limits.max_changes,
            max_bytes=limits.max_bytes,
            max_message=limits.max_event_bytes,
            stop=Position.of(limits.stop_at).lsn if limits.stop_at is not None else 0,
        )

    def _note(self, statement: SchemaStatement) -> None:
        self.batch.open().note_ddl(statement)
        self.statements += 1
        self._first_us = self._first_us or statement.commit_time_us
        self._last_us = statement.commit_time_us

    def run(self, progress: Callable[..., None]) -> StreamResult[M]:
        scanner, limits = self.scanner, self.limits
        began = time.monotonic()
        next_progress, next_ask = began + _PROGRESS_EVERY_S, began + _ASK_EVERY_S
        first_change = 0.0
        reason = self._scan()
        while not reason:
            now = time.monotonic()
            if now >= next_progress:
                progress(changes=scanner.changes, position=str(scanner.position()))
                next_progress = now + _PROGRESS_EVERY_S
            captured = scanner.changes > 0 or self.statements > 0
            if captured and not first_change:
                first_change = now
            deadline = (first_change + limits.max_wait_s) if captured else (began + limits.idle_wait_s)
            if captured and now >= deadline and limits.stays_open is not None and limits.stays_open():
                deadline = now + _LOOK_S
            if not captured and now >= deadline and scanner.position().lsn < self.head and now < began + _DECODED_S:
                deadline = now + _ASK_EVERY_S
                if now >= next_ask:
                    self.stream.answer(ask=True)
                    next_ask = now + _ASK_EVERY_S
            if now >= deadline:
                if scanner.between_transactions:
                    reason = "time" if captured else "idle"
                    break
                if captured:
                    scanner.stop_at_end()
            if limits.stop_at is not None and now >= next_ask:
                self.stream.answer(ask=True)
                next_ask = now + _ASK_EVERY_S
            pause = min(max(deadline - now, 0.001), 1.0, max(next_progress - now, 0.001))
            if self.log.read(pause):
                reason = self._scan()
        return self._result(reason)

    def _scan(self) -> str:
        """Scan what has arrived. Return why the batch closes, "" if it stays open."""
        scanner, limits = self.scanner, self.limits
        try:
            code = scanner.scan()
        except BeginsBatch as begins:
            self.relations.step_back(begins.lsn)
            return "ddl"
        except CaptureError as error:
            position = scanner.whole_until()
            if position.lsn > self.start.lsn and (scanner.transactions or self.statements):
                error.whole_until = error.whole_until or position.as_offset()
            else:
                error.whole_until = None
            raise
        self.stream.seen(scanner.position().lsn)
        if scanner.asks():
            self.stream.asked()
        if self.scanner.between_transactions and self.relations.end_transaction():
            return "ddl"
        if code == sc.CODE_STOP or scanner.reached_stop():
            return "head"
        if code == sc.CODE_END:
            if scanner.changes >= limits.max_changes:
                return "changes"
            return "time" if scanner.s[sc.S_STOP_AT_END] else "bytes"
        return ""

    def _result(self, reason: str) -> StreamResult[M]:
        scanner = self.scanner
        last = replace(
            scanner.position(), publication=self.start.publication, transaction=self.start.transaction
        ).as_offset()
        log_bytes = int(scanner.s[sc.S_BYTES])
        schema = self.relations.changed
        partner: PartnerLoads = scanner.partner
        if not (scanner.changes or self.statements):
            reached = reason in {"head", "idle"}
            return StreamResult(last, None, 0, 0, log_bytes, reached, reason, schema, partner, self.relations.filled)
        self._last_seal = True
        scanner.finish()
        self.batch.wait()
        first_us, last_us = int(scanner.s[sc.S_FIRST_TS]), int(scanner.s[sc.S_LAST_CAPTURED_TS])
        manifest = self.batch.finish(
            self.start.as_offset(),
            last,
            changes=scanner.changes,
            transactions=scanner.transactions or 1,
            log_bytes=log_bytes,
            first_commit_time_us=min(filter(None, (first_us, self._first_us))),
            last_commit_time_us=max(last_us, self._last_us),
            skipped=scanner.skipped(),
        )
        return StreamResult(
            last,
            manifest,
            scanner.changes,
            scanner.transactions or 1,
            log_bytes,
            reason == "head",
            reason,
            schema,
            partner,
            self.relations.filled,
        )


__all__ = ["Lookups", "OpenLog", "capture"]
