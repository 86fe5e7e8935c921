"""The type in a MySQL or MariaDB target for each neutral type, and what its columns lose of the values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sluice.model.column_types import LONGEST, ColumnKind, ColumnType
from sluice.model.labels import declared
from sluice.model.losses import Loss, together
from sluice.model.planned import PlannedColumn
from sluice.mysql.column_types import TYPES, find_type
from sluice.mysql.type_loss import SqlType, loss
from sluice.targets.mysql.collations import Knows, counterparts
from sluice.targets.mysql.table_info import ColumnInfo

K = ColumnKind


def _word(column_type: ColumnType) -> str:
    return column_type.kind.value


def _number(column_type: ColumnType) -> str:
    return column_type.kind.value + (" unsigned" if column_type.unsigned else "")


def _decimal(column_type: ColumnType) -> str:
    return f"decimal({column_type.precision},{column_type.scale})" + (" unsigned" if column_type.unsigned else "")


def _sized(column_type: ColumnType) -> str:
    return f"{column_type.kind.value}({column_type.length or 1})"


def _timed(column_type: ColumnType) -> str:
    return f"{column_type.kind.value}({column_type.digits})" if column_type.digits else column_type.kind.value


def _long(column_type: ColumnType) -> str:
    """Return the shortest of the TEXT or BLOB types that holds it."""
    length = column_type.length or LONGEST
    return next(row.word for row in TYPES if row.kind is column_type.kind and row.most_bytes >= min(length, LONGEST))


def _labelled(column_type: ColumnType) -> str:
    return declared(column_type.kind.value, column_type.labels)


def _vector(column_type: ColumnType) -> str:
    return f"vector({column_type.length})" if column_type.length else "vector"


def _shape(column_type: ColumnType) -> str:
    return column_type.shape or "geometry"


OWN: Mapping[ColumnKind, Callable[[ColumnType], str]] = {
    **dict.fromkeys((K.TINYINT, K.SMALLINT, K.MEDIUMINT, K.INT, K.BIGINT, K.FLOAT, K.DOUBLE), _number),
    K.DECIMAL: _decimal,
    **dict.fromkeys((K.BIT, K.CHAR, K.VARCHAR, K.BINARY, K.VARBINARY), _sized),
    **dict.fromkeys((K.DATETIME, K.TIMESTAMP, K.TIME), _timed),
    **dict.fromkeys((K.TEXT, K.BLOB), _long),
    **dict.fromkeys((K.ENUM, K.SET), _labelled),
    **dict.fromkeys((K.DATE, K.YEAR, K.JSON, K.UUID, K.INET4, K.INET6), _word),
    K.GEOMETRY: _shape,
    K.VECTOR: _vector,
}
"""The type of this dialect for each kind of values."""


def own_type(value_type: ColumnType) -> str:
    """Return the type of a column of this dialect that holds every value of ``value_type``."""
    return OWN[value_type.kind](value_type)


@dataclass(frozen=True, slots=True)
class Server:
    """The words of a definition that the target understands.

    Attributes:
        mariadb: it is MariaDB, not MySQL.
        lacks_words: it is MySQL, and the definition is MariaDB's.
        knows: which collations it has; None: all but those that only the other one has.
        oracle: it reads the statement as Oracle does (``sql_mode=ORACLE`` of MariaDB).
    """

    mariadb: bool = False
    lacks_words: bool = False
    knows: Knows | None = None
    oracle: bool = False

    def word(self, kind: str) -> str:
        """Return a type as this server names it; where it lacks the type, one that holds the values as their text."""
        return WORDS.get(kind, kind) if self.mariadb else MYSQL_WORDS.get(kind, kind)

    def collation(self, charset: str | None, collation: str | None) -> str:
        """Return the collation here that tells apart what ``collation`` does, the nearest one; "" if there is none."""
        if not (charset and collation):
            return ""
        return next((name for name in counterparts(collation) if self.has(charset, name)), "")

    def has(self, charset: str, collation: str) -> bool:
        """Return True if the server has a collation of a charset."""
        if self.knows is not None:
            return self.knows(charset, collation)
        return "0900" not in collation if self.mariadb else "uca1400" not in collation and "nopad" not in collation


WORDS = {"geomcollection": "geometrycollection"}
"""Types that have two names, by the one that only MySQL has."""
MYSQL_WORDS = WORDS | {
    "uuid": "char(36) CHARACTER SET ascii COLLATE ascii_bin",
    "inet4": "varchar(15) CHARACTER SET ascii COLLATE ascii_bin",
    "inet6": "varchar(39) CHARACTER SET ascii COLLATE ascii_bin",
}
"""The same for MySQL, and types that hold the values of MariaDB's own, as their text."""


def column_type(column: PlannedColumn, server: Server, *, key_parts: int = 1) -> str:
    """Return the type for a column definition: the source's own words if the target understands them.

    ``key_parts``: as many columns of the key have long values.
    """
    if column.wanted:
        return column.wanted
    value_type = column.value_type
    kind = _of_postgresql(value_type, mariadb=server.mariadb, key_parts=key_parts if column.key else 0)
    if not kind:
        kind = server.word(column.sql_type if find_type(column.sql_type) is not None else own_type(value_type))
    if column.charset and column.collation:
        collation = server.collation(column.charset, column.collation) or column.collation
        kind += f" CHARACTER SET {column.charset} COLLATE {collation}"
    return kind


_MOST_DIGITS, _MOST_SCALE = 65, 30
_MOST_KEY_BYTES = 2_800
"""Bytes that the columns of a key have together here; InnoDB takes 3,072."""


def is_long_key(column: PlannedColumn) -> bool:
    """Return True for a key's column whose values PostgreSQL does not limit."""
    return bool(column.key and column.value_type.native) and column.value_type.kind in {K.TEXT, K.BLOB}


def _of_postgresql(column_type: ColumnType, *, mariadb: bool, key_parts: int) -> str:
    """Return the type for a column of PostgreSQL's that has more values than the one of the same name here.

    Returns "" for one that has not. ``key_parts``: 0 for a column that is not in the key.
    """
    if column_type.kind is K.DECIMAL and (column_type.precision > _MOST_DIGITS or column_type.scale > _MOST_SCALE):
        return f"varchar({column_type.precision + 3})"
    if not column_type.native:
        return ""
    match column_type.kind:
        case K.TIMESTAMP:  # MySQL's ends in 2038
            return f"datetime({column_type.digits})"
        case K.UUID if not mariadb:
            return "char(36) CHARACTER SET ascii COLLATE ascii_bin"
        case K.TEXT if key_parts:
            return f"varchar({_MOST_KEY_BYTES // 4 // key_parts})"
        case K.BLOB if key_parts:
            return f"varbinary({_MOST_KEY_BYTES // key_parts})"
    return ""


def lost(column: PlannedColumn, target_column: ColumnInfo, sent: ColumnType | None = None) -> str:
    """Return what a column of the target may lose or refuse of the values, "" if nothing.

    ``sent``: the type in which they are sent.
    """
    value_type = sent if sent is not None else column.value_type
    held_sql_type = SqlType.parse(target_column.sql_type, target_column.charset)
    if value_type.native:
        return _lost_of_postgresql(value_type, held_sql_type)
    return loss(SqlType.parse(own_type(value_type), value_type.charset), held_sql_type)


_BEYOND: Mapping[ColumnKind, str] = {
    **dict.fromkeys((K.DATE, K.DATETIME, K.TIMESTAMP), "infinity, years before Christ and after 9999 are refused"),
    **dict.fromkeys((K.FLOAT, K.DOUBLE), "NaN and infinite numbers are refused"),
    K.JSON: Loss("blanks, the order and repetition of names, and digits of large numbers are lost"),
}
"""The values of PostgreSQL's types that MySQL's do not have."""
_ALIKE = frozenset({(K.TIMESTAMP, "datetime"), (K.UUID, "char")})
"""The types of MySQL's that hold all else of a kind."""


def _lost_of_postgresql(column_type: ColumnType, held_sql_type: SqlType) -> str:
    type_loss = (
        ""
        if (column_type.kind, held_sql_type.word) in _ALIKE
        else loss(SqlType.parse(own_type(column_type), column_type.charset), held_sql_type)
    )
    text = ""
    if column_type.kind in {K.TEXT, K.VARCHAR} and not column_type.native.startswith(("text", "character varying")):
        text = f"it is the text of {column_type.native}"
    beyond = _BEYOND.get(column_type.kind, "") if column_type.kind is not K.JSON or held_sql_type.word == "json" else ""
    return together(type_loss, text, beyond)
