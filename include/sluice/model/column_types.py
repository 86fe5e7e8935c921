"""The values of a column, whatever server it belongs to: values only.

A source describes each column by a :class:`ColumnType`, in addition to its own words. It decides the Arrow type of what
is stored. A target has one table from it to a type of its own, and says what that one loses.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import lru_cache
from typing import Any

import pyarrow as pa

from sluice.model.stored_fields import known_fields


class ColumnKind(StrEnum):
    """Kinds of values, named as MySQL names the types that hold them."""

    TINYINT = "tinyint"
    SMALLINT = "smallint"
    MEDIUMINT = "mediumint"
    INT = "int"
    BIGINT = "bigint"
    DECIMAL = "decimal"
    FLOAT = "float"
    DOUBLE = "double"
    BIT = "bit"
    DATE = "date"
    DATETIME = "datetime"
    """A wall time, without a time zone."""
    TIMESTAMP = "timestamp"
    """A point in time, in UTC."""
    TIME = "time"
    """A span of time, which may be negative."""
    YEAR = "year"
    CHAR = "char"
    VARCHAR = "varchar"
    TEXT = "text"
    BINARY = "binary"
    VARBINARY = "varbinary"
    BLOB = "blob"
    ENUM = "enum"
    SET = "set"
    JSON = "json"
    GEOMETRY = "geometry"
    """Four bytes of SRID, then WKB."""
    VECTOR = "vector"
    """Four-byte floats, little-endian."""
    UUID = "uuid"
    INET4 = "inet4"
    INET6 = "inet6"


K = ColumnKind
_ARROW: Mapping[ColumnKind, pa.DataType] = {
    K.TINYINT: pa.int8(), K.SMALLINT: pa.int16(), K.MEDIUMINT: pa.int32(), K.INT: pa.int32(), K.BIGINT: pa.int64(),
    K.FLOAT: pa.float32(), K.DOUBLE: pa.float64(), K.BIT: pa.uint64(),
    K.DATE: pa.date32(), K.DATETIME: pa.timestamp("us"), K.TIMESTAMP: pa.timestamp("us", tz="UTC"),
    K.TIME: pa.duration("us"), K.YEAR: pa.uint16(),
    K.CHAR: pa.string(), K.VARCHAR: pa.string(), K.TEXT: pa.string(), K.BINARY: pa.binary(), K.VARBINARY: pa.binary(),
    K.BLOB: pa.binary(),
    K.ENUM: pa.string(), K.SET: pa.string(), K.JSON: pa.string(), K.GEOMETRY: pa.binary(), K.VECTOR: pa.binary(),
    K.UUID: pa.string(), K.INET4: pa.string(), K.INET6: pa.string(),
}  # fmt: skip
"""The Arrow type of every kind but DECIMAL, which has a type a precision."""
_UNSIGNED: Mapping[ColumnKind, pa.DataType] = {
    K.TINYINT: pa.uint8(), K.SMALLINT: pa.uint16(), K.MEDIUMINT: pa.uint32(), K.INT: pa.uint32(), K.BIGINT: pa.uint64(),
}  # fmt: skip
_NUMBERS = frozenset({*_UNSIGNED, K.DECIMAL, K.FLOAT, K.DOUBLE})
_TIMES = frozenset({K.DATETIME, K.TIMESTAMP, K.TIME})
_TEXTS = frozenset({K.CHAR, K.VARCHAR, K.TEXT, K.ENUM, K.SET})
_LONG = frozenset({K.CHAR, K.VARCHAR, K.TEXT, K.BINARY, K.VARBINARY, K.BLOB, K.BIT, K.VECTOR})
LONGEST = 2**32 - 1


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A type. What means nothing to its kind is left at its default, so that two columns of one type are equal.

    Attributes:
        precision, scale: of DECIMAL; digits: of fractional seconds.
        length: characters of CHAR and VARCHAR at most, bytes of TEXT and of binary values, bits of BIT, numbers of a
            VECTOR; 0: not said.
        unsigned: of numbers; labels: of ENUM and SET; charset, collation: of text, as the source calls them; shape: of
            a GEOMETRY (``point``).
        native: PostgreSQL's own type (``boolean``, ``int4range``), where it says more than the kind; the values are
            what the kind says, often a text that such a server reads. Targets of other kinds don't need it.
    """

    kind: ColumnKind
    precision: int = 0
    scale: int = 0
    digits: int = 0
    length: int = 0
    unsigned: bool = False
    labels: tuple[str, ...] = ()
    charset: str = ""
    collation: str = ""
    shape: str = ""
    native: str = ""

    @property
    def arrow_type(self) -> pa.DataType:
        """The Arrow type of stored values."""
        if self.kind is K.DECIMAL:
            wide = self.precision > 38
            return pa.decimal256(self.precision, self.scale) if wide else pa.decimal128(self.precision, self.scale)
        return _UNSIGNED[self.kind] if self.unsigned and self.kind in _UNSIGNED else _ARROW[self.kind]

    @property
    def plain(self) -> ColumnType:
        """The same type without what has no meaning for its kind."""
        kind = self.kind
        return ColumnType(
            kind,
            self.precision if kind is K.DECIMAL else 0,
            self.scale if kind is K.DECIMAL else 0,
            self.digits if kind in _TIMES else 0,
            self.length if kind in _LONG else 0,
            self.unsigned and kind in _NUMBERS,
            self.labels if kind in {K.ENUM, K.SET} else (),
            self.charset if kind in _TEXTS else "",
            self.collation if kind in _TEXTS else "",
            self.shape if kind is K.GEOMETRY else "",
            self.native,
        )

    def to_text(self) -> str:
        """Return the type as JSON without defaults, as the fields of files and manifests have it."""
        return _text_of(self)

    @classmethod
    def from_text(cls, text: str) -> ColumnType:
        """Parse the text of :meth:`to_text`."""
        return _type_of_text(text)

    @classmethod
    def of_arrow(cls, name: str) -> ColumnType:
        """Return the type of a column that only its Arrow type (as text) describes, since a rule made it."""
        decimal = _DECIMAL.match(name)
        if decimal is not None:
            return cls(K.DECIMAL, int(decimal[1]), int(decimal[2]))
        return _BY_ARROW.get(name, cls(K.TEXT, length=LONGEST))


_DECIMAL = re.compile(r"decimal\d+\((\d+), (\d+)\)")
_DIGITS_OF_ARROW = 6
_BY_ARROW: Mapping[str, ColumnType] = {
    **{str(arrow): ColumnType(kind) for kind, arrow in _ARROW.items() if kind in _NUMBERS and kind is not K.MEDIUMINT},
    **{str(arrow): ColumnType(kind, unsigned=True) for kind, arrow in _UNSIGNED.items() if kind is not K.MEDIUMINT},
    **{str(_ARROW[kind]): ColumnType(kind, digits=_DIGITS_OF_ARROW) for kind in _TIMES},
    "date32[day]": ColumnType(K.DATE),
    "bool": ColumnType(K.TINYINT),
    "string": ColumnType(K.TEXT, length=LONGEST),
    "binary": ColumnType(K.BLOB, length=LONGEST),
}


@lru_cache(4096)
def _text_of(column_type: ColumnType) -> str:
    plain = {
        f.name: getattr(column_type, f.name)
        for f in fields(column_type)
        if f.name == "kind" or getattr(column_type, f.name) != f.default
    }
    return json.dumps(plain, ensure_ascii=False, separators=(",", ":"))


@lru_cache(4096)
def _type_of_text(text: str) -> ColumnType:
    data: dict[str, Any] = known_fields(ColumnType, json.loads(text))
    return ColumnType(**{**data, "kind": ColumnKind(data["kind"]), "labels": tuple(data.get("labels", ()))})
