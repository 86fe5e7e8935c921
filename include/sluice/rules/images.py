"""Merged rows as images: a row as it is and the same row as it was are two rows while rules run."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.model.fields import key_columns
from sluice.model.tables import META_COLUMNS, RULE_COLUMNS, member

AFTER, SHADOW, DELETED = 0, 1, 2
"""Values of ``_image``: the row as it is; the row as it was, of a row that still is; the last image of a deleted row.
"""

REVIVED = "$revived"
"""Rows that the source deleted and a rule keeps, while images become rows again.

No column of a user is stored under this name.
"""

CLEARED = "$cleared"
"""Old images of rows that a dump read and for which the rules give nothing: the target deletes their keys.

Only rows that a dump read have this column.
"""

INTERNAL = (*META_COLUMNS, *RULE_COLUMNS, REVIVED, CLEARED)
"""Columns that are not the user's."""


def user_columns(schema: pa.Schema) -> list[str]:
    """Return the stored names of the user's columns."""
    return [name for name in schema.names if name not in INTERNAL]


def unfold(merged: pa.Table) -> pa.Table:
    """Turn MERGED_ROWS into IMAGE_ROWS: rows and their old images, one after the other.

    A deleted row that existed before is seen as it was then.

    ``_source_row`` is the number of the merged row that an image belongs to; whatever rules make of an image keeps it.
    """
    merged = merged.append_column("_source_row", pa.array(np.arange(merged.num_rows, dtype=np.int64))).combine_chunks()
    before = merged["_before"].combine_chunks()
    deleted = pc.equal(merged["_op"], "d")
    existed = pc.is_valid(before)
    live = merged.filter(pc.invert(deleted))
    parts = [
        _with_image(live, AFTER),
        _with_image(_as_it_was(live.filter(pc.is_valid(live["_before"]))), SHADOW),
        _with_image(_as_it_was(merged.filter(pc.and_(deleted, existed))), DELETED),
        _with_image(merged.filter(pc.and_(deleted, pc.invert(existed))), DELETED),
    ]
    return pa.concat_tables([part for part in parts if part.num_rows] or parts[:1]).combine_chunks()


def fold(rows: pa.Table, key: list[str], *, each: bool = False) -> pa.Table:
    """Turn IMAGE_ROWS back into MERGED_ROWS after the rules, one row per key, with new ``_op`` and ``_before``.

    ``each``: every merged row is a change of its own, numbered by ``_seq``, and stays one: what rules make of its two
    images belongs together.
    """
    image = rows["_image"].to_numpy()
    rows = rows.drop_columns(["_image", "_before", "_source_row"]).combine_chunks()
    users = user_columns(rows.schema)
    after = rows.filter(pa.array(image == AFTER))
    was = rows.filter(pa.array(image != AFTER))
    struct = pa.struct([rows.schema.field(name) for name in users])
    if not key and not each:
        parts = [
            _finish(after, "i", pa.nulls(after.num_rows, struct)),
            _finish(rows.filter(pa.array(image == DELETED)), "d", None, users, struct),
        ]
        return pa.concat_tables(parts)
    if each:
        now, then = _change_codes(after), _change_codes(was)
    else:
        codes = row_codes(pa.concat_tables([after, was]), key)
        now, then = codes[: after.num_rows], codes[after.num_rows :]
    last = _last_of_each(now)
    after, now = after.take(pa.array(last)), now[last]
    last = _last_of_each(then)
    was, then = was.take(pa.array(last)), then[last]
    order = np.argsort(then, kind="stable")
    slot = np.searchsorted(then[order], now)
    slot = np.where(slot < len(then), slot, 0)
    has_before = then[order][slot] == now if len(then) else np.zeros(len(now), bool)
    images = was.select(users).to_struct_array()
    images = images.combine_chunks() if isinstance(images, pa.ChunkedArray) else images
    images = pa.StructArray.from_arrays([images.field(i) for i in range(len(users))], fields=list(struct))
    before = images.take(pa.array(order[slot] if len(then) else np.zeros(len(now), np.int64), mask=~has_before))
    stays = pc.if_else(pa.array(has_before), after["_op"].combine_chunks(), pa.array(["i"] * len(now), pa.string()))
    is_removed = was.filter(pa.array(~np.isin(then, now)))
    return pa.concat_tables([_finish(after, stays, before), _finish(is_removed, "d", None, users, struct)])


def _change_codes(rows: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return a number for each row, made of its change's number and of which row it is among those from that change."""
    seq = rows["_seq"].to_numpy().astype(np.int64)
    order = np.argsort(seq, kind="stable")
    starts = np.flatnonzero(np.r_[True, seq[order][1:] != seq[order][:-1]]) if len(seq) else np.zeros(0, np.int64)
    sizes = np.diff(np.r_[starts, len(seq)])
    nth = np.empty(len(seq), np.int64)
    nth[order] = np.arange(len(seq)) - np.repeat(starts, sizes)
    codes: np.ndarray[tuple[int], np.dtype[np.int64]] = (seq << 20) | nth
    return codes


def with_cleared(rows: pa.Table, *, cleared: bool) -> pa.Table:
    """Add :data:`CLEARED` to IMAGE_ROWS; ``cleared``: of rows that earlier rules left out."""
    marked = rows.append_column(CLEARED, pa.array(np.full(rows.num_rows, cleared)))
    return cleared_images(marked, marked.schema) if cleared else marked


def cleared_images(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return IMAGE_ROWS that a rule left out as old images with the columns of ``schema``; what they lack is null."""
    count = rows.num_rows
    fixed = {"_image": np.full(count, SHADOW, np.int8), "_op": ["u"] * count, CLEARED: np.full(count, True)}
    columns = []
    for field in schema:
        if field.name in fixed:
            columns.append(pa.array(fixed[field.name], field.type))
        elif field.name in rows.schema.names and rows.schema.field(field.name).type == field.type:
            columns.append(rows[field.name])
        else:
            columns.append(pa.nulls(count, field.type))
    return pa.table(columns, schema=schema)


def same_keys(before: pa.Table, after: pa.Table) -> bool:
    """Return True if a rule left every row of ``after`` the key of the row in ``before`` that it was made from."""
    key = key_columns(before.schema)
    if not key or key_columns(after.schema) != key:
        return False
    if any(before.schema.field(name).type != after.schema.field(name).type for name in key):
        return False
    numbers, sought = before["_source_row"].to_numpy(), after["_source_row"].to_numpy()
    order = np.argsort(numbers, kind="stable")
    at = order[np.minimum(np.searchsorted(numbers[order], sought), len(numbers) - 1)]
    keys_before = before.select(key).take(pa.array(at, pa.int64()))
    return np.array_equal(numbers[at], sought) and all(keys_before[name].equals(after[name]) for name in key)


def visible(rows: pa.Table) -> int:
    """Return how many rows a person would count: without the old images of rows that still exist."""
    shadows: int = pc.sum(pc.equal(rows["_image"], SHADOW)).as_py() or 0
    return int(rows.num_rows) - shadows


def differing(before: pa.Table, after: pa.Table) -> int:
    """Count the visible rows of ``after`` whose values or columns differ from their image in ``before``."""
    names = user_columns(after.schema)
    if not after.num_rows:
        return 0
    if set(names) != set(user_columns(before.schema)):
        return visible(after)
    of, came = _image_numbers(before), _image_numbers(after)
    places = None
    if not np.array_equal(of, came):
        order = np.argsort(of, kind="stable")
        places = pa.array(order[np.minimum(np.searchsorted(of[order], came), len(of) - 1)])
    differs = np.zeros(after.num_rows, bool)
    for name in names:
        was, now = before[name], after[name]
        if places is None and was is now:
            continue
        was = was if places is None else was.take(places)
        if was.type != now.type:
            return visible(after)
        if not now.equals(was):
            differs |= _differs(now, was)
    return int(np.count_nonzero(differs & (after["_image"].to_numpy() != SHADOW)))


def _image_numbers(rows: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return a number for each image; whatever rules make of an image keeps it."""
    numbers: np.ndarray[tuple[int], np.dtype[np.int64]] = rows["_source_row"].to_numpy() * 3 + rows["_image"].to_numpy()
    return numbers


def _differs(now: pa.ChunkedArray, was: pa.ChunkedArray) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return a mask of the rows in which two columns of one type differ. NULL is a value."""
    nulls = pc.xor(pc.is_null(now), pc.is_null(was))
    mask = pc.or_(pc.fill_null(pc.not_equal(now, was), False), nulls)
    return np.asarray(mask.to_numpy(), dtype=np.bool_)


def changed(rows: pa.Table, name: str) -> pa.Array:
    """Return a mask of the rows whose column differs between the image before and the one after.

    ``_before`` of a shadow holds the row as it is now.
    """
    now, then = rows[name], member(rows["_before"].combine_chunks(), name)
    differs = pc.fill_null(pc.not_equal(now, then), False)
    return pc.or_(differs, pc.xor(pc.is_null(now), pc.is_null(then)))


def _with_image(rows: pa.Table, image: int) -> pa.Table:
    return rows.append_column("_image", pa.array(np.full(rows.num_rows, image, np.int8)))


def _as_it_was(rows: pa.Table) -> pa.Table:
    """Exchange the user's columns and ``_before``."""
    before = rows["_before"].combine_chunks()
    struct = rows.schema.field("_before").type
    children = {field.name: member(before, field.name) for field in struct}
    columns = []
    for name in rows.schema.names:
        if name == "_before":
            current = [rows[field.name].combine_chunks() for field in struct]
            columns.append(pa.StructArray.from_arrays(current, fields=list(struct)))
        else:
            columns.append(children.get(name, rows[name]))
    return pa.table(columns, schema=rows.schema)


def _finish(
    rows: pa.Table,
    op: str | pa.Array,
    before: pa.Array | None,
    users: list[str] | None = None,
    struct: pa.DataType | None = None,
) -> pa.Table:
    ops = pa.array([op] * rows.num_rows, pa.string()) if isinstance(op, str) else op
    if before is None:
        children = [rows[name].combine_chunks() for name in users or ()]
        before = pa.StructArray.from_arrays(children, fields=list(struct or ()))
    rows = rows.set_column(rows.schema.get_field_index("_op"), rows.schema.field("_op"), ops)
    return rows.append_column(pa.field("_before", before.type), before)


def row_codes(rows: pa.Table, key: list[str]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return equal numbers for equal keys, counted from 0 without gaps.

    A copy of its own: pure rooms do not import each other.
    """
    codes = np.zeros(rows.num_rows, np.int64)
    for name in key:
        encoded = pc.dictionary_encode(rows[name].combine_chunks(), null_encoding="encode")
        codes = codes * max(len(encoded.dictionary), 1) + encoded.indices.to_numpy(zero_copy_only=False)
        codes = pc.dictionary_encode(pa.array(codes)).indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return codes


def _last_of_each(codes: np.ndarray[tuple[int], np.dtype[np.int64]]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the row numbers of the last row of each code, ascending."""
    _, reverse = np.unique(codes[::-1], return_index=True)
    return np.sort(len(codes) - 1 - reverse)
