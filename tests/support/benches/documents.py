"""The common part of benches of targets with documents or typed texts: tables, types, dates, and changes in order."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sluice.model.column_types import ColumnKind, ColumnType
from sluice.model.tables import TableSchema
from sluice.targets.rows_in_memory import planned_table
from sluice.testing.targets import Received

BYTES = frozenset({ColumnKind.BINARY, ColumnKind.VARBINARY, ColumnKind.BLOB, ColumnKind.GEOMETRY, ColumnKind.VECTOR})
DATES: dict[ColumnKind, Any] = {
    ColumnKind.DATE: dt.date.fromisoformat,
    ColumnKind.DATETIME: dt.datetime.fromisoformat,
    ColumnKind.TIMESTAMP: dt.datetime.fromisoformat,
}


def make_missing(bench: Any, table: TableSchema) -> None:
    """Make a table by the statements that the target itself proposes."""
    schema = bench.target().schema()
    assert schema is not None
    for finding in schema.compare([planned_table(table)]):
        if finding.absent:
            schema.apply(finding.statement)


def types_of(table: TableSchema) -> dict[str, ColumnType]:
    """Return the type of the values of each column."""
    columns = zip(table.columns, planned_table(table).columns, strict=True)
    return {column.name: planned.value_type for column, planned in columns}


def place_of(document: Any) -> tuple[int, ...]:
    """The place of a change in the log."""
    return tuple(document["_change"][name] for name in ("batch", "seq", "row", "part"))


def changes_of(
    table: TableSchema, documents: Sequence[tuple[str, Any]], read: Callable[[ColumnType, Any], Any]
) -> Iterator[Received]:
    """Changes as they were received, in the log's order, of ids and documents."""
    types = types_of(table)
    for key, row in sorted(documents, key=lambda one: place_of(one[1])):
        op, before = row["_change"]["op"], row["_before"]
        image = {column: read(made, row[column]) for column, made in types.items()}
        was = before and {column: read(made, before[column]) for column, made in types.items()}
        yield Received(key, str(table.table), op, was, None if op == "d" else image)


@contextmanager
def refusing_above(bench: Any, option: str, size: int) -> Iterator[None]:
    """A target with a limit that rows of the suite exceed."""
    kept = dict(bench.options)
    bench.options[option] = size
    try:
        yield
    finally:
        bench.options = kept
