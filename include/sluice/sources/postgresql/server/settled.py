"""The part of the write-ahead log that is settled: nothing with an earlier commit time comes after it.

A backend takes the commit time first and inserts the commit record then, so that commit times do not rise along the
log. But it does both inside one statement. So the settled time is the start of the oldest statement that may be
committing: one that runs, in a transaction that wrote (or a COMMIT PREPARED, whose own backend has none). A statement
that began before that time has ended, and its record is in front of an end of the log that was asked for afterwards.
A transaction that waits between two statements is not committing and holds nothing up, however old it is, and neither
does a prepared one: it counts by the time of COMMIT PREPARED.

That takes the role pg_read_all_stats. A standby is refused (its primary is asked, if the pipeline names it), and so is
a database with subscriptions, whose transactions have the commit times of another server.
"""

from __future__ import annotations

from sluice.errors import PreflightError
from sluice.postgresql.connection import Connection
from sluice.sources.postgresql.server.connection import rows_of
from sluice.sources.postgresql.server.info import written_end

_MAY_ASK = """
SELECT pg_has_role(current_user, 'pg_read_all_stats', 'USAGE'), pg_is_in_recovery(),
  EXISTS (SELECT FROM pg_stat_subscription WHERE pid IS NOT NULL)"""
_CLOCK = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
_COMMITTING = r"""
SELECT (extract(epoch FROM min(CASE WHEN state IN ('active', 'fastpath function call') THEN query_start
                                    ELSE backend_start END)) * 1000000)::bigint
FROM pg_stat_activity
WHERE pid <> pg_backend_pid() AND (backend_xid IS NOT NULL OR query ~* 'commit\s+prepared')
  AND (state IS NULL OR state IN ('active', 'fastpath function call', 'disabled'))"""
"""The start of the oldest statement that may be committing; a backend that does not say what it does counts by its own
start.
"""


def settled_end(connection: Connection, *, where: str) -> tuple[int, int]:
    """Return the time in microseconds, and the LSN. Raises PreflightError."""
    [(may_ask, recovering, subscribes)] = rows_of(connection, _MAY_ASK)
    if recovering or subscribes:
        what = "is a standby" if recovering else "has subscriptions"
        raise PreflightError(
            f"this server {what}: what was committed at another server before a time may come here at any time",
            where=where,
            hint="name that server as the source of the pipeline (of a standby: as source.primary), or remove "
            "`complete` from its file",
        )
    if not may_ask:
        [(user,)] = rows_of(connection, "SELECT quote_ident(current_user)")
        raise PreflightError(
            "the login does not see which statements run, so it cannot tell what is still being committed",
            where=where,
            hint=f"GRANT pg_read_all_stats TO {user}",
        )
    [(now,)] = rows_of(connection, _CLOCK)
    [(oldest,)] = rows_of(connection, _COMMITTING)
    return min(int(now), int(oldest) if oldest is not None else int(now)), written_end(connection)
