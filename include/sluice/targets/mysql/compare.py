"""Compare rows inside the server: what would be loaded is sent into a temporary table of the target's own types, and
the server compares.

So every conversion is the one that a load makes, and nothing is compared that was rounded on its way back. Two values
are equal if their bytes are: a collation does not hide a difference, and 0 is not -0. JSON is compared as the server
prints it, which has one order of keys.
"""

# ruff: noqa: S608 - identifiers are quoted, values are literals

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from sluice.errors import LoadError
from sluice.model.column_types import ColumnKind
from sluice.model.digests import SHARED, RangeDigest
from sluice.model.fields import made_field
from sluice.model.planned import PlannedTable
from sluice.model.tables import TableId, quoted, quoted_table
from sluice.mysql import shared_digest
from sluice.mysql.column_types import Literal, MysqlType, type_named
from sluice.mysql.key_sql import key_table
from sluice.mysql.range_digest import KIND, DigestColumn, digest_sql, digest_word, exact_text
from sluice.targets.mysql import statements
from sluice.targets.mysql.connection import kept_alive
from sluice.targets.mysql.range_delete import declared, stretches
from sluice.targets.mysql.session import Session
from sluice.targets.mysql.table_info import ColumnInfo
from sluice.targets.mysql.tables import read_tables
from sluice.targets.port import SHOWN_CHARACTERS, KeyRange, RangeDifferences, RowCounts, RowDifference
from sluice.targets.sql.compare import (
    MOST_COUNTS,
    NUMBER,
    counted,
    differences,
    first_of,
    sorted_out,
)
from sluice.targets.sql.rows import sent_fields
from sluice.targets.sql.tables import TargetTable

COMPARED = "_sluice_compared"
CHANGED = "_sluice_changed"
_LABELLED = {Literal.LABEL, Literal.LABELS}


class Server(Protocol):
    """The parts of a target that a comparison uses."""

    def session(self, doing: str) -> AbstractContextManager[Session]: ...

    def check(self, tables: Sequence[PlannedTable]) -> Mapping[TableId, TargetTable]: ...


@dataclass(frozen=True)
class MySQLComparer:
    """See :class:`sluice.targets.port.Comparer`."""

    target: Server
    _digested: dict[PlannedTable, tuple[list[DigestColumn], dict[str, str]]] = field(default_factory=dict)
    """The columns, and the types of all columns of the table, as :meth:`digest` read them first.

    If one is altered later, a checksum differs or is refused.
    """

    def compare(
        self, plan: PlannedTable, rows: pa.Table, item: KeyRange | None, *, values: bool = False
    ) -> RangeDifferences:
        """See :meth:`sluice.targets.port.Comparer.compare`."""
        with self._comparison(plan) as comparison:
            return comparison.run(rows, item, values)

    def count(
        self,
        plan: PlannedTable,
        rows: Iterable[pa.Table],
        changed: Callable[[], Iterable[pa.Table]],
        *,
        whole: bool,
        shown: Sequence[str],
        most: int,
    ) -> RowCounts:
        """See :meth:`sluice.targets.port.CountingComparer.count`."""
        with self._comparison(plan) as comparison:
            names = [column.name for column in _of(plan, comparison.columns) if not column.generated]
            return comparison.count(rows, changed, names, whole=whole, shown=shown, most=most)

    def digest_words(self, plan: PlannedTable) -> tuple[str, ...]:
        """See :meth:`sluice.targets.port.Comparer.digest_words`."""
        with self.target.session("reading the target's tables") as session:
            mariadb = session.mariadb
            words = _words(plan, session, lambda column: digest_word(column.sql_type, column.charset, mariadb=mariadb))
            return (KIND, *words) if words else ()

    def digest(self, plan: PlannedTable, item: KeyRange) -> RangeDigest:
        """See :meth:`sluice.targets.port.Comparer.digest`."""

        def sql(columns: list[DigestColumn], condition: str, *, mariadb: bool) -> str:
            return digest_sql(plan.target, columns, "", condition, mariadb=mariadb)

        return self._computed(sql, plan, item)

    def shared_digest_words(self, plan: PlannedTable) -> tuple[str, ...]:
        """See :meth:`sluice.targets.port.SharedComparer.shared_digest_words`."""
        with self.target.session("reading the target's tables") as session:
            words = _words(plan, session, lambda column: shared_digest.shared_word(column.sql_type))
            return (SHARED, *words) if words else ()

    def shared_digest(self, plan: PlannedTable, item: KeyRange) -> RangeDigest:
        """See :meth:`sluice.targets.port.SharedComparer.shared_digest`."""

        def sql(columns: list[DigestColumn], condition: str, *, mariadb: bool) -> str:
            return shared_digest.shared_digest_sql(plan.target, columns, condition, mariadb=mariadb)

        return self._computed(sql, plan, item)

    def _computed(self, sql: Callable[..., str], plan: PlannedTable, item: KeyRange) -> RangeDigest:
        with self.target.session(f"computing a checksum of {plan.target}") as session:
            if plan not in self._digested:
                target_columns = _there(session, plan)
                columns = [DigestColumn(c.name, c.sql_type, c.nullable) for c in _of(plan, target_columns)]
                self._digested[plan] = columns, {c.name: c.sql_type for c in target_columns.values()}
            columns, types = self._digested[plan]
            digest = RangeDigest()
            for condition in stretches(item, types):
                session.cursor.execute(sql(columns, condition, mariadb=session.mariadb))
                digest = digest.plus(*session.cursor.fetchone())
            return digest

    @contextmanager
    def _comparison(self, plan: PlannedTable) -> Iterator[_Comparison]:
        table = self.target.check([plan])[plan.target]
        with self.target.session(f"comparing {plan.target}") as session:
            yield _Comparison(session, plan, table, _there(session, plan))


def _words(plan: PlannedTable, session: Session, word_of: Callable[[ColumnInfo], str]) -> list[str]:
    """Return a word for each column of a plan, "" for one that the server computes; none if one has no word."""
    columns = _of(plan, _there(session, plan))
    words = ["" if column.generated else word_of(column) for column in columns]
    return words if all(word or column.generated for word, column in zip(words, columns, strict=True)) else []


def _there(session: Session, plan: PlannedTable) -> dict[str, ColumnInfo]:
    """Return the columns of a plan's table as they are now, by their folded names."""
    infos = read_tables(session.cursor, [plan.target])
    return {c.name.casefold(): c for c in infos[plan.target].columns} if plan.target in infos else {}


def _of(plan: PlannedTable, columns: Mapping[str, ColumnInfo]) -> list[ColumnInfo]:
    """Return the columns of a plan, in its order. Raises LoadError."""
    lost = [c.name for c in plan.columns if c.name.casefold() not in columns]
    if lost:
        raise LoadError(
            f"table {plan.target} at the target has no column {lost[0]!r}",
            where=str(plan.target),
            hint="`sluice check PIPELINE` shows what is missing",
        )
    return [columns[c.name.casefold()] for c in plan.columns]


@dataclass(frozen=True)
class _Comparison:
    session: Session
    plan: PlannedTable
    table: TargetTable
    columns: Mapping[str, ColumnInfo]

    def run(self, rows: pa.Table, item: KeyRange | None, values: bool) -> RangeDifferences:
        names = [name for _, name in sent_fields(rows.schema, self.table)]
        temporary = TableId(self.table.table.schema, COMPARED)
        self._make(temporary, names)
        self._send(temporary, rows, names)
        try:
            missing, different = self._looked_up(temporary, names, values)
            extra = self._beyond(temporary, item) if item is not None else None
        finally:
            self.session.cursor.execute(f"DROP TEMPORARY TABLE IF EXISTS {quoted_table(temporary)}")
        return differences(missing, different, extra, item)

    def count(
        self,
        rows: Iterable[pa.Table],
        changed: Callable[[], Iterable[pa.Table]],
        names: list[str],
        *,
        whole: bool,
        shown: Sequence[str],
        most: int,
    ) -> RowCounts:
        """Count by the columns ``names``; see :meth:`sluice.targets.port.CountingComparer.count`."""
        sent, other_table = (TableId(self.table.table.schema, name) for name in (COMPARED, CHANGED))
        try:
            self._make(sent, names)
            count = self._send_all(sent, rows, names)
            groups = self._groups(sent, names, shown, whole=whole)
            late: Iterable[Sequence[Any]] = ()
            if groups:
                self._make(other_table, names)
                self._send_all(other_table, changed(), names)
                self.session.cursor.execute(
                    f"SELECT DISTINCT {self._hash('k', names)} FROM {quoted_table(other_table)} k"
                )
                late = self.session.cursor.fetchall()
            return counted(count, groups, late, most=most)
        finally:
            for table in (sent, other_table):
                self.session.cursor.execute(f"DROP TEMPORARY TABLE IF EXISTS {quoted_table(table)}")

    def _send_all(self, temporary: TableId, pieces: Iterable[pa.Table], names: list[str]) -> int:
        count, remaining = 0, iter(pieces)
        while True:
            with kept_alive(self.session.connection):  # behind the last piece the target is waited for
                piece = next(remaining, None)
            if piece is None:
                return count
            self._send(temporary, piece, names)
            count += piece.num_rows

    def _groups(
        self, sent: TableId, names: list[str], value_columns: Sequence[str], *, whole: bool
    ) -> Sequence[Sequence[Any]]:
        """Return the different rows whose number differs: hash, number sent, number at the target, values."""
        texts = {
            side: "".join(f", {self._text(side, name)} AS v{i}" for i, name in enumerate(value_columns))
            for side in "kt"
        }
        values = "".join(f", MIN(v{i})" for i in range(len(value_columns)))
        here = (
            f"SELECT {self._hash('k', names)} AS h, 1 AS here, 0 AS there{texts['k']} FROM {quoted_table(sent)} k "
            f"UNION ALL SELECT {self._hash('t', names)}, 0, 1{texts['t']} FROM {quoted_table(self.table.table)} t"
        )
        self.session.cursor.execute(
            f"SELECT h, SUM(here) AS n, SUM(there) AS m{values} FROM ({here}) x GROUP BY h "
            f"HAVING n <> m{'' if whole else ' AND n > 0'} LIMIT {MOST_COUNTS + 1}"
        )
        groups: Sequence[Sequence[Any]] = self.session.cursor.fetchall()
        return groups

    def _hash(self, side: str, names: Sequence[str]) -> str:
        """Return SQL for the hash of all values of a row, each distinguished as :meth:`_same` does."""
        texts = []
        for name in names:
            row, column = self._type(name), f"{side}.{quoted(name)}"
            odd = row.kind is not ColumnKind.JSON and (row.shape is not None or not row.equals)
            texts.append(f"IFNULL(SHA2({column}, 256), 'N')" if odd else exact_text(column, row))
        return f"UNHEX(SHA2(CONCAT_WS(',', {', '.join(texts)}), 256))"

    def _make(self, temporary: TableId, names: list[str]) -> None:
        lines = [f"{quoted(NUMBER)} INT NOT NULL", *(f"{quoted(n)} {declared(self._column(n))} NULL" for n in names)]
        key = ", ".join(f"{quoted(n)}(191)" if self._type(n).most_bytes else quoted(n) for n in self.table.key)
        lines += [f"KEY ({key})"] if key else []
        cursor = self.session.cursor
        cursor.execute(f"DROP TEMPORARY TABLE IF EXISTS {quoted_table(temporary)}")
        cursor.execute(f"CREATE TEMPORARY TABLE {quoted_table(temporary)} ({', '.join(lines)}) ENGINE = InnoDB")

    def _send(self, temporary: TableId, rows: pa.Table, names: list[str]) -> None:
        numbered = rows.append_column(
            made_field(NUMBER, pa.int32()), pa.array(np.arange(rows.num_rows, dtype=np.int32))
        )
        types = (*(self._column(n).sql_type for n in names), "int")
        into = TargetTable(temporary, (*names, NUMBER), (), types=types)
        self.session.run(statements.upserts(into, numbered, self.session.dialect))

    def _looked_up(
        self, temporary: TableId, names: list[str], values: bool
    ) -> tuple[tuple[int, ...], tuple[RowDifference, ...]]:
        """Return the rows sent that the target lacks, and those it has with other values."""
        same = [self._same(name) for name in names]
        value_texts = [f"{self._text(side, name)}" for name in names for side in "kt"] if values else []
        first = quoted(self.table.key[0])
        join = " AND ".join(f"t.{quoted(name)} = k.{quoted(name)}" for name in self.table.key)
        cursor = self.session.cursor
        cursor.execute(
            f"SELECT k.{quoted(NUMBER)}, t.{first} IS NULL, {', '.join([*same, *value_texts])} FROM "
            f"{quoted_table(temporary)} k "
            f"LEFT JOIN {quoted_table(self.table.table)} t ON {join} WHERE t.{first} IS NULL OR NOT "
            f"({' AND '.join(same)})"
        )
        return sorted_out(cursor.fetchall(), names, values=values)

    def _beyond(self, temporary: TableId, item: KeyRange) -> pa.Table:
        """Return the keys that only the target has in the range."""
        key = ", ".join(self._literal(name) for name in item.names)
        same = " AND ".join(f"k.{quoted(n)} = t.{quoted(n)}" for n in item.names)
        ordered = first_of(item, [f"t.{quoted(n)}" for n in item.names])
        cursor = self.session.cursor
        key_rows: list[tuple[str, ...]] = []
        for condition in stretches(item, {column.name: column.sql_type for column in self.columns.values()}):
            cursor.execute(
                f"SELECT {key} FROM {quoted_table(self.table.table)} t WHERE {condition} "
                f"AND NOT EXISTS (SELECT 1 FROM {quoted_table(temporary)} k WHERE {same}){ordered}"
            )
            key_rows += [tuple(map(_as_text, row)) for row in cursor.fetchall()]
        types = {column.name.casefold(): column.value_type for column in self.plan.key_columns}
        return key_table({name: types[name.casefold()] for name in item.names}, key_rows)

    # -- values --------------------------------------------------------------------------------------------------------
    def _column(self, name: str) -> ColumnInfo:
        return self.columns[name.casefold()]

    def _type(self, name: str) -> MysqlType:
        return type_named(self._column(name).sql_type, f"{self.table.table}.{name}")

    def _same(self, name: str) -> str:
        """Return SQL that is 1 if the row sent has the same value, NULL included, else 0; never NULL."""
        row, (k, t) = self._type(name), (f"{side}.{quoted(name)}" for side in "kt")
        if row.kind is ColumnKind.JSON:
            return f"(CAST(CAST({k} AS CHAR) AS BINARY) <=> CAST(CAST({t} AS CHAR) AS BINARY))"
        if row.literal in _LABELLED:
            return f"(CAST({k} AS UNSIGNED) <=> CAST({t} AS UNSIGNED))"
        if row.shape is not None or not row.equals:
            return f"(HEX({k}) <=> HEX({t}))"
        if row.literal is Literal.BYTES or (row.literal is Literal.TEXT and row.charset):
            return f"(CAST({k} AS BINARY) <=> CAST({t} AS BINARY))"
        if row.literal is Literal.FLOAT:  # 0 and -0 are equal
            return f"({k} <=> {t} AND (CAST({k} AS CHAR) LIKE '-%') <=> (CAST({t} AS CHAR) LIKE '-%'))"
        return f"({k} <=> {t})"

    def _text(self, side: str, name: str) -> str:
        """Return SQL for the value as text for display."""
        row, column = self._type(name), f"{side}.{quoted(name)}"
        if row.literal is Literal.BYTES or row.kind is ColumnKind.BIT:
            return f"LEFT(CONCAT('0x', HEX({column})), {SHOWN_CHARACTERS})"
        if row.kind is ColumnKind.FLOAT:
            column = f"CAST({column} AS DOUBLE)"
        return f"LEFT(CONVERT(CAST({column} AS CHAR) USING utf8mb4), {SHOWN_CHARACTERS})"

    def _literal(self, name: str) -> str:
        """Return SQL for a key column's value as :mod:`sluice.mysql.key_sql` writes it."""
        row, column = self._type(name), f"t.{quoted(name)}"
        if row.literal is Literal.TEMPORAL:
            cast_type = {ColumnKind.DATE: "DATE", ColumnKind.TIME: "TIME(6)"}.get(row.kind, "DATETIME(6)")
            return f"CONCAT('''', CAST({column} AS {cast_type}), '''')"
        if row.literal in _LABELLED or row.kind is ColumnKind.BIT:
            return f"CAST({column} AS UNSIGNED)"
        if row.literal is Literal.FLOAT:
            text = f"CAST(CAST({column} AS DOUBLE) AS CHAR)"
            return f"IF(LOCATE('e', {text}), {text}, CONCAT({text}, 'e0'))"
        if row.literal is Literal.BYTES:
            return f"CONCAT('x''', LOWER(HEX({column})), '''')"
        if row.literal is Literal.TEXT:
            return f"CONCAT('_utf8mb4 x''', LOWER(HEX(CONVERT(CAST({column} AS CHAR) USING utf8mb4))), '''')"
        return column


def _as_text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode()
    return f"{value:f}" if hasattr(value, "as_tuple") else str(value)


__all__ = ["MySQLComparer"]
