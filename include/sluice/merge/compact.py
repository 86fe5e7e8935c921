"""Merge the changes of each key to one row: the nine rules, in Arrow and numpy, without a Python object per row.

====================  ======  ====================================================================
history of a key      result  why
====================  ======  ====================================================================
insert, insert        insert  the later image
insert, update        insert  the target has never seen the row
insert, delete        delete  harmless if the row was never there, right if a replay had put it there
update, insert        insert
update, update        update  first before image, last after image
update, delete        delete
delete, insert        insert  the row existed before the batch: ``_before`` is kept
delete, update        update
delete, delete        delete
====================  ======  ====================================================================

A key change is a delete of the old key (row ``k``) and an insert of the new one (its ``u`` row). A dumped row (``r``)
is an insert; if the row changes again in the batch, what the dump read is its state before the batch: a target may hold
that already, with its unique values. The tests compare it with a reference that works row by row.

Two rows may have one deferrable key until their transaction ends: an image may arrive at it before the one that was
there leaves. Their images are counted instead, as those of a table without a key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.errors import SegmentError
from sluice.merge import op_arrays
from sluice.merge.column_presence import is_partial
from sluice.merge.group_codes import Identity, dense, group_codes
from sluice.merge.partial_rows import combine
from sluice.model.fields import is_deferrable, is_generated
from sluice.model.layouts import told
from sluice.model.tables import META_COLUMNS, member, one_chunk
from sluice.model.whole_rows import LOG_WHOLE_ROWS

INSERT, UPDATE, DELETE, MOVED, READ = range(5)


def user_columns(schema: pa.Schema) -> list[str]:
    """Return the names of the columns that belong to the user, in order."""
    return [name for name in schema.names if name not in META_COLUMNS]


def compact(changes: pa.Table, key: Sequence[str], *, identity: Identity | None = None) -> pa.Table:
    """Merge the changes of one table to one row per key.

    Args:
        changes: CHANGE_ROWS (:mod:`sluice.model.layouts`; SEGMENT_ROWS fit, too) of any number of buckets and files, in
            any order.
        key: stored names of the key columns; empty for a table without a key, whose rows are identified by all of their
            values and counted: the result then holds as many ``i`` or ``d`` rows of one image as it gained or lost.
        identity: see :data:`sluice.merge.group_codes.Identity`.

    Returns:
        MERGED_ROWS in key order, in which a target writes them fastest (without a key: in no order).

    Raises:
        SegmentError: an unknown ``_op``, or a key column that is not there.
    """
    users = user_columns(changes.schema)
    for name in key:
        if name not in users:
            raise SegmentError(f"key column {name!r} is not among the stored columns {users}")
    if not changes.num_rows:
        return merged_schema(changes.schema).empty_table()
    changes = changes.combine_chunks()
    ops = _op_codes(changes)
    if not key:
        if is_partial(changes):
            raise SegmentError(
                "rows without a key came with a part of their columns: nothing tells which rows they are",
                hint=f"{LOG_WHOLE_ROWS}; or give the table a primary key; for what is in the log already: "
                "`sluice skip PIPELINE TARGET BATCH`, then `sluice dump start PIPELINE --table SCHEMA.TABLE --replace`",
            )
        return _compact_keyless(changes, ops, users, identity)
    changes, ops = _by_moment(changes, ops)
    if is_partial(changes):
        arrives = (ops == UPDATE) & (_arrivals_are_inserts(changes, ops, key, identity) == INSERT)
        return combine(changes, ops, users, key, identity, arrives)
    if _is_deferrable(changes.schema, key):
        return _compact_deferrable(changes, ops, users, key, identity)
    reads = ops == READ
    ops = _arrivals_are_inserts(changes, ops, key, identity)
    codes, count = dense(group_codes(changes, key, identity))
    rows = np.arange(len(codes))
    last = np.empty(count, np.int64)
    last[codes] = rows
    first = np.empty(count, np.int64)
    first[codes[::-1]] = rows[::-1]
    final = _final_ops(ops, codes, count, last)
    order = _key_order(changes, key, last)
    return _result(changes, users, final[order], first[order], last[order], ops=ops, reads=reads)


def thinned(changes: pa.Table, key: Sequence[str], *, identity: Identity | None = None) -> pa.Table:
    """Drop CHANGE_ROWS that do not influence the merge, whatever comes before or after them.

    The first and the last change of each key remain, and the last one that was no update, so that a key that takes most
    of a batch costs the memory of three rows. Changes without a key or with a deferrable one, and changes of which the
    log has some columns only, are returned unchanged.
    """
    if not key or not changes.num_rows or is_partial(changes) or _is_deferrable(changes.schema, key):
        return changes
    changes = changes.combine_chunks()
    changes, ops = _by_moment(changes, _op_codes(changes))
    ops = _arrivals_are_inserts(changes, ops, key, identity)
    codes, count = dense(group_codes(changes, key, identity))
    rows = np.arange(len(codes))
    influences = np.zeros(len(codes), bool)
    for some in (rows, rows[::-1], rows[ops != UPDATE]):
        last = np.full(count, -1, np.int64)
        last[codes[some]] = some
        influences[last[last >= 0]] = True
    return changes if influences.all() else changes.filter(pa.array(influences))


def _by_moment(changes: pa.Table, ops: npt.NDArray[np.int64]) -> tuple[pa.Table, npt.NDArray[np.int64]]:
    """Sort changes and their codes in the order in which they happened.

    Within one _seq the row leaves its old key before it arrives at the new one (the two may be equal to the server's
    collation); a dumped row, which stands before the change whose _seq it has, comes first.
    """
    moment = changes["_seq"].to_numpy().astype(np.int64) * 4 + np.where(ops == READ, 0, np.where(ops == MOVED, 1, 2))
    if moment.size > 1 and (np.diff(moment) < 0).any():
        order = np.argsort(moment, kind="stable")
        return changes.take(pa.array(order)), ops[order]
    return changes, ops


def _key_order(changes: pa.Table, key: Sequence[str], last: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    keys = changes.select(list(dict.fromkeys(key))).take(pa.array(last))
    numbers = [str(number) for number in range(keys.num_columns)]  # a name like .id would be taken for a path
    order = pc.sort_indices(keys.rename_columns(numbers), sort_keys=[(number, "ascending") for number in numbers])
    return order.to_numpy().astype(np.int64)  # type: ignore[no-any-return]


def _op_codes(changes: pa.Table) -> npt.NDArray[np.int64]:
    codes = pc.index_in(changes["_op"], op_arrays.stored())
    if codes.null_count:
        bad = changes["_op"].filter(pc.is_null(codes))[0].as_py()
        raise SegmentError(f"a stored change has the unknown operation {bad!r}")
    return codes.to_numpy().astype(np.int64)  # type: ignore[no-any-return]


def _arrivals_are_inserts(
    changes: pa.Table, ops: npt.NDArray[np.int64], key: Sequence[str], identity: Identity | None
) -> npt.NDArray[np.int64]:
    """Turn dumped rows into inserts, and so updates that change the key: they arrive at a new key."""
    before = one_chunk(changes["_before"])
    moved: Any = np.zeros(len(ops), bool)
    for name in key:
        now, then = one_chunk(changes[name]), member(before, name)
        if identity is not None:
            field = changes.schema.field(name)
            now, then = identity(field, now), identity(field, then)
        moved |= pc.fill_null(pc.not_equal(now, then), False).to_numpy(zero_copy_only=False)
    return np.where((ops == READ) | ((ops == UPDATE) & moved), INSERT, ops)


def _final_ops(
    ops: npt.NDArray[np.int64], codes: npt.NDArray[np.int64], count: int, last: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    decisive = ops != UPDATE  # an update inherits "insert" from the last operation that wasn't an update
    previous = np.full(count, UPDATE, np.int64)
    previous[codes[decisive]] = ops[decisive]
    final = ops[last]
    final = np.where((final == UPDATE) & (previous == INSERT), INSERT, final)
    return np.where(final == MOVED, DELETE, final)


def _result(
    changes: pa.Table,
    users: list[str],
    final: npt.NDArray[np.int64],
    first: npt.NDArray[np.int64],
    last: npt.NDArray[np.int64],
    *,
    ops: npt.NDArray[np.int64],
    reads: npt.NDArray[np.bool_],
) -> pa.Table:
    begun = np.where(reads[first] & (first != last), READ, ops[first])
    images = changes.select(users).take(pa.array(last))
    before = _before(changes, users, first, begun)
    return pa.table(
        [
            *images.columns,
            op_arrays.merged().take(pa.array(final)),
            changes["_seq"].take(pa.array(last)),
            changes["_commit_ts"].take(pa.array(last)),
            *(changes[name].take(pa.array(last)) for name in told(changes.schema)),
            before,
        ],
        schema=merged_schema(changes.schema),
    )


def merged_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema of :func:`compact`'s result for the schema of a segment."""
    return pa.schema([
        *(schema.field(n) for n in user_columns(schema)),
        *(schema.field(n) for n in ("_op", "_seq", "_commit_ts", *told(schema), "_before")),
    ])


def _before(
    changes: pa.Table, users: list[str], first: npt.NDArray[np.int64], begun: npt.NDArray[np.int64]
) -> pa.StructArray:
    """Return each row's state before the batch.

    That is an update's own before image; the row itself for a delete and for a row that a dump read; null for an
    insert.
    """
    field = changes.schema.field("_before")
    stored = one_chunk(changes["_before"])
    is_update, is_delete = begun == UPDATE, (begun == DELETE) | (begun == MOVED) | (begun == READ)
    from_struct = pa.array(first, mask=~is_update)
    from_row = pa.array(first, mask=~is_delete)
    children = []
    for child in field.type:
        parts = []
        if is_update.any():
            parts.append(member(stored, child.name).take(from_struct))
        if is_delete.any():
            parts.append(one_chunk(changes[child.name]).take(from_row))
        if not parts:
            children.append(pa.nulls(len(first), child.type))
        else:
            children.append(parts[0] if len(parts) == 1 else pc.coalesce(*parts))
    return pa.StructArray.from_arrays(children, fields=list(field.type), mask=pa.array(~(is_update | is_delete)))


def _identifying(schema: pa.Schema, users: list[str]) -> list[str]:
    """Return the columns that tell rows without a key apart: generated ones follow from others, and the log may lack
    them (MariaDB 11.8 writes images before without them).
    """
    return [name for name in users if not is_generated(schema.field(name))] or users


def _compact_keyless(
    changes: pa.Table, ops: npt.NDArray[np.int64], users: list[str], identity: Identity | None
) -> pa.Table:
    """Merge rows without a key by the identity of the full row, with counts.

    An update takes one copy of the old image and adds one of the new.
    """
    every, sign = _images(changes, ops, users)
    codes, count = dense(group_codes(every, _identifying(every.schema, users), identity))
    net = np.bincount(codes, weights=sign, minlength=count).astype(np.int64)
    last = np.empty(count, np.int64)
    counts = sign == np.where(net > 0, 1, -1)[codes]  # an inserted row comes from an image after: it has all columns
    order = np.lexsort((every["_seq"].to_numpy(), counts))
    last[codes[order]] = order
    picked = np.repeat(last, np.abs(net))
    final = np.repeat(np.where(net > 0, INSERT, DELETE), np.abs(net))
    begun = np.where(final == DELETE, DELETE, INSERT)
    states = np.zeros(every.num_rows, np.int64)
    states[picked] = begun
    return _result(every, users, final, picked, picked, ops=states, reads=np.zeros(every.num_rows, bool))


def _images(changes: pa.Table, ops: npt.NDArray[np.int64], users: list[str]) -> tuple[pa.Table, npt.NDArray[np.int64]]:
    """Return the changes with the images that updates took away behind them, and 1 for an image that came, -1 for one
    that left.
    """
    sign = np.where(np.isin(ops, (DELETE, MOVED)), -1, 1)
    if not (ops == UPDATE).any():
        return changes, sign
    replaced = changes.filter(pa.array(ops == UPDATE))
    old = one_chunk(replaced["_before"])
    for name in users:
        replaced = replaced.set_column(
            replaced.schema.get_field_index(name), replaced.schema.field(name), member(old, name)
        )
    return pa.concat_tables([changes, replaced]).combine_chunks(), np.concatenate([
        sign,
        np.full(replaced.num_rows, -1),
    ])


def _is_deferrable(schema: pa.Schema, key: Sequence[str]) -> bool:
    return any(is_deferrable(schema.field(name)) for name in key)


def _compact_deferrable(
    changes: pa.Table, ops: npt.NDArray[np.int64], users: list[str], key: Sequence[str], identity: Identity | None
) -> pa.Table:
    """Merge whole rows whose deferrable key several images may hold at once, until their transaction ends.

    An image was there before the batch if more of it left than had come, or if a dump read it: then nothing counts that
    came before. An image that came and left within the batch says nothing of the row of its key.
    """
    updated = ops == UPDATE
    plain = updated & (_arrivals_are_inserts(changes, ops, key, identity) == UPDATE)
    stay = ops != MOVED  # the update itself has the image that left
    every, sign = _images(changes.filter(pa.array(stay)), ops[stay], users)
    came = np.concatenate([ops[stay], np.full(every.num_rows - int(stay.sum()), DELETE)])
    in_place = np.concatenate([plain[stay], plain[updated]])
    moment = every["_seq"].to_numpy().astype(np.int64) * 4 + np.where(came == READ, 0, np.where(sign < 0, 1, 2))
    keys, count = dense(group_codes(every, key, identity))
    read_at = np.full(count, -1, np.int64)
    np.maximum.at(read_at, keys[came == READ], moment[came == READ])
    live = np.flatnonzero(moment >= read_at[keys])
    order = live[np.argsort(moment[live], kind="stable")]
    images, kinds = dense(group_codes(every.take(pa.array(order)), [*key, *(n for n in users if n not in key)]))
    keys, sign, came, in_place = keys[order], sign[order], came[order], in_place[order]
    read = came == READ
    sign = np.where(read, 0, sign)

    by_image = np.argsort(images, kind="stable")
    starts = np.flatnonzero(np.diff(images[by_image], prepend=-1))
    sums = np.cumsum(sign[by_image])
    lowest = np.minimum.reduceat(sums, starts) - (sums[starts] - sign[by_image][starts])
    net = np.bincount(images, weights=sign, minlength=kinds).astype(np.int64)
    existed = np.zeros(kinds, bool)
    existed[images[by_image][starts]] = lowest < 0
    existed[images[read]] = True
    stays = existed + net > 0

    rows = np.arange(len(order))
    before, after, last = (np.full(count, -1, np.int64) for _ in range(3))
    leaves, comes = existed[images] & ((sign < 0) | read), stays[images] & ((sign > 0) | read)
    before[keys[leaves][::-1]] = rows[leaves][::-1]
    after[keys[comes]] = rows[comes]
    last[keys] = rows
    before[read[np.maximum(before, 0)] & (before == last)] = -1  # a row that was only read is new to a target
    changed = np.flatnonzero((before >= 0) | (after >= 0))
    before, after = before[changed], after[changed]
    picked = np.where(after >= 0, after, before)
    moved = np.zeros(count, bool)
    moved[keys[~in_place]] = True
    final = np.where(after < 0, DELETE, np.where(moved[changed], INSERT, UPDATE))
    states = np.full(every.num_rows, INSERT, np.int64)
    states[order[before[before >= 0]]] = DELETE
    first = np.where(before >= 0, before, picked)
    sequence = order[picked]
    sorting = _key_order(every, key, sequence)
    return _result(
        every, users, final[sorting], order[first][sorting], sequence[sorting], ops=states,
        reads=np.zeros(every.num_rows, bool),
    )  # fmt: skip
