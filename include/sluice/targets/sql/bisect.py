"""Rows that the target refuses: found by bisecting, inside the transaction that loads the rest.

A failed statement undoes only itself; savepoints undo what an attempt wrote before. Once the refused rows are known,
the table is written as if they were not in the batch, so that a row keeps its old state at the target while its new one
waits in the dead-letter store.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.config.masking import without_values
from sluice.errors import LoadError
from sluice.model.fields import is_masked
from sluice.targets.port import Rejection, WriteResult
from sluice.targets.sql.tables import TableChanges

MAX_REFUSED = 1000
"""Refused rows of a table in one unit, at most; with more, the table or the mapping is wrong, and the batch stops."""

_ROUNDS = 5
"""Rounds after which the batch stops: a row may fail only because of others that are left out now."""


@dataclass(frozen=True)
class Bisection:
    """Writes around rejected rows, inside the caller's transaction.

    Attributes:
        write: writes some rows; raises LoadError if the target refuses one.
        cursor: for savepoints.
        data_errors: the dialect's codes that can be the fault of a row. Others (no such table, no privilege, disk full)
            are no row's.
    """

    write: Callable[[TableChanges], WriteResult]
    cursor: Any
    data_errors: Container[int | str]

    def run(self, item: TableChanges) -> tuple[WriteResult, list[Rejection]]:
        """Write all rows of ``item`` that the target takes; the others are returned.

        Raises:
            LoadError: the fault is no row's, or too many are refused.
        """
        refused: dict[int, LoadError] = {}
        for _ in range(_ROUNDS):
            row_numbers = np.setdiff1d(np.arange(item.rows.num_rows), np.fromiter(refused, np.int64))
            try:
                count = self._attempt(item, row_numbers, keep=True)
            except LoadError as error:
                if error.code not in self.data_errors:
                    raise
                errors: dict[int, LoadError] = {}
                self._bisect(item, row_numbers, error, errors, len(refused))
                if not errors:
                    raise  # no row fails alone
                refused |= errors
                continue
            rows = sorted(refused)
            return count, [
                Rejection(item.rows.slice(row, 1), refused[row].message, f"error {refused[row].code}") for row in rows
            ]
        raise next(iter(refused.values()))

    def first(self, item: TableChanges) -> int | None:
        """Return the number of a row that the target refuses alone, None if there is none. Nothing is written."""
        rows = np.arange(item.rows.num_rows)
        while len(rows):
            some = rows[: max(len(rows) // 2, 1)]
            try:
                self._attempt(item, some, keep=False)
                rows = rows[len(some) :]
            except LoadError as error:
                if error.code not in self.data_errors:
                    return None
                if len(some) == 1:
                    return int(some[0])
                rows = some
        return None

    def _bisect(
        self,
        item: TableChanges,
        rows: np.ndarray[tuple[int], np.dtype[np.int64]],
        error: LoadError,
        errors: dict[int, LoadError],
        before: int,
    ) -> None:
        """Find the rows that fail alone among ``rows``, which fail together, and add them to ``errors``."""
        if len(rows) == 1:
            errors[int(rows[0])] = error
            if before + len(errors) > MAX_REFUSED:
                raise LoadError(
                    f"{error.message}; and {MAX_REFUSED} rows of {item.table.table} before it",
                    where=error.where,
                    hint="too many rows were refused: correct the table or the mapping; the batch stays and is tried "
                    "again",
                )
            return
        for half in np.array_split(rows, 2):
            try:
                self._attempt(item, half, keep=False)
            except LoadError as inner:
                if inner.code not in self.data_errors:
                    raise
                self._bisect(item, half, inner, errors, before)

    def _attempt(
        self, item: TableChanges, rows: np.ndarray[tuple[int], np.dtype[np.int64]], *, keep: bool
    ) -> WriteResult:
        """Write ``rows``; undone if it fails, or if it was only a trial."""
        part = (
            item if len(rows) == item.rows.num_rows else replace(item, rows=item.rows.take(pa.array(rows, pa.int64())))
        )
        self.cursor.execute("SAVEPOINT sluice_rows")
        try:
            count = self.write(part)
        except LoadError:
            self.cursor.execute("ROLLBACK TO SAVEPOINT sluice_rows")
            raise
        self.cursor.execute("RELEASE SAVEPOINT sluice_rows" if keep else "ROLLBACK TO SAVEPOINT sluice_rows")
        return count


class Refused(LoadError):
    """The server refused a statement. ``discreet``: the message without values."""

    discreet: str = ""


def hiding_values(error: LoadError, rows: pa.Table) -> LoadError:
    """Return the error of a refused statement without values of masked rows.

    Other errors are Sluice's own, and show no value of such rows.
    """
    if not isinstance(error, Refused) or not any(map(is_masked, rows.schema)):
        return error
    hidden = LoadError(error.discreet, where=error.where, hint=error.hint)
    hidden.code = error.code
    return hidden


def discreet(error: LoadError, rows: pa.Table) -> LoadError:
    """Return the error without values, if a column of the table is masked."""
    if not any(map(is_masked, rows.schema)):
        return error
    hidden = LoadError(without_values(error.message), where=error.where, hint=error.hint)
    hidden.code = error.code
    return hidden
