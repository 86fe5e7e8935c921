"""The effect of the log's changes on the digest of their table, whatever server computes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.model.batches import Op
from sluice.model.digests import RangeDigest
from sluice.model.tables import Column, TableSchema, member, stored_name

_WITH_ROWS = [Op.INSERT.value, Op.UPDATE.value, Op.DELETE.value]
"""Changes whose row counts: the new one, or, of a delete, the one that goes. A moved key stands as an update, too."""

Hashes = Callable[[Sequence[Any]], np.ndarray[Any, Any]]
"""Computes the hash of each row of the arrays of hashed columns."""


def hashed_columns(schema: TableSchema) -> list[Column]:
    """Return the columns that enter a row's hash: all but those that the server computes."""
    return [column for column in schema.columns if not column.generated]


def not_digested(schema: TableSchema, not_covered: Callable[[Column], str]) -> str:
    """Return why the digest of a table cannot be kept from the log, "" if it can."""
    if not schema.primary_key:
        return "it has no primary key, so that equal rows would cancel each other out"
    return next(filter(None, map(not_covered, hashed_columns(schema))), "")


def log_digest(schema: TableSchema, rows: pa.Table, hashes: Hashes) -> RangeDigest | str:
    """See :meth:`sluice.sources.port.DigestsLog.log_digest`; the columns are covered."""
    changes = rows.filter(pc.is_in(rows["_op"], pa.array(_WITH_ROWS)))
    if "_present" in changes.schema.names and changes["_present"].null_count < changes.num_rows:
        return "the log has only some columns of its changes (binlog_row_image, REPLICA IDENTITY)"
    names = [stored_name(column.name) for column in hashed_columns(schema)]
    digest = RangeDigest.of(hashes([changes[name] for name in names]))
    deletes = int(np.count_nonzero(pc.equal(changes["_op"], Op.DELETE.value).to_numpy()))
    updates = changes.filter(pc.equal(changes["_op"], Op.UPDATE.value))
    before = updates["_before"].combine_chunks()
    remaining_digest = RangeDigest.of(hashes([member(before, name) for name in names]))
    return RangeDigest(digest.rows - remaining_digest.rows - 2 * deletes, digest.checksum ^ remaining_digest.checksum)


__all__ = ["hashed_columns", "log_digest", "not_digested"]
