"""Definitions as SQL of this server: columns, keys, and the ALTER TABLE that makes one definition out of another."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from sluice.errors import LoadError
from sluice.model.definitions import ColumnDefinition, IndexDefinition, TableDefinition
from sluice.model.labels import declared
from sluice.model.schema_changes import ChangeKind, TableChange, column_changes
from sluice.model.tables import TableId, quoted, quoted_table
from sluice.mysql.literals import text_literal
from sluice.targets.mysql.column_types import Server
from sluice.targets.schema.policy import require_told_renames

Naming = Callable[[str], str | None]
"""Source column -> target column, None for one that does not go over."""

_CHANGES = {
    ChangeKind.WIDEN_COLUMN, ChangeKind.CHANGE_COLUMN, ChangeKind.ALLOW_NULL, ChangeKind.REQUIRE_VALUE,
    ChangeKind.COLUMN_ATTRIBUTES,
    ChangeKind.MOVE_COLUMN,
}  # fmt: skip


_IN_ORACLE_MODE = {"date": "mariadb_schema.date", "blob": "blob(65535)"}
"""Types that have other names in ``sql_mode=ORACLE``."""


def column_sql(column: ColumnDefinition, name: str, table: TableDefinition, server: Server) -> str:
    """Return ``name`` and everything after it in a column definition; the charset only if it is not the default of
    ``table``.
    """
    kind = declared(column.type.partition("(")[0], column.labels) if column.labels else column.type
    kind = server.word(kind)
    if server.oracle:
        kind = _IN_ORACLE_MODE.get(kind, kind)
    parts = [quoted(name), kind]
    collation = server.collation(column.charset, column.collation)
    if collation and collation != server.collation(table.charset, table.collation):
        parts.append(f"CHARACTER SET {column.charset} COLLATE {collation}")
    if column.generated is not None:
        parts.append(f"GENERATED ALWAYS AS ({column.generated}) {'STORED' if column.stored else 'VIRTUAL'}")
    parts.append("NULL" if column.nullable else "NOT NULL")
    if column.default is not None and column.generated is None:
        parts.append(f"DEFAULT {_bracketed(column, column.default) if server.lacks_words else column.default}")
    if column.on_update:
        parts.append(f"ON UPDATE {column.on_update}")
    if column.auto_increment:
        parts.append("AUTO_INCREMENT")
    if column.invisible:
        parts.append("INVISIBLE")
    if column.comment:
        parts.append(f"COMMENT {text_literal(column.comment)}")
    return " ".join(parts)


_ENGINES = {"innodb", "myisam", "memory", "csv", "archive"}
_LITERAL = re.compile(
    r"^[-+\s]*(?:\d|\.\d|'|\"|0x|[xbn]'|_\w+\s*['x0b]|(?:date|time|timestamp)\s*'|(?:true|false|null|current_timestamp|now|localtime"
    r"|localtimestamp)\b)",
    re.I,
)
"""The begin of a default that MySQL takes without brackets."""
_LONG = re.compile(r"text|blob|json|geometry|point|linestring|polygon")


def _bracketed(column: ColumnDefinition, default: str) -> str:
    """Return a default as MySQL takes it: in brackets it is an expression, and long values have no other."""
    plain = _LITERAL.match(default) is not None and not _LONG.search(column.family)
    return default if plain or default.lstrip().startswith("(") else f"({default})"


def wants_brackets(column: ColumnDefinition) -> bool:
    """Return True for a default that MariaDB takes as it is, and MySQL's parser, too, but MySQL refuses later."""
    return column.default is not None and _bracketed(column, column.default) != column.default


def index_sql(index: IndexDefinition, naming: Naming, server: Server) -> str | None:
    """Return a key's definition, None if it has an expression or a column that does not go over, or this server has no
    such key.
    """
    if index.kind == "vector" and not server.mariadb:
        return None
    names = []
    for name, prefix in index.columns:
        target_name = naming(name) if name else None
        if target_name is None:
            return None
        names.append(quoted(target_name) + (f"({prefix})" if prefix else ""))
    columns = f"({', '.join(names)})"
    if index.primary:
        return f"PRIMARY KEY {columns}"
    words = {"fulltext": "FULLTEXT KEY", "spatial": "SPATIAL KEY", "vector": "VECTOR KEY"}
    word = words.get(index.kind, "UNIQUE KEY" if index.unique else "KEY")
    return f"{word} {quoted(index.name)} {columns}"


def create_sql(table: TableId, definition: TableDefinition, naming: Naming, server: Server) -> str:
    """Return the CREATE TABLE of a definition, without foreign keys, checks and partitions."""
    lines = [
        column_sql(c, name, definition, server) for c in definition.columns if (name := naming(c.name)) is not None
    ]
    lines += [line for index in definition.indexes if (line := index_sql(index, naming, server)) is not None]
    engine = definition.engine and not (server.lacks_words and definition.engine.lower() not in _ENGINES)
    options = f" ENGINE={definition.engine}" if engine else ""
    if collation := server.collation(definition.charset, definition.collation):
        options += f" DEFAULT CHARACTER SET {definition.charset} COLLATE {collation}"
    return f"CREATE TABLE {quoted_table(table)} ({', '.join(lines)}){options}"


def alter_sql(
    table: TableId,
    change: TableChange,
    naming: Naming,
    target_columns: Collection[str],
    kinds: Collection[ChangeKind] | None,
    server: Server,
) -> str:
    """Return the ALTER TABLE that makes ``change`` at the target, ``""`` if there is nothing left to do.

    Args:
        target_columns: the target's columns now, in lower case: a column that is there is not added again, one that is
            gone not dropped.
        kinds: only these; None: all that can be told from the definitions.

    Raises:
        LoadError: what happened cannot be told from the two definitions (a renamed column).
    """
    before, after = change.before, change.after
    if before is None or after is None:
        raise LoadError(f"the definition of {change.table} is not known", where=str(table), hint=change.reason or None)
    wanted_kinds = set(ChangeKind) if kinds is None else set(kinds)
    columns = change.columns or column_changes(before, after)
    require_told_renames(change, columns, str(table), f"ALTER TABLE {quoted_table(table)}")
    clauses: list[str] = []
    for pair in columns:
        name = naming((pair.new or pair.old).name)  # type: ignore[union-attr]
        if name is None or pair.kind not in wanted_kinds:
            continue
        if pair.kind is ChangeKind.DROP_COLUMN and name.lower() in target_columns:
            clauses.append(f"DROP COLUMN {quoted(name)}")
        elif pair.kind is ChangeKind.ADD_COLUMN and pair.new is not None and name.lower() not in target_columns:
            place = _place(after, pair.new.name, naming, target_columns)
            clauses.append(f"ADD COLUMN {column_sql(pair.new, name, after, server)}{place}")
        elif pair.kind in _CHANGES and pair.new is not None and name.lower() in target_columns:
            place = _place(after, pair.new.name, naming, target_columns) if pair.kind is ChangeKind.MOVE_COLUMN else ""
            clauses.append(f"MODIFY COLUMN {column_sql(pair.new, name, after, server)}{place}")
    clauses += _keys(before, after, naming, wanted_kinds, server)
    merged = list(dict.fromkeys(clauses))
    return f"ALTER TABLE {quoted_table(table)} {', '.join(merged)}" if merged else ""


def _place(after: TableDefinition, name: str, naming: Naming, target_columns: Collection[str]) -> str:
    number = after.index_of(name)
    if number == len(after.columns) - 1:
        return ""
    for earlier in reversed(after.columns[:number]):
        target = naming(earlier.name)
        if target is not None and target.lower() in target_columns:
            return f" AFTER {quoted(target)}"
    return " FIRST" if number == 0 else ""


def _keys(
    before: TableDefinition,
    after: TableDefinition,
    naming: Naming,
    wanted_change_kinds: set[ChangeKind],
    server: Server,
) -> list[str]:
    old, new = {i.name: i for i in before.indexes}, {i.name: i for i in after.indexes}
    clauses = []
    for name, index in old.items():
        kind = ChangeKind.PRIMARY_KEY if index.primary else ChangeKind.INDEXES
        if kind in wanted_change_kinds and new.get(name) != index and index_sql(index, naming, server) is not None:
            removed_columns = {c.lower() for c, _ in index.columns} - {c.name.lower() for c in after.columns}
            if removed_columns and name not in new:
                continue  # the server drops a key with the last of its columns
            clauses.append("DROP PRIMARY KEY" if index.primary else f"DROP KEY {quoted(name)}")
    for name, index in new.items():
        kind = ChangeKind.PRIMARY_KEY if index.primary else ChangeKind.INDEXES
        line = index_sql(index, naming, server)
        if kind in wanted_change_kinds and old.get(name) != index and line is not None:
            clauses.append(f"ADD {line}")
    return clauses
