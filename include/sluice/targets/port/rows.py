"""The rows of a batch: stored files, and the reader that is sent with the units."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from sluice.model.changes import Change
from sluice.model.planned import PlannedTable
from sluice.model.tables import TableId
from sluice.targets.port.reconcile import KeyRange, StoredRange


class RowFile(Protocol):
    """A stored file of merged rows of one table, one row a key; what is known of it without reading it. Picklable."""

    @property
    def path(self) -> str:
        """The path by which the reader finds the file."""

    @property
    def rows(self) -> int:
        """The number of rows."""

    @property
    def inserts(self) -> int:
        """The number of inserted rows."""

    @property
    def updates(self) -> int:
        """The number of updated rows."""

    @property
    def deletes(self) -> int:
        """The number of deleted rows."""

    @property
    def partial(self) -> int:
        """Rows of which the log has only some columns."""

    @property
    def size_bytes(self) -> int:
        """The size of the file."""

    @property
    def arrow_bytes(self) -> int:
        """The bytes of the rows in memory."""

    @property
    def revived(self) -> bool:
        """The source deleted these rows and a rule keeps them: a row that came later may have the same key in another
        spelling.
        """

    @property
    def key_starts(self) -> tuple[int, ...]:
        """First key column's number at the start of each row group, and of the last row; empty unless the rows are in
        its order.
        """

    def groups(self, low: int | None, high: int | None) -> list[int]:
        """Return the row groups that may hold a first key column ``low <= value < high``; None: no bound."""


@dataclass(frozen=True, slots=True)
class TableInput:
    """The rows of one source table for one target table. Lighter tables are written first.

    ``batches``: the batch of each of ``files``, ascending, if several batches are written as one (Feature.BUNDLES);
    else empty. A key may then have a row in several of them, and the newest counts.
    """

    plan: PlannedTable
    files: tuple[RowFile, ...]
    weight: int = 0
    batches: tuple[int, ...] = ()

    @property
    def target(self) -> TableId:
        """The name of the table at the target."""
        return self.plan.target

    @property
    def rows(self) -> int:
        """The number of rows in all files."""
        return sum(file.rows for file in self.files)

    @property
    def partial(self) -> bool:
        """True if some rows lack columns."""
        return any(file.partial for file in self.files)


@dataclass(frozen=True, slots=True)
class RowGroup:
    """CHANGESET_ROWS of one set of columns.

    ``read``: yields the rows piece by piece, anew at each call, if they do not fit into memory; ``rows`` then has only
    their columns.
    """

    rows: pa.Table
    read: Callable[[], Iterator[pa.Table]] | None = None


@dataclass(frozen=True, slots=True)
class Share:
    """Share ``number`` of ``of`` of a batch's changes, by key: all changes of one row are in one share."""

    number: int
    of: int


@dataclass(frozen=True, slots=True)
class ChangePiece:
    """Changes of one target table as columns, in log order.

    Attributes:
        table, key: at the target.
        rows: SEGMENT_ROWS (:mod:`sluice.model.layouts`).
        txn_row: each change's place in its transaction (uint64).
        part: tells rows apart that a rule made from one change (uint32).
        batch: of the changes, if several batches are written as one (Feature.BUNDLES); else 0.
    """

    table: TableId
    key: tuple[str, ...]
    rows: pa.Table
    txn_row: pa.Array
    part: pa.Array
    batch: int = field(default=0, kw_only=True)

    def slice(self, start: int, rows: int) -> ChangePiece:
        """Return some of the rows."""
        sliced, txn_row, part = (values.slice(start, rows) for values in (self.rows, self.txn_row, self.part))
        return ChangePiece(self.table, self.key, sliced, txn_row, part, batch=self.batch)


class RowReader(Protocol):
    """Reads a batch's rows where they are written. Picklable: it is sent with the units."""

    def pieces(self, files: Sequence[RowFile]) -> Iterator[pa.Table]:
        """Yield the rows of ``files`` as CHANGESET_ROWS (:mod:`sluice.model.layouts`), never more at a time than fits
        into memory.

        That is the user's columns (for the column's own name see :func:`sluice.model.fields.true_name`), ``_op`` (i, u,
        d), ``_seq``, ``_commit_ts``, ``_before`` (struct; null: the row is new), and ``_present`` if rows lack columns.
        """

    def groups(
        self,
        files: Sequence[RowFile],
        keys: tuple[int | None, int | None] | None = None,
        *,
        lean: bool = False,
        in_order: bool = False,
        streamed: bool = False,
    ) -> list[RowGroup]:
        """Return the same rows, one group for each set of columns: what a row never had is not written.

        Args:
            keys: only ``low <= first key column < high``.
            lean: without ``_seq``, ``_commit_ts`` and the contents of ``_before``.
            in_order: in log order.
            streamed: piece by piece.
        """

    def changes(self, share: Share | None = None) -> Iterator[Change]:
        """Yield every change in log order, or those of a share, for Input.CHANGES. Raises SegmentError."""

    def change_pieces(self, share: Share | None = None) -> Sequence[ChangePiece]:
        """Return the same changes as columns: each piece in log order (``_seq``, rows that a dump read first, then
        ``_row``), pieces unordered.
        """

    def is_large(self, size_bytes: int) -> bool:
        """Return True if rows of this many bytes are better read piece by piece."""

    def memory_of(self, size_bytes: int, files: int) -> int:
        """Return the memory of a process, in bytes, for rows of this size in this number of files."""

    def key_range(self, stored: StoredRange) -> KeyRange:
        """Read a stored range with its keys. Raises SegmentError."""
