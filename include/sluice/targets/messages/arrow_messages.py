"""Rows as Arrow record batches: a message is an IPC stream with some rows of one table, in order.

Columns are those of the segments (:mod:`sluice.model.layouts`): the user's, with their types in ``sluice.type``, and
what is known of each change. A table's rows are all in one partition: an update that changes the key is one row, which
two partitions would tear apart.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from sluice.model.offset import Offset
from sluice.targets.messages.pieces import holding
from sluice.targets.port import ChangePiece

CONTENT_TYPE = "application/vnd.apache.arrow.stream"
_NOT_SENT = ("_bucket",)


def arrow_messages(
    piece: ChangePiece, batch: int, limit: int, at: Offset | None = None
) -> Iterator[tuple[bytes, int, int]]:
    """Yield (message, number of its first row, rows), of at most ``limit`` bytes unless one row is larger.

    ``at``: the batch's end, for merged rows.
    """
    yield from _cut(_described(holding(piece), batch, at), 0, limit)


def _described(piece: ChangePiece, batch: int, at: Offset | None) -> pa.Table:
    rows = piece.rows.drop_columns([name for name in _NOT_SENT if name in piece.rows.schema.names])
    about: dict[str, Any] = {
        "sluice.table": str(piece.table),
        "sluice.key": json.dumps(piece.key),
        "sluice.batch": str(batch),
    }
    if at is not None:
        about["sluice.position"] = at.place
    return rows.replace_schema_metadata(about)


def _cut(rows: pa.Table, first: int, limit: int) -> Iterator[tuple[bytes, int, int]]:
    """Cut rows in equal parts until each fits."""
    value, count = stream(rows), rows.num_rows
    if len(value) <= limit or count == 1:
        yield value, first, count
        return
    step = -(-count // min(count, len(value) // limit + 1))
    for start in range(0, count, step):
        yield from _cut(rows.slice(start, step), first + start, limit)


def stream(rows: pa.Table) -> bytes:
    """Return one IPC stream with one record batch."""
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, rows.schema) as writer:
        writer.write_table(rows.combine_chunks())
    payload: bytes = out.getvalue().to_pybytes()
    return payload
