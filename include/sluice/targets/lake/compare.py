"""Compare rows with a lake table: converted as for a load, and compared with the table's rows of the same keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.errors import MappingError
from sluice.model.fields import true_name
from sluice.model.planned import PlannedTable
from sluice.targets.lake.keys import keys_of, listed_keys, not_listed, stored_key
from sluice.targets.lake.tables import LakeTables
from sluice.targets.lake.types import TableInfo, arrow_of
from sluice.targets.lake.values import convert, plain, sent_columns, user_fields
from sluice.targets.port import (
    SHOWN_CHARACTERS,
    ComparesRowsOnly,
    KeyRange,
    RangeDifferences,
    RowDifference,
    keys_where,
)

_BITS = {pa.float32(): pa.int32(), pa.float64(): pa.int64()}
"""The integer types by whose bits 0 and -0 are told apart."""


@dataclass(frozen=True)
class LakeComparer(ComparesRowsOnly):
    """See :class:`sluice.targets.port.Comparer` and :class:`sluice.targets.port.KeyLister`.

    It has no ranges and no checksums.
    """

    tables: LakeTables

    def compare(
        self, plan: PlannedTable, rows: pa.Table, item: KeyRange | None, *, values: bool = False
    ) -> RangeDifferences:
        """See :meth:`sluice.targets.port.Comparer.compare`. Raises MappingError for a table without a key."""
        if not plan.key:
            raise MappingError(
                f"{plan.target} has no key by which its rows could be found",
                where=str(plan.target),
                hint="give it a primary key",
            )
        table = self.tables.required(plan.target)
        info = self.tables.format.info(table)
        key = [column.name for name in plan.key if (column := info.find(name)) is not None]
        fields = user_fields(rows.schema)
        sent = sent_columns(fields, info, plan.target, list(map(true_name, fields)))
        source_values, _ = convert(rows, sent, zero_dates=self.tables.options.zero_dates)
        differences = RangeDifferences()
        if rows.num_rows:
            differences = _compared(source_values, self._there(table, plan, source_values, key), key, values=values)
        if item is not None:
            differences = replace(differences, extra=self._beyond(table, plan, info, keys_of(source_values, key), item))
        return differences

    def not_listed(self, plan: PlannedTable) -> str:
        """See :meth:`sluice.targets.port.KeyLister.not_listed`."""
        return not_listed(plan, self.tables.format.info(self.tables.required(plan.target)))

    def keys(self, plan: PlannedTable) -> Iterator[pa.Table]:
        """See :meth:`sluice.targets.port.KeyLister.keys`."""
        table = self.tables.required(plan.target)
        info = self.tables.format.info(table)
        columns = plan.key_columns
        names = [stored_column.name for column in columns if (stored_column := info.find(column.name)) is not None]
        for piece in self.tables.format.read(plan.target, table, names, {}):
            own = (pc.cast(plain(piece[name]), arrow_of(_kind(info, name))) for name in names)
            rows = [stored_key(column, values) for column, values in zip(columns, own, strict=True)]
            yield pa.table(rows, names=names)

    def _beyond(
        self, table: Any, plan: PlannedTable, info: TableInfo, sent: Sequence[tuple[Any, ...]], item: KeyRange
    ) -> pa.Table | None:
        """Return the listed keys that only the table has."""
        listed = item.listed
        if listed is None or not listed.num_rows:
            return None
        keys = listed_keys(plan, info, listed)
        here = set(keys_of(self._there(table, plan, keys, list(keys)), list(keys))) - set(sent)
        return keys_where(listed, [own in here for own in keys_of(keys, list(keys))])

    def _there(
        self, table: Any, plan: PlannedTable, source_values: Mapping[str, pa.Array], key: Sequence[str]
    ) -> dict[str, pa.Array]:
        """Return the table's rows whose key columns have one of the source's values, by column, in the source's types.

        Files are left out only by their bounds for integers: bounds of other types are not always exact.
        """
        among = {name: pc.unique(source_values[name]).drop_null() for name in key}
        edges = {name: pc.min_max(some) for name, some in among.items() if pa.types.is_integer(some.type) and len(some)}
        bounds = {name: (edge["min"].as_py(), edge["max"].as_py()) for name, edge in edges.items()}
        pieces = []
        for piece in self.tables.format.read(plan.target, table, list(source_values), bounds):
            rows = pa.table({name: pc.cast(piece[name], source_values[name].type) for name in source_values})
            for name, some in among.items():
                rows = rows.filter(pc.is_in(rows[name], some))
            pieces.append(rows)
        matching = pa.concat_tables(pieces) if pieces else pa.table(dict(source_values)).slice(0, 0)
        return {name: plain(matching[name]) for name in source_values}


def _compared(
    source_values: Mapping[str, pa.Array], stored_values: Mapping[str, pa.Array], key: Sequence[str], *, values: bool
) -> RangeDifferences:
    places: dict[tuple[Any, ...], int] = {}
    twice = set()
    for place, row_key in enumerate(keys_of(stored_values, key)):
        if places.setdefault(row_key, place) != place:
            twice.add(row_key)
    keys = keys_of(source_values, key)
    missing = tuple(number for number, row_key in enumerate(keys) if row_key not in places)
    numbers = np.array([number for number, row_key in enumerate(keys) if row_key in places], np.int64)
    at = pa.array([places[keys[number]] for number in numbers], pa.int64())
    odd: dict[int, list[str]] = {int(number): list(key) for number in numbers if keys[number] in twice}
    for name, own in source_values.items():
        same = _same(own.take(pa.array(numbers)), stored_values[name].take(at))
        for number in numbers[~same]:
            odd.setdefault(int(number), []).append(name)

    def pair(number: int, name: str) -> tuple[str | None, str | None]:
        return _text(source_values[name][number]), _text(stored_values[name][places[keys[number]]])

    different = tuple(
        RowDifference(number, tuple(names), tuple(pair(number, name) for name in names) if values else ())
        for number, names in sorted(odd.items())
    )
    return RangeDifferences(missing, different)


def _kind(info: TableInfo, name: str) -> str:
    column = info.find(name)
    return column.kind if column is not None and isinstance(column.kind, str) else ""


def _same(source: pa.Array, stored: pa.Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return a mask of equal values: NULL equals only NULL, and every bit of a number counts."""
    if source.type in _BITS:
        source, stored = source.view(_BITS[source.type]), stored.view(_BITS[stored.type])
    equal = pc.fill_null(pc.equal(source, stored), False)
    mask: np.ndarray[Any, np.dtype[np.bool_]] = pc.or_(equal, pc.and_(pc.is_null(source), pc.is_null(stored))).to_numpy(
        zero_copy_only=False
    )
    return mask


def _text(value: pa.Scalar) -> str | None:
    if not value.is_valid:
        return None
    if pa.types.is_binary(value.type) or pa.types.is_large_binary(value.type):
        return f"0x{value.as_py().hex().upper()}"[:SHOWN_CHARACTERS]
    return str(pc.cast(value, pa.string()).as_py() if not pa.types.is_decimal(value.type) else value.as_py())[
        :SHOWN_CHARACTERS
    ]
