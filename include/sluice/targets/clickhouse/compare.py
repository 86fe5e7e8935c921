"""Compare rows with what a target holds: what a load would send is made, and compared with the newest rows of the
table.
"""

# ruff: noqa: S608 - identifiers and texts are quoted

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.errors import LoadError
from sluice.model.fields import true_name
from sluice.model.planned import PlannedTable
from sluice.targets.clickhouse.client import Client, connected
from sluice.targets.clickhouse.place import Place
from sluice.targets.clickhouse.rows import TableRows, key_tuples
from sluice.targets.clickhouse.sql import name, table_name
from sluice.targets.clickhouse.tables import held_tables, require
from sluice.targets.clickhouse.values import comparable, read_expression, stored_key
from sluice.targets.clickhouse.writer import sent_keys, years_of
from sluice.targets.messages.read_back import listed_keys
from sluice.targets.messages.row_texts import not_read_back
from sluice.targets.port import (
    SHOWN_CHARACTERS,
    ComparesRowsOnly,
    KeyRange,
    RangeDifferences,
    RowDifference,
    keys_where,
)

_LISTED = 1_000_000
"""Keys that are listed at a time."""


@dataclass(frozen=True)
class ClickHouseComparer(ComparesRowsOnly):
    """See :class:`sluice.targets.port.Comparer` and :class:`sluice.targets.port.KeyLister`.

    It has no ranges and no checksums.
    """

    place: Place

    def compare(
        self, plan: PlannedTable, rows: pa.Table, item: KeyRange | None, *, values: bool = False
    ) -> RangeDifferences:
        """See :meth:`sluice.targets.port.Comparer.compare`. Raises MappingError."""
        with connected(self.place) as client:
            table, rows = self._made(client, plan), rows.combine_chunks()
            fields = table.fields(rows.schema)
            own_columns = table.converted(rows, fields, np.ones(rows.num_rows, bool)).columns
            key = [true_name(field) for field in table.key_fields(rows.schema)]
            differences = RangeDifferences()
            if rows.num_rows:
                types = {column: values.type for column, values in own_columns.items()}
                stored = table.held_rows(client, {column: own_columns[column] for column in key}, types)
                odd = {column for column in own_columns if table.held.columns[column].type.word == "JSON"}
                differences = _compared(
                    {column: own for column, own in own_columns.items() if column not in odd},
                    stored,
                    key,
                    values=values,
                )
            if item is None or item.listed is None:
                return differences
            return replace(
                differences,
                extra=self._beyond(client, table, rows, item, {column: own_columns[column] for column in key}),
            )

    def not_listed(self, plan: PlannedTable) -> str:
        """See :meth:`sluice.targets.port.KeyLister.not_listed`."""
        return not_read_back(plan, "the table")

    def keys(self, plan: PlannedTable) -> Iterator[pa.Table]:
        """See :meth:`sluice.targets.port.KeyLister.keys`."""
        with connected(self.place, slow=True) as client:
            rows = self._made(client, plan)
            held_table, place = rows.held, table_name(rows.held.table)
            [[count]] = client.ask("counting rows", f"SELECT count() FROM {place} FORMAT JSONCompactEachRow").rows
            shares = -(-int(count) // _LISTED) or 1
            columns = ", ".join(
                f"{read_expression(f't.{name(column)}', held_table.columns[column].type)} AS {name(column)}"
                for column in plan.key
            )
            by = f"cityHash64({', '.join(f't.{name(column)}' for column in plan.key)})"
            for share in range(shares):
                statement = (
                    f"SELECT {columns} FROM {place} AS t FINAL WHERE {by} % {shares} = {share} "
                    "SETTINGS output_format_arrow_string_as_string = 0 FORMAT ArrowStream"
                )
                combine_chunks = client.ask(f"reading keys of {held_table.table}", statement).table.combine_chunks()
                yield self._key_table(rows, combine_chunks)

    def _key_table(self, rows: TableRows, key_rows: pa.Table) -> pa.Table:
        key_columns = {}
        try:
            for column in rows.plan.key_columns:
                values = key_rows[column.name]
                chunk = values.chunk(0) if values.num_chunks else pa.array([], values.type)
                key_columns[column.name] = stored_key(chunk, column.sent_type)
        except (pa.ArrowException, ValueError) as error:
            raise LoadError(
                f"keys of {rows.plan.target} cannot be read back: {error!r}",
                where=str(rows.plan.target),
                hint="did another program write them?",
            ) from None
        return pa.table(key_columns)

    def _made(self, client: Client, plan: PlannedTable) -> TableRows:
        held_table = require(self.place, held_tables(client, [plan.target], every=False), plan)
        return TableRows(self.place, plan, held_table, years_of(client))

    def _beyond(
        self, client: Client, table: TableRows, rows: pa.Table, item: KeyRange, own_keys: Mapping[str, pa.Array]
    ) -> pa.Table | None:
        """Return the listed keys that only the target has."""
        listed = item.listed
        if listed is None or not listed.num_rows:
            return None
        keys = sent_keys(table, listed_keys(table.plan, listed, rows.schema))
        held_keys = table.held_rows(client, keys, {column: values.type for column, values in keys.items()})
        here = set(key_tuples(held_keys)) - set(key_tuples(own_keys))
        return keys_where(listed, [key in here for key in key_tuples(keys)])


def _compared(
    own_columns: Mapping[str, pa.Array], stored: Mapping[str, pa.Array], key: Sequence[str], *, values: bool
) -> RangeDifferences:
    places = {key_tuple: number for number, key_tuple in enumerate(key_tuples({name: stored[name] for name in key}))}
    keys = list(key_tuples({name: own_columns[name] for name in key}))
    missing = tuple(number for number, key_tuple in enumerate(keys) if key_tuple not in places)
    numbers = [number for number, key_tuple in enumerate(keys) if key_tuple in places]
    own, at = pa.array(numbers, pa.int64()), pa.array([places[keys[number]] for number in numbers], pa.int64())
    odd: dict[int, list[str]] = {}
    for column, values_ in own_columns.items():
        same = _same(values_.take(own), stored[column].take(at))
        for place in np.flatnonzero(~same).tolist():
            odd.setdefault(numbers[place], []).append(column)

    def pair(number: int, column: str) -> tuple[str | None, str | None]:
        return _text(own_columns[column], number), _text(stored[column], places[keys[number]])

    different = tuple(
        RowDifference(number, tuple(names), tuple(pair(number, name) for name in names) if values else ())
        for number, names in sorted(odd.items())
    )
    return RangeDifferences(missing, different)


def _same(own_values: pa.Array, held_values: pa.Array) -> np.ndarray[Any, Any]:
    """Return a mask of equal values: NULL equals only NULL, and every bit of a number counts."""
    own_values, held_values = comparable(own_values), comparable(held_values)
    equal = pc.fill_null(pc.equal(own_values, held_values), False)
    both = pc.and_(pc.is_null(own_values), pc.is_null(held_values))
    return np.asarray(pc.or_(equal, both).to_numpy(zero_copy_only=False))


def _text(values: pa.Array, number: int) -> str | None:
    value = values[number]
    if not value.is_valid:
        return None
    if pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type):
        try:
            return str(value.as_py().decode())[:SHOWN_CHARACTERS]
        except UnicodeDecodeError:
            return f"0x{value.as_py().hex().upper()}"[:SHOWN_CHARACTERS]
    text = value.as_py() if pa.types.is_decimal(values.type) else pc.cast(value, pa.string()).as_py()
    return str(text)[:SHOWN_CHARACTERS]


__all__ = ["ClickHouseComparer"]
