"""A batch on the driver, and the one unit that sends it.

Requests of different rows are under way at the same time, those of one row are not.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass, replace

from sluice.config.receiver import Receiver
from sluice.errors import LoadError
from sluice.targets.changes_in_order import in_log_order
from sluice.targets.http.client import HttpClient, Refusal
from sluice.targets.http.options import HttpOptions, Ordering
from sluice.targets.http.requests import Documents, Sending
from sluice.targets.messages.batch_rows import BatchRows
from sluice.targets.messages.definitions import require_said
from sluice.targets.messages.documents import MessageWriter
from sluice.targets.messages.key_forms import KeyForms
from sluice.targets.messages.pieces import merged_parts, merged_piece, sent_rows, without_refused
from sluice.targets.messages.stale_keys import StaleWords
from sluice.targets.port import (
    BatchInput,
    Fence,
    Input,
    RejectedRows,
    Rejection,
    TableInput,
    WriteResult,
)
from sluice.targets.web.client import Ended

_ROWS = 20_000
"""Rows that become documents at a time."""
_ELSEWHERE = "its key or a name is empty, . or .. in options.path, where it leads elsewhere"
_AT_RECEIVER = StaleWords(
    "at the receiver", "at the receiver under the old name", "of which the receiver has no row", "change"
)


@dataclass(frozen=True)
class HttpPlace:
    """A receiver, and what is sent to it. Picklable."""

    receiver: Receiver
    options: HttpOptions
    pipeline: str
    target: str

    @property
    def owner(self) -> str:
        """The target's name, for messages."""
        return f"{self.pipeline}.{self.target}"


@dataclass(frozen=True)
class HttpWriter:
    """See :class:`sluice.targets.port.BatchWriter`."""

    place: HttpPlace
    input: Input
    batch: BatchInput
    fence: Fence

    def prepare(self) -> None:
        """Refuse schema changes that documents cannot say. No I/O. Raises LoadError."""
        forms = KeyForms(self.place.options.form, self.place.pipeline) if self.input is Input.MERGED else None
        require_said(self.batch.schema_changes, forms, _AT_RECEIVER, "tell the receiver")

    def plan(self, parallelism: int) -> list[list[HttpUnit]]:
        """Return one unit: the order of a row's changes is kept within it."""
        batch = self.batch
        if not batch.tables and not batch.changes:
            return []
        return [[HttpUnit(self.place, self.fence, BatchRows.of(batch, self.place.pipeline, self.place.options.form))]]

    def commit(self, results: Sequence[WriteResult]) -> None:
        """Do nothing: everything was taken, and the pipeline keeps the checkpoint."""

    def abort(self) -> None:
        """Do nothing: what was sent was sent, and the next attempt sends it with the same keys."""


@dataclass(frozen=True)
class HttpUnit:
    """See :class:`sluice.targets.port.WriteUnit`: the whole batch."""

    place: HttpPlace
    fence: Fence
    rows: BatchRows

    @property
    def cost(self) -> int:
        """The cost of the unit, in rows."""
        return self.rows.cost

    @property
    def memory_bytes(self) -> int:
        """The memory that the unit takes."""
        return self.rows.memory_bytes

    def write(self, rejected: RejectedRows | None = None) -> WriteResult:
        """Send all rows.

        Raises TargetUnavailable, ConfigError, MappingError, and LoadError for the first row that is refused if none may
        be.
        """
        started, place, rows = time.monotonic(), self.place, self.rows
        options = place.options
        position = f"{rows.position.server} {rows.position.place}"
        sending = Sending(options, place.pipeline, place.target, self.fence, rows.replay, position)
        at = None if rows.changes else rows.position
        writer = MessageWriter(options.form, rows.source, self.fence.batch, at)
        result = WriteResult()
        client = HttpClient(place.receiver, options, f"sending batch {self.fence.batch} to {place.owner}", place.owner)
        with closing(client), ThreadPoolExecutor(options.concurrency, "sluice-http") as threads:
            lanes = _Lanes(client, sending, threads)
            if rows.changes:
                result += self._send_changes(lanes, writer)
            for table in rows.tables:
                result += self._send_table(lanes, writer, table, rejected)
        return replace(result, retries=client.retries, seconds=time.monotonic() - started)

    def _send_changes(self, lanes: _Lanes, writer: MessageWriter) -> WriteResult:
        """Send every change. A refused one stops the batch: what follows it in the log is not sent before it."""
        count = 0
        together = self.place.options.ordering is Ordering.GLOBAL
        for pieces in in_log_order(self.rows.reader.change_pieces(), _ROWS, together=together):
            documents = Documents.joined(lanes.sending.documents(writer, piece) for piece in pieces)
            lanes.send(documents, refusable=False)
            count += sum(piece.rows.num_rows for piece in pieces)
        return WriteResult(appended=count)

    def _send_table(
        self, lanes: _Lanes, writer: MessageWriter, table: TableInput, rejected: RejectedRows | None
    ) -> WriteResult:
        result, refused = WriteResult(), list[Rejection]()
        for rows in merged_parts(self.rows.reader, table.files, _ROWS):
            piece = merged_piece(table.target, table.plan.key, rows)
            if rejected is not None:
                piece, odd = without_refused(piece)
                rows, refused = piece.rows, refused + odd
                result += WriteResult(rejected=len(odd))
            left_out = lanes.send(lanes.sending.documents(writer, piece), refusable=rejected is not None)
            result += sent_rows(rows, left_out)
            refused += [
                Rejection(rows.slice(n, 1), refusal.said, str(refusal.status))
                for n, refusal in sorted(left_out.items())
            ]
        if rejected is not None:
            rejected(f"http-{table.plan.source}", table.target, refused)
        return result


@dataclass(frozen=True)
class _Lanes:
    """Sends documents: those with the same order one after the other, others at the same time."""

    client: HttpClient
    sending: Sending
    threads: ThreadPoolExecutor

    def send(self, documents: Documents, *, refusable: bool) -> dict[int, Refusal]:
        """Send documents to the end; return the rows that were refused.

        Raises what :meth:`HttpClient.send` raises, and LoadError.
        """
        work = [self.threads.submit(self._lane, lane, refusable) for lane in self.sending.lanes(documents)]
        wait(work)
        errors = [error for future in work if (error := future.exception()) is not None]
        for error in sorted(errors, key=lambda error: isinstance(error, Ended)):
            raise error
        return {row: refusal for future in work for row, refusal in future.result().items()}

    def _lane(self, lane: Documents, refusable: bool) -> dict[int, Refusal]:
        refused: dict[int, Refusal] = {}
        try:
            for part in self.sending.parts(lane):
                self._part(part, refused, refusable)
        except BaseException:
            self.client.ended.set()
            raise
        return refused

    def _part(self, part: Documents, refused: dict[int, Refusal], refusable: bool) -> None:
        """Send documents in one request; if it is refused, halves of them, down to the row that is at fault."""
        request = self.sending.request(part)
        if self.sending.leads_elsewhere(request.url):
            refusal: Refusal | None = Refusal(0, _ELSEWHERE)
        else:
            refusal = self.client.send(replace(request, url=f"{self.client.receiver.base}{request.url}"))
        if refusal is None:
            return
        if len(part) > 1:
            for half in (part[: len(part) // 2], part[len(part) // 2 :]):
                self._part(half, refused, refusable)
            return
        [table], [row] = part.tables, part.rows
        if not refusable:
            key = "(masked)" if part.hidden[0] else part.keys[0][:300] or "none"
            raise LoadError(
                f"{self.client.doing}: a row of {table} is refused, key {key}: {refusal.said}",
                where=table,
                hint="correct the row, or the receiver; with changes: latest, on_error: dead_letter leaves such rows "
                "out",
            )
        refused[row] = refusal
