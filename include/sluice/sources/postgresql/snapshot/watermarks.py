"""Marks around the select of a chunk: the snapshot that it reads, told by the transactions that it sees.

Nothing is written at the source. Why it is right: a transaction enters the log when it commits, and becomes visible
after that; between the two it may wait for a synchronous standby, for any time. So no place in the log stands for what
a select sees, and a mark that is written there (``pg_logical_emit_message``) does not, either. The snapshot itself says
it exactly: :func:`after_low` tells for the transaction of each change whether the select saw it.

A standby does not know the transactions that run at its primary. There the log itself is the order in which
transactions become visible, so that the place up to which it is replayed stands for what a select sees at least
(:class:`StandbyMarks`). The changes behind it are those of the log, whether the select saw them or not. That holds for
a standby whose own log is read, too.

:func:`end_of_log` is a place that all that is visible stands before. As the beginning of a window it has to be before
all that the next snapshot does not see; so it waits for transactions that are in the log and not yet visible.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.errors import ConfigError, SourceUnavailable
from sluice.model.dumps import Chunk, Marking
from sluice.model.tables import one_chunk
from sluice.postgresql.connection import Connection
from sluice.sources.postgresql.position import lsn_number, place_of, timeline_of
from sluice.sources.postgresql.server.connection import rows_of
from sluice.sources.postgresql.server.info import without_head
from sluice.sources.postgresql.server.standby import await_replay

_FLUSH_S = 10.0
_COMMIT_S = 0.2
_STANDBY_S = 60.0
_LOOK_S = 0.005
_EPOCH = 1 << 32
_BASE = "timeline"

_PLACE = (
    "SELECT pg_current_wal_insert_lsn()::text, pg_current_wal_flush_lsn()::text, "
    "substr(pg_walfile_name(pg_current_wal_flush_lsn()), 1, 8)"
)
_REPLAYED = (
    "SELECT pg_last_wal_replay_lsn()::text, greatest(pg_last_wal_replay_lsn(), pg_last_wal_receive_lsn())::text, "
    "(SELECT timeline_id FROM pg_control_checkpoint())"
)
"""The timeline may be an older one, so that more changes count as not seen, never fewer."""
_WRITING = "SELECT backend_xid::text FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()"
_COMMITTING = (
    "SELECT count(*), count(*) FILTER (WHERE wait_event = 'SyncRep') FROM pg_stat_activity "
    "WHERE backend_xid::text = ANY(%s) AND state IS DISTINCT FROM 'idle in transaction' "
    "AND state IS DISTINCT FROM 'idle in transaction (aborted)'"
)


class SnapshotMarks:
    """See :class:`sluice.sources.port.Watermarker`; ``reader``: the connection that reads the rows."""

    def __init__(self, reader: Connection) -> None:
        self._reader = reader

    def low(self, chunk: Chunk) -> str:
        """Return "": the snapshot does not exist before :meth:`reading`."""
        return ""

    @contextmanager
    def reading(self, chunk: Chunk) -> Iterator[str | None]:
        """Open the snapshot and yield the transactions that it sees; roll back at the end."""
        rows_of(self._reader, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            [(snapshot,)] = rows_of(self._reader, "SELECT pg_current_snapshot()::text")
            yield str(snapshot)
        finally:
            if not self._reader.closed:
                self._reader.rollback()

    def high(self, chunk: Chunk) -> None:
        """Do nothing: the end of the log, asked after the select, closes the window."""
        return


class StandbyMarks:
    """See :class:`sluice.sources.port.Watermarker`, of a standby.

    ``reader``: the connection that reads the rows. ``primary``: None if the log that is read is the standby's own.
    """

    def __init__(self, primary: Connection | None, reader: Connection) -> None:
        self._primary = primary
        self._reader = reader

    def low(self, chunk: Chunk) -> str:
        """Return "": the place does not exist before :meth:`reading`."""
        return ""

    def caught_up(self) -> str:
        """Wait until the standby has what the primary has now, tables that were just made among it, and return a place
        in the log that it has replayed; without a primary, return that place at once.

        Raises SourceUnavailable if the standby does not get there within a minute, or is no standby any more.
        """
        if self._primary is None:
            [(replayed, _, replayed_timeline)] = rows_of(self._reader, _REPLAYED)
            return place_of(int(replayed_timeline), lsn_number(replayed))
        [(_, flushed, timeline)] = rows_of(self._primary, _PLACE)
        target_lsn = without_head(lsn_number(flushed))
        return place_of(int(timeline, 16), await_replay(self._reader, target_lsn, _STANDBY_S))

    @contextmanager
    def reading(self, chunk: Chunk) -> Iterator[str | None]:
        """Wait until the standby has what the primary has now, open a snapshot, and yield the place in the log that all
        it surely sees stands before.

        Raises SourceUnavailable as :meth:`caught_up` does.
        """
        place = self.caught_up()
        rows_of(self._reader, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            yield place
        finally:
            if not self._reader.closed:
                self._reader.rollback()

    def high(self, chunk: Chunk) -> None:
        """Do nothing: the end of the log, asked after the select, closes the window."""
        return


def require_standby(primary: Connection, standby: Connection, where: str) -> None:
    """Raise ConfigError unless a server is a standby of another one."""
    query = "SELECT (SELECT system_identifier::text FROM pg_control_system()), pg_is_in_recovery()"
    [(system, cascades)], [(standby_system, recovering)] = rows_of(primary, query), rows_of(standby, query)
    if cascades:
        raise ConfigError(
            "dump.connection names a standby, and the source is one itself: neither says how far the other is",
            where=where,
            hint="take dump.connection out of the pipeline file: rows are copied from the standby whose log is read",
        )
    if system != standby_system or not recovering:
        why = "is no standby" if system == standby_system else "is a standby of another server, or none"
        raise ConfigError(
            f"dump.connection {why}, and rows that it has may not be those of the source",
            where=where,
            hint="name a standby of the source, or take dump.connection out of the pipeline file",
        )


def choose_marking(connection: Connection) -> Marking:
    """Return the only way in which a new dump is marked."""
    return Marking.SNAPSHOT


def after_low(low: str, rows: pa.Table) -> np.ndarray[Any, Any]:
    """Return a mask of the changes whose transactions a snapshot does not see.

    ``low``: as ``pg_current_snapshot`` prints it, or a place of the log (:class:`StandbyMarks`). ``rows``: ``_gtid``,
    the number of the transaction, of which the log has the lower 32 bits, ``_file`` and ``_offset``. A change without a
    number counts as not seen.
    """
    if not is_exact(low):
        return _behind(low, rows)
    first, last, running = low.split(":")
    oldest, newest = int(first), int(last)
    open_ = {int(transaction) for transaction in running.split(",") if transaction}
    named = one_chunk(rows["_gtid"]).dictionary_encode()
    unseen = [not _is_seen(text, oldest, newest, open_) for text in named.dictionary.to_pylist()]
    which = named.indices.fill_null(len(unseen)).to_numpy(zero_copy_only=False)
    mask: np.ndarray[Any, Any] = np.array([*unseen, True], np.bool_)[which.astype(np.int64)]
    return mask


def is_exact(low: str) -> bool:
    """Return True if :func:`after_low` tells exactly what the select saw."""
    return not low.startswith(_BASE)


def _behind(low: str, rows: pa.Table) -> np.ndarray[Any, Any]:
    """Return a mask of the changes that committed behind a place of the log, or on a later timeline."""
    base, _, lsn = low.rpartition(":")
    files = one_chunk(rows["_file"]).dictionary_encode()
    timelines = [timeline_of(file) for file in files.dictionary.to_pylist()]
    timeline = np.array([*timelines, 0], np.int64)[files.indices.fill_null(len(timelines)).to_numpy(False)]
    offset = one_chunk(rows["_offset"]).to_numpy(zero_copy_only=False).astype(np.int64)
    return np.asarray((timeline > timeline_of(base)) | ((timeline == timeline_of(base)) & (offset >= int(lsn))))


def _is_seen(text: str, oldest: int, newest: int, running: set[int]) -> bool:
    number = _whole(int(text), newest)
    return number < oldest or (number < newest and number not in running)


def _whole(number: int, near: int) -> int:
    """Return the 64-bit number of a transaction, of which 32 bits are given, that is nearest to another."""
    distance = (number - near) % _EPOCH
    return near + (distance - _EPOCH if distance >= _EPOCH >> 1 else distance)


def end_of_log(connection: Connection) -> str:
    """Return a place that every visible transaction stands before, and none behind that is in the log and invisible.

    A standby shows a transaction a moment before it says that its record is replayed. So the place is not in front of
    what the standby has received.

    Raises SourceUnavailable if transactions wait for a synchronous standby, or a standby replays nothing, for more than
    a minute.
    """
    if rows_of(connection, "SELECT pg_is_in_recovery()")[0][0]:
        [(_, received, timeline)] = rows_of(connection, _REPLAYED)
        return place_of(int(timeline), await_replay(connection, lsn_number(received), _STANDBY_S))
    place = _flushed(connection)
    _await_commits(connection)
    return place


def _flushed(connection: Connection) -> str:
    """Return the place up to which the log is on disk, at least what was written before this call: a reader gets no
    more of it.
    """
    [(inserted, flushed, timeline)] = rows_of(connection, _PLACE)
    target_lsn, deadline = without_head(lsn_number(inserted)), time.monotonic() + _FLUSH_S
    while lsn_number(flushed) < target_lsn:
        if time.monotonic() > deadline:
            raise SourceUnavailable(
                f"the log is on disk up to {flushed} only, {_FLUSH_S:.0f} s after it was written up to {inserted}",
                hint="look at the server's disk and at wal_writer_delay",
            )
        time.sleep(_LOOK_S)
        [(_, flushed, timeline)] = rows_of(connection, _PLACE)
    return place_of(int(timeline, 16), lsn_number(flushed))


def _await_commits(connection: Connection) -> None:
    """Wait until transactions that may be in the log are visible.

    A transaction that runs a statement may be about to commit; so a short time is given to all of them, and a long one
    to those that wait for a synchronous standby.
    """
    running = [number for (number,) in rows_of(connection, _WRITING)]
    began = time.monotonic()
    while running:
        [(active, waiting)] = rows_of(connection, _COMMITTING, (running,))
        passed = time.monotonic() - began
        if not active or (passed > _COMMIT_S and not waiting):
            return
        if passed > _STANDBY_S:
            raise SourceUnavailable(
                f"{waiting} transactions wait for a synchronous standby for more than {_STANDBY_S:.0f} s: what a copy "
                "would see of them is not certain",
                hint="look at synchronous_standby_names and pg_stat_replication; the copy goes on by itself",
            )
        time.sleep(_LOOK_S)


__all__ = ["SnapshotMarks", "StandbyMarks", "after_low", "choose_marking", "end_of_log", "is_exact", "require_standby"]
