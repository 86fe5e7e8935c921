"""Where timelines part: a promoted standby goes on with the log of its primary up to a place, and then with its own."""

from __future__ import annotations

from psycopg import pq

from sluice.config.connections import Endpoint
from sluice.errors import SourceUnavailable
from sluice.postgresql.connection import connect
from sluice.sources.postgresql.position import lsn_number
from sluice.sources.postgresql.server.connection import SESSION


def ancestors(endpoint: Endpoint, timeline: int) -> dict[int, int]:
    """Return the timelines that a server's log went along before this one, and the LSN at which each was left.

    Raises what psycopg raises, and SourceUnavailable if the server does not have its history.
    """
    if timeline == 1:
        return {}
    connection = connect(endpoint, "sluice", settings=SESSION, replication=True)
    try:
        result = connection.pgconn.exec_(f"TIMELINE_HISTORY {timeline}".encode())
        content = result.get_value(0, 1) if result.status == pq.ExecStatus.TUPLES_OK and result.ntuples else None
        if content is None:
            raise SourceUnavailable(
                f"the server does not say how timeline {timeline} began: {connection.pgconn.get_error_message()}",
                where=endpoint.address,
            )
        return parse_history(bytes(content).decode("utf-8", "replace"))
    finally:
        connection.close()


def parse_history(text: str) -> dict[int, int]:
    """Read a history file: a timeline, the LSN at which it was left, and why, a line each."""
    found = {}
    for line in text.splitlines():
        parts = line.split(maxsplit=2)
        if len(parts) >= 2 and parts[0].isdigit() and "/" in parts[1]:
            found[int(parts[0])] = lsn_number(parts[1])
    return found
