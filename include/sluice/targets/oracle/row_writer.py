"""Write a unit's rows over one Oracle session, inside its transaction.

Each statement is for one row and is run for many at once (array binding): one round trip, and the server repeats the
statement.
"""

# ruff: noqa: S608 - identifiers are quoted, values are bound

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import oracledb
import pyarrow as pa
import pyarrow.compute as pc

from sluice.config.connections import Endpoint
from sluice.errors import LoadError
from sluice.model.fields import is_masked
from sluice.model.sizes import cuts, row_bytes
from sluice.targets.oracle import range_delete
from sluice.targets.oracle.ack_table import AckTable
from sluice.targets.oracle.column_types import oracle_type
from sluice.targets.oracle.connection import DATA_ERRORS, NOT_FOUND, NOT_UNIQUE, code_of, errors
from sluice.targets.oracle.session import Session
from sluice.targets.oracle.values import Bound, BoundColumn, Policies, bound, db_type
from sluice.targets.port import Fence, KeyRange, WriteResult
from sluice.targets.sql.bisect import hiding_values
from sluice.targets.sql.incomplete_rows import IncompleteRows, known, missing, patterns
from sluice.targets.sql.names import quoted, quoted_table
from sluice.targets.sql.row_writer import SqlRowWriter
from sluice.targets.sql.rows import identifying, only, removals, row_text, sent_fields
from sluice.targets.sql.tables import TableChanges, TargetTable

SLICE_ROWS = 10_000
SLICE_BYTES = 8 << 20
"""Rows, and bytes of them, that go over in one array."""


@dataclass(frozen=True)
class RowWriter(SqlRowWriter):
    """See :class:`SqlRowWriter`.

    ``session``: in a transaction; ``policies``: what becomes of values that Oracle does not have.
    """

    endpoint: Endpoint
    session: Session
    policies: Policies

    @classmethod
    def over(
        cls, name: str, endpoint: Endpoint, acks: AckTable, session: Session, fence: Fence, policies: Policies
    ) -> RowWriter:
        """Build a writer over ``session``."""
        return cls(name, acks, fence, session.cursor, DATA_ERRORS, endpoint, session, policies)

    def errors(self, doing: str, where: str) -> AbstractContextManager[None]:
        """See the class."""
        return errors(self.endpoint, doing, where=where)

    def lacks(self, table: TargetTable, rows: pa.Table) -> bool:
        """See the class."""
        return bool(missing(rows, table).any())

    def during(self, pieces: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """See the class."""
        return self.session.during(pieces)

    def clear(self, table: TargetTable, stretch: KeyRange) -> WriteResult:
        """See the class."""
        return range_delete.clear(self.cursor, table, stretch, self.policies)

    def verify(self, item: TableChanges) -> int:
        """See the class. There are no references: tables with foreign keys are refused."""
        return 0

    def discreet(self, error: LoadError, rows: pa.Table) -> LoadError:
        """See the class."""
        return hiding_values(error, rows)

    def remove(self, item: TableChanges, rows: pa.Table) -> WriteResult:
        """See the class."""
        removed, leaving = removals(item.table, rows)
        sent = sum(self._delete(item.table, some) for some in (removed, leaving))
        return WriteResult(0, removed.num_rows, statements=sent)

    def put(self, item: TableChanges, rows: pa.Table) -> WriteResult:
        """See the class."""
        live = only(rows, pc.not_equal(rows["_op"], "d"))
        if not live.num_rows:
            return WriteResult()
        return WriteResult(live.num_rows, 0, statements=self._put_rows(item.table, live))

    def write_counted(self, table: TargetTable, rows: pa.Table) -> WriteResult:
        """See the class."""
        deleted = pc.equal(rows["_op"], "d")
        live, removed = rows.filter(pc.invert(deleted)), rows.filter(deleted)
        if removed.num_rows:
            self._delete_counted(table, identifying(removed))
        columns = _columns(table, rows.schema)
        statements = self._each(insert(table, columns), table, live, columns)[1]
        return WriteResult(live.num_rows, removed.num_rows, statements=statements + bool(removed.num_rows))

    def write_partial(self, item: TableChanges) -> WriteResult:
        """Write rows of which some lack columns.

        What the target has of rows that change their key is read first: another row may take that key.
        """
        table = item.table
        aside: list[tuple[str, Bound]] = []
        for rows in self.during(item.pieces()):
            aside += self._put_aside(IncompleteRows.of(table, rows))
        total = WriteResult()
        for rows in self.during(item.pieces()):
            total += WriteResult(statements=self._delete(table, IncompleteRows.of(table, rows).origins))
        total += self.write_keyed(replace(known(item), replaces=()))
        for statement, complete in aside:
            self.cursor.run(statement, complete.rows, complete.types)
            total += WriteResult(statements=1)
        for rows in self.during(item.pieces()):
            total += self._write_lacking(IncompleteRows.of(table, rows))
        return total

    # -- inside ----------------------------------------------------------------------------------------------------
    def _each(
        self, statement: str, table: TargetTable, rows: pa.Table, columns: Sequence[tuple[BoundColumn, str]]
    ) -> tuple[int, int]:
        """Run a statement for each row, an array at a time; return (rows of the table that changed, statements)."""
        if not rows.num_rows:
            return 0, 0
        sent = [column for column, _ in columns]
        rows = rows.combine_chunks()
        changed = statements = 0
        for start, stop in cuts(row_bytes(rows.select([c.field.name for c in sent])), SLICE_BYTES, SLICE_ROWS):
            values = bound(rows.slice(start, stop - start), sent, table, self.policies)
            changed += self.cursor.run(statement, values.rows, values.types)
            statements += 1
        return changed, statements

    def _delete(self, table: TargetTable, rows: pa.Table) -> int:
        """Delete by key; in a repeat the rows may be gone already. Returns the number of statements."""
        if not rows.num_rows:
            return 0
        keys = _key(table, rows.schema)
        count, statements = self._each(
            f"DELETE FROM {quoted_table(table.place)} WHERE {_same(keys)}", table, rows, keys
        )
        if count > rows.num_rows:
            raise LoadError(
                f"a DELETE of {rows.num_rows} rows would have removed {count} rows of the target",
                where=str(table.table),
                hint="the target's key holds values for equal that the source tells apart: compare it (`sluice check`)",
            )
        return statements

    def _put_rows(self, table: TargetTable, rows: pa.Table) -> int:
        """Insert new rows, and merge the others. An INSERT fails if a row exists unexpectedly, as in a repeat; then all
        rows are merged.
        """
        columns = _columns(table, rows.schema)
        new = pc.and_(pc.equal(rows["_op"], "i"), pc.is_null(rows["_before"]))
        fresh, statements = only(rows, new), 0
        if fresh.num_rows:
            inserted = self._attempt(insert(table, columns), table, fresh, columns)
            statements += 1
            rows = only(rows, pc.invert(new)) if inserted else rows
        return statements + self._each(merge(table, columns), table, rows, columns)[1]

    def _attempt(
        self, statement: str, table: TargetTable, rows: pa.Table, columns: Sequence[tuple[BoundColumn, str]]
    ) -> bool:
        """Run a statement for rows; return False, with nothing done, if a key already existed."""
        self.cursor.execute("SAVEPOINT sluice_attempt")
        try:
            self._each(statement, table, rows, columns)
        except oracledb.DatabaseError as error:
            if code_of(error) != NOT_UNIQUE:
                raise
            self.cursor.execute("ROLLBACK TO SAVEPOINT sluice_attempt")
            return False
        return True

    def _delete_counted(self, table: TargetTable, rows: pa.Table) -> None:
        """Delete as many rows of each image as ``rows`` has of it. All of them have to exist, unless a dump is to copy
        them.
        """
        columns = _columns(table, rows.schema)
        sent = [column for column, _ in columns]
        values = bound(rows.combine_chunks(), sent, table, self.policies)
        counts: dict[tuple[Any, ...], int] = {}
        for row in values.rows:
            image = tuple(row.values())
            counts[image] = counts.get(image, 0) + 1
        names = [column.name for column in sent]
        images = [{**dict(zip(names, image, strict=True)), "most": count} for image, count in counts.items()]
        same = " AND ".join(
            f"({quoted(name)} = :{column.name} OR ({quoted(name)} IS NULL AND :{column.name} IS NULL))"
            for column, name in columns
        )
        statement = f"DELETE FROM {quoted_table(table.place)} WHERE {same} AND ROWNUM <= :most"
        count = self.cursor.run(statement, images, {**values.types, "most": oracledb.DB_TYPE_NUMBER})
        if count != rows.num_rows and not table.being_copied:
            raise _not_found(table, f"the target has {count} of the {rows.num_rows} rows to delete")

    def _put_aside(self, some: IncompleteRows) -> list[tuple[str, Bound]]:
        """Complete, in memory, the rows that change their key, which are deleted and inserted again. Locks them.

        Returns the statements that insert them, with their values.
        """
        table, leaving, lacks = some.table, some.leaving, some.lacks[some.away]
        if not leaving.num_rows:
            return []
        columns, fresh, was = _columns(table, leaving.schema), np.array(some.fresh), some.origins
        inserts = []
        for pattern, which in patterns(np.column_stack([lacks, fresh])):
            sent = [pair for pair, absent in zip(columns, pattern[:-1], strict=True) if not absent]
            absent = [name for (_, name), lost in zip(columns, pattern[:-1], strict=True) if lost]
            rows = leaving.take(pa.array(which)).combine_chunks()
            values = bound(rows, [column for column, _ in sent], table, self.policies)
            if pattern[-1] or not absent:  # inserted before its table had these columns, so it gets the defaults
                inserts.append((insert(table, sent), values))
                continue
            stored_rows = self._held(some, was.take(pa.array(which)), rows, absent)
            types = dict(zip(table.columns, map(oracle_type, table.types), strict=True))
            copied = [
                (f"k{n}", name, [row[n] for row in stored_rows], db_type(types[name], [row[n] for row in stored_rows]))
                for n, name in enumerate(absent)
            ]
            complete = [
                {**row, **{place: old[number] for place, _, old, _ in copied}} for number, row in enumerate(values.rows)
            ]
            names = [*((column.name, name) for column, name in sent), *((place, name) for place, name, _, _ in copied)]
            statement = _insert(table, names)
            inserts.append((
                statement,
                Bound(complete, {**values.types, **{place: kind for place, _, _, kind in copied}}),
            ))
        return inserts

    def _held(self, some: IncompleteRows, keys: pa.Table, rows: pa.Table, names: Sequence[str]) -> list[Sequence[Any]]:
        """Return the stored values of some columns of the rows with these keys, and lock the rows."""
        table = some.table
        columns = _key(table, keys.schema)
        values = bound(keys.combine_chunks(), [column for column, _ in columns], table, self.policies)
        chosen, place = ", ".join(map(quoted, names)), quoted_table(table.place)
        stored_rows: list[Sequence[Any]] = []
        for row in values.rows:
            query = f"SELECT {chosen} FROM {place} WHERE {_same(columns)} FOR UPDATE"
            stored_rows += self.cursor.ask(query, row, values.types).fetchall()
        self._require(some, rows, len(stored_rows))
        return stored_rows

    def _write_lacking(self, some: IncompleteRows) -> WriteResult:
        """Update the sent columns of the rows that keep their key. Each row has to exist."""
        table, stay = some.table, some.rows.filter(pa.array(~some.away))
        columns, keys = _columns(table, some.rows.schema), _key(table, some.rows.schema)
        key = {name for _, name in keys}
        statements = 0
        for pattern, which in patterns(some.lacks[~some.away]):
            sent = [pair for pair, absent in zip(columns, pattern, strict=True) if not absent and pair[1] not in key]
            if not sent:
                continue
            rows = stay.take(pa.array(which))
            settings = ", ".join(f"{quoted(name)} = :{column.name}" for column, name in sent)
            statement = f"UPDATE {quoted_table(table.place)} SET {settings} WHERE {_same(keys)}"
            count, more = self._each(statement, table, rows, [*sent, *keys])
            self._require(some, rows, count)
            statements += more
        return WriteResult(some.rows.num_rows, 0, statements=statements)

    @staticmethod
    def _require(some: IncompleteRows, rows: pa.Table, count: int) -> None:
        if count == rows.num_rows or some.table.being_copied:
            return
        hidden = any(map(is_masked, rows.schema))
        raise _not_found(
            some.table,
            f"the target has {count} of {rows.num_rows} rows of which the log only contains the changed columns; one "
            f"is the row {row_text(rows, 0, some.table, hidden=hidden)}",
        )


def _columns(table: TargetTable, schema: pa.Schema) -> list[tuple[BoundColumn, str]]:
    """Return the columns that are sent, with their names at the target."""
    return [(BoundColumn.of(n, field), name) for n, (field, name) in enumerate(sent_fields(schema, table))]


def _key(table: TargetTable, schema: pa.Schema) -> list[tuple[BoundColumn, str]]:
    columns = {name: (column, name) for column, name in _columns(table, schema)}
    return [columns[name] for name in table.key]


def _same(columns: Sequence[tuple[BoundColumn, str]]) -> str:
    return " AND ".join(f"{quoted(name)} = :{column.name}" for column, name in columns)


def insert(table: TargetTable, columns: Sequence[tuple[BoundColumn, str]]) -> str:
    """Return an INSERT of one row."""
    return _insert(table, [(column.name, name) for column, name in columns])


def _insert(table: TargetTable, columns: Sequence[tuple[str, str]]) -> str:
    names, places = ", ".join(quoted(name) for _, name in columns), ", ".join(f":{place}" for place, _ in columns)
    return f"INSERT INTO {quoted_table(table.place)} ({names}) VALUES ({places})"


def merge(table: TargetTable, columns: Sequence[tuple[BoundColumn, str]]) -> str:
    """Return a MERGE of one row: it is changed if its key is there, else inserted."""
    key = set(table.key)
    same = " AND ".join(f"t.{quoted(name)} = :{column.name}" for column, name in columns if name in key)
    settings = ", ".join(f"t.{quoted(name)} = :{column.name}" for column, name in columns if name not in key)
    names, places = ", ".join(quoted(name) for _, name in columns), ", ".join(f":{c.name}" for c, _ in columns)
    matched = f" WHEN MATCHED THEN UPDATE SET {settings}" if settings else ""
    return (
        f"MERGE INTO {quoted_table(table.place)} t USING dual ON ({same}){matched} "
        f"WHEN NOT MATCHED THEN INSERT ({names}) VALUES ({places})"
    )


def _not_found(table: TargetTable, message: str) -> LoadError:
    error = LoadError(
        message,
        where=str(table.table),
        hint="somebody else changed the table, or it never had these rows: copy it anew (`sluice dump start PIPELINE "
        "--table SCHEMA.TABLE`, the source's name of it)",
    )
    error.code = NOT_FOUND
    return error
