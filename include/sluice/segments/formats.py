"""Changes as JSON lines, in the published formats of Debezium, Maxwell and Canal.

* **Debezium** (MySQL connector, JSON without schemas): envelope ``before``, ``after``, ``source``, ``op``, ``ts_ms``. Dates and times in
  Connect's default encodings (days, milli- or microseconds, ISO 8601 for TIMESTAMP); DECIMAL as with ``decimal.handling.mode=string``.
* **Maxwell**: ``database``, ``table``, ``type``, ``ts`` (seconds), ``xid``, ``commit`` on a transaction's last row, ``data``, ``old`` (changed
  columns only). JSON columns are nested, SET columns are lists.
* **Canal** (flat message): ``data`` and ``old`` as lists of one row of strings, ``mysqlType``, ``sqlType`` (JDBC), ``pkNames``, ``es``, ``ts``.

``ts_ms`` and ``ts`` are the commit time, so that the same change always gives the same line.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa

from sluice.model.temporal import time_text
from sluice.segments.reader import Change

_EPOCH = dt.datetime(1970, 1, 1)
_PARENTHESES = re.compile(r"\((\d+)")

_DEBEZIUM_OP = {"i": "c", "u": "u", "d": "d", "r": "r"}
_WORD = {"i": "insert", "u": "update", "d": "delete", "r": "insert"}

_JDBC = {
    "tinyint": -6, "smallint": 5, "mediumint": 4, "int": 4, "bigint": -5, "decimal": 3, "float": 7, "double": 8, "bit": -7, "date": 91,
    "datetime": 93, "timestamp": 93, "time": 92, "year": 12, "char": 1, "varchar": 12, "enum": 4, "set": -7, "json": 12, "binary": 2004,
    "varbinary": 2004, "geometry": 2004, "vector": 2004,
}  # fmt: skip


def to_debezium_json(change: Change) -> str:
    """One Debezium envelope."""
    fields = _fields(change)

    def row(values: Mapping[str, Any] | None) -> dict[str, Any] | None:
        return None if values is None else {name: _debezium(value, fields[name]) for name, value in values.items()}

    ms = change.commit_time_us // 1000
    return _dump({
        "before": row(change.before),
        "after": row(change.after),
        "source": {
            "connector": "mysql",
            "name": "sluice",
            "ts_ms": ms,
            "ts_us": change.commit_time_us,
            "snapshot": "true" if change.op == "r" else "false",
            "db": change.table.schema,
            "table": change.table.table,
            "server_id": change.origin,
            "gtid": change.gtid,
            "file": change.file,
            "pos": change.offset,
            "row": change.row,
        },
        "transaction": None,
        "op": _DEBEZIUM_OP[change.op],
        "ts_ms": ms,
    })


def to_maxwell_json(change: Change) -> str:
    """One Maxwell row."""
    fields = _fields(change)
    data = change.after if change.after is not None else change.before or {}
    message: dict[str, Any] = {
        "database": change.table.schema,
        "table": change.table.table,
        "type": _WORD[change.op],
        "ts": change.commit_time_us // 1_000_000,
        "xid": change.txn,
    }
    if change.last_in_txn:
        message["commit"] = True
    else:
        message["xoffset"] = change.row
    message |= {
        "position": f"{change.file}:{change.offset}",
        "gtid": change.gtid,
        "server_id": change.origin,
        "primary_key": [_maxwell(data[name], fields[name]) for name in change.key],
        "primary_key_columns": list(change.key),
        "data": {name: _maxwell(value, fields[name]) for name, value in data.items()},
    }
    if change.op == "u" and change.before is not None:
        message["old"] = {n: _maxwell(v, fields[n]) for n, v in change.before.items() if v != data[n]}
    return _dump(message)


def to_canal_json(change: Change) -> str:
    """One Canal flat message with one row."""
    fields = _fields(change)
    data = change.after if change.after is not None else change.before or {}
    old = None
    if change.op == "u" and change.before is not None:
        old = [{n: _canal(v, fields[n]) for n, v in change.before.items() if v != data[n]}]
    ms = change.commit_time_us // 1000
    return _dump({
        "data": [{name: _canal(value, fields[name]) for name, value in data.items()}],
        "database": change.table.schema,
        "es": ms,
        "gtid": change.gtid or "",
        "id": change.txn,
        "isDdl": False,
        "mysqlType": {name: _sql_type(field) for name, field in fields.items()},
        "old": old,
        "pkNames": list(change.key) or None,
        "sql": "",
        "sqlType": {name: _jdbc(field) for name, field in fields.items()},
        "table": change.table.table,
        "ts": ms,
        "type": _WORD[change.op].upper(),
    })


FORMATS: dict[str, Callable[[Change], str]] = {
    "debezium-json": to_debezium_json,
    "maxwell-json": to_maxwell_json,
    "canal-json": to_canal_json,
}


def _dump(message: dict[str, Any]) -> str:
    return json.dumps(message, ensure_ascii=False, separators=(",", ":"))


def _fields(change: Change) -> dict[str, pa.Field]:
    return {_name(field): field for field in change.fields}


def _name(field: pa.Field) -> str:
    return str((field.metadata or {}).get(b"sluice.name", field.name.encode()).decode())


def _sql_type(field: pa.Field) -> str:
    return str((field.metadata or {}).get(b"sluice.type", b"").decode())


def _jdbc(field: pa.Field) -> int:
    sql = _sql_type(field).lower()
    word = re.split(r"[ (]", sql, maxsplit=1)[0]
    if word.endswith("blob"):
        return 2004
    if word.endswith("text"):
        return 2005
    if "unsigned" in sql:  # the next wider type, as Canal does
        return {"tinyint": 5, "smallint": 4, "mediumint": 4, "int": -5, "bigint": 3}.get(word, _JDBC.get(word, 12))
    return _JDBC.get(word, 12)


def _fsp(field: pa.Field) -> int:
    found = _PARENTHESES.search(_sql_type(field))
    return int(found[1]) if found else 0


def _text(value: Any, field: pa.Field) -> str:
    """As MySQL prints it."""
    if isinstance(value, dt.datetime):
        text = f"{value.year:04d}" + value.strftime("-%m-%d %H:%M:%S")
        fsp = _fsp(field)
        return text + f".{value.microsecond:06d}"[: fsp + 1] if fsp else text
    if isinstance(value, dt.date):
        return f"{value.year:04d}-{value.month:02d}-{value.day:02d}"
    if isinstance(value, dt.timedelta):
        return time_text((value.days * 86_400 + value.seconds) * 1_000_000 + value.microseconds, _fsp(field))
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, int) and _sql_type(field).startswith("year"):
        return f"{value:04d}"
    return str(value)


def _debezium(value: Any, field: pa.Field) -> Any:
    if value is None:
        return None
    sql = _sql_type(field)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dt.datetime):
        if value.tzinfo is not None:
            fraction = f".{value.microsecond:06d}".rstrip("0").rstrip(".") if value.microsecond else ""
            return f"{value.year:04d}" + value.strftime("-%m-%dT%H:%M:%S") + fraction + "Z"
        micros = (value - _EPOCH) // dt.timedelta(microseconds=1)
        return micros if _fsp(field) > 3 else micros // 1000
    if isinstance(value, dt.date):
        return (value - _EPOCH.date()).days
    if isinstance(value, dt.timedelta):
        return value // dt.timedelta(microseconds=1)
    if isinstance(value, Decimal):
        return f"{value:f}"
    if sql == "bit(1)":
        return bool(value)
    if sql.startswith("bit"):
        return base64.b64encode(value.to_bytes((_fsp(field) + 7) // 8, "little")).decode()
    return value


def _maxwell(value: Any, field: pa.Field) -> Any:
    if value is None:
        return None
    sql = _sql_type(field)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if sql == "json":
        return json.loads(value)
    if sql.startswith("set"):
        return value.split(",") if value else []
    if isinstance(value, Decimal):
        return float(value) if len(value.as_tuple().digits) <= 15 else f"{value:f}"
    if isinstance(value, dt.date | dt.timedelta):
        return _text(value, field)
    return value


def _canal(value: Any, field: pa.Field) -> str | None:
    if value is None:
        return None
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return _text(value, field)
