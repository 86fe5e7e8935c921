"""Rows as columns (:mod:`sluice.model.layouts`) as changes with Python values: what formats make documents of, one by
one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from sluice.model.batches import Op
from sluice.model.changes import Change
from sluice.model.fields import true_name
from sluice.model.offset import Offset
from sluice.model.tables import META_COLUMNS, TableId
from sluice.model.temporal import to_python


def changes_of(
    rows: pa.Table, table: TableId, key: tuple[str, ...], *, txn_row: pa.Array | None = None, at: Offset | None = None
) -> Iterator[Change]:
    """Yield the rows (SEGMENT_ROWS) as changes, in their order.

    ``txn_row``: each change's place in its transaction. ``at``: the batch's end, for merged rows (CHANGESET_ROWS),
    which have no position in the log.
    """
    fields = tuple(field for field in rows.schema if field.name not in META_COLUMNS)
    names = [true_name(field) for field in fields]
    values = list(zip(*(_values(rows[field.name]) for field in fields), strict=True))
    before = rows["_before"].combine_chunks()
    existed = before.is_valid().to_pylist()
    olds = list(zip(*(_values(child) for child in before.flatten()), strict=True))
    count = rows.num_rows

    def meta(name: str, otherwise: Any) -> list[Any]:
        return rows[name].to_pylist() if name in rows.schema.names else [otherwise] * count

    file, offset = at.row_place if at is not None else ("", 0)
    ops, seqs, presences = meta("_op", ""), meta("_seq", 0), meta("_present", None)
    files, offsets, numbers = meta("_file", file), meta("_offset", offset), meta("_row", 0)
    gtids, txns, origins = meta("_gtid", None), meta("_txn", 0), meta("_origin", 0)
    commits = rows["_commit_ts"].cast(pa.int64()).to_pylist()
    places = txn_row.to_pylist() if txn_row is not None else [0] * count
    half = (len(names) + 7) >> 3
    for i in range(count):
        row = dict(zip(names, values[i], strict=True))
        old = dict(zip(names, olds[i], strict=True)) if existed[i] else None
        bits = presences[i]
        if bits is not None:  # the log lacks some columns (binlog_row_image)
            row = _only(row, bits[:half])
            old = _only(old, bits[half:]) if old is not None else None
        is_delete = ops[i] == Op.DELETE
        yield Change(
            table, ops[i], seqs[i], files[i], offsets[i], numbers[i], commits[i], gtids[i], txns[i], origins[i],
            (old if at is not None and old is not None else row) if is_delete else old,
            None if is_delete else row, fields, key, txn_row=places[i],
        )  # fmt: skip


def _only(row: dict[str, Any], bits: bytes) -> dict[str, Any]:
    """Return the columns whose bit is set."""
    return {name: value for i, (name, value) in enumerate(row.items()) if bits[i >> 3] >> (i & 7) & 1}


def _values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    kind = column.type
    if pa.types.is_date32(kind) or pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        combine_chunks = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        if pa.types.is_timestamp(kind) and kind.tz is not None:
            combine_chunks = combine_chunks.cast(pa.timestamp("us"))
        return to_python(combine_chunks)
    return column.to_pylist()  # type: ignore[no-any-return]
