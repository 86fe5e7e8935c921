"""Is a stored position still good at the server that answers?"""

from __future__ import annotations

import time
from typing import Any

from sluice.errors import LogPurged, LostPosition, WrongServer
from sluice.model.findings import Finding
from sluice.model.log_files import split_file
from sluice.sources.mysql.events.gtids import GtidSet, MariaDbGtidState
from sluice.sources.mysql.events.xa import parse_prepared
from sluice.sources.mysql.position import Position
from sluice.sources.mysql.server.connection import ServerInfo, rows_of

_THEN_REPAIR = "then, with the pipeline running, `sluice verify PIPELINE --repair`"
_CHOICES = (
    f"choose: restore the file on the server; `sluice seek PIPELINE earliest`, {_THEN_REPAIR}; "
    "or a new copy of the tables: `sluice recover PIPELINE` plans it"
)
_SETTLE_S = 15.0
"""Seconds that a server may take to count a transaction as executed which its log shows.

What is concluded after them, no retry mends.
"""


def position_findings(connection: Any, info: ServerInfo, cursor: Position) -> list[Finding]:
    """Return why the log cannot be read on from ``cursor`` at this server, if so; and what will be missing soon."""
    if not info.head.file:
        return []
    if cursor.server_uuid != info.server_uuid:
        return [
            Finding(
                "error",
                "server",
                info.server_uuid,
                f"another server answers: the position {cursor} belongs to {cursor.server_uuid}",
                "point the connection at the right server; if this one replicates with it, `sluice recover PIPELINE` "
                "goes on at the same place of its log; else `sluice seek PIPELINE` to a position of this one, "
                f"{_THEN_REPAIR}",
                WrongServer,
            )
        ]
    base, number = split_file(cursor.file)
    head_base, head_number = split_file(info.head.file)
    if base != head_base:
        return [
            Finding(
                "error",
                "log_bin_basename",
                head_base,
                f"the position is in files called {base}",
                f"`sluice seek PIPELINE` to a position that exists, {_THEN_REPAIR}",
                WrongServer,
            )
        ]
    sizes = {split_file(name)[1]: (name, size) for name, size in info.binary_logs}
    if number not in sizes:
        names = [name for name, _ in info.binary_logs]
        have = f"the server has {names[0]} to {names[-1]}" if names else "the server has none"
        if number > head_number:
            kind: type[LostPosition] = LostPosition
            why = f"{have}: its numbering was reset (RESET BINARY LOGS), or it is a copy from an older backup"
        else:
            why = f"it was purged before it was captured{_age(cursor)}; {have}"
            if info.not_archived:
                why += f", and source.archive lacks {info.not_archived}"
            kind = LogPurged
        return [
            Finding(
                "error",
                "position",
                str(cursor),
                why,
                _CHOICES,
                kind,
            )
        ]
    name, size = sizes[number]
    if cursor.offset > size and name not in dict(info.binary_logs[: info.archived]):
        return [
            Finding(
                "error",
                "position",
                str(cursor),
                f"{name} has only {size} bytes: the server lost the end of its log, or it is another server",
                f"`sluice seek PIPELINE latest`, {_THEN_REPAIR}",
                LostPosition,
            )
        ]
    return _executed(connection, info, cursor) or _prepared(info, cursor)


def _age(cursor: Position) -> str:
    """Return how long ago the position's last transaction was."""
    if not cursor.commit_time_us:
        return ""
    seconds = max(time.time() - cursor.commit_time_us / 1_000_000, 0)
    ago = f"{seconds / 86_400:.1f} days" if seconds > 172_800 else f"{seconds / 3600:.1f} hours"
    return f" (its last transaction was {ago} ago)"


def _executed(connection: Any, info: ServerInfo, cursor: Position) -> list[Finding]:
    """Check that what was captured is part of what the server executed. A restored or new server lacks some of it."""
    if not cursor.gtid_set:
        return []
    have = info.head.gtid_set
    end = time.monotonic() + _SETTLE_S
    while not _contains(info.is_mariadb, have, cursor.gtid_set):
        if time.monotonic() > end:
            return [
                Finding(
                    "error",
                    "GTIDs",
                    have or "none",
                    f"transactions that were captured from this server are unknown to it{_age(cursor)}: its log was "
                    "reset, or it was restored from a backup, or another server took its place; captured were "
                    f"{cursor.gtid_set}",
                    f"`sluice seek PIPELINE` to a position of this server, {_THEN_REPAIR}",
                    WrongServer,
                )
            ]
        time.sleep(0.2)  # the log shows a transaction shortly before the server counts it as executed
        name = "gtid_binlog_pos" if info.is_mariadb else "gtid_executed"
        have = str(rows_of(connection, f"SELECT @@GLOBAL.{name}")[0][0]).replace("\n", "")
    return []


def _contains(mariadb: bool, have: str, gtids: str) -> bool:
    if mariadb:
        return MariaDbGtidState(have).reaches(MariaDbGtidState(gtids))
    return GtidSet(have).contains(GtidSet(gtids))


def _prepared(info: ServerInfo, cursor: Position) -> list[Finding]:
    """Check that the log still has the rows of prepared XA transactions, which are read when they commit."""
    names = [name for name, _ in info.binary_logs]
    for item in parse_prepared(cursor.prepared):
        purged = item.file not in names
        if purged or (item.file == names[0] and len(names) > 1):
            return [
                Finding(
                    "warning",
                    "prepared XA transaction",
                    item.xid,
                    f"its rows stand in {item.file}, "
                    + ("which is gone" if purged else "the oldest file left: once it is purged they are lost"),
                    "commit it or roll it back (XA RECOVER lists it)",
                )
            ]
    return []
