"""Other sessions of the server: who holds the lock that a session waited for, and the end of older loaders."""

from __future__ import annotations

from contextlib import suppress

import psycopg

from sluice.targets.postgresql.session import Session

_OLDEST = """SELECT pid, COALESCE(usename::text, '?'), COALESCE(application_name, ''), COALESCE(state, 'at work'), left(COALESCE(query, ''), 120),
  COALESCE(extract(epoch FROM now() - xact_start), 0)::int FROM pg_stat_activity
WHERE xact_start IS NOT NULL AND pid <> pg_backend_pid() AND datname = current_database() ORDER BY xact_start LIMIT 1"""  # noqa: E501
_OLDER = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE application_name = left(%s, 63) AND usename = current_user AND datname = current_database() AND xact_start < now() - make_interval(secs => %s)
  AND pid <> pg_backend_pid()"""  # noqa: E501


def blocker(session: Session | None) -> str:
    """Return who probably holds the lock that the session waited for, as the end of a sentence; "" if none is visible.

    Never raises.
    """
    row = None
    if session is not None:
        with suppress(psycopg.Error):
            row = session.cursor.execute(_OLDEST).fetchone()
    if row is None:
        return ""
    pid, user, application, state, query, seconds = row
    who = f"{user}, {application}" if application else user
    return (
        f"; the oldest open transaction is that of connection {pid} ({who}), {state}, {seconds} s, last statement "
        f"{query!r} (SELECT pg_terminate_backend({pid}) ends it)"
    )


def end_older(session: Session, application: str) -> int:
    """End open transactions of other sessions with this application name.

    The server does not time out a loader that stands still inside a COPY.
    """
    with suppress(psycopg.Error):
        return len(session.cursor.execute(_OLDER, (application, session.lock_wait_s)).fetchall())
    return 0
