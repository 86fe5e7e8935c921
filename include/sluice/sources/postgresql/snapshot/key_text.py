"""Keys as SQL of PostgreSQL: literals of their values, and conditions that cut a table in key order.

A whole number or a decimal is written in digits, everything else as a quoted text, which the server reads as a value of
the column that it is compared with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.errors import ConfigError, SluiceError, UnsupportedType
from sluice.model import decimals
from sluice.model.column_types import ColumnKind, ColumnType
from sluice.model.exact_values import AS_TYPED, exact_values, table_of_keys
from sluice.model.tables import Column, one_chunk
from sluice.model.temporal import date_number, time_of, timestamp_number, to_text
from sluice.postgresql.names import quoted, text_literal
from sluice.sources.postgresql.values.decode import decode

K = ColumnKind
_SIGNED = frozenset({K.SMALLINT, K.INT, K.BIGINT})
_BYTES = frozenset({K.BINARY, K.VARBINARY, K.BLOB})
_MICROS = 6


class PostgresKeyText:
    """See :class:`sluice.sources.port.KeyText`."""

    def literals(self, columns: Sequence[Column], keys: pa.Table) -> list[tuple[str, ...]]:
        """Write each value as a literal that the server reads exactly."""
        texts = [_literals(column.type, one_chunk(keys.column(i))) for i, column in enumerate(columns)]
        return list(zip(*texts, strict=True))

    def values(self, types: Mapping[str, ColumnType], keys: Sequence[tuple[str, ...]]) -> pa.Table:
        """Read literals back. Raises UnsupportedType for a text that is no literal."""
        return table_of_keys(types, keys, _values)

    def typed(self, column: Column, text: str) -> str:
        """Check a value that a person typed, as far as its type is known here. Raises ConfigError."""
        data = np.frombuffer(_spelled(column, text).encode(), np.uint8)
        try:
            decode(column, data, np.zeros(1, np.int64), np.array([len(data)], np.int32))
        except SluiceError as error:
            raise ConfigError(
                f"{text!r} is no value of the key column {column.name} ({column.native or column.sql_type})"
            ) from error
        return _literal(column.type, _spelled(column, text))

    def shown(self, key: tuple[str, ...]) -> list[str]:
        """Return the texts of the values."""
        return [_unquoted(text) for text in key]


def _spelled(column: Column, text: str) -> str:
    """Return a typed text as the server prints the value."""
    plain = text.strip() if column.kind not in {K.CHAR, K.VARCHAR, K.TEXT, K.ENUM} else text
    if column.kind in _BYTES and plain.lower().startswith("0x"):
        return rf"\x{plain[2:]}"
    if column.kind in {K.DATETIME, K.TIMESTAMP} and len(plain) <= len("0000-00-00"):
        return f"{plain} 00:00:00"
    if column.kind is K.UUID:
        return plain.lower()
    return plain.lower() if column.native == "boolean" else plain


# -- literals ----------------------------------------------------------------------------------------------------------
def _is_bare(column_type: ColumnType) -> bool:
    """Return True if the type's values are written as numbers, without quotes."""
    return (column_type.kind in _SIGNED and not column_type.unsigned) or column_type.kind is K.DECIMAL


def _literal(column_type: ColumnType, text: str) -> str:
    return text if _is_bare(column_type) and text != decimals.NAN else text_literal(text)


def _literals(column_type: ColumnType, values: pa.Array) -> list[str]:
    texts = _texts(column_type, values)
    if _is_bare(column_type) and values.type == AS_TYPED:  # a text that another server had for a number
        return [text_literal(text) for text in texts]
    return [_literal(column_type, text) for text in texts]


def _texts(column_type: ColumnType, values: pa.Array) -> list[str]:
    kind = values.type
    if pa.types.is_temporal(kind):
        digits = 0 if pa.types.is_date32(kind) else _MICROS
        texts: list[str] = to_text(values, fsp=digits).to_pylist()
        return texts
    if pa.types.is_floating(kind):
        return [_float_text(text) for text in pc.cast(values, pa.string()).to_pylist()]
    if column_type.kind is K.BIT and pa.types.is_integer(kind):
        return [format(value, "b").zfill(column_type.length or 1) for value in values.to_pylist()]
    if column_type.native == "boolean" and pa.types.is_integer(kind):
        return ["true" if value else "false" for value in values.to_pylist()]
    return list(map(_text, decimals.to_python(values) if pa.types.is_decimal(kind) else values.to_pylist()))


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return rf"\x{value.hex()}"
    return f"{value:f}" if isinstance(value, Decimal) else str(value)


def _float_text(text: str) -> str:
    return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(text, text)


def _unquoted(literal: str) -> str:
    if literal.startswith("'") and literal.endswith("'") and len(literal) > 1:
        return literal[1:-1].replace("''", "'")
    return literal


def _values(column_type: ColumnType, literals: Sequence[str]) -> pa.Array:
    texts = [_unquoted(text) for text in literals]
    try:
        values = [_value(column_type, text) for text in texts]
        if column_type.kind is K.DECIMAL and decimals.NAN in texts:
            return decimals.from_python(values, column_type.arrow_type)
        return exact_values(values, column_type.arrow_type)
    except (ValueError, ArithmeticError, pa.ArrowException) as error:
        if any(text.startswith("'") for text in literals):
            return pa.array(texts, AS_TYPED)
        raise UnsupportedType(f"literals of a key of type {column_type.kind} are not understood: {error}") from error


def _value(column_type: ColumnType, text: str) -> Any:
    kind = column_type.kind
    if column_type.native == "boolean":
        return {"t": 1, "true": 1, "f": 0, "false": 0}[text] if text in {"t", "true", "f", "false"} else int(text)
    match kind:
        case K.SMALLINT | K.INT | K.BIGINT | K.TINYINT:
            number = Decimal(text)
            return int(number) if number == number.to_integral_value() else number
        case K.DECIMAL:
            return Decimal(text)
        case K.FLOAT | K.DOUBLE:
            return float(text)
        case K.BIT:
            return int(text, 2)
        case K.DATE:
            return date_number(text)
        case K.DATETIME | K.TIMESTAMP:
            return timestamp_number(text.removesuffix("+00"))
        case K.TIME:
            return time_of(text) // timedelta(microseconds=1)
        case K.BLOB:
            return bytes.fromhex(text.removeprefix(r"\x"))
    return text


# -- conditions --------------------------------------------------------------------------------------------------------
def after(names: Sequence[str], bound: Sequence[str], *, included: bool = False) -> str:
    """Return the condition that the key is greater than ``bound`` (or equal, with ``included``); "" for no bound.

    A bound may have the first columns only.
    """
    return _compared(names, bound, ">=" if included else ">")


def upto(names: Sequence[str], bound: Sequence[str]) -> str:
    """Return the condition that the key is ``bound`` or less; "" for no bound."""
    return _compared(names, bound, "<=")


def _compared(names: Sequence[str], bound: Sequence[str], sign: str) -> str:
    if not bound:
        return ""
    if len(bound) == 1:
        return f"{quoted(names[0])} {sign} {bound[0]}"
    return f"({', '.join(map(quoted, names[: len(bound)]))}) {sign} ({', '.join(bound)})"


def among(names: Sequence[str], keys: Sequence[Sequence[str]]) -> str:
    """Return the condition that the key is one of ``keys``."""
    if len(names) == 1:
        return f"{quoted(names[0])} IN ({', '.join(key[0] for key in keys)})"
    return f"({', '.join(map(quoted, names))}) IN ({', '.join('(' + ', '.join(key) + ')' for key in keys)})"


def both(*conditions: str) -> str:
    """Join all conditions that are not empty; ``true`` for none."""
    return " AND ".join(condition for condition in conditions if condition) or "true"


def numbers_of(literals: Sequence[str]) -> tuple[Decimal, ...] | None:
    """Return the literals as numbers, None if one of them is none."""
    try:
        return tuple(Decimal(text) for text in literals)
    except ArithmeticError:
        return None


__all__ = ["PostgresKeyText", "after", "among", "both", "numbers_of", "upto"]
