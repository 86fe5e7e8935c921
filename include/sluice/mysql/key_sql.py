"""Keys as SQL: literals of their values, and conditions that cut a table in key order.

A literal is exact for its type, whatever the session's settings: numbers in digits, text as the bytes of its UTF-8 with
an introducer (the column's own collation decides how it compares), binary as hex, ENUM and SET by their numbers (as the
server sorts them).
"""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from sluice.errors import ConfigError, UnsupportedType
from sluice.model.column_types import ColumnKind, ColumnType
from sluice.model.exact_values import AS_TYPED, exact_values, table_of_keys
from sluice.model.tables import ENUM_ERROR_VALUE, Column, quoted
from sluice.model.temporal import date_number, time_of, timestamp_number, to_text
from sluice.mysql.column_types import Literal, type_named

K = ColumnKind


def literals(column: Column, values: pa.Array) -> list[str]:
    """Return SQL literals of a key column's values (stored form, no nulls).

    Raises UnsupportedType for a type no key has.
    """
    row = type_named(column.sql_type, column.name)
    if not row.key:
        raise UnsupportedType(f"a {row.word} column cannot be a key", where=column.name)
    return value_literals(values, row.kind, column.labels)


def value_literals(values: pa.Array, kind: ColumnKind | None, labels: Sequence[str] = ()) -> list[str]:
    """Return SQL literals of values (no nulls), each exact for its own Arrow type.

    ``kind``, ``labels``: of the column they are compared with, which stores labels as numbers.
    """
    labelled = {K.ENUM: Literal.LABEL, K.SET: Literal.LABELS}.get(kind) if kind is not None else None
    if labelled is not None and values.type == pa.string():
        return LITERALS[labelled](labels, values)
    form = next(form for is_one, form in _FORMS if is_one(values.type))
    return LITERALS[form](labels, values)


_FORMS: Sequence[tuple[Callable[[pa.DataType], bool], Literal]] = (
    (pa.types.is_integer, Literal.NUMBER),
    (pa.types.is_decimal, Literal.DECIMAL),
    (pa.types.is_floating, Literal.FLOAT),
    (pa.types.is_temporal, Literal.TEMPORAL),
    (lambda type_: type_ in {pa.string(), AS_TYPED}, Literal.TEXT),
    (lambda type_: type_ in {pa.binary(), pa.large_binary()}, Literal.BYTES),
)
"""The form of values that are no labels, by their Arrow type."""


_MOST_DIGITS, _MOST_SCALE = 65, 30


def _numbers(_: Sequence[str], values: pa.Array) -> list[str]:
    return [str(v) for v in values.to_pylist()]


def _decimals(_: Sequence[str], values: pa.Array) -> list[str]:
    quote = "'" if values.type.precision > _MOST_DIGITS or values.type.scale > _MOST_SCALE else ""
    return [f"{quote}{v:f}{quote}" for v in values.to_pylist()]  # a wider number is a text, in a column of texts


def _floats(_: Sequence[str], values: pa.Array) -> list[str]:
    return [text if "e" in (text := repr(float(v))) else f"{text}e0" for v in values.to_pylist()]


def _moments(_: Sequence[str], values: pa.Array) -> list[str]:
    return [f"'{text}'" for text in to_text(values, fsp=0 if pa.types.is_date32(values.type) else 6).to_pylist()]


def _hexadecimal(_: Sequence[str], values: pa.Array) -> list[str]:
    return [f"x'{bytes(v).hex()}'" for v in values.to_pylist()]


def _label_numbers(labels: Sequence[str], values: pa.Array) -> list[str]:
    numbers = {label: i + 1 for i, label in enumerate(labels)}
    return [str(numbers.get(v, 0)) for v in values.to_pylist()]


def _label_bits(labels: Sequence[str], values: pa.Array) -> list[str]:
    bits = {label: 1 << i for i, label in enumerate(labels)}
    numbers = [sum(bits[part] for part in v.split(",") if v) for v in values.to_pylist()]
    return [f"CAST({n} AS UNSIGNED)" for n in numbers] if len(labels) > _EXACT_LABELS else list(map(str, numbers))


_EXACT_LABELS = 53
_UNSIGNED = re.compile(r"CAST\((\d+) AS UNSIGNED\)")
"""The literal of a SET of more labels.

Servers sort it by its number, and compare it with others as a DOUBLE (MySQL) or as a signed one.
"""


def _side(name: str, value: str) -> str:
    """Return the left side of a comparison of a column with a literal."""
    return f"CAST({quoted(name)} AS UNSIGNED)" if _UNSIGNED.fullmatch(value) else quoted(name)


def _texts(_: Sequence[str], values: pa.Array) -> list[str]:
    if pa.types.is_binary(values.type):
        return _hexadecimal(_, values)
    return [f"_utf8mb4 x'{v.encode('utf-8').hex()}'" for v in values.to_pylist()]


LITERALS: Mapping[Literal, Callable[[Sequence[str], pa.Array], list[str]]] = {
    Literal.NUMBER: _numbers,
    Literal.DECIMAL: _decimals,
    Literal.FLOAT: _floats,
    Literal.TEMPORAL: _moments,
    Literal.TEXT: _texts,
    Literal.BYTES: _hexadecimal,
    Literal.LABEL: _label_numbers,
    Literal.LABELS: _label_bits,
}
"""The function of each way in which SQL writes a value."""


def key_literals(columns: Sequence[Column], keys: pa.Table) -> list[tuple[str, ...]]:
    """Return a tuple of literals per row; ``keys`` holds the key's columns in the order of ``columns``."""
    texts = [literals(c, keys.column(i).combine_chunks()) for i, c in enumerate(columns)]
    return list(zip(*texts, strict=True))


UTF8 = re.compile(r"_utf8mb4 x'([0-9a-f]*)'")
"""The literal of a text: the bytes of its UTF-8."""
_BYTES = re.compile(r"x'([0-9a-f]*)'")
_QUOTED = re.compile(r"'([0-9:. -]*)'")
_MOMENTS: Mapping[ColumnKind, Callable[[str], int]] = {
    K.DATE: date_number,
    K.DATETIME: timestamp_number,
    K.TIMESTAMP: timestamp_number,
    K.TIME: lambda text: time_of(text) // timedelta(microseconds=1),
}


def read_literals(column_type: ColumnType, texts: Sequence[str]) -> pa.Array:
    """Return the values (stored form) of literals of a column of this type: what :func:`literals` wrote, or a person.

    Of the column's type, unless one of the values is none of its values; see :mod:`sluice.model.exact_values`. Raises
    UnsupportedType for a text that is no literal.
    """
    try:
        typed = [UTF8.fullmatch(text) for text in texts]
        if column_type.kind in {K.ENUM, K.SET}:
            return _read_labels(column_type, texts, typed=any(typed))
        if column_type.kind in _MOMENTS:
            return _read_moments(column_type, texts, typed=any(typed))
        return exact_values([_read(column_type, text) for text in texts], column_type.arrow_type)
    except (ValueError, ArithmeticError, pa.ArrowException) as error:
        raise UnsupportedType(f"literals of a key of type {column_type.kind} are not understood: {error}") from error


def _read(column_type: ColumnType, literal: str) -> Any:
    if text := UTF8.fullmatch(literal):
        return bytes.fromhex(text[1]).decode()
    if data := _BYTES.fullmatch(literal):
        return bytes.fromhex(data[1])
    if column_type.kind in {K.FLOAT, K.DOUBLE}:
        return float(literal)
    if column_type.kind is not K.DECIMAL:
        return int(literal)
    number = Decimal(literal.strip("'"))
    if not number.is_finite():
        raise ValueError(literal)
    return number


def _read_moments(column_type: ColumnType, texts: Sequence[str], *, typed: bool) -> pa.Array:
    written_ = [_text_of(text) for text in texts]
    try:
        return exact_values([_MOMENTS[column_type.kind](text) for text in written_], column_type.arrow_type)
    except ValueError:
        if not typed:
            raise
        return pa.array(written_, AS_TYPED)


def _text_of(literal: str) -> str:
    if text := UTF8.fullmatch(literal):
        return bytes.fromhex(text[1]).decode()
    if plain := _QUOTED.fullmatch(literal):
        return plain[1]
    raise ValueError(literal)


def _read_labels(column_type: ColumnType, texts: Sequence[str], *, typed: bool) -> pa.Array:
    """Return labels; numbers where they do not tell the values apart, and texts as they were typed."""
    if typed:  # the server compares these as texts, and not by their numbers
        return pa.array([_text_of(text) for text in texts], AS_TYPED)
    numbers = [int(cast[1]) if (cast := _UNSIGNED.fullmatch(text)) else int(text) for text in texts]
    count = len(column_type.labels)
    highest = count if column_type.kind is K.ENUM else (1 << count) - 1
    if len(set(column_type.labels)) < count or not all(0 <= number <= highest for number in numbers):
        return exact_values(numbers, pa.uint64())
    if column_type.kind is K.SET:
        label_texts = [
            ",".join(label for at, label in enumerate(column_type.labels) if number >> at & 1) for number in numbers
        ]
    else:
        error = ENUM_ERROR_VALUE if "" in column_type.labels else ""
        label_texts = [column_type.labels[number - 1] if number else error for number in numbers]
    return pa.array(label_texts, column_type.arrow_type)


def key_table(types: Mapping[str, ColumnType], keys: Sequence[Sequence[str]]) -> pa.Table:
    """Return literals of keys as a table of their values; keys may have fewer columns than ``types``."""
    return table_of_keys(types, keys, read_literals)


def typed_literal(column: Column, text: str) -> str:
    """Return the literal of a value that a person typed for a key column.

    Raises ConfigError for a value of another type.

    A server would take the text ``abc`` for the number 0, and dump another range than the one that was meant.
    """
    literal = type_named(column.sql_type, column.name).literal
    with _said(column, text):
        if literal is Literal.NUMBER:
            return str(int(text))
        if literal in {Literal.DECIMAL, Literal.FLOAT}:
            value = Decimal(text.strip())
            if not value.is_finite():
                raise ValueError(text)
            return f"{value:f}" + ("e0" if literal is Literal.FLOAT else "")
        if literal is Literal.LABEL:
            folded = [label.casefold() for label in column.labels]
            return str(1 + (column.labels.index(text) if text in column.labels else folded.index(text.casefold())))
        if literal is Literal.BYTES and text.lower().startswith("0x"):
            return f"x'{bytes.fromhex(text[2:]).hex()}'"
        if literal is Literal.TEMPORAL:
            _require_moment(column.kind, text.strip())
    return f"_utf8mb4 x'{text.encode().hex()}'"


def shown_literal(literal: str) -> str:
    """Return the value of a literal as readable text."""
    text = UTF8.fullmatch(literal)
    if text is not None:
        return bytes.fromhex(text[1]).decode(errors="backslashreplace")
    if literal.startswith("x'"):
        return f"0x{literal[2:-1]}"
    return literal.strip("'").removesuffix("e0") if literal else literal


_DATE = re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2})")
_CLOCK = re.compile(r"(\d{1,3}):(\d{2})(?::(\d{2})(?:\.\d{1,6})?)?")


def _require_moment(kind: ColumnKind, text: str) -> None:
    """Raise ValueError for text that no server prints; months and days that are 0 are allowed."""
    date, clock = ("", text.removeprefix("-")) if kind is K.TIME else (*re.split("[ T]", text, maxsplit=1), "")[:2]
    if kind is not K.TIME:
        match = _DATE.fullmatch(date)
        year, month, day = (int(part) for part in match.groups()) if match else (0, 13, 0)
        if month > 12 or day > (monthrange(year or 4, month)[1] if month else 31):
            raise ValueError(text)
    if kind is K.TIME or (clock and kind is not K.DATE):
        match = _CLOCK.fullmatch(clock)
        hours, *rest = (int(part or 0) for part in match.groups()) if match else (999, 0)
        if hours > (838 if kind is K.TIME else 23) or max(rest) > 59:
            raise ValueError(text)


@contextmanager
def _said(column: Column, text: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, ArithmeticError) as error:
        raise ConfigError(f"{text!r} is no value of the key column {column.name} ({column.sql_type})") from error


def numbers_of(literals_: Sequence[str]) -> tuple[Decimal, ...] | None:
    """Return the literals as numbers, None if one of them is not one.

    It shows whether a range has its ends in order.
    """
    try:
        return tuple(Decimal(text) for text in literals_)
    except ArithmeticError:
        return None


def after(names: Sequence[str], bound: Sequence[str], *, included: bool = False) -> str:
    """Return the condition that the key is greater than ``bound`` (or equal, with ``included``), in key order.

    ``""`` for no bound. Written so that the range optimizer sees it: MySQL does not use an index for ``(a, b) > (1,
    2)``.
    """
    return _beyond(names, bound, ">", included)


def upto(names: Sequence[str], bound: Sequence[str]) -> str:
    """Return the condition that the key is ``bound`` or less. ``""`` for no bound."""
    return _beyond(names, bound, "<", True)


def _beyond(names: Sequence[str], bound: Sequence[str], sign: str, included: bool) -> str:
    if not bound:
        return ""
    name, value = _side(names[0], bound[0]), bound[0]
    if len(bound) == 1:
        return f"{name} {sign}{'=' if included else ''} {value}"
    rest = _beyond(names[1:], bound[1:], sign, included)
    return f"({name} {sign}= {value} AND ({name} {sign} {value} OR ({rest})))"


def among(names: Sequence[str], keys: Sequence[Sequence[str]]) -> str:
    """Return the condition that the key is one of ``keys``."""
    if len(names) == 1:
        return f"{_side(names[0], keys[0][0])} IN ({', '.join(key[0] for key in keys)})"
    rows = (" AND ".join(f"{_side(n, v)} = {v}" for n, v in zip(names, key, strict=True)) for key in keys)
    return "(" + " OR ".join(f"({row})" for row in rows) + ")"


def both(*conditions: str) -> str:
    """Join all conditions that are not empty; ``TRUE`` for none."""
    return " AND ".join(c for c in conditions if c) or "TRUE"
