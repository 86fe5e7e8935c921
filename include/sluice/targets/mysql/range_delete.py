"""Make a range of a table equal: rows in it whose key the source does not have are deleted.

The target itself compares, by its own types and collations: the kept keys are sent into a temporary table of the key's
definition, and what the range holds besides them is counted first, so that nothing is locked if both sides are equal.
"""

# ruff: noqa: S608 - identifiers are quoted, values are literals

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from sluice.model.dialects import MARIADB
from sluice.model.planned import PlannedColumn, PlannedTable
from sluice.model.tables import TableId, one_chunk, quoted, quoted_table
from sluice.mysql.key_sql import after, among, both, upto, value_literals
from sluice.mysql.type_loss import SqlType
from sluice.targets.mysql import statements
from sluice.targets.mysql.column_types import lost, own_type
from sluice.targets.mysql.table_info import ColumnInfo, TableInfo
from sluice.targets.mysql.tables import read_tables, target_table
from sluice.targets.port import KeyRange, WriteResult
from sluice.targets.sql.tables import TargetTable

KEPT = "_sluice_kept"
LISTED_KEYS = 1_000
_SORTED_ALIKE = {"bit", "year"}
_FLOATS = {"float", "double"}
_TEXTS = {"char", "varchar"}


class Session(Protocol):
    """The parts of a target's session that range deletes use."""

    cursor: Any
    dialect: statements.Dialect

    def run(self, todo: Any) -> int: ...

    def write(self, statement: statements.Statement) -> int: ...


def clear(session: Session, table: TargetTable, item: KeyRange) -> WriteResult:
    """Delete what the stretch holds beyond the kept keys. In a transaction.

    Raises LoadError, and what the driver raises.
    """
    name, cursor = quoted_table(table.table), session.cursor
    if not item.names:
        return WriteResult(deleted=int(cursor.execute(f"DELETE FROM {name}") or 0), statements=1)
    columns = {c.name: c for c in read_tables(cursor, [table.table])[table.table].columns}
    sent = 1 + _keep(session, table, item, columns)
    kept_quoted_table = quoted_table(TableId(table.table.schema, KEPT))
    same = " AND ".join(f"k.{quoted(column)} = {name}.{quoted(column)}" for column in item.names)
    deleted = 0
    for condition in stretches(item, {column.name: column.sql_type for column in columns.values()}):
        missing = f"{condition} AND NOT EXISTS (SELECT 1 FROM {kept_quoted_table} k WHERE {same})"
        cursor.execute(f"SELECT COUNT(*) FROM {name} WHERE {missing}")
        if cursor.fetchone()[0]:
            sql = f"DELETE FROM {name} WHERE {missing}".encode()
            deleted += session.write(statements.Statement(sql, 0, computed=table.computed))
            sent += 1
        sent += 1
    cursor.execute(f"DROP TEMPORARY TABLE {kept_quoted_table}")
    return WriteResult(deleted=deleted, statements=sent)


def stretches(item: KeyRange, types: Mapping[str, str]) -> list[str]:
    """Return conditions that together are the range. ``types``: of the target's columns, by name."""
    folded = {name.casefold(): type_ for name, type_ in types.items()}
    own = [folded[name.casefold()] for name in item.names]

    def bound(row: pa.Table | None) -> tuple[str, ...]:
        return _literals(own, row)[0] if row is not None else ()

    if item.listed is None:
        lower, upper, behind, end = map(bound, (item.lower, item.upper, item.after, item.upto))
        return [
            both(
                after(item.names, lower, included=True),
                upto(item.names, upper),
                after(item.names, behind),
                upto(item.names, end),
            )
        ]
    keys = _literals(own, item.listed)
    return [among(item.names, keys[i : i + LISTED_KEYS]) for i in range(0, len(keys), LISTED_KEYS)]


def _literals(types: Sequence[str], keys: pa.Table) -> list[tuple[str, ...]]:
    """Return keys as literals; labels by their numbers in the target's own columns, of which ``types`` are the
    types.
    """
    columns = zip(map(SqlType.parse, types), map(one_chunk, keys.columns), strict=False)
    return list(zip(*(value_literals(values, own.kind, own.labels) for own, values in columns), strict=True))


def _keep(session: Session, table: TargetTable, item: KeyRange, columns: Mapping[str, ColumnInfo]) -> int:
    """Send the kept keys."""
    temporary_table = TableId(table.table.schema, KEPT)
    lines = [f"{quoted(name)} {declared(columns[name])} NOT NULL" for name in item.names]
    key = ", ".join(map(quoted, item.names))
    session.cursor.execute(f"DROP TEMPORARY TABLE IF EXISTS {quoted_table(temporary_table)}")
    session.cursor.execute(
        f"CREATE TEMPORARY TABLE {quoted_table(temporary_table)} ({', '.join(lines)}, PRIMARY KEY ({key})) "
        "ENGINE = InnoDB"
    )
    assert item.kept is not None
    types = tuple(columns[name].sql_type for name in item.names)
    kept_target_table = TargetTable(temporary_table, item.names, item.names, types=types)
    return session.run(statements.upserts(kept_target_table, item.kept, session.dialect))


def declared(column: ColumnInfo) -> str:
    """Return the column's type with its charset and collation, as a definition has it."""
    words = column.sql_type
    if column.charset and column.collation:
        words += f" CHARACTER SET {column.charset} COLLATE {column.collation}"
    return words


def replaceable(plan: PlannedTable, info: TableInfo | None, *, mariadb: bool) -> tuple[TargetTable | None, str]:
    """Return the table if the target sorts and compares the keys of ``plan`` as the source does; else None and why
    not.
    """
    if info is None:
        return None, f"the target has no table {plan.target}"
    columns = {column.name.casefold(): column for column in info.columns}
    for column in plan.columns:
        own_column = columns.get(column.name.casefold())
        why = (
            f"it has no column {column.name}"
            if own_column is None
            else _sorts_otherwise(column, own_column, plan, mariadb=mariadb)
        )
        if why:
            return None, f"{plan.target} at the target: {why}"
    key = tuple(columns[name.casefold()].name for name in plan.key)
    key_names = {c.casefold() for c in key}
    if key and not any({c.casefold() for c in unique} == key_names for unique in info.unique_keys):
        return None, f"{plan.target} at the target has no key ({', '.join(key)})"
    others = tuple(unique for unique in info.unique_keys if {c.casefold() for c in unique} != key_names)
    return target_table(plan, info, key, others), ""


def _sorts_otherwise(source: PlannedColumn, target: ColumnInfo, plan: PlannedTable, *, mariadb: bool) -> str:
    value_type = source.value_type
    own_sql_type, other_sql_type = (
        SqlType.parse(own_type(value_type), value_type.charset),
        SqlType.parse(target.sql_type, target.charset),
    )
    name, why = source.name, lost(source, target)
    if why:
        return f"column {name}: {why}"
    if own_sql_type.word in _TEXTS or other_sql_type.word in _TEXTS:
        if own_sql_type.word not in _TEXTS or other_sql_type.word not in _TEXTS or source.collation != target.collation:
            return (
                f"column {name} is sorted by {target.collation or other_sql_type.word}, at the source by "
                f"{source.collation or own_sql_type.word}"
            )
        if plan.dialect and (plan.dialect == MARIADB) != mariadb and not target.collation.endswith("_bin"):
            return f"column {name}: MySQL and MariaDB may sort {target.collation} in two ways"
        return ""
    if (
        "text" in own_sql_type.word
        or "blob" in own_sql_type.word
        or "text" in other_sql_type.word
        or "blob" in other_sql_type.word
    ):
        return f"column {name} has a type whose keys are prefixes"
    if (
        own_sql_type.word in _FLOATS | {"enum", "set", "binary", "varbinary"} | _SORTED_ALIKE
        and own_sql_type.word != other_sql_type.word
    ):
        return f"column {name} is {other_sql_type.word}, at the source {own_sql_type.word}"
    if own_sql_type.labels != other_sql_type.labels:
        return f"column {name} has other labels"
    return ""


__all__ = ["clear", "declared", "replaceable", "stretches"]
