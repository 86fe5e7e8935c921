"""Keys of every type with values at the edges of what files' bounds can say."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from sluice.model.column_types import ColumnKind
from sluice.model.tables import Column

K = ColumnKind
KEYS: tuple[tuple[Column, tuple[Any, ...]], ...] = (
    (Column("k", K.BIGINT, "bigint unsigned", unsigned=True), (0, 2**63 - 1, 2**63, 2**64 - 1)),
    (Column("k", K.BIGINT, "bigint"), (-(2**63), -1, 0, 2**63 - 1)),
    (Column("k", K.DECIMAL, "decimal(38,10)", precision=38, scale=10),
        ("-9999999999999999999999999999.9999999999", "0.0000000001", "1", "2")),
    (Column("k", K.VARCHAR, "varchar(200)", charset="utf8mb4"),
        ("", "x" * 40 + "1", "x" * 40 + "2", "ü😀'\"`\\", "a", "A", "a ")),
    (Column("k", K.VARCHAR, "varchar(200) long", charset="utf8mb4"), (
        "ü" * 40 + "1", "ü" * 40 + "2", "😀" * 40 + "1", "\U0010ffff" * 40, "\U0010ffff" * 40 + "1")),
    (Column("k", K.VARBINARY, "varbinary(90)"), (b"", b"\xff" * 40 + b"1", b"\xff" * 40 + b"2", b"\x00", b"'")),
    (Column("k", K.DATE, "date"), ("0001-01-01", "1582-10-10", "1969-12-31", "9999-12-31")),
    (Column("k", K.DATETIME, "datetime(6)", fsp=6), ("0001-01-01T00:00:00.000001", "1969-12-31T23:59:59.999999",
        "9999-12-31T23:59:59.999999")),
    (Column("k", K.TIMESTAMP, "timestamp(6)", fsp=6), ("1970-01-01T00:00:01.000001", "2038-01-19T03:14:07.999999")),
    (Column("k", K.TIME, "time(6)", fsp=6), (-3020399000000, -1, 0, 3020399000000)),
    (Column("k", K.DOUBLE, "double"), (-1.5, 0.1, 5e-324, 1.7976931348623157e308)),
)  # fmt: skip


def values_of(column: Column, texts: Any) -> list[Any]:
    """Of the type of a key column."""
    kind = column.type.arrow_type
    if column.kind in {K.DATE, K.DATETIME, K.TIMESTAMP, K.DECIMAL}:
        naive = pa.timestamp("us") if pa.types.is_timestamp(kind) else kind
        found: list[Any] = pa.array(texts, pa.string()).cast(naive).cast(kind).to_pylist()
        return found
    return list(pa.array(texts, kind).to_pylist())
