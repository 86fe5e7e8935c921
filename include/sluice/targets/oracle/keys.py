"""Keys as values that Oracle tells apart as the source does, and conditions on them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa

from sluice.errors import LoadError
from sluice.model.column_types import ColumnKind, ColumnType
from sluice.model.exact_values import AS_TYPED, exact_values
from sluice.model.tables import one_chunk
from sluice.model.temporal import date_number, timestamp_number, to_python
from sluice.targets.oracle.column_types import OracleType, oracle_type
from sluice.targets.oracle.session import Cursor
from sluice.targets.oracle.values import comparable, db_type
from sluice.targets.port import KeyRange
from sluice.targets.sql.names import quoted, quoted_table
from sluice.targets.sql.tables import TargetTable

K = ColumnKind
KEYS_AT_ONCE = 500
"""Keys in a list of a statement; the server takes 1,000."""
SORTED_ALIKE: Mapping[ColumnKind, frozenset[str]] = {
    **dict.fromkeys((K.TINYINT, K.SMALLINT, K.MEDIUMINT, K.INT, K.BIGINT, K.YEAR, K.DECIMAL), frozenset({"NUMBER"})),
    K.DATE: frozenset({"DATE"}),
    K.DATETIME: frozenset({"TIMESTAMP", "DATE"}),
    **dict.fromkeys((K.BINARY, K.VARBINARY), frozenset({"RAW"})),
}
TOLD_ALIKE: Mapping[ColumnKind, frozenset[str]] = {
    **SORTED_ALIKE,
    **dict.fromkeys((K.CHAR, K.VARCHAR), frozenset({"VARCHAR2"})),
}
"""The types that tell values of a kind apart as their bytes do, and are read back as the source wrote them.

Each server may sort texts in its own way.
"""
Key = tuple[Any, ...]


def key_types(table: TargetTable, names: Sequence[str]) -> list[OracleType]:
    """Return the types of key columns, which have the target's names."""
    types = dict(zip(table.columns, table.types, strict=True))
    return [oracle_type(types[name]) for name in names]


def key_values(keys: pa.Table, types: Sequence[OracleType]) -> list[Key]:
    """Return keys as tuples of comparable values; one that is no value of its column is left out."""
    columns = [_values(one_chunk(column), kind) for column, kind in zip(keys.columns, types, strict=False)]
    return [key for key in zip(*columns, strict=True) if not any(value is _NEVER for value in key)]


_NEVER = object()
"""Stands for a value that no column of the type has."""


def _values(values: pa.Array, kind: OracleType) -> list[Any]:
    python_values = to_python(values) if pa.types.is_temporal(values.type) else values.to_pylist()
    return [_value(value, kind) for value in python_values]


def _value(value: Any, kind: OracleType) -> Any:
    if value is None or value in ("", b""):
        return _NEVER
    try:
        if kind.word in {"DATE", "TIMESTAMP"} and isinstance(value, str):
            value = dt.datetime.fromisoformat(value)
        if isinstance(value, dt.datetime):
            value = value.replace(tzinfo=None)
        return comparable(value, kind)
    except (ValueError, TypeError, InvalidOperation):
        return _NEVER


def conditions(
    names: Sequence[str], keys: Sequence[Key], types: Sequence[OracleType]
) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Yield conditions for keys, some at a time: SQL, the values of its places, and their types."""
    columns = ", ".join(map(quoted, names))
    for start in range(0, len(keys), KEYS_AT_ONCE):
        values: dict[str, Any] = {}
        kinds: dict[str, Any] = {}
        listed = []
        for number, key in enumerate(keys[start : start + KEYS_AT_ONCE]):
            places = [f"k{number}_{place}" for place in range(len(key))]
            values.update(zip(places, key, strict=True))
            kinds.update((place, db_type(kind, [v])) for place, kind, v in zip(places, types, key, strict=True))
            listed.append(", ".join(f":{place}" for place in places))
        if len(names) == 1:
            yield f"{columns} IN ({', '.join(listed)})", values, kinds
        else:
            yield f"({columns}) IN ({', '.join(f'({row_places})' for row_places in listed)})", values, kinds


def range_condition(
    names: Sequence[str], item: KeyRange, types: Sequence[OracleType]
) -> tuple[str, dict[str, Any], dict[str, Any]] | None:
    """Return the condition of a range that is not listed; None if no key can be in it.

    Oracle compares no rows of values by < and >, so that a bound is written out column by column.
    """
    parts: list[str] = []
    values: dict[str, Any] = {}
    kinds: dict[str, Any] = {}
    bounds = (("lower", ">", True), ("upper", "<", True), ("after", ">", False), ("upto", "<", True))
    for name, sign, equal in bounds:
        bound: pa.Table | None = getattr(item, name)
        if bound is None:
            continue
        keys = key_values(bound, types)
        if not keys:
            return None
        [key] = keys
        places = [f"{name}{n}" for n in range(len(key))]
        values.update(zip(places, key, strict=True))
        kinds.update((place, db_type(kind, [value])) for place, value, kind in zip(places, key, types, strict=False))
        parts.append(
            _beyond([quoted(name) for name in names[: len(key)]], [f":{place}" for place in places], sign, equal)
        )
    return " AND ".join(parts) or "1 = 1", values, kinds


def _beyond(columns: Sequence[str], places: Sequence[str], sign: str, equal: bool) -> str:
    column, place, *rest = columns[0], places[0], *columns[1:]
    if not rest:
        return f"{column} {sign}{'=' if equal else ''} {place}"
    inner = _beyond(columns[1:], places[1:], sign, equal)
    return f"({column} {sign} {place} OR ({column} = {place} AND {inner}))"


def held_keys(
    cursor: Cursor, table: TargetTable, item: KeyRange, types: Sequence[OracleType], lock: str = ""
) -> Iterator[Key]:
    """Yield the keys that the target holds in a range, in key order unless they are listed, as comparable values.

    Keys of a range are read while the caller runs no other statement over the cursor. ``lock``: ends the query.
    """
    names = item.names
    columns, place = ", ".join(map(quoted, names)), quoted_table(table.place)
    if item.listed is not None:
        for condition, values, places in conditions(names, key_values(item.listed, types), types):
            rows = cursor.ask(f"SELECT {columns} FROM {place} WHERE {condition}{lock}", values, places).fetchall()  # noqa: S608
            yield from (_read(row, types) for row in rows)
        return
    bounds = range_condition(names, item, types)
    if bounds is None:
        return
    condition, values, places = bounds
    order = "" if lock else f" ORDER BY {columns}"
    for row in cursor.ask(f"SELECT {columns} FROM {place} WHERE {condition}{order}{lock}", values, places):  # noqa: S608
        yield _read(row, types)


def _read(row: Sequence[Any], types: Sequence[OracleType]) -> Key:
    return tuple(comparable(value, kind) for value, kind in zip(row, types, strict=True))


def table_of(names: Sequence[str], types: Mapping[str, ColumnType], keys: Sequence[Key]) -> pa.Table:
    """Return keys as a table in the types in which the source's are stored; a column keeps its texts if one of them is
    no value that the source's type can have.
    """
    columns: Sequence[Sequence[Any]] = list(zip(*keys, strict=True)) if keys else [()] * len(names)
    return pa.table({name: _array(types[name], column) for name, column in zip(names, columns, strict=True)})


def _array(column_type: ColumnType, values: Sequence[Any]) -> pa.Array:
    read = _STORED.get(column_type.kind)
    try:
        return exact_values([value if read is None else read(value) for value in values], column_type.arrow_type)
    except (ValueError, ArithmeticError, pa.ArrowException):
        if any(isinstance(value, bytes) for value in values):
            raise LoadError("keys of the target are no values of the source's type", hint="compare by hand") from None
        return pa.array([str(value) for value in values], AS_TYPED)


def _number(value: Any) -> int | Decimal:
    number = Decimal(value)
    return int(number) if number == number.to_integral_value() else number


_STORED: Mapping[ColumnKind, Callable[[Any], Any]] = {
    **dict.fromkeys((K.TINYINT, K.SMALLINT, K.MEDIUMINT, K.INT, K.BIGINT, K.YEAR), _number),
    K.DATE: lambda value: date_number(f"{value:%Y-%m-%d}" if value.year >= 1000 else value.isoformat()[:10]),
    K.DATETIME: lambda value: timestamp_number(value.isoformat(" ")),
}
