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
            made, rows = self._made(client, plan), rows.combine_chunks()
            fields = made.fields(rows.schema)
            own_columns = made.converted(rows, fields, np.ones(rows.num_rows, bool)).columns
            key = [true_name(field) for field in made.key_fields(rows.schema)]
            differences = RangeDifferences()
            if rows.num_rows:
                types = {one: values.type for one, values in own_columns.items()}
                there = made.held_rows(client, {one: own_columns[one] for one in key}, types)
                odd = {column for column in own_columns if made.held.columns[column].type.word == "JSON"}
                differences = _compared(
                    {one: own for one, own in own_columns.items() if one not in odd}, there, key, values=values
                )
            if item is None or item.listed is None:
                return differences
            return replace(
                differences, extra=self._beyond(client, made, rows, item, {one: own_columns[one] for one in key})
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
                f"{read_expression(f't.{name(one)}', held_table.columns[one].type)} AS {name(one)}" for one in plan.key
            )
            by = f"cityHash64({', '.join(f't.{name(one)}' for one in plan.key)})"
            for share in range(shares):
                statement = (
                    f"SELECT {columns} FROM {place} AS t FINAL WHERE {by} % {shares} = {share} "
                    "SETTINGS output_format_arrow_string_as_string = 0 FORMAT ArrowStream"
                )
                combine_chunks = client.ask(f"reading keys of {held_table.table}", statement).table.combine_chunks()
                yield self._key_table(rows, combine_chunks)

    def _key_table(self, rows: TableRows, there: pa.Table) -> pa.Table:
        found = {}
        try:
            for column in rows.plan.key_columns:
                values = there[column.name]
                chunk = values.chunk(0) if values.num_chunks else pa.array([], values.type)
                found[column.name] = stored_key(chunk, column.sent_type)
        except (pa.ArrowException, ValueError) as error:
            raise LoadError(
                f"keys of {rows.plan.target} cannot be read back: {error!r}",
                where=str(rows.plan.target),
                hint="did another program write them?",
            ) from None
        return pa.table(found)

    def _made(self, client: Client, plan: PlannedTable) -> TableRows:
        held_table = require(self.place, held_tables(client, [plan.target], every=False), plan)
        return TableRows(self.place, plan, held_table, years_of(client))

    def _beyond(
        self, client: Client, made: TableRows, rows: pa.Table, item: KeyRange, mine: Mapping[str, pa.Array]
    ) -> pa.Table | None:
        """Return the listed keys that only the target has."""
        listed = item.listed
        if listed is None or not listed.num_rows:
            return None
        keys = sent_keys(made, listed_keys(made.plan, listed, rows.schema))
        there = made.held_rows(client, keys, {one: values.type for one, values in keys.items()})
        here = set(key_tuples(there)) - set(key_tuples(mine))
        return keys_where(listed, [one in here for one in key_tuples(keys)])


def _compared(
    mine: Mapping[str, pa.Array], there: Mapping[str, pa.Array], key: Sequence[str], *, values: bool
) -> RangeDifferences:
    places = {one: number for number, one in enumerate(key_tuples({name: there[name] for name in key}))}
    keys = list(key_tuples({name: mine[name] for name in key}))
    missing = tuple(number for number, one in enumerate(keys) if one not in places)
    numbers = [number for number, one in enumerate(keys) if one in places]
    own, at = pa.array(numbers, pa.int64()), pa.array([places[keys[number]] for number in numbers], pa.int64())
    odd: dict[int, list[str]] = {}
    for one, values_ in mine.items():
        same = _same(values_.take(own), there[one].take(at))
        for place in np.flatnonzero(~same).tolist():
            odd.setdefault(numbers[place], []).append(one)

    def pair(number: int, one: str) -> tuple[str | None, str | None]:
        return _text(mine[one], number), _text(there[one], places[keys[number]])

    different = tuple(
        RowDifference(number, tuple(names), tuple(pair(number, name) for name in names) if values else ())
        for number, names in sorted(odd.items())
    )
    return RangeDifferences(missing, different)


def _same(mine: pa.Array, there: pa.Array) -> np.ndarray[Any, Any]:
    """Return a mask of equal values: NULL equals only NULL, and every bit of a number counts."""
    mine, there = comparable(mine), comparable(there)
    equal = pc.fill_null(pc.equal(mine, there), False)
    both = pc.and_(pc.is_null(mine), pc.is_null(there))
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
