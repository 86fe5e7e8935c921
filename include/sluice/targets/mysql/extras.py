"""Defaults, comments and secondary indexes of another dialect's tables, as parts of a CREATE TABLE and of an ALTER
TABLE here: the same for a table that ``sluice check --apply`` makes and for one whose statement arrives with the log.

An index is made if this server can have it: whole columns, no expression, and of texts without a limit only a prefix. A
unique one is made only where this server can hold the whole values unique.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from sluice.model.column_types import ColumnKind, ColumnType
from sluice.model.default_values import DefaultValue
from sluice.model.definitions import IndexDefinition
from sluice.model.dialects import MARIADB, MYSQL, Dialect
from sluice.model.planned import PlannedColumn, PlannedTable
from sluice.model.tables import quoted
from sluice.mysql.literals import text_literal
from sluice.targets.mysql.defaults import Default, default_of

T = ColumnKind
LONGEST_NAME = 64
"""Characters of a name, at most."""
_INDEXED_CHARACTERS = 768
"""Characters of an index's columns together, at most: InnoDB takes 3,072 bytes."""
_PREFIX = 191
"""Characters that an index holds of a text without a limit."""
_NOT_ASKED = DefaultValue(None, "its value was not read")


def is_foreign(dialect: Dialect) -> bool:
    """Return True for a known dialect that neither MySQL nor MariaDB has."""
    return bool(dialect) and dialect not in {MYSQL, MARIADB}


def default_here(column: PlannedColumn) -> Default:
    """Return this server's counterpart of the default of a foreign column; none where its definition is not known."""
    source = column.definition
    if source is None or source.generated is not None or column.wanted:
        return Default()
    return default_of(source, column.value_type, column.default or _NOT_ASKED)


def attributes(column: PlannedColumn, *, nullable: bool) -> str:
    """Return what stands behind the type of a foreign column: NULL, the default and the comment."""
    words, default = ["NULL" if nullable else "NOT NULL"], default_here(column).later
    words += [f"DEFAULT {default}"] if default else []
    source = column.definition
    return " ".join([*words, *([f"COMMENT {text_literal(source.comment)}"] if source and source.comment else [])])


def identified(plan: PlannedTable) -> PlannedTable:
    """Return the plan of a foreign table with the key that it gets here.

    Without a primary key, and without a key of the mapping, it is the first unique key of columns that are never NULL.
    """
    if plan.key or plan.created is None:
        return plan
    columns = {column.name.casefold(): column for column in plan.columns if not column.generated}
    for index in plan.created.indexes:
        names = [name.casefold() for name, cut in index.columns if not cut and name.casefold() in columns]
        usable = index.unique and index.kind == "index" and len(names) == len(index.columns)
        if usable and not any(columns[name].nullable for name in names):
            places = {name: place for place, name in enumerate(names, 1)}
            keyed = (replace(column, key=places.get(column.name.casefold(), 0)) for column in plan.columns)
            return replace(plan, columns=tuple(keyed))
    return plan


def index_lines(indexes: Iterable[IndexDefinition], columns: Mapping[str, PlannedColumn]) -> dict[str, str]:
    """Return the definitions of the secondary indexes that a table of foreign columns has here, by name.

    ``indexes`` and ``columns`` have the names at the target; ``columns`` in lower case.
    """
    key = {name for name, column in columns.items() if column.key}
    index_lines = {}
    for index in indexes:
        same = index.unique and {name.casefold() for name, _ in index.columns} == key
        if index.primary or same or index.kind != "index" or len(index.name) > LONGEST_NAME:
            continue
        parts = _parts(index, columns)
        if parts:
            word = "UNIQUE KEY" if index.unique else "KEY"
            index_lines[index.name] = f"{word} {quoted(index.name)} ({', '.join(parts)})"
    return index_lines


def _parts(index: IndexDefinition, columns: Mapping[str, PlannedColumn]) -> list[str]:
    """Return the columns of an index with their prefixes; none if this server has no such index."""
    index_columns = [columns.get(name.casefold()) for name, _ in index.columns]
    taken_columns = [column for column in index_columns if column is not None and not column.generated]
    sizes = [_characters(column.value_type) for column in taken_columns]
    if len(taken_columns) < len(index_columns) or None in sizes:
        return []
    short = [size if size is not None and 0 <= size <= _INDEXED_CHARACTERS else -1 for size in sizes]
    fits = -1 not in short and sum(short) <= _INDEXED_CHARACTERS
    if index.unique and not fits:
        return []
    return [
        quoted(column.name) + (f"({_PREFIX})" if not fits and not column.key and (size < 0 or size > _PREFIX) else "")
        for column, size in zip(taken_columns, short, strict=True)
    ]


def _characters(column_type: ColumnType) -> int | None:
    """Return how many characters of an index a column takes; -1 for one without a limit, None if it has no index."""
    if column_type.kind in {T.TEXT, T.BLOB}:
        return -1
    if column_type.kind in {T.CHAR, T.VARCHAR, T.BINARY, T.VARBINARY}:
        return column_type.length
    return None if column_type.kind in {T.JSON, T.GEOMETRY, T.VECTOR} else 2
