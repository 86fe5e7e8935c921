"""The key that cuts a table into chunks, and the selects that do it."""

from __future__ import annotations

from sluice.errors import DumpRefused
from sluice.model.dumps import TableRequest
from sluice.model.tables import Column, TableId, quoted
from sluice.mysql.key_sql import after, both, upto
from sluice.sources.mysql.catalog.live_table import Index, LiveTable
from sluice.sources.mysql.snapshot.result_set import expression
from sluice.sources.port import ChunkKey

NULLS = ("NULL",)
"""Upper bound of the chunk of rows that have no place in an index's order."""


def key_of(definition: LiveTable, request: TableRequest) -> ChunkKey:
    """Return the key that cuts a table: its primary key, the index asked for, or nothing (one piece).

    Raises DumpRefused if nothing tells its rows apart, or the index cannot cut it.
    """
    schema, indexes = definition.plan.schema, definition.indexes
    if request.keyless:
        return ChunkKey((), "")
    if not definition.key and not request.identity:
        raise DumpRefused(
            f"{request.table} has no primary key: its rows cannot be told apart"
            + (", so an index cannot split the table either" if request.index else ""),
            hint="name the columns that identify a row in the mapping (`key: [...]`), add a primary key (an invisible "
            "one is enough: ALTER TABLE … "
            "ADD _id BIGINT AUTO_INCREMENT PRIMARY KEY INVISIBLE), or replace the whole table in one piece "
            "(`--replace`)",
        )
    name = request.index or definition.key or _index_of(indexes, request.identity)
    if not name:
        return ChunkKey((), "")
    index = indexes.get(name)
    usable = ", ".join(n for n, i in sorted(indexes.items()) if not i.unfit) or "none"
    if index is None:
        raise DumpRefused(f"{request.table} has no index {name!r}", hint=f"those that can cut it: {usable}")
    if index.unfit and name != "PRIMARY":
        raise DumpRefused(
            f"index {name!r} of {request.table} cannot cut the table: {index.unfit}",
            hint=f"{index.remedy}those that can: {usable}",
        )
    by_name = {c.name: c for c in schema.columns}
    if not set(index.columns) <= set(by_name):
        raise DumpRefused(f"index {name!r} of {request.table} holds a column that is not stored", hint=f"use: {usable}")
    return ChunkKey(tuple(by_name[c] for c in index.columns), name)


def _index_of(indexes: dict[str, Index], identity: tuple[str, ...]) -> str:
    """Return an index that begins with columns that tell rows apart; ``""`` for none."""
    usable = [i for i in indexes.values() if not i.unfit and set(i.columns[: len(identity)]) == set(identity)]
    return min(usable, key=lambda i: (len(i.columns), i.name)).name if usable else ""


def selection_sql(table: TableId, columns: tuple[Column, ...], key: ChunkKey, *conditions: str) -> str:
    """Return the select of a chunk's rows."""
    exprs = ", ".join(expression(c) for c in columns)
    index = f"FORCE INDEX ({quoted(key.index)})" if key.index else ""
    return f"SELECT {exprs} FROM {_table(table)} {index} WHERE {both(*conditions)}"  # noqa: S608 - quoted


def border_sql(table: TableId, key: ChunkKey, rows: int, *conditions: str) -> str:
    """Return the select of the key of the last of the next ``rows`` rows."""
    exprs = ", ".join(expression(c) for c in key.columns)
    order = ", ".join(quoted(name) for name in key.names)
    return (
        f"SELECT {exprs} FROM {_table(table)} FORCE INDEX ({quoted(key.index)}) WHERE {both(*conditions)} "  # noqa: S608 - quoted
        f"ORDER BY {order} LIMIT 1 OFFSET {rows - 1}"
    )


def _table(table: TableId) -> str:
    return f"{quoted(table.schema)}.{quoted(table.table)}"


def range_of(request: TableRequest, key: ChunkKey) -> tuple[str, str]:
    """Return the conditions of the request's own key range."""
    return after(key.names, request.lower, included=True), upto(key.names, request.upper)


def has_nulls(request: TableRequest, key: ChunkKey) -> bool:
    """Return True if rows may have no place in the order of the index: they are a chunk of their own, the first."""
    return key.index != "PRIMARY" and not request.lower and not request.upper and any(c.nullable for c in key.columns)


def place_of(key: ChunkKey, bound: tuple[str, ...]) -> tuple[str, ...]:
    """Return a chunk's bound as one of a range: after the rows without a place there is no bound."""
    return () if bound == NULLS else bound


def nulls(key: ChunkKey, has_null: bool) -> str:
    """Return the condition that some column of the index is null, or that none is; ``""`` where none can be."""
    columns = [quoted(c.name) for c in key.columns if c.nullable]
    if key.index == "PRIMARY" or not columns:
        return ""
    return (
        "(" + (" OR " if has_null else " AND ").join(f"{c} IS {'' if has_null else 'NOT '}NULL" for c in columns) + ")"
    )
