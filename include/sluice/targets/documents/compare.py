"""Compare what a load would write with the documents that a target holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from sluice.errors import LoadError
from sluice.model.column_types import ColumnKind, ColumnType
from sluice.model.planned import PlannedTable
from sluice.targets.messages.row_texts import alike
from sluice.targets.port import SHOWN_CHARACTERS, RangeDifferences, RowDifference

Document = Mapping[str, Any]


def differences(
    expected: Iterable[Document],
    stored: Iterable[Document | None],
    same: Callable[[str, Any, Any], bool],
    *,
    values: bool,
) -> RangeDifferences:
    """Compare documents that a load would write with those that are there, pair by pair; None: there is none.

    ``same``: column, value, value there -> whether they are equal. ``values``: tell values, too.
    """
    missing, different = [], []
    for number, (own, stored_row) in enumerate(zip(expected, stored, strict=True)):
        if stored_row is None:
            missing.append(number)
            continue
        odd = tuple(name for name, value in own.items() if not same(name, value, stored_row.get(name)))
        if odd:
            texts = tuple((_shown(own[name]), _shown(stored_row.get(name))) for name in odd) if values else ()
            different.append(RowDifference(number, odd, texts))
    return RangeDifferences(tuple(missing), tuple(different))


def same_value(column_type: ColumnType, own: Any, stored: Any) -> bool:
    """Return True if two values of documents are of the same value of a column: texts, numbers, null."""
    if isinstance(own, str) and isinstance(stored, str):
        expected_text, stored_text = (
            text.removesuffix("Z") if column_type.kind is ColumnKind.TIMESTAMP else text for text in (own, stored)
        )
        return alike(column_type, expected_text.encode(), stored_text.encode())
    if isinstance(own, float) or isinstance(stored, float):
        numbers = isinstance(own, int | float) and isinstance(stored, int | float)
        return numbers and repr(float(own)) == repr(float(stored))
    return type(own) is type(stored) and bool(own == stored)


def key_table(
    plan: PlannedTable, rows: Sequence[Document], value: Callable[[ColumnType, Any], Any], where: str
) -> pa.Table:
    """Return the keys of documents as the source's values are stored. Raises LoadError."""
    try:
        arrays = [
            pa.array([value(c.value_type, row[c.name]) for row in rows], c.value_type.arrow_type)
            for c in plan.key_columns
        ]
    except (ValueError, KeyError, TypeError, ArithmeticError, pa.ArrowException) as error:
        raise LoadError(
            f"keys of {plan.target} cannot be read back: {error!r}",
            where=where,
            hint="did another program write them?",
        ) from None
    return pa.table(arrays, names=list(plan.key))


def _shown(value: Any) -> str | None:
    return None if value is None else str(value)[:SHOWN_CHARACTERS]


__all__ = ["Document", "differences", "key_table", "same_value"]
