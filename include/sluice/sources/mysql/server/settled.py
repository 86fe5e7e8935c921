"""The part of the binary log that is settled: nothing with an earlier commit time comes after it.

**MySQL** takes a transaction's commit time (``immediate_commit_timestamp``) while it writes the transaction's GTID
event, and holds LOCK_log meanwhile; the statement that tells the end of the log waits for that lock. So whatever took
its time before the clock was read is in front of an end that was asked for after it: times rise along the log, and
there is no gap. The rows of an XA transaction count by the time of XA COMMIT, which is written in the same way.

**MariaDB** stamps a transaction with the second in which its last statement began (COMMIT, XA COMMIT, or the statement
that commits by itself), which may be hours before it is written. So the settled time is that of the oldest statement
that runs, if that is before the clock: a statement that began earlier has ended, and is in the log. That takes the
privilege PROCESS. A long SELECT counts, too, because it may call a function that writes.

A server that replicates from another one is refused: what was committed there before a time may come at any time.
"""

from __future__ import annotations

from sluice.errors import PreflightError
from sluice.model.completeness import Settled
from sluice.mysql.client import AccessDenied, MySQLConnection
from sluice.sources.mysql.server.connection import ServerInfo, is_replica, log_end, rows_of

_NOW = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6))"
"""The server's clock when the statement began, whatever the session's time zone is."""
_LONGEST = (
    f"SELECT {_NOW}, (SELECT COALESCE(MAX(TIME_MS), 0) FROM information_schema.PROCESSLIST "  # noqa: S608 - fixed text
    "WHERE ID <> CONNECTION_ID() AND COMMAND NOT IN ('Sleep', 'Binlog Dump', 'Daemon'))"
)
_SECOND_US = 1_000_000


def settled_end(connection: MySQLConnection, info: ServerInfo, *, where: str) -> Settled:
    """Return the clock, and then the end of the log. Raises PreflightError."""
    if not info.head.file:
        raise PreflightError("the server keeps no binary log", where=where, hint="set log_bin and restart it")
    if is_replica(connection, mariadb=info.is_mariadb):
        raise PreflightError(
            "this server replicates from another one: what was committed there before a time may come here at any time",
            where=where,
            hint="name the first server as the source of the pipeline, or remove `complete` from its file",
        )
    [(now,)] = rows_of(connection, f"SELECT {_NOW}")
    time_us = min(int(now), _oldest_statement(connection, where)) if info.is_mariadb else int(now)
    file, offset = log_end(connection)
    return Settled(time_us, info.head.at(file=file, offset=offset).as_offset())


def _oldest_statement(connection: MySQLConnection, where: str) -> int:
    """Return the second before the one in which the oldest statement began that runs now."""
    try:
        rows_of(connection, "SELECT 1 FROM information_schema.INNODB_TRX LIMIT 1")
    except AccessDenied as error:
        raise PreflightError(
            "the login does not see which statements run, so it cannot tell what is still being committed",
            where=where,
            hint=error.hint,
        ) from error
    [(now, longest_ms)] = rows_of(connection, _LONGEST)
    began_us = int(now) - int(float(longest_ms) * 1000)
    return (began_us // _SECOND_US - 1) * _SECOND_US
