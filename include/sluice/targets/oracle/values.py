"""Arrow columns as values that the driver binds: what is sent is the value itself, or the row is refused.

Oracle itself would round a number or a time that has too many digits, and takes an empty text for NULL; both are
decided here.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any

import numpy as np
import oracledb
import pyarrow as pa
import pyarrow.compute as pc

from sluice.errors import LoadError
from sluice.model import decimals
from sluice.model.column_types import ColumnKind
from sluice.model.fields import is_masked, neutral_type, true_name
from sluice.model.tables import ENUM_ERROR_VALUE
from sluice.model.temporal import is_special, to_python
from sluice.targets.oracle.column_types import OracleType, oracle_type, room
from sluice.targets.oracle.connection import VALUE_REFUSED
from sluice.targets.sql.rows import row_text, target_type
from sluice.targets.sql.tables import TargetTable

Bools = np.ndarray[Any, np.dtype[np.bool_]]

BLANK = " "
"""The text that stands for an empty one with ``empty_strings: blank``."""
_SHORT_CHARACTERS = 1_000
"""Characters of a text that is bound as such whatever its column is: at most 4,000 bytes."""
_SHORT_BYTES = 2_000
_MOST_DIGITS = 38
_MIDNIGHT = dt.time()
_EXACT = Context(prec=80)


class Refusal(Exception):
    """Raised for rows (``mask``) with a value that the target's column cannot hold; ``why`` follows "the value" in the
    message.
    """

    def __init__(self, mask: Bools, why: str) -> None:
        super().__init__(why)
        self.mask, self.why = mask, why


@dataclass(frozen=True, slots=True)
class Policies:
    """The options for values that Oracle does not have.

    ``empty_strings``: refuse, null or blank; ``zero_dates``: refuse or null.
    """

    empty_strings: str = "refuse"
    zero_dates: str = "refuse"


@dataclass(frozen=True, slots=True)
class BoundColumn:
    """A column of rows to bind, as ``:name``."""

    name: str
    field: pa.Field
    target: OracleType

    @classmethod
    def of(cls, number: int, field: pa.Field) -> BoundColumn:
        """Return the bound column ``number`` of a field."""
        return cls(f"c{number}", field, oracle_type(target_type(field)))


@dataclass(frozen=True, slots=True)
class Bound:
    """Rows as the driver takes them: a dictionary each, and the driver's type of each name."""

    rows: list[dict[str, Any]]
    types: dict[str, Any]


def bound(rows: pa.Table, columns: Sequence[BoundColumn], table: TargetTable, policies: Policies) -> Bound:
    """Return rows as values to bind. Raises LoadError for a value that the target cannot hold."""
    values: dict[str, list[Any]] = {}
    for column in columns:
        try:
            values[column.name] = encoded(column, rows[column.field.name].combine_chunks(), policies)
        except Refusal as refusal:
            raise _refused(rows, column, refusal, table) from None
    types = {column.name: db_type(column.target, values[column.name]) for column in columns}
    names = list(values)
    return Bound([dict(zip(names, row, strict=True)) for row in zip(*values.values(), strict=True)], types)


def storable(rows: pa.Table, columns: Sequence[BoundColumn], policies: Policies) -> pa.Table:
    """Return the rows whose values of these columns the target can hold."""
    for column in columns:
        try:
            encoded(column, rows[column.field.name].combine_chunks(), policies)
        except Refusal as refusal:
            return storable(rows.filter(pa.array(~refusal.mask)), columns, policies)
    return rows


def db_type(target: OracleType, values: Sequence[Any]) -> Any:
    """Return the driver's type for values of a column.

    Short texts and bytes are bound as such for LOB columns, too: a LOB of its own would take round trips.
    """
    if target.word == "CLOB" and not any(value and len(value) > _SHORT_CHARACTERS for value in values):
        return oracledb.DB_TYPE_VARCHAR
    if target.word == "BLOB" and not any(value and len(value) > _SHORT_BYTES for value in values):
        return oracledb.DB_TYPE_RAW
    return _DB_TYPES[target.word]


_DB_TYPES: Mapping[str, Any] = {
    "NUMBER": oracledb.DB_TYPE_NUMBER,
    "BINARY_FLOAT": oracledb.DB_TYPE_BINARY_FLOAT,
    "BINARY_DOUBLE": oracledb.DB_TYPE_BINARY_DOUBLE,
    "DATE": oracledb.DB_TYPE_DATE,
    "TIMESTAMP": oracledb.DB_TYPE_TIMESTAMP,
    "INTERVAL DAY TO SECOND": oracledb.DB_TYPE_INTERVAL_DS,
    "VARCHAR2": oracledb.DB_TYPE_VARCHAR,
    "NVARCHAR2": oracledb.DB_TYPE_NVARCHAR,
    "CHAR": oracledb.DB_TYPE_CHAR,
    "NCHAR": oracledb.DB_TYPE_NCHAR,
    "CLOB": oracledb.DB_TYPE_CLOB,
    "NCLOB": oracledb.DB_TYPE_NCLOB,
    "RAW": oracledb.DB_TYPE_RAW,
    "BLOB": oracledb.DB_TYPE_BLOB,
}


def encoded(column: BoundColumn, values: pa.Array, policies: Policies) -> list[Any]:
    """Return the values of a column. Raises Refusal, and TypeError for a pair that ``takes`` refuses."""
    kind, target = values.type, column.target
    if pa.types.is_null(kind):
        return [None] * len(values)
    if pa.types.is_dictionary(kind):
        values = pc.cast(values, pa.string())
        kind = values.type
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return _whole(values, target)
    if pa.types.is_decimal(kind):
        return _decimals(values, target)
    if pa.types.is_floating(kind):
        return _floats(values, target)
    if pa.types.is_date32(kind) or pa.types.is_timestamp(kind):
        return _times(_calendar(values, policies.zero_dates), target)
    if pa.types.is_duration(kind):
        return _spans(values, target)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        column_type = neutral_type(column.field)
        if column_type is not None and column_type.kind is ColumnKind.ENUM:  # an ENUM's error value has no text
            values = pc.if_else(pc.equal(values, ENUM_ERROR_VALUE), "", values)
        return _not_empty(values, policies, BLANK)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return _not_empty(values, policies, None)
    raise TypeError(f"{kind} has no way into {target.declared}")


def _refuse(mask: Sequence[bool] | Bools, why: str) -> None:
    refused = np.asarray(mask, bool)
    if refused.any():
        raise Refusal(refused, why)


def _whole(values: pa.Array, target: OracleType) -> list[Any]:
    numbers = [None if value is None else int(value) for value in values.to_pylist()]
    limit = 10 ** room(target)[0]
    _refuse([value is not None and abs(value) >= limit for value in numbers], f"is outside of {target.declared}")
    return numbers


def _decimals(values: pa.Array, target: OracleType) -> list[Any]:
    _refuse(decimals.is_nan(values), "is NaN, which Oracle's NUMBER does not have")
    numbers = values.to_pylist()
    before, after = room(target)

    def outside(value: Decimal | None) -> bool:
        if value is None or not value:
            return False
        _, digits, exponent = value.normalize(_EXACT).as_tuple()
        assert isinstance(exponent, int)
        if not target.numbers:
            return len(digits) > _MOST_DIGITS
        return -exponent > after or len(digits) + exponent > before

    _refuse([outside(value) for value in numbers], f"has more digits than {target.declared} keeps")
    return list(numbers)


def _floats(values: pa.Array, target: OracleType) -> list[Any]:
    if target.word == "BINARY_FLOAT" and pa.types.is_float64(values.type):
        numbers = np.asarray(pc.fill_null(values, 0).to_numpy(zero_copy_only=False))
        with np.errstate(over="ignore"):
            _refuse(numbers.astype(np.float32) != numbers, "is not held by four bytes")
    return list(values.to_pylist())


def _calendar(values: pa.Array, zero_dates: str) -> pa.Array:
    """Replace dates that no calendar has by NULL, or raise Refusal, as ``zero_dates`` says."""
    special = is_special(values if pa.types.is_date32(values.type) else _micros(values))
    if not special.any():
        return values
    if zero_dates == "refuse":
        raise Refusal(special, "is a date that no calendar has (options.zero_dates: null makes NULL of it)")
    return pc.if_else(pa.array(special), pa.scalar(None, values.type), values)


def _micros(values: pa.Array) -> pa.Array:
    return pc.cast(values, pa.timestamp("us", tz=values.type.tz))


def _digits_fit(micros: pa.Array, digits: int) -> Bools:
    unit = 10 ** (6 - min(digits, 6))
    numbers = np.asarray(pc.fill_null(micros.view(pa.int64()), 0).to_numpy(zero_copy_only=False))
    return np.asarray(numbers % unit == 0)


def _times(values: pa.Array, target: OracleType) -> list[Any]:
    if pa.types.is_date32(values.type):
        return [None if day is None else dt.datetime.combine(day, _MIDNIGHT) for day in to_python(values)]
    micros = _micros(values)
    digits = 0 if target.word == "DATE" else (*target.numbers, 6)[0]
    _refuse(~_digits_fit(micros, digits), f"has more digits of a second than {target.declared}")
    return list(pc.cast(micros, pa.timestamp("us")).to_pylist())


def _spans(values: pa.Array, target: OracleType) -> list[Any]:
    micros = pc.cast(values, pa.duration("us"))
    days, digits = target.numbers if len(target.numbers) == 2 else (2, 6)
    _refuse(~_digits_fit(micros, digits), f"has more digits of a second than {target.declared}")
    spans = to_python(micros)
    limit = dt.timedelta(days=10**days)
    _refuse([value is not None and abs(value) >= limit for value in spans], f"is longer than {target.declared} holds")
    return list(spans)


def _not_empty(values: pa.Array, policies: Policies, blank: str | None) -> list[Any]:
    """Return texts, or bytes, of which none is empty. ``blank``: stands for an empty one; None: nothing does."""
    python_values = values.to_pylist()
    empty = [value is not None and not value for value in python_values]
    if not any(empty):
        return list(python_values)
    if policies.empty_strings == "refuse" or (policies.empty_strings == "blank" and blank is None):
        _refuse(empty, "is empty, which is NULL to Oracle (options.empty_strings says what is to become of it)")
    instead = blank if policies.empty_strings == "blank" else None
    return [instead if is_empty else value for is_empty, value in zip(empty, python_values, strict=True)]


def _refused(rows: pa.Table, column: BoundColumn, refusal: Refusal, table: TargetTable) -> LoadError:
    number = int(np.flatnonzero(refusal.mask)[0])
    hidden = any(map(is_masked, rows.schema))
    error = LoadError(
        f"a value of column {true_name(column.field)} {refusal.why}: the row "
        f"{row_text(rows, number, table, hidden=hidden)}",
        where=f"{table.table}.{true_name(column.field)}",
        hint="change the column at the target, change the value at the source, or leave such rows out: on_error: "
        "dead_letter",
    )
    error.code = VALUE_REFUSED
    return error


# -- values that are read back -----------------------------------------------------------------------------------------


def comparable(value: Any, target: OracleType) -> Any:
    """Return a value in a form in which equal values are equal, whether it was sent or read."""
    read = _COMPARABLE.get(target.word)
    return value if value is None or read is None else read(value)


def _timestamp(value: Any) -> Any:
    return value if isinstance(value, dt.datetime) else dt.datetime.combine(value, _MIDNIGHT)


_COMPARABLE: Mapping[str, Callable[[Any], Any]] = {
    "NUMBER": Decimal,
    "DATE": _timestamp,
    "CHAR": lambda text: text.rstrip(" "),
    "NCHAR": lambda text: text.rstrip(" "),
    "RAW": bytes,
    "BLOB": bytes,
}
"""By the column's type; others are compared as the driver gives them."""


def shown(value: Any) -> str | None:
    """Return a value as text for people."""
    if value is None:
        return None
    if isinstance(value, bytes):
        return f"0x{value.hex().upper()}"
    return f"{value:f}" if isinstance(value, Decimal) else str(value)
