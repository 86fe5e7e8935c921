"""SQL on rows in memory: a statement of a test runs in SQLite on a copy of the rows, which says what it changed.

It is for statements that any SQL server does alike. What depends on MySQL (collations, its conversions, its functions)
belongs on a real server: SQLite refuses most of it.
"""

from __future__ import annotations

import datetime as dt
import re
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from sluice.model.column_types import ColumnKind
from sluice.model.tables import Column, TableId, quoted, quoted_table

Row = Mapping[str, Any]
Change = tuple[TableId, Row | None, Row | None]
"""A table, its row before and after."""
K = ColumnKind
_INTEGERS = {K.TINYINT, K.SMALLINT, K.MEDIUMINT, K.INT, K.BIGINT, K.YEAR, K.BIT}
_BYTES = {K.BINARY, K.VARBINARY, K.BLOB, K.GEOMETRY, K.VECTOR}


@dataclass(frozen=True)
class Rows:
    """A table for a statement.

    ``columns``: SQLite's words for each; ``key``: its primary key; ``unique``: keys besides it.
    """

    columns: Mapping[str, str]
    key: Sequence[str]
    rows: Iterable[Row]
    unique: Sequence[Sequence[str]] = ()


def run(
    statement: str,
    values: Sequence[Any],
    tables: Mapping[TableId, Rows],
    schema: str,
    typed: Callable[[TableId, str, Any], Any],
) -> tuple[list[tuple[Any, ...]], list[Change]]:
    """The rows that a statement returns, and what it changed, in its order. Raises sqlite3.Error.

    ``typed``: the value of a column as the store keeps it, of what SQLite has.
    """
    changes: list[Change] = []
    names = {table: list(rows.columns) for table, rows in tables.items()}

    def note(number: int, op: str, *images: Any) -> None:
        table = list(tables)[number]
        width = len(names[table])
        before, after = (
            {name: typed(table, name, value) for name, value in zip(names[table], image, strict=True)}
            for image in (images[:width], images[width:])
        )
        if op != "u" or before != after:  # the log of a server has no update that changes nothing
            changes.append((table, None if op == "i" else before, None if op == "d" else after))

    with closing(sqlite3.connect(":memory:", isolation_level=None)) as base:
        for name, function in _FUNCTIONS.items():
            base.create_function(name, -1, function)
        base.create_function("_note", -1, note)
        base.execute("PRAGMA recursive_triggers = ON")  # a REPLACE deletes the old row
        for place in dict.fromkeys([schema, *(table.schema for table in tables)]):  # the first is looked at first
            base.execute(f"ATTACH ':memory:' AS {quoted(place)}")
        for number, (table, rows) in enumerate(tables.items()):
            _fill(base, number, table, rows)
        found = base.execute(_words(statement), [plain(value) for value in values]).fetchall()
    return found, changes


def _fill(base: sqlite3.Connection, number: int, table: TableId, rows: Rows) -> None:
    keys = [f"PRIMARY KEY ({', '.join(map(quoted, rows.key))})"] if rows.key else []
    keys += [f"UNIQUE ({', '.join(map(quoted, names))})" for names in rows.unique]
    columns = [f"{quoted(name)} {words}" for name, words in rows.columns.items()]
    name = quoted_table(table)
    base.execute(f"CREATE TABLE {name} ({', '.join([*columns, *keys])})")
    marks = ", ".join("?" * len(rows.columns))
    base.executemany(
        f"INSERT INTO {name} VALUES ({marks})",
        ([plain(row.get(column)) for column in rows.columns] for row in rows.rows),
    )
    old, new = (", ".join(f"{side}.{quoted(column)}" for column in rows.columns) for side in ("OLD", "NEW"))
    for op, event, images in (
        ("i", "INSERT", f"{new}, {new}"),
        ("u", "UPDATE", f"{old}, {new}"),
        ("d", "DELETE", f"{old}, {old}"),
    ):
        base.execute(
            f"CREATE TRIGGER {quoted(table.schema)}.{quoted(f'_{number}{op}')} AFTER {event} ON {quoted(table.table)} "
            f"BEGIN SELECT _note({number}, '{op}', {images}); END"
        )


def _words(statement: str) -> str:
    """A statement in words that SQLite knows."""
    text = statement.strip().rstrip(";").replace("%s", "?")
    text = re.sub(r"(?<![\w.'])\d{19,}(?![\w.'])", r"'\g<0>'", text)  # its numbers have 63 bits
    return re.sub(r"(?i)\bVALUES\s*\(\s*\)", "DEFAULT VALUES", text)


def words_of(column: Column, default: Any = None) -> str:
    """A column for SQLite: its affinity, NOT NULL, its default."""
    wide = column.kind is K.BIGINT and column.unsigned
    affinity = (
        "INTEGER" if column.kind in _INTEGERS and not wide else "REAL" if column.kind in {K.FLOAT, K.DOUBLE} else ""
    )
    if column.kind in {K.CHAR, K.VARCHAR, K.TEXT, K.JSON, K.ENUM, K.SET}:
        affinity = "TEXT" if column.kind not in {K.ENUM, K.SET} else ""
    said = "" if column.nullable else " NOT NULL"
    if isinstance(default, str):
        default = re.sub(r"(?i)CURRENT_TIMESTAMP\(\d\)", "CURRENT_TIMESTAMP", default)
    return f"{affinity}{said}" + (f" DEFAULT {default}" if default is not None else "")


def plain(value: Any) -> Any:
    """A value as SQLite keeps it."""
    if isinstance(value, Decimal) or (isinstance(value, int) and value >= 2**63):
        return str(value)
    if isinstance(value, dt.datetime):
        return value.replace(tzinfo=None).isoformat(" ")
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, dt.timedelta):
        return _clock(value)
    return value


def typed_as(column: Column, value: Any) -> Any:
    """What SQLite has, as a value of the column: the Python type that its Arrow type has."""
    if value is None:
        return None
    kind = column.kind
    if kind in _INTEGERS:
        return int(value)
    if kind is K.DECIMAL:
        return Decimal(str(value)).quantize(Decimal(1).scaleb(-column.scale))
    if kind in {K.FLOAT, K.DOUBLE}:
        return float(value)
    if kind in _BYTES:
        return value if isinstance(value, bytes) else str(value).encode()
    if kind is K.DATE:
        return dt.date.fromisoformat(value)
    if kind in {K.DATETIME, K.TIMESTAMP}:
        found = dt.datetime.fromisoformat(value)
        return found.replace(tzinfo=dt.UTC) if kind is K.TIMESTAMP else found
    if kind is K.TIME:
        return _span(value)
    if kind is K.ENUM and isinstance(value, int):
        return column.labels[value - 1]
    return str(value)


def _clock(value: dt.timedelta) -> str:
    micros = abs(value) // dt.timedelta(microseconds=1)
    seconds, rest = divmod(micros, 1_000_000)
    text = f"{'-' if value < dt.timedelta(0) else ''}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return f"{text}.{rest:06d}" if rest else text


def _span(text: str) -> dt.timedelta:
    sign, _, clock = ("-", "", text[1:]) if text.startswith("-") else ("", "", text)
    hours, minutes, seconds = clock.split(":")
    found = dt.timedelta(hours=int(hours), minutes=int(minutes), microseconds=round(Decimal(seconds) * 1_000_000))
    return -found if sign else found


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "CONCAT": lambda *parts: None if None in parts else "".join(map(str, parts)),
    "IF": lambda said, yes, no: yes if said else no,
    "REPEAT": lambda text, times: str(text) * times,
    "LEFT": lambda text, length: str(text)[:length],
    "NOW": lambda *_: dt.datetime.now(dt.UTC).replace(tzinfo=None, microsecond=0).isoformat(" "),
    "UNHEX": bytes.fromhex,
}

__all__ = ["Change", "Rows", "plain", "run", "typed_as", "words_of"]
