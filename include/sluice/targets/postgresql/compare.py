"""Compare rows inside the server: what would be loaded is sent as for a load, cast to the column's own type, and the
server compares.

Two values are equal if their text is. With ``extra_float_digits = 1`` that is exact for every type, and tells apart 0
and -0, and numbers of different scale; text is compared byte by byte.
"""

# ruff: noqa: S608 - identifiers are quoted, values are parameters or literals made by range_delete

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from sluice.model.digests import SHARED, RangeDigest
from sluice.model.fields import made_field
from sluice.model.planned import PlannedTable
from sluice.model.tables import TableId
from sluice.postgresql import shared_digest
from sluice.postgresql.names import quoted, quoted_table
from sluice.postgresql.range_digest import KIND, DigestColumn, digest_sql, digest_word, is_built_in
from sluice.postgresql.type_names import pg_type
from sluice.targets.port import SHOWN_CHARACTERS, KeyRange, RangeDifferences, RowCounts, RowDifference
from sluice.targets.postgresql.keys import read_keys, shown
from sluice.targets.postgresql.range_delete import TOLD_ALIKE, is_alike, stretches
from sluice.targets.postgresql.session import Session
from sluice.targets.postgresql.staging import ROWS, Stage, Staged, StagedColumn
from sluice.targets.sql.compare import (
    MOST_COUNTS,
    NUMBER,
    counted,
    differences,
    first_of,
    sorted_out,
)
from sluice.targets.sql.rows import at_target, sent_fields, spelt
from sluice.targets.sql.tables import TargetTable

KEYS_AT_A_TIME = 10_000
COMPARED, CHANGED = "_sluice_compared", "_sluice_changed"


class Server(Protocol):
    """The parts of a target that a comparison uses."""

    def session(self, doing: str) -> AbstractContextManager[Session]: ...

    def check(self, tables: Sequence[PlannedTable]) -> Mapping[TableId, TargetTable]: ...

    def transaction(
        self, session: Session, work: Callable[[], RangeDifferences], doing: str
    ) -> tuple[RangeDifferences, int]: ...


@dataclass(frozen=True)
class PostgreSQLComparer:
    """See :class:`sluice.targets.port.Comparer` and :class:`sluice.targets.port.KeyLister`."""

    target: Server
    zero_dates: str
    _digested: dict[TableId, TargetTable] = field(default_factory=dict)
    """The tables as :meth:`digest` read them first. If one is altered later, a checksum differs or is refused."""

    def compare(
        self, plan: PlannedTable, rows: pa.Table, item: KeyRange | None, *, values: bool = False
    ) -> RangeDifferences:
        """See :meth:`sluice.targets.port.Comparer.compare`."""
        table = self.target.check([plan])[plan.target]
        doing = f"comparing {plan.target}"
        with self.target.session(doing) as session:

            def work() -> RangeDifferences:
                stage = Stage(session.cursor, table, self.zero_dates)
                with stage.unordered():
                    return _Comparison(stage, table, plan, rows).run(item, values)

            return self.target.transaction(session, work, doing)[0]

    def digest_words(self, plan: PlannedTable) -> tuple[str, ...]:
        """See :meth:`sluice.targets.port.Comparer.digest_words`."""
        return self._words(plan, KIND, lambda declared: digest_word(declared, built_in=is_built_in(declared)))

    def digest(self, plan: PlannedTable, item: KeyRange) -> RangeDigest:
        """See :meth:`sluice.targets.port.Comparer.digest`."""
        return self._computed(digest_sql, plan, item)

    def shared_digest_words(self, plan: PlannedTable) -> tuple[str, ...]:
        """See :meth:`sluice.targets.port.SharedComparer.shared_digest_words`."""
        return self._words(plan, SHARED, shared_digest.shared_word)

    def shared_digest(self, plan: PlannedTable, item: KeyRange) -> RangeDigest:
        """See :meth:`sluice.targets.port.SharedComparer.shared_digest`."""
        digest = self._computed(shared_digest.shared_digest_sql, plan, item)
        return RangeDigest(digest.rows, digest.checksum & shared_digest.MASK)

    def _words(self, plan: PlannedTable, kind: str, word_of: Callable[[str], str]) -> tuple[str, ...]:
        table = self.target.check([plan])[plan.target]
        types = {name.casefold(): declared for name, declared in zip(table.columns, table.types, strict=True)}
        words: list[str] = []
        for column in plan.columns:
            declared = types.get(column.name.casefold())
            word = word_of(declared) if declared is not None else ""
            if declared is not None and not word:
                return ()
            words.append(word)
        return kind, *words

    def _computed(
        self, sql: Callable[[str, Sequence[DigestColumn], str, str], str], plan: PlannedTable, item: KeyRange
    ) -> RangeDigest:
        table = self._digested.get(plan.target)
        if table is None:
            table = self._digested[plan.target] = self.target.check([plan])[plan.target]
        by_name = {n.casefold(): DigestColumn(n, kind) for n, kind in zip(table.columns, table.types, strict=True)}
        columns = [by_name[column.name.casefold()] for column in plan.columns]
        digest = RangeDigest()
        with self.target.session(f"computing a checksum of {plan.target}") as session:
            for condition in stretches(table, spelt(table, item)):
                session.cursor.execute(sql(f"{quoted_table(table.place)} AS t", columns, condition, "t"))
                digest = digest.plus(*session.cursor.fetchone())
        return digest

    def not_listed(self, plan: PlannedTable) -> str:
        """See :meth:`sluice.targets.port.KeyLister.not_listed`."""
        table = self.target.check([plan])[plan.target]
        declared = dict(zip(table.columns, table.types, strict=True))
        for column, name in zip(plan.key_columns, table.key, strict=True):
            if not is_alike(column.value_type, pg_type(declared[name]).word, TOLD_ALIKE):
                return (
                    f"the key column {column.name} ({column.sql_type}) is not read back from PostgreSQL's "
                    f"{declared[name]}"
                )
        return ""

    def keys(self, plan: PlannedTable) -> Iterator[pa.Table]:
        """See :meth:`sluice.targets.port.KeyLister.keys`.

        In the table's own order; no transaction stays open in between.
        """
        table, columns = self.target.check([plan])[plan.target], plan.key_columns
        types = dict(zip(table.columns, table.types, strict=True))
        values = ", ".join(shown(f"t.{quoted(name)}", types[name]) for name in table.key)
        order = ", ".join(f"t.{quoted(name)}" for name in table.key)
        after: pa.Table | None = None
        while True:
            [condition] = stretches(table, KeyRange(table.key, after=after))
            with self.target.session(f"listing keys of {plan.target}") as session:
                session.cursor.execute(
                    f"SELECT {values} FROM {quoted_table(table.place)} AS t WHERE {condition} ORDER BY {order} LIMIT "
                    f"{KEYS_AT_A_TIME}"
                )
                key_rows = session.cursor.fetchall()
            if not key_rows:
                return
            keys = read_keys({column.name: column.value_type for column in columns}, key_rows)
            after = keys.slice(keys.num_rows - 1)
            yield keys

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
        table = self.target.check([plan])[plan.target]
        with self.target.session(f"comparing {plan.target}") as session:
            count = _Count(Stage(session.cursor, table, self.zero_dates), table, plan)
            return count.run(rows, changed, whole=whole, shown=shown, most=most)


@dataclass(frozen=True)
class _Comparison:
    stage: Stage
    table: TargetTable
    plan: PlannedTable
    rows: pa.Table

    def run(self, item: KeyRange | None, values: bool) -> RangeDifferences:
        item = spelt(self.table, item) if item is not None else None
        fields = sent_fields(self.rows.schema, self.table)
        columns = [StagedColumn.of(n, field) for n, (field, _) in enumerate(fields)]
        names = [name for _, name in fields]
        number = StagedColumn.of(len(columns), at_target(made_field(NUMBER, pa.int32()), "integer"))
        numbers = pa.array(np.arange(self.rows.num_rows, dtype=np.int32))
        numbered = self.rows.append_column(number.field, numbers)
        if not self.rows.num_rows:
            return differences((), (), self._beyond(None, {}, item) if item is not None else None, item)
        own = dict(zip(names, columns, strict=True))
        with self.stage.rows(numbered, [*columns, number]) as staged:
            missing, different = self._looked_up(staged, names, own, number, values)
            return differences(missing, different, self._beyond(staged, own, item) if item is not None else None, item)

    def _same_key(self, own: dict[str, StagedColumn], names: Sequence[str]) -> str:
        by_name = {name.casefold(): column for name, column in own.items()}
        return " AND ".join(f"t.{quoted(name)} = {by_name[name.casefold()].compared}" for name in names)

    def _looked_up(
        self, staged: Staged, names: Sequence[str], own: dict[str, StagedColumn], number: StagedColumn, values: bool
    ) -> tuple[tuple[int, ...], tuple[RowDifference, ...]]:
        """Return the rows sent that the target lacks, and those it has with other values."""
        own_texts = [_text(f"CAST(s.{own[name].name} AS {own[name].target.declared})") for name in names]
        other_texts = [_text(f"t.{quoted(name)}") for name in names]
        same = [f"({a} IS NOT DISTINCT FROM {b})" for a, b in zip(own_texts, other_texts, strict=True)]
        clipped = [
            f"left({text}, {SHOWN_CHARACTERS})" for pair in zip(own_texts, other_texts, strict=True) for text in pair
        ]
        first = f"t.{quoted(self.table.key[0])}"
        differing = self._ask(
            staged,
            f"SELECT s.{number.name}, {first} IS NULL, {', '.join([*same, *(clipped if values else ())])} FROM {ROWS} "
            f"LEFT JOIN {quoted_table(self.table.place)} AS t ON {self._same_key(own, self.table.key)} "
            f"WHERE {first} IS NULL OR NOT ({' AND '.join(same)})",
        )
        return sorted_out(differing, names, values=values)

    def _beyond(self, staged: Staged | None, own: dict[str, StagedColumn], item: KeyRange) -> pa.Table:
        """Return the keys that only the target has in the range."""
        types = {name.casefold(): declared for name, declared in zip(self.table.columns, self.table.types, strict=True)}
        key = ", ".join(shown(f"t.{quoted(name)}", types[name.casefold()]) for name in item.names)
        key_rows: list[tuple[Any, ...]] = []
        for condition in stretches(self.table, item):
            sql = f"SELECT {key} FROM {quoted_table(self.table.place)} AS t WHERE {condition}"
            if staged is not None:
                sql += f" AND NOT EXISTS (SELECT 1 FROM {ROWS} WHERE {self._same_key(own, item.names)})"
            sql += first_of(item, [f"t.{quoted(name)}" for name in item.names])
            key_rows += self._ask(staged, sql)
        planned = {column.name.casefold(): column.value_type for column in self.plan.key_columns}
        return read_keys({name: planned[name.casefold()] for name in item.names}, key_rows)

    def _ask(self, staged: Staged | None, sql: str) -> list[tuple[Any, ...]]:
        if staged is not None:
            staged.run(sql)
        else:
            self.stage.cursor.execute(sql)
        return list(self.stage.cursor.fetchall())


@dataclass(frozen=True)
class _Count:
    """A comparison of rows without a key.

    Not in one transaction, so that nothing is locked at the target while the source's rows are read.
    """

    stage: Stage
    table: TargetTable
    plan: PlannedTable

    def run(
        self,
        rows: Iterable[pa.Table],
        changed: Callable[[], Iterable[pa.Table]],
        *,
        whole: bool,
        shown: Sequence[str],
        most: int,
    ) -> RowCounts:
        spelling = {name.casefold(): name for name in self.table.columns}
        names = [spelling[c.name.casefold()] for c in self.plan.columns if c.name.casefold() in spelling]
        cursor = self.stage.cursor
        try:
            count = self._send(COMPARED, rows, names)
            shown_columns = [quoted(spelling[name.casefold()]) for name in shown]
            texts = [f", left({_text(f't.{name}')}, {SHOWN_CHARACTERS})" for name in shown_columns]
            values = "".join(f"{text} AS v{i}" for i, text in enumerate(texts))
            shown_values = "".join(f", min(v{i})" for i in range(len(shown)))
            cursor.execute(
                f"SELECT h, sum(here), sum(there){shown_values} FROM ("
                f"SELECT {_hash(names)} AS h, 1 AS here, 0 AS there{values} FROM pg_temp.{COMPARED} AS t UNION ALL "
                f"SELECT {_hash(names)}, 0, 1{''.join(texts)} FROM {quoted_table(self.table.place)} AS t) AS x "
                f"GROUP BY h HAVING sum(here) <> sum(there){'' if whole else ' AND sum(here) > 0'} LIMIT "
                f"{MOST_COUNTS + 1}"
            )
            groups, late = cursor.fetchall(), []
            if groups:
                self._send(CHANGED, changed(), names)
                cursor.execute(f"SELECT DISTINCT {_hash(names)} FROM pg_temp.{CHANGED} AS t")
                late = cursor.fetchall()
            return counted(count, groups, late, most=most)
        finally:
            cursor.execute(f"DROP TABLE IF EXISTS pg_temp.{COMPARED}, pg_temp.{CHANGED}")

    def _send(self, name: str, pieces: Iterable[pa.Table], names: Sequence[str]) -> int:
        """Send rows into a temporary table of the target's own types."""
        columns = ", ".join(map(quoted, names))
        self.stage.cursor.execute(
            f"CREATE TEMPORARY TABLE {name} AS SELECT {columns} FROM {quoted_table(self.table.place)} WITH NO DATA"
        )
        stage = Stage(
            self.stage.cursor, replace(self.table, table=TableId("pg_temp", name), named=None), self.stage.zero_dates
        )
        count = 0
        for piece in pieces:
            fields = sent_fields(piece.schema, self.table)
            staged = [StagedColumn.of(number, field) for number, (field, _) in enumerate(fields)]
            stage.copy(piece, staged, [name for _, name in fields])
            count += piece.num_rows
        return count


def _hash(names: Sequence[str]) -> str:
    """Return SQL for the hash of all values of a row of ``t``; NULL differs from the empty text."""
    return f"sha256(convert_to(ROW({', '.join(_text(f't.{quoted(name)}') for name in names)})::text, 'UTF8'))"


def _text(value: str) -> str:
    return f'({value})::text COLLATE "C"'


__all__ = ["PostgreSQLComparer"]
