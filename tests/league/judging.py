"""The comparison of what a tool delivered with what the server answers: the outcome of a case."""

from __future__ import annotations

import datetime as dt
import json
import math
import re
import struct
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Any

from tests.league.servers import Table


class Outcome(StrEnum):
    """The outcome of a case, in the words of the table."""

    RIGHT = "right"
    WRONG = "wrong"
    LOST = "lost"
    DOUBLED = "doubled"
    NAMED = "stops, named"
    UNNAMED = "stops, not named"
    NOT_OFFERED = "not offered"
    DOCUMENTED = "differs as documented"


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a row as a tool handed it over: ``op`` is i, u, d or t (emptied), the images are column -> value."""

    table: str
    op: str
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None


def judge(truth: Mapping[str, Table], delivered: Mapping[str, Sequence[Mapping[str, Any]]]) -> tuple[Outcome, str]:
    """Compare what the source answers with what was delivered; return the outcome, and what differs."""
    found = Counter[Outcome]()
    told = []
    for name in sorted(truth.keys() | delivered.keys()):
        table = truth.get(name)
        if table is None:
            found[Outcome.WRONG] += 1
            told.append(f"{name}: the source has no such table")
            continue
        if name not in delivered:
            if table.rows:
                found[Outcome.LOST] += 1
                told.append(f"{name}: no such table was delivered")
            continue
        outcome, difference = _compare(table, delivered[name])
        if difference:
            found[outcome] += 1
            told.append(f"{name}: {difference}")
    for outcome in (Outcome.WRONG, Outcome.LOST, Outcome.DOUBLED):
        if found[outcome]:
            return outcome, "; ".join(told)[:600]
    return Outcome.RIGHT, ""


def _compare(table: Table, rows: Sequence[Mapping[str, Any]]) -> tuple[Outcome, str]:
    names = [
        name for name in table.types if rows == [] or any(name in row for row in rows) or name not in table.generated
    ]
    sides = [
        Counter(tuple(canonical(table.types[name], row.get(name, "<not there>")) for name in names) for row in some)
        for some in (table.rows, rows)
    ]
    missing, extra = sides[0] - sides[1], sides[1] - sides[0]
    more = sorted({name for row in rows for name in row} - set(table.types))
    if more:
        return Outcome.WRONG, f"columns that the source does not have: {more}"
    if not missing and not extra:
        return Outcome.RIGHT, ""
    text = f"the server has {_shown(missing)}, delivered was {_shown(extra)}" if extra else f"without {_shown(missing)}"
    if missing and extra:
        return Outcome.WRONG, text
    if missing:
        return Outcome.LOST, text
    repeated = all(row in sides[0] for row in extra)
    return (Outcome.DOUBLED if repeated else Outcome.WRONG), f"rows that the server does not have: {_shown(extra)}"


def _shown(rows: Counter[Any]) -> str:
    return (
        ", ".join(repr(row) if len(repr(row)) < 160 else repr(row)[:160] + "…" for row in list(rows)[:2]) or "nothing"
    )


def replay(
    truth: Mapping[str, Table], before: Mapping[str, Table], changes: Iterable[Change]
) -> dict[str, list[dict[str, Any]]]:
    """Apply what a stream handed over to the rows of before it, by key where the table has one.

    A change of a row that is not there leaves its image as a row, so that it is seen as one.
    """
    state = {name: _Rows(truth.get(name) or table, table.rows) for name, table in before.items()}
    for change in changes:
        if table := truth.get(change.table) or before.get(change.table):
            state.setdefault(change.table, _Rows(table, ())).take(change)
    return {name: rows.all() for name, rows in state.items() if name in truth}


def filled(
    truth: Mapping[str, Table], delivered: Mapping[str, Sequence[Mapping[str, Any]]]
) -> dict[str, list[dict[str, Any]]]:
    """Give rows of a stream what a statement did to them since: columns that came later, and none that are gone."""
    found: dict[str, list[dict[str, Any]]] = {}
    for name, table in truth.items():
        there = _Rows(table, table.rows)
        for row in delivered.get(name, ()):
            own = {column: row[column] for column in row.keys() & table.types}
            found.setdefault(name, []).append({**there.like(row), **own})
    return found


class _Rows:
    """Rows of a table by its key, or by all that they hold."""

    def __init__(self, table: Table, rows: Iterable[Mapping[str, Any]]) -> None:
        self._table, self._rows = table, list[tuple[Any, dict[str, Any]]]()
        self._by_key: dict[Any, dict[str, Any]] | None = {} if table.key else None
        for row in rows:
            self._put(dict(row))

    def all(self) -> list[dict[str, Any]]:
        return [row for _, row in self._rows] if self._by_key is None else list(self._by_key.values())

    def like(self, image: Mapping[str, Any]) -> dict[str, Any]:
        return (self._by_key or {}).get(self._name(image), {})

    def take(self, change: Change) -> None:
        if change.op == "t":
            self._rows, self._by_key = [], None if self._by_key is None else {}
            return
        old = self._pop(change.before or change.after or {}) if change.op != "i" else None
        if change.op != "d":
            self._put({**(old or {}), **(change.after or {})})

    def _put(self, row: dict[str, Any]) -> None:
        if self._by_key is None:
            self._rows.append((self._name(row), row))
        else:
            self._by_key[self._name(row)] = {**self._by_key.get(self._name(row), {}), **row}

    def _pop(self, image: Mapping[str, Any]) -> dict[str, Any] | None:
        name = self._name(image)
        if self._by_key is not None:
            if None in name:  # the old row has the columns of another key
                known = {
                    column: canonical(self._table.types[column], value)
                    for column, value in image.items()
                    if value is not None
                }
                name = next((key for key, row in self._by_key.items() if self._has(row, known)), None)
            return self._by_key.pop(name, None)
        at = next((at for at, (other, _) in enumerate(self._rows) if other == name), None)
        return None if at is None else self._rows.pop(at)[1]

    def _has(self, row: Mapping[str, Any], known: Mapping[str, Any]) -> bool:
        return all(canonical(self._table.types[column], row.get(column)) == value for column, value in known.items())

    def _name(self, image: Mapping[str, Any]) -> Any:
        columns = self._table.key or [name for name in self._table.types if name not in self._table.generated]
        return tuple(canonical(self._table.types.get(name, ""), image.get(name)) for name in columns)


def canonical(kind: str, value: Any) -> Any:
    """Return one form of a value, whoever wrote it: equal exactly where the values are.

    ``kind``: the type in the words of the source. A value that is none of that type is returned as it is.
    """
    if value is None or value == "<not there>":
        return value
    word = re.split(r"[ (]", kind, maxsplit=1)[0].lower()
    form = _FORMS.get(word if not kind.endswith("[]") else "[]", _plain)
    try:
        return form(
            value if form in {_bytes, _bits} else _plain(value, kind) if isinstance(value, bytes) else value, kind
        )
    except (ValueError, ArithmeticError, TypeError, AttributeError, struct.error):
        return repr(value)


def _plain(value: Any, kind: str) -> Any:
    if isinstance(value, bytes | bytearray):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            return bytes(value)
    return value if isinstance(value, str) else str(value)


def _integer(value: Any, kind: str) -> Any:
    return int(_plain(value, kind)) if not isinstance(value, bool) else int(value)


def _decimal(value: Any, kind: str) -> Any:
    text = str(value).lower()
    if any(word in text for word in ("nan", "inf")):
        return "nan" if "nan" in text else "-inf" if text.startswith(("-", "neg")) else "inf"
    return tuple(Decimal(text).normalize().as_tuple()) if Decimal(text) else 0


def _real(value: Any, kind: str) -> Any:
    number = float(value)
    if kind.startswith(("float", "real")) and math.isfinite(number):
        [number] = struct.unpack("<f", struct.pack("<f", number))
    return repr(number)


def _bits(value: Any, kind: str) -> Any:
    if value in {"true", "false"}:
        return int(value == "true")
    if isinstance(value, bytes):
        return int.from_bytes(value, "big")
    if isinstance(value, str) and len(value) <= 8 and not set(value) <= {"0", "1"}:
        return int.from_bytes(value.encode("latin1"), "big")
    return int(value, 2) if isinstance(value, str) else int(value)


def _set(value: Any, kind: str) -> Any:
    return frozenset(filter(None, value.split(",") if isinstance(value, str) else value))


def _bytes(value: Any, kind: str) -> Any:
    if kind == "polygon" and value[:1] in {"(", b"("}:
        numbers = re.findall(r"[^\s(),]+", value if isinstance(value, str) else value.decode())
        return tuple(map(repr, map(float, numbers)))
    if kind == "point" and isinstance(value, bytes) and len(value) == 25:
        x, y = struct.unpack("<dd", value[9:])
        return repr(x), repr(y), value[:4]
    if kind == "point" and isinstance(value, str):
        x, y = value.strip("()").split(",")
        return repr(float(x)), repr(float(y)), bytes(4)
    if kind == "bytea" and isinstance(value, str) and value.startswith("\\x"):
        return bytes.fromhex(value[2:])
    return bytes(value) if isinstance(value, bytes | bytearray) else str(value).encode("latin1")


def _json(value: Any, kind: str) -> Any:
    if isinstance(value, str | bytes):
        value = json.loads(value, parse_float=Decimal, parse_int=Decimal)
    return json.dumps(_json_form(value), sort_keys=True)


def _json_form(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {_plain(key, ""): _json_form(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json_form(item) for item in value]
    if isinstance(value, Decimal | float | int) and not isinstance(value, bool):
        return f"number {Decimal(str(value)).normalize() + 0}"
    if isinstance(value, dt.datetime | dt.date | dt.timedelta | bytes):
        return _plain(value, "")
    return value


def _moment(value: Any, kind: str) -> Any:
    text = str(value).replace("T", " ").removesuffix("Z").removesuffix("+00:00").removesuffix("+00")
    if found := re.match(r"-(\d+)(-.*)", text):  # a year before Christ, as ISO 8601 counts them
        text = f"{int(found[1]) + 1:04}{found[2]} BC"
    text = re.sub(r"^(\d+-\d\d-\d\d \d\d:\d\d)(?= BC|$)", r"\1:00", text.replace("+00 BC", " BC"))
    return re.sub(r"\.?0+(?= BC|$)", "", text) if "." in text else text


def _span(value: Any, kind: str) -> Any:
    if isinstance(value, dt.timedelta):
        return value // dt.timedelta(microseconds=1)
    found = re.fullmatch(r"(-?)(\d+):(\d+):(\d+)(?:\.(\d+))?", str(value))
    if found is None:
        return str(value)
    sign, hours, minutes, seconds, fraction = found.groups()
    number = (int(hours) * 3600 + int(minutes) * 60 + int(seconds)) * 10**6 + int((fraction or "0").ljust(6, "0")[:6])
    return -number if sign else number


def _interval(value: Any, kind: str) -> Any:
    numbers = {unit: Decimal(number) for number, unit in re.findall(r"(-?[\d.]+)([YDHMS]|(?<=T)M)", str(value))}
    months = re.search(r"(-?\d+)M(?=.*T|[^T]*$)", str(value).split("T")[0])
    minutes = re.search(r"(-?\d+)M", str(value).partition("T")[2])
    seconds = numbers.get("H", 0) * 3600 + (int(minutes[1]) * 60 if minutes else 0) + numbers.get("S", 0)
    return (
        numbers.get("Y", 0) * 12 + (int(months[1]) if months else 0),
        numbers.get("D", 0),
        seconds.normalize() if seconds else 0,
    )


def _truth(value: Any, kind: str) -> Any:
    return str(value).lower() in {"t", "true", "1"}


_FORMS = {
    **dict.fromkeys(("tinyint", "smallint", "mediumint", "int", "integer", "bigint", "year", "oid"), _integer),
    **dict.fromkeys(("decimal", "numeric"), _decimal),
    **dict.fromkeys(("float", "double", "real"), _real),
    **dict.fromkeys(("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "bytea", "vector", "point", "geometry",
                     "linestring", "polygon", "geomcollection", "geometrycollection", "multipoint"), _bytes),
    **dict.fromkeys(("datetime", "timestamp", "date"), _moment),
    "money": lambda value, kind: _decimal(re.sub("[$,]", "", value), kind),
    "bit": _bits, "set": _set, "time": _span, "json": _json, "jsonb": _json, "boolean": _truth, "interval": _interval,
}  # fmt: skip
