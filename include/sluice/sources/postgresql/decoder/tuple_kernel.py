"""The tuple kernel: where each value of each row stands in the arena, column by column."""

from __future__ import annotations

from typing import Any

from sluice.kernels import kernel
from sluice.model.row_ops import OP_DELETE, OP_INSERT, OP_UPDATE
from sluice.sources.postgresql.decoder.scan_kernel import be16, be32

IS_NULL = -1
IS_ABSENT = -2
"""The length of a value that the log does not hold: an unchanged one that is stored out of line (TOAST), or a column
that is no part of the replica identity.
"""


@kernel
def _walk(arena: Any, at: Any, end: Any, columns: Any, starts: Any, lengths: Any, row: Any) -> Any:
    """Note the values of the tuple at ``at``; the offset after it, -1 if it does not fit."""
    if at + 2 > end or be16(arena, at) != columns:
        return -1
    q = at + 2
    for c in range(columns):
        if q >= end:
            return -1
        kind = arena[q]
        q += 1
        if kind == 110:  # n: null
            lengths[c, row] = IS_NULL
        elif kind == 117:  # u: unchanged
            lengths[c, row] = IS_ABSENT
        elif kind == 116:  # t: text
            if q + 4 > end:
                return -1
            size = be32(arena, q)
            q += 4
            if q + size > end:
                return -1
            starts[c, row] = q
            lengths[c, row] = size
            q += size
        else:
            return -1
    return q


@kernel
def walk_rows(
    arena: Any, ats: Any, ends: Any, ops: Any, identity: Any, starts: Any, lengths: Any, old_starts: Any,
    old_lengths: Any
) -> Any:  # fmt: skip
    """Note the values of every row, as it is and as it was; return -1, or the first row that does not fit.

    ``starts``, ``lengths``: [column, row]. A deleted row is there as it was. What an update left unchanged is taken
    from the old row where that holds it, and an identity that did not change from the new one.
    """
    columns = len(identity)
    for m in range(len(ats)):
        at = ats[m]
        end = ends[m]
        op = ops[m]
        kind = arena[at]
        for c in range(columns):
            old_lengths[c, m] = IS_ABSENT
            lengths[c, m] = IS_ABSENT
        if op != OP_INSERT and (kind == 75 or kind == 79):  # K: identity, O: old row
            at = _walk(arena, at + 1, end, columns, old_starts, old_lengths, m)
            if at < 0:
                return m
            for c in range(columns):  # of a partition's old row, too, which is logged as that of its table
                if identity[c] == 0:
                    old_lengths[c, m] = IS_ABSENT
        elif op == OP_DELETE:
            return m
        if op == OP_DELETE:
            if at != end:
                return m
            for c in range(columns):
                starts[c, m] = old_starts[c, m]
                lengths[c, m] = old_lengths[c, m]
            continue
        if at >= end or arena[at] != 78:  # N: new row
            return m
        at = _walk(arena, at + 1, end, columns, starts, lengths, m)
        if at != end:
            return m
        if op != OP_UPDATE:
            continue
        for c in range(columns):
            if lengths[c, m] == IS_ABSENT:
                starts[c, m] = old_starts[c, m]
                lengths[c, m] = old_lengths[c, m]
            elif kind == 78 and identity[c] != 0:
                old_starts[c, m] = starts[c, m]
                old_lengths[c, m] = lengths[c, m]
    return -1


@kernel
def keys_moved(
    arena: Any, key: Any, starts: Any, lengths: Any, old_starts: Any, old_lengths: Any, ops: Any, moved: Any
) -> Any:
    """Mark the updates whose key is another one than before; return how many there are."""
    count = 0
    for m in range(len(ops)):
        moved[m] = 0
        if ops[m] != OP_UPDATE:
            continue
        for c in key:
            size = lengths[c, m]
            if size == IS_ABSENT or old_lengths[c, m] == IS_ABSENT:
                continue
            same = size == old_lengths[c, m]
            if same and size > 0:
                at = starts[c, m]
                was = old_starts[c, m]
                for i in range(size):
                    if arena[at + i] != arena[was + i]:
                        same = False
                        break
            if not same:
                moved[m] = 1
                count += 1
                break
    return count
