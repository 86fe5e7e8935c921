"""Status variables of a query event: what it says of the session that ran its statement.

Source: ``Query_event`` in MySQL's libs/mysql/binlog/event/statement_events.h; MariaDB's own codes begin at 128.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from sluice.model.schema_changes import StatementSession
from sluice.sources.mysql.events.control import Query

_FIXED = {
    0: 4, 1: 8, 3: 4, 4: 6, 7: 2, 8: 2, 9: 8, 10: 4, 13: 3, 16: 1, 17: 8, 18: 2, 19: 1, 20: 1, 128: 3, 129: 8,
}  # fmt: skip
_TEXTS = {5, 6}
_MAX_NAMES = 254
_COLLATIONS = 131
_ALTER_PHASE, _START, _COMMIT, _ROLLBACK = 130, 2, 4, 8
"""MariaDB's flags of a GTID (``Gtid_log_event::FL_START_ALTER_E1`` and its brothers), which the statement repeats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStatus:
    """Numbers as the log has them; None: not said. Collations are ids."""

    sql_mode: int = 0
    flags: int = 0
    client_collation: int | None = None
    server_collation: int | None = None
    timestamps_explicit: bool | None = None
    utf8mb4_collation: int | None = None
    connection_collation: int | None = None
    time_zone: str | None = None
    microseconds: int = 0
    """Microseconds of the statement's begin, if it used them."""
    lc_time_names: int | None = None
    auto_increment: tuple[int, int] = (1, 1)
    alter_pending: bool = False
    """The statement only began, or was rolled back (MariaDB's ``binlog_alter_two_phase``): the tables are as before."""
    default_collations: tuple[tuple[int, int], ...] = ()
    """MariaDB 11 (``character_set_collations``): (a collation of a charset, the collation that the charset had by
    default).
    """


EXPLICIT_TIMESTAMPS = 1 << 24
"""MariaDB 10.10 and later say in ``flags`` whether explicit_defaults_for_timestamp was on."""


def parse_status(data: bytes) -> SessionStatus:
    """Parse the status variables of a query event. What follows an unknown code is left unread: it cannot be framed."""
    variables: dict[int, bytes] = {}
    at = 0
    while at < len(data):
        code = data[at]
        at += 1
        if code in _FIXED:
            size = _FIXED[code]
        elif code in _TEXTS and at < len(data):
            size = 1 + data[at]
        elif code == 2 and at < len(data):
            size = 2 + data[at]
        elif code == 11 and at < len(data):
            user = 1 + data[at]
            size = user + 1 + (data[at + user] if at + user < len(data) else 0)
        elif code == _COLLATIONS and at < len(data):
            size = 1 + 4 * data[at]
        elif code == _ALTER_PHASE and at < len(data):
            size = 10 if data[at] & (_COMMIT | _ROLLBACK) else 2
        elif code == 12 and at < len(data):
            size = _names(data, at)
        else:
            break
        variables[code] = data[at : at + size]
        at += size
    charsets = struct.unpack("<HHH", variables[4]) if len(variables.get(4, b"")) == 6 else None
    return SessionStatus(
        sql_mode=int.from_bytes(variables.get(1, b""), "little"),
        flags=int.from_bytes(variables.get(0, b""), "little"),
        client_collation=charsets[0] if charsets else None,
        server_collation=charsets[2] if charsets else None,
        timestamps_explicit=bool(variables[16][0]) if variables.get(16) else None,
        utf8mb4_collation=int.from_bytes(variables[18], "little") if variables.get(18) else None,
        connection_collation=charsets[1] if charsets else None,
        time_zone=variables[5][1:].decode("utf-8", "replace") if variables.get(5) else None,
        microseconds=int.from_bytes(variables.get(13, b"") or variables.get(128, b""), "little"),
        lc_time_names=int.from_bytes(variables[7], "little") if variables.get(7) else None,
        auto_increment=struct.unpack("<HH", variables[3]) if len(variables.get(3, b"")) == 4 else (1, 1),
        alter_pending=bool(variables.get(_ALTER_PHASE, b"\0")[0] & (_START | _ROLLBACK)),
        default_collations=_pairs(variables.get(_COLLATIONS, b"")),
    )


def session_of(query: Query) -> StatementSession:
    """Return the session of a statement, to run it again."""
    status = parse_status(query.status)
    return StatementSession(
        timestamp_us=query.began_s * 1_000_000 + status.microseconds,
        time_zone=status.time_zone,
        collation=status.connection_collation,
        utf8mb4_collation=status.utf8mb4_collation,
        lc_time_names=status.lc_time_names,
        auto_increment=status.auto_increment,
        timestamps_explicit=status.timestamps_explicit,
    )


def _pairs(data: bytes) -> tuple[tuple[int, int], ...]:
    return tuple(struct.unpack_from("<HH", data, at) for at in range(1, len(data) - 3, 4))


def _names(data: bytes, at: int) -> int:
    count = data[at]
    end = at + 1
    if count != _MAX_NAMES:
        for _ in range(count):
            end = data.find(b"\0", end) + 1
            if end == 0:
                return len(data) - at
    return end - at
