"""A target's table as its information_schema describes it."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.model.planned import PlannedColumn

_BY_ARROW = {
    "string": "longtext", "binary": "longblob",
    "int8": "tinyint", "int16": "smallint", "int32": "int", "int64": "bigint", "uint8": "tinyint unsigned",
    "uint16": "smallint unsigned", "uint32": "int unsigned", "uint64": "bigint unsigned", "float": "float", "double": "double", "date32[day]": "date",
    "timestamp[us]": "datetime(6)", "timestamp[us, tz=UTC]": "timestamp(6)", "duration[us]": "time(6)",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ColumnInfo:
    """A column as information_schema has it; ``required``: an insert has to give it a value; ``sql_type``: as declared.

    ``distinct``: without a value in the insert no two rows are equal in it: it counts, or is NULL.
    """

    name: str
    required: bool
    generated: bool
    sql_type: str = ""
    nullable: bool = True
    charset: str = ""
    collation: str = ""
    distinct: bool = False


@dataclass(frozen=True, slots=True)
class UniqueKey:
    """A unique key: (column, prefix in characters or 0 for all of it) in order; "" for an expression."""

    name: str
    parts: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class TableInfo:
    """Columns in order, and unique keys (primary first) of a table at the target; ``keys``: the same with names and prefixes."""

    columns: tuple[ColumnInfo, ...]
    unique_keys: tuple[tuple[str, ...], ...]
    keys: tuple[UniqueKey, ...] = ()
    view: bool = False
    engine: str = ""


def column_type(column: PlannedColumn) -> str:
    """The type for a column definition."""
    if column.wanted:
        return column.wanted
    kind = column.sql_type or _BY_ARROW.get(column.arrow_type, column.arrow_type.replace("decimal128", "decimal"))
    if column.charset and column.collation:
        kind += f" CHARACTER SET {column.charset} COLLATE {column.collation}"
    return kind
