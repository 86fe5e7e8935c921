"""A ClickHouse engine for the contract suite: rows are read by statements of their own."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import os
import struct
from base64 import b64decode
from decimal import Decimal
from typing import Any

from sluice.config.connections import parse_connection
from sluice.model.column_types import ColumnKind, ColumnType
from sluice.model.tables import Column, TableId, TableSchema
from sluice.targets.clickhouse.target import ClickHouseTarget
from sluice.targets.port import Input, Target
from sluice.testing.targets import Bench, Received
from tests.support.benches.documents import BYTES, make_missing, types_of

_numbers = itertools.count()
_WHOLE = frozenset({
    ColumnKind.TINYINT,
    ColumnKind.SMALLINT,
    ColumnKind.MEDIUMINT,
    ColumnKind.INT,
    ColumnKind.BIGINT,
    ColumnKind.YEAR,
    ColumnKind.BIT,
})
_DATES = {ColumnKind.DATE: dt.date, ColumnKind.DATETIME: dt.datetime, ColumnKind.TIMESTAMP: dt.datetime}


def _read(made: ColumnType, value: str | None, *, document: bool = False) -> Any:
    """A value as Python has it, from its text as hexadecimal digits, or from a document."""
    if value is None:
        return None
    if made.kind in BYTES:
        return b64decode(value) if document else bytes.fromhex(value)
    text = str(value) if document else bytes.fromhex(value).decode()
    if made.kind in _WHOLE:
        return int(text)
    if made.kind in {ColumnKind.FLOAT, ColumnKind.DOUBLE}:
        return float(text) if made.kind is ColumnKind.DOUBLE else struct.unpack("f", struct.pack("f", float(text)))[0]
    if made.kind is ColumnKind.DECIMAL:
        return Decimal(text)
    if made.kind in _DATES:
        return _DATES[made.kind].fromisoformat(text)
    if made.kind is ColumnKind.TIME and not document:
        return dt.timedelta(microseconds=int(text))
    return text


class ClickHouseBench(Bench):
    """A database of its own. ``email`` has a constraint of the table, as the contract suite wants it."""

    def __init__(self, server: Any, changes: str = "latest", options: dict[str, Any] | None = None) -> None:
        self.server, self.changes = server, Input(changes)
        self.appends = self.changes is Input.CHANGES
        self.schema = f"s{os.getpid()}x{next(_numbers)}"
        self.options = {"checkpoint_database": f"{self.schema}_c", **(options or {})}
        self.connection = parse_connection("target", server.connection_json())
        self.secret = server.password
        self.made: dict[str, TableSchema] = {}

    def target(self, *, pipeline: str = "p", name: str = "copy", **config: Any) -> Target:
        options = {**self.options, **config.pop("options", {})}
        given = self.config("clickhouse", name=name, options=options, **config)
        return ClickHouseTarget(given, self.connection, pipeline)

    def create_table(self, table: TableSchema) -> None:
        make_missing(self, table)
        self.made[str(table.table)] = table
        if not self.appends and "email" in [column.name for column in table.columns]:
            self.server.query(
                f"ALTER TABLE `{table.table.schema}`.`{table.table.table}` ADD CONSTRAINT short CHECK lengthUTF8(ifNull(email, '')) <= 80"
            )

    def select(self, what: str, table: TableId, *, final: bool = True) -> list[Any]:
        """Return rows of a table, as JSON."""
        return self.server.query(
            f"SELECT {what} FROM `{table.schema}`.`{table.table}`{' FINAL' if final else ''} FORMAT JSONCompactEachRow"
        )

    def rows(self, table: TableSchema) -> list[tuple[Any, ...]]:
        types = types_of(table)
        what = ", ".join(f"hex(CAST(`{name}`, 'Nullable(String)'))" for name in types)
        found = self.select(what, table.table)
        return [tuple(_read(made, value) for made, value in zip(types.values(), row, strict=True)) for row in found]

    def columns(self, table: TableId) -> list[str] | None:
        found = self.server.query(
            f"SELECT name FROM system.columns WHERE (database, table) = ('{table.schema}', '{table.table}') "
            "ORDER BY position FORMAT JSONCompactEachRow"
        )
        names = [name for [name] in found if not name.startswith("_sluice_")]
        extra = [name for name in names if name == "extra"]  # a column that came later is after Sluice's own
        return [name for name in names if name != "extra"] + extra or None

    def received(self) -> list[Received]:
        found = []
        for name, table in self.made.items():
            types = types_of(table)
            users = ", ".join(f"hex(CAST(`{column}`, 'Nullable(String)'))" for column in types)
            ordered = f"`{table.table.schema}`.`{table.table.table}` ORDER BY _batch, _seq, _row, _part"
            rows = self.server.query(
                f"SELECT _op, _batch, _seq, _row, _part, _before, {users} FROM {ordered} FORMAT JSONCompactEachRow"
            )
            for op, batch, seq, row, part, before, *values in rows:
                image = {
                    column: _read(made, value) for (column, made), value in zip(types.items(), values, strict=True)
                }
                old = json.loads(before) if before is not None else None
                was = old and {column: _read(made, old[column], document=True) for column, made in types.items()}
                found.append(
                    Received(f"{name}/{batch}/{seq}/{row}/{part}", name, op, was, None if op == "d" else image)
                )
        return found

    def stored(self, column: Column, value: Any) -> Any:
        """A TIMESTAMP is read without its zone."""
        return value
