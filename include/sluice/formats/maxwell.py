"""Maxwell's documents: rows as its producers print them, statements as its ``output_ddl`` does."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

from sluice.formats.common import (
    Column,
    Format,
    Raw,
    Statement,
    after_of,
    base64_of,
    changed,
    columns_of,
    converted,
    float_of,
    json_text,
    label,
    temporal_text,
)
from sluice.formats.wkt import wkt
from sluice.model.batches import Op
from sluice.model.changes import Change
from sluice.model.definitions import ColumnDefinition, TableDefinition
from sluice.model.schema_changes import ChangeKind, TableChange
from sluice.mysql.column_types import Brackets, find_type

_TYPES = {Op.INSERT: "insert", Op.UPDATE: "update", Op.DELETE: "delete", Op.READ: "bootstrap-insert"}


def row(change: Change, source: str) -> tuple[str, ...]:
    """Return one document, with all that these options of Maxwell add.

    They are ``output_commit_info``, ``output_xoffset``, ``output_binlog_position`` and ``output_gtid_position``.
    """
    kind = Op(change.op)
    document: dict[str, Any] = {
        "database": change.table.schema,
        "table": change.table.table,
        "type": _TYPES[kind],
        "ts": change.commit_time_us // 1_000_000,
    }
    if kind is not Op.READ:  # rows of a bootstrap belong to no transaction
        document["xid"] = change.txn
        if change.last_in_txn:
            document["commit"] = True
        else:
            document["xoffset"] = change.txn_row
    document["position"] = f"{change.file}:{change.offset}"
    if change.gtid:
        document["gtid"] = change.gtid
    document["data"] = converted(change, change.before if kind is Op.DELETE else after_of(change), value_of)
    if kind is Op.UPDATE:
        before, columns = change.before or {}, columns_of(change.fields)
        old = {
            name: None if before[name] is None else value_of(before[name], columns[name]) for name in changed(change)
        }
        if old:
            document["old"] = old
    return (json_text(document),)


def value_of(value: Any, column: Column) -> Any:
    """Return a value that is not NULL, as Maxwell prints it."""
    if column.temporal:
        return temporal_text(value, column)
    if isinstance(value, bool | int | Decimal):
        return value
    if isinstance(value, float):
        return float_of(value, column)
    if isinstance(value, bytes):
        return wkt(value) if column.geometry else base64_of(value)
    if isinstance(value, dt.date | dt.timedelta):
        return temporal_text(value, column)
    if column.word == "json":
        return Raw(value)
    if column.word == "set":
        return value.split(",") if value else []
    return label(value) if column.word == "enum" else value


def statement(ddl: Statement, source: str) -> tuple[str, ...]:
    """Return one document per table (or database) that the statement changed."""
    documents = []
    for change in ddl.changes:
        kind = _kind(change)
        if kind is None:
            continue
        document: dict[str, Any] = {"type": kind, "database": change.table.schema}
        if change.table.table:
            document["table"] = change.table.table
        if kind == "table-alter" and change.before is not None:
            document["old"] = _definition(change.before)
        if kind in {"table-create", "table-alter"} and change.after is not None:
            document["def"] = _definition(change.after)
        document |= {
            "ts": ddl.commit_time_us // 1_000_000 * 1000,
            "sql": ddl.sql,
            "position": f"{ddl.file}:{ddl.offset}",
        }
        if ddl.gtid:
            document["gtid"] = ddl.gtid
        documents.append(json_text(document))
    return tuple(documents)


_KINDS = {
    ChangeKind.CREATE_DATABASE: "database-create", ChangeKind.ALTER_DATABASE: "database-alter",
    ChangeKind.DROP_DATABASE: "database-drop",
    ChangeKind.CREATE_TABLE: "table-create", ChangeKind.DROP_TABLE: "table-drop",
}  # fmt: skip


def _kind(change: TableChange) -> str | None:
    """Return the type of a document; None if Maxwell prints nothing, as for TRUNCATE TABLE."""
    for kind, name in _KINDS.items():
        if kind in change.kinds:
            return name
    silent = {ChangeKind.TRUNCATE_TABLE, ChangeKind.NOTHING, ChangeKind.UNKNOWN}
    return None if set(change.kinds) <= silent else "table-alter"


def _definition(table: TableDefinition) -> dict[str, Any]:
    return {
        "database": table.table.schema,
        "charset": table.charset,
        "table": table.table.table,
        "columns": [_column(column) for column in table.columns],
        "primary-key": list(table.primary_key),
    }


def _column(column: ColumnDefinition) -> dict[str, Any]:
    described: dict[str, Any] = {"type": column.family, "name": column.name}
    row = find_type(column.type)
    if row is not None and row.bits:
        described["signed"] = not column.unsigned
    elif row is not None and row.brackets is Brackets.DIGITS:
        if column.arguments:
            described["column-length"] = column.arguments[0]
    elif column.labels:
        described["enum-values"] = list(column.labels)
    elif column.charset:
        described["charset"] = column.charset
    return described


FORMAT = Format(row, statement)
