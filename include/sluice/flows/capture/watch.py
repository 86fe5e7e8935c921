"""The watch of a pipeline that waits: may there be something to capture? One process watches for hundreds of pipelines.

The watch decides nothing: the capture that it wakes looks for itself. ZooKeeper is read again only after a change; the
log is read once for all pipelines of a server.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from sluice.coordination.alerts import is_switch
from sluice.coordination.cursor import Cursor
from sluice.coordination.leases import owner_label
from sluice.coordination.shared_session import SharedSession, SharedSessions
from sluice.errors import CoordinationUnavailable, SourceUnavailable
from sluice.flows.capture.adoption import is_old
from sluice.flows.dump.interleaver import late_chunks
from sluice.flows.runtime import Runtime
from sluice.model.offset import Offset
from sluice.model.tables import TableId
from sluice.sources.port import LogWatch
from sluice.sources.table_filter import Selection

_READ_EVERY_S = 120.0
"""Seconds between two reads of ZooKeeper without a notification of a change."""

_BUSY_EVERY_S = 1.0
"""The same while a dump runs or a batch is being delivered."""

STEP_OVER_S = 20.0
"""Seconds between two moves of a waiting pipeline's position over log that holds nothing for it.

Without them the pipeline would seem to lag, the server could purge that log, and the next capture would have to read
it.
"""


class WaitingPipeline:
    """One pipeline that waits for changes.

    Attributes:
        source_key: pipelines that share a look at the log have the same one.
        read_at: when :meth:`read` last asked ZooKeeper.
        delivered: target -> its last batch, while all of them have everything and none needs attention; None: something
            is on its way, or wrong.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.source_key = ""
        self.delivered: dict[str, int] | None = None
        self._session: SharedSession | None = None
        self._changed = self._moved = True
        self.read_at = self._stepped_at = time.monotonic()
        self._every_s = _READ_EVERY_S
        self._cursor: Cursor | None = None
        self._any = False
        selection = Selection.compile(runtime.pipeline.capture)
        self._selects = selection.wants
        self._marks: TableId | None = None

    def join(self, sessions: SharedSessions) -> None:
        """Wait by a session that others use, too. Raises CoordinationUnavailable, ConfigError."""
        runtime = self.runtime
        coordination = runtime.pipeline.coordination
        self._session = sessions.get(
            runtime.resolver(coordination.connection), coordination.session_timeout.total_seconds()
        )
        runtime.join(self._session)
        source = runtime.source
        self.source_key, self._marks = source.watch_key, source.watermark_table
        if runtime.owner:
            with runtime.state() as state:
                self._session.hear(self, state.layout.installation(runtime.owner), runtime.lives)

    def leave(self) -> None:
        """Stop waiting and leave the session."""
        if self._session is not None:
            self._session.leave(self)

    def open_watch(self) -> LogWatch:
        """Open a watch on the log of the pipeline's source."""
        return self.runtime.source.watch()

    @property
    def since(self) -> Offset | None:
        """The captured position as last read; None before the first capture."""
        return self._cursor.position if self._cursor else None

    def wants(self, table: TableId) -> bool:
        """Return True if a change of this table is for this pipeline."""
        return table == self._marks or self._selects(table)

    def read(self) -> bool:
        """Read ZooKeeper, if it changed: is there something to do, whatever is in the log?

        Raises CoordinationUnavailable, SourceUnavailable.
        """
        if self._session is None or not self._session.alive:
            raise CoordinationUnavailable("the session of the store of positions has expired")
        now = time.monotonic()
        if not self._changed and now - self.read_at < self._every_s and not self._other_cursor():
            return False
        self._changed, self._moved, self.read_at, self._cursor = False, False, now, None
        self.delivered = None
        with self.runtime.state() as state:
            state.notify(self._note)
            state.notify_cursor(self._note_cursor)
            if not state.pause_switch.read().open:
                return False
            self._cursor = state.cursor()
            if self._cursor is None:
                return True
            dumps, waiting, later = bool(state.dumps.active()), state.in_window(), state.waiting().values()
            self._every_s = (
                _BUSY_EVERY_S if dumps or waiting else min([_READ_EVERY_S, *(bundle.due_in_s for bundle in later)])
            )
            self._any = dumps
            if any(bundle.is_due for bundle in later):
                return True
            if not dumps and not waiting and not later and not state.quarantine.all():
                held_acks = {target: state.acks.get(target) for target in state.targets}
                if all(is_switch(key) for key in state.alerts.all()):
                    self.delivered = {target: ack.batch for target, ack in held_acks.items() if ack}
            if dumps and late_chunks(state, self._cursor.position):
                return True
            grace_s = self.runtime.pipeline.coordination.worker_grace.total_seconds()
            if any(batch is not None and is_old(batch, grace_s) for batch in map(state.batches.get, waiting)):
                return True
        if self.runtime.pipeline.source.connections and self.runtime.source.watch_key != self.source_key:
            raise SourceUnavailable("another server of the source group is read from now on")
        return False

    def concerned(self, log: LogWatch, *, moved: bool, was_read: bool) -> bool:
        """Return True if what the watch saw may be for this pipeline.

        Args:
            moved: the log moved in this look.
            was_read: :meth:`read` was called just before it.
        """
        since = self.since
        if since is None or not (moved or was_read):
            return False
        if self._any:
            return log.may_concern(since, lambda table: True)
        if was_read or log.fresh is None:
            return log.may_concern(since, self.wants)
        return any(map(self.wants, log.fresh)) and log.may_concern(since, self.wants)

    def step_over(self, log: LogWatch) -> None:
        """Move the captured position to the end of the log, all of which was looked at and is not for this pipeline."""
        now, cursor = time.monotonic(), self._cursor
        if cursor is None or self._any or now - self._stepped_at < STEP_OVER_S:
            return
        end = log.end
        if end is None:
            return
        self._stepped_at = now
        if end.log_epoch != cursor.position.log_epoch or not end.follows(cursor.position):
            return
        if log.may_concern(cursor.position, self.wants):
            return
        with self.runtime.state() as state:
            owner = state.election.leader_name()
            if owner is not None and owner != self.runtime.owner:
                return
            self._cursor = state.step_over(cursor, end, owner_label()) or cursor

    @property
    def captured_batch(self) -> int:
        """The last batch that was made, as last read."""
        return self._cursor.next_batch - 1 if self._cursor else 0

    def _other_cursor(self) -> bool:
        """Return True if something other than :meth:`step_over` moved the captured position."""
        if not self._moved:
            return False
        self._moved = False
        with self.runtime.state() as state:
            state.notify_cursor(self._note_cursor)
            return state.cursor() != self._cursor

    def _note_cursor(self, *_: object) -> None:
        self._moved = True

    def _note(self, *_: object) -> None:
        self._changed = True


def oldest(waiting: Sequence[WaitingPipeline]) -> Offset | None:
    """Return the earliest position that one of them waits for; None if they are in different log files."""
    known_offsets = [pipeline.since for pipeline in waiting if pipeline.since is not None]
    files = {position.log_epoch for position in known_offsets}
    if not known_offsets or len(files) > 1:
        return None
    return min(known_offsets, key=lambda position: position.order)


__all__ = ["STEP_OVER_S", "WaitingPipeline", "oldest"]
