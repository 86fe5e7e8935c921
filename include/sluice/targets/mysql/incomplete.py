"""Rows of which only some columns are known (the source logs ``binlog_row_image`` MINIMAL or NOBLOB).

* A row that stays where it is: ``UPDATE`` of exactly the columns that are known. There has to be such a row, unless a dump is to bring it.
* A new row, from before its table had all of its columns, gets the target's defaults.
* A row that moved to another key, or whose unique values change: the other columns are read (and locked) first, as SQL text that the server itself
  makes, so that no value passes through a type of ours; then the row leaves its old place and comes back whole.

Reading before writing makes a repeat differ, so the caller does all of a table in one transaction that also notes the batch.
"""

# ruff: noqa: S608 - identifiers are quoted, values are literals made by literals.py or by the server

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.errors import LoadError
from sluice.model.tables import member, quoted, quoted_table
from sluice.targets.base import TargetTable
from sluice.targets.mysql import literals
from sluice.targets.mysql.statements import Dialect, Statement, sent_fields, user_fields

_NUMBERS = ("tinyint", "smallint", "mediumint", "int", "bigint", "decimal", "year")
_TEMPORAL = ("date", "time", "datetime", "timestamp")


def missing(rows: pa.Table, table: TargetTable) -> np.ndarray[Any, Any]:
    """bool[rows, sent columns]: the log did not bring this column of this row."""
    users, sent = user_fields(rows.schema), sent_fields(rows.schema, table)
    if "_present" not in rows.schema.names or not rows.num_rows:
        return np.zeros((rows.num_rows, len(sent)), bool)
    size = (len(users) + 7) >> 3
    full = b"\xff" * size
    data = b"".join((value or full)[:size] for value in rows["_present"].to_pylist())
    known = np.unpackbits(np.frombuffer(data, np.uint8).reshape(-1, size), axis=1, bitorder="little").astype(bool)
    place = {field.name: i for i, field in enumerate(users)}
    return ~known[:, [place[field.name] for field, _ in sent]]


def may_lack(rows: pa.Table) -> bool:
    """True if columns of some rows may be missing, by what the rows' columns are."""
    return "_present" in rows.schema.names


@dataclass(frozen=True, slots=True)
class PartialRows:
    """``rows`` lack what ``lacks`` (bool[rows, sent columns]) says; ``away``: they leave their place, see the module."""

    table: TargetTable
    rows: pa.Table
    lacks: np.ndarray[Any, Any]
    away: np.ndarray[Any, Any]

    @classmethod
    def of(cls, table: TargetTable, live: pa.Table, lacks: np.ndarray[Any, Any]) -> PartialRows:
        """``live``: rows that lack something."""
        away = pc.equal(live["_op"], "i").to_numpy(zero_copy_only=False)
        names = [name for _, name in sent_fields(live.schema, table)]
        unique = {column.casefold() for key in table.unique_keys for column in key}
        for index, name in enumerate(names):
            if name.casefold() in unique:
                away = away | ~lacks[:, index]
        return cls(table, live, lacks, away)

    @property
    def origins(self) -> pa.Table:
        """The keys under which the target holds the rows that leave."""
        leaving = self.rows.filter(pa.array(self.away))
        before = leaving["_before"].combine_chunks()
        columns = {}
        for field in user_fields(leaving.schema):
            old = member(before, field.name)
            columns[field.name] = pc.coalesce(old, leaving[field.name].combine_chunks())
        return pa.table(columns, schema=pa.schema(user_fields(leaving.schema)))

    def whole(self, cursor: Any) -> list[str]:
        """``(a, b, …)`` of each row that leaves, with what the target has of the columns that are missing. Locks the rows. Raises LoadError."""
        fields = sent_fields(self.rows.schema, self.table)
        leaving, lacks = self.rows.filter(pa.array(self.away)), self.lacks[self.away]
        texts = _texts(fields, leaving)
        conditions = _conditions(self.table, self.origins)
        fresh = self._fresh(leaving)
        values = []
        for row in range(leaving.num_rows):
            absent = [index for index in range(len(fields)) if lacks[row, index]]
            found: Sequence[str] | None = ()
            if absent and fresh[row]:  # inserted before its table had these columns
                found = ["DEFAULT"] * len(absent)
            elif absent:
                wanted = ", ".join(_as_literal(fields[index][0], quoted(fields[index][1])) for index in absent)
                cursor.execute(
                    f"SELECT {wanted} FROM {quoted_table(self.table.table)} WHERE {conditions[row]} FOR UPDATE"
                )
                found = cursor.fetchone()
                if found is None:
                    if not self.table.being_copied:
                        raise _absent(self.table, conditions[row])
                    continue
            rest = dict(zip(absent, found or (), strict=True))
            values.append(
                "(" + ",".join(str(rest[i]) if i in rest else texts[i][row] for i in range(len(fields))) + ")"
            )
        return values

    def _fresh(self, leaving: pa.Table) -> list[bool]:
        """Which of them are new rows: nothing was there before, or another row under the same key."""
        before = leaving["_before"].combine_chunks()
        same = pc.equal(leaving["_op"].combine_chunks(), "i")
        key = {name.casefold() for name in self.table.key}
        for field, name in sent_fields(leaving.schema, self.table):
            if name.casefold() in key:
                same = pc.and_(same, pc.equal(member(before, field.name), leaving[field.name].combine_chunks()))
        fresh: list[bool] = pc.or_(pc.is_null(before), pc.fill_null(same, False)).to_pylist()
        return fresh

    def update(self, cursor: Any) -> int:
        """Write what is known of the rows that stay. Returns the number of statements. Raises LoadError if the target lacks a row."""
        fields = sent_fields(self.rows.schema, self.table)
        stay, lacks = self.rows.filter(pa.array(~self.away)), self.lacks[~self.away]
        texts, conditions = _texts(fields, stay), _conditions(self.table, stay)
        key = {name.casefold() for name in self.table.key}
        count = 0
        for row in range(stay.num_rows):
            settings = [
                f"{quoted(name)} = {texts[i][row]}"
                for i, (_, name) in enumerate(fields)
                if not lacks[row, i] and name.casefold() not in key
            ]
            if not settings:
                continue
            count += 1
            where = f"{quoted_table(self.table.table)} SET {', '.join(settings)} WHERE {conditions[row]}"
            if not cursor.execute(f"UPDATE {where}"):
                cursor.execute(f"SELECT 1 FROM {quoted_table(self.table.table)} WHERE {conditions[row]}")
                if cursor.fetchone() is None and not self.table.being_copied:
                    raise _absent(self.table, conditions[row])
        return count


def insert(table: TargetTable, schema: pa.Schema, values: Iterable[str], dialect: Dialect) -> Iterator[Statement]:
    """Put rows that :meth:`PartialRows.whole` made whole where they belong."""
    names = [quoted(name) for _, name in sent_fields(schema, table)]
    head = f"INSERT INTO {quoted_table(table.table)} ({', '.join(names)}) VALUES "
    if dialect.row_alias:
        tail = " AS _n ON DUPLICATE KEY UPDATE " + ", ".join(f"{name} = _n.{name}" for name in names)
    else:
        tail = " ON DUPLICATE KEY UPDATE " + ", ".join(f"{name} = VALUES({name})" for name in names)
    for value in values:
        yield Statement(f"{head}{value}{tail}".encode(), 1)


def _texts(fields: Sequence[tuple[pa.Field, str]], rows: pa.Table) -> list[list[str]]:
    return [pc.fill_null(literals.literals(f, rows[f.name].combine_chunks()), "NULL").to_pylist() for f, _ in fields]


def _conditions(table: TargetTable, rows: pa.Table) -> list[str]:
    spelling = {name.casefold(): (field, name) for field, name in sent_fields(rows.schema, table)}
    parts = [spelling[name.casefold()] for name in table.key]
    values = [literals.literals(f, rows[f.name].combine_chunks(), comparing=True).to_pylist() for f, _ in parts]
    return [
        " AND ".join(f"{quoted(name)} = {values[i][row]}" for i, (_, name) in enumerate(parts))
        for row in range(rows.num_rows)
    ]


def _absent(table: TargetTable, condition: str) -> LoadError:
    return LoadError(
        f"the target has no row of {table.table} with {condition}, of which only the columns that changed have come",
        where=str(table.table),
        hint="`sluice dump start PIPELINE --table SCHEMA.TABLE` (the source's name of it) copies the table anew, and while it does, the load "
        "goes on; whole rows make up for a missing one by themselves: binlog_row_image = FULL, send: rows",
    )


def _as_literal(field: pa.Field, column: str) -> str:
    """SQL that gives the value of a column as an SQL literal."""
    declared = literals.sql_type(field).split("(")[0].split(" ")[0]
    if pa.types.is_binary(field.type):
        return f"IFNULL(CONCAT('x''', HEX({column}), ''''), 'NULL')"
    if declared in {"float", "double", "bit"}:
        return f"IFNULL(CAST({column} + 0{'e0' if declared != 'bit' else ''} AS CHAR), 'NULL')"
    if declared in _NUMBERS:
        return f"IFNULL(CAST({column} AS CHAR), 'NULL')"
    if declared in _TEMPORAL:
        return f"QUOTE(CAST({column} AS CHAR))"
    return f"IFNULL(CONCAT('_utf8mb4 x''', HEX(CONVERT({column} USING utf8mb4)), ''''), 'NULL')"
