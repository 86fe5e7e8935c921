"""The position on the server that a user's start means."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pymysql

from sluice.config.connections import Endpoint
from sluice.config.pipeline import StartPosition
from sluice.errors import ConfigError, LostPosition
from sluice.mysql.client import undecoded
from sluice.sources.mysql.events import control as ev
from sluice.sources.mysql.events.gtids import GtidSet, MariaDbGtidState
from sluice.sources.mysql.position import Position
from sluice.sources.mysql.protocol.binlog_dump import BinlogDump
from sluice.sources.mysql.server.connection import ServerInfo, rows_of

_FIRST_OFFSET = 4
_GTID_EVENTS = {33, 34, 42, 162}  # GTID, anonymous GTID, tagged GTID, MariaDB's GTID
_GTID_KINDS = {"gtid", "gtid_tagged_log_event"}  # as SHOW BINLOG EVENTS calls them, without the anonymous one
_EVENTS_A_QUERY = 20_000
_LAST_ADDRESSABLE = 2**32 - 1
_ROTATION_BYTES = 300


def resolve_start(
    endpoint: Endpoint, connection: Any, info: ServerInfo, start: str | StartPosition, server_id: int
) -> Position:
    """Return a position of ``info`` for ``latest``, ``earliest``, ``dump``, ``snapshot``, or a StartPosition.

    ``dump`` and ``snapshot`` begin at the head.

    Raises:
        LostPosition: the server does not have it. ConfigError: an invalid timestamp, or a GTID set with holes.
    """
    if not info.head.file:
        raise LostPosition(
            "the server keeps no binary log", where=endpoint.address, hint="start it with log_bin=binlog"
        )
    if isinstance(start, str):
        return _at(info, info.binary_logs[0][0], _FIRST_OFFSET) if start == "earliest" else info.head
    if start.file is not None:
        return _explicit(connection, info, start.file, start.offset)
    if start.gtid is not None:
        return after_gtids(connection, info, start.gtid)
    assert start.timestamp is not None
    return _at_moment(endpoint, info, start.timestamp, server_id)


def dump_start(info: ServerInfo, position: Position) -> Position:
    """Return where to ask for the log: ``position``, or the start of the next file if the protocol cannot address it.

    A dump names its start in 32 bits. A file grows beyond 4 GiB only by one huge transaction, after which the server
    rotates; so after such an offset there is nothing but the rotation.

    Raises:
        LostPosition: there is more in that file.
    """
    if position.offset <= _LAST_ADDRESSABLE:
        return position
    names = [name for name, _ in info.binary_logs]
    remaining_offset = dict(info.binary_logs).get(position.file, 0) - position.offset
    following = names.index(position.file) + 1 if position.file in names else len(names)
    if 0 <= remaining_offset <= _ROTATION_BYTES and following < len(names):
        return replace(position, file=names[following], offset=_FIRST_OFFSET)
    raise LostPosition(
        f"{position} lies beyond 4 GiB in its file, which the replication protocol cannot address",
        hint="`sluice seek PIPELINE` to the start of the next file once the log up to there is delivered, then "
        "`sluice verify PIPELINE --repair`",
    )


def _at(info: ServerInfo, file: str, offset: int) -> Position:
    return Position(info.server_uuid, file, offset)


_INSIDE = re.compile(r"(?i)table_map|.*_rows.*|rows_query|xid$|annotate_rows|user_var|intvar|rand$")
"""Events that stand inside a transaction, as SHOW BINLOG EVENTS calls them."""


def _explicit(connection: Any, info: ServerInfo, file: str, offset: int) -> Position:
    """Return a position that a person names, after walking the log up to it: it could be any number."""
    sizes = dict(info.binary_logs)
    if file not in sizes or offset > sizes[file]:
        have = ", ".join(f"{name} ({size} bytes)" for name, size in info.binary_logs[-5:])
        raise LostPosition(f"{file}:{offset} is not in the server's log", hint=f"the newest files are: {have}")
    if offset not in {_FIRST_OFFSET, sizes[file]}:
        before = _FIRST_OFFSET
        at, kind = sizes[file], ""
        for place, name, _ in events_of(connection, file):
            if place >= offset:
                at, kind = place, name
                break
            before = place
        if at != offset or _INSIDE.match(kind):
            where = "is in the middle of an event" if at != offset else f"is inside of a transaction (its {kind} event)"
            raise ConfigError(
                f"{file}:{offset} {where}",
                where=f"{file}, between {before} and {at}",
                hint=f"SHOW BINLOG EVENTS IN '{file}' FROM {before} LIMIT 20 lists the places there; take the one of "
                "a Gtid or Anonymous_Gtid event",
            )
    return _at(info, file, offset)


def after_gtids(connection: Any, info: ServerInfo, executed: str) -> Position:
    """Return the first transaction that is not in ``executed``. Raises ConfigError if that is no GTID set."""
    if info.is_mariadb:
        try:
            rows = rows_of(
                connection, "SELECT 1 WHERE %s REGEXP '^[0-9]+-[0-9]+-[0-9]+(,[0-9]+-[0-9]+-[0-9]+)*$'", (executed,)
            )
        except pymysql.err.Error:
            rows = []
        if not rows:
            raise ConfigError(
                f"{executed!r} is not a MariaDB GTID position", hint="write domain-server-sequence, e.g. 0-1-100"
            )
        return _scan_mariadb(connection, info, executed)
    try:
        rows_of(connection, "SELECT GTID_SUBSET('', %s)", (executed,))
    except pymysql.err.Error as error:
        raise ConfigError(
            f"{executed!r} is not a GTID set", hint="write uuid:1-100, as SHOW BINARY LOG STATUS prints it"
        ) from error
    return place_after(connection, info, executed)[0]


def place_after(connection: Any, info: ServerInfo, executed: str) -> tuple[Position, GtidSet]:
    """Return the first transaction of a MySQL that is not in ``executed``, and the transactions logged before it.

    Raises LostPosition if such transactions were purged.
    """
    names = [name for name, _ in info.binary_logs]
    for first in reversed(range(len(names))):
        previous = _previous_gtids(connection, names[first])
        if rows_of(connection, "SELECT GTID_SUBSET(%s, %s)", (previous, executed))[0][0]:
            break
    else:
        purged = info.variables.get("gtid_purged", "").replace("\n", "")
        raise LostPosition(
            "the server has purged transactions that are not in the given GTID set", hint=f"gtid_purged is {purged}"
        )
    executed_set, before = GtidSet(executed), GtidSet(previous)
    for name in names[first:]:
        for offset, kind, text in events_of(connection, name):
            if kind.lower() in _GTID_KINDS:
                transaction = GtidSet(text.split("'")[1])
                if not executed_set.contains(transaction):
                    return _at(info, name, offset), before
                before.update(transaction)
    return info.head, before


def _scan_mariadb(connection: Any, info: ServerInfo, executed: str) -> Position:
    """Return the first transaction behind a GTID position. Raises LostPosition if such transactions were purged."""
    reached, oldest = MariaDbGtidState(executed), info.binary_logs[0][0]
    listed = next((text for _, kind, text in events_of(connection, oldest, limit=3) if kind == "Gtid_list"), "")
    if not reached.reaches(purged := MariaDbGtidState(listed.strip("[]"))):
        raise LostPosition(
            "the server has purged transactions that are not in the given GTID position",
            hint=f"{oldest}, its oldest log file, begins after {purged}",
        )
    for name, _ in info.binary_logs:
        for offset, gtid in mariadb_gtids(connection, name):
            if not reached.reaches(MariaDbGtidState(gtid)):
                return _at(info, name, offset)
    return info.head


def mariadb_gtids(connection: Any, file: str) -> Iterator[tuple[int, str]]:
    """Yield (offset, GTID) of the transactions of a file of a MariaDB."""
    for offset, kind, text in events_of(connection, file):
        gtid = next((word for word in text.replace(",", " ").split() if word.count("-") == 2), "")
        if kind == "Gtid" and gtid:
            yield offset, gtid


def _previous_gtids(connection: Any, file: str) -> str:
    for _, kind, text in events_of(connection, file, limit=3):
        if kind == "Previous_gtids":
            return str(text.replace("\n", ""))
    return ""


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def events_of(connection: Any, file: str, limit: int | None = None) -> Any:
    """Yield (offset, kind, text) of the events of a file, in pieces.

    The server prints a statement in the bytes of its own session's charset, whatever the charset of the answer is said
    to be.
    """
    offset, last = _FIRST_OFFSET, 0
    while True:
        question = f"SHOW BINLOG EVENTS IN %s FROM {offset} LIMIT {limit or _EVENTS_A_QUERY}"
        with undecoded(connection):
            rows = rows_of(connection, question, (file,))
        for row in rows:
            if int(row[1]) > last:
                yield int(row[1]), _text(row[2]), _text(row[5])
        if limit or len(rows) < _EVENTS_A_QUERY:
            return
        offset = last = int(rows[-1][1])  # its end is not always told: see binlog_legacy_event_pos of MariaDB


def _at_moment(endpoint: Endpoint, info: ServerInfo, text: str, server_id: int) -> Position:
    """Return the first transaction that was committed at or after the timestamp."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(f"{text!r} is not a valid timestamp", hint="write 2026-01-31T12:00:00Z") from error
    wanted = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    files = [name for name, _ in info.binary_logs]
    low, high = 0, len(files) - 1
    while low < high:  # the last file that was begun before the timestamp
        middle = (low + high + 1) // 2
        if _begun(endpoint, info, files[middle], server_id) < wanted:
            low = middle
        else:
            high = middle - 1
    if low == 0 and _begun(endpoint, info, files[0], server_id) >= wanted and len(files) > 1:
        raise LostPosition(
            f"the oldest log file, {files[0]}, was begun after {text}",
            hint="`earliest` starts with the oldest that there is",
        )
    for file, offset, kind, stamp in _headers(endpoint, info, files[low], server_id):
        if kind in _GTID_EVENTS and stamp >= wanted:
            return _at(info, file, offset)
    return info.head


def _begun(endpoint: Endpoint, info: ServerInfo, file: str, server_id: int) -> float:
    for _, _, kind, stamp in _headers(endpoint, info, file, server_id):
        if kind == ev.FORMAT and stamp:
            return float(stamp)
    return 0.0


def _headers(endpoint: Endpoint, info: ServerInfo, file: str, server_id: int) -> Any:
    """Yield (file, offset, type, timestamp in seconds) of every event from the start of ``file`` to the head."""
    stream = BinlogDump(endpoint, server_id=server_id, start=_at(info, file, _FIRST_OFFSET), mariadb=info.is_mariadb)
    try:
        while True:
            payload = stream.connection._read_packet()._data
            stamp, kind, _, size, end = struct.unpack_from("<IBIII", payload, 1)
            if kind == ev.ROTATE:
                file = payload[20 + 8 : 20 + size - 19 - (4 if stream.checksum and stamp else 0)].decode(
                    "utf-8", "replace"
                )
                file = next((name for name, _ in info.binary_logs if file.startswith(name)), file)
                continue
            if kind not in ev.HEARTBEATS:
                yield file, max(end - size, _FIRST_OFFSET), kind, float(stamp)
            if file == info.head.file and end >= info.head.offset:
                return
    finally:
        stream.close()
