"""Catching up: closed log files read side by side, with rows, positions and batches as one reader would make them.

A closed file is a piece of its own: no transaction goes on in the next file, and each row event follows its own table
map. So while a backlog of several closed files fits into the batch, each is read by a connection, a scanner and a
decoder of its own, in a thread (receiving, scanning, decoding and writing run without the interpreter lock). Sequence
numbers of piece *n* begin at *n* · 2^40, so they order as the log does. Pieces are accepted in the order of the log,
and only whole: if the batch would have closed inside a piece, or the piece holds something that depends on what stands
before it (DDL, XA, watermarks, table maps without names), or if reading it failed, then what was written of it and of
all after it is dropped, and the one reader goes on there. It meets the same limit, statement or error, at the same
place.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Any, Protocol

import structlog

from sluice.errors import SluiceError
from sluice.model.log_files import split_file
from sluice.sources.mysql.decoder import scan_kernel as sc
from sluice.sources.mysql.events.gtids import GtidSet, MariaDbGtidState
from sluice.sources.mysql.events.read_totals import ReadTotals
from sluice.sources.mysql.position import LastEvent, Position, is_mariadb

_log = structlog.get_logger()

SEQ_STEP = 1 << 40
"""Sequence numbers of one piece; a file holds fewer row changes."""
PIECE_BYTES = 32 * 2**20
"""About a tenth of a second's work: less is not worth a connection of its own."""
_PROGRESS_EVERY_S = 0.25


@dataclass(frozen=True, slots=True)
class BinlogRange:
    """Closed files, one or several small ones, or the rest of one.

    ``stop`` is the start of the next; ``number`` counts from 0 within the batch.
    """

    number: int
    start: Position
    stop: Position
    size_bytes: int


class RangeReader(Protocol):
    """One piece at work; made by the caller of :func:`read_pieces`."""

    @property
    def state(self) -> Any:
        """The scanner's state (int64 array, ``sluice.sources.mysql.decoder.scan_kernel.S_*``)."""

    @property
    def last(self) -> Position:
        """The position that it has reached."""

    @property
    def log_bytes(self) -> int:
        """Bytes received."""

    @property
    def skipped(self) -> dict[str, int]:
        """The changes that the scanner left out, by reason."""

    def run(self, cancelled: threading.Event) -> bool:
        """Read and write the piece; False if it can only be read in its turn. Raises whatever goes wrong."""

    def accept(self) -> None:
        """Make its rows a part of the batch."""

    def drop(self) -> None:
        """Forget its rows."""


def closed_pieces(
    start: Position,
    logs: Sequence[tuple[str, int]],
    *,
    max_bytes: int,
    stop_at: Position | None = None,
    piece_bytes: int = PIECE_BYTES,
) -> list[BinlogRange]:
    """Return the closed files from ``start`` on that fit into a batch together; none if there are fewer than two.

    Args:
        logs: (name, size in bytes) of the server's log files, oldest first; the last is being written.
        stop_at: a position that the batch must not pass.
        piece_bytes: smaller files that follow each other are one piece up to this size.
    """
    sizes = dict(logs)
    names = list(sizes)
    if start.file not in sizes or start.prepared:
        return []
    last = split_file(stop_at.file)[1] if stop_at else split_file(names[-1])[1]
    gtid_set = "" if is_mariadb(start.server_uuid) else start.gtid_set  # MariaDB's is a last number, not a set
    pieces: list[BinlogRange] = []
    total = size = 0
    place = begin = start
    for name, following in itertools.pairwise(names):
        number = split_file(name)[1]
        if number < split_file(start.file)[1] or number >= last:
            continue
        readable = max(sizes[name] - place.offset, 0)
        total += readable
        if total >= max_bytes or number + 1 != split_file(following)[1]:
            break
        size += readable
        place = Position(start.server_uuid, following, 4, gtid_set)
        if size >= piece_bytes:
            pieces.append(BinlogRange(len(pieces), begin, place, size))
            begin, size = place, 0
    if begin is not place:
        pieces.append(BinlogRange(len(pieces), begin, place, size))
    return pieces if len(pieces) > 1 else []


def read_pieces(
    pieces: Sequence[BinlogRange],
    *,
    start: Position,
    readers: int,
    max_changes: int,
    max_bytes: int,
    mariadb: bool,
    make: Callable[[BinlogRange, int], RangeReader],
    progress: Callable[..., None],
) -> ReadTotals:
    """Read pieces with ``readers`` threads; returns what was accepted.

    Args:
        make: (piece, number of the thread, from 0) -> its reading.
        progress: called a few times a second from this thread; what it raises cancels all.
    """
    totals = ReadTotals(start)
    cancelled = threading.Event()
    free = list(range(readers))
    waiting = list(pieces)
    running: dict[Future[bool], tuple[int, int]] = {}
    readings: dict[int, RangeReader] = {}
    ended: dict[int, bool] = {}

    def seen() -> int:
        return totals.changes + sum(int(r.state[sc.S_CHANGES]) for r in readings.values())

    with ThreadPoolExecutor(readers, thread_name_prefix="reader") as pool:
        try:
            while True:
                barrier = min((number for number, complete in ended.items() if not complete), default=len(pieces))
                while free and waiting and waiting[0].number < barrier and (not readings or seen() < max_changes):
                    piece, slot = waiting.pop(0), free.pop()
                    reading = readings[piece.number] = make(piece, slot)
                    running[pool.submit(_run, reading, piece, cancelled)] = (piece.number, slot)
                progress(changes=seen(), file=totals.last.file, offset=totals.last.offset)
                finished, _ = wait(running, timeout=_PROGRESS_EVERY_S, return_when=FIRST_COMPLETED)
                for future in finished:
                    number, slot = running.pop(future)
                    ended[number] = future.result()
                    free.append(slot)
                while totals.pieces in ended:
                    number = totals.pieces
                    more = _added(totals, readings[number], mariadb) if ended[number] else None
                    if more is None or more.changes >= max_changes or more.bytes >= max_bytes:
                        return totals
                    readings.pop(number).accept()
                    totals = more
                if totals.pieces == len(pieces) or not (running or waiting):
                    return totals
        finally:
            cancelled.set()
            wait(running)
            for reading in readings.values():
                reading.drop()


def _run(reading: RangeReader, piece: BinlogRange, cancelled: threading.Event) -> bool:
    try:
        return reading.run(cancelled)
    except SluiceError as error:  # the one reader meets it again if the batch gets there
        _log.info("parallel_read_failed", file=piece.start.file, error=error.message)
        return False


def _added(totals: ReadTotals, reading: RangeReader, mariadb: bool) -> ReadTotals:
    """Add one more piece to ``totals``."""
    state = reading.state
    changes, size = int(state[sc.S_CHANGES]), int(state[sc.S_BYTES])
    if totals.changes:
        size += int(state[sc.S_BYTES_BEFORE])
    elif not changes:
        size = 0
    last = reading.last
    skipped = {k: totals.skipped.get(k, 0) + reading.skipped.get(k, 0) for k in totals.skipped | reading.skipped}
    return ReadTotals(
        last=Position(
            last.server_uuid,
            last.file,
            last.offset,
            _executed(totals.last.gtid_set, last.gtid_set, mariadb),
            last.commit_time_us or totals.last.commit_time_us,
            last_event=_last_event(totals.last.last_event, last.last_event),
        ),
        pieces=totals.pieces + 1,
        changes=totals.changes + changes,
        transactions=totals.transactions + int(state[sc.S_CAPTURED_TXNS]),
        log_bytes=totals.log_bytes + reading.log_bytes,
        bytes=totals.bytes + size,
        first_commit_us=totals.first_commit_us or int(state[sc.S_FIRST_TS]),
        last_commit_us=int(state[sc.S_LAST_TS]) or totals.last_commit_us,
        skipped_tables=totals.skipped_tables + int(state[sc.S_SKIPPED_TABLE]),
        skipped_kinds=totals.skipped_kinds + int(state[sc.S_SKIPPED_KIND]),
        skipped=skipped,
    )


def _last_event(before: LastEvent | None, behind: LastEvent | None) -> LastEvent | None:
    """Return the last event of two pieces; the second does not know the GTID of a transaction of the first."""
    if behind is None or before is None or behind.gtid:
        return behind or before
    return replace(behind, gtid=before.gtid)


def _executed(before: str, behind: str, mariadb: bool) -> str:
    """Return the GTIDs of two pieces, each of which began with what was executed before the batch."""
    if mariadb:
        position = MariaDbGtidState(before)
        position.update(MariaDbGtidState(behind))
        return str(position)
    executed = GtidSet(before)
    executed.update(GtidSet(behind))
    return str(executed)
