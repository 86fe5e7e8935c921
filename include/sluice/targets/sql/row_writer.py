"""Write a unit's rows inside its transaction, whatever the dialect: :class:`SqlRowWriter`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import structlog

from sluice.errors import LoadError
from sluice.model.offset import Offset
from sluice.targets.port import Fence, KeyRange, RejectedRows, Rejection, WriteResult
from sluice.targets.sql.ack_rows import AckRows
from sluice.targets.sql.bisect import Bisection, discreet
from sluice.targets.sql.rows import may_lack
from sluice.targets.sql.tables import TableChanges, TargetTable

_log = structlog.get_logger()


@dataclass(frozen=True)
class SqlRowWriter(ABC):
    """Writes rows of a batch.

    Rows are CHANGESET_ROWS (:mod:`sluice.model.layouts`); what a table has is in :class:`TargetTable`.

    Attributes:
        name: of the target.
        acks: the table of acknowledgements, which the transaction checks, too.
        cursor: of the session, in a transaction.
        data_errors: the dialect's codes that can be the fault of a row.
    """

    name: str
    acks: AckRows
    fence: Fence
    cursor: Any
    data_errors: Container[int | str]

    @abstractmethod
    def errors(self, doing: str, where: str) -> AbstractContextManager[None]:
        """Turn the driver's exceptions into Sluice's inside the context."""

    @abstractmethod
    def lacks(self, table: TargetTable, rows: pa.Table) -> bool:
        """Return True if the log lacks a column of one of the rows."""

    @abstractmethod
    def during(self, pieces: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """Yield the same pieces; the session is kept alive while they are read."""

    @abstractmethod
    def clear(self, table: TargetTable, stretch: KeyRange) -> WriteResult:
        """Delete what the stretch holds beyond the kept keys."""

    @abstractmethod
    def verify(self, item: TableChanges) -> int:
        """Check that nothing ``item`` wrote leaves a row without its parent. Returns the number of queries.

        Raises LoadError.
        """

    @abstractmethod
    def remove(self, item: TableChanges, rows: pa.Table) -> WriteResult:
        """Delete rows that are gone, and those whose unique values change."""

    @abstractmethod
    def put(self, item: TableChanges, rows: pa.Table) -> WriteResult:
        """Write the others."""

    @abstractmethod
    def write_counted(self, table: TargetTable, rows: pa.Table) -> WriteResult:
        """Write rows of a table without a key: of equal rows as many are deleted and inserted as ``rows`` has."""

    @abstractmethod
    def write_partial(self, item: TableChanges) -> WriteResult:
        """Write rows of which the log lacks some columns, in a transaction that notes the batch."""

    def marked(self, loaded: int) -> AbstractContextManager[None]:
        """Mark what is written inside the context as loaded by Sluice, if the target does that.

        ``loaded``: the batch held after the transaction.
        """
        return nullcontext()

    def acknowledged(self) -> None:  # noqa: B027 - most dialects keep nothing besides
        """Write what belongs to the checkpoint, in the transaction that commits it, after the rows."""

    def refuse(self, table: TargetTable, rows: pa.Table) -> None:  # noqa: B027 - most dialects refuse nothing
        """Raise MappingError for rows that the target would compare as equal to others."""

    def naming(self, item: TableChanges, error: LoadError) -> LoadError:
        """Return the error that stops the load, with the key of the row, if it is a row's fault and lacks it."""
        return error

    def discreet(self, error: LoadError, rows: pa.Table) -> LoadError:
        """Return the error without values, if a column of the rows is masked."""
        return discreet(error, rows)

    def write(
        self,
        group: Sequence[TableChanges],
        *,
        acknowledge: Offset | None = None,
        rejected: RejectedRows | None = None,
        ends: str = "",
        before: WriteResult | None = None,
    ) -> WriteResult:
        """Write the rows of some tables.

        ``acknowledge``: and the batch's checkpoint; ``rejected``: takes the rows that the target refuses.

        ``ends``: the unit that is written with these rows, which is noted with its counts; ``before``: what it wrote in
        earlier transactions.

        Raises LoadError, Fenced.
        """
        if self.acks.guard(self.cursor, self.fence, exclusive=acknowledge is not None):
            return WriteResult()  # a repeat of the unit, which Spark may cause
        with self.marked(self.fence.batch if acknowledge is not None else self.fence.held):
            total = self._write_all(group, rejected)
        if ends:
            result = total + (before or WriteResult())
            counts = {"upserted": result.upserted, "deleted": result.deleted, "rejected": result.rejected}
            self.acks.note_unit(self.cursor, self.fence, ends, counts)
        if acknowledge is not None:
            self.acks.acknowledge(self.cursor, self.fence.epoch, self.fence.batch, acknowledge)
            self.acknowledged()
        return total

    def _write_all(self, group: Sequence[TableChanges], rejected: RejectedRows | None) -> WriteResult:
        total = WriteResult()
        for item in group:
            total += self._clear(item)
            if not item.rows.num_columns:
                continue
            if item.verify:
                total += self._verify(item)
                continue
            if rejected is None:
                try:
                    total += self._write_table(item)
                except LoadError as error:
                    raise self.naming(item, error) from error.__cause__
                continue
            count, refused = self._write_around(item)
            rejected(item.part, item.table.table, refused)
            total += count + WriteResult(rejected=len(refused))
        return total

    def _write_around(self, item: TableChanges) -> tuple[WriteResult, list[Rejection]]:
        """Write all rows except those that the target refuses: piece by piece if the pieces are independent, else with
        all rows in memory.

        A refused row of a table with another unique key must not have lost its old state with an earlier piece.
        """
        around = Bisection(self._write_table, self.cursor, self.data_errors)
        if item.read is None or not item.table.key or item.table.unique_keys or may_lack(item.rows):
            return around.run(item.whole())
        total, refused = WriteResult(), list[Rejection]()
        halves = [replace(item, upserts=False)] * item.deletes + [replace(item, deletes=False)] * item.upserts
        for piece in (piece for half in halves for piece in half.each()):
            count, more = around.run(piece)
            total += count
            refused += more
        return total, refused

    def _clear(self, item: TableChanges) -> WriteResult:
        """Delete what the source does not have, before rows are written.

        A table that remembers the batch (without a key, or with partial rows) is skipped if it holds the batch.
        """
        if not item.replaces:
            return WriteResult()
        scope = item.scope or str(item.table.table)
        if (not item.table.key or self._is_partial(item)) and self.acks.table_done(
            self.cursor, scope, self.fence.batch
        ):
            return WriteResult()
        count = WriteResult()
        with self.errors(f"replacing rows of {item.table.table}", f"{self.name}: {item.table.table}"):
            for stretch in item.replaces:
                count += self.clear(item.table, stretch)
        if count.deleted:
            _log.info("target_rows_replaced", target=self.name, table=str(item.table.table), deleted=count.deleted)
        return count

    def _is_partial(self, item: TableChanges) -> bool:
        """Return True if a row lacks a column; for rows that are read piece by piece, whether one may."""
        if item.read is not None:
            return may_lack(item.rows)
        return bool(item.rows.num_columns) and self.lacks(item.table, item.rows)

    def _write_table(self, item: TableChanges) -> WriteResult:
        self.refuse(item.table, item.rows)
        try:
            with self.errors(f"loading {item.table.table}", f"{self.name}: {item.table.table}"):
                if not item.table.key:
                    return self._write_keyless(item)
                if self._is_partial(item):
                    return self._write_partial(item)
                return self.write_keyed(item)
        except LoadError as error:
            shown_error = self.discreet(error, item.rows)
            if shown_error is error:
                raise
            raise shown_error from None

    def write_keyed(self, item: TableChanges) -> WriteResult:
        """Write all pieces: all deletes before all upserts, as unique values move among rows."""
        halves = [replace(item, upserts=False)] * item.deletes + [replace(item, deletes=False)] * item.upserts
        total = WriteResult()
        for half in halves:
            for rows in self.during(half.pieces()):
                total += self.remove(half, rows) if half.deletes else self.put(half, rows)
        return total

    def _verify(self, item: TableChanges) -> WriteResult:
        doing = f"looking whether foreign keys of {item.table.table} hold"
        with self.errors(doing, f"{self.name}: {item.table.table}"):
            return WriteResult(statements=sum(self.verify(piece) for piece in item.each()))

    def _write_keyless(self, item: TableChanges) -> WriteResult:
        """Write rows of a table without a key.

        A repeat would double rows, so the table remembers the batch in the same transaction.
        """
        scope = item.scope or str(item.table.table)
        if self.acks.table_done(self.cursor, scope, self.fence.batch):
            return WriteResult()
        total = WriteResult()
        # Equal rows are interchangeable, so the order of the pieces does not matter.
        for rows in self.during(item.pieces()):
            total += self.write_counted(item.table, rows)
        self.acks.table_holds(self.cursor, scope, self.fence)
        return total

    def _write_partial(self, item: TableChanges) -> WriteResult:
        scope = item.scope or str(item.table.table)
        if self.acks.table_done(self.cursor, scope, self.fence.batch):
            return WriteResult()
        total = self.write_partial(item)
        self.acks.table_holds(self.cursor, scope, self.fence)
        return total
