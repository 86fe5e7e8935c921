"""What the values of PostgreSQL's types are, whatever the target: one table from a type's name to its neutral type.

A type that no other kind of server has is text: the text that the server itself prints, with the type's own name
beside it (:attr:`sluice.model.column_types.ColumnType.native`), so that a PostgreSQL target has the type itself. The
name is there for all types but whole numbers and decimals, which are the same everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from sluice.model.column_types import LONGEST, ColumnKind, ColumnType
from sluice.model.labels import declared
from sluice.model.tables import Column
from sluice.postgresql.type_names import PgType, pg_type

K = ColumnKind

MOST_DIGITS = 76
"""Digits of the widest decimal that Arrow has. A ``numeric`` with more, or without a limit, is text."""
_BITS = 64
_VARCHAR = 16_383
"""Characters of a MySQL VARCHAR, at most: of four bytes each, 65,532 bytes are a row's limit there."""
_CHAR = 255
_BYTES_A_CHARACTER = 4
_MICROS = 6

_SHORT: Mapping[str, int] = {
    "inet": 49, "cidr": 49, "macaddr": 17, "macaddr8": 23, "interval": 100, "time with time zone": 24, "money": 32,
    "pg_lsn": 17, "tid": 20, "point": 64, '"char"': 4, "name": 63,
}  # fmt: skip
"""Characters of the longest text of the types whose texts are short; those of all others have no limit."""

_TEXT = ColumnType(K.TEXT, length=LONGEST)
_TEXTS = frozenset({K.CHAR, K.VARCHAR, K.TEXT, K.ENUM})
_CHARSET, _COLLATION = "utf8mb4", "utf8mb4_0900_bin"
"""How PostgreSQL compares texts for equality, in MySQL's words: by their bytes, blanks at the end too."""


def neutral_type(words: str, labels: Sequence[str] = ()) -> ColumnType:
    """Return what the values of a type are. A type that is not known here is text.

    Args:
        words: as ``format_type`` prints it; of a domain, the type that it is made from.
        labels: of an enumerated type, in its order.
    """
    if labels:
        return ColumnType(K.ENUM, labels=tuple(labels))
    return _neutral(words)


@lru_cache(4096)
def _neutral(words: str) -> ColumnType:
    if words.endswith("[]"):
        return replace(_TEXT, native=words)
    parsed = pg_type(words)
    convert = _OWN.get(parsed.word)
    if convert is not None:
        return convert(parsed)
    word = "interval" if parsed.word.startswith("interval") else parsed.word
    if word in _SHORT:
        return ColumnType(K.VARCHAR, length=_SHORT[word], native=words)
    return replace(_TEXT, native=words)


def _plain(kind: ColumnKind, *, unsigned: bool = False, native: str = "") -> Callable[[PgType], ColumnType]:
    kind_type = ColumnType(kind, unsigned=unsigned, native=native)
    return lambda _: kind_type


def _numeric(parsed: PgType) -> ColumnType:
    precision, scale = (*parsed.numbers, 0, 0)[:2]
    if not parsed.numbers or precision > MOST_DIGITS or not 0 <= scale <= precision:
        return replace(_TEXT, native=parsed.declared)
    return ColumnType(K.DECIMAL, precision, scale)


def _characters(parsed: PgType) -> ColumnType:
    length = parsed.numbers[0] if parsed.numbers else 0
    if not length:
        return replace(_TEXT, native=parsed.declared)
    if parsed.word == "character":
        return ColumnType(K.CHAR if length <= _CHAR else K.VARCHAR, length=length, native=parsed.declared)
    if length <= _VARCHAR:
        return ColumnType(K.VARCHAR, length=length, native=parsed.declared)
    return ColumnType(K.TEXT, length=min(length * _BYTES_A_CHARACTER, LONGEST), native=parsed.declared)


def _timed(kind: ColumnKind) -> Callable[[PgType], ColumnType]:
    def made(parsed: PgType) -> ColumnType:
        digits = parsed.numbers[0] if parsed.numbers else _MICROS
        return ColumnType(kind, digits=digits, native=parsed.declared)

    return made


def _bits(parsed: PgType) -> ColumnType:
    length = parsed.numbers[0] if parsed.numbers else 0
    if parsed.word == "bit" and 0 < length <= _BITS:
        return ColumnType(K.BIT, length=length, native=parsed.declared)
    return replace(_TEXT, native=parsed.declared)


_OWN: Mapping[str, Callable[[PgType], ColumnType]] = {
    "boolean": _plain(K.TINYINT, native="boolean"),
    "smallint": _plain(K.SMALLINT),
    "integer": _plain(K.INT),
    "bigint": _plain(K.BIGINT),
    "oid": _plain(K.INT, unsigned=True, native="oid"),
    "xid": _plain(K.INT, unsigned=True, native="xid"),
    "cid": _plain(K.INT, unsigned=True, native="cid"),
    "xid8": _plain(K.BIGINT, unsigned=True, native="xid8"),
    "real": _plain(K.FLOAT, native="real"),
    "double precision": _plain(K.DOUBLE, native="double precision"),
    "numeric": _numeric,
    "character varying": _characters,
    "character": _characters,
    "bpchar": _characters,
    "text": _characters,
    "bytea": lambda _: ColumnType(K.BLOB, length=LONGEST, native="bytea"),
    "bit": _bits,
    "bit varying": _bits,
    "date": _plain(K.DATE, native="date"),
    "timestamp without time zone": _timed(K.DATETIME),
    "timestamp with time zone": _timed(K.TIMESTAMP),
    "time without time zone": _timed(K.TIME),
    "json": _plain(K.JSON, native="json"),
    "jsonb": _plain(K.JSON, native="jsonb"),
    "uuid": _plain(K.UUID, native="uuid"),
}
"""The neutral type of each type that has one; of all others the text is stored."""


def neutral_column(
    name: str, words: str, labels: Sequence[str] = (), *, nullable: bool = True, generated: bool = False
) -> Column:
    """Return a column, described in neutral terms; ``words``, ``labels``: see :func:`neutral_type`."""
    neutral = neutral_type(words, labels)
    return Column(
        name,
        neutral.kind,
        _in_mysql(neutral),
        nullable=nullable,
        unsigned=neutral.unsigned,
        precision=neutral.precision,
        scale=neutral.scale,
        fsp=neutral.digits,
        length=neutral.length,
        charset=_CHARSET if neutral.kind in _TEXTS else None,
        collation=_COLLATION if neutral.kind in _TEXTS else None,
        labels=neutral.labels,
        generated=generated,
        native=neutral.native,
    )


def _in_mysql(neutral: ColumnType) -> str:
    """Return the type in MySQL's words, which messages with schemas and MySQL targets read."""
    kind = neutral.kind
    match kind:
        case K.DECIMAL:
            return f"decimal({neutral.precision},{neutral.scale})"
        case K.CHAR | K.VARCHAR | K.BIT:
            return f"{kind.value}({neutral.length})"
        case K.DATETIME | K.TIMESTAMP | K.TIME:
            return f"{kind.value}({neutral.digits})"
        case K.TEXT | K.BLOB:
            return f"long{kind.value}"
        case K.ENUM:
            return declared("enum", neutral.labels)
    return f"{kind.value} unsigned" if neutral.unsigned else kind.value
