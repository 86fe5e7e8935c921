"""Put pieces of changes, each in log order, into log order: by table, or all tables together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow.compute as pc

from sluice.model.batches import Op
from sluice.targets.port import ChangePiece


def in_log_order(pieces: Sequence[ChangePiece], rows: int, *, together: bool = False) -> Iterator[list[ChangePiece]]:
    """Yield the same changes in parts of about ``rows`` rows, to be taken one after the other.

    The changes of one table are in log order; with ``together`` those of all tables. A part is a section of the log:
    its pieces are few, unless tables alternate.
    """
    if together:
        groups = [list(pieces)]
    else:
        tables: dict[object, list[ChangePiece]] = {}
        for piece in pieces:
            tables.setdefault(piece.table, []).append(piece)
        groups = list(tables.values())
    for group in groups:
        if len(group) == 1:
            for start in range(0, group[0].rows.num_rows, rows):
                yield [group[0].slice(start, rows)]
        elif group:
            yield from _merged(group, rows)


def _merged(group: Sequence[ChangePiece], rows: int) -> Iterator[list[ChangePiece]]:
    seq = np.concatenate([piece.rows["_seq"].to_numpy() for piece in group])
    row = np.concatenate([piece.rows["_row"].to_numpy() for piece in group])
    logged = np.concatenate([
        np.asarray(pc.not_equal(piece.rows["_op"], Op.READ.value).to_numpy(zero_copy_only=False)) for piece in group
    ])
    which = np.concatenate([np.full(piece.rows.num_rows, number) for number, piece in enumerate(group)])
    at = np.concatenate([np.arange(piece.rows.num_rows) for piece in group])
    order = np.lexsort((at, row, logged, seq))
    which, at = which[order], at[order]
    for start in range(0, len(order), rows):
        number, place = which[start : start + rows], at[start : start + rows]
        cuts = np.flatnonzero((number[1:] != number[:-1]) | (place[1:] != place[:-1] + 1)) + 1
        begins = np.concatenate(([0], cuts))
        ends = np.concatenate((cuts, [len(number)]))
        yield [
            group[number[begin]].slice(int(place[begin]), int(end - begin))
            for begin, end in zip(begins, ends, strict=True)
        ]
