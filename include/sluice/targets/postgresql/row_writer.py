"""Write a unit's rows over one PostgreSQL session, inside its transaction."""

# ruff: noqa: S608 - identifiers are quoted, values are staged

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from sluice.config.connections import Endpoint
from sluice.errors import LoadError
from sluice.model.fields import is_masked
from sluice.postgresql.load_messages import LoadMessages
from sluice.postgresql.names import quoted, quoted_table
from sluice.targets.port import Fence, KeyRange, WriteResult
from sluice.targets.postgresql import range_delete, references
from sluice.targets.postgresql.ack_table import AckTable
from sluice.targets.postgresql.connection import DATA_ERRORS, errors
from sluice.targets.postgresql.session import Session
from sluice.targets.postgresql.staging import ROWS, Stage, StagedColumn
from sluice.targets.sql.bisect import hiding_values
from sluice.targets.sql.incomplete_rows import IncompleteRows, known, missing, patterns
from sluice.targets.sql.row_writer import SqlRowWriter
from sluice.targets.sql.rows import identifying, only, removals, row_text, sent_fields
from sluice.targets.sql.tables import TableChanges, TargetTable
from sluice.targets.sql.unique_values import may_meet

NOT_FOUND = "02000"
"""The standard's code for a row that does not exist."""

_TRIES = 5
"""How often a row is written again whose unique value an application takes meanwhile."""

_numbers = itertools.count(1)


@dataclass(frozen=True)
class RowWriter(SqlRowWriter):
    """See :class:`SqlRowWriter`.

    ``session``: in a transaction; ``zero_dates``: what becomes of dates that no calendar has; ``marks``: what stands in
    front of the rows, None: nothing does; ``beside``: writes what belongs to the checkpoint.
    """

    endpoint: Endpoint
    session: Session
    zero_dates: str
    marks: LoadMessages | None = None
    beside: Callable[[], None] = lambda: None

    @classmethod
    def over(
        cls,
        name: str,
        endpoint: Endpoint,
        acks: AckTable,
        session: Session,
        fence: Fence,
        zero_dates: str,
        *,
        marks: LoadMessages | None = None,
    ) -> RowWriter:
        """Build a writer over ``session``."""
        return cls(name, acks, fence, session.cursor, DATA_ERRORS, endpoint, session, zero_dates, marks)

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
        return self.session.during(pieces)

    def clear(self, table: TargetTable, stretch: KeyRange) -> WriteResult:
        """See the class."""
        return range_delete.clear(self._stage(table), stretch)

    def verify(self, item: TableChanges) -> int:
        """See the class."""
        return references.verify(self._stage(item.table), item)

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
        with self.session.foreign_keys(checked=item.table.generation is not None):
            self._insert(item.table, live)
        return WriteResult(live.num_rows, 0, statements=1)

    def write_counted(self, table: TargetTable, rows: pa.Table) -> WriteResult:
        """See the class."""
        is_delete = pc.equal(rows["_op"], "d")
        live, removed = rows.filter(pc.invert(is_delete)), rows.filter(is_delete)
        if removed.num_rows:
            self._delete_counted(table, identifying(removed))
        if live.num_rows:
            with self.session.foreign_keys(checked=table.generation is not None):
                self._insert(table, live)
        return WriteResult(live.num_rows, removed.num_rows, statements=bool(live.num_rows) + bool(removed.num_rows))

    def write_partial(self, item: TableChanges) -> WriteResult:
        """Write rows of which some lack columns.

        What the target has of rows that change their key is kept first: another row may take that key.
        """
        table = item.table
        aside: list[str] = []
        for rows in self.during(item.pieces()):
            aside += self._put_aside(self._lacking(table, rows))
        total = WriteResult(statements=len(aside))
        for rows in self.during(item.pieces()):
            total += WriteResult(statements=self._delete(table, self._lacking(table, rows).origins))
        total += self.write_keyed(replace(known(item), replaces=()))
        with self.session.foreign_keys(checked=table.generation is not None):
            for statement in aside:
                self.cursor.execute(statement)
            for rows in self.during(item.pieces()):
                total += self._write_lacking(self._lacking(table, rows))
        return total

    # -- inside ----------------------------------------------------------------------------------------------------
    def _stage(self, table: TargetTable) -> Stage:
        return Stage(self.cursor, table, self.zero_dates)

    def _delete(self, table: TargetTable, rows: pa.Table) -> int:
        """Delete by key; in a repeat the rows may be gone already. Returns the number of statements."""
        if not rows.num_rows:
            return 0
        columns = _key(table, rows.schema)
        with self._stage(table).rows(rows, [column for column, _ in columns]) as staged:
            count = staged.run(f"DELETE FROM {quoted_table(table.place)} AS t USING {ROWS} WHERE {_same(columns)}")
        if count > rows.num_rows:
            raise LoadError(
                f"a DELETE of {rows.num_rows} rows would have removed {count} rows of the target",
                where=str(table.table),
                hint="the target's key holds values for equal that the source tells apart: compare it (`sluice check`)",
            )
        return 1

    @property
    def _gives_way(self) -> bool:
        return self.marks is not None and self.marks.mark.gives_way

    def _lacking(self, table: TargetTable, rows: pa.Table) -> IncompleteRows:
        """Return the rows that lack columns. If both sites write the same rows, one that is missing was deleted here.

        That does not hold if it may have been removed for another row's unique value.
        """
        may_be_displaced = self._gives_way and not table.unique_keys
        return IncompleteRows.of(replace(table, being_copied=table.being_copied or may_be_displaced), rows)

    def _insert(self, table: TargetTable, rows: pa.Table) -> None:
        """Insert rows, or update existing ones.

        If both sites write the same rows, another row that holds a unique value of these is removed: it comes back, as
        all rows do. Two rows of the batch may have one unique value, too, which the later one in the log keeps.
        """
        if not (self._gives_way and table.key and table.unique_keys):
            self._upsert(table, rows)
            return
        rows = rows.sort_by("_seq")
        step = 1 if may_meet(table, rows) else rows.num_rows
        for first in range(0, rows.num_rows, step):
            self._take_over(table, rows.slice(first, step))

    def _take_over(self, table: TargetTable, rows: pa.Table) -> None:
        """Write rows whose unique values others may hold, or an application takes at the same time."""
        for _ in range(_TRIES):
            self._displace(table, rows)
            if self._attempt(lambda: self._upsert(table, rows)):
                return
        self._upsert(table, rows)

    def _displace(self, table: TargetTable, rows: pa.Table) -> None:
        """Delete other rows that hold a unique value of one of ``rows``."""
        columns, key = _columns(table, rows.schema), _key(table, rows.schema)
        named = {name.casefold(): (column, name) for column, name in columns}
        stage = self._stage(table)
        for unique in table.unique_keys:
            unique_columns = [named[name.casefold()] for name in unique if name.casefold() in named]
            if len(unique_columns) < len(unique):
                continue
            sent = list({column.name: column for column, _ in (*unique_columns, *key)}.values())
            with stage.rows(rows, sent) as staged:
                staged.run(
                    f"DELETE FROM {quoted_table(table.place)} AS t USING {ROWS} WHERE {_same(unique_columns)} "
                    f"AND NOT ({_same(key)})"
                )

    def _upsert(self, table: TargetTable, rows: pa.Table) -> None:
        """Insert rows, or update existing ones, in the way that costs the server least.

        Decision: processor time of the server for a million rows of six columns. New ones: COPY into the table itself
        3.6 s, into a temporary table 1.0 s and from there by a plain INSERT 2.7 s, by ON CONFLICT 5.8 s. Existing rows:
        MERGE 7.3 s, UPDATE 8.9 s, ON CONFLICT 12.6 s. COPY and MERGE fail if a row exists unexpectedly (a repeat, a
        concurrent writer); then, and for few rows, ON CONFLICT is used. A server on which ON CONFLICT costs as little
        would make this wrong.
        """
        stage, columns = self._stage(table), _columns(table, rows.schema)
        sent = [column for column, _ in columns]
        names = [name for _, name in columns]
        new = pc.and_(pc.equal(rows["_op"], "i"), pc.is_null(rows["_before"]))
        fresh = only(rows, new) if table.key else rows
        if not stage.is_few(fresh, sent) and self._attempt(lambda: stage.copy(fresh, sent, names)):
            rows = only(rows, pc.invert(new)) if table.key else rows.slice(0, 0)
        if not rows.num_rows:
            return
        with stage.rows(rows, sent) as staged:
            if table.key and not staged.few and self._attempt(lambda: staged.run(_merge(table, columns))):
                return
            values = ", ".join(column.value for column in sent)
            staged.run(_insert(table, names, f"SELECT {values} FROM {ROWS}"))

    def _attempt(self, work: Callable[[], object]) -> bool:
        """Run ``work``; return False, with nothing done, if a key already existed."""
        self.cursor.execute("SAVEPOINT _sluice_attempt")
        try:
            work()
        except psycopg.errors.UniqueViolation:
            self.cursor.execute("ROLLBACK TO SAVEPOINT _sluice_attempt")
            return False
        self.cursor.execute("RELEASE SAVEPOINT _sluice_attempt")
        return True

    def _delete_counted(self, table: TargetTable, rows: pa.Table) -> None:
        """Delete as many rows of each image as ``rows`` has of it, in one scan of the table.

        Rows are compared by their text: each type's text has all of its value. All of them have to exist, unless a dump
        is to copy them.
        """
        columns = _columns(table, rows.schema)
        stored = ", ".join(f"t.{quoted(name)}" for _, name in columns)
        image = ", ".join(f"CAST({column.value} AS {column.target.declared})" for column, _ in columns)
        place = quoted_table(table.place)
        ranked = (
            f"SELECT t.tableoid, t.ctid, w.n, row_number() OVER (PARTITION BY w.image) AS place FROM {place} AS t JOIN "
            f"(SELECT ROW({image})::text AS image, count(*) AS n FROM {ROWS} GROUP BY 1) AS w ON ROW({stored})::text = "
            "w.image"
        )
        stage = self._stage(table)
        with stage.unordered(), stage.rows(rows, [column for column, _ in columns]) as staged:
            count = staged.run(
                f"DELETE FROM {place} AS t USING ({ranked}) AS f WHERE f.place <= f.n AND t.ctid = f.ctid AND "
                "t.tableoid = f.tableoid"
            )
            if count == rows.num_rows or table.being_copied:
                return
            hidden = any(map(is_masked, rows.schema))
            staged.run(
                f"SELECT w.image FROM (SELECT ROW({image})::text AS image FROM {ROWS}) AS w "
                f"WHERE NOT EXISTS (SELECT 1 FROM {place} AS t WHERE ROW({stored})::text = w.image) LIMIT 1"
            )
            absent = self.cursor.fetchone()
        example = f": {absent[0][:300]}" if absent and not hidden else ""
        raise _not_found(table, f"the target has {count} of the {rows.num_rows} rows to delete{example}")

    def _put_aside(self, some: IncompleteRows) -> list[str]:
        """Make the rows that leave whole, in temporary tables. Locks the rows.

        Returns the statements that put them where they belong.
        """
        table, leaving, lacks = some.table, some.leaving, some.lacks[some.away]
        if not leaving.num_rows:
            return []
        columns, keys = _columns(table, leaving.schema), _key(table, leaving.schema)
        origins = [(replace(column, name=f"o{n}"), name) for n, (column, name) in enumerate(keys)]
        fresh = np.array(some.fresh)
        was = some.origins
        statements = []
        for pattern, which in patterns(np.column_stack([lacks, fresh])):
            sent = [pair for pair, absent in zip(columns, pattern[:-1], strict=True) if not absent]
            absent = [name for (_, name), lost in zip(columns, pattern[:-1], strict=True) if lost]
            rows = leaving.take(pa.array(which))
            staged_columns = [column for column, _ in sent]
            if not pattern[-1]:
                staged_columns += [_renamed(column) for column, _ in origins]
                for column, _ in origins:
                    rows = rows.append_column(_renamed(column).field, was[column.field.name].take(pa.array(which)))
            place = f"_sluice_aside_{next(_numbers)}"
            values = [f"{column.value} AS c{n}" for n, (column, _) in enumerate(sent)]
            aside = [f"t.{quoted(name)} AS k{n}" for n, name in enumerate(absent)]
            names = [name for _, name in sent]
            with self._stage(table).rows(rows, staged_columns) as staged:
                if pattern[-1]:  # inserted before its table had these columns, so it gets the target's defaults
                    staged.run(
                        f"CREATE TEMPORARY TABLE {place} ON COMMIT DROP AS SELECT {', '.join(values)} FROM {ROWS}"
                    )
                else:
                    staged.run(
                        f"CREATE TEMPORARY TABLE {place} ON COMMIT DROP AS SELECT {', '.join([*values, *aside])} FROM "
                        f"{ROWS} JOIN {quoted_table(table.place)} AS t ON {_same(origins)} FOR UPDATE OF t"
                    )
                    self.cursor.execute(f"SELECT count(*) FROM pg_temp.{place}")
                    self._require(some, rows, self.cursor.fetchone()[0])
                    names += absent
            statements.append(_insert(table, names, f"SELECT * FROM pg_temp.{place}"))
        return statements

    def _write_lacking(self, some: IncompleteRows) -> WriteResult:
        """Write what is known of the rows that stay. Each has to be there."""
        table, stay = some.table, some.rows.filter(pa.array(~some.away))
        columns, keys = _columns(table, some.rows.schema), _key(table, some.rows.schema)
        key = {name for _, name in keys}
        statements = 0
        for pattern, which in patterns(some.lacks[~some.away]):
            sent = [pair for pair, absent in zip(columns, pattern, strict=True) if not absent and pair[1] not in key]
            if not sent:
                continue
            rows = stay.take(pa.array(which))
            settings = ", ".join(f"{quoted(name)} = {column.value}" for column, name in sent)
            renamed = [(replace(column, name=f"o{n}"), name) for n, (column, name) in enumerate(keys)]
            with self._stage(table).rows(rows, [column for column, _ in (*sent, *renamed)]) as staged:
                count = staged.run(
                    f"UPDATE {quoted_table(table.place)} AS t SET {settings} FROM {ROWS} WHERE {_same(renamed)}"
                )
            self._require(some, rows, count)
            statements += 1
        return WriteResult(some.rows.num_rows, 0, statements=statements)

    @staticmethod
    def _require(some: IncompleteRows, rows: pa.Table, count: int) -> None:
        if count == rows.num_rows or some.table.being_copied:
            return
        hidden = any(map(is_masked, rows.schema))
        of = (
            f"one is {row_text(rows, 0, some.table, hidden=hidden)}"
            if rows.num_rows > 1
            else f"the row {row_text(rows, 0, some.table, hidden=hidden)}"
        )
        raise _not_found(
            some.table,
            f"the target has {count} of {rows.num_rows} rows of which the log only contains the changed columns; {of}",
        )


def _columns(table: TargetTable, schema: pa.Schema) -> list[tuple[StagedColumn, str]]:
    """Return the columns that are sent, with their names at the target."""
    return [(StagedColumn.of(n, field), name) for n, (field, name) in enumerate(sent_fields(schema, table))]


def _key(table: TargetTable, schema: pa.Schema) -> list[tuple[StagedColumn, str]]:
    by_name = {name: (column, name) for column, name in _columns(table, schema)}
    return [by_name[name] for name in table.key]


def _renamed(column: StagedColumn) -> StagedColumn:
    return replace(column, field=column.field.with_name(f"origin {column.name}"))


def _same(columns: Sequence[tuple[StagedColumn, str]]) -> str:
    return " AND ".join(f"t.{quoted(name)} = {column.compared}" for column, name in columns)


def _insert(table: TargetTable, names: Sequence[str], rows: str) -> str:
    """Return an INSERT that updates a row whose key already exists."""
    sql = f"INSERT INTO {quoted_table(table.place)} ({', '.join(map(quoted, names))}) OVERRIDING SYSTEM VALUE {rows}"
    if not table.key:
        return sql
    key = set(table.key)
    settings = ", ".join(f"{quoted(name)} = EXCLUDED.{quoted(name)}" for name in names if name not in key)
    action = f"UPDATE SET {settings}" if settings else "NOTHING"
    return f"{sql} ON CONFLICT ({', '.join(map(quoted, table.key))}) DO {action}"


def _merge(table: TargetTable, columns: Sequence[tuple[StagedColumn, str]]) -> str:
    """Return a MERGE with the same effect, for rows of which most exist."""
    key = [pair for pair in columns if pair[1] in set(table.key)]
    settings = ", ".join(f"{quoted(name)} = {column.value}" for column, name in columns if name not in set(table.key))
    return (
        f"MERGE INTO {quoted_table(table.place)} AS t USING {ROWS} ON {_same(key)} "
        f"WHEN MATCHED THEN {f'UPDATE SET {settings}' if settings else 'DO NOTHING'} "
        f"WHEN NOT MATCHED THEN INSERT ({', '.join(quoted(name) for _, name in columns)}) OVERRIDING SYSTEM VALUE "
        f"VALUES ({', '.join(column.value for column, _ in columns)})"
    )


def _not_found(table: TargetTable, message: str) -> LoadError:
    error = LoadError(
        f"{message} (error {NOT_FOUND})",
        where=str(table.table),
        hint="somebody else changed the table, or it never had these rows: copy it anew (`sluice dump start PIPELINE "
        "--table SCHEMA.TABLE`, the source's name of it)",
    )
    error.code = NOT_FOUND
    return error
