"""What a server says of itself, and how far its log is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sluice.postgresql.connection import Connection
from sluice.sources.postgresql.position import Position, lsn_number, server_of
from sluice.sources.postgresql.server.connection import rows_of

OLDEST = 140_000
"""The first version whose pgoutput sends logical messages."""

_PAGE, _PAGE_HEADS = 8_192, frozenset({24, 40})
"""Bytes of a page of the log, and of the header of one."""
_HEAD = "(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END)::text"
_IDENTITY = f"""
SELECT s.system_identifier::text, pg_is_in_recovery(),
  {_HEAD},
  CASE WHEN pg_is_in_recovery() THEN (SELECT timeline_id FROM pg_control_checkpoint())
       ELSE ('x' || substr(pg_walfile_name(pg_current_wal_flush_lsn()), 1, 8))::bit(32)::int END,
  current_setting('server_version_num')::int, current_setting('server_version'),
  current_database()::text, current_user::text, r.rolsuper, r.rolreplication
FROM pg_control_system() s, pg_roles r WHERE r.rolname = current_user"""  # noqa: S608 - fixed expressions
_SETTINGS = "SELECT name, setting FROM pg_settings WHERE name = ANY(%s)"
_NAMES = [
    "wal_level", "max_replication_slots", "max_wal_senders", "max_slot_wal_keep_size", "wal_sender_timeout",
    "idle_replication_slot_timeout", "wal_segment_size", "server_encoding", "hot_standby_feedback", "primary_slot_name",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """A server as of the question.

    Attributes:
        system_identifier: of the cluster, which its standbys have, too.
        timeline: the present one; of a standby that of its last restart point, see
            :func:`~sluice.sources.postgresql.server.standby.timeline_now`.
        head: the LSN up to which the log is durable (of a standby: is replayed).
        version_number: as ``server_version_num``; version: for people.
        user: the login, and whether it is a superuser or may replicate. settings: of the log, by name.
    """

    system_identifier: str
    in_recovery: bool
    head: int
    timeline: int
    version_number: int
    version: str
    database: str
    user: str
    superuser: bool
    replicates: bool
    settings: Mapping[str, str]

    @property
    def server(self) -> str:
        """The id of the server in positions."""
        return server_of(self.system_identifier, self.timeline)

    @property
    def position(self) -> Position:
        """The end of the log."""
        return Position(self.server, self.timeline, self.head)


def server_info(connection: Connection) -> ServerInfo:
    """Ask a server."""
    [(identifier, recovering, head, timeline, number, version, database, user, superuser, replicates)] = rows_of(
        connection, _IDENTITY
    )
    settings = {str(name): str(value) for name, value in rows_of(connection, _SETTINGS, (_NAMES,))}
    return ServerInfo(
        identifier,
        recovering,
        lsn_number(head or "0/0"),
        int(timeline),
        number,
        version,
        database,
        user,
        superuser,
        replicates or superuser,
        settings,
    )


def log_end(connection: Connection) -> int:
    """Return the LSN up to which the log is durable now (of a standby: is replayed)."""
    [(head,)] = rows_of(connection, f"SELECT {_HEAD}")
    return lsn_number(head or "0/0")


def written_end(connection: Connection) -> int:
    """Return the LSN after the last record of a primary, whether it is durable or not."""
    [(end,)] = rows_of(connection, "SELECT pg_current_wal_insert_lsn()::text")
    return without_head(lsn_number(end))


def without_head(lsn: int) -> int:
    """Return the end of a page for a place behind the head of the next one, where nothing was written yet."""
    within = lsn % _PAGE
    return lsn - within if within in _PAGE_HEADS else lsn
