"""Rows compared where they are: what would be loaded is sent into a temporary table of the target's own types, and the server compares.

So every conversion is the one that a load makes, and nothing is compared that was rounded on its way back. Two values are equal if their bytes are:
a collation does not hide a difference, and 0 is not -0. JSON is compared as the server prints it, which has one order of keys.
"""

# ruff: noqa: S608 - identifiers are quoted, values are literals

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pymysql

from sluice.errors import LoadError
from sluice.model.column_types import ColumnKind
from sluice.model.digests import RangeDigest
from sluice.model.fields import made_field
from sluice.model.planned import PlannedTable
from sluice.model.tables import TableId, quoted, quoted_table
from sluice.mysql.column_types import Literal, MysqlType, type_named
from sluice.mysql.range_digest import digest_sql, digest_word
from sluice.targets.base import KeyRange, RangeDifferences, RowDifference
from sluice.targets.mysql import statements
from sluice.targets.mysql.range_delete import declared, stretches
from sluice.targets.mysql.session import Session
from sluice.targets.mysql.table_info import ColumnInfo
from sluice.targets.mysql.tables import read_tables
from sluice.targets.sql.comparing import NUMBER, SHOWN_CHARACTERS, sorted_out
from sluice.targets.sql.rows import sent_fields
from sluice.targets.sql.tables import TargetTable

COMPARED = "_sluice_compared"
_MAY_NOT = {1044, 1142, 1227}
_LABELLED = {Literal.LABEL, Literal.LABELS}


class Server(Protocol):
    """What this needs of a target."""

    def session(self, doing: str) -> AbstractContextManager[Session]: ...

    def check(self, tables: Sequence[PlannedTable]) -> Mapping[TableId, TargetTable]: ...


@dataclass(frozen=True)
class MySQLComparer:
    """See :class:`sluice.targets.base.Comparer`."""

    target: Server

    def compare(
        self, plan: PlannedTable, rows: pa.Table, item: KeyRange | None, *, values: bool = False
    ) -> RangeDifferences:
        """See :meth:`sluice.targets.base.Comparer.compare`."""
        table = self.target.check([plan])[plan.target]
        with self.target.session(f"comparing {plan.target}") as session:
            infos = read_tables(session.cursor, [plan.target])[plan.target].columns
            return _Comparison(session, table, {c.name.casefold(): c for c in infos}).run(rows, item, values)

    def digest_words(self, plan: PlannedTable) -> tuple[str, ...]:
        """See :meth:`sluice.targets.base.Comparer.digest_words`."""
        with self.target.session("reading the target's tables") as session:
            columns = self._columns(session, plan)
            words = [digest_word(c.sql_type, c.charset) for c in columns if not c.generated]
            if not all(words):
                return ()
            known = iter(words)
            return "mariadb" if session.mariadb else "mysql", *("" if c.generated else next(known) for c in columns)

    def digest(self, plan: PlannedTable, item: KeyRange) -> RangeDigest:
        """See :meth:`sluice.targets.base.Comparer.digest`."""
        with self.target.session(f"computing a checksum of {plan.target}") as session:
            columns = [(c.name, c.sql_type) for c in self._columns(session, plan)]
            found = RangeDigest(0, 0)
            for condition in stretches(item):
                session.cursor.execute(digest_sql(plan.target, columns, "", condition))
                rows, checksum = session.cursor.fetchone()
                found = RangeDigest(found.rows + int(rows), found.checksum ^ int(checksum))
            return found

    @staticmethod
    def _columns(session: Session, plan: PlannedTable) -> list[ColumnInfo]:
        infos = read_tables(session.cursor, [plan.target])
        there = {c.name.casefold(): c for c in infos[plan.target].columns} if plan.target in infos else {}
        lost = [c.name for c in plan.columns if c.name.casefold() not in there]
        if lost:
            raise LoadError(
                f"table {plan.target} at the target has no column {lost[0]!r}",
                where=str(plan.target),
                hint="`sluice check PIPELINE` shows what is missing",
            )
        return [there[c.name.casefold()] for c in plan.columns]


@dataclass(frozen=True)
class _Comparison:
    session: Session
    table: TargetTable
    columns: Mapping[str, ColumnInfo]

    def run(self, rows: pa.Table, item: KeyRange | None, values: bool) -> RangeDifferences:
        names = [name for _, name in sent_fields(rows.schema, self.table)]
        temporary = TableId(self.table.table.schema, COMPARED)
        self._send(temporary, rows, names)
        try:
            missing, different = self._looked_up(temporary, names, values)
            extra = self._beyond(temporary, item) if item is not None else ()
        finally:
            self.session.cursor.execute(f"DROP TEMPORARY TABLE IF EXISTS {quoted_table(temporary)}")
        return RangeDifferences(missing, different, extra)

    def _send(self, temporary: TableId, rows: pa.Table, names: list[str]) -> None:
        lines = [f"{quoted(NUMBER)} INT NOT NULL", *(f"{quoted(n)} {declared(self._column(n))} NULL" for n in names)]
        key = ", ".join(f"{quoted(n)}(191)" if self._type(n).most_bytes else quoted(n) for n in self.table.key)
        cursor = self.session.cursor
        try:
            cursor.execute(f"DROP TEMPORARY TABLE IF EXISTS {quoted_table(temporary)}")
            cursor.execute(
                f"CREATE TEMPORARY TABLE {quoted_table(temporary)} ({', '.join(lines)}, KEY ({key})) ENGINE = InnoDB"
            )
        except pymysql.err.MySQLError as error:
            if error.args[0] not in _MAY_NOT:
                raise
            raise LoadError(
                f"comparing rows of {self.table.table} needs a temporary table, and the target's user may not make one: {error.args[-1]}",
                where=str(self.table.table),
                hint=f"GRANT CREATE TEMPORARY TABLES ON {quoted(temporary.schema)}.* TO the target's user",
            ) from error
        numbered = rows.append_column(
            made_field(NUMBER, pa.int32()), pa.array(np.arange(rows.num_rows, dtype=np.int32))
        )
        types = (*(self._column(n).sql_type for n in names), "int")
        into = TargetTable(temporary, (*names, NUMBER), (), types=types)
        self.session.run(statements.upserts(into, numbered, self.session.dialect))

    def _looked_up(
        self, temporary: TableId, names: list[str], values: bool
    ) -> tuple[tuple[int, ...], tuple[RowDifference, ...]]:
        """The rows sent that the target lacks, or has otherwise."""
        same = [self._same(name) for name in names]
        shown = [f"{self._text(side, name)}" for name in names for side in "kt"] if values else []
        first = quoted(self.table.key[0])
        join = " AND ".join(f"t.{quoted(name)} = k.{quoted(name)}" for name in self.table.key)
        cursor = self.session.cursor
        cursor.execute(
            f"SELECT k.{quoted(NUMBER)}, t.{first} IS NULL, {', '.join([*same, *shown])} FROM {quoted_table(temporary)} k "
            f"LEFT JOIN {quoted_table(self.table.table)} t ON {join} WHERE t.{first} IS NULL OR NOT ({' AND '.join(same)})"
        )
        return sorted_out(cursor.fetchall(), names, values=values)

    def _beyond(self, temporary: TableId, item: KeyRange) -> tuple[tuple[str, ...], ...]:
        """Keys that only the target has in the range."""
        key = ", ".join(self._literal(name) for name in item.names)
        same = " AND ".join(f"k.{quoted(n)} = t.{quoted(n)}" for n in item.names)
        cursor = self.session.cursor
        found: list[tuple[str, ...]] = []
        for condition in stretches(item):
            cursor.execute(
                f"SELECT {key} FROM {quoted_table(self.table.table)} t WHERE {condition} "
                f"AND NOT EXISTS (SELECT 1 FROM {quoted_table(temporary)} k WHERE {same})"
            )
            found += [tuple(map(_as_text, row)) for row in cursor.fetchall()]
        return tuple(found)

    # -- values --------------------------------------------------------------------------------------------------------
    def _column(self, name: str) -> ColumnInfo:
        return self.columns[name.casefold()]

    def _type(self, name: str) -> MysqlType:
        return type_named(self._column(name).sql_type, f"{self.table.table}.{name}")

    def _same(self, name: str) -> str:
        """1 if the row sent has the same value, NULL included, else 0; never NULL."""
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
        """The value for people."""
        row, column = self._type(name), f"{side}.{quoted(name)}"
        if row.literal is Literal.BYTES or row.kind is ColumnKind.BIT:
            return f"LEFT(CONCAT('0x', HEX({column})), {SHOWN_CHARACTERS})"
        if row.kind is ColumnKind.FLOAT:
            column = f"CAST({column} AS DOUBLE)"
        return f"LEFT(CONVERT(CAST({column} AS CHAR) USING utf8mb4), {SHOWN_CHARACTERS})"

    def _literal(self, name: str) -> str:
        """A key column's value as :mod:`sluice.mysql.key_sql` writes it."""
        row, column = self._type(name), f"t.{quoted(name)}"
        if row.literal is Literal.TEMPORAL:
            whole = {ColumnKind.DATE: "DATE", ColumnKind.TIME: "TIME(6)"}.get(row.kind, "DATETIME(6)")
            return f"CONCAT('''', CAST({column} AS {whole}), '''')"
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
