"""Rows of a changeset as Python values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from sluice.model.decimals import to_python
from sluice.model.fields import true_name
from sluice.model.tables import META_COLUMNS
from sluice.targets.memory.store import Row


@dataclass(frozen=True, slots=True)
class MergedRow:
    """One merged row. ``known``: columns whose value is known, None: all. ``number``: its place in the piece."""

    op: str
    seq: int
    number: int
    values: Row
    before: Row | None
    known: frozenset[str] | None = None


def merged_rows(rows: pa.Table) -> Iterator[MergedRow]:
    """Yield the rows of a piece, in its order."""
    fields = [field for field in rows.schema if field.name not in META_COLUMNS]
    names = [true_name(field) for field in fields]
    columns = [to_python(rows[field.name]) for field in fields]
    befores = rows["_before"].to_pylist()
    children = [true_name(child) for child in rows.schema.field("_before").type]
    stored = [child.name for child in rows.schema.field("_before").type]
    present = rows["_present"].to_pylist() if "_present" in rows.schema.names else [None] * rows.num_rows
    for number, (op, seq) in enumerate(zip(rows["_op"].to_pylist(), rows["_seq"].to_pylist(), strict=True)):
        old = befores[number]
        before = {name: old[key] for name, key in zip(children, stored, strict=True)} if old is not None else None
        bits = present[number]
        known = frozenset(n for i, n in enumerate(names) if bits[i >> 3] >> (i & 7) & 1) if bits is not None else None
        values: dict[str, Any] = {name: column[number] for name, column in zip(names, columns, strict=True)}
        yield MergedRow(op, seq, number, values, before, known)
