"""The key that cuts a table into chunks, and the selects that do it."""

# ruff: noqa: S608 - names are quoted, values are literals of key_text, conditions are rendered anew

from __future__ import annotations

from sluice.errors import DumpRefused
from sluice.model.column_types import ColumnKind
from sluice.model.dumps import TableRequest
from sluice.model.tables import Column
from sluice.postgresql.names import quoted, quoted_table
from sluice.sources.port import ChunkKey
from sluice.sources.postgresql.catalog.table import CatalogTable, Index
from sluice.sources.postgresql.snapshot.key_text import after, both, upto
from sluice.sources.postgresql.values.decode import is_blank_padded

NULLS = ("NULL",)
"""Upper bound of the chunk of rows that have no place in an index's order."""
ALIAS = "_sluice"
_CAST_ALIKE = frozenset({
    ColumnKind.TINYINT, ColumnKind.SMALLINT, ColumnKind.INT, ColumnKind.BIGINT, ColumnKind.DECIMAL, ColumnKind.FLOAT,
    ColumnKind.DOUBLE, ColumnKind.DATE, ColumnKind.DATETIME, ColumnKind.TIMESTAMP, ColumnKind.TIME, ColumnKind.BLOB,
    ColumnKind.UUID, ColumnKind.JSON, ColumnKind.ENUM, ColumnKind.BIT, ColumnKind.CHAR,
})  # fmt: skip
"""The kinds whose cast to text is what the log has, as far as the decoder reads it."""


def expression(column: Column) -> str:
    """Return SQL for a column's value as the log has it: the text that the type's own output function prints.

    A cast to text is cheaper, but is not the same for every type: that of an ``inet`` adds ``/32``, an extension's may
    be anything. CHAR is sent as it is, which is its text: a cast removes the spaces at its end, character by character
    (1 us a row for 120 of them), and the decoder does that, too.
    """
    name = quoted(column.name)
    if is_blank_padded(column):
        return name
    if column.kind in _CAST_ALIKE or column.native.startswith(("text", "character varying", "numeric")):
        return f"{name}::text"
    return f"CASE WHEN {name} IS DISTINCT FROM NULL THEN format('%s', {name}) END"  # a row with a NULL is not NULL


def key_of(live: CatalogTable, request: TableRequest) -> ChunkKey:
    """Return the key that cuts a table: its key, the index asked for, or nothing (one piece).

    Raises DumpRefused if nothing tells its rows apart, or the index cannot cut it.
    """
    if request.keyless:
        return ChunkKey((), "")
    if not live.schema.primary_key and not request.identity:
        raise DumpRefused(
            f"{request.table} has no primary key: its rows cannot be told apart"
            + (", so an index cannot split the table either" if request.index else ""),
            hint="name the columns that identify a row in the mapping (`key: [...]`), add a primary key, or replace "
            "the whole table in one piece (`--replace`)",
        )
    usable = {index.name: index for index in live.indexes if not index.unfit}
    name = request.index or live.key_index or _index_of(usable, request.identity)
    if not name:
        return ChunkKey((), "")
    known_indexes = {index.name: index for index in live.indexes}
    index_names = ", ".join(sorted(usable)) or "none"
    if name not in known_indexes:
        raise DumpRefused(f"{request.table} has no index {name!r}", hint=f"those that can cut it: {index_names}")
    if known_indexes[name].unfit:
        raise DumpRefused(
            f"index {name!r} of {request.table} cannot cut the table: {known_indexes[name].unfit}",
            hint=f"those that can: {index_names}",
        )
    by_name = {column.name: column for column in live.schema.columns}
    if not all(column in by_name for column in known_indexes[name].columns):
        raise DumpRefused(
            f"index {name!r} of {request.table} holds a column that is not stored",
            hint=f"those that can: {index_names}",
        )
    columns = tuple(by_name[column] for column in known_indexes[name].columns)
    own = next((column for column in columns if _is_foreign(column)), None)
    if own is None:
        return ChunkKey(columns, name)
    if request.index:
        raise DumpRefused(
            f"index {name!r} of {request.table} cannot cut the table: its column {own.name} has the type {own.native}, "
            "whose order is its own",
            hint=f"those that can: {index_names}",
        )
    return ChunkKey((), "")


def _is_foreign(column: Column) -> bool:
    """Return True for a type of a user's or of an extension (``citext``): the session does not see its operators, and
    would compare by those of another type, in another order than the index has.
    """
    return "." in column.native


def _index_of(usable: dict[str, Index], identity: tuple[str, ...]) -> str:
    """Return an index that begins with columns that tell rows apart; ``""`` for none."""
    indexes = [index for index in usable.values() if set(index.columns[: len(identity)]) == set(identity)]
    return min(indexes, key=lambda index: (len(index.columns), index.name)).name if indexes and identity else ""


def selection_sql(live: CatalogTable, columns: tuple[Column, ...], *conditions: str) -> str:
    """Return the select of a chunk's rows."""
    exprs = ", ".join(map(expression, columns))
    return f"SELECT {exprs} FROM {from_table(live)} WHERE {both(*conditions)}"


def border_sql(live: CatalogTable, key: ChunkKey, rows: int, *conditions: str) -> str:
    """Return the select of the key of the last of the next ``rows`` rows."""
    exprs = ", ".join(map(expression, key.columns))
    order = ", ".join(f"{ALIAS}.{quoted(name)}" for name in key.names)  # without it: of the texts that are selected
    return (
        f"SELECT {exprs} FROM {from_table(live)} WHERE {both(*conditions)} ORDER BY {order} LIMIT 1 OFFSET {rows - 1}"
    )


def from_table(live: CatalogTable) -> str:
    """Return the table; of one that others inherit from its own rows alone, as the log has each under its own name."""
    return f"{'' if live.partitioned else 'ONLY '}{quoted_table(live.id)} AS {ALIAS}"


def range_of(request: TableRequest, key: ChunkKey) -> tuple[str, str]:
    """Return the conditions of the request's own key range."""
    return after(key.names, request.lower, included=True), upto(key.names, request.upper)


def nullable(live: CatalogTable, key: ChunkKey) -> list[Column]:
    """Return the columns of the key that may be NULL."""
    return [] if key.index == live.key_index else [column for column in key.columns if column.nullable]


def has_nulls(live: CatalogTable, request: TableRequest, key: ChunkKey) -> bool:
    """Return True if rows may have no place in the order of the index: they are a chunk of their own, the first."""
    return not request.lower and not request.upper and bool(nullable(live, key))


def place_of(bound: tuple[str, ...]) -> tuple[str, ...]:
    """Return a chunk's bound as one of a range: after the rows without a place there is no bound."""
    return () if bound == NULLS else bound


def nulls(live: CatalogTable, key: ChunkKey, has_null: bool) -> str:
    """Return the condition that some column of the index is null, or that none is; ``""`` where none can be."""
    columns = [quoted(column.name) for column in nullable(live, key)]
    if not columns:
        return ""
    return (
        "(" + (" OR " if has_null else " AND ").join(f"{c} IS {'' if has_null else 'NOT '}NULL" for c in columns) + ")"
    )
