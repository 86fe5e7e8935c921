"""canal's flat messages: every value a string, with its MySQL and JDBC types."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

from sluice.formats.common import (
    Column,
    Format,
    Statement,
    after_of,
    changed,
    columns_of,
    converted,
    float_of,
    json_text,
    number_text,
    temporal_text,
)
from sluice.model.batches import Op
from sluice.model.changes import Change
from sluice.model.schema_changes import ChangeKind, TableChange
from sluice.model.tables import ENUM_ERROR_VALUE
from sluice.mysql.column_types import JavaTypes

_TYPES = {Op.INSERT: "INSERT", Op.UPDATE: "UPDATE", Op.DELETE: "DELETE", Op.READ: "INSERT"}


def row(change: Change, source: str) -> tuple[str, ...]:
    """Return the one message of a row. canal has no type for rows of a dump: they are inserts."""
    kind = Op(change.op)
    image = (change.before if kind is Op.DELETE else after_of(change)) or {}
    columns = columns_of(change.fields)
    old: dict[str, str | None] = {}
    if kind is Op.UPDATE:
        before = change.before or {}
        old = {
            name: None if before[name] is None else value_of(before[name], columns[name]) for name in changed(change)
        }
    return (
        json_text({
            "data": [converted(change, image, value_of)],
            "database": change.table.schema,
            "es": change.commit_time_us // 1000,
            "gtid": change.gtid or "",
            "id": change.seq,
            "isDdl": False,
            "mysqlType": {name: columns[name].declared for name in image},
            "old": [old] if old else None,
            "pkNames": [name for name in columns if name in change.key] or None,
            "sql": "",
            "sqlType": {name: java_type(value, columns[name]) for name, value in image.items()},
            "table": change.table.table,
            "ts": change.commit_time_us // 1000,
            "type": _TYPES[kind],
        }),
    )


def value_of(value: Any, column: Column) -> str:
    """Return a value that is not NULL, as canal prints it."""
    if column.temporal:
        return temporal_text(value, column)
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, float):
        return java_float(float_of(value, column))
    if column.word == "year":
        return f"{value:04d}"
    if column.word == "enum":
        labels = column.sql.labels
        return str(0 if value == ENUM_ERROR_VALUE or value not in labels else labels.index(value) + 1)
    if column.word == "set":
        chosen = set(value.split(",")) if value else set()
        return str(sum(1 << number for number, name in enumerate(column.sql.labels) if name in chosen))
    return str(value)


def java_float(value: float) -> str:
    """Format like Java's ``String.valueOf``: an exponent below a thousandth and from ten million on."""
    text = number_text(value)
    if not math.isfinite(value):
        return text
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return f"{Decimal(text):f}" if "e" in text else text
    sign, digits, exponent = Decimal(text).as_tuple()
    mantissa = "".join(map(str, digits)).rstrip("0")
    power = int(exponent) + len(digits) - 1
    return f"{'-' if sign else ''}{mantissa[0]}.{mantissa[1:] or '0'}E{power}"


def java_type(value: Any, column: Column) -> int:
    """Return the value's java.sql.Types as canal reports it.

    NULL and numbers beyond the signed range have types of their own.
    """
    row = column.row
    if row is None:  # a rule made the column
        return JavaTypes().canal
    if value is None:
        return row.java.null
    if column.sql.unsigned and row.java.beyond is not None and value > row.range[False][1]:
        return row.java.beyond
    return row.java.canal


def statement(ddl: Statement, source: str) -> tuple[str, ...]:
    """Return the one message of a statement; it names the first table that the statement changed."""
    tables = ddl.tables
    return (
        json_text({
            "data": None,
            "database": tables[0].schema if tables else ddl.schema,
            "es": ddl.commit_time_us // 1000,
            "gtid": ddl.gtid or "",
            "id": 0,
            "isDdl": True,
            "mysqlType": None,
            "old": None,
            "pkNames": None,
            "sql": ddl.sql,
            "sqlType": None,
            "table": tables[0].table if tables else "",
            "ts": ddl.commit_time_us // 1000,
            "type": _event(ddl.changes[0]) if ddl.changes else "QUERY",
        }),
    )


_EVENTS = (
    ({ChangeKind.CREATE_DATABASE, ChangeKind.ALTER_DATABASE, ChangeKind.DROP_DATABASE}, "QUERY"),
    ({ChangeKind.CREATE_TABLE}, "CREATE"),
    ({ChangeKind.DROP_TABLE}, "ERASE"),
    ({ChangeKind.TRUNCATE_TABLE}, "TRUNCATE"),
    ({ChangeKind.RENAME_TABLE}, "RENAME"),
)


def _event(change: TableChange) -> str:
    for kinds, event in _EVENTS:
        if kinds & set(change.kinds):
            return event
    if change.kinds == (ChangeKind.INDEXES,) and change.before and change.after:
        more = len(change.after.indexes) - len(change.before.indexes)
        return "CINDEX" if more > 0 else "DINDEX" if more < 0 else "ALTER"
    return "ALTER"


FORMAT = Format(row, statement)
