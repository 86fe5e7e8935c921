"""How a unit's rows are written over one session, inside its transaction."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import structlog

from sluice.config.connections import Endpoint
from sluice.errors import LoadError
from sluice.model.positions import Position
from sluice.targets.base import Fence, RejectedRows, Rejection, WriteResult
from sluice.targets.mysql import foreign_keys as families
from sluice.targets.mysql import load_data, partial_updates, range_delete, statements
from sluice.targets.mysql.ack_table import AckTable
from sluice.targets.mysql.connection import DATA_ERRORS, errors
from sluice.targets.mysql.session import Session
from sluice.targets.mysql.uniqueness import refuse_spaces
from sluice.targets.sql.bisect import Bisection, discreet
from sluice.targets.sql.tables import TableChanges, TargetTable

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class RowWriter:
    """Writes rows of a batch. Rows are CHANGESET_ROWS (:mod:`sluice.model.layouts`); what a table has is in :class:`TargetTable`.

    Attributes:
        name: of the target. session: in a transaction. acks: the table of acknowledgements, which the transaction checks, too.
    """

    name: str
    endpoint: Endpoint
    acks: AckTable
    session: Session
    fence: Fence

    def write(
        self,
        group: Sequence[TableChanges],
        *,
        acknowledge: Position | None = None,
        rejected: RejectedRows | None = None,
    ) -> WriteResult:
        """Write the rows of some tables. ``acknowledge``: and the batch's checkpoint; ``rejected``: takes the rows that the target refuses.

        Raises LoadError, Fenced.
        """
        self.acks.guard(self.session.cursor, self.fence, exclusive=acknowledge is not None)
        total = WriteResult()
        for item in group:
            total += self._clear(item)
            if not item.rows.num_columns:
                continue
            if item.verify:
                total += self._verify(item)
                continue
            if rejected is None:
                total += self._write_table(item)
                continue
            count, refused = self._write_around(item)
            rejected(item.part, item.table.table, refused)
            total += count + WriteResult(rejected=len(refused))
        if acknowledge is not None:
            self.acks.acknowledge(self.session.cursor, self.fence.epoch, self.fence.batch, acknowledge)
        return total

    def _write_around(self, item: TableChanges) -> tuple[WriteResult, list[Rejection]]:
        """All rows but those that the target refuses. Piece by piece where nothing ties the pieces together; else with all rows in memory.

        A refused row of a table with another unique key must not have lost its old state with an earlier piece.
        """
        around = Bisection(self._write_table, self.session.cursor, DATA_ERRORS)
        if item.read is None or not item.table.key or item.table.unique_keys or partial_updates.may_lack(item.rows):
            return around.run(item.whole())
        total, refused = WriteResult(), list[Rejection]()
        halves = [replace(item, upserts=False)] * item.deletes + [replace(item, deletes=False)] * item.upserts
        for piece in (piece for half in halves for piece in half.each()):
            count, more = around.run(piece)
            total += count
            refused += more
        return total, refused

    def _clear(self, item: TableChanges) -> WriteResult:
        """What the source does not have goes first. A table that remembers the batch (without a key, or with partial rows) has been through it."""
        if not item.replaces:
            return WriteResult()
        scope = item.scope or str(item.table.table)
        if (not item.table.key or self._is_partial(item)) and self.acks.table_done(
            self.session.cursor, scope, self.fence.batch
        ):
            return WriteResult()
        count = WriteResult()
        with errors(self.endpoint, f"replacing rows of {item.table.table}", where=f"{self.name}: {item.table.table}"):
            for stretch in item.replaces:
                count += range_delete.clear(self.session, item.table, stretch)
        if count.deleted:
            _log.info("target_replaced", consumer=self.name, table=str(item.table.table), deleted=count.deleted)
        return count

    @staticmethod
    def _is_partial(item: TableChanges) -> bool:
        """Of rows that are read piece by piece, it is not known before they are read whether one lacks a column."""
        if item.read is not None:
            return partial_updates.may_lack(item.rows)
        return bool(item.rows.num_columns) and bool(partial_updates.missing(item.rows, item.table).any())

    def _verify(self, item: TableChanges) -> WriteResult:
        doing = f"looking whether foreign keys of {item.table.table} hold"
        with errors(self.endpoint, doing, where=f"{self.name}: {item.table.table}"):
            return WriteResult(statements=sum(families.verify(self.session.cursor, piece) for piece in item.each()))

    def _write_table(self, item: TableChanges) -> WriteResult:
        refuse_spaces(item.table, item.rows)
        try:
            with errors(self.endpoint, f"loading {item.table.table}", where=f"{self.name}: {item.table.table}"):
                if not item.table.key:
                    return self._write_keyless(item)
                if self._is_partial(item):
                    return self._write_partial(item)
                return self._write_keyed(item)
        except LoadError as error:
            shown = discreet(error, item.rows)
            if shown is error:
                raise
            raise shown from None

    def _write_keyed(self, item: TableChanges) -> WriteResult:
        """Of all pieces what goes goes before anything comes: unique values move among them."""
        halves = [replace(item, upserts=False)] * item.deletes + [replace(item, deletes=False)] * item.upserts
        total = WriteResult()
        for half in halves:
            for rows in self.session.connection.during(half.pieces()):
                total += self._remove(half, rows) if half.deletes else self._put(half, rows)
        return total

    def _remove(self, item: TableChanges, rows: pa.Table) -> WriteResult:
        gone = pc.equal(rows["_op"], "d")
        removed = rows.filter(gone)
        leaving = statements.leaving_unique_values(item.table, rows.filter(pc.invert(gone)))
        sent = sum(
            self.session.run(statements.deletes(item.table, some, self.session.dialect)) for some in (removed, leaving)
        )
        return WriteResult(0, removed.num_rows, statements=sent)

    def _put(self, item: TableChanges, rows: pa.Table) -> WriteResult:
        live = rows.filter(pc.not_equal(rows["_op"], "d"))
        checked = item.table.generation is not None
        with self.session.foreign_keys(checked=checked):
            if item.in_order or checked:  # REPLACE would take a parent away from its children
                sent = self.session.run(statements.upserts(item.table, live, self.session.dialect))
            else:
                sent = self._upsert(item.table, live)
        return WriteResult(live.num_rows, 0, statements=sent)

    def _upsert(self, table: TargetTable, live: pa.Table) -> int:
        """In bulk where that pays and is allowed: every row if it is sent whole, else the new ones; the others by upsert."""
        new = pc.and_(pc.equal(live["_op"], "i"), pc.is_null(live["_before"]))
        if table.key and {name for _, name in statements.sent_fields(live.schema, table)} == set(table.columns):
            new = pc.is_valid(live["_op"])
        new = pc.fill_null(new, False)
        if not self.session.local_infile or not live.num_rows or pc.sum(new).as_py() < load_data.BULK_ROWS:
            return self.session.run(statements.upserts(table, live, self.session.dialect))
        new = pc.and_(new, pa.chunked_array([load_data.wanted(table, live)]))
        sent = self.session.run(statements.upserts(table, live.filter(pc.invert(new)), self.session.dialect))
        return sent + self.session.run(load_data.loads(table, live.filter(new)))

    def _write_keyless(self, item: TableChanges) -> WriteResult:
        """Without a key a repeat would double rows, so that the table itself remembers the batch, in the same transaction."""
        scope = item.scope or str(item.table.table)
        if self.acks.table_done(self.session.cursor, scope, self.fence.batch):
            return WriteResult()
        total = WriteResult()
        for rows in self.session.connection.during(
            item.pieces()
        ):  # of equal rows any will do, so that the order of the pieces does not matter
            total += self._write_counted(item.table, rows)
        self.acks.table_holds(self.session.cursor, scope, self.fence)
        return total

    def _write_counted(self, table: TargetTable, rows: pa.Table) -> WriteResult:
        gone = pc.equal(rows["_op"], "d")
        live, removed = rows.filter(pc.invert(gone)), rows.filter(gone)
        sent = (
            self.session.run(statements.keyless_deletes(table, removed, self.session.dialect))
            if removed.num_rows
            else 0
        )
        if table.generation is None:
            sent += self._upsert(table, live)
        else:
            with self.session.foreign_keys(checked=True):
                sent += self.session.run(statements.upserts(table, live, self.session.dialect))
        return WriteResult(live.num_rows, removed.num_rows, statements=sent)

    def _write_partial(self, item: TableChanges) -> WriteResult:
        """With rows of which the log lacks some columns; the table remembers the batch, in the same transaction.

        What the target has of rows that leave their place is read before any piece is written: another row may come to that place.
        """
        scope = item.scope or str(item.table.table)
        if self.acks.table_done(self.session.cursor, scope, self.fence.batch):
            return WriteResult()
        with tempfile.TemporaryFile(prefix="sluice-rows-") as spool:
            for rows in self.session.connection.during(item.pieces()):
                for value in self._lacking(item.table, rows).whole(self.session.cursor):
                    pickle.dump(value, spool)
            total = WriteResult()
            for rows in self.session.connection.during(item.pieces()):
                leaving = self._lacking(item.table, rows).origins
                total += WriteResult(
                    statements=self.session.run(statements.deletes(item.table, leaving, self.session.dialect))
                )
            total += self._write_keyed(replace(_known(item), replaces=()))
            spool.seek(0)
            with self.session.foreign_keys(checked=item.table.generation is not None):
                total += WriteResult(
                    statements=self.session.run(
                        partial_updates.insert(item.table, item.rows.schema, _spooled(spool), self.session.dialect)
                    )
                )
                for rows in self.session.connection.during(item.pieces()):
                    some = self._lacking(item.table, rows)
                    total += WriteResult(some.rows.num_rows, 0, statements=self.session.run(some.update()))
        self.acks.table_holds(self.session.cursor, scope, self.fence)
        return total

    @staticmethod
    def _lacking(table: TargetTable, rows: pa.Table) -> partial_updates.PartialRows:
        lacks = partial_updates.missing(rows, table)
        some = _some_lack(rows, lacks)
        return partial_updates.PartialRows.of(table, rows.filter(pa.array(some)), lacks[some])


def _some_lack(rows: pa.Table, lacks: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Rows that are there at the end, and of which some column is not known."""
    live: np.ndarray[Any, Any] = ~pc.equal(rows["_op"], "d").to_numpy(zero_copy_only=False)
    return live & lacks.any(axis=1)


def _known(item: TableChanges) -> TableChanges:
    """Only the rows of which all that is sent is known."""

    def of(rows: pa.Table) -> pa.Table:
        return rows.filter(pa.array(~_some_lack(rows, partial_updates.missing(rows, item.table))))

    if item.read is None:
        return replace(item, rows=of(item.rows))
    return replace(item, read=lambda: map(of, item.pieces()))


def _spooled(spool: IO[bytes]) -> Iterator[partial_updates.WholeRow]:
    with suppress(EOFError):
        while True:
            yield pickle.load(spool)  # noqa: S301 - a file without a name, written above
