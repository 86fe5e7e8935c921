"""Relocation to the log of another server that replicates with the first, by GTIDs, which all of them know."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sluice.errors import ConfigError, LostPosition
from sluice.sources.mysql.events.gtids import MariaDbGtidState
from sluice.sources.mysql.events.xa import parse_prepared
from sluice.sources.mysql.position import Position, is_mariadb
from sluice.sources.mysql.reader.start_position import after_gtids, events_of, mariadb_gtids, place_after
from sluice.sources.mysql.server.connection import ServerInfo, rows_of

_STEP_S = 0.2
_AT_HEAD = (
    "`sluice seek PIPELINE latest` after the connection points here alone, then, with the pipeline running, "
    "`sluice verify PIPELINE --repair`"
)
_CHOICES = f"choose another server of the group; or, if the lost transactions can be abandoned, {_AT_HEAD}"


def relocate(
    connection: Any,
    info: ServerInfo,
    at: Position,
    *,
    look_again: Callable[[], ServerInfo],
    patience_s: float,
    where: str,
) -> Position:
    """See :meth:`sluice.sources.port.SourceSession.relocate`. ``look_again`` reads the server's description anew."""
    if not info.head.file:
        raise LostPosition("the server keeps no binary log", where=where, hint="start it with log_bin=binlog")
    if is_mariadb(at.server_uuid) != info.is_mariadb:
        raise ConfigError(f"the position {at} is of the other kind of server, and this is {info.dialect}", where=where)
    if not at.gtid_set:
        raise ConfigError(
            f"the position {at} has no GTIDs, so that no other server knows its place",
            where=where,
            hint="a source group needs gtid_mode=ON (MySQL), or MariaDB's GTIDs, before the failover",
        )
    prepared = [item.xid for item in parse_prepared(at.prepared)]
    if prepared:
        raise LostPosition(
            f"XA transactions are prepared at {at}, and their rows stand in the log of the server that was read: "
            f"{', '.join(prepared[:10])}",
            where=where,
            hint="commit them or roll them back while that server can still be read, and fail over then",
        )
    missing = _lacks(connection, info, at)
    end = time.monotonic() + patience_s
    while missing and time.monotonic() < end:
        time.sleep(_STEP_S)  # a replica that is still applying them
        missing = _lacks(connection, info, at)
    if missing:
        raise LostPosition(
            f"transactions that were read up to {at} are not on this server: {missing}",
            where=where,
            hint=_CHOICES,
        )
    info = look_again()  # its log has the transactions of ``at`` by now, and may not have had them before
    unlogged = _never_logged(connection, info, at)
    if unlogged:
        raise LostPosition(
            f"transactions after {at} are applied on this server, and its log does not have them: {unlogged}",
            where=where,
            hint="they were purged, or applied with log_replica_updates=OFF; " + _CHOICES,
        )
    position, again = _place_here(connection, info, at)
    if again:
        raise LostPosition(
            f"transactions that were read up to {at} are logged on this server after others that were not, which begin "
            f"at {position.file}:{position.offset}; they would be read again: {again}",
            where=where,
            hint=f"choose another server of the group; or begin at the end of this one's log, {_AT_HEAD}",
        )
    return replace(position, gtid_set=at.gtid_set, commit_time_us=at.commit_time_us)


def _place_here(connection: Any, info: ServerInfo, at: Position) -> tuple[Position, str]:
    """Return the first transaction that was not read, and those after it that were, "" for none.

    The log of a server has them in such an order if somebody wrote at a replica, if replicas apply in parallel without
    ``replica_preserve_commit_order``, or with several domains of MariaDB.
    """
    if not info.is_mariadb:
        position, before = place_after(connection, info, at.gtid_set)
        if position == info.head:
            return position, ""
        question = "SELECT GTID_SUBTRACT(GTID_SUBTRACT(%s, %s), @@GLOBAL.gtid_purged)"
        return position, str(rows_of(connection, question, (at.gtid_set, str(before)))[0][0] or "").replace("\n", "")
    position, read = after_gtids(connection, info, at.gtid_set), MariaDbGtidState(at.gtid_set)
    several = len(_logged_by_mariadb(connection).items()) > 1
    names = [name for name, _ in info.binary_logs] if several else [position.file]
    again = [
        gtid
        for name in names[names.index(position.file) :]
        for offset, gtid in mariadb_gtids(connection, name)
        if (name != position.file or offset > position.offset) and read.reaches(MariaDbGtidState(gtid))
    ]
    return position, ", ".join([*again[:3], *(["..."] if len(again) > 3 else [])])


def _lacks(connection: Any, info: ServerInfo, at: Position) -> str:
    """Return the transactions of ``at`` that the server has not executed, "" for none."""
    if info.is_mariadb:
        return _lacks_mariadb(connection, info, at)
    missing = rows_of(connection, "SELECT GTID_SUBTRACT(%s, @@GLOBAL.gtid_executed)", (at.gtid_set,))[0][0]
    return str(missing or "").replace("\n", "")


def _never_logged(connection: Any, info: ServerInfo, at: Position) -> str:
    """Return the transactions after ``at`` that the server executed and has in no file of its log, "" for none.

    MariaDB keeps no such list.
    """
    if info.is_mariadb:
        return ""
    purged = rows_of(connection, "SELECT GTID_SUBTRACT(@@GLOBAL.gtid_purged, %s)", (at.gtid_set,))[0][0]
    return str(purged or "").replace("\n", "")


def _logged_by_mariadb(connection: Any) -> MariaDbGtidState:
    return MariaDbGtidState(str(rows_of(connection, "SELECT @@GLOBAL.gtid_binlog_pos")[0][0]))


def _lacks_mariadb(connection: Any, info: ServerInfo, at: Position) -> str:
    """Return the transactions of ``at`` that MariaDB has not executed, "" for none.

    A domain's last GTID stands for all before it; so exactly that one has to be in the log, of the same server.
    """
    here = _logged_by_mariadb(connection)
    wanted_state = MariaDbGtidState(at.gtid_set)
    behind = [
        f"{gtid} (it is at {here.of(domain) or 'none'})"
        for domain, gtid in wanted_state.items()
        if not here.reaches(MariaDbGtidState(gtid))
    ]
    if behind:
        return ", ".join(f"those up to {gtid}" for gtid in behind)
    unseen = {gtid for domain, gtid in wanted_state.items() if here.of(domain) != gtid}
    for name, _ in reversed(info.binary_logs):
        if not unseen:
            break
        for _, kind, text in events_of(connection, name):
            words = set(text.replace(",", " ").replace("[", " ").replace("]", " ").split())
            if kind.lower() in {"gtid", "gtid_list"}:
                unseen -= words
    return ", ".join(
        f"{gtid} (another transaction has its number, or the log up to it was purged)" for gtid in sorted(unseen)
    )
