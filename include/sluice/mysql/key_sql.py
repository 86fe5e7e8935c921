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
from decimal import Decimal

import pyarrow as pa

from sluice.errors import ConfigError, UnsupportedType
from sluice.model.column_types import ColumnKind
from sluice.model.key_literals import UTF8
from sluice.model.tables import Column, quoted
from sluice.model.temporal import to_text
from sluice.mysql.column_types import Literal, type_named

K = ColumnKind


def literals(column: Column, values: pa.Array) -> list[str]:
    """Return SQL literals of a key column's values (stored form, no nulls).

    Raises UnsupportedType for a type no key has.
    """
    row = type_named(column.sql_type, column.name)
    if not row.key:
        raise UnsupportedType(f"a {row.word} column cannot be a key", where=column.name)
    return LITERALS[row.literal](column, values)


def _numbers(_: Column, values: pa.Array) -> list[str]:
    return [str(v) for v in values.to_pylist()]


def _decimals(_: Column, values: pa.Array) -> list[str]:
    return [f"{v:f}" for v in values.to_pylist()]


def _floats(_: Column, values: pa.Array) -> list[str]:
    return [text if "e" in (text := repr(float(v))) else f"{text}e0" for v in values.to_pylist()]


def _moments(_: Column, values: pa.Array) -> list[str]:
    return [f"'{text}'" for text in to_text(values, fsp=0 if pa.types.is_date32(values.type) else 6).to_pylist()]


def _hexadecimal(_: Column, values: pa.Array) -> list[str]:
    return [f"x'{bytes(v).hex()}'" for v in values.to_pylist()]


def _label_numbers(column: Column, values: pa.Array) -> list[str]:
    numbers = {label: i + 1 for i, label in enumerate(column.labels)}
    return [str(numbers.get(v, 0)) for v in values.to_pylist()]


def _label_bits(column: Column, values: pa.Array) -> list[str]:
    bits = {label: 1 << i for i, label in enumerate(column.labels)}
    return [str(sum(bits[part] for part in v.split(",") if v)) for v in values.to_pylist()]


def _texts(_: Column, values: pa.Array) -> list[str]:
    if pa.types.is_binary(values.type):
        return _hexadecimal(_, values)
    return [f"_utf8mb4 x'{v.encode('utf-8').hex()}'" for v in values.to_pylist()]


LITERALS: Mapping[Literal, Callable[[Column, pa.Array], list[str]]] = {
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
        found = _DATE.fullmatch(date)
        year, month, day = (int(part) for part in found.groups()) if found else (0, 13, 0)
        if month > 12 or day > (monthrange(year or 4, month)[1] if month else 31):
            raise ValueError(text)
    if kind is K.TIME or (clock and kind is not K.DATE):
        found = _CLOCK.fullmatch(clock)
        hours, *rest = (int(part or 0) for part in found.groups()) if found else (999, 0)
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
    name, value = quoted(names[0]), bound[0]
    if len(bound) == 1:
        return f"{name} {sign}{'=' if included else ''} {value}"
    rest = _beyond(names[1:], bound[1:], sign, included)
    return f"({name} {sign}= {value} AND ({name} {sign} {value} OR ({rest})))"


def among(names: Sequence[str], keys: Sequence[Sequence[str]]) -> str:
    """Return the condition that the key is one of ``keys``."""
    if len(names) == 1:
        return f"{quoted(names[0])} IN ({', '.join(key[0] for key in keys)})"
    rows = (" AND ".join(f"{quoted(n)} = {v}" for n, v in zip(names, key, strict=True)) for key in keys)
    return "(" + " OR ".join(f"({row})" for row in rows) + ")"


def both(*conditions: str) -> str:
    """Join all conditions that are not empty; ``TRUE`` for none."""
    return " AND ".join(c for c in conditions if c) or "TRUE"
