"""Keys of the store as Arrow columns, and whether a key is in a range."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from sluice.model.decimals import to_python
from sluice.model.fields import true_name
from sluice.model.planned import PlannedTable
from sluice.model.tables import META_COLUMNS
from sluice.targets.memory.store import Key, Row
from sluice.targets.port import KeyRange


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
        known_columns = (
            frozenset(n for i, n in enumerate(names) if bits[i >> 3] >> (i & 7) & 1) if bits is not None else None
        )
        values: dict[str, Any] = {name: column[number] for name, column in zip(names, columns, strict=True)}
        yield MergedRow(op, seq, number, values, before, known_columns)


def key_table(plan: PlannedTable, keys: Sequence[Key]) -> pa.Table:
    """Return keys as columns, named and typed as the plan says; columns without a type by their values."""
    columns = [
        pa.array([key[number] for key in keys], column.type.arrow_type if column.type is not None else None)
        for number, column in enumerate(plan.key_columns)
    ]
    return pa.table(columns, names=list(plan.key))


def keys_of(keys: pa.Table) -> list[Key]:
    """Return the rows of a table of keys."""
    return list(zip(*(column.to_pylist() for column in keys.columns), strict=True))


def is_in(item: KeyRange) -> Callable[[Key], bool]:
    """Return the test whether a key is in the range."""
    if item.listed is not None:
        return set(keys_of(item.listed)).__contains__
    low, high, after, upto = (
        keys_of(bound)[0] if bound is not None else () for bound in (item.lower, item.upper, item.after, item.upto)
    )

    def inside(key: Key) -> bool:
        return (
            (not low or key[: len(low)] >= low)
            and (not high or key[: len(high)] <= high)
            and (not after or key[: len(after)] > after)
            and (not upto or key[: len(upto)] <= upto)
        )

    return inside
