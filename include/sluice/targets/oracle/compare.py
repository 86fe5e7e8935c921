"""Compare rows with what the target holds: what a load would send is made, and compared with the rows of the table."""

# ruff: noqa: S608 - identifiers are quoted, values are bound

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import pyarrow as pa

from sluice.model.planned import PlannedTable
from sluice.model.tables import TableId
from sluice.targets.oracle.column_types import OracleType
from sluice.targets.oracle.keys import TOLD_ALIKE, Key, conditions, held_keys, key_types, table_of
from sluice.targets.oracle.session import Session
from sluice.targets.oracle.values import BoundColumn, Policies, bound, comparable, shown
from sluice.targets.port import (
    MOST_EXTRA,
    SHOWN_CHARACTERS,
    ComparesRowsOnly,
    KeyRange,
    RangeDifferences,
    RowDifference,
)
from sluice.targets.sql.compare import differences
from sluice.targets.sql.names import quoted, quoted_table
from sluice.targets.sql.rows import sent_fields, spelt
from sluice.targets.sql.tables import TargetTable

KEYS_AT_A_TIME = 10_000


class Server(Protocol):
    """The parts of a target that a comparison uses."""

    def session(self, doing: str) -> AbstractContextManager[Session]: ...

    def check(self, tables: Sequence[PlannedTable]) -> Mapping[TableId, TargetTable]: ...


@dataclass(frozen=True)
class OracleComparer(ComparesRowsOnly):
    """See :class:`sluice.targets.port.Comparer` and :class:`sluice.targets.port.KeyLister`.

    It computes no checksums. Texts that are empty, and dates that no calendar has, are compared as they would be
    loaded.
    """

    target: Server
    policies: Policies

    def compare(
        self, plan: PlannedTable, rows: pa.Table, item: KeyRange | None, *, values: bool = False
    ) -> RangeDifferences:
        """See :meth:`sluice.targets.port.Comparer.compare`."""
        table = self.target.check([plan])[plan.target]
        with self.target.session(f"comparing {plan.target}") as session:
            range_differences = _Comparison(session, table, plan, self.policies).run(rows, item, values)
            session.rollback()
            return range_differences

    def not_listed(self, plan: PlannedTable) -> str:
        """See :meth:`sluice.targets.port.KeyLister.not_listed`."""
        table = self.target.check([plan])[plan.target]
        for column, kind in zip(plan.key_columns, key_types(table, table.key), strict=True):
            if kind.word not in TOLD_ALIKE.get(column.value_type.kind, frozenset()):
                return (
                    f"the key column {column.name} ({column.sql_type}) is not read back from Oracle's {kind.declared}"
                )
        return ""

    def keys(self, plan: PlannedTable) -> Iterator[pa.Table]:
        """See :meth:`sluice.targets.port.KeyLister.keys`."""
        table = self.target.check([plan])[plan.target]
        types = {name: column.value_type for name, column in zip(table.key, plan.key_columns, strict=True)}
        with self.target.session(f"reading keys of {plan.target}") as session:
            stored_keys = held_keys(session.cursor, table, KeyRange(table.key), key_types(table, table.key))
            while some := list(islice(stored_keys, KEYS_AT_A_TIME)):
                yield table_of(table.key, types, some).rename_columns(list(plan.key))
            session.rollback()


@dataclass(frozen=True)
class _Comparison:
    session: Session
    table: TargetTable
    plan: PlannedTable
    policies: Policies

    def run(self, rows: pa.Table, item: KeyRange | None, values: bool) -> RangeDifferences:
        fields = sent_fields(rows.schema, self.table)
        columns = [BoundColumn.of(number, field) for number, (field, _) in enumerate(fields)]
        names = [name for _, name in fields]
        types = [column.target for column in columns]
        sent = bound(rows.combine_chunks(), columns, self.table, self.policies).rows if rows.num_rows else []
        source_rows = [_row([row[column.name] for column in columns], types) for row in sent]
        places = [names.index(name) for name in self.table.key]
        keys = [tuple(row[place] for place in places) for row in source_rows]
        stored_rows = self._there(names, types, keys, places)
        missing = tuple(number for number, key in enumerate(keys) if key not in stored_rows)
        different = tuple(
            self._difference(number, names, row, stored_rows[key], values)
            for number, (key, row) in enumerate(zip(keys, source_rows, strict=True))
            if key in stored_rows and stored_rows[key] != row
        )
        return differences(missing, different, self._beyond(item, set(keys)) if item is not None else None, item)

    def _there(
        self, names: Sequence[str], types: Sequence[OracleType], keys: Sequence[Key], places: Sequence[int]
    ) -> dict[Key, Key]:
        """Return the target's rows with these keys, by key."""
        stored_rows: dict[Key, Key] = {}
        chosen, place = ", ".join(map(quoted, names)), quoted_table(self.table.place)
        for condition, values, kinds in conditions(self.table.key, keys, [types[place] for place in places]):
            query = f"SELECT {chosen} FROM {place} WHERE {condition}"
            for row in self.session.cursor.ask(query, values, kinds).fetchall():
                read = _row(row, types)
                stored_rows[tuple(read[place] for place in places)] = read
        return stored_rows

    @staticmethod
    def _difference(number: int, names: Sequence[str], source: Key, stored: Key, values: bool) -> RowDifference:
        odd = [place for place, (a, b) in enumerate(zip(source, stored, strict=True)) if a != b]
        pairs = tuple((_cut(source[place]), _cut(stored[place])) for place in odd) if values else ()
        return RowDifference(number, tuple(names[place] for place in odd), pairs)

    def _beyond(self, item: KeyRange, sent: set[Key]) -> pa.Table:
        """Return the keys that only the target has in the range, the first ones in key order."""
        item = spelt(self.table, item)
        types = key_types(self.table, item.names)
        extra = (key for key in held_keys(self.session.cursor, self.table, item, types) if key not in sent)
        keys = list(extra if item.listed is not None else islice(extra, MOST_EXTRA + 1))
        planned = {column.name.casefold(): column.value_type for column in self.plan.key_columns}
        return table_of(item.names, {name: planned[name.casefold()] for name in item.names}, keys)


def _row(values: Sequence[Any], types: Sequence[OracleType]) -> Key:
    return tuple(comparable(value, kind) for value, kind in zip(values, types, strict=True))


def _cut(value: Any) -> str | None:
    text = shown(value)
    return None if text is None else text[:SHOWN_CHARACTERS]


__all__ = ["OracleComparer"]
