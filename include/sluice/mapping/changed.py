"""Rows of which only changed columns are sent: what somebody else writes into the others at the target stays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.model.fields import is_key, true_name
from sluice.model.tables import META_COLUMNS, member


def only_changed(rows: pa.Table, groups: Sequence[Sequence[str]]) -> pa.Table:
    """MERGED_ROWS with ``_present``: of an update the key, the columns that differ from the state before the batch, and all of a group if one does.

    Args:
        rows: without ``_present``. groups: names of columns at the target. A row that the target gets for the first time is sent whole.
    """
    users = [field for field in rows.schema if field.name not in META_COLUMNS]
    names = list(map(true_name, users))
    before = rows["_before"].combine_chunks()
    updates = pc.and_(pc.equal(rows["_op"], "u"), pc.is_valid(rows["_before"])).to_numpy(zero_copy_only=False)
    sent = np.ones((rows.num_rows, len(users)), bool)
    for index, field in enumerate(users):
        if not is_key(field):
            sent[:, index] = ~updates | differs(rows[field.name].combine_chunks(), before, field.name)
    for group in groups:
        members = [index for index, name in enumerate(names) if name in group]
        if members:
            sent[:, members] = np.asarray(sent[:, members].any(axis=1)).reshape(-1, 1)
    packed = np.packbits(sent, axis=1, bitorder="little")
    whole: list[bool] = np.asarray(sent.all(axis=1)).tolist()
    bits = [None if every else packed[row].tobytes() for row, every in enumerate(whole)]
    return rows.append_column(pa.field("_present", pa.binary()), pa.array(bits, pa.binary()))


def differs(now: pa.Array, before: pa.StructArray, name: str) -> np.ndarray[Any, Any]:
    """Mask: where a column is not what it was; null is a value of its own."""
    then = member(before, name)
    unequal = pc.fill_null(pc.not_equal(now, then), False)
    return np.asarray(pc.or_(unequal, pc.xor(pc.is_null(now), pc.is_null(then))).to_numpy(zero_copy_only=False))
