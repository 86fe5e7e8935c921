"""The type in an Oracle target for each neutral type, and which values its columns can and cannot hold."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from sluice.model.column_types import ColumnKind, ColumnType
from sluice.model.losses import Loss
from sluice.model.planned import PlannedColumn

K = ColumnKind

STANDARD_BYTES, EXTENDED_BYTES = 4_000, 32_767
"""Bytes of a VARCHAR2 at most, as the server's parameter MAX_STRING_SIZE says; a RAW has half of 4,000."""
_BYTES_A_CHARACTER = 4
_MOST_DIGITS = 38
_DAYS_OF_A_TIME = 2

_TYPE = re.compile(r"(?P<word>[A-Za-z_0-9]+)(?:\((?P<numbers>[^)]*)\))?(?P<rest>.*)", re.S)
_ALIASES = {
    "INTEGER": "NUMBER", "INT": "NUMBER", "SMALLINT": "NUMBER", "DECIMAL": "NUMBER", "NUMERIC": "NUMBER",
    "VARCHAR": "VARCHAR2",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class OracleType:
    """A type as the catalog has it: ``word`` without brackets, ``numbers`` in them, and the whole of it.

    ``bytes_``: a length in ``numbers`` counts bytes, not characters.
    """

    word: str
    numbers: tuple[int, ...]
    declared: str
    bytes_: bool = False

    @property
    def is_lob(self) -> bool:
        """True for a type that no comparison, key or index takes."""
        return self.word in {"CLOB", "BLOB", "NCLOB"}


@lru_cache(4096)
def oracle_type(declared: str) -> OracleType:
    """Parse a type as the catalog or a person writes it."""
    match = _TYPE.fullmatch(declared.strip())
    if match is None:
        return OracleType(declared, (), declared)
    word, rest = match["word"].upper(), match["rest"].upper()
    inside = (match["numbers"] or "").upper()
    numbers = tuple(int(part) for part in re.findall(r"-?\d+", inside + rest))
    if word == "INTERVAL":
        word = "INTERVAL DAY TO SECOND" if "DAY" in rest else "INTERVAL YEAR TO MONTH"
    elif word == "TIMESTAMP" and "ZONE" in rest:
        word = "TIMESTAMP WITH LOCAL TIME ZONE" if "LOCAL" in rest else "TIMESTAMP WITH TIME ZONE"
    if word in {"INTEGER", "INT", "SMALLINT"}:
        numbers = (_MOST_DIGITS, 0)
    return OracleType(_ALIASES.get(word, word), numbers, declared.strip(), "BYTE" in inside)


_DIGITS = {K.TINYINT: (3, 3), K.SMALLINT: (5, 5), K.MEDIUMINT: (7, 8), K.INT: (10, 10), K.BIGINT: (19, 20)}
_WHOLE = (*_DIGITS, K.YEAR, K.BIT)
_TEXTS = (K.CHAR, K.VARCHAR, K.TEXT, K.ENUM, K.SET)
_SHORT_TEXTS: Mapping[ColumnKind, int] = {K.UUID: 36, K.INET4: 15, K.INET6: 45}
_BYTES = (K.BINARY, K.VARBINARY, K.BLOB, K.GEOMETRY, K.VECTOR)


def _whole(column_type: ColumnType) -> str:
    if column_type.kind is K.YEAR:
        return "NUMBER(4)"
    if column_type.kind is K.BIT:
        return f"NUMBER({len(str(2 ** (column_type.length or 1) - 1))})"
    return f"NUMBER({_DIGITS[column_type.kind][column_type.unsigned]})"


def _decimal(column_type: ColumnType) -> str:
    return f"NUMBER({column_type.precision},{column_type.scale})" if column_type.precision <= _MOST_DIGITS else "NUMBER"


def _longest(column_type: ColumnType) -> int:
    """Return the most characters that a text has; 0: no limit is known."""
    if column_type.kind is K.ENUM:
        return max((len(label) for label in column_type.labels), default=0)
    if column_type.kind is K.SET:
        return sum(len(label) + 1 for label in column_type.labels)
    return column_type.length


def own_type(value_type: ColumnType, string_bytes: int = STANDARD_BYTES, *, key: bool = False) -> str:
    """Return the type of a column that holds every value of ``value_type``, as far as Oracle has them.

    Args:
        string_bytes: the most bytes of a VARCHAR2.
        key: the column is part of a key, which a LOB cannot be.
    """
    to_type = _OWN.get(value_type.kind)
    if to_type is not None:
        return to_type(value_type)
    raw = string_bytes if string_bytes > STANDARD_BYTES else string_bytes // 2
    if value_type.kind in _TEXTS:
        size = _longest(value_type)
        if 0 < size * _BYTES_A_CHARACTER <= string_bytes:
            return f"VARCHAR2({size} CHAR)"
        return f"VARCHAR2({min(size or string_bytes, string_bytes)} CHAR)" if key else "CLOB"
    if value_type.kind in {K.BINARY, K.VARBINARY} and 0 < value_type.length <= raw:
        return f"RAW({value_type.length})"
    return f"RAW({min(value_type.length or raw, raw)})" if key else "BLOB"


_OWN: Mapping[ColumnKind, Callable[[ColumnType], str]] = {
    **dict.fromkeys(_WHOLE, _whole),
    K.DECIMAL: _decimal,
    K.FLOAT: lambda column_type: "BINARY_FLOAT",
    K.DOUBLE: lambda column_type: "BINARY_DOUBLE",
    K.DATE: lambda column_type: "DATE",
    **dict.fromkeys((K.DATETIME, K.TIMESTAMP), lambda column_type: f"TIMESTAMP({column_type.digits})"),
    K.TIME: lambda column_type: f"INTERVAL DAY({_DAYS_OF_A_TIME}) TO SECOND({column_type.digits})",
    K.JSON: lambda column_type: "CLOB",
    **{kind: (lambda column_type, size=size: f"VARCHAR2({size} CHAR)") for kind, size in _SHORT_TEXTS.items()},  # type: ignore[misc]
}

EMPTY = "an empty text is NULL to Oracle: options.empty_strings"
_ZERO_DATES = "dates that no calendar has (0000-00-00) are refused, or become NULL: options.zero_dates"
LOSES: Mapping[ColumnKind, str] = {
    K.DATE: _ZERO_DATES,
    K.DATETIME: _ZERO_DATES,
    K.TIMESTAMP: f"it is in UTC, without a zone; {_ZERO_DATES}",
    **dict.fromkeys((K.FLOAT, K.DOUBLE), "-0 becomes 0"),
    **dict.fromkeys((K.CHAR, K.VARCHAR, K.TEXT), EMPTY),
    K.ENUM: f"the order of the labels is lost; {EMPTY}",
    K.SET: f"it is the text of the labels; {EMPTY}",
    K.JSON: "it is the text of the document",
    **dict.fromkeys((K.BINARY, K.VARBINARY, K.BLOB), "an empty value is NULL to Oracle: options.empty_strings"),
    K.GEOMETRY: "it is bytes: four of the SRID, then WKB",
    K.VECTOR: "it is bytes: four a number",
    **dict.fromkeys((K.UUID, K.INET4, K.INET6), "it is text"),
}
"""The part of the values that the own type does not keep; it changes none silently."""


def made_type(column: PlannedColumn, string_bytes: int = STANDARD_BYTES) -> str:
    """Return the type for a column definition: the mapping's own (``convert: {type: …}``), else what holds every
    value.
    """
    sent = column.sent_type
    if column.wanted and sent == column.value_type:
        return column.wanted
    return own_type(sent, string_bytes, key=bool(column.key))


_STRINGS = frozenset({"VARCHAR2", "NVARCHAR2", "CLOB", "NCLOB"})
_STAMPS = frozenset({"TIMESTAMP", "DATE"})
_TAKES: Mapping[ColumnKind, frozenset[str]] = {
    **dict.fromkeys((*_WHOLE, K.DECIMAL), frozenset({"NUMBER"})),
    **dict.fromkeys((K.FLOAT, K.DOUBLE), frozenset({"BINARY_FLOAT", "BINARY_DOUBLE"})),
    K.DATE: _STAMPS,
    **dict.fromkeys((K.DATETIME, K.TIMESTAMP), _STAMPS),
    K.TIME: frozenset({"INTERVAL DAY TO SECOND"}),
    **dict.fromkeys(_TEXTS, _STRINGS),
    K.CHAR: _STRINGS | {"CHAR", "NCHAR"},
    K.JSON: _STRINGS,
    **dict.fromkeys(_SHORT_TEXTS, frozenset({"VARCHAR2", "NVARCHAR2"})),
    **dict.fromkeys(_BYTES, frozenset({"RAW", "BLOB"})),
}
"""The types whose columns can hold values of a kind; a value that one of them cannot hold exactly is refused when it
arrives.
"""


def takes(sent_type: ColumnType, target_type: OracleType) -> bool:
    """Return True if a column of type ``target_type`` holds values of ``sent_type``, but for those that :func:`lost`
    names.
    """
    return target_type.word in _TAKES[sent_type.kind]


def lost(sent_type: ColumnType, target_type: OracleType) -> str:
    """Return what a column of type ``target_type`` does not keep, or refuses, of values of ``sent_type``.

    "" for nothing. See :func:`takes`.
    """
    loss = LOSES.get(sent_type.kind, "")
    if sent_type.kind in _WHOLE or sent_type.kind is K.DECIMAL:
        return _lost_number(sent_type, target_type)
    if sent_type.kind is K.DOUBLE and target_type.word == "BINARY_FLOAT":
        return f"{loss}; numbers that four bytes do not hold are refused"
    if sent_type.kind in {K.DATETIME, K.TIMESTAMP} and _second_digits(target_type) < sent_type.digits:
        return f"{loss}; times with more digits of a second are refused"
    if sent_type.kind is K.TIME and (target_type.numbers or (2, 6))[0] < _DAYS_OF_A_TIME:
        return "times of many days are refused"
    if sent_type.kind is K.TIME and _second_digits(target_type) < sent_type.digits:
        return "times with more digits of a second are refused"
    if target_type.word in {"CHAR", "NCHAR"}:
        padded = f"{loss}; values are padded with blanks"
        return padded if sent_type.kind is K.CHAR else Loss(f"{padded}, so that those at the end of a value are lost")
    if target_type.word in {"VARCHAR2", "NVARCHAR2"} and target_type.numbers and sent_type.kind not in _SHORT_TEXTS:
        unit = "bytes" if target_type.bytes_ else "characters"
        size = _longest(sent_type) * (_BYTES_A_CHARACTER if target_type.bytes_ else 1)
        if not 0 < size <= target_type.numbers[0]:
            return f"{loss}; texts of more than {target_type.numbers[0]} {unit} are refused"
    if target_type.word == "RAW" and not 0 < sent_type.length <= target_type.numbers[0]:
        return f"{loss}; values of more than {target_type.numbers[0]} bytes are refused"
    return loss


def holds_all(sent_type: ColumnType, target_type: OracleType) -> bool:
    """Return True if a column of type ``target_type`` can hold every value of ``sent_type`` that Oracle has at all."""
    if sent_type.kind is K.DECIMAL and sent_type.precision > _MOST_DIGITS:
        return target_type.word == "NUMBER" and not target_type.numbers
    return takes(sent_type, target_type) and lost(sent_type, target_type) == LOSES.get(sent_type.kind, "")


def _second_digits(kind: OracleType) -> int:
    if kind.word == "DATE":
        return 0
    return kind.numbers[-1] if kind.numbers else 6


def room(number_type: OracleType) -> tuple[int, int]:
    """Return the digits before and after the point that a NUMBER takes; (38, 38) for one without a precision."""
    if not number_type.numbers:
        return _MOST_DIGITS, _MOST_DIGITS
    precision, scale = (*number_type.numbers, 0)[:2]
    return precision - scale, scale


def _lost_number(column_type: ColumnType, kind: OracleType) -> str:
    before, after = room(kind)
    if column_type.kind is K.DECIMAL:
        if not kind.numbers:
            return (
                ""
                if column_type.precision <= _MOST_DIGITS
                else f"numbers of more than {_MOST_DIGITS} digits are refused"
            )
        fits = after >= column_type.scale and before >= column_type.precision - column_type.scale
        return "" if fits else "numbers with more digits are refused"
    needed = oracle_type(_whole(column_type)).numbers[0]
    return "" if before >= needed else f"numbers of more than {before} digits are refused"
