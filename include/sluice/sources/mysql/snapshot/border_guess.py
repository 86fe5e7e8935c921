"""Borders of chunks that are guessed from the rows of the last one, where the server would count every row of the next.

A border is only a cut: any number is right, and one that fits badly makes a chunk that is larger or smaller than asked
for. The select of a border reads the keys of all rows up to it, which takes the server nearly half as long as to send
the rows themselves.
"""

from __future__ import annotations

from typing import Any

from sluice.model.column_types import ColumnKind
from sluice.model.dumps import TableRequest
from sluice.model.tables import quoted, quoted_table
from sluice.mysql.key_sql import after, both, upto
from sluice.sources.mysql.server.connection import rows_of
from sluice.sources.port import ChunkKey

FEWEST_ROWS = 10_000
"""Chunks of fewer rows are cut exactly, which takes no time."""
LARGEST_ERROR = 3
"""A guess counts if the server's own estimate is at most this many times the rows asked for, and at least this part."""

_WHOLE = {ColumnKind.TINYINT, ColumnKind.SMALLINT, ColumnKind.MEDIUMINT, ColumnKind.INT, ColumnKind.BIGINT}


class BorderGuesses:
    """The borders that one thread guesses.

    Args:
        connection: for questions; not the one that reads rows.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._paces: dict[tuple[str, str], tuple[int, int]] = {}

    def learn(
        self, request: TableRequest, key: ChunkKey, low: tuple[str, ...], high: tuple[str, ...], rows: int
    ) -> None:
        """Note that ``rows`` rows of the table lie between two keys."""
        if rows >= FEWEST_ROWS // LARGEST_ERROR and _is_whole(key) and len(low) == len(high) == 1:
            self._paces[str(request.table), key.index] = int(high[0]) - int(low[0]), rows

    def border(
        self, request: TableRequest, key: ChunkKey, low: tuple[str, ...], rows: int, *conditions: str, mariadb: bool
    ) -> tuple[tuple[str, ...], bool] | None:
        """Return the border after ``low`` and True if nothing lies behind it; None if it has to be asked for.

        ``conditions``: those of the request's own key range.
        """
        pace = self._paces.get((str(request.table), key.index))
        if rows < FEWEST_ROWS or pace is None or len(low) != 1 or not _is_whole(key):
            return None
        width, counted = pace
        guess = (str(int(low[0]) + max(width * rows // counted, 1)),)
        table, behind = quoted_table(request.table), both(*conditions, after(key.names, guess))
        last = not rows_of(self._connection, f"SELECT 1 FROM {table} WHERE {behind} LIMIT 1")  # noqa: S608 - quoted
        within = both(*conditions, after(key.names, low), "" if last else upto(key.names, guess))
        explain = "EXPLAIN" if mariadb else "EXPLAIN FORMAT=TRADITIONAL"
        index = f"USE INDEX ({quoted(key.index)})"  # FORCE INDEX would keep the server from looking into it
        plan_rows = rows_of(
            self._connection,
            f"{explain} SELECT {quoted(key.names[0])} FROM {table} {index} WHERE {within}",  # noqa: S608 - quoted
        )
        estimate = int(plan_rows[0][8 if mariadb else 9] or 0)
        if estimate > LARGEST_ERROR * rows or (not last and estimate * LARGEST_ERROR < rows):
            return None
        return ((), True) if last else (guess, False)


def _is_whole(key: ChunkKey) -> bool:
    return len(key.columns) == 1 and key.columns[0].kind in _WHOLE


__all__ = ["BorderGuesses"]
