"""A target's table as its information_schema describes it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ColumnInfo:
    """A column as information_schema has it; ``required``: an insert has to give it a value; ``sql_type``: as declared.

    ``distinct``: without a value in the insert no two rows are equal in it: it counts, or is NULL.
    ``clock``: an UPDATE that does not name it gives it the time.
    """

    name: str
    required: bool
    generated: bool
    sql_type: str = ""
    nullable: bool = True
    charset: str = ""
    collation: str = ""
    distinct: bool = False
    clock: bool = False


@dataclass(frozen=True, slots=True)
class UniqueKey:
    """A unique key: (column, prefix in characters or 0 for all of it) in order; "" for an expression."""

    name: str
    parts: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class TableInfo:
    """A table at the target: its columns in order, and its unique keys, primary first; ``keys``: the same with names
    and prefixes.
    """

    columns: tuple[ColumnInfo, ...]
    unique_keys: tuple[tuple[str, ...], ...]
    keys: tuple[UniqueKey, ...] = ()
    view: bool = False
    engine: str = ""
