"""The type in a memory target for each neutral type, and what is lost."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from sluice.model.column_types import ColumnKind, ColumnType

K = ColumnKind
_NO_CALENDAR = "dates that no calendar has are refused"


@dataclass(frozen=True, slots=True)
class OwnType:
    """The Python type of the values; ``loses``: what of them is not stored, "" for nothing."""

    python: type
    loses: str = ""


OWN: Mapping[ColumnKind, OwnType] = {
    **dict.fromkeys((K.TINYINT, K.SMALLINT, K.MEDIUMINT, K.INT, K.BIGINT, K.BIT, K.YEAR), OwnType(int)),
    K.DECIMAL: OwnType(Decimal),
    **dict.fromkeys((K.FLOAT, K.DOUBLE), OwnType(float)),
    K.DATE: OwnType(dt.date, _NO_CALENDAR),
    **dict.fromkeys((K.DATETIME, K.TIMESTAMP), OwnType(dt.datetime, _NO_CALENDAR)),
    K.TIME: OwnType(dt.timedelta),
    **dict.fromkeys((K.CHAR, K.VARCHAR, K.TEXT, K.ENUM, K.SET, K.JSON, K.UUID, K.INET4, K.INET6), OwnType(str)),
    **dict.fromkeys((K.BINARY, K.VARBINARY, K.BLOB, K.GEOMETRY, K.VECTOR), OwnType(bytes)),
}
"""The type of this target for each kind of values."""


def own_type(column_type: ColumnType) -> OwnType:
    """Return the type of the values in the store."""
    return OWN[column_type.kind]
