"""Updates that send only changed columns, so that values that others write into the target's other columns stay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.model.fields import is_key, true_name
from sluice.model.tables import META_COLUMNS, member

Mask = npt.NDArray[np.bool_]


def only_changed(rows: pa.Table, groups: Sequence[Sequence[str]]) -> pa.Table:
    """Add ``_present`` to MERGED_ROWS, so that an update sends its key and the columns that it changed.

    If one column of a group changed, the whole group is sent.

    Args:
        rows: without ``_present``. groups: names of columns at the target. A row that the target gets for the first
            time is sent whole.
    """
    changed = _changed(rows, _updates(rows), groups)
    return _with_present(rows, changed, np.asarray(changed.all(axis=1)))


def each_changed(changes: pa.Table, groups: Sequence[Sequence[str]]) -> pa.Table:
    """CHANGE_ROWS with ``_present``: of each update the key, the columns that it changed, and all of a group if it
    changed one.

    So the merge knows all columns that any change of a batch changed, also those that are as they were in the end. A
    row that comes to another key is whole there.

    Args:
        changes: of a table with a primary key, without ``_present``. groups: names of source columns.
    """
    updates, before = _updates(changes), changes["_before"].combine_chunks()
    for field in filter(is_key, changes.schema):
        updates &= ~differs(changes[field.name].combine_chunks(), before, field.name)
    return _with_present(changes, _changed(changes, updates, groups), ~updates)


def _updates(rows: pa.Table) -> Mask:
    mask = pc.and_(pc.equal(rows["_op"], "u"), pc.is_valid(rows["_before"]))
    return np.array(mask.to_numpy(zero_copy_only=False))


def _changed(rows: pa.Table, updates: Mask, groups: Sequence[Sequence[str]]) -> Mask:
    """Return bool[rows, user columns]: the key and the changed columns of ``updates``, every column of other rows."""
    users = [field for field in rows.schema if field.name not in META_COLUMNS]
    names = list(map(true_name, users))
    before = rows["_before"].combine_chunks()
    changed = np.ones((rows.num_rows, len(users)), bool)
    for index, field in enumerate(users):
        if not is_key(field):
            changed[:, index] = ~updates | differs(rows[field.name].combine_chunks(), before, field.name)
    for group in groups:
        members = [index for index, name in enumerate(names) if name in group]
        if members:
            changed[:, members] = np.asarray(changed[:, members].any(axis=1)).reshape(-1, 1)
    return changed


def _with_present(rows: pa.Table, changed: Mask, mask: Mask) -> pa.Table:
    packed = np.packbits(changed, axis=1, bitorder="little")
    bits = [None if every else packed[row].tobytes() for row, every in enumerate(mask.tolist())]
    return rows.append_column(pa.field("_present", pa.binary()), pa.array(bits, pa.binary()))


def differs(now: pa.Array, before: pa.StructArray, name: str) -> np.ndarray[Any, Any]:
    """Return a mask of the rows in which a column differs from its state before. A null equals only a null."""
    then = member(before, name)
    unequal = pc.fill_null(pc.not_equal(now, then), False)
    return np.asarray(pc.or_(unequal, pc.xor(pc.is_null(now), pc.is_null(then))).to_numpy(zero_copy_only=False))
