"""Columns of every type with values, and what a step of a conversion does to one value: as plain as it can be said."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

from sluice.model.row_effects import Step, StepKind

_INTEGERS = ("0", "1", "-1", "7", "100", "127", "128", "-129", "255", "32768", "2147483647", "99999", "2024")
_DECIMALS = (
    "0", "2.25", "-2.25", "2.35", "0.00001", "-0.05", "99.99", "999.5", "12345.67891", "0.5", "1.5", "-99.95",
    "9999999999.99999",
)  # fmt: skip
_TIMES = (
    "1999-12-31 23:59:59.5", "1999-12-31 23:59:59.999999", "2024-02-29 12:00:00.123456", "1970-01-02 00:00:00.4999",
    "2024-07-01 00:00:00.0005",
    "2024-01-01 00:00:00", "1985-03-04 05:06:07.5", "9999-12-31 23:59:59.6", "2030-05-05 05:05:05.0000005",
)  # fmt: skip
_SPANS = (
    "12:00:00.5", "-12:00:00.5", "00:00:00.123456", "-00:00:00.000001", "838:59:58.999999", "-838:59:58.4999",
    "00:00:01", "-00:00:59.95",
)  # fmt: skip
_TEXTS = (
    "", "a", "A", "ab  ", "  b", "abc", "abcdefghij", "b", "x", "1", "2", "007", "a,b", "Grüße", "é   ", "中文", "😀",
    "new", "2024", "abc       d",
)  # fmt: skip
_BYTES = ("", "00", "6162", "616200", "61622020", "ff", "0001020304050607", "6100000000", "20", "2020202020")
_LABELS = ("a", "b", "c", "A", "B", "x", "", "new", "1", "2", "a,b", "b,c", "a,c", "c,a,b")

VALUES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("tinyint", "smallint", "mediumint", "int", "bigint", "year", "bit"), _INTEGERS),
    **dict.fromkeys(("decimal", "float", "double"), (*_DECIMALS, *_INTEGERS)),
    **dict.fromkeys(("datetime", "date"), _TIMES),
    "timestamp": tuple(value for value in _TIMES if value < "2038"),
    "time": _SPANS,
    **dict.fromkeys(("char", "varchar", "tinytext", "text", "longtext"), _TEXTS),
    **dict.fromkeys(("binary", "varbinary", "tinyblob", "blob"), _BYTES),
    **dict.fromkeys(("enum", "set"), _LABELS),
    "json": ("1", "[1, 2]", '{"a": 1}', "null", '"x"'),
}

TYPES = (
    "TINYINT", "TINYINT UNSIGNED", "SMALLINT", "MEDIUMINT UNSIGNED", "INT", "INT UNSIGNED", "INT(5) ZEROFILL", "BIGINT",
    "BIGINT UNSIGNED", "YEAR",
    "BIT(4)", "BIT(8)", "BIT(40)",
    "DECIMAL(20,5)", "DECIMAL(10,1)", "DECIMAL(10,2)", "DECIMAL(4,2)", "DECIMAL(2,0)", "DECIMAL(12,0) UNSIGNED",
    "DECIMAL(30,10)", "DECIMAL(6,3) ZEROFILL",
    "FLOAT", "FLOAT(7,2)", "DOUBLE", "DOUBLE(9,2)", "DOUBLE UNSIGNED",
    "DATE", "DATETIME", "DATETIME(3)", "DATETIME(6)", "DATETIME(1)", "TIMESTAMP NULL", "TIMESTAMP(3) NULL",
    "TIMESTAMP(6) NULL",
    "TIME", "TIME(2)", "TIME(6)",
    "CHAR(3)", "CHAR(10)", "CHAR(10) CHARACTER SET latin1", "VARCHAR(2)", "VARCHAR(10)", "VARCHAR(40)",
    "VARCHAR(10) CHARACTER SET latin1",
    "VARCHAR(10) CHARACTER SET ascii", "VARCHAR(20) CHARACTER SET utf16", "VARCHAR(300)",
    "VARCHAR(10) COLLATE utf8mb4_bin",
    "TINYTEXT", "TEXT", "LONGTEXT", "TEXT CHARACTER SET latin1",
    "BINARY(3)", "BINARY(5)", "BINARY(8)", "VARBINARY(3)", "VARBINARY(5)", "VARBINARY(20)", "TINYBLOB", "BLOB",
    "ENUM('a','b','c')", "ENUM('a','b','c','new')", "ENUM('c','b','a')", "ENUM('new','a','b','c')", "ENUM('a','c')",
    "ENUM('A','B','C')",
    "ENUM('1','2','3')", "ENUM('x','y','1')", "ENUM('a','b','c') CHARACTER SET latin1",
    "SET('a','b','c')", "SET('c','b','a')", "SET('a','b','c','new')", "SET('a','new','b','c')", "SET('b','c')", "JSON",
)  # fmt: skip

LIKELY = (("decimal", "decimal"), ("char", "varchar"), ("varchar", "char"), ("varchar", "varchar"), ("enum", "enum"),
    ("set", "set"),
          ("varbinary", "binary"), ("binary", "binary"), ("datetime", "datetime"), ("timestamp", "timestamp"),
          ("time", "time"),
          ("int", "varchar"), ("decimal", "int"), ("bigint", "int"))  # fmt: skip
"""Families of types between which people convert."""

STRICT, LAX = "STRICT_TRANS_TABLES", ""
BITS = {
    "STRICT_TRANS_TABLES": 1 << 21, "STRICT_ALL_TABLES": 1 << 22, "NO_AUTO_VALUE_ON_ZERO": 1 << 19,
    "PAD_CHAR_TO_FULL_LENGTH": 1 << 31,
    "TIME_TRUNCATE_FRACTIONAL": 1 << 32, "TIME_ROUND_FRACTIONAL": 1 << 34, "ALLOW_INVALID_DATES": 1 << 25,
}  # fmt: skip


def family(declared: str) -> str:
    return re.split(r"[( ]", declared.lower(), maxsplit=1)[0]


def literals(declared: str, chosen: random.Random, most: int = 12) -> list[str]:
    """SQL literals of values that a column of the type may take."""
    kind = family(declared)
    values = VALUES[kind]
    some = chosen.sample(values, min(most, len(values)))
    if kind in {"binary", "varbinary", "tinyblob", "blob"}:
        return [f"x'{value}'" for value in some]
    return ["'" + value.replace("'", "''") + "'" for value in some]


class Untold(Exception):
    """A step says that nothing can be told of a value."""


def plain(value: Any, kind: str) -> Any:
    """A value as text (bytes: as bytes) made comparable: numbers by what they count, times by their microseconds."""
    if value is None:
        return None
    if kind in {"tinyint", "smallint", "mediumint", "int", "bigint", "decimal", "float", "double", "year", "bit"}:
        return Decimal(value)
    if kind in {"datetime", "timestamp", "date", "time"}:
        return _micros(str(value))
    return value


def _micros(text: str) -> int:
    sign, digits = (-1, text[1:]) if text.startswith("-") else (1, text)
    day, _, clock = digits.rpartition(" ") if " " in digits or ":" in digits else (digits, "", "0:0:0")
    days = 0
    if day:
        year, month, number = map(int, day.split("-"))
        days = (
            year * 12 + month
        ) * 31 + number  # in order, and one a day; a carry over midnight is looked at by `followed`
    hours, minutes, seconds = clock.split(":")
    return sign * ((days * 24 + int(hours)) * 3600 * 10**6 + int(minutes) * 60 * 10**6 + int(Decimal(seconds) * 10**6))


def after(value: Any, steps: Sequence[Step]) -> Any:
    """A value after the steps. Raises Untold."""
    for step in steps:
        value = _after(value, step)
    return value


_WIDE = Context(prec=100, rounding=ROUND_HALF_UP)


def _after(value: Any, step: Step) -> Any:
    kind, number = step.kind, step.number
    if kind is StepKind.NO_NULL and value is None:
        raise Untold
    if kind is StepKind.NO_ZERO and not value:
        raise Untold
    if value is None or kind in {StepKind.NO_NULL, StepKind.NO_ZERO}:
        return value
    if kind is StepKind.WITHIN and not step.low <= value <= step.high:
        raise Untold
    if kind is StepKind.AT_MOST and len(value) > number:
        raise Untold
    unit = 10 ** (6 - number) if number <= 6 else 1
    match kind:
        case StepKind.ROUND:
            return value.quantize(Decimal(1).scaleb(-number), context=_WIDE)
        case StepKind.ROUND_TIME:
            return (abs(value) + unit // 2) // unit * unit * (1 if value >= 0 else -1)
        case StepKind.CUT_TIME:
            return abs(value) // unit * unit * (1 if value >= 0 else -1)
        case StepKind.LEFT:
            return value[:number]
        case StepKind.TRIM_BLANKS:
            return value.rstrip(" ")
        case StepKind.PAD_ZEROS:
            return value.ljust(number, b"\0")
        case StepKind.TO_TEXT:
            return format(value.quantize(Decimal(1).scaleb(-number), context=_WIDE), "f")
        case StepKind.REORDER:
            return ",".join(sorted(value.split(","), key=lambda one: step.labels.index(one) if one else -1))
    return value
