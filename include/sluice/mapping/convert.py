"""Values on their way into a column of another type: wall times of a time zone become timestamps, and the other way
round.

All other conversions are the target's own: a value is sent as the source declared it, and a strict session refuses what
does not fit.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.config.pipeline import ColumnConversion
from sluice.errors import MappingError
from sluice.model import temporal
from sluice.model.column_types import ColumnKind
from sluice.model.fields import declared_type, described, is_key, neutral_type
from sluice.model.losses import Loss

_DIGITS = re.compile(r"\(\d\)")


def declared(sql_type: str, conversion: ColumnConversion) -> str:
    """Return the type at the target of a column that is ``sql_type`` at the source."""
    if conversion.type:
        return conversion.type
    if not conversion.time_zone:
        return sql_type
    digits = _DIGITS.search(sql_type)
    word = "datetime" if sql_type.lower().startswith("timestamp") else "timestamp"
    return word + (digits[0] if digits else "")


def remark(sql_type: str, conversion: ColumnConversion) -> str:
    """Describe what the conversion itself cannot keep; "" if it keeps everything."""
    if not conversion.time_zone or _moves(sql_type, conversion) == 0:
        return ""
    return Loss(f"the hour that {conversion.time_zone} lives twice when its clocks go back is one: the first is taken")


def refuse(column: str, sql_type: str, in_key: bool, conversion: ColumnConversion, table: str) -> None:
    """Raise MappingError if a key would lose its identity, or if a time zone has no meaning for the type."""
    if not conversion.time_zone:
        return
    if _moves(sql_type, conversion) == 0:
        raise MappingError(
            f"column {column!r} of {table} has a time_zone, and its type {sql_type} goes to "
            f"{conversion.type or sql_type}",
            where=table,
            hint="time_zone is for a DATETIME that becomes a TIMESTAMP, or a TIMESTAMP that becomes a DATETIME",
        )
    if in_key:
        raise MappingError(
            f"the key column {column!r} of {table} would change its time zone: two keys in the repeated hour of the "
            "clock change would become equal",
            where=table,
            hint="leave key columns as they are",
        )


def converted(field: pa.Field, values: pa.Array, conversion: ColumnConversion, table: str) -> tuple[pa.Field, pa.Array]:
    """Convert a column's field and values to those at the target. Raises MappingError (see :func:`refuse`)."""
    source_type = declared_type(field)
    refuse(field.name, source_type, is_key(field), conversion, table)
    way = _moves(source_type, conversion)
    if way == 0:
        return field, values
    digits = _DIGITS.search(source_type)
    new_type = ("timestamp" if way > 0 else "datetime") + (digits[0] if digits else "")
    more, known_column_type = {"type": new_type}, neutral_type(field)
    if known_column_type is not None:
        more["kind"] = replace(
            known_column_type, kind=ColumnKind.TIMESTAMP if way > 0 else ColumnKind.DATETIME
        ).to_text()
    kind = pa.timestamp("us", tz="UTC") if way > 0 else pa.timestamp("us")
    return described(field.with_type(kind), **more), _moved(values, conversion.time_zone, kind)


def _moves(sql_type: str, conversion: ColumnConversion) -> int:
    """Return 1 if wall time of the zone becomes a timestamp, -1 if a timestamp becomes wall time, 0 for neither."""
    ends = (sql_type.lower()[:8], declared(sql_type, conversion).lower()[:8])
    if not conversion.time_zone:
        return 0
    return {("datetime", "timestam"): 1, ("timestam", "datetime"): -1}.get(ends, 0)


def _moved(values: pa.Array, zone: str, kind: pa.DataType) -> pa.Array:
    """Convert between wall time and timestamps.

    The zero date and other dates that no calendar has keep their values.
    """
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    special = temporal.is_special(values)
    plain = pc.if_else(pa.array(special), pa.scalar(None, values.type), values) if special.any() else values
    if kind.tz:
        moved_values = pc.assume_timezone(plain, zone, ambiguous="earliest", nonexistent="latest").cast(kind)
    else:
        moved_values = pc.local_timestamp(plain.cast(pa.timestamp("us", tz=zone)))
    if not special.any():
        return moved_values
    numbers = np.where(special, values.view(pa.int64()).fill_null(0), moved_values.view(pa.int64()).fill_null(0))
    empty = np.asarray(pc.is_null(values).to_numpy(zero_copy_only=False))
    return pa.array(numbers.astype(np.int64), mask=empty).view(kind)
