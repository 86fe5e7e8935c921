"""The scan kernel: from the messages of pgoutput in an arena to a record per row change.

The arena holds the server's messages one after another, each behind its length (four bytes, little-endian), as the
connection received them. One call works through as many as it can without Python: it follows transactions, recognises
relations it has seen, and notes where each wanted row change stands. It returns when it needs Python, and says why
(``CODE_*``). Values are not looked at here: :mod:`sluice.sources.postgresql.decoder.rows` walks them, and checks
their bounds.

All state lives in one int64 array (``S_*`` are its indexes), so that a call allocates nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sluice.kernels import kernel
from sluice.model.row_ops import OP_DELETE, OP_INSERT, OP_UPDATE
from sluice.sources.machine import load_u32

# -- why the kernel returned -------------------------------------------------------------------------------------------
CODE_MORE = 0
"""All messages are done; more are needed."""
CODE_MESSAGE = 1
"""Python has to look at the message ``[S_MESSAGE, S_MESSAGE_END)``; the kernel has moved after it."""
CODE_END = 2
"""A transaction ended and a limit is reached."""
CODE_STOP = 3
"""The next transaction stands after the place to stop at."""
CODE_GROW_ROWS = 4
CODE_GROW_TXNS = 5
CODE_BAD = 6
CODE_NO_RELATION = 7
"""A row change names a relation that no message described (its OID is in ``S_OID``)."""

# -- state -------------------------------------------------------------------------------------------------------------
(
    S_POS, S_USED, S_IN_TXN, S_ROWS, S_TXNS, S_DONE_TXNS, S_CHANGES, S_BYTES, S_BYTES_BEFORE, S_NUMBER, S_LAST_END,
    S_LAST_TS, S_FIRST_TS, S_WAL_END, S_REPLY, S_STOP, S_STOP_AT_END, S_MAX_CHANGES, S_MAX_BYTES, S_MESSAGE,
    S_MESSAGE_END, S_OID, S_EVENTS, S_SKIPPED_TABLE, S_SKIPPED_KIND, S_TXN_POS, S_TXN_ROWS, S_TXN_CHANGES, S_DROPS,
    S_ORIGIN, S_DROPPED, S_CAPTURED_TXNS, S_LAST_CAPTURED_TS, S_TXN_BYTES, S_TXN_TRUNCATES,
) = range(35)  # fmt: skip
STATE_SIZE = 40
"""S_BYTES: read since the batch began; S_BYTES_BEFORE: of them before the first change. S_NUMBER: the next row's number
in its transaction. S_LAST_END: where the next transaction may begin. S_WAL_END: up to where the server has no more.
S_TXN_POS, S_TXN_ROWS, S_TXN_CHANGES, S_TXN_BYTES: as they were at the begin of the transaction; S_TXN_POS is -1 if that
is in the arena no longer.
"""

# -- a row change's record: one column of the int64 array ``rows`` -----------------------------------------------------
R_SLOT, R_OP, R_AT, R_END, R_SEQ, R_TXN, R_NUMBER, R_ORIGIN = range(8)
ROW_FIELDS = 8
"""R_AT, R_END: the bytes of the message after the relation's OID."""

# -- a transaction's record: one column of the int64 array ``txns`` ----------------------------------------------------
T_LSN, T_TIME, T_XID = range(3)
TXN_FIELDS = 3

NOT_WANTED = -1
"""The slot of a relation that is not captured."""
NOTED_DDL = -3
"""The slot of the table in which statements are noted: Python reads its inserts."""
AT_FIRST_ROW = -4
"""The slot of a relation that Python looks at when a row of it comes."""

_EPOCH_US = 946_684_800_000_000
"""2000-01-01 in microseconds since 1970."""
_DATA_HEADER = 25
_ROW_HEADER = 5


@kernel
def be16(buf: Any, at: Any) -> Any:
    """Load two bytes, most significant first."""
    return (np.int64(buf[at]) << 8) | np.int64(buf[at + 1])


@kernel
def be32(buf: Any, at: Any) -> Any:
    """Load four bytes, most significant first, as a number that is not negative."""
    return (
        (np.int64(buf[at]) << 24) | (np.int64(buf[at + 1]) << 16) | (np.int64(buf[at + 2]) << 8) | np.int64(buf[at + 3])
    )


@kernel
def be64(buf: Any, at: Any) -> Any:
    """Load eight bytes, most significant first."""
    return (be32(buf, at) << 32) | be32(buf, at + 4)


@kernel
def find_slot(oids: Any, slots: Any, oid: Any) -> Any:
    """Return the slot of a relation, -2 if it has none. ``oids``: open addressing, a power of two long, 0: free."""
    mask = len(oids) - 1
    at = (oid * 0x9E3779B1) & mask
    while oids[at] != 0:
        if oids[at] == oid:
            return slots[at]
        at = (at + 1) & mask
    return np.int64(-2)


@kernel
def scan(arena: Any, s: Any, rows: Any, txns: Any, oids: Any, slots: Any) -> Any:
    """Work through the messages from ``S_POS`` to ``S_USED``; return a ``CODE_*``."""
    used = s[S_USED]
    while True:
        pos = s[S_POS]
        if pos + 4 > used:
            return CODE_MORE
        size = np.int64(load_u32(arena, pos))
        at = pos + 4
        end = at + size
        if end > used or size < 1:
            return CODE_BAD
        kind = arena[at]
        if kind == 107:  # k: keepalive
            if size < 18:
                return CODE_BAD
            if s[S_IN_TXN] == 0:
                s[S_WAL_END] = max(s[S_WAL_END], be64(arena, at + 1))
            if arena[at + 17] != 0:
                s[S_REPLY] = 1
            s[S_POS] = end
            continue
        if kind != 119 or size <= _DATA_HEADER:  # w: data
            return CODE_BAD
        m = at + _DATA_HEADER
        what = arena[m]
        if what == 73 or what == 85 or what == 68:  # I, U, D
            if size < _DATA_HEADER + _ROW_HEADER + 1 or s[S_IN_TXN] == 0:
                return CODE_BAD
            oid = be32(arena, m + 1)
            slot = find_slot(oids, slots, oid)
            if slot == -2:
                s[S_OID] = oid
                return CODE_NO_RELATION
            if slot == NOTED_DDL:
                s[S_NUMBER] += 1
                s[S_BYTES] += size
                s[S_POS] = end
                if what != 73:
                    continue
                s[S_MESSAGE] = m
                s[S_MESSAGE_END] = end
                return CODE_MESSAGE
            if slot == AT_FIRST_ROW:
                s[S_OID] = oid
                return CODE_NO_RELATION
            op = OP_INSERT if what == 73 else (OP_UPDATE if what == 85 else OP_DELETE)
            if slot < 0:
                s[S_SKIPPED_TABLE] += 1
            elif (s[S_EVENTS] >> op) & 1 == 0:
                s[S_SKIPPED_KIND] += 1
            elif s[S_DROPS] != 0:
                s[S_DROPPED] += 1
            else:
                n = s[S_ROWS]
                if n >= rows.shape[1]:
                    return CODE_GROW_ROWS
                if s[S_CHANGES] == 0:
                    s[S_BYTES_BEFORE] = s[S_BYTES]
                    s[S_FIRST_TS] = txns[T_TIME, s[S_TXNS] - 1]
                rows[R_SLOT, n] = slot
                rows[R_OP, n] = op
                rows[R_AT, n] = m + _ROW_HEADER
                rows[R_END, n] = end
                rows[R_SEQ, n] = s[S_CHANGES]
                rows[R_TXN, n] = s[S_TXNS] - 1
                rows[R_NUMBER, n] = s[S_NUMBER]
                rows[R_ORIGIN, n] = s[S_ORIGIN]
                s[S_ROWS] = n + 1
                s[S_CHANGES] += 1
            s[S_NUMBER] += 1
        elif what == 66:  # B: begin
            if size < _DATA_HEADER + 21 or s[S_IN_TXN] != 0:
                return CODE_BAD
            lsn = be64(arena, m + 1)
            if s[S_STOP] > 0 and lsn >= s[S_STOP]:
                return CODE_STOP
            t = s[S_TXNS]
            if t >= txns.shape[1]:
                return CODE_GROW_TXNS
            txns[T_LSN, t] = lsn
            txns[T_TIME, t] = be64(arena, m + 9) + _EPOCH_US
            txns[T_XID, t] = be32(arena, m + 17)
            s[S_TXNS] = t + 1
            s[S_IN_TXN] = 1
            s[S_NUMBER] = 0
            s[S_DROPS] = 0
            s[S_ORIGIN] = 0
            s[S_TXN_POS] = pos
            s[S_TXN_ROWS] = s[S_ROWS]
            s[S_TXN_CHANGES] = s[S_CHANGES]
            s[S_TXN_BYTES] = s[S_BYTES]
            s[S_TXN_TRUNCATES] = 0
        elif what == 67:  # C: commit
            if size < _DATA_HEADER + 26 or s[S_IN_TXN] == 0:
                return CODE_BAD
            t = s[S_TXNS] - 1
            s[S_IN_TXN] = 0
            s[S_DONE_TXNS] = s[S_TXNS]
            s[S_LAST_END] = be64(arena, m + 10)
            s[S_WAL_END] = max(s[S_WAL_END], s[S_LAST_END])
            s[S_LAST_TS] = txns[T_TIME, t]
            s[S_BYTES] += size
            s[S_POS] = end
            if s[S_CHANGES] > s[S_TXN_CHANGES]:
                s[S_CAPTURED_TXNS] += 1
                s[S_LAST_CAPTURED_TS] = txns[T_TIME, t]
            if s[S_STOP_AT_END] != 0 or s[S_CHANGES] >= s[S_MAX_CHANGES]:
                return CODE_END
            if s[S_CHANGES] > 0 and s[S_BYTES] - s[S_BYTES_BEFORE] >= s[S_MAX_BYTES]:
                return CODE_END
            continue
        elif what == 89:  # Y: the name of a type
            pass
        else:
            s[S_MESSAGE] = m
            s[S_MESSAGE_END] = end
            s[S_BYTES] += size
            s[S_POS] = end
            return CODE_MESSAGE
        s[S_BYTES] += size
        s[S_POS] = end
