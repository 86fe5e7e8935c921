"""Changes as JSON lines in the published formats of Debezium, Maxwell and canal. One change in, one line out."""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa

from sluice.model.batches import Op
from sluice.model.temporal import time_text
from sluice.segments.reader import Change

_EPOCH_DATE = dt.date(1970, 1, 1)
_EPOCH = dt.datetime(1970, 1, 1)
_US = dt.timedelta(microseconds=1)


def to_debezium_json(change: Change) -> str:
    """Debezium's envelope (payload only, schemas off) with its default value modes.

    Numbers of more than 53 bits stay JSON numbers; DECIMAL as base64 of the unscaled value would need its schema, so it is a string
    (``decimal.handling.mode=string``); DATE: days; DATETIME: ms (fraction up to 3) or us; TIMESTAMP: ISO 8601 UTC; TIME: us; BIT, binary: base64.
    """
    op = {Op.INSERT.value: "c", Op.UPDATE.value: "u", Op.DELETE.value: "d", Op.READ.value: "r"}[change.op]
    us = change.commit_time_us
    source = {
        "version": "sluice", "connector": "mysql", "name": "sluice", "ts_ms": us // 1000, "ts_us": us, "ts_ns": us * 1000,
        "snapshot": "true" if op == "r" else "false", "db": change.table.schema, "sequence": None, "table": change.table.table,
        "server_id": change.origin, "gtid": change.gtid, "file": change.file, "pos": change.offset, "row": change.row, "thread": None,
        "query": None,
    }  # fmt: skip
    return _dump({
        "before": _row(change, change.before, _debezium),
        "after": _row(change, change.after, _debezium),
        "source": source,
        "transaction": None,
        "op": op,
        "ts_ms": us // 1000,
        "ts_us": us,
        "ts_ns": us * 1000,
    })


def to_maxwell_json(change: Change) -> str:
    """Maxwell's row format: ``commit`` at the end of a transaction, ``xoffset`` else; ``old`` holds the columns that changed."""
    kinds = {Op.INSERT.value: "insert", Op.UPDATE.value: "update", Op.DELETE.value: "delete"}
    kind = kinds.get(change.op, "bootstrap-insert")
    line: dict[str, Any] = {
        "database": change.table.schema,
        "table": change.table.table,
        "type": kind,
        "ts": change.commit_time_us // 1_000_000,
        "xid": change.txn,
    }
    if change.last_in_txn:
        line["commit"] = True
    else:
        line["xoffset"] = change.row
    line["position"] = f"{change.file}:{change.offset}"
    if change.gtid:
        line["gtid"] = change.gtid
    line["data"] = _row(change, change.after if change.after is not None else change.before, _maxwell)
    if change.op == Op.UPDATE:
        line["old"] = _changed(change, _maxwell)
    return _dump(line)


def to_canal_json(change: Change) -> str:
    """canal's flat message: values as strings, ``data`` and ``old`` as lists, ``mysqlType``, ``sqlType`` (java.sql.Types), ``pkNames``, es, ts."""
    kind = {Op.INSERT.value: "INSERT", Op.UPDATE.value: "UPDATE", Op.DELETE.value: "DELETE", Op.READ.value: "INSERT"}[change.op]  # fmt: skip
    types = {_name(field): _meta(field, "type") for field in change.fields}
    ms = change.commit_time_us // 1000
    return _dump({
        "data": [_row(change, change.after if change.after is not None else change.before, _canal)],
        "database": change.table.schema,
        "es": ms,
        "gtid": change.gtid or "",
        "id": change.seq,
        "isDdl": False,
        "mysqlType": types,
        "old": [_changed(change, _canal)] if change.op == Op.UPDATE else None,
        "pkNames": list(change.key) or None,
        "sql": "",
        "sqlType": {name: _java_type(sql) for name, sql in types.items()},
        "table": change.table.table,
        "ts": ms,
        "type": kind,
    })


FORMATS: dict[str, Callable[[Change], str]] = {
    "debezium-json": to_debezium_json,
    "maxwell-json": to_maxwell_json,
    "canal-json": to_canal_json,
}
"""The formats by the name the command line gives them."""

_Convert = Callable[[Any, str, pa.Field], Any]


def _row(change: Change, row: dict[str, Any] | None, convert: _Convert) -> dict[str, Any] | None:
    if row is None:
        return None
    return {
        name: None if value is None else convert(value, _meta(field, "type"), field)
        for (name, value), field in zip(row.items(), change.fields, strict=True)
    }


def _changed(change: Change, convert: _Convert) -> dict[str, Any]:
    before, after = change.before or {}, change.after or {}
    old = _row(change, before, convert) or {}
    return {name: old[name] for name in before if before[name] != after.get(name)}


def _debezium(value: Any, sql_type: str, field: pa.Field) -> Any:
    if isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, bytes):
        if _is_geometry(sql_type):
            return {"wkb": _base64(value[4:]), "srid": int.from_bytes(value[:4], "little") or None}
        return _base64(value)
    if isinstance(value, dt.timedelta):
        return value // _US
    if isinstance(value, dt.datetime):
        if pa.types.is_timestamp(field.type) and field.type.tz:
            plain = value.replace(tzinfo=None)
            text = plain.isoformat()
            return (text.rstrip("0") if "." in text else text) + "Z"
        us = (value - _EPOCH) // _US
        return us if _digits(sql_type) > 3 else us // 1000
    if isinstance(value, dt.date):
        return (value - _EPOCH_DATE).days
    if pa.types.is_date32(field.type) or pa.types.is_timestamp(field.type):
        # a zero date: what Debezium sends for columns that must not be null
        return "1970-01-01T00:00:00Z" if field.type == pa.timestamp("us", "UTC") else 0
    return value


def _maxwell(value: Any, sql_type: str, field: pa.Field) -> Any:
    if isinstance(value, Decimal):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        return _base64(value)
    if sql_type == "json":
        return json.loads(value)
    if sql_type.startswith("set("):
        return value.split(",") if value else []
    return _text(value, sql_type) if isinstance(value, dt.date | dt.timedelta) else value


def _canal(value: Any, sql_type: str, field: pa.Field) -> str:
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, dt.date | dt.timedelta):
        return _text(value, sql_type)
    return str(value)


def _text(value: Any, sql_type: str) -> str:
    digits = _digits(sql_type)
    if isinstance(value, dt.timedelta):
        return time_text(value // _US, digits)
    if isinstance(value, dt.datetime):
        text = (
            f"{value:%Y-%m-%d %H:%M:%S}"
            if value.year >= 1000
            else str(value.replace(tzinfo=None, microsecond=0)).zfill(19)
        )
        return text + f".{value.microsecond:06d}"[: digits + 1] if digits else text
    return str(value.isoformat())


def _digits(sql_type: str) -> int:
    kind, _, rest = sql_type.partition("(")
    return int(rest.rstrip(")")) if rest and kind in {"time", "datetime", "timestamp"} else 0


_GEOMETRIES = {"geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon", "geometrycollection"}  # fmt: skip
_JAVA = {
    "tinyint": -6, "smallint": 5, "mediumint": 4, "int": 4, "bigint": -5, "decimal": 3, "float": 7, "double": 8, "bit": -7, "date": 91,
    "datetime": 93, "timestamp": 93, "time": 92, "year": 12, "char": 1, "varchar": 12, "tinytext": 2005, "text": 2005, "mediumtext": 2005,
    "longtext": 2005, "binary": 2004, "varbinary": 2004, "tinyblob": 2004, "blob": 2004, "mediumblob": 2004, "longblob": 2004, "enum": 4,
    "set": -7, "json": 12,
}  # fmt: skip
_JAVA_UNSIGNED = {"tinyint": 5, "smallint": 4, "int": -5, "bigint": 3}


def _java_type(sql_type: str) -> int:
    kind = sql_type.split("(")[0].split()[0] if sql_type else ""
    if sql_type.endswith("unsigned") and kind in _JAVA_UNSIGNED:
        return _JAVA_UNSIGNED[kind]
    return _JAVA.get(kind, 2004 if kind in _GEOMETRIES else 12)


def _is_geometry(sql_type: str) -> bool:
    return sql_type in _GEOMETRIES


def _meta(field: pa.Field, key: str) -> str:
    return str((field.metadata or {}).get(f"sluice.{key}".encode(), b"").decode())


def _name(field: pa.Field) -> str:
    return _meta(field, "name") or str(field.name)


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


_MARK = "\ue000"
_MARKED = re.compile(f'"{_MARK}([^"]*)"')


def _dump(value: dict[str, Any]) -> str:
    """JSON with decimals as numbers that keep all their digits."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=lambda d: f"{_MARK}{d:f}")
    return _MARKED.sub(r"\1", text) if _MARK in text else text
