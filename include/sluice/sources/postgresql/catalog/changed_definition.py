"""What changed between two definitions of a table, told by the numbers of its columns, and a statement that says so.

The log of PostgreSQL has no DDL: a changed definition is noticed when the next row of its table comes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sluice.errors import SchemaUnknown
from sluice.model.definitions import ColumnDefinition, IndexDefinition, TableDefinition
from sluice.model.row_effects import ColumnEffect, Ran
from sluice.model.schema_changes import ChangeKind, ColumnChange, TableChange, column_changes
from sluice.model.tables import TableId
from sluice.postgresql.names import quoted, quoted_table, text_literal
from sluice.postgresql.source_words import PostgreSQLWords
from sluice.postgresql.type_names import pg_type
from sluice.sources.postgresql.catalog.definitions import UNKNOWN_NUMBER, KnownTable

_K = ChangeKind


def table_change(
    before: KnownTable | None, after: KnownTable, where: str, *, indexes: bool = False
) -> tuple[TableChange, str] | None:
    """Return what makes ``after`` of ``before`` (None: there was no such table), and a statement that does it.

    ``indexes``: secondary indexes count, too, and the table's comment. A change of them says nothing of rows, and
    nobody knows where among these it stands unless the log has the statement.

    None if nothing changed. Raises SchemaUnknown if it cannot be told whether a column was renamed or replaced.
    """
    new = after.definition
    if before is None:
        return TableChange(new.table, (_K.CREATE_TABLE,), None, new), create_text(new)
    old = before.definition
    renamed, dropped = renames(before, after, where)
    columns = column_changes(old, new, {name.lower(): now for name, now in renamed.items()}, dropped)
    kinds = list(dict.fromkeys(_K.WIDEN_COLUMN if _is_wider(column) else column.kind for column in columns))
    if tuple(renamed.get(name, name) for name in old.primary_key) != new.primary_key:
        kinds.append(_K.PRIMARY_KEY)
    removed_indexes, added_indexes = _other_indexes(old, new, renamed, dropped) if indexes else ((), ())
    if removed_indexes or added_indexes:
        kinds.append(_K.INDEXES)
    if indexes and old.comment != new.comment:
        kinds.append(_K.TABLE_OPTIONS)
    moved = old.table != new.table
    if moved:
        kinds.append(_K.RENAME_TABLE)
    if not kinds:
        return None
    change = TableChange(old.table, tuple(kinds), old, new, columns, new.table if moved else None)
    return change, "; ".join((*_statements(change, renamed), *_index_texts(new.table, removed_indexes, added_indexes)))


def _other_indexes(
    old: TableDefinition, new: TableDefinition, renamed: dict[str, str], replaced: set[str]
) -> tuple[tuple[IndexDefinition, ...], tuple[IndexDefinition, ...]]:
    """Return the secondary indexes that are gone, and those that are new.

    Not those that a column took along, and not those that a column's new name changed.
    """
    names = {column.name for column in new.columns}
    was = {}
    for index in old.indexes:
        columns = [renamed.get(name, name) for name, _ in index.columns]
        if not index.primary and all(name in names and name.lower() not in replaced for name in columns):
            was[index.name, tuple(columns), index.unique] = index
    now = {
        (index.name, tuple(name for name, _ in index.columns), index.unique): index
        for index in new.indexes
        if not index.primary
    }
    return (
        tuple(index for key, index in was.items() if key not in now),
        tuple(index for key, index in now.items() if key not in was),
    )


def _index_texts(
    table: TableId, removed_indexes: Iterable[IndexDefinition], indexes: Iterable[IndexDefinition]
) -> Iterator[str]:
    for index in removed_indexes:
        yield f"DROP INDEX {quoted(table.schema)}.{quoted(index.name)}"
    for index in indexes:
        columns = ", ".join(quoted(name) for name, _ in index.columns)
        unique = "UNIQUE " if index.unique else ""
        yield f"CREATE {unique}INDEX {quoted(index.name)} ON {quoted_table(table)} ({columns})"


def _is_wider(change: ColumnChange) -> bool:
    return (
        change.kind is _K.CHANGE_COLUMN
        and change.old is not None
        and change.new is not None
        and (widens(change.old, change.new))
    )


def widens(old: ColumnDefinition, new: ColumnDefinition) -> bool:
    """Return True if every value of the old type is the same value of the new one."""
    if old.labels or new.labels:
        return bool(old.labels) and set(old.labels) <= set(new.labels)
    old_pg_type, other_pg_type = pg_type(old.type), pg_type(new.type)
    if old_pg_type.word in _INTEGERS and other_pg_type.word in _INTEGERS:
        return _INTEGERS.index(old_pg_type.word) <= _INTEGERS.index(other_pg_type.word)
    if (old_pg_type.word, other_pg_type.word) == ("real", "double precision"):
        return True
    if old_pg_type.word == other_pg_type.word == "character varying":
        return not other_pg_type.numbers or (bool(old_pg_type.numbers) and other_pg_type.numbers >= old_pg_type.numbers)
    if old_pg_type.word == "character varying" and other_pg_type.word == "text":
        return True
    if old_pg_type.word == other_pg_type.word == "numeric" and old_pg_type.numbers and other_pg_type.numbers:
        (p1, s1), (p2, s2) = (*old_pg_type.numbers, 0)[:2], (*other_pg_type.numbers, 0)[:2]
        return s2 >= s1 and p2 - s2 >= p1 - s1
    if old_pg_type.word == other_pg_type.word and old_pg_type.word in _TIMED:
        return (other_pg_type.numbers or (_MICROS,)) >= (old_pg_type.numbers or (_MICROS,))
    return old.type == new.type


def row_effects(change: TableChange, statement: Ran) -> tuple[ColumnEffect, ...]:
    """Return an unknown effect for each column that has another type, unless that only widens it.

    The log does not say how the values were converted (``USING``). A column that took the name of another one was not
    converted: the statement tells it.
    """
    if change.before is None or change.after is None:
        return ()
    names = PostgreSQLWords().altered_names(statement)
    columns = change.compared_columns(names.renamed, names.dropped) if names is not None else change.columns
    why = "the log does not say how values became another type"
    effects = {
        pair.old.name: ColumnEffect(
            change.table, pair.old, pair.new, unknown=_renamed_labels(pair.old, pair.new) or why
        )
        for pair in columns
        if pair.old is not None and pair.new is not None
        and (pair.old.type, pair.old.labels) != (pair.new.type, pair.new.labels) and not widens(pair.old, pair.new)
    }  # fmt: skip
    return tuple(effects.values())


def _renamed_labels(old: ColumnDefinition, new: ColumnDefinition) -> str:
    """Return which labels have another name, "" unless it is the same enumerated type."""
    old_labels, fresh = (
        [name for name in a if name not in b] for a, b in ((old.labels, new.labels), (new.labels, old.labels))
    )
    if old.type != new.type or not (old_labels and fresh):
        return ""
    return (
        f"ALTER TYPE {new.type} RENAME VALUE made {', '.join(fresh)} of {', '.join(old_labels)} in all rows, and the "
        "log has none of them"
    )


_INTEGERS = ("smallint", "integer", "bigint")
_TIMED = {"timestamp without time zone", "timestamp with time zone", "time without time zone", "time with time zone"}
_MICROS = 6


def renames(before: KnownTable, after: KnownTable, where: str) -> tuple[dict[str, str], set[str]]:
    """Return the renamed columns (old name -> new name), and those whose name another column has now, in lower case.

    Raises SchemaUnknown if the number of a column is not known and it may be another one under a new name.
    """
    was = {attribute.number: attribute for attribute in before.attributes if attribute.number != UNKNOWN_NUMBER}
    now = {attribute.number: attribute for attribute in after.attributes if attribute.number != UNKNOWN_NUMBER}
    renamed = {was[n].name: now[n].name for n in was.keys() & now.keys() if was[n].name != now[n].name}
    names = {attribute.name: attribute for attribute in after.attributes}
    replaced = set()
    for attribute in was.values():
        name = names.get(attribute.name)
        if attribute.name not in renamed and name is not None and name.number not in {attribute.number, UNKNOWN_NUMBER}:
            replaced.add(attribute.name.lower())
    removed_attributes = [
        attribute for attribute in before.attributes if attribute.name not in names and attribute.name not in renamed
    ]
    fresh = [
        attribute
        for attribute in after.attributes
        if attribute.number == UNKNOWN_NUMBER and attribute.name not in {a.name for a in before.attributes}
    ]
    for attribute in fresh:
        like = [
            two for two in removed_attributes if (two.type_oid, two.typmod) == (attribute.type_oid, attribute.typmod)
        ]
        if like:
            raise SchemaUnknown(
                f"{after.definition.table} lost column {like[0].name} and has a new one, {attribute.name}, of the same "
                "type, and both are gone by now: whether it was renamed cannot be told",
                where=where,
                hint="`sluice seek PIPELINE` to the position behind it, then `sluice verify run PIPELINE --repair`",
            )
    return renamed, replaced


# -- text --------------------------------------------------------------------------------------------------------------
def create_text(table: TableDefinition) -> str:
    """Return a CREATE TABLE for a definition."""
    parts = [_column_text(column) for column in table.columns]
    if table.primary_key:
        parts.append(f"PRIMARY KEY ({', '.join(map(quoted, table.primary_key))})")
    return f"CREATE TABLE {quoted_table(table.table)} ({', '.join(parts)})"


def _column_text(column: ColumnDefinition) -> str:
    text = f"{quoted(column.name)} {column.type}"
    if column.generated is not None:
        text += f" GENERATED ALWAYS AS ({column.generated}) {'STORED' if column.stored else 'VIRTUAL'}"
    elif column.default is not None:
        text += f" DEFAULT {column.default}"
    return text if column.nullable else f"{text} NOT NULL"


def _statements(change: TableChange, renamed: dict[str, str]) -> Iterator[str]:
    """Yield a statement for each kind of change, renames first."""
    assert change.after is not None
    table = quoted_table(change.table)
    if change.renamed_to is not None:
        yield f"ALTER TABLE {table} RENAME TO {quoted_table(change.renamed_to)}"
        table = quoted_table(change.renamed_to)
    for old, new in renamed.items():
        yield f"ALTER TABLE {table} RENAME COLUMN {quoted(old)} TO {quoted(new)}"
    parts = []
    for column in change.columns:
        if column.kind is _K.DROP_COLUMN and column.old is not None:
            parts.append(f"DROP COLUMN {quoted(column.old.name)}")
        elif column.kind is _K.ADD_COLUMN and column.new is not None:
            parts.append(f"ADD COLUMN {_column_text(column.new)}")
        elif column.kind in {_K.WIDEN_COLUMN, _K.CHANGE_COLUMN} and column.new is not None:
            parts.append(f"ALTER COLUMN {quoted(column.new.name)} TYPE {column.new.type}")
        elif column.kind in {_K.ALLOW_NULL, _K.REQUIRE_VALUE} and column.new is not None:
            word = "DROP" if column.kind is _K.ALLOW_NULL else "SET"
            parts.append(f"ALTER COLUMN {quoted(column.new.name)} {word} NOT NULL")
        elif (
            column.kind is _K.COLUMN_ATTRIBUTES
            and column.new
            and column.old
            and column.new.default != column.old.default
        ):
            word = f"SET DEFAULT {column.new.default}" if column.new.default is not None else "DROP DEFAULT"
            parts.append(f"ALTER COLUMN {quoted(column.new.name)} {word}")
    if _K.PRIMARY_KEY in change.kinds:
        key = ", ".join(map(quoted, change.after.primary_key))
        parts.append(f"ADD PRIMARY KEY ({key})" if key else "DROP CONSTRAINT IF EXISTS primary_key")
    if parts:
        yield f"ALTER TABLE {table} {', '.join(parts)}"
    if _K.TABLE_OPTIONS in change.kinds:
        yield f"COMMENT ON TABLE {table} IS {text_literal(change.after.comment)}"


__all__ = ["create_text", "renames", "row_effects", "table_change", "widens"]
