"""The type of a column for each kind of values, what a column that is there can hold, and what that loses."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from sluice.model.column_types import ColumnKind, ColumnType
from sluice.model.losses import Loss
from sluice.targets.clickhouse.sql import literal

K = ColumnKind

_WHOLE_BITS = {K.TINYINT: 8, K.SMALLINT: 16, K.MEDIUMINT: 24, K.INT: 32, K.BIGINT: 64}
WHOLE = frozenset({*_WHOLE_BITS, K.YEAR, K.BIT})
TIMES = frozenset({K.DATETIME, K.TIMESTAMP})
DATES = frozenset({K.DATE, *TIMES})
BYTES = frozenset({K.BINARY, K.VARBINARY, K.BLOB, K.GEOMETRY, K.VECTOR})
_TEXTS = frozenset({K.CHAR, K.VARCHAR, K.TEXT, K.SET, K.JSON, K.UUID, K.INET4, K.INET6, K.ENUM})
_MOST_LABELS = (127, 32_767)
"""Labels of an Enum8 and of an Enum16 at most."""
_TYPE = re.compile(r"(\w+)(?:\((.*)\))?", re.DOTALL)
_LABEL = re.compile(r"'((?:[^'\\]|\\.|'')*)'\s*=\s*(-?\d+)", re.DOTALL)
_UNESCAPED = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "b": "\b", "f": "\f"}


@dataclass(frozen=True, slots=True)
class HeldType:
    """A type as the server writes it, without Nullable and LowCardinality.

    ``word``: its name; ``inside``: what is in its brackets.
    """

    declared: str
    word: str
    inside: str = ""
    nullable: bool = False
    low_cardinality: bool = False

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers in the brackets."""
        return tuple(int(digits) for digits in re.findall(r"(?:^|,)\s*(\d+)", self.inside))

    @property
    def labels(self) -> dict[str, int]:
        """The labels of an Enum with their numbers."""
        return {unescaped(label): int(number) for label, number in _LABEL.findall(self.inside)}

    def as_nullable(self, nullable: bool) -> str:
        """Return the whole type, which takes NULL or does not."""
        bare = f"{self.word}({self.inside})" if self.inside else self.word
        inner = f"Nullable({bare})" if nullable and self.word not in _NEVER_NULL else bare
        return f"LowCardinality({inner})" if self.low_cardinality else inner


_NEVER_NULL = frozenset({"Array", "Map", "Tuple", "Nested", "Variant", "Dynamic"})


def unescaped(text: str) -> str:
    """Return a text of SQL without its escapes."""
    return re.sub(
        r"\\(.)|''", lambda match: _UNESCAPED.get(match[1], match[1]) if match[1] else "'", text, flags=re.DOTALL
    )


@lru_cache(4096)
def held_type(declared: str) -> HeldType:
    """Read a type as the server, or a person, writes it."""
    match = _TYPE.fullmatch(declared.strip())
    if match is None:
        return HeldType(declared, declared)
    word, inside = match[1], match[2] or ""
    if word in {"Nullable", "LowCardinality"}:
        inner = held_type(inside)
        return HeldType(
            declared,
            inner.word,
            inner.inside,
            nullable=inner.nullable or word == "Nullable",
            low_cardinality=inner.low_cardinality or word == "LowCardinality",
        )
    return HeldType(declared, word, inside)


_KNOWN = frozenset({
    *(f"{sign}Int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64, 128, 256)), "Decimal", "Float32",
    "Float64", "Date", "Date32", "DateTime", "DateTime64", "String", "UUID", "IPv4", "IPv6", "JSON", "Enum8", "Enum16",
})  # fmt: skip
"""The types that columns of rows have."""


def declared_problem(declared: str) -> str:
    """Return what is wrong with a type that a person wrote; "" if nothing is."""
    column_type = held_type(declared)
    if column_type.word not in _KNOWN or declared.count("(") != declared.count(")"):
        return f"{declared!r} is no type that Sluice writes; write one of {', '.join(sorted(_KNOWN))}"
    return ""


def _range(column_type: ColumnType) -> tuple[int, int]:
    if column_type.kind is K.YEAR:
        return 0, 2155
    if column_type.kind is K.BIT:
        return 0, 2 ** (column_type.length or 1) - 1
    bits = _WHOLE_BITS[column_type.kind]
    return (0, 2**bits - 1) if column_type.unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _whole(column_type: ColumnType) -> str:
    low, high = _range(column_type)
    bits = next(bits for bits in (8, 16, 32, 64) if high < 2 ** (bits if low == 0 else bits - 1))
    return f"{'U' if low == 0 else ''}Int{bits}"


def _moment(column_type: ColumnType) -> str:
    return f"DateTime64({column_type.digits}, 'UTC')"


def enum_type(labels: tuple[str, ...], held_numbers: Mapping[str, int] | None = None) -> str:
    """Return an Enum with labels; those that are there keep their numbers. "" if there are too many."""
    numbers = dict(held_numbers or {})
    if not numbers:
        numbers = {"": 0, **{label: number for number, label in enumerate(labels, 1)}}
    for label in ("", *labels):
        if label not in numbers:
            numbers[label] = max(numbers.values()) + 1
    bits = next((bits for bits, most in zip((8, 16), _MOST_LABELS, strict=True) if max(numbers.values()) <= most), 0)
    entries = ", ".join(
        f"{literal(label)} = {number}" for label, number in sorted(numbers.items(), key=lambda entry: entry[1])
    )
    return f"Enum{bits}({entries})" if bits else ""


OWN: Mapping[ColumnKind, Callable[[ColumnType], str] | str] = {
    **dict.fromkeys(WHOLE, _whole),
    K.DECIMAL: lambda column_type: f"Decimal({column_type.precision}, {column_type.scale})",
    K.FLOAT: "Float32",
    K.DOUBLE: "Float64",
    K.DATE: "Date32",
    **dict.fromkeys(TIMES, _moment),
    K.TIME: "Int64",
    **dict.fromkeys(_TEXTS | BYTES, "String"),
    K.ENUM: "LowCardinality(String)",
}
"""The type that is proposed for each kind of values."""

LOSES: Mapping[ColumnKind, str] = {
    K.TIME: "it is a number of microseconds",
    K.BIT: "it is a number",
    K.SET: "it is the text of the labels",
    K.JSON: "it is the text",
    K.GEOMETRY: "it is bytes: four of the SRID, then WKB",
    K.VECTOR: "it is bytes: four a number",
}
"""What a column of the proposed type does not say of the values; it changes none."""


def own_type(column_type: ColumnType, enums: str = "text") -> str:
    """Return the type that is proposed for a column, without Nullable."""
    if column_type.kind is K.ENUM and enums == "enum" and (declared := enum_type(column_type.labels)):
        return declared
    own = OWN[column_type.kind]
    return own if isinstance(own, str) else own(column_type)


def takes(sent_type: ColumnType, target_type: HeldType) -> bool:
    """Return True if a column holds every value of ``sent_type``, except for what :func:`lost` says."""
    word, kind = target_type.word, sent_type.kind
    if word == "String":
        return kind not in WHOLE | {K.FLOAT, K.DOUBLE}
    if kind in WHOLE | {K.DECIMAL}:
        if word == "Decimal":
            precision, scale = (*target_type.numbers, 0)[:2]
            digits, fraction = (
                (sent_type.precision, sent_type.scale)
                if kind is K.DECIMAL
                else (len(str(max(map(abs, _range(sent_type))))), 0)
            )
            return scale >= fraction and precision - scale >= digits - fraction
        match = re.fullmatch(r"(U?)Int(\d+)", word)
        if match is None or kind is K.DECIMAL:
            return False
        bits, (low, high) = int(match[2]), _range(sent_type)
        least, most = (0, 2**bits - 1) if match[1] else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        return least <= low and high <= most
    match kind:
        case K.FLOAT | K.DOUBLE:
            return word == "Float64" or (word == "Float32" and kind is K.FLOAT)
        case K.DATE:
            return word in {"Date32", "Date"}
        case K.DATETIME | K.TIMESTAMP:
            return (word == "DateTime64" and target_type.numbers[:1] >= (sent_type.digits,)) or (
                word == "DateTime" and not sent_type.digits
            )
        case K.TIME:
            return word == "Int64"
        case K.ENUM:
            return word in {"Enum8", "Enum16"} and {"", *sent_type.labels} <= target_type.labels.keys()
        case K.UUID | K.JSON:
            return word == {K.UUID: "UUID", K.JSON: "JSON"}[kind]
        case K.INET4 | K.INET6:
            return word == "IPv6" or (word == "IPv4" and kind is K.INET4)
    return False


def lost(sent_type: ColumnType, target_type: HeldType) -> str:
    """Return what a column that takes ``sent_type`` does not keep, or does not say; "" for nothing."""
    if target_type.word == "JSON":
        loss = "the order and the repetition of its names and the text of numbers are lost"
        return Loss(f"{loss}, and `sluice verify` does not compare it")
    if sent_type.kind is K.ENUM and target_type.word == "String":
        return "the order of the labels is lost"
    if target_type.word in {"Date", "DateTime"}:
        return "it holds few years: rows with other dates are refused, or the value becomes NULL (options.unfit_dates)"
    if sent_type.kind in TIMES and target_type.word == "DateTime64" and "'UTC'" not in target_type.inside:
        return "values are taken for UTC, and shown in another time zone"
    if sent_type.kind is K.DECIMAL and target_type.word == "String":
        return "it is the text of the digits"
    if sent_type.kind in DATES | {K.TIME} and target_type.word == "String":
        return "it is the source's text"
    return LOSES.get(sent_type.kind, "")


__all__ = [
    "BYTES", "DATES", "OWN", "TIMES", "WHOLE", "HeldType", "declared_problem", "enum_type", "held_type", "lost",
    "own_type", "takes", "unescaped",
]  # fmt: skip
