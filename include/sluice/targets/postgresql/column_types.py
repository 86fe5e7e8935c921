"""The type in a PostgreSQL target for each neutral type, and which values its columns can and cannot hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa

from sluice.model.column_types import ColumnKind, ColumnType
from sluice.model.losses import Loss
from sluice.model.planned import PlannedColumn
from sluice.postgresql.type_names import OIDS, SPATIAL, PgType, pg_type

K = ColumnKind


def _whole(column_type: ColumnType) -> str:
    if column_type.kind is K.BIGINT:
        return "numeric(20)" if column_type.unsigned else "bigint"
    if column_type.kind is K.INT:
        return "bigint" if column_type.unsigned else "integer"
    if column_type.kind is K.MEDIUMINT or (column_type.kind is K.SMALLINT and column_type.unsigned):
        return "integer"
    return "smallint"


def _decimal(column_type: ColumnType) -> str:
    return f"numeric({column_type.precision},{column_type.scale})"


def _characters(column_type: ColumnType) -> str:
    return f"character varying({column_type.length})" if column_type.length else "text"


def _bits(column_type: ColumnType) -> str:
    return f"bit({column_type.length or 1})"


def _timestamp(column_type: ColumnType) -> str:
    zone = "with" if column_type.kind is K.TIMESTAMP else "without"
    return f"timestamp({column_type.digits}) {zone} time zone"


OWN: Mapping[ColumnKind, Callable[[ColumnType], str] | str] = {
    **dict.fromkeys((K.TINYINT, K.SMALLINT, K.MEDIUMINT, K.INT, K.BIGINT), _whole),
    K.DECIMAL: _decimal,
    K.FLOAT: "real",
    K.DOUBLE: "double precision",
    K.BIT: _bits,
    K.DATE: "date",
    **dict.fromkeys((K.DATETIME, K.TIMESTAMP), _timestamp),
    K.TIME: "interval",
    K.YEAR: "smallint",
    **dict.fromkeys((K.CHAR, K.VARCHAR), _characters),
    **dict.fromkeys((K.TEXT, K.ENUM, K.SET), "text"),
    **dict.fromkeys((K.BINARY, K.VARBINARY, K.BLOB, K.GEOMETRY, K.VECTOR), "bytea"),
    K.JSON: "jsonb",
    K.UUID: "uuid",
    **dict.fromkeys((K.INET4, K.INET6), "inet"),
}
"""The type of this target for each kind of values."""

LOSES: Mapping[ColumnKind, str] = {
    **dict.fromkeys((K.DATE, K.DATETIME, K.TIMESTAMP), "dates that no calendar has (0000-00-00) are refused, or "
    "become NULL: options.zero_dates"),
    **dict.fromkeys((K.CHAR, K.VARCHAR, K.TEXT, K.JSON), "a NUL character is refused"),
    K.ENUM: "the order of the labels is lost",
    K.SET: "it is the text of the labels",
    K.GEOMETRY: "it is bytes: four of the SRID, then WKB",
    K.VECTOR: "it is bytes: four a number",
}  # fmt: skip
"""The part of the values that the own type does not keep; it changes none silently."""


def own_type(source: ColumnType, json: str = "jsonb", spatial: str = "") -> str:
    """Return the type of a column that holds every value of ``source``.

    ``json``: the type for documents; ``spatial``: PostGIS's, "" if it is not installed.
    """
    own = _own_native(source, json)
    if own:
        return own
    if source.kind is K.JSON:
        return json
    if source.kind is K.GEOMETRY and spatial:
        shape = {"geometry": "", "geomcollection": "geometrycollection"}.get(source.shape, source.shape)
        return f"{spatial}({shape})" if shape else spatial
    own_name = OWN[source.kind]
    return own_name if isinstance(own_name, str) else own_name(source)


_NOT_MADE = frozenset({
    "aclitem", "pg_node_tree", "pg_ndistinct", "pg_dependencies", "pg_mcv_list", "pg_brin_bloom_summary",
    "pg_brin_minmax_multi_summary",
})  # fmt: skip
"""PostgreSQL's types whose values name objects of one server, or that no one writes."""


def _own_native(column_type: ColumnType, json: str) -> str:
    """Return the type that the source, a PostgreSQL server, has, "" if another server need not have it.

    A type of a user's, or of an extension, has its schema before it; its values are kept as text.
    """
    native = column_type.native
    if not native or "." in native or native in _NOT_MADE or native.startswith("reg"):
        return ""
    if column_type.kind is K.JSON:
        return native if json == "jsonb" else ""
    return native if is_native(column_type, pg_type(native)) else ""


def is_native(source: ColumnType, target: PgType) -> bool:
    """Return True if a column has the very type of the source, which is a PostgreSQL server, and takes its values."""
    same = bool(source.native) and source.native in {target.declared, target.word}
    return same and (pa.types.is_string(source.arrow_type) or target.word in _TAKES[source.kind])


def is_sent(source: ColumnType, target: PgType) -> bool:
    """Return True if there is a way to send values of ``source`` for a column of type ``target``."""
    return target.label or target.sent in OIDS or is_native(source, target)


def made_type(column: PlannedColumn, json: str = "jsonb", spatial: str = "") -> str:
    """Return the type for a column definition: the mapping's own (``convert: {type: …}``), else what holds every
    value.
    """
    sent = column.sent_type
    return column.wanted if column.wanted and sent == column.value_type else own_type(sent, json, spatial)


_INTEGERS = (K.TINYINT, K.SMALLINT, K.MEDIUMINT, K.INT, K.BIGINT, K.YEAR)
_TEXTS = (K.CHAR, K.VARCHAR, K.TEXT, K.ENUM, K.SET)
_BYTES = (K.BINARY, K.VARBINARY, K.BLOB, K.GEOMETRY, K.VECTOR)
_NUMBERS = frozenset({"smallint", "integer", "bigint", "numeric", "boolean"})
_TEXT_WORDS = frozenset({"text", "character varying", "json", "jsonb"})
_TAKES: Mapping[ColumnKind, frozenset[str]] = {
    **dict.fromkeys(_INTEGERS, _NUMBERS),
    K.BIT: _NUMBERS | {"bit", "bit varying"},
    K.DECIMAL: frozenset({"numeric"}),
    **dict.fromkeys((K.FLOAT, K.DOUBLE), frozenset({"real", "double precision"})),
    K.DATE: frozenset({"date"}),
    **dict.fromkeys((K.DATETIME, K.TIMESTAMP), frozenset({"timestamp without time zone", "timestamp with time zone"})),
    K.TIME: frozenset({"interval", "time without time zone"}),
    **dict.fromkeys(_TEXTS, _TEXT_WORDS),
    K.CHAR: _TEXT_WORDS | {"character"},
    K.JSON: _TEXT_WORDS,
    **dict.fromkeys(_BYTES, frozenset({"bytea"})),
    K.GEOMETRY: frozenset({"bytea", "geometry"}),
    K.UUID: frozenset({"uuid", "text", "character varying"}),
    **dict.fromkeys((K.INET4, K.INET6), frozenset({"inet", "text", "character varying"})),
}
"""The types whose columns can hold values of a kind; a value that one of them cannot hold exactly is refused when it
arrives.
"""


def takes(source: ColumnType, target: PgType) -> bool:
    """Return True if a column of type ``target`` can hold values of ``source``, or says which it cannot."""
    if is_native(source, target):
        return True
    if target.label:
        return source.kind in _TEXTS
    return target.word in _TAKES[source.kind]


_RANGES = {
    "boolean": (0, 1),
    "smallint": (-(2**15), 2**15 - 1),
    "integer": (-(2**31), 2**31 - 1),
    "bigint": (-(2**63), 2**63 - 1),
}
_WIDTHS = {K.TINYINT: 8, K.SMALLINT: 16, K.MEDIUMINT: 24, K.INT: 32, K.BIGINT: 64, K.YEAR: 16}


def lost(source: ColumnType, target: PgType) -> str:
    """Return what a column of type ``target`` does not keep, or refuses, of values of ``source``; "" for nothing.

    See :func:`takes`.
    """
    if source.native and (is_native(source, target) or (source.kind in _TEXTS and target.word == "text")):
        return _lost_native(source, target)
    if source.kind in (*_INTEGERS, K.BIT):
        return _lost_whole(source, target)
    match source.kind:
        case K.DECIMAL if target.numbers:
            precision, scale = (*target.numbers, 0)[:2]
            if scale < source.scale or precision - scale < source.precision - source.scale:
                return "numbers with more digits are refused"
        case K.DOUBLE if target.word == "real":
            return "numbers that four bytes do not hold are refused"
        case K.DATETIME | K.TIMESTAMP:
            digits = target.numbers[0] if target.numbers else 6
            if digits < source.digits:
                return "times with more digits of a second are refused"
            if (source.kind is K.TIMESTAMP) != target.word.endswith(" with time zone"):
                return "values are taken for UTC"
        case K.GEOMETRY if target.word == "geometry":
            fits = _bare(target) in {"geometry", own_type(source, spatial="geometry")}
            return "" if fits else "other shapes are refused"
        case K.TIME if target.word != "interval":
            return "times of less than 0 or of 24 hours and more are refused"
        case _ if target.label:
            return "texts that are no label of the type are refused"
        case _ if target.word == "character":
            loss = "values are padded with spaces"
            return loss if source.kind is K.CHAR else Loss(f"{loss}, so that those at the end of a value are lost")
        case K.CHAR | K.VARCHAR | K.TEXT | K.ENUM | K.SET if target.word in {"json", "jsonb"}:
            return "texts that are no JSON are refused"
        case _ if target.word == "character varying" and target.numbers and not 0 < source.length <= target.numbers[0]:
            return f"texts of more than {target.numbers[0]} characters are refused"
    return LOSES.get(source.kind, "")


def _lost_native(column_type: ColumnType, pg_type: PgType) -> str:
    """Return what is lost of a type of PostgreSQL's own, in the same type or in text."""
    alike = column_type.native == "text" or column_type.native.startswith("character")
    return "" if alike or is_native(column_type, pg_type) else f"it is the text of {column_type.native}"


def holds_all(source: ColumnType, target: PgType) -> bool:
    """Return True if a column of type ``target`` can hold every value of ``source`` that PostgreSQL has at all."""
    return takes(source, target) and (bool(target.label) or lost(source, target) == LOSES.get(source.kind, ""))


def _bare(pg_type: PgType) -> str:
    """Return PostGIS's type as :func:`own_type` writes it, without its schema."""
    shape = (SPATIAL.fullmatch(pg_type.declared) or {"shape": None})["shape"]
    return f"geometry({shape.lower()})" if shape else "geometry"


def _lost_whole(column_type: ColumnType, pg_type: PgType) -> str:
    if column_type.kind is K.BIT:
        low, high, bits = 0, 2 ** (column_type.length or 1) - 1, column_type.length or 1
        if pg_type.word in {"bit", "bit varying"}:
            most = (pg_type.numbers or (1 if pg_type.word == "bit" else 64,))[0]
            fits = most == bits if pg_type.word == "bit" else most >= bits
            return "" if fits else f"{bits} bits are refused"
    else:
        width = _WIDTHS[column_type.kind]
        low, high = (
            (0, 2**width - 1)
            if column_type.unsigned or column_type.kind is K.YEAR
            else (-(2 ** (width - 1)), 2 ** (width - 1) - 1)
        )
        high = 2155 if column_type.kind is K.YEAR else high
    if pg_type.word == "numeric":
        precision, scale = (*pg_type.numbers, 0)[:2] if pg_type.numbers else (1000, 0)
        least, most = -(10 ** (precision - scale)) + 1, 10 ** (precision - scale) - 1
    else:
        least, most = _RANGES[pg_type.word]
    return "" if least <= low and high <= most else f"numbers outside of {least} to {most} are refused"
