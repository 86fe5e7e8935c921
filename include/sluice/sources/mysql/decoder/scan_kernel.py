"""The scan kernel: from the bytes of the connection to row images in an arena.

One call works through as many events as it can without Python: it frames packets, verifies checksums, follows
transactions, recognises table maps it has seen, walks every wanted row image once (so that rows are counted, and bounds
are checked, before anything else relies on them) and copies wanted row events into the arena. It returns when it needs
Python, and says why (``CODE_*``).

All state lives in one int64 array (``S_*`` are its indexes), so that a call allocates nothing. Every read is bounded by
the event, every event by the bytes received: contradictions return CODE_BAD, never a read outside.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sluice.model.row_ops import OP_UPDATE
from sluice.sources.machine import copy_bytes, crc32_of, kernel, load_u16, load_u32, load_u64

# -- why the kernel returned -------------------------------------------------------------------------------------------
CODE_MORE = 0
"""All complete events are done; more bytes are needed."""
CODE_EVENT = 1
"""Python has to look at the event ``[S_EVENT, S_EVENT_END)``; the kernel has moved after it."""
CODE_END = 2
"""A transaction ended and a limit is reached."""
CODE_GROW_EVENTS = 3
CODE_GROW_IMAGES = 4
CODE_GROW_TXNS = 5
CODE_GROW_SIDS = 6
CODE_ARENA = 7
"""The arena has no room for the event at hand (its size is in ``S_NEED``)."""
CODE_BIG = 8
"""An event of 16 MB or more starts here: it comes in several packets."""
CODE_SERVER_ERROR = 9
CODE_EOF = 10
CODE_BAD = 11
CODE_CRC = 12
CODE_NO_TABLE = 13
"""A row event names a table id without a table map."""
CODE_OPEN_MARK = 14
"""A transaction ends with a mark at its head and none at its tail."""

# -- state -------------------------------------------------------------------------------------------------------------
(
    S_POS, S_FILE_POS, S_IN_TXN, S_EVENTS, S_IMAGES, S_TXNS, S_CHANGES, S_ARENA, S_SIDS, S_SID, S_CRC, S_EVENT,
    S_EVENT_END, S_MAX_CHANGES,
    S_STOP_POS, S_STOP_AT_END, S_FRAMED, S_DONE_TXNS, S_LAST_END, S_FILE, S_NEED, S_BYTES, S_MAX_BYTES, S_SKIPPED_TABLE,
    S_SKIPPED_KIND,
    S_FIXED, S_ROW_BASE, S_TS, S_HAS_GTID, S_MARIA, S_LAST_TS, S_EVENT_POS, S_CAPTURED_TXNS, S_TXN_MARK, S_HELD,
    S_FIRST_TS,
    S_BYTES_BEFORE, S_LAST_FILE, S_LAST_POS, S_LAST_SIZE, S_LAST_SUM, S_LAST_KIND, S_LAST_TIME, S_GTID_FILE, S_GTID_POS,
    S_GTID_SIZE,
    S_GTID_SUM, S_GTID_KIND, S_GTID_TIME, S_MARKED, S_DROPS, S_ORIGIN, S_DROPPED,
) = range(53)  # fmt: skip
STATE_SIZE = 56
"""S_MARKED: the rows at hand stand after the mark of a load; S_DROPS: they are not captured, S_DROPPED counts their
events; S_ORIGIN: the origin they have if they are.
"""

LAST_EVENT = slice(S_LAST_FILE, S_LAST_TIME + 1)
"""The event that ended the last transaction: index of its file, offset, size, CRC32, kind, timestamp.

Size 0: none was seen.
"""
GTID_EVENT = slice(S_GTID_FILE, S_GTID_TIME + 1)
"""The event that began it, the same six."""

# -- a row event's record: one column of the int64 array ``rev`` -------------------------------------------------------
R_SLOT, R_OP, R_IMAGE, R_IMAGES, R_SEQ, R_OFFSET, R_TXN, R_BM1, R_BM2, R_END, R_FILE, R_ROW, R_ORIGIN, R_PARTIAL = (
    range(14)
)
REV_FIELDS = 14

PARTIAL_IMAGE = 1 << 62
"""Added to the offset of an after image whose JSON columns may hold differences; a bit for each of them stands just
before the image.
"""

_HEADER = 19
JSON_COUNT_SHIFT = 8
MARKS_SHIFT = 40
"""Places in ``slot_events``, see :class:`sluice.sources.mysql.decoder.table_slots.TableSlots`."""

# event types that say nothing a reader needs: intvar, rand, user var, rows query, ignorable, GTID list,
# annotate, checkpoint
QUIET = np.zeros(256, np.uint8)
for _kind in (5, 13, 14, 28, 29, 160, 161, 163):
    QUIET[_kind] = 1


@kernel
def walk_image(buf: Any, at: Any, end: Any, bitmap: Any, columns: Any, widths: Any, first: Any) -> Any:
    """Return the offset after the row image at ``at``; -1 if it does not fit into ``end``.

    ``bitmap``: offset of the columns-present bitmap; ``widths[first:first+columns]``: bytes of a fixed value, or minus
    the number of length bytes of a variable one.
    """
    present = 0
    for c in range(columns):
        present += (buf[bitmap + (c >> 3)] >> (c & 7)) & 1
    q = at + ((present + 7) >> 3)
    if q > end:
        return -1
    k = 0
    for c in range(columns):
        if (buf[bitmap + (c >> 3)] >> (c & 7)) & 1 == 0:
            continue
        null = (buf[at + (k >> 3)] >> (k & 7)) & 1
        k += 1
        if null:
            continue
        w = np.int64(widths[first + c])
        if w >= 0:
            q += w
        else:
            if q - w > end:
                return -1
            size = np.int64(buf[q])
            if w == -2:
                size = np.int64(load_u16(buf, q))
            elif w == -3:
                size = np.int64(load_u16(buf, q)) | (np.int64(buf[q + 2]) << 16)
            elif w == -4:
                size = np.int64(load_u32(buf, q))
            q += size - w
        if q > end:
            return -1
    return q


@kernel
def whole_events(buf: Any, end: Any) -> Any:
    """Return the offset after the last whole event of ``buf[:end]``, in which events lie one after the other.

    It ends at a header that contradicts itself.
    """
    at = np.int64(0)
    while at + _HEADER <= end:
        size = np.int64(load_u32(buf, at + 9))
        if size < _HEADER:
            return end
        if at + size > end:
            break
        at += size
    return at


@kernel
def _same(a: Any, a_at: Any, b: Any, b_at: Any, size: Any) -> Any:
    i = 0
    while i + 8 <= size:
        if load_u64(a, a_at + i) != load_u64(b, b_at + i):
            return False
        i += 8
    while i < size:
        if a[a_at + i] != b[b_at + i]:
            return False
        i += 1
    return True


@kernel
def find_table(table_ids: Any, table_slots: Any, table_id: Any) -> Any:
    """Return the slot of a table id in the open-addressing map: >= 0 captured, -1 not wanted, -2 unknown."""
    mask = len(table_ids) - 1
    i = (table_id * 0x9E3779B1) & mask
    for _ in range(len(table_ids)):
        if table_ids[i] == table_id:
            return np.int64(table_slots[i])
        if table_ids[i] == -1:
            return np.int64(-2)
        i = (i + 1) & mask
    return np.int64(-2)


@kernel
def scan(
    buf: Any,
    end: Any,
    s: Any,
    arena: Any,
    rev: Any,
    images: Any,
    txn_sid: Any,
    txn_gno: Any,
    txn_ts: Any,
    sids: Any,
    table_ids: Any,
    table_slots: Any,
    slot_columns: Any,
    slot_first: Any,
    slot_events: Any,
    widths: Any,
    map_at: Any,
    map_size: Any,
    map_bytes: Any,
    quiet: Any,
    crc_tables: Any,
) -> Any:
    """Work through ``buf[s[S_POS]:end]``; returns a CODE. See the module's docstring."""
    while True:
        pos = s[S_POS]
        if s[S_FRAMED]:
            if pos + 5 > end:
                return CODE_MORE
            size = np.int64(buf[pos]) | (np.int64(buf[pos + 1]) << 8) | (np.int64(buf[pos + 2]) << 16)
            status = buf[pos + 4]
            if size == 0xFFFFFF and status == 0:
                return CODE_BIG
            if pos + 4 + size > end:
                return CODE_MORE
            start = pos + 5
            stop = pos + 4 + size
            behind = stop
            if status != 0:
                s[S_EVENT] = pos + 4
                s[S_EVENT_END] = stop
                if status == 0xFF:
                    return CODE_SERVER_ERROR
                if status == 0xFE:
                    return CODE_EOF
                return CODE_BAD
        else:
            if pos + _HEADER > end:
                return CODE_MORE if pos == end else CODE_BAD
            start = pos
            stop = pos + np.int64(load_u32(buf, pos + 9))
            behind = stop
            if stop > end:
                return CODE_BAD
        if stop - start < _HEADER or np.int64(load_u32(buf, start + 9)) != stop - start:
            s[S_EVENT] = start
            s[S_EVENT_END] = stop
            return CODE_BAD
        kind = buf[start + 4]
        full = stop - start
        if s[S_CRC] and s[S_FRAMED] and kind != 15:
            if full < _HEADER + 4 or crc32_of(buf, start, stop - 4, crc_tables) != load_u32(buf, stop - 4):
                s[S_EVENT] = start
                s[S_EVENT_END] = stop
                return CODE_CRC
            stop -= 4
        s[S_EVENT] = start
        s[S_EVENT_END] = stop

        # where the event ends in its file; the header's 32 bits wrap in files of more than 4 GiB. Inside a transaction
        # MariaDB leaves them empty from 11.4 on (binlog_legacy_event_pos): its end tells of events that were not sent
        file_pos = s[S_FILE_POS]
        log_pos = np.int64(load_u32(buf, start + 13))
        flags = np.int64(load_u16(buf, start + 17))
        if s[S_FRAMED] and kind != 27 and kind != 41 and flags & 0x20 == 0 and (log_pos != 0 or s[S_IN_TXN] == 1):
            file_pos += full
            if log_pos != 0:
                ahead = (log_pos - file_pos) & 0xFFFFFFFF
                if ahead > 0x7FFFFFFF:
                    return CODE_BAD
                file_pos += ahead
        event_pos = file_pos - full
        if s[S_FIXED] >= 0:
            event_pos = s[S_FIXED]

        if s[S_HELD]:  # inside an XA transaction that may yet be rolled back: Python keeps its rows
            s[S_BYTES] += full
            s[S_POS] = behind
            s[S_FILE_POS] = file_pos
            s[S_EVENT_POS] = event_pos
            return CODE_EVENT

        if 23 <= kind <= 25 or 30 <= kind <= 32 or kind == 39:
            at = start + _HEADER
            if at + 10 > stop:
                return CODE_BAD
            table_id = np.int64(load_u32(buf, at)) | (np.int64(load_u16(buf, at + 4)) << 32)
            version1 = kind <= 25
            op = np.int64(kind - 23) if version1 else np.int64(kind - 30)
            if kind == 39:
                op = np.int64(OP_UPDATE)
            at += 8
            slot = find_table(table_ids, table_slots, table_id)
            if slot == -2:
                if table_id == 0xFFFFFF and full <= _HEADER + 20:  # a dummy that only ends a statement
                    s[S_POS] = behind
                    s[S_FILE_POS] = file_pos
                    continue
                return CODE_NO_TABLE
            if slot < 0:
                s[S_SKIPPED_TABLE] += 1
                s[S_POS] = behind
                s[S_FILE_POS] = file_pos
                continue
            if slot_events[slot] >> MARKS_SHIFT:
                s[S_POS] = behind
                s[S_FILE_POS] = file_pos
                s[S_EVENT_POS] = event_pos
                return CODE_EVENT
            if s[S_DROPS]:
                s[S_DROPPED] += 1
                s[S_POS] = behind
                s[S_FILE_POS] = file_pos
                continue
            if (slot_events[slot] >> op) & 1 == 0:
                s[S_SKIPPED_KIND] += 1
                s[S_POS] = behind
                s[S_FILE_POS] = file_pos
                continue
            if not version1:
                extra = np.int64(load_u16(buf, at))
                if extra < 2:
                    return CODE_BAD
                at += extra
            if at >= stop:
                return CODE_BAD
            columns = np.int64(buf[at])
            at += 1
            if columns == 252:
                if at + 2 > stop:
                    return CODE_BAD
                columns = np.int64(load_u16(buf, at))
                at += 2
            elif columns > 252:
                return CODE_BAD
            if columns != slot_columns[slot]:
                return CODE_BAD
            mark = (columns + 7) >> 3
            bitmap1 = at
            at += mark
            bitmap2 = bitmap1
            if op == OP_UPDATE:
                bitmap2 = at
                at += mark
            if at > stop:
                return CODE_BAD
            size = stop - start
            if s[S_ARENA] + size + 16 > len(arena):
                s[S_NEED] = size + 16
                return CODE_ARENA
            if s[S_EVENTS] >= rev.shape[1]:
                return CODE_GROW_EVENTS
            base = s[S_ARENA] - start
            first_image = s[S_IMAGES]
            image = first_image
            first = slot_first[slot]
            while at < stop:
                if image + 2 > len(images):
                    return CODE_GROW_IMAGES
                before = at
                images[image] = base + at
                image += 1
                at = walk_image(buf, at, stop, bitmap1, columns, widths, first)
                if at < 0:
                    return CODE_BAD
                if op == OP_UPDATE:
                    partial = np.int64(0)
                    if kind == 39:  # an option byte, then perhaps a bit for each JSON column
                        if at >= stop or buf[at] > 1:
                            return CODE_BAD
                        if buf[at] == 1:
                            at += ((slot_events[slot] >> JSON_COUNT_SHIFT) + 7) >> 3
                            partial = np.int64(PARTIAL_IMAGE)
                        at += 1
                        if at > stop:
                            return CODE_BAD
                    images[image] = (base + at) | partial
                    image += 1
                    at = walk_image(buf, at, stop, bitmap2, columns, widths, first)
                    if at < 0:
                        return CODE_BAD
                if at == before:
                    return CODE_BAD
            copy_bytes(arena, s[S_ARENA], buf, start, size)
            r = s[S_EVENTS]
            count = image - first_image
            rows = count // 2 if op == OP_UPDATE else count
            if s[S_TXNS] == 0 or not s[S_IN_TXN]:
                return CODE_BAD
            rev[R_SLOT, r] = slot
            rev[R_OP, r] = op
            rev[R_IMAGE, r] = first_image
            rev[R_IMAGES, r] = count
            rev[R_SEQ, r] = s[S_CHANGES]
            rev[R_OFFSET, r] = event_pos
            rev[R_TXN, r] = s[S_TXNS] - 1
            rev[R_BM1, r] = base + bitmap1
            rev[R_BM2, r] = base + bitmap2
            rev[R_END, r] = base + stop
            rev[R_FILE, r] = s[S_FILE]
            rev[R_ROW, r] = s[S_ROW_BASE]
            rev[R_ORIGIN, r] = s[S_ORIGIN] if s[S_MARKED] else np.int64(load_u32(buf, start + 5))
            rev[R_PARTIAL, r] = 1 if kind == 39 else 0
            if s[S_CHANGES] == 0:  # a batch's bytes count from its first change on
                s[S_BYTES_BEFORE] += s[S_BYTES]
                s[S_BYTES] = 0
            s[S_EVENTS] += 1
            s[S_IMAGES] = image
            s[S_CHANGES] += rows
            s[S_ARENA] += size
            if s[S_FIXED] >= 0:
                s[S_ROW_BASE] += rows
            s[S_BYTES] += full
            s[S_TXN_MARK] = 1
            s[S_POS] = behind
            s[S_FILE_POS] = file_pos
            continue

        s[S_BYTES] += full
        if kind == 19:
            at = start + _HEADER
            if at + 8 > stop:
                return CODE_BAD
            table_id = np.int64(load_u32(buf, at)) | (np.int64(load_u16(buf, at + 4)) << 32)
            slot = find_table(table_ids, table_slots, table_id)
            if slot == -1 or (
                slot >= 0 and map_size[slot] == stop - at and _same(buf, at, map_bytes, map_at[slot], stop - at)
            ):
                s[S_POS] = behind
                s[S_FILE_POS] = file_pos
                continue
        elif kind == 33 or kind == 34:
            at = start + _HEADER
            if at + 25 > stop:
                return CODE_BAD
            if s[S_TXNS] >= len(txn_gno):
                s[S_BYTES] -= full
                return CODE_GROW_TXNS
            sid_index = np.int64(-1)
            if kind == 33:
                sid_index = _find_sid(buf, at + 1, sids, s)
                if sid_index < 0:
                    s[S_BYTES] -= full
                    return CODE_GROW_SIDS
            t = s[S_TXNS]
            txn_sid[t] = sid_index
            txn_gno[t] = np.int64(load_u64(buf, at + 17)) if kind == 33 else 0
            stamp = np.int64(load_u32(buf, start)) * 1000000
            if at + 49 <= stop and buf[at + 25] == 2:
                stamp = np.int64(load_u32(buf, at + 42)) | (np.int64(load_u32(buf, at + 45) >> np.uint64(8)) << 32)
                stamp &= (1 << 55) - 1
            txn_ts[t] = stamp
            s[S_TS] = stamp
            s[S_TXNS] = t + 1
            s[S_HAS_GTID] = 1
            s[S_POS] = behind
            s[S_FILE_POS] = file_pos
            if s[S_FRAMED]:
                _note(s, S_GTID_FILE, buf, start, stop, event_pos, full, crc_tables)
            continue
        elif kind == 162:
            at = start + _HEADER
            if at + 13 > stop:
                return CODE_BAD
            if s[S_FRAMED]:
                _note(s, S_GTID_FILE, buf, start, stop, event_pos, full, crc_tables)
            if s[S_TXNS] >= len(txn_gno):
                s[S_BYTES] -= full
                return CODE_GROW_TXNS
            if s[S_SIDS] >= len(sids):
                s[S_BYTES] -= full
                return CODE_GROW_SIDS
            source = sids[s[S_SIDS]]  # the next free place, which it keeps if it is new
            for i in range(4):
                source[i] = buf[at + 8 + i]
                source[4 + i] = buf[start + 5 + i]
            sid_index = _find_sid(source, 0, sids, s)
            if buf[at + 12] & 0xC0:  # FL_PREPARED_XA, FL_COMPLETED_XA
                s[S_POS] = behind
                s[S_FILE_POS] = file_pos
                return CODE_EVENT
            t = s[S_TXNS]
            txn_sid[t] = sid_index
            txn_gno[t] = np.int64(load_u64(buf, at))
            txn_ts[t] = np.int64(load_u32(buf, start)) * 1000000
            s[S_TS] = txn_ts[t]
            s[S_TXNS] = t + 1
            s[S_HAS_GTID] = 1
            s[S_IN_TXN] = 0 if buf[at + 12] & 1 else 1
            s[S_TXN_MARK] = 0
            s[S_POS] = behind
            s[S_FILE_POS] = file_pos
            continue
        elif kind == 2:
            at = start + _HEADER
            if at + 13 > stop:
                return CODE_BAD
            query = at + 13 + np.int64(load_u16(buf, at + 11)) + np.int64(buf[at + 8]) + 1
            if query > stop:
                return CODE_BAD
            size = stop - query
            # B E G I N  -> a transaction starts; C O M M I T -> it ends
            if (
                size == 5
                and buf[query] == 66
                and buf[query + 1] == 69
                and buf[query + 2] == 71
                and buf[query + 3] == 73
                and buf[query + 4] == 78
            ):
                if not s[S_HAS_GTID]:
                    if s[S_TXNS] >= len(txn_gno):
                        s[S_BYTES] -= full
                        return CODE_GROW_TXNS
                    t = s[S_TXNS]
                    txn_sid[t] = -1
                    txn_gno[t] = 0
                    txn_ts[t] = np.int64(load_u32(buf, start)) * 1000000
                    s[S_TS] = txn_ts[t]
                    s[S_TXNS] = t + 1
                s[S_IN_TXN] = 1
                s[S_TXN_MARK] = 0
                s[S_POS] = behind
                s[S_FILE_POS] = file_pos
                continue
            if (
                s[S_IN_TXN] == 1 and size == 6 and buf[query] == 67 and buf[query + 1] == 79 and buf[query + 2] == 77
                and buf[query + 3] == 77 and buf[query + 4] == 73 and buf[query + 5] == 84
            ):  # fmt: skip
                kind = np.uint8(16)
        if kind == 16 and s[S_IN_TXN] == 1:
            if s[S_MARKED]:
                return CODE_OPEN_MARK
            s[S_IN_TXN] = 0
            s[S_HAS_GTID] = 0
            s[S_DONE_TXNS] = s[S_TXNS]
            s[S_POS] = behind
            s[S_FILE_POS] = file_pos
            s[S_LAST_END] = file_pos
            s[S_LAST_TS] = s[S_TS]
            if s[S_FRAMED]:
                _note(s, S_LAST_FILE, buf, start, stop, event_pos, full, crc_tables)
            if s[S_TXN_MARK]:
                if s[S_CAPTURED_TXNS] == 0:
                    s[S_FIRST_TS] = s[S_TS]
                s[S_CAPTURED_TXNS] += 1
                s[S_TXN_MARK] = 0
            if (
                s[S_STOP_AT_END]
                or s[S_CHANGES] >= s[S_MAX_CHANGES]
                or (s[S_CHANGES] > 0 and s[S_BYTES] >= s[S_MAX_BYTES])
                or (file_pos >= s[S_STOP_POS] and s[S_FRAMED])
            ):
                return CODE_END
            continue
        if quiet[kind]:
            if kind == 163 and s[S_FRAMED] and log_pos != 0 and flags & 0x20 == 0 and not s[S_IN_TXN]:
                _note(s, S_LAST_FILE, buf, start, stop, event_pos, full, crc_tables)  # stands first in each file
            s[S_POS] = behind
            s[S_FILE_POS] = file_pos
            continue
        s[S_POS] = behind
        s[S_FILE_POS] = file_pos
        s[S_EVENT_POS] = event_pos
        return CODE_EVENT


@kernel
def _note(s: Any, first: Any, buf: Any, start: Any, stop: Any, event_pos: Any, full: Any, crc_tables: Any) -> Any:
    """Remember the event ``[start, stop)``, without its checksum, in the six places from ``first`` on.

    Where the log has checksums, the event's was verified just now and stands after it: no second pass over its bytes.
    """
    s[first] = s[S_FILE]
    s[first + 1] = event_pos
    s[first + 2] = full
    if s[S_CRC]:
        s[first + 3] = np.int64(load_u32(buf, stop))
    else:
        s[first + 3] = np.int64(crc32_of(buf, start, stop, crc_tables))
    s[first + 4] = np.int64(buf[start + 4])
    s[first + 5] = np.int64(load_u32(buf, start))
    return 0


@kernel
def _find_sid(buf: Any, at: Any, sids: Any, s: Any) -> Any:
    """Index of a 16-byte source id in ``sids``, added if new; -1 if the array is full."""
    last = s[S_SID]
    if last < s[S_SIDS] and _same(buf, at, sids[last], 0, 16):
        return last
    for i in range(s[S_SIDS]):
        if _same(buf, at, sids[i], 0, 16):
            s[S_SID] = i
            return i
    if s[S_SIDS] >= len(sids):
        return np.int64(-1)
    i = s[S_SIDS]
    for j in range(16):
        sids[i, j] = buf[at + j]
    s[S_SIDS] += 1
    s[S_SID] = i
    return i
