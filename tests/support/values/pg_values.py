"""The same value at MySQL and at PostgreSQL: what each server says of it, brought to one form."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

Form = tuple[str, str, Callable[[Any], Any], Callable[[Any], Any]]
"""What to select at MySQL and at PostgreSQL (``{}`` is the column), and what makes one form of each answer."""


def _same(value: Any) -> Any:
    return value


def _micros(text: str) -> int:
    sign = -1 if text.startswith("-") else 1
    hours, minutes, seconds = text.lstrip("-").split(":")
    return sign * (int(hours) * 3_600_000_000 + int(minutes) * 60_000_000 + int(Decimal(seconds) * 1_000_000))


def _double(value: float) -> str:
    return struct.pack(">d", value).hex()


def _json(text: str) -> Any:
    return json.loads(text, parse_float=Decimal, parse_int=Decimal)


TEXT = ("CAST({} AS CHAR)", "{}::text", _same, _same)
_UTF8 = "upper(encode(convert_to({}, 'UTF8'), 'hex'))"
FORMS: dict[str, Form] = {
    "float": ("CAST({} AS DOUBLE)", "encode(float8send({}::float8), 'hex')", _double, _same),
    "double": ("CAST({} AS DOUBLE)", "encode(float8send({}), 'hex')", _double, _same),
    "bit": ("CAST({} + 0 AS CHAR)", "{}::text", int, lambda text: int(text, 2)),
    "year": ("CAST({} AS CHAR)", "{}::text", int, int),
    "datetime": ("DATE_FORMAT({}, '%%Y-%%m-%%d %%H:%%i:%%s.%%f')", "to_char({}, 'YYYY-MM-DD HH24:MI:SS.US')", _same,
        _same),
    "timestamp": ("DATE_FORMAT({}, '%%Y-%%m-%%d %%H:%%i:%%s.%%f')", "to_char({}, 'YYYY-MM-DD HH24:MI:SS.US')", _same,
        _same),
    "time": ("CAST({} AS CHAR)", "(extract(epoch FROM {}) * 1000000)::numeric(30)::text", _micros, int),
    "json": ("CAST({} AS CHAR)", "{}::text", _json, _json),
    **dict.fromkeys(("binary", "varbinary", "longblob", "geometry", "vector"),
        ("HEX({})", "upper(encode({}, 'hex'))", _same, _same)),
    **dict.fromkeys(("varchar", "char", "longtext", "enum", "set"),
        ("HEX(CONVERT({} USING utf8mb4))", _UTF8, _same, _same)),
}  # fmt: skip


def rows(server: Any, table: str, types: dict[str, str], *, mysql: bool) -> list[tuple[Any, ...]]:
    """All rows, in one form. ``types``: name -> declared type at the source. Dates that no calendar has are None."""
    quote = "`{}`" if mysql else '"{}"'
    forms = [FORMS.get(kind.partition("(")[0].partition(" ")[0], TEXT) for kind in types.values()]
    asked = []
    for name, (kind, form) in zip(types, zip(types.values(), forms, strict=True), strict=True):
        column = quote.format(name)
        sql = form[0 if mysql else 1].replace("{}", column).replace("%%", "%")
        if mysql and kind.startswith(("date", "timestamp")):
            sql = (
                f"IF(DAYNAME({column}) IS NULL OR CAST({column} AS CHAR) LIKE '0000%' OR DAY(LAST_DAY({column})) < "
                f"DAY({column}), NULL, {sql})"
            )
        asked.append(sql)
    found = server.execute(f"SELECT {', '.join(asked)} FROM {table}")
    made = [
        tuple(None if value is None else form[2 if mysql else 3](value) for form, value in zip(forms, row, strict=True))
        for row in found
    ]
    return sorted(made, key=repr)
