"""How values of each kind are stored in documents, what that loses, and how they are read back and compared.

Values that no BSON value can hold are told as :class:`Unstorable`, so that their row is refused alone.
"""

from __future__ import annotations

import decimal
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Any

import pyarrow as pa
from bson import Decimal128, Int64
from bson.datetime_ms import DatetimeMS

from sluice.errors import MappingError
from sluice.model import decimals
from sluice.model.column_types import ColumnKind, ColumnType
from sluice.model.losses import Loss
from sluice.model.temporal import is_special
from sluice.targets.documents.compare import same_value
from sluice.targets.messages.row_texts import iso_texts, own_type, read_text, texts

K = ColumnKind


class Form(StrEnum):
    """How a value is stored: a kind of BSON values."""

    NUMBER = "number"
    DECIMAL = "decimal"
    DOUBLE = "double"
    DATE = "date"
    TEXT = "text"
    DOCUMENT = "document"
    BYTES = "bytes"


_WHOLE = frozenset({K.TINYINT, K.SMALLINT, K.MEDIUMINT, K.INT, K.BIGINT, K.YEAR, K.BIT})
_FLOATS = frozenset({K.FLOAT, K.DOUBLE})
_TIMES = frozenset({K.DATETIME, K.TIMESTAMP})
_TEXTS = frozenset({K.CHAR, K.VARCHAR, K.TEXT})
_BYTES = frozenset({K.BINARY, K.VARBINARY, K.BLOB, K.GEOMETRY, K.VECTOR})
_WORDS = frozenset({K.ENUM, K.SET, K.UUID, K.INET4, K.INET6})
_LONG_KINDS = frozenset({K.BIGINT, K.BIT})
OFFERED: Mapping[ColumnKind, tuple[Form, ...]] = {
    **dict.fromkeys(_WHOLE, (Form.NUMBER, Form.TEXT)),
    **dict.fromkeys(_FLOATS, (Form.NUMBER,)),
    K.DECIMAL: (Form.DECIMAL, Form.TEXT, Form.DOUBLE),
    K.DATE: (Form.DATE, Form.TEXT),
    **dict.fromkeys(_TIMES, (Form.DATE, Form.TEXT)),
    K.TIME: (Form.TEXT,),
    **dict.fromkeys(_TEXTS, (Form.TEXT, Form.DOCUMENT)),
    **dict.fromkeys(_WORDS, (Form.TEXT,)),
    K.JSON: (Form.DOCUMENT, Form.TEXT),
    **dict.fromkeys(_BYTES, (Form.BYTES,)),
}
"""The ways to store each kind; the first is proposed."""
_MILLISECONDS = 3
_MOST_LONG = 2**63 - 1
_DIGITS = 34
"""Digits of a Decimal128."""
_EXACT = decimal.Context(prec=200, traps=[])
_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Unstorable:
    """Stands for a value that no document can have. ``why``: without the value."""

    why: str


def forms_of_kind(name: str) -> frozenset[Form]:
    """Return the forms of a type by its name, with or without ``unsigned``; none for a name that is not one."""
    word, _, more = name.partition(" ")
    is_kind = word in set(ColumnKind) and more in {"", "unsigned"}
    return frozenset(OFFERED[ColumnKind(word)]) if is_kind else frozenset()


def form_of(column_type: ColumnType, types: Mapping[str, Form], name: str) -> Form:
    """Return how values of a column are stored. ``types``: of the options; ``name``: schema.table.column.

    Raises MappingError.
    """
    kind, offered = column_type.kind, OFFERED[column_type.kind]
    given_type = types.get(name)
    if given_type is not None and given_type not in offered:
        raise MappingError(
            f"options.types stores {name} as {given_type}, and {kind} values are stored as {' or '.join(offered)}",
            where=name,
            hint="name another form, or leave the column out of options.types",
        )
    if given_type is None and column_type.unsigned:
        given_type = types.get(f"{kind} unsigned")
    if given_type is None:
        given_type = types.get(kind.value)
    if given_type is not None:
        return given_type
    fits = column_type.digits <= _MILLISECONDS if kind in _TIMES else column_type.precision <= _DIGITS
    return offered[0] if fits else Form.TEXT


def loses(column_type: ColumnType, form: Form) -> str:
    """Return what of a column's values is not stored, "" for nothing."""
    if form is Form.DOUBLE:
        return Loss("a double has about 15 digits of them")
    if form is Form.DATE and column_type.digits > _MILLISECONDS:
        return Loss("a date has milliseconds, and microseconds are cut")
    if form is Form.DOCUMENT:
        loss = "spaces, how a number is written, and whether it is NULL or JSON's null"
        is_text = (
            column_type.kind is not K.JSON or column_type.native == "json"
        )  # PostgreSQL keeps a json as it was written
        return Loss(f"{loss}, are lost") if is_text else loss
    if column_type.kind in {K.ENUM, K.SET}:
        return own_type(column_type).loses
    return ""


def refuses(column_type: ColumnType, form: Form) -> str:
    """Return which values of a column make their row refused, "" for none."""
    if form is Form.DECIMAL and column_type.precision > _DIGITS:
        return (
            f"a Decimal128 has {_DIGITS} digits, and rows with longer values are refused; options.types: text has "
            "them all"
        )
    return ""


# -- to documents ------------------------------------------------------------------------------------------------------
def document_values(values: pa.Array, column_type: ColumnType, form: Form) -> list[Any]:
    """Return values as the client encodes them; null is None."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    match form:
        case Form.NUMBER:
            return _floats(values, column_type) if column_type.kind in _FLOATS else _whole(values, column_type)
        case Form.DECIMAL:
            return [None if number is None else decimal128(number) for number in _decimals(values, column_type)]
        case Form.DOUBLE:
            return [None if number is None else float(number) for number in _decimals(values, column_type)]
        case Form.DATE:
            return _dates(values, column_type)
        case Form.DOCUMENT:
            return [None if text is None else parsed(text) for text in _texts(values, column_type)]
        case Form.BYTES:
            document_values: list[Any] = values.cast(pa.large_binary()).to_pylist()
            return document_values
        case Form.TEXT:
            return _texts(values, column_type)


def id_values(values: pa.Array, column_type: ColumnType) -> list[Any] | None:
    """Return values of a key's only column as ids, whatever form the column has;

    None for a kind whose ids are its key's text.
    """
    if column_type.kind in _WHOLE:
        return [None if number is None else _long(number) for number in _numbers(values)]
    if column_type.kind in _TEXTS | _WORDS:
        return _texts(values, column_type)
    return None


def _texts(values: pa.Array, column_type: ColumnType) -> list[Any]:
    times = column_type.kind in _TIMES and pa.types.is_timestamp(values.type)
    stored_texts: list[Any] = (iso_texts if times else texts)(values, column_type).cast(pa.large_string()).to_pylist()
    return stored_texts


def _numbers(values: pa.Array) -> list[Any]:
    numbers: list[Any] = (values.cast(pa.int8()) if pa.types.is_boolean(values.type) else values).to_pylist()
    return numbers


def _whole(values: pa.Array, column_type: ColumnType) -> list[Any]:
    numbers = _numbers(values)
    if column_type.kind in _LONG_KINDS or (column_type.kind is K.INT and column_type.unsigned):
        return [None if number is None else _long(number) for number in numbers]
    return numbers


def _long(number: Any) -> Any:
    return Int64(number) if number <= _MOST_LONG else decimal128(Decimal(int(number)))


def _floats(values: pa.Array, column_type: ColumnType) -> list[Any]:
    """Return numbers; those of four bytes as they are written with the fewest digits."""
    if pa.types.is_float32(values.type):
        values = texts(values, column_type).cast(pa.large_string()).cast(pa.float64())
    floats: list[Any] = values.cast(pa.float64()).to_pylist()
    return floats


def _decimals(values: pa.Array, column_type: ColumnType) -> list[Any]:
    if pa.types.is_decimal(values.type):
        return decimals.to_python(values)
    return [None if text is None else Decimal(text) for text in _texts(values, column_type)]


def decimal128(number: Decimal) -> Any:
    """Return a number with all its digits; zeros at the end go where they are too many."""
    if len(number.as_tuple().digits) > _DIGITS:
        number = number.normalize(_EXACT)
        if len(number.as_tuple().digits) > _DIGITS:
            return Unstorable(f"it has {len(number.as_tuple().digits)} digits, and a Decimal128 has {_DIGITS}")
    return Decimal128(number)


def _dates(values: pa.Array, column_type: ColumnType) -> list[Any]:
    """Return dates; a day that no calendar has stays a text."""
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.timestamp("us", values.type.tz))
        numbers = [None if micros is None else micros // 1000 for micros in values.view(pa.int64()).to_pylist()]
    elif pa.types.is_date32(values.type):
        numbers = [None if days is None else days * _DAY_MS for days in values.view(pa.int32()).to_pylist()]
    else:
        return _texts(values, column_type)
    dates: list[Any] = [None if number is None else DatetimeMS(number) for number in numbers]
    odd = is_special(values)
    if odd.any():
        texts = _texts(values, column_type)
        dates = [text if special else date for date, text, special in zip(dates, texts, odd.tolist(), strict=True)]
    return dates


class _NoDocument(ValueError):
    """A JSON text that means more, or less, than a document."""


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise _NoDocument("a name is in an object twice")
    if any("\0" in name for name in document):
        raise _NoDocument("a name has the character 0 in it")
    return document


def _number(text: str) -> Any:
    given_number, short = Decimal(text), float(text)
    return short if math.isfinite(short) and Decimal(repr(short)) == given_number else _stored(given_number)


def _integer(text: str) -> Any:
    number = int(text)
    return number if -_MOST_LONG <= number <= _MOST_LONG else _stored(Decimal(number))


def _stored(number: Decimal) -> Any:
    stored_number = decimal128(number)
    if isinstance(stored_number, Unstorable):
        raise _NoDocument(f"a number in it: {stored_number.why}")
    return stored_number


def _constant(text: str) -> Any:
    raise _NoDocument(f"{text} is no JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_pairs, parse_float=_number, parse_int=_integer, parse_constant=_constant)


def parsed(text: str) -> Any:
    """Return a JSON text as a value of a document; Unstorable for one that cannot be."""
    try:
        return _DECODER.decode(text)
    except _NoDocument as error:
        return Unstorable(f"it is no document: {error}")
    except (ValueError, ArithmeticError, RecursionError):
        return Unstorable("it is no document: it is no JSON")


# -- from documents ----------------------------------------------------------------------------------------------------
def key_value(column_type: ColumnType, value: Any) -> Any:
    """Return a value of a key's column as the source's values are stored.

    Raises ValueError, TypeError, ArithmeticError.
    """
    if column_type.kind in _BYTES:
        return bytes(value)
    if isinstance(value, Decimal128):
        value = value.to_decimal()
    if column_type.kind in _WHOLE:
        return int(value)
    if column_type.kind is K.DECIMAL:
        return Decimal(value)
    if isinstance(value, DatetimeMS):
        return int(value) // _DAY_MS if column_type.kind is K.DATE else int(value) * 1000
    return read_text(column_type, str(value))


def same(column_type: ColumnType, own: Any, stored: Any) -> bool:
    """Return True if two values of documents are of the same value of a column."""
    if isinstance(own, Decimal128) and isinstance(stored, Decimal128):
        return bool(own.to_decimal() == stored.to_decimal())
    if isinstance(own, dict) and isinstance(stored, Mapping):
        return own.keys() == stored.keys() and all(
            same(column_type, value, stored[name]) for name, value in own.items()
        )
    if isinstance(own, list) and isinstance(stored, list):
        return len(own) == len(stored) and all(same(column_type, *pair) for pair in zip(own, stored, strict=True))
    own, stored = (
        int(value) if isinstance(value, int) and not isinstance(value, bool) else value for value in (own, stored)
    )
    return isinstance(own, float) is isinstance(stored, float) and same_value(column_type, own, stored)


__all__ = [
    "OFFERED", "Form", "Unstorable", "decimal128", "document_values", "form_of", "forms_of_kind", "id_values",
    "key_value", "loses", "parsed", "refuses", "same",
]  # fmt: skip
