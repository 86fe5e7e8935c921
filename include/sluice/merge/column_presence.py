"""The known columns of a row: the bitmaps of ``_present`` as masks, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Mask = npt.NDArray[np.bool_]


def is_partial(rows: pa.Table) -> bool:
    """Return True if some row lacks a column."""
    return "_present" in rows.schema.names and bool(rows["_present"].null_count < rows.num_rows)


def masks(present: pa.Array | pa.ChunkedArray, columns: int) -> tuple[Mask, Mask]:
    """Decode the bitmaps of a segment to (after, before), each bool[rows, columns].

    A null bitmap means that all columns are known.
    """
    size = (columns + 7) >> 3
    full = b"\xff" * (2 * size)
    data = b"".join((v + full)[: 2 * size] if v is not None else full for v in present.to_pylist())
    bits = np.unpackbits(np.frombuffer(data, np.uint8).reshape(-1, 2 * size), axis=1, bitorder="little").astype(bool)
    return bits[:, :columns], bits[:, 8 * size : 8 * size + columns]


def bitmaps(mask: Mask) -> pa.Array:
    """Encode each row of a mask as a bitmap (LSB first), null where every column is known."""
    packed = np.packbits(mask, axis=1, bitorder="little")
    is_complete: list[bool] = np.asarray(mask.all(axis=1)).tolist()
    return pa.array([None if w else packed[i].tobytes() for i, w in enumerate(is_complete)], pa.binary())


def renewed(rows: pa.Table, before: Sequence[str], after: Sequence[str]) -> pa.Array:
    """Return ``_present`` of ``rows`` for the columns ``after`` of a newer definition.

    Columns that the newer definition added count as unknown. Rows without ``_present`` have all columns of ``before``.
    """
    place = {name: i for i, name in enumerate(before)}
    present = rows["_present"] if "_present" in rows.schema.names else pa.nulls(rows.num_rows, pa.binary())
    nothing = np.zeros(rows.num_rows, bool)
    halves = [
        np.column_stack([mask[:, place[name]] if name in place else nothing for name in after])
        for mask in masks(present, len(before))
    ]
    is_complete: list[bool] = np.asarray(halves[0].all(axis=1) & halves[1].all(axis=1)).tolist()
    packed = np.hstack([np.packbits(half, axis=1, bitorder="little") for half in halves])
    return pa.array([None if w else packed[i].tobytes() for i, w in enumerate(is_complete)], pa.binary())


def unknown_before(rows: pa.Table, columns: Sequence[str], starts: Mapping[str, int]) -> pa.Table:
    """Mark columns of ``starts`` as unknown in rows whose last change is older than the column's start (a ``_seq``).

    ``columns`` are the columns that the bits of ``_present`` stand for.
    """
    mask, _ = masks(rows["_present"], len(columns))
    seq = rows["_seq"].to_numpy().astype(np.int64)
    mask = mask.copy()
    for index, name in enumerate(columns):
        if name in starts:
            mask[:, index] &= seq >= starts[name]
    index = rows.schema.get_field_index("_present")
    return rows.set_column(index, rows.schema.field(index), bitmaps(mask))


def remapped(rows: pa.Table, before: Sequence[str], after: Sequence[str | None]) -> pa.Array:
    """Return ``_present`` of ``rows`` for a new order of columns.

    ``before`` names the columns that its bits stand for; ``after`` names the predecessor of each new column. A column
    without a predecessor (None) counts as present.
    """
    mask, _ = masks(rows["_present"], len(before))
    place = {name: i for i, name in enumerate(before)}
    columns: list[Any] = [
        mask[:, place[name]] if name is not None and name in place else np.ones(rows.num_rows, bool) for name in after
    ]
    return bitmaps(np.column_stack(columns) if columns else np.ones((rows.num_rows, 0), bool))
