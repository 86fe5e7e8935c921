"""Losses when a value of one MySQL type is written into a column of another: none, precision, range or characters.

Types are compared as declared (``decimal(12,2)``, ``bigint unsigned``, ``varchar(40)`` with its charset), so that what
may be lost is known before a row is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from sluice.model.column_types import ColumnKind, ColumnType
from sluice.model.definitions import ColumnDefinition
from sluice.model.labels import labels_of
from sluice.model.losses import Loss
from sluice.mysql.column_types import SYNONYMS, Brackets, Literal, MysqlType, find_type, type_named

_UNICODE = {"utf8mb4": 3, "utf16": 3, "utf32": 3, "utf16le": 3, "gb18030": 3, "utf8mb3": 2, "utf8": 2, "ucs2": 2}
"""How much of Unicode a charset holds: 3 all of it, 2 the basic plane."""


@dataclass(frozen=True, slots=True)
class SqlType:
    """A declared type, taken apart: ``word`` (``varchar``), numbers in brackets, unsigned, charset, labels of ENUM and
    SET.
    """

    word: str
    numbers: tuple[int, ...] = ()
    unsigned: bool = False
    charset: str = ""
    labels: tuple[str, ...] = ()

    @classmethod
    def parse(cls, declared: str, charset: str = "") -> SqlType:
        """Parse ``decimal(12,2) unsigned`` and so on; an empty text gives an empty word."""
        match = re.match(r"\s*([a-zA-Z0-9_]+)\s*(?:\((.*)\))?\s*(.*)$", declared, re.S)
        if match is None:
            return cls("")
        word, inside, rest = match[1].lower(), match[2] or "", match[3].lower()
        word = "tinyint" if word in {"boolean", "bool"} else SYNONYMS.get(word, word)
        row = find_type(word)
        if row is not None and row.brackets is Brackets.LABELS:
            return cls(word, labels=labels_of(declared), charset=charset)
        numbers = tuple(int(n) for n in re.findall(r"\d+", inside))
        if row is not None and row.brackets is Brackets.PRECISION:
            numbers = (*numbers, *((10, 0)[len(numbers) :]))
        if row is not None and row.argument is not None and not numbers:
            numbers = (row.argument,)
        return cls(word, numbers, "unsigned" in rest or "zerofill" in rest, charset)

    @property
    def row(self) -> MysqlType | None:
        """The known facts of the type, None for an unknown one."""
        return find_type(self.word)

    @property
    def kind(self) -> ColumnKind | None:
        """The neutral kind of its values."""
        row = self.row
        return row.kind if row is not None else None

    def neutral(self, collation: str = "") -> ColumnType | None:
        """Return the type whatever the dialect; None for one that is not known."""
        row = self.row
        if row is None:
            return None
        precision, scale = (*self.numbers, 0, 0)[:2]
        column_type = ColumnType(
            row.kind,
            precision,
            scale,
            digits=self.first,
            length=row.most_bytes or self.first,
            unsigned=row.signed and self.unsigned,
            labels=self.labels,
            charset=self.charset,
            collation=collation,
            shape=row.word if row.shape is not None else "",
        )
        return column_type.plain

    @property
    def first(self) -> int:
        """The first number in brackets, 0 if there is none."""
        return self.numbers[0] if self.numbers else 0


def definition_type(column: ColumnDefinition) -> ColumnType | None:
    """Return what the values of a defined column are, None for a type that is not known."""
    neutral = SqlType.parse(column.type, column.charset or "").neutral(column.collation or "")
    return replace(neutral, labels=column.labels) if neutral is not None and column.labels else neutral


def loss(source: SqlType, target: SqlType) -> str:
    """Describe what may be lost (:class:`Loss`) or refused, as a sentence without a subject; ``""`` if every value fits
    exactly.
    """
    if not source.word or not target.word:
        return ""
    judge = JUDGES.get(source.kind, _other) if source.kind is not None else _other
    return judge(source, target)


def _other(source: SqlType, target: SqlType) -> str:
    return "" if source.word == target.word or _is_blob_like(target) else f"{source.word} is written as {target.word}"


def _is_integer(t: SqlType) -> bool:
    return t.row is not None and t.row.bits > 0


def _is_text(t: SqlType) -> bool:
    return t.row is not None and t.row.charset and t.row.brackets is not Brackets.LABELS


def _is_binary(t: SqlType) -> bool:
    return t.row is not None and bool(t.row.twin) and not t.row.charset


def _is_blob_like(t: SqlType) -> bool:
    return t.kind is ColumnKind.BLOB


def _is_temporal(t: SqlType) -> bool:
    return t.row is not None and (t.row.literal is Literal.TEMPORAL or t.kind is ColumnKind.YEAR)


def _range(t: SqlType) -> tuple[int, int]:
    return type_named(t.word).range[t.unsigned]


def _integer(source: SqlType, target: SqlType) -> str:
    low, high = _range(source)
    if _is_integer(target):
        to_low, to_high = _range(target)
        return "" if to_low <= low and high <= to_high else f"values outside of {to_low}..{to_high} are refused"
    if target.word == "decimal":
        digits = target.numbers[0] - target.numbers[1]
        if low < 0 and target.unsigned:
            return "negative values are refused"
        return "" if digits >= len(str(high)) else f"values of more than {digits} digits are refused"
    if target.word == "double":
        return "" if high <= 2**53 else Loss("values beyond 2^53 lose digits")
    if target.word == "float":
        return "" if high <= 2**24 else Loss("values beyond 2^24 lose digits")
    return _as_text(len(str(low)), target) if _is_text(target) else f"numbers are written as {target.word}"


def _decimal(source: SqlType, target: SqlType) -> str:
    precision, scale = source.numbers
    if target.word == "decimal":
        to_precision, to_scale = target.numbers
        if target.unsigned and not source.unsigned:
            return "negative values are refused"
        if scale > to_scale:
            return Loss(f"fractions are rounded to {to_scale} digits")
        return (
            ""
            if precision - scale <= to_precision - to_scale
            else f"values of more than {to_precision - to_scale} digits are refused"
        )
    if target.word in {"double", "float"}:
        return (
            ""
            if precision <= (15 if target.word == "double" else 6)
            else Loss("decimals become binary fractions and lose digits")
        )
    if _is_integer(target):
        if scale:
            return Loss("fractions are rounded away")
        return "" if precision < len(str(_range(target)[1])) else "values out of range are refused"
    return _as_text(precision + 2, target) if _is_text(target) else f"decimals are written as {target.word}"


def _floating(source: SqlType, target: SqlType) -> str:
    if target.word == source.word or target.word == "double":
        return "" if not (target.unsigned and not source.unsigned) else "negative values are refused"
    if target.word == "float":
        return Loss("a double becomes a float: 15 digits become 6")
    return (
        ""
        if _is_text(target) and (not target.first or target.first >= 24)
        else Loss(f"binary fractions are rounded to {target.word}")
    )


def _temporal(source: SqlType, target: SqlType) -> str:
    if source.word == "year" or target.word == "year":
        return "" if source.word == target.word or _is_integer(target) else f"{source.word} is written as {target.word}"
    if _is_text(target):
        return _as_text(26, target)
    pair = (source.word, target.word)
    if pair in {("datetime", "date"), ("timestamp", "date")}:
        return Loss("the time of day is cut off")
    if pair in {("datetime", "timestamp"), ("date", "timestamp")}:
        return "dates outside of 1970..2038 and zero dates are refused; values are taken for UTC"
    if pair == ("date", "datetime"):
        return ""
    if "time" in pair and pair != ("time", "time"):
        return Loss(f"{source.word} is written as {target.word}: the date is lost, or made up")
    if not _is_temporal(target):
        return f"{source.word} is written as {target.word}"
    return "" if source.first <= target.first else Loss(f"fractions of a second are rounded to {target.first} digits")


def _bit(source: SqlType, target: SqlType) -> str:
    if target.word == "bit":
        return "" if source.first <= target.first else f"more than {target.first} bits are refused"
    if _is_integer(target):
        return "" if 2**source.first - 1 <= _range(target)[1] else "values out of range are refused"
    return f"bits are written as {target.word}"


def _labelled(source: SqlType, target: SqlType) -> str:
    if target.word == source.word:
        missing = [label for label in source.labels if label not in target.labels]
        return f"the labels {', '.join(map(repr, missing[:3]))} are refused" if missing else ""
    longest = max(map(len, source.labels), default=0) if source.word == "enum" else len(",".join(source.labels))
    return _as_text(longest, target, source.charset) if _is_text(target) else f"labels are written as {target.word}"


def _json(source: SqlType, target: SqlType) -> str:
    del source
    if target.word in {"json", "longtext"}:
        return ""
    return (
        f"documents longer than the column's {target.word} are refused"
        if _is_text(target)
        else f"JSON is written as {target.word}"
    )


def _text(source: SqlType, target: SqlType) -> str:
    if target.word == "json":
        return "text that is no JSON is refused"
    if _is_binary(target):
        return ""
    if not _is_text(target):
        return f"text that is no valid {target.word} is refused"
    return _charset(source.charset, target.charset) or _as_text(_characters(source), target)


def _characters(t: SqlType) -> int:
    """Return the most characters that a text column may hold (a TEXT column counts bytes)."""
    return type_named(t.word).most_bytes or t.first


def _as_text(characters: int, target: SqlType, charset: str = "") -> str:
    if charset and _charset(charset, target.charset):
        return _charset(charset, target.charset)
    limit = type_named(target.word).most_bytes
    if not limit:
        return "" if characters <= target.first else f"text longer than {target.first} characters is refused"
    return "" if characters <= limit else f"text longer than {limit} bytes is refused"


def _charset(source: str, target: str) -> str:
    if not source or not target or source == target or source == "ascii":
        return ""
    holds, has = _UNICODE.get(target, 0), _UNICODE.get(source, 1)
    return "" if holds >= has and holds > 1 else f"characters that {target} lacks are refused"


def _binary(source: SqlType, target: SqlType) -> str:
    if not _is_binary(target):
        return f"bytes are written as {target.word}"
    size = type_named(source.word).most_bytes or source.first
    if target.word == "binary" and (source.word != "binary" or source.first != target.first):
        return Loss(f"values are padded with zero bytes to {target.first}")
    limit = type_named(target.word).most_bytes or target.first
    return "" if size <= limit else f"values longer than {limit} bytes are refused"


K = ColumnKind
JUDGES: Mapping[ColumnKind, Callable[[SqlType, SqlType], str]] = {
    **dict.fromkeys((K.TINYINT, K.SMALLINT, K.MEDIUMINT, K.INT, K.BIGINT), _integer),
    K.DECIMAL: _decimal,
    **dict.fromkeys((K.FLOAT, K.DOUBLE), _floating),
    **dict.fromkeys((K.DATE, K.DATETIME, K.TIMESTAMP, K.TIME, K.YEAR), _temporal),
    K.BIT: _bit,
    **dict.fromkeys((K.ENUM, K.SET), _labelled),
    K.JSON: _json,
    **dict.fromkeys((K.CHAR, K.VARCHAR, K.TEXT), _text),
    **dict.fromkeys((K.BINARY, K.VARBINARY, K.BLOB), _binary),
    **dict.fromkeys((K.GEOMETRY, K.VECTOR, K.UUID, K.INET4, K.INET6), _other),
}
"""Who says what another type loses, by the neutral kind of the source's values."""
