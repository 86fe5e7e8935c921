"""The column types of MySQL and MariaDB: a row a type.

All that depends on a type stands in its row of :data:`TYPES`: its words, how the log and a result set send it, how a
statement, a key and a default write it, what other formats call it, and the neutral kind of its values, which decides
the Arrow type (:attr:`sluice.model.tables.Column.arrow_type`). Whoever needs to know something of a type asks
:func:`type_named`; there is no other list of types.

A new type is a row here. If its bytes are read in a way that no other type has, its row names that way in :class:`Fill`
(the log) or :class:`Wire` (a select), and the function stands in ``sources/mysql/decoder/rows.py`` or
``sources/mysql/snapshot/result_set.py`` under that name. ``tests/unit/mysql/test_column_types.py`` asks every user for
every row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from sluice.errors import UnsupportedType
from sluice.model.column_types import ColumnKind
from sluice.mysql import type_codes as t

K = ColumnKind
_DECIMAL_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)


class Meta(StrEnum):
    """The metadata of a column in a table map, besides the number of its type."""

    NONE = "nothing"
    UNSAID = "digits, which the log does not say"
    """MariaDB's temporal types of before 10.1: nothing is written, and the digits come from the definition."""
    SIZE = "the size, which the type says already"
    DIGITS = "digits"
    PRECISION = "precision and scale"
    BITS = "bits"
    BYTES = "bytes"
    STRING = "the real type and bytes"
    LABELS = "the real type and bytes of the number"
    LENGTH_BYTES = "bytes of the length"


META_BYTES: Mapping[Meta, int] = {
    Meta.NONE: 0, Meta.UNSAID: 0, Meta.SIZE: 1, Meta.DIGITS: 1, Meta.LENGTH_BYTES: 1, Meta.PRECISION: 2, Meta.BITS: 2,
    Meta.BYTES: 2,
    Meta.STRING: 2, Meta.LABELS: 2,
}  # fmt: skip
"""Bytes of a column's metadata in a table map."""


class Collated(StrEnum):
    """The place of a type's collation in a table map, if it has one there."""

    NO = "no"
    CHARACTER = "character"
    LABELS = "labels"
    MYSQL = "character, by MySQL"
    MARIADB = "character, by MariaDB"


class Fill(StrEnum):
    """The ways to decode the bytes of the log to an Arrow column; ``decoder/rows.py`` has a function for each."""

    COPY = "copy"
    MEDIUM = "medium"
    YEAR = "year"
    BITS = "bits"
    DECIMAL = "decimal"
    DATE = "date"
    DATETIME = "datetime"
    DATETIME2 = "datetime2"
    TIMESTAMP = "timestamp"
    TIMESTAMP2 = "timestamp2"
    TIME = "time"
    TIME2 = "time2"
    LABEL = "label"
    LABELS = "labels"
    BYTES = "bytes"
    """Also text, which is converted to UTF-8 if the column has a charset."""
    COMPRESSED = "compressed"
    PADDED = "padded"
    JSON = "json"
    UUID = "uuid"
    INET4 = "inet4"
    INET6 = "inet6"


class Wire(StrEnum):
    """The forms in a prepared statement's result; ``snapshot/result_set.py`` has a function for each."""

    NUMBER = "number"
    DATE = "date"
    DATETIME = "datetime"
    TIMESTAMP = "timestamp"
    TIME = "time"
    DECIMAL = "decimal"
    BITS = "bits"
    LABEL = "label"
    LABELS = "labels"
    COUNTED = "counted"


class Brackets(StrEnum):
    """The meaning of the numbers in brackets (``decimal(12,2)``)."""

    NONE = "none"
    WIDTH = "display width"
    PRECISION = "precision and scale"
    FLOAT = "precision, or digits and fraction"
    BITS = "bits"
    YEAR = "year"
    DIGITS = "digits of a second"
    CHARACTERS = "characters"
    BYTES = "bytes"
    SIZE = "at least so long"
    """TEXT(n), BLOB(n): the shortest type that holds it is stored."""
    LABELS = "labels"
    DIMENSION = "dimension"


class Literal(StrEnum):
    """The exact forms of a value in SQL; :mod:`sluice.mysql.key_sql` has a function for each."""

    NUMBER = "number"
    DECIMAL = "decimal"
    FLOAT = "float"
    TEMPORAL = "temporal"
    TEXT = "text"
    BYTES = "bytes"
    LABEL = "label"
    LABELS = "labels"


NUMERIC = frozenset({Literal.NUMBER, Literal.DECIMAL, Literal.FLOAT})
"""Values that are written without quotes."""


@dataclass(frozen=True, slots=True)
class LogForm:
    """One way in which the log writes values of a type.

    Attributes:
        code: number in the table map; meta: what else it says.
        sizes: bytes of a value: one number, one by digits (0 to 6), or the numbers of bytes that the number of a label
            may have.
        collated: it has a place in the lists of collations; sign: it has a bit in the list of signs.
    """

    code: int
    meta: Meta
    fill: Fill
    sizes: tuple[int, ...] = ()
    collated: Collated = Collated.NO
    sign: bool = False

    def width(self, meta: int) -> int | None:
        """Return the bytes of a fixed value, or minus the number of its length bytes.

        None for metadata that no server writes.
        """
        match self.meta:
            case Meta.NONE | Meta.SIZE:
                return self.sizes[0]
            case Meta.UNSAID:
                return self.sizes[meta] if meta < len(self.sizes) else None
            case Meta.DIGITS:
                return self.sizes[0] + (meta + 1) // 2 if meta <= 6 else None
            case Meta.PRECISION:
                precision, scale = meta >> 8, meta & 255
                return decimal_bytes(precision, scale) if 0 < precision <= 65 and scale <= min(precision, 38) else None
            case Meta.BITS:
                return (meta + 7) // 8 if 1 <= meta <= 64 else None
            case Meta.BYTES | Meta.STRING:
                return -1 if meta < 256 else -2
            case Meta.LABELS:
                return meta if meta in self.sizes else None
            case Meta.LENGTH_BYTES:
                return -meta if 1 <= meta <= 4 else None


@dataclass(frozen=True, slots=True)
class JavaTypes:
    """``java.sql.Types`` as other tools tell them.

    Attributes:
        canal: of a value; null: of NULL; beyond: of a value beyond the signed range.
        debezium: in schema change events.
    """

    canal: int = 12
    null: int = 12
    debezium: int = 1111
    beyond: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MysqlType:
    """A type.

    Attributes:
        word: as information_schema prints it; others: other words of statements for it.
        kind: of its values, see :class:`sluice.model.tables.ColumnKind`.
        log: how the log writes it, what servers write today first; logged_as: codes under which a log may hide it among
            another type's values.
        length_bytes: of its values' lengths, where the type says it (BLOB and TEXT types, JSON).
        binary_bytes: the log calls it BINARY of this many bytes, and only a definition tells them apart (MariaDB's UUID
            and INET types).
        shape: number of a spatial type.
        wire: in result sets; wire_bytes: of a NUMBER there.
        brackets: what stands in them; argument: what the server takes if a statement writes none.
        signed: it may be UNSIGNED; bits: of an integer; widths: display widths (signed, unsigned) that older servers
            and MariaDB print.
        most_bytes: of a TEXT or BLOB type; charset: it has one; twin: what CHARACTER SET binary makes of it, or a
            charset of a binary type.
        literal: in SQL; key: a key may have it; equals: the server compares it with ``=``.
        zero: what a session that is not strict stores where a value must be and none is given, None: there is no such
            value.
        java: its numbers in other formats.
    """

    word: str
    kind: ColumnKind
    log: tuple[LogForm, ...]
    wire: Wire
    literal: Literal
    others: tuple[str, ...] = ()
    logged_as: tuple[int, ...] = ()
    length_bytes: int = 0
    binary_bytes: int = 0
    shape: int | None = None
    wire_bytes: int = 0
    brackets: Brackets = Brackets.NONE
    argument: int | None = None
    signed: bool = False
    bits: int = 0
    widths: tuple[int, int] = (0, 0)
    most_bytes: int = 0
    charset: bool = False
    twin: str = ""
    key: bool = True
    equals: bool = True
    zero: str | None = ""
    java: JavaTypes = JavaTypes()

    @property
    def range(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """The (lowest, highest) number of an integer, signed and unsigned."""
        return (-(2 ** (self.bits - 1)), 2 ** (self.bits - 1) - 1), (0, 2**self.bits - 1)

    def form(self, code: int) -> LogForm | None:
        """Return how the log writes it under a code, None if it never does."""
        return next((form for form in self.log if form.code == code), None)


def decimal_bytes(precision: int, scale: int) -> int:
    """Return the bytes of DECIMAL(precision, scale) in the log."""
    integer_digits = precision - scale
    return integer_digits // 9 * 4 + _DECIMAL_BYTES[integer_digits % 9] + scale // 9 * 4 + _DECIMAL_BYTES[scale % 9]


def label_bytes(labels: int, *, several: bool) -> int:
    """Return the bytes of the number of an ENUM with this number of labels; ``several``: of a SET."""
    if not several:
        return 1 if labels < 256 else 2
    size = (labels + 7) // 8
    return 8 if size > 4 else size


# -- forms that several types share ------------------------------------------------------------------------------------
_VARCHAR = LogForm(t.VARCHAR, Meta.BYTES, Fill.BYTES, collated=Collated.CHARACTER)
_VARYING = (
    _VARCHAR,
    LogForm(t.VAR_STRING, Meta.BYTES, Fill.BYTES, collated=Collated.CHARACTER),
    LogForm(t.VARCHAR_COMPRESSED, Meta.BYTES, Fill.COMPRESSED, collated=Collated.CHARACTER),
)
_BLOB = (
    LogForm(t.BLOB, Meta.LENGTH_BYTES, Fill.BYTES, collated=Collated.CHARACTER),
    LogForm(t.BLOB_COMPRESSED, Meta.LENGTH_BYTES, Fill.COMPRESSED, collated=Collated.CHARACTER),
    LogForm(t.TINY_BLOB, Meta.LENGTH_BYTES, Fill.BYTES, collated=Collated.CHARACTER),
    LogForm(t.MEDIUM_BLOB, Meta.LENGTH_BYTES, Fill.BYTES, collated=Collated.CHARACTER),
    LogForm(t.LONG_BLOB, Meta.LENGTH_BYTES, Fill.BYTES, collated=Collated.CHARACTER),
)


def _string(fill: Fill) -> tuple[LogForm, ...]:
    return (LogForm(t.STRING, Meta.STRING, fill, collated=Collated.CHARACTER),)


def _number(code: int, size: int, fill: Fill = Fill.COPY) -> tuple[LogForm, ...]:
    return (LogForm(code, Meta.NONE, fill, (size,), sign=True),)


def _integer(
    word: str, kind: ColumnKind, log: tuple[LogForm, ...], bits: int, widths: tuple[int, int], java: JavaTypes,
    *others: str
) -> MysqlType:  # fmt: skip
    wire_bytes = 4 if bits == 24 else bits // 8
    return MysqlType(
        word=word, kind=kind, log=log, wire=Wire.NUMBER, wire_bytes=wire_bytes, literal=Literal.NUMBER, others=others,
        brackets=Brackets.WIDTH,
        signed=True, bits=bits, widths=widths, zero="0", java=java,
    )  # fmt: skip


def _text(word: str, length_bytes: int, java: JavaTypes, *others: str) -> MysqlType:
    return MysqlType(
        word=word, kind=K.TEXT, log=_BLOB, wire=Wire.COUNTED, literal=Literal.TEXT, others=others,
        length_bytes=length_bytes, brackets=Brackets.SIZE,
        most_bytes=2 ** (8 * length_bytes) - 1, charset=True, twin=word.replace("text", "blob"), java=java,
    )  # fmt: skip


def _blob(word: str, length_bytes: int, java: JavaTypes) -> MysqlType:
    return MysqlType(
        word=word, kind=K.BLOB, log=_BLOB, wire=Wire.COUNTED, literal=Literal.BYTES, length_bytes=length_bytes,
        brackets=Brackets.SIZE,
        most_bytes=2 ** (8 * length_bytes) - 1, twin=word.replace("blob", "text"), java=java,
    )  # fmt: skip


def _spatial(word: str, shape: int, *others: str) -> MysqlType:
    return MysqlType(
        word=word, kind=K.GEOMETRY, log=(LogForm(t.GEOMETRY, Meta.LENGTH_BYTES, Fill.BYTES, collated=Collated.MARIADB),
            ), wire=Wire.COUNTED,
        literal=Literal.BYTES, others=others, length_bytes=4, shape=shape, key=False, zero=None,
        java=JavaTypes(2004, -2),
    )  # fmt: skip


def _address(word: str, kind: ColumnKind, size: int, fill: Fill, zero: str) -> MysqlType:
    return MysqlType(
        word=word, kind=kind, log=_string(fill), wire=Wire.COUNTED, literal=Literal.TEXT, binary_bytes=size, zero=zero,
    )  # fmt: skip


# -- the types ---------------------------------------------------------------------------------------------------------
TYPES: tuple[MysqlType, ...] = (
    _integer("tinyint", K.TINYINT, _number(t.TINY, 1), 8, (4, 3), JavaTypes(-6, -6, 5, beyond=5), "int1"),
    _integer("smallint", K.SMALLINT, _number(t.SHORT, 2), 16, (6, 5), JavaTypes(5, 5, 5, beyond=4), "int2"),
    _integer("mediumint", K.MEDIUMINT, _number(t.INT24, 3, Fill.MEDIUM), 24, (9, 8), JavaTypes(4, 4, 4), "int3",
        "middleint"),
    _integer("int", K.INT, _number(t.LONG, 4), 32, (11, 10), JavaTypes(4, 4, 4, beyond=-5), "integer", "int4"),
    _integer("bigint", K.BIGINT, _number(t.LONGLONG, 8), 64, (20, 20), JavaTypes(-5, -5, -5, beyond=3), "int8"),
    MysqlType(
        word="decimal", kind=K.DECIMAL, log=(LogForm(t.NEWDECIMAL, Meta.PRECISION, Fill.DECIMAL, sign=True),),
        wire=Wire.DECIMAL,
        literal=Literal.DECIMAL, others=("dec", "numeric", "fixed", "number"), brackets=Brackets.PRECISION, signed=True,
        zero="0",
        java=JavaTypes(3, 3, 3),
    ),
    MysqlType(
        word="float", kind=K.FLOAT, log=(LogForm(t.FLOAT, Meta.SIZE, Fill.COPY, (4,), sign=True),), wire=Wire.NUMBER,
        wire_bytes=4,
        literal=Literal.FLOAT, others=("float4",), brackets=Brackets.FLOAT, signed=True, zero="0",
        java=JavaTypes(7, 7, 6),
    ),
    MysqlType(
        word="double", kind=K.DOUBLE, log=(LogForm(t.DOUBLE, Meta.SIZE, Fill.COPY, (8,), sign=True),), wire=Wire.NUMBER,
        wire_bytes=8,
        literal=Literal.FLOAT, others=("float8", "real"), brackets=Brackets.FLOAT, signed=True, zero="0",
        java=JavaTypes(8, 8, 8),
    ),
    MysqlType(
        word="bit", kind=K.BIT, log=(LogForm(t.BIT, Meta.BITS, Fill.BITS),), wire=Wire.BITS, literal=Literal.NUMBER,
        brackets=Brackets.BITS,
        argument=1, zero="0", java=JavaTypes(-7, -7, -7),
    ),
    MysqlType(
        word="year", kind=K.YEAR, log=(LogForm(t.YEAR, Meta.NONE, Fill.YEAR, (1,), sign=True),), wire=Wire.NUMBER,
        wire_bytes=2,
        literal=Literal.NUMBER, brackets=Brackets.YEAR, zero="0", java=JavaTypes(12, 12, 4),
    ),
    MysqlType(
        word="date", kind=K.DATE, log=(LogForm(t.DATE, Meta.NONE, Fill.DATE, (3,)),
            LogForm(t.NEWDATE, Meta.NONE, Fill.DATE, (3,))),
        wire=Wire.DATE, literal=Literal.TEMPORAL, zero="0000-00-00", java=JavaTypes(91, 91, 91),
    ),
    MysqlType(
        word="datetime", kind=K.DATETIME,
        log=(LogForm(t.DATETIME2, Meta.DIGITS, Fill.DATETIME2, (5,)),
            LogForm(t.DATETIME, Meta.UNSAID, Fill.DATETIME, (8, 6, 6, 7, 7, 7, 8))),
        wire=Wire.DATETIME, literal=Literal.TEMPORAL, brackets=Brackets.DIGITS, zero="0000-00-00 00:00:00",
        java=JavaTypes(93, 93, 93),
    ),
    MysqlType(
        word="timestamp", kind=K.TIMESTAMP,
        log=(LogForm(t.TIMESTAMP2, Meta.DIGITS, Fill.TIMESTAMP2, (4,)),
            LogForm(t.TIMESTAMP, Meta.UNSAID, Fill.TIMESTAMP, (4, 5, 5, 6, 6, 7, 7))),
        wire=Wire.TIMESTAMP, literal=Literal.TEMPORAL, brackets=Brackets.DIGITS, zero="0000-00-00 00:00:00",
        java=JavaTypes(93, 93, 2014),
    ),
    MysqlType(
        word="time", kind=K.TIME,
        log=(LogForm(t.TIME2, Meta.DIGITS, Fill.TIME2, (3,)),
            LogForm(t.TIME, Meta.UNSAID, Fill.TIME, (3, 4, 4, 5, 5, 5, 6))),
        wire=Wire.TIME, literal=Literal.TEMPORAL, brackets=Brackets.DIGITS, zero="00:00:00", java=JavaTypes(92, 92, 92),
    ),
    MysqlType(
        word="char", kind=K.CHAR, log=_string(Fill.BYTES), wire=Wire.COUNTED, literal=Literal.TEXT,
        others=("character",),
        brackets=Brackets.CHARACTERS, argument=1, charset=True, twin="binary", java=JavaTypes(1, 1, 1),
    ),
    MysqlType(
        word="varchar", kind=K.VARCHAR, log=_VARYING, wire=Wire.COUNTED, literal=Literal.TEXT,
        others=("varcharacter", "varchar2"),
        brackets=Brackets.CHARACTERS, argument=1, charset=True, twin="varbinary", java=JavaTypes(12, 12, 12),
    ),
    _text("tinytext", 1, JavaTypes(2005, -3, 12)),
    _text("text", 2, JavaTypes(2005, -4, 12)),
    _text("mediumtext", 3, JavaTypes(2005, -4, 12)),
    _text("longtext", 4, JavaTypes(2005, -4, 12), "clob"),
    MysqlType(
        word="binary", kind=K.BINARY, log=_string(Fill.PADDED), wire=Wire.COUNTED, literal=Literal.BYTES,
        brackets=Brackets.BYTES, argument=1,
        twin="char", java=JavaTypes(2004, -2, -2),
    ),
    MysqlType(
        word="varbinary", kind=K.VARBINARY, log=_VARYING, wire=Wire.COUNTED, literal=Literal.BYTES, others=("raw",),
        brackets=Brackets.BYTES,
        argument=1, twin="varchar", java=JavaTypes(2004, -3, -3),
    ),
    _blob("tinyblob", 1, JavaTypes(2004, -3, 2004)),
    _blob("blob", 2, JavaTypes(2004, -4, 2004)),
    _blob("mediumblob", 3, JavaTypes(2004, -4, 2004)),
    _blob("longblob", 4, JavaTypes(2004, -4, 2004)),
    MysqlType(
        word="enum", kind=K.ENUM, log=(LogForm(t.ENUM, Meta.LABELS, Fill.LABEL, (1, 2), Collated.LABELS),),
        wire=Wire.LABEL,
        literal=Literal.LABEL, brackets=Brackets.LABELS, charset=True, java=JavaTypes(4, 4, 1),
    ),
    MysqlType(
        word="set", kind=K.SET, log=(LogForm(t.SET, Meta.LABELS, Fill.LABELS, tuple(range(1, 9)), Collated.LABELS),),
        wire=Wire.LABELS,
        literal=Literal.LABELS, brackets=Brackets.LABELS, charset=True, java=JavaTypes(-7, -2, 1),
    ),
    MysqlType(
        word="json", kind=K.JSON, log=(LogForm(t.JSON, Meta.LENGTH_BYTES, Fill.JSON),), wire=Wire.COUNTED,
        literal=Literal.TEXT, length_bytes=4,
        key=False, zero="null", java=JavaTypes(12, 1111),
    ),
    MysqlType(
        word="vector", kind=K.VECTOR, log=(LogForm(t.VECTOR, Meta.LENGTH_BYTES, Fill.BYTES, collated=Collated.MYSQL),),
        wire=Wire.COUNTED,
        literal=Literal.BYTES, logged_as=(t.BLOB, t.VARCHAR), length_bytes=4, brackets=Brackets.DIMENSION,
        argument=2048, key=False, equals=False,
        zero=None, java=JavaTypes(2004, 1111),
    ),
    _spatial("geometry", 0),
    _spatial("point", 1),
    _spatial("linestring", 2),
    _spatial("polygon", 3),
    _spatial("multipoint", 4),
    _spatial("multilinestring", 5),
    _spatial("multipolygon", 6),
    _spatial("geometrycollection", 7, "geomcollection"),
    _address("uuid", K.UUID, 16, Fill.UUID, "00000000-0000-0000-0000-000000000000"),
    _address("inet6", K.INET6, 16, Fill.INET6, "::"),
    _address("inet4", K.INET4, 4, Fill.INET4, "0.0.0.0"),  # noqa: S104 - the address of no host, a value
)  # fmt: skip

SYNONYMS: Mapping[str, str] = {other: row.word for row in TYPES for other in row.others}
"""Other words of statements -> the word that is stored."""

_BY_WORD = {row.word: row for row in TYPES} | {other: row for row in TYPES for other in row.others}

FORMS: Mapping[int, LogForm] = {form.code: form for row in reversed(TYPES) for form in reversed(row.log)}
"""Code -> what a table map says of it. Types that share a code differ in ``fill`` only."""


def word_of(declared: str) -> str:
    """Return the first word of a type as SQL: ``varchar(40)`` -> ``varchar``."""
    return declared.partition("(")[0].strip().partition(" ")[0].lower()


def find_type(declared: str) -> MysqlType | None:
    """Return the row of a type as SQL, None if it is not known (or the text is empty, for a column that a rule
    made).
    """
    return _BY_WORD.get(word_of(declared))


def type_named(declared: str, where: str | None = None) -> MysqlType:
    """Return the row of a type as SQL (``decimal(12,2) unsigned``, or only its word). Raises UnsupportedType."""
    row = find_type(declared)
    if row is None:
        raise UnsupportedType(f"column type {word_of(declared)!r} is not understood by this version", where=where)
    return row


def is_spatial(declared: str) -> bool:
    """Return True for the spatial types."""
    row = find_type(declared)
    return row is not None and row.shape is not None


def types_of_code(code: int) -> tuple[MysqlType, ...]:
    """Return the types whose values the log may write under a code."""
    return tuple(row for row in TYPES if row.form(code) is not None)


def words(**attributes: object) -> tuple[str, ...]:
    """Return the words of the types that have these attributes, in the order of :data:`TYPES`."""
    return tuple(row.word for row in TYPES if all(getattr(row, name) == value for name, value in attributes.items()))
