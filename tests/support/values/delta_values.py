"""Rows of a Delta table in the form that :mod:`tests.support.values.pg_values` brings MySQL's answers to."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa


def _double(value: float) -> str:
    return struct.pack(">d", value).hex()


def _moment(value: Any) -> str:
    return f"{value.year:04d}-{value.month:02d}-{value.day:02d} {value:%H:%M:%S.%f}"


def _json(text: str) -> Any:
    return json.loads(text, parse_float=Decimal, parse_int=Decimal)


_FORMS: Mapping[str, Callable[[Any], Any]] = {
    "float": _double, "double": _double, "bit": int, "year": int, "datetime": _moment, "timestamp": _moment,
    "time": int, "json": _json,
    **dict.fromkeys(("binary", "varbinary", "longblob", "geometry", "vector"),
        lambda value: bytes(value).hex().upper()),
    **dict.fromkeys(("varchar", "char", "longtext", "enum", "set"), lambda text: text.encode().hex().upper()),
}  # fmt: skip


def rows(table: pa.Table, types: Mapping[str, str]) -> list[tuple[Any, ...]]:
    """``types``: name -> declared type at the source."""
    forms = [_FORMS.get(kind.partition("(")[0].partition(" ")[0], str) for kind in types.values()]
    columns = [table[name].to_pylist() for name in types]
    found = [
        tuple(None if value is None else form(value) for form, value in zip(forms, row, strict=True))
        for row in zip(*columns, strict=True)
    ]
    return sorted(found, key=repr)
