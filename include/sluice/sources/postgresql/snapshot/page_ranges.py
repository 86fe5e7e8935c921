"""A table without a key, read in ranges of its pages by several connections that see one exported snapshot.

A row stays where it is on its page for as long as some snapshot sees it, so that the ranges have each row of the
snapshot once, whatever is written meanwhile. An update makes a new row on another page, which the snapshot does not
see.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

import pyarrow as pa

from sluice.model.tables import Column
from sluice.postgresql.connection import Connection
from sluice.sources.postgresql.catalog.table import CatalogTable
from sluice.sources.postgresql.server.connection import rows_of
from sluice.sources.postgresql.snapshot.chunk_queries import ALIAS, selection_sql
from sluice.sources.postgresql.snapshot.copy_rows import copy_rows

PAGES = 4_096
"""Pages of a range: 32 MiB of rows, or their texts elsewhere."""
_LOOK_S = 0.1
_PAGES = (
    "WITH parts AS (SELECT relid::oid AS id FROM pg_partition_tree(%s::oid) WHERE isleaf UNION SELECT %s::oid "
    "WHERE NOT EXISTS (SELECT FROM pg_partition_tree(%s::oid))) SELECT "
    "coalesce(max(pg_relation_size(c.oid)) / current_setting('block_size')::int, 0)::bigint, "
    "coalesce(bool_and(c.relkind = 'r' AND a.amname = 'heap'), false) "
    "FROM parts JOIN pg_class c ON c.oid = parts.id LEFT JOIN pg_am a ON a.oid = c.relam"
)

Opened = Callable[[], AbstractContextManager[Connection]]


def page_ranges(connection: Connection, live: CatalogTable) -> list[str]:
    """Return conditions that cut a table as the connection's snapshot sees it; a single empty one if it is small, or is
    no heap. Of a partitioned table, each cuts every partition.
    """
    [(pages, is_heap)] = rows_of(connection, _PAGES, (live.oid,) * 3)
    if not is_heap or pages <= PAGES:
        return [""]
    starts = range(0, int(pages), PAGES)
    upper = [f" AND {ALIAS}.ctid < '({at},0)'::tid" for at in starts[1:]]
    return [f"{ALIAS}.ctid >= '({at},0)'::tid{end}" for at, end in zip(starts, [*upper, ""], strict=True)]


def read_ranges(
    live: CatalogTable,
    columns: Sequence[Column],
    conditions: Sequence[str],
    first: Connection,
    opened: Opened,
    most: int,
) -> Iterator[pa.Table]:
    """Yield the rows of all ranges as they arrive, read by ``most`` connections at the same time.

    ``first``: the connection whose transaction exports its snapshot, and reads, too; ``opened``: opens one more. Memory
    holds two pieces for each connection. Raises what the first connection that fails raises.
    """
    statements = [selection_sql(live, tuple(columns), condition) for condition in conditions]
    count = min(most, len(statements))
    if count == 1:
        for sql in statements:
            yield from copy_rows(first, sql, columns)
        return
    [(snapshot,)] = rows_of(first, "SELECT pg_export_snapshot()")
    work = _Ranges(statements, columns, count)

    def beside() -> None:
        with opened() as connection:
            rows_of(connection, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            rows_of(connection, f"SET TRANSACTION SNAPSHOT '{snapshot}'")
            work.read(connection)

    readers = [lambda: work.read(first), *[beside] * (count - 1)]
    yield from work.pieces(readers)


class _Ranges:
    """Statements that several threads take one by one, and the pieces of rows that they have read."""

    def __init__(self, statements: Sequence[str], columns: Sequence[Column], readers: int) -> None:
        self._left = queue.SimpleQueue[str]()
        for sql in statements:
            self._left.put(sql)
        self._columns = columns
        self._read: queue.Queue[pa.Table | BaseException | None] = queue.Queue(readers)
        self._stop = threading.Event()

    def read(self, connection: Connection) -> None:
        """Read ranges until none is left, or another thread has failed."""
        while not self._stop.is_set():
            try:
                sql = self._left.get_nowait()
            except queue.Empty:
                return
            for piece in copy_rows(connection, sql, self._columns):
                if not self._hand_over(piece):
                    return

    def pieces(self, readers: Sequence[Callable[[], None]]) -> Iterator[pa.Table]:
        """Run each of ``readers`` in a thread and yield what they read. All have ended afterwards."""
        threads = [threading.Thread(target=self._run, args=(reader,), name="pages", daemon=True) for reader in readers]
        for thread in threads:
            thread.start()
        running = len(threads)
        try:
            while running:
                piece = self._read.get()
                if isinstance(piece, BaseException):
                    raise piece
                if piece is None:
                    running -= 1
                else:
                    yield piece
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()

    def _run(self, reader: Callable[[], None]) -> None:
        try:
            reader()
        except BaseException as error:  # raised where the rows are taken
            self._hand_over(error)
        else:
            self._hand_over(None)

    def _hand_over(self, piece: pa.Table | BaseException | None) -> bool:
        """Wait until there is room. Return False if nobody takes it any more."""
        while not self._stop.is_set():
            try:
                self._read.put(piece, timeout=_LOOK_S)
            except queue.Full:
                continue
            return True
        return False


__all__ = ["PAGES", "page_ranges", "read_ranges"]
