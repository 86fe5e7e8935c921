"""The numbers by which the log's table maps and the client protocol call a type (``enum_field_types`` of both
servers).
"""

from __future__ import annotations

(
    TINY,
    SHORT,
    LONG,
    FLOAT,
    DOUBLE,
    NULL,
    TIMESTAMP,
    LONGLONG,
    INT24,
    DATE,
    TIME,
    DATETIME,
    YEAR,
    NEWDATE,
    VARCHAR,
    BIT,
) = range(1, 17)
DECIMAL = 0
TIMESTAMP2, DATETIME2, TIME2, TYPED_ARRAY = 17, 18, 19, 20
BLOB_COMPRESSED, VARCHAR_COMPRESSED = 140, 141
VECTOR, JSON, NEWDECIMAL, ENUM, SET = 242, 245, 246, 247, 248
TINY_BLOB, MEDIUM_BLOB, LONG_BLOB, BLOB, VAR_STRING, STRING, GEOMETRY = 249, 250, 251, 252, 253, 254, 255
