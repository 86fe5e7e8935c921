"""Debezium's MySQL connector with its default settings: the payload of its envelope, without schemas, and its schema
change events. The block ``source`` may be that of another connector: :mod:`sluice.formats.source_blocks`.
"""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa

from sluice.formats.common import (
    MICROSECOND,
    Column,
    Format,
    Statement,
    after_of,
    base64_of,
    changed,
    converted,
    float_of,
    floats_of,
    json_text,
    label,
    temporal_text,
)
from sluice.formats.source_blocks import connector_of, lsn_sequence
from sluice.model.batches import Op
from sluice.model.changes import Change
from sluice.model.definitions import ColumnDefinition, TableDefinition
from sluice.model.schema_changes import ChangeKind, TableChange
from sluice.model.tables import TableId
from sluice.model.temporal import BEFORE_CHRIST, date_number, is_no_date, timestamp_number
from sluice.mysql.column_types import JavaTypes, find_type

_EPOCH_DATE = dt.date(1970, 1, 1)
_EPOCH = dt.datetime(1970, 1, 1)
_INFINITE_TIMES = {"infinity": 9_223_372_036_825_200_000, "-infinity": -9_223_372_036_832_400_000}
"""Infinite times of PostgreSQL as numbers of its JDBC driver, which Debezium's connector sends."""
_INFINITE_ZONED = {"infinity": "+292278994-08-16T23:00:00Z", "-infinity": "-292275055-05-16T23:00:00Z"}
"""The same as texts: these numbers as milliseconds."""
_OPS = {Op.INSERT: "c", Op.UPDATE: "u", Op.DELETE: "d", Op.READ: "r"}


def row(change: Change, source: str) -> tuple[str, ...]:
    """Return the documents of :func:`events`."""
    return tuple(map(json_text, events(change, source)))


def events(change: Change, source: str) -> list[dict[str, Any]]:
    """Return the events of a change.

    There is one, or two for an update that changes the primary key: a delete of the old row and a create of the new
    one.
    """
    before, after = converted(change, change.before, value_of), converted(change, after_of(change), value_of)
    if change.op == Op.UPDATE and not set(changed(change)).isdisjoint(change.key):
        return [_event(change, source, "d", before, None), _event(change, source, "c", None, after, later=1)]
    return [_event(change, source, _OPS[Op(change.op)], before, after)]


def _event(
    change: Change, source: str, op: str, before: dict[str, Any] | None, after: dict[str, Any] | None, later: int = 0
) -> dict[str, Any]:
    us, place = change.commit_time_us, change.in_transaction
    return {
        "before": before,
        "after": after,
        "source": connector_of(source).block(source, us, {
            "snapshot": "true" if op == "r" else "false", "schema": change.table.schema, "table": change.table.table,
            "origin": change.origin, "row": change.row, **_place(change),
        }),
        "transaction": None if place is None else {
            "id": place.id, "total_order": place.total_order + later,
            "data_collection_order": place.table_order + later,
        },
        "op": op,
        "ts_ms": us // 1000,
        "ts_us": us,
        "ts_ns": us * 1000,
    }  # fmt: skip


def _place(at: Change | Statement) -> dict[str, Any]:
    return {
        "gtid": at.gtid, "gtid_number": int(at.gtid) if at.gtid and at.gtid.isdecimal() else None,
        "file": at.file, "offset": at.offset, "lsn_sequence": lsn_sequence(at.offset),
    }  # fmt: skip


def value_of(value: Any, column: Column) -> Any:
    """Convert a value that is not NULL as the connector's converters do and JSON shows it."""
    if column.temporal:
        return _temporal(value, column)
    if column.word == "bit":
        bits = column.sql.first or 1
        return bool(value) if bits == 1 else base64_of(value.to_bytes((bits + 7) // 8, "little"))
    if isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return float_of(value, column)
    if isinstance(value, Decimal):
        return base64_of(unscaled(value))
    if isinstance(value, bytes):
        if column.geometry:
            return _geometry(value, column)
        return floats_of(value) if column.word == "vector" else base64_of(value)
    return label(value) if column.word == "enum" else value


def unscaled(value: Decimal) -> bytes:
    """Return the digits without the point, as the shortest two's complement: what Kafka Connect's Decimal stores."""
    sign, digits, _ = value.as_tuple()
    number = int("".join(map(str, digits)))
    number = -number if sign else number
    size = (number if number >= 0 else ~number).bit_length() // 8 + 1
    return number.to_bytes(size, "big", signed=True)


def _temporal(value: Any, column: Column) -> Any:
    """Convert to a type of io.debezium.time: Date, Timestamp, MicroTimestamp, ZonedTimestamp, MicroTime.

    A date that no calendar has is null, or the epoch where the column must not be null, as the connector has it.
    PostgreSQL's years before Christ and after 9999 continue the numbers, and are ISO 8601's years in texts.
    """
    if isinstance(value, dt.timedelta):
        return value // MICROSECOND
    if isinstance(value, dt.datetime):
        if column.utc:
            text = f"{value.year:04d}-{value:%m-%dT%H:%M:%S}"
            return text + (f".{value.microsecond:06d}"[: column.digits + 1] if column.digits else "") + "Z"
        us = (value - _EPOCH) // MICROSECOND
        return us if column.digits > 3 else us // 1000
    if isinstance(value, dt.date):
        return (value - _EPOCH_DATE).days
    far = _far(value, column)
    if far is not None or not column.required:
        return far
    return "1970-01-01T00:00:00Z" if column.utc else 0


def _far(text: str, column: Column) -> int | str | None:
    """Convert the text of a date that Python's calendar lacks; None for one that every calendar lacks."""
    if not column.day and text in _INFINITE_TIMES:
        return _INFINITE_ZONED[text] if column.utc else _INFINITE_TIMES[text]
    try:
        number = date_number(text) if column.day else timestamp_number(text)
    except ValueError:
        return None
    if is_no_date(pa.array([number], pa.date32() if column.day else pa.timestamp("us"))).any():
        return None
    if column.day:
        return number
    if not column.utc:
        return number if column.digits > 3 else number // 1000
    day, clock = temporal_text(text, column).removesuffix(BEFORE_CHRIST).split(" ")
    year, rest = int(day[:-6]), f"{day[-6:]}T{clock}Z"
    if not text.endswith(BEFORE_CHRIST):
        return f"+{year}{rest}"
    return f"{'-' if year > 1 else ''}{year - 1:04d}{rest}"  # the year 1 BC is 0


def time_number(value: int, digits: int) -> int:
    """Return the stored number of a Timestamp or a MicroTimestamp."""
    for text, number in _INFINITE_TIMES.items():
        if value == number:
            return timestamp_number(text)
    return value if digits > 3 else value * 1000


def zoned_number(text: str) -> int:
    """Return the stored number of a ZonedTimestamp. Raises ValueError."""
    for infinite, zoned in _INFINITE_ZONED.items():
        if text == zoned:
            return timestamp_number(infinite)
    day, _, clock = text.removesuffix("Z").partition("T")
    year = int(day[:-6])
    era = BEFORE_CHRIST if year < 1 else ""
    return timestamp_number(f"{1 - year if era else year:04d}{day[-6:]} {clock}{era}")


def _geometry(value: bytes, column: Column) -> dict[str, Any]:
    geometry: dict[str, Any] = {"wkb": base64_of(value[4:]), "srid": int.from_bytes(value[:4], "little") or None}
    if column.word == "point" and len(value) == 25:
        x, y = struct.unpack_from("<dd" if value[4] == 1 else ">dd", value, 9)
        geometry = {"x": x, "y": y} | geometry
    return geometry


def statement(ddl: Statement, source: str) -> tuple[str, ...]:
    """Return the document of :func:`schema_change`."""
    return (json_text(schema_change(ddl, source)),)


def schema_change(ddl: Statement, source: str) -> dict[str, Any]:
    """Return the schema change event of a statement, as the connector writes it to the topic named after the source."""
    us, tables = ddl.commit_time_us, ddl.tables
    return {
            "source": connector_of(source).block(source, us, {
                "snapshot": "false", "schema": tables[0].schema if tables else ddl.schema,
                "table": ",".join(table.table for table in tables if table.table) or None,
                "origin": 0, "row": 0, **_place(ddl),
            }),
            "ts_ms": us // 1000,
            "databaseName": tables[0].schema if tables else ddl.schema,
            "schemaName": None,
            "ddl": ddl.sql,
            "tableChanges": [_table_change(change) for change in ddl.changes if change.table.table],
    }  # fmt: skip


def statement_key(ddl: Statement) -> str:
    """Return the key of a statement's event."""
    return json_text({"databaseName": ddl.tables[0].schema if ddl.tables else ddl.schema})


def transaction_id(gtid: str | None, file: str, offset: int) -> str:
    """Return the id of a transaction: its GTID, or where the log has its first change."""
    return gtid or f"file={file},pos={offset}"


def transaction_key(transaction: str) -> str:
    """Return the key of both events of a transaction."""
    return json_text({"id": transaction})


def transaction_event(transaction: str, commit_time_us: int, counts: Mapping[TableId, int] | None = None) -> str:
    """Return the event that begins a transaction, or, with the number of events of each table, the one that ends it."""
    tables = [{"data_collection": str(table), "event_count": count} for table, count in (counts or {}).items()]
    return json_text({
        "status": "BEGIN" if counts is None else "END",
        "id": transaction,
        "event_count": None if counts is None else sum(counts.values()),
        "data_collections": None if counts is None else tables,
        "ts_ms": commit_time_us // 1000,
    })


def _table_change(change: TableChange) -> dict[str, Any]:
    if ChangeKind.DROP_TABLE in change.kinds:
        return {"type": "DROP", "id": _id(change.table), "table": None}
    created = ChangeKind.CREATE_TABLE in change.kinds
    names = ",".join(_id(table) for table in change.tables)
    return {
        "type": "CREATE" if created else "ALTER",
        "id": names,
        "table": _table(change.after) if change.after is not None else None,
    }


def _id(table: TableId) -> str:
    return ".".join('"' + name.replace('"', '""') + '"' for name in (table.schema, table.table))


def _table(table: TableDefinition) -> dict[str, Any]:
    return {
        "defaultCharsetName": table.charset or None,
        "primaryKeyColumnNames": list(table.primary_key),
        "columns": [_column(column, position) for position, column in enumerate(table.columns, 1)],
        "comment": table.comment or None,
    }


def _column(column: ColumnDefinition, position: int) -> dict[str, Any]:
    name = column.family.upper() + (" UNSIGNED" if column.unsigned else "")
    length, scale = (*column.arguments, None, None)[:2]
    if column.family == "enum":
        length = 1
    elif column.family == "set":
        length = max(0, len(column.labels) * 2 - 1)
    labels, row = [f"'{value}'" for value in column.labels], find_type(column.type)
    return {
        "name": column.name,
        "jdbcType": (row.java if row is not None else JavaTypes()).debezium,
        "nativeType": None,
        "typeName": name,
        "typeExpression": name,
        "charsetName": column.charset,
        "length": length,
        "scale": scale,
        "position": position,
        "optional": column.nullable,
        "autoIncremented": column.auto_increment,
        "generated": column.auto_increment or column.generated is not None,
        "comment": column.comment or None,
        "defaultValueExpression": column.default,
        "enumValues": labels,
    }


FORMAT = Format(row, statement)
