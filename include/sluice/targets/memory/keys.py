"""Keys of the store as Arrow columns, and whether a key is in a range."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from sluice.model.planned import PlannedTable
from sluice.targets.memory.store import Key
from sluice.targets.port import KeyRange


def key_table(plan: PlannedTable, keys: Sequence[Key]) -> pa.Table:
    """Return keys as columns, named and typed as the plan says; columns without a type by their values."""
    columns = [
        pa.array([key[number] for key in keys], made.type.arrow_type if made.type is not None else None)
        for number, made in enumerate(plan.key_columns)
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
