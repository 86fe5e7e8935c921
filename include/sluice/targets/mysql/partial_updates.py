"""Rows of which only some columns are known (the source logs ``binlog_row_image`` MINIMAL or NOBLOB).

* A row that keeps its key: ``UPDATE`` of exactly the known columns. Such a row has to exist, unless a dump is to copy
  it.
* A new row, from before its table had all of its columns, gets the target's defaults.
* A row that moved to another key, or whose unique values change: the other columns are read (and locked) first, as SQL
  text that the server itself makes, so that no value passes through Python's types; then the row is deleted and
  inserted whole.

Reading before writing makes a repeat differ, so the caller does all of a table in one transaction that also notes the
batch.
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
from sluice.model.tables import quoted, quoted_table
from sluice.mysql.column_types import Brackets, Literal, find_type
from sluice.targets.mysql import documents, labelled, literals
from sluice.targets.mysql.statements import Absent, Dialect, Statement, on_duplicate
from sluice.targets.sql.incomplete_rows import IncompleteRows
from sluice.targets.sql.rows import key_fields, sent_fields, target_type
from sluice.targets.sql.tables import TargetTable


@dataclass(frozen=True, slots=True)
class WholeRow:
    """A row's ``values`` as SQL, ``(a, b, …)``; ``lax``: see :class:`Statement`."""

    values: str
    lax: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PartialRows(IncompleteRows):
    """Rows that lack columns, as statements."""

    def whole(self, cursor: Any) -> list[WholeRow]:
        """Return each row that leaves its key, completed with the target's values of missing columns. Locks the rows.

        Raises LoadError.
        """
        fields = sent_fields(self.rows.schema, self.table)
        leaving, lacks = self.rows.filter(pa.array(self.away)), self.lacks[self.away]
        texts, zeros = _texts(fields, leaving), _zeros(fields, leaving)
        conditions = _conditions(self.table, self.origins)
        fresh = self.fresh
        whole_rows = []
        for row in range(leaving.num_rows):
            absent = [index for index in range(len(fields)) if lacks[row, index]]
            filled: Sequence[str] = ()
            if absent and fresh[row]:  # inserted before its table had these columns
                filled = ["DEFAULT"] * len(absent)
            elif absent:
                select_list = ", ".join(_read(fields[index][0], quoted(fields[index][1])) for index in absent)
                cursor.execute(
                    f"SELECT {select_list} FROM {quoted_table(self.table.table)} WHERE {conditions[row]} FOR UPDATE"
                )
                read = cursor.fetchone()
                if read is None:
                    if not self.table.being_copied:
                        raise _absent(self.table, conditions[row])
                    continue
                filled = [_as_literal(fields[index][0], value) for index, value in zip(absent, read, strict=True)]
            rest = dict(zip(absent, filled, strict=True))
            values = [rest[index] if index in rest else texts[index][row] for index in range(len(fields))]
            lax = [
                name
                for index, (field, name) in enumerate(fields)
                if (_is_zero(field, rest[index]) if index in rest else zeros[index][row])
            ]
            whole_rows.append(WholeRow(f"({','.join(values)})", tuple(lax)))
        return whole_rows

    def update(self) -> Iterator[Statement]:
        """Write what is known of the rows that stay. Each has to be there."""
        fields = sent_fields(self.rows.schema, self.table)
        stay, lacks = self.rows.filter(pa.array(~self.away)), self.lacks[~self.away]
        texts, conditions, zeros = _texts(fields, stay), _conditions(self.table, stay), _zeros(fields, stay)
        key = {name.casefold() for name in self.table.key}
        table = quoted_table(self.table.table)
        clocks = [
            name for _, name in fields if name in self.table.clocks
        ]  # the source's value stays, whatever the time of the load
        for row in range(stay.num_rows):
            present = [i for i, (_, name) in enumerate(fields) if not lacks[row, i] and name.casefold() not in key]
            if not present:
                continue
            written = {fields[i][1] for i in present}
            settings = ", ".join(
                [f"{quoted(fields[i][1])} = {texts[i][row]}" for i in present]
                + [f"{quoted(name)} = {quoted(name)}" for name in clocks if name not in written]
            )
            query = f"SELECT 1 FROM {table} WHERE {conditions[row]}"
            yield Statement(
                f"UPDATE {table} SET {settings} WHERE {conditions[row]}".encode(),
                1,
                tuple(fields[i][1] for i in present if zeros[i][row]),
                self.table.computed,
                where=str(self.table.table),
                absent=None if self.table.being_copied else Absent(query, _absent(self.table, conditions[row])),
            )


def insert(table: TargetTable, schema: pa.Schema, values: Iterable[WholeRow], dialect: Dialect) -> Iterator[Statement]:
    """Yield INSERTs of rows that :meth:`PartialRows.whole` completed."""
    fields = sent_fields(schema, table)
    names = ", ".join(quoted(name) for _, name in fields)
    head = f"INSERT INTO {quoted_table(table.table)} ({names}) VALUES "
    tail = on_duplicate(fields, dialect)
    for value in values:
        yield Statement(f"{head}{value.values}{tail}".encode(), 1, value.lax, table.computed)


def _texts(fields: Sequence[tuple[pa.Field, str]], rows: pa.Table) -> list[list[str]]:
    return [pc.fill_null(literals.literals(f, rows[f.name].combine_chunks()), "NULL").to_pylist() for f, _ in fields]


def _zeros(fields: Sequence[tuple[pa.Field, str]], rows: pa.Table) -> list[np.ndarray[Any, Any]]:
    return [literals.enum_errors(f, rows[f.name].combine_chunks()) for f, _ in fields]


def _conditions(table: TargetTable, rows: pa.Table) -> list[str]:
    parts = key_fields(rows.schema, table)
    values = [literals.literals(f, rows[f.name].combine_chunks(), comparing=True).to_pylist() for f, _ in parts]
    return [
        " AND ".join(f"{quoted(name)} = {values[i][row]}" for i, (_, name) in enumerate(parts))
        for row in range(rows.num_rows)
    ]


def _absent(table: TargetTable, condition: str) -> LoadError:
    return LoadError(
        f"the target has no row of {table.table} with {condition}, but the log only contains the changed columns of "
        "this row",
        where=str(table.table),
        hint="`sluice dump start PIPELINE --table SCHEMA.TABLE` (the source's name of it) copies the table anew, and "
        "while it does, the load goes on; whole rows make up for a missing one by themselves: binlog_row_image = "
        "FULL, send: rows",
    )


def _read(field: pa.Field, column: str) -> str:
    """Return SQL for the value of a column as text, which :func:`_as_literal` turns into an SQL literal."""
    target = target_type(field).lower()
    row = find_type(target or literals.sql_type(field))
    literal = row.literal if row is not None else None
    if labelled.is_labelled(target) or (row is not None and row.brackets is Brackets.BITS):
        return f"CAST({column} + 0 AS CHAR)"
    if literal in {Literal.NUMBER, Literal.DECIMAL} or documents.is_json(target):
        return f"CAST({column} AS CHAR)"
    if literal is Literal.FLOAT:
        return f"IF({column} = 0, {column}, {column} + 0e0)"  # a FLOAT is printed with 6 digits; an addition loses the sign of -0  # noqa: E501
    if literal is Literal.TEMPORAL:
        return f"CONCAT('''', CAST({column} AS CHAR), '''')"
    if pa.types.is_binary(field.type) or literal is Literal.BYTES:
        return f"CONCAT('x''', HEX({column}), '''')"
    return f"CONCAT('_utf8mb4 x''', HEX(CONVERT({column} USING utf8mb4)), '''')"


def _as_literal(field: pa.Field, read: Any) -> str:
    if read is None:
        return "NULL"
    text = read.decode() if isinstance(read, bytes) else str(read)
    target = (target_type(field) or literals.sql_type(field)).lower()
    if documents.is_json(target):
        return documents.literal(text)
    if target.startswith(("float", "double")):
        kind = pa.float32() if target.startswith("float") else pa.float64()
        return str(literals.literals(field, pa.array([float(text)], kind))[0].as_py())
    return text


def _is_zero(field: pa.Field, literal: str) -> bool:
    """Return True if the target holds an ENUM's error value."""
    return literal == "0" and target_type(field)[:5].lower() == "enum("
