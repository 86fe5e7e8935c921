"""Rows that the target refuses: found by bisecting, inside the transaction that loads the rest.

A statement that fails undoes itself only; savepoints undo what a trial wrote before. When the refused rows are known, the table is written as if
they were not in the batch, so that a row keeps its old state at the target while its new one waits in the dead-letter store.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.config.masking import without_values
from sluice.errors import LoadError
from sluice.targets.base import LoadCount, Refusal, TableChanges

MAX_REFUSED = 1000
"""Rows of a table in one unit; beyond, it is the table or the mapping that is wrong, and the batch stops."""

_ROUNDS = 5
"""A row may fail only because of others that are left out now: after so many rounds the batch stops."""

DATA_ERRORS = frozenset({
    1032, 1048, 1062, 1153, 1136, 1216, 1217, 1264, 1265, 1292, 1364, 1365, 1366, 1367, 1369, 1406, 1416, 1426, 1441, 1451, 1452, 1525, 1526, 1586,
    1644, 1690, 1748, 1761, 3037, 3140, 3141, 3156, 3157, 3617, 3618, 3751, 3819, 3903, 3991, 4025, 4161,
})  # fmt: skip
"""What can be the fault of a row: values that do not fit, keys, checks, foreign keys, triggers that refuse. Others (no such table, no
privilege, disk full) are nobody's row."""


def write_with_bisection(
    item: TableChanges, write: Callable[[TableChanges], LoadCount], cursor: Any
) -> tuple[LoadCount, list[Refusal]]:
    """Write all rows of ``item`` that the target takes; the others are returned. Inside the caller's transaction.

    Raises:
        LoadError: the fault is no row's, or too many are refused.
    """
    refused: dict[int, LoadError] = {}
    for _ in range(_ROUNDS):
        kept = np.setdiff1d(np.arange(item.rows.num_rows), np.fromiter(refused, np.int64))
        try:
            count = _attempt(item, kept, write, cursor, keep=True)
        except LoadError as error:
            if error.code not in DATA_ERRORS:
                raise
            found: dict[int, LoadError] = {}
            _bisect(item, kept, error, write, cursor, found, len(refused))
            if not found:
                raise  # no row fails alone
            refused |= found
            continue
        rows = sorted(refused)
        return count, [
            Refusal(item.rows.slice(row, 1), refused[row].message, f"error {refused[row].code}") for row in rows
        ]
    raise next(iter(refused.values()))


def _bisect(
    item: TableChanges,
    rows: np.ndarray[tuple[int], np.dtype[np.int64]],
    error: LoadError,
    write: Callable[[TableChanges], LoadCount],
    cursor: Any,
    found: dict[int, LoadError],
    before: int,
) -> None:
    """``rows`` fail together; each that fails alone goes to ``found``."""
    if len(rows) == 1:
        found[int(rows[0])] = error
        if before + len(found) > MAX_REFUSED:
            raise LoadError(
                f"{error.message}; and {MAX_REFUSED} rows of {item.table.table} before it",
                where=error.where,
                hint="so many refused rows are no exception: mend the table or the mapping; the batch stays and is tried again",
            )
        return
    for half in np.array_split(rows, 2):
        try:
            _attempt(item, half, write, cursor, keep=False)
        except LoadError as inner:
            if inner.code not in DATA_ERRORS:
                raise
            _bisect(item, half, inner, write, cursor, found, before)


def _attempt(
    item: TableChanges,
    rows: np.ndarray[tuple[int], np.dtype[np.int64]],
    write: Callable[[TableChanges], LoadCount],
    cursor: Any,
    *,
    keep: bool,
) -> LoadCount:
    """Write ``rows``; undone if it fails, or if it was only a trial."""
    part = item if len(rows) == item.rows.num_rows else replace(item, rows=item.rows.take(pa.array(rows, pa.int64())))
    cursor.execute("SAVEPOINT _sluice_rows")
    try:
        count = write(part)
    except LoadError:
        cursor.execute("ROLLBACK TO SAVEPOINT _sluice_rows")
        raise
    cursor.execute("RELEASE SAVEPOINT _sluice_rows" if keep else "ROLLBACK TO SAVEPOINT _sluice_rows")
    return count


def discreet(error: LoadError, rows: pa.Table) -> LoadError:
    """The same error without values, if a column of the table is masked."""
    if not any(b"sluice.masked" in (field.metadata or {}) for field in rows.schema):
        return error
    hidden = LoadError(without_values(error.message), where=error.where, hint=error.hint)
    hidden.code = error.code
    return hidden
