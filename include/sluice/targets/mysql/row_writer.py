"""Write a unit's rows over one MySQL session, inside its transaction."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc

from sluice.config.connections import Endpoint
from sluice.errors import LoadError
from sluice.model.fields import is_masked
from sluice.targets.mysql import foreign_keys as families
from sluice.targets.mysql import load_data, partial_updates, range_delete, statements
from sluice.targets.mysql.ack_table import AckTable
from sluice.targets.mysql.connection import DATA_ERRORS, errors
from sluice.targets.mysql.mark_rows import MarkRows
from sluice.targets.mysql.session import CUT, Session
from sluice.targets.mysql.uniqueness import refuse_spaces
from sluice.targets.port import Fence, KeyRange, WriteResult
from sluice.targets.sql.bisect import Bisection
from sluice.targets.sql.incomplete_rows import known, missing
from sluice.targets.sql.row_writer import SqlRowWriter
from sluice.targets.sql.rows import identifying, leaving_unique_values, row_text, sent_fields
from sluice.targets.sql.tables import TableChanges, TargetTable
from sluice.targets.sql.unique_values import may_meet


@dataclass(frozen=True)
class RowWriter(SqlRowWriter):
    """See :class:`SqlRowWriter`.

    ``session``: in a transaction; ``marks``: what stands around the rows, None: nothing does; ``beside``: writes what
    belongs to the checkpoint.
    """

    endpoint: Endpoint
    session: Session
    marks: MarkRows | None = None
    beside: Callable[[], None] = lambda: None

    @classmethod
    def over(
        cls, name: str, endpoint: Endpoint, acks: AckTable, session: Session, fence: Fence, marks: MarkRows | None
    ) -> RowWriter:
        """Build a writer over ``session``."""
        return cls(name, acks, fence, session.cursor, DATA_ERRORS, endpoint, session, marks)

    def acknowledged(self) -> None:
        """See the class."""
        self.beside()

    def marked(self, loaded: int) -> AbstractContextManager[None]:
        """See the class."""
        return self.marks.around(self.cursor, loaded) if self.marks is not None else nullcontext()

    def errors(self, doing: str, where: str) -> AbstractContextManager[None]:
        """See the class."""
        return errors(self.endpoint, doing, where=where)

    def lacks(self, table: TargetTable, rows: pa.Table) -> bool:
        """See the class."""
        return bool(missing(rows, table).any())

    def during(self, pieces: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """See the class."""
        return self.session.connection.during(iter(pieces))

    def clear(self, table: TargetTable, stretch: KeyRange) -> WriteResult:
        """See the class."""
        return range_delete.clear(self.session, table, stretch)

    def verify(self, item: TableChanges) -> int:
        """See the class."""
        return families.verify(self.cursor, item)

    def refuse(self, table: TargetTable, rows: pa.Table) -> None:
        """Refuse values that end with spaces, if the target ignores these."""
        refuse_spaces(table, rows)

    def naming(self, item: TableChanges, error: LoadError) -> LoadError:
        """See the class: the server counts rows of a statement, and none of the batch."""
        if item.read is not None or error.code not in CUT:
            return error
        number = Bisection(self._write_table, self.cursor, frozenset({error.code})).first(item)
        if number is None:
            return error
        hidden = any(map(is_masked, item.rows.schema))
        row = row_text(item.rows, number, item.table, hidden=hidden)
        hint = error.hint or "correct the row, or the target's column; on_error: dead_letter leaves such rows out"
        named = LoadError(f"{error.message}: the row {row}", where=error.where, hint=hint)
        named.code = error.code
        return named

    def remove(self, item: TableChanges, rows: pa.Table) -> WriteResult:
        """See the class."""
        delete_mask = pc.equal(rows["_op"], "d")
        removed = rows.filter(delete_mask)
        leaving = leaving_unique_values(item.table, rows.filter(pc.invert(delete_mask)))
        sent = sum(
            self.session.run(statements.deletes(item.table, some, self.session.dialect)) for some in (removed, leaving)
        )
        return WriteResult(0, removed.num_rows, statements=sent)

    def put(self, item: TableChanges, rows: pa.Table) -> WriteResult:
        """See the class."""
        live = rows.filter(pc.not_equal(rows["_op"], "d"))
        checked = item.table.generation is not None
        with self.session.foreign_keys(checked=checked):
            if item.in_order or checked:  # REPLACE would take a parent away from its children
                sent = self.session.run(statements.upserts(item.table, live, self.session.dialect))
            else:
                sent = self._upsert(item.table, live)
        return WriteResult(live.num_rows, 0, statements=sent)

    def _upsert(self, table: TargetTable, live: pa.Table) -> int:
        """Write in bulk if that pays and is allowed: every row if rows are sent whole, else the new ones; the others by
        upsert.
        """
        if table.key and self._gives_way and may_meet(table, live):
            return self._in_log_order(table, live)
        new = pc.and_(pc.equal(live["_op"], "i"), pc.is_null(live["_before"]))
        if table.key and _sent_whole(table, live):
            new = pc.is_valid(live["_op"])
        new = pc.fill_null(new, False)
        if not self._is_bulk(pc.sum(new).as_py() or 0):
            return self._one_by_one(table, live)
        new = pc.and_(new, pa.chunked_array([load_data.wanted(table, live)]))
        sent = self._one_by_one(table, live.filter(pc.invert(new)))
        return sent + self.session.run(load_data.loads(table, live.filter(new)))

    def _one_by_one(self, table: TargetTable, live: pa.Table) -> int:
        """Write in statements.

        If both sites write the same rows, another row that holds a unique value of these is removed, as in bulk.
        """
        sent = 0
        if table.key and self._gives_way:
            sent = self.session.run(statements.displacing(table, live, self.session.dialect))
        return sent + self.session.run(statements.upserts(table, live, self.session.dialect))

    def _in_log_order(self, table: TargetTable, live: pa.Table) -> int:
        """Write in log order: both sites write the same rows, and two rows of the batch may have one unique value,
        which the later one keeps.

        The row that took the value from the first of them at the source may be one that Sluice loaded there, which is
        not in the batch. The server decides what is equal. In key order, like other rows, they would lock less of what
        applications lock at the same time.
        """
        live = live.sort_by("_seq")
        if not _sent_whole(table, live):
            return sum(self._one_by_one(table, live.slice(row, 1)) for row in range(live.num_rows))
        if self._is_bulk(live.num_rows) and pc.all(load_data.wanted(table, live)).as_py():
            return self.session.run(load_data.loads(table, live))
        return self.session.run(statements.replaces(table, live, self.session.dialect))

    def _is_bulk(self, rows: int) -> bool:
        return self.session.local_infile and rows >= load_data.BULK_ROWS

    @property
    def _gives_way(self) -> bool:
        return self.marks is not None and self.marks.mark.gives_way

    def write_counted(self, table: TargetTable, rows: pa.Table) -> WriteResult:
        """See the class."""
        delete_mask = pc.equal(rows["_op"], "d")
        live, removed = rows.filter(pc.invert(delete_mask)), rows.filter(delete_mask)
        sent = (
            self.session.run(statements.keyless_deletes(table, identifying(removed), self.session.dialect))
            if removed.num_rows
            else 0
        )
        if table.generation is None:
            sent += self._upsert(table, live)
        else:
            with self.session.foreign_keys(checked=True):
                sent += self.session.run(statements.upserts(table, live, self.session.dialect))
        return WriteResult(live.num_rows, removed.num_rows, statements=sent)

    def write_partial(self, item: TableChanges) -> WriteResult:
        """Write rows of which some lack columns.

        What the target has of rows that change their key is read first: another row may take that key.
        """
        with tempfile.TemporaryFile(prefix="sluice-rows-") as spool:
            for rows in self.during(item.pieces()):
                for value in self._lacking(item.table, rows).whole(self.cursor):
                    pickle.dump(value, spool)
            total = WriteResult()
            for rows in self.during(item.pieces()):
                leaving = self._lacking(item.table, rows).origins
                total += WriteResult(
                    statements=self.session.run(statements.deletes(item.table, leaving, self.session.dialect))
                )
            total += self.write_keyed(replace(known(item), replaces=()))
            spool.seek(0)
            with self.session.foreign_keys(checked=item.table.generation is not None):
                total += WriteResult(
                    statements=self.session.run(
                        partial_updates.insert(item.table, item.rows.schema, _spooled(spool), self.session.dialect)
                    )
                )
                for rows in self.during(item.pieces()):
                    some = self._lacking(item.table, rows)
                    total += WriteResult(some.rows.num_rows, 0, statements=self.session.run(some.update()))
        return total

    def _lacking(self, table: TargetTable, rows: pa.Table) -> partial_updates.PartialRows:
        """Return the rows that lack columns. If both sites write the same rows, one that is missing was deleted here.

        That does not hold if it may have been removed for another row's unique value.
        """
        may_be_deleted = self._gives_way and not table.unique_keys
        absent = table.being_copied or may_be_deleted
        return partial_updates.PartialRows.of(replace(table, being_copied=absent), rows)


def _sent_whole(table: TargetTable, rows: pa.Table) -> bool:
    """Return True if the target has no columns of its own."""
    return {name for _, name in sent_fields(rows.schema, table)} == set(table.columns)


def _spooled(spool: IO[bytes]) -> Iterator[partial_updates.WholeRow]:
    with suppress(EOFError):
        while True:
            yield pickle.load(spool)  # noqa: S301 - a file without a name, written above
