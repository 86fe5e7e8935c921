"""The type in a MySQL or MariaDB target for each neutral type, and what its columns lose of the values."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sluice.model.column_types import LONGEST, ColumnKind, ColumnType
from sluice.model.labels import declared
from sluice.model.planned import PlannedColumn
from sluice.mysql.column_types import TYPES, find_type
from sluice.mysql.type_loss import SqlType, loss
from sluice.targets.mysql.table_info import ColumnInfo

K = ColumnKind


def _word(made: ColumnType) -> str:
    return made.kind.value


def _number(made: ColumnType) -> str:
    return made.kind.value + (" unsigned" if made.unsigned else "")


def _decimal(made: ColumnType) -> str:
    return f"decimal({made.precision},{made.scale})" + (" unsigned" if made.unsigned else "")


def _sized(made: ColumnType) -> str:
    return f"{made.kind.value}({made.length or 1})"


def _timed(made: ColumnType) -> str:
    return f"{made.kind.value}({made.digits})" if made.digits else made.kind.value


def _long(made: ColumnType) -> str:
    """Return the shortest of the TEXT or BLOB types that holds it."""
    wanted = made.length or LONGEST
    return next(row.word for row in TYPES if row.kind is made.kind and row.most_bytes >= min(wanted, LONGEST))


def _labelled(made: ColumnType) -> str:
    return declared(made.kind.value, made.labels)


def _vector(made: ColumnType) -> str:
    return f"vector({made.length})" if made.length else "vector"


def _shape(made: ColumnType) -> str:
    return made.shape or "geometry"


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


def own_type(made: ColumnType) -> str:
    """Return the type of a column of this dialect that holds every value of ``made``."""
    return OWN[made.kind](made)


def column_type(column: PlannedColumn) -> str:
    """Return the type for a column definition: the source's own words if they are this dialect's."""
    if column.wanted:
        return column.wanted
    kind = column.sql_type if find_type(column.sql_type) is not None else own_type(column.value_type)
    if column.charset and column.collation:
        kind += f" CHARACTER SET {column.charset} COLLATE {column.collation}"
    return kind


def lost(column: PlannedColumn, found: ColumnInfo, sent: ColumnType | None = None) -> str:
    """Return what a column of the target may lose or refuse of the values, "" if nothing.

    ``sent``: the type in which they are sent.
    """
    made = sent if sent is not None else column.value_type
    return loss(SqlType.parse(own_type(made), made.charset), SqlType.parse(found.sql_type, found.charset))
