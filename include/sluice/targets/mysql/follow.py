"""Statements of a source whose dialect is not MySQL's, as statements for this server: the plan of the change
(:mod:`sluice.targets.schema.plan`), in this server's words.

The recorded text means nothing here, so that both definitions tell all of it. One ALTER TABLE makes all changes of a
table: it runs as a whole or not at all. Followed are tables and columns with their types, NULL, constant defaults,
comments, the primary key and secondary indexes. Counters and generated columns are the target's own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from sluice.model.column_types import ColumnKind
from sluice.model.definitions import ColumnDefinition, TableDefinition
from sluice.model.planned import PlannedColumn, PlannedTable, created_by
from sluice.model.row_effects import ColumnEffect
from sluice.model.schema_changes import ChangeKind, ColumnChange
from sluice.model.tables import TableId, quoted, quoted_table
from sluice.mysql.ddl.ast import ColumnSpec
from sluice.mysql.literals import text_literal
from sluice.mysql.type_loss import SqlType, loss
from sluice.targets.mysql.column_types import Server, column_type, is_long_key
from sluice.targets.mysql.extras import LONGEST_NAME, attributes, default_here, index_lines
from sluice.targets.mysql.held import MysqlHeld, declared_words
from sluice.targets.mysql.table_info import ColumnInfo, TableInfo
from sluice.targets.mysql.tables import create_table
from sluice.targets.port import SchemaChange
from sluice.targets.schema.conversions import effects_on, not_converted
from sluice.targets.schema.plan import (
    AddColumn,
    AlterTable,
    ChangeColumn,
    CreateTable,
    DropTable,
    EmptyTable,
    RenameTable,
    steps_of,
    type_of,
)
from sluice.targets.schema.policy import Answer, added_by_hand, has, not_filled, not_followed

K = ChangeKind
T = ColumnKind
SETTINGS = "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', time_zone = '+00:00'"
"""A value that does not fit is an error, and times are UTC, as those of rows are."""
_TEXTS = frozenset({T.CHAR, T.VARCHAR, T.TEXT, T.ENUM, T.SET})
_CHARSET, _COLLATION = "utf8mb4", "utf8mb4_0900_bin"
"""The comparison of texts by their bytes, blanks at the end too: no other makes fewer rows of them than the source."""
_TYPES = frozenset({K.WIDEN_COLUMN, K.CHANGE_COLUMN})

Specs = Callable[[TableId], Mapping[str, ColumnSpec]]
"""The columns of one of the target's tables as its SHOW CREATE TABLE writes them, by their names in lower case."""
Indexes = Callable[[TableId], Collection[str]]
"""The names of a table's indexes, in lower case."""


@dataclass(frozen=True, slots=True)
class Types:
    """The types that columns of a source get here. ``mariadb``: the target is."""

    change: SchemaChange
    mariadb: bool

    def planned(self, column: ColumnDefinition, name: str, key: Sequence[str] = ()) -> PlannedColumn:
        """Return the plan of a column. ``key``: the source's key. Raises LoadError for a type that is not known."""
        column_type = type_of(self.change, column)
        keyed = [key_column.lower() for key_column in key]
        place = keyed.index(column.name.lower()) + 1 if column.name.lower() in keyed else 0
        charset, collation = (_CHARSET, _COLLATION) if column_type.kind in _TEXTS else ("", "")
        return PlannedColumn(
            name,
            "",
            place,
            column.generated is not None,
            charset,
            collation,
            nullable=column.nullable,
            type=column_type,
            definition=column,
            default=self.change.meaning.default_value(column),
        )

    def word(self, column: ColumnDefinition, table: TableDefinition) -> str:
        """Return the type of a column of ``table`` as a statement writes it, with its charset and collation."""
        parts = [
            self.planned(column, column.name, table.row_key) for column in table.columns if column.generated is None
        ]
        long = max(1, sum(map(is_long_key, parts)))
        planned = self.planned(column, column.name, table.row_key)
        return column_type(planned, Server(self.mariadb), key_parts=long)


class FollowedHeld(MysqlHeld):
    """The traces of such a statement in the catalog: its types are the target's own for the source's."""

    def __init__(self, change: SchemaChange, infos: Mapping[TableId, TableInfo], cursor: Any, *, mariadb: bool) -> None:
        super().__init__(change, infos, cursor, mariadb=mariadb)
        self.types = Types(change, mariadb)

    def type(self, table: TableId, name: str, part: ColumnChange, effect: ColumnEffect | None) -> Answer:
        """Compare the declared type with the one of the change, which it may exceed.

        Rows that the source converted leave no trace in it (UNSEEN).
        """
        assert part.old is not None
        assert part.new is not None
        column, info = self.info(table, name), self.infos[table]
        primary = next((key.parts for key in info.keys if key.name == "PRIMARY"), ())
        keyed = name.casefold() in {key_column.casefold() for key_column, _ in primary}
        old, new = (
            column_type(
                self.types.planned(definition, name, (definition.name,) if keyed else ()), Server(self.types.mariadb)
            )
            for definition in (part.old, part.new)
        )
        if _same(column.sql_type, new) and not _same(old, new):
            return Answer.HAS  # somebody changed it
        if effect is not None:
            return Answer.UNSEEN
        return has(_holds(column, new))

    def attributes(self, table: TableId, name: str, part: ColumnChange) -> Answer:
        """Compare the comment, and only whether there is a default at all: its text is this server's own."""
        assert part.new is not None
        [(default, comment)] = self._rows(
            "SELECT column_default, column_comment FROM information_schema.columns "
            "WHERE table_schema = %s AND table_name = %s AND column_name = %s",
            (table.schema, table.table, name),
        )
        old, new = part.old, part.new
        if old is not None and old.comment != new.comment and str(comment or "") != new.comment:
            return Answer.LACKS
        if old is None or old.default == new.default:
            return Answer.HAS
        has_default = default is not None and str(default).upper() != "NULL"
        if (new.default is None) is has_default:
            return Answer.LACKS
        return Answer.HAS if new.default is None or old.default is None else Answer.UNSEEN


def _same(first_type: str, second_type: str) -> bool:
    return declared_words(first_type) == declared_words(second_type)


def _holds(column: ColumnInfo, needed_type: str) -> bool:
    """Return True if a column holds every value of a type."""
    return not loss(SqlType.parse(needed_type, column.charset), SqlType.parse(column.sql_type, column.charset))


@dataclass(frozen=True, slots=True)
class Follower:
    """Makes the statements of one change.

    Attributes:
        infos: the target's tables before it. held: what they show. has_rows: asks whether a table has any.
        specs, indexes: see there; asked only for a table that changes. mariadb: the target is.
    """

    change: SchemaChange
    infos: Mapping[TableId, TableInfo]
    held: FollowedHeld
    has_rows: Callable[[TableId], bool]
    specs: Specs
    indexes: Indexes
    mariadb: bool = False

    @property
    def types(self) -> Types:
        """The types that columns get."""
        return Types(self.change, self.mariadb)

    def statements(self) -> list[str]:
        """Return what to run, in order; empty if the target has it already. Raises LoadError."""
        statements: list[str] = []
        for step in steps_of(self.change, self.held):
            match step:
                case DropTable(table):
                    statements.append(f"DROP TABLE IF EXISTS {quoted_table(table)}")
                case EmptyTable(table):
                    statements.append(f"TRUNCATE TABLE {quoted_table(table)}")
                case RenameTable(table, to):
                    self._refuse_long([to.schema, to.table])
                    statements.append(f"RENAME TABLE {quoted_table(table)} TO {quoted_table(to)}")
                case CreateTable():
                    statements.append(self._created(step))
                case AlterTable():
                    statements += self._altered(step)
        return statements

    # -- inside ----------------------------------------------------------------------------------------------------
    def _refuse_long(self, names: Sequence[str]) -> None:
        name = next((name for name in names if len(name) > LONGEST_NAME), "")
        if name:
            raise not_followed(self.change, f"the name {name!r} is longer than {LONGEST_NAME} characters")

    def _created(self, step: CreateTable) -> str:
        after, keyed = step.after, step.after.primary_key or self.change.mapping.route(step.source).key
        self._refuse_long([step.table.schema, step.table.table, *(added.name for added in step.columns)])
        names = {added.column.name.lower(): added.name for added in step.columns}
        plan = PlannedTable(
            step.table,
            step.source,
            tuple(self.types.planned(added.column, added.name, keyed) for added in step.columns),
            dialect=self.change.statement.dialect,
            created=created_by(after, lambda name: names.get(name.lower())),
        )
        return create_table(plan, Server(self.mariadb))

    def _altered(self, step: AlterTable) -> list[str]:
        place = quoted_table(step.table)
        self._refuse_long([name for _, name in step.renames])
        removed_indexes, new_indexes = self._indexes_changed(step)
        clauses = [f"DROP COLUMN {quoted(name)}" for name in step.drops]
        clauses += [f"DROP KEY {quoted(name)}" for name in removed_indexes]
        clauses += self._columns(step)
        clauses += [self._added(step, added) for added in step.new]
        clauses += [*self._key(step), *(f"ADD {line}" for line in new_indexes)]
        clauses += [f"COMMENT = {text_literal(step.comment)}"] if step.comment is not None else []
        statements = [f"ALTER TABLE {place} {', '.join(clauses)}"] if clauses else []
        self._refuse_conversions(step, "; ".join(statements))
        return [*([f"TRUNCATE TABLE {place}"] if step.copied else []), *statements]

    def _refuse_conversions(self, step: AlterTable, statement: str) -> None:
        """Raise LoadError for values that the source converted: nobody knows how, so that this server is not asked to.

        ``statement``: makes the change, for people.
        """
        columns = self.held.columns(step.table) or {}
        for effect in effects_on(self.change, step.source):
            names = [self.held.column(step.one, definition.name) for definition in (effect.old, effect.new)]
            if any(name is not None and name.casefold() in columns for name in names) and self.has_rows(step.table):
                raise not_converted(self.change, effect, step.table, by_hand=statement)

    # -- columns ---------------------------------------------------------------------------------------------------
    def _columns(self, step: AlterTable) -> Iterator[str]:
        """Yield a clause for each column that has another name or definition."""
        was = {new: old for old, new in step.renames}
        parts: dict[str, list[ChangeColumn]] = {}
        for part in step.changes:
            parts.setdefault(part.name, []).append(part)
        changed = {name: self._changed(step, some) for name, some in parts.items()}
        for column in self._newly_keyed(step):
            name = self.held.column(step.one, column.name) or column.name
            info = self._info(step.table, was.get(name, name))
            if info is not None and not changed.get(name):
                definition = self._kept(step.table, info, self.types.word(column, step.after), nullable=False)
                changed[name] = _clause(info.name, name, definition)
        for old, new in step.renames:
            if not changed.get(new):
                yield f"RENAME COLUMN {quoted(old)} TO {quoted(new)}"
        yield from filter(None, changed.values())

    def _newly_keyed(self, step: AlterTable) -> Iterator[ColumnDefinition]:
        """Yield columns of a new key that this server takes into one only with another type."""
        if step.key is None:
            return
        before = {name.lower() for name in step.before.row_key}
        for name in step.after.row_key:
            column = step.after.column(name)
            if name.lower() not in before and is_long_key(self.types.planned(column, name, step.after.row_key)):
                yield column

    def _info(self, table: TableId, name: str) -> ColumnInfo | None:
        return next((column for column in self.infos[table].columns if column.name.casefold() == name.casefold()), None)

    def _changed(self, step: AlterTable, parts: Sequence[ChangeColumn]) -> str:
        """Return the clause for all that changed of one column besides its name, "" if the target has it."""
        was, name, old, new = parts[0].was, parts[0].name, parts[0].old, parts[0].new
        info = self._info(step.table, was)
        if info is None or info.generated:
            return ""
        kinds = {part.kind for part in parts}
        word = self._retyped(info, kinds, self.types.word(old, step.before), self.types.word(new, step.after))
        nullable = (info.nullable or K.ALLOW_NULL in kinds) and K.REQUIRE_VALUE not in kinds
        attributes = K.COLUMN_ATTRIBUTES in kinds
        defaulted, commented = attributes and old.default != new.default, attributes and old.comment != new.comment
        default = default_here(self.types.planned(new, name)).later if defaulted else None
        if not word and nullable is info.nullable and not commented and (was == name or not defaulted):
            if not defaulted:
                return ""
            return f"ALTER COLUMN {quoted(name)} {f'SET DEFAULT {default}' if default else 'DROP DEFAULT'}"
        comment = new.comment if commented else None
        definition = self._kept(step.table, info, word, nullable=nullable, default=default, comment=comment)
        return _clause(was, name, definition)

    def _retyped(self, info: ColumnInfo, kinds: Set[ChangeKind], old: str, new: str) -> str:
        """Return the type that the column needs, "" if the one that it has will do."""
        if not kinds & _TYPES or _same(info.sql_type, new):
            return ""
        widens = K.WIDEN_COLUMN in kinds or _same(old, new)
        return "" if widens and _holds(info, new) else new

    def _kept(
        self,
        table: TableId,
        info: ColumnInfo,
        word: str,
        *,
        nullable: bool,
        default: str | None = None,
        comment: str | None = None,
    ) -> str:
        """Return a column's definition behind its name: what the target has, but for what is given here."""
        spec = self.specs(table).get(info.name.lower())
        collated = f" CHARACTER SET {info.charset} COLLATE {info.collation}" if info.charset else ""
        parts = [word or f"{info.sql_type}{collated}", "NULL" if nullable else "NOT NULL"]
        default_sql = spec.default if spec is not None else None
        if default_sql is not None and not nullable and default_sql.upper() == "NULL":
            default_sql = None
        if default is not None:
            default_sql = default
        parts += [f"DEFAULT {default_sql}"] if default_sql else []
        if spec is not None:
            parts += [f"ON UPDATE {spec.on_update}"] if spec.on_update else []
            parts += ["AUTO_INCREMENT"] if spec.auto_increment else []
            parts += ["INVISIBLE"] if spec.invisible else []
        comment_text = comment if comment is not None else spec.comment if spec is not None else ""
        return " ".join([*parts, *([f"COMMENT {text_literal(comment_text)}"] if comment_text else [])])

    def _added(self, step: AlterTable, added: AddColumn) -> str:
        """Return the clause of a new column. Raises LoadError if the values in rows that are there are not known."""
        column, word = added.column, self.types.word(added.column, step.after)
        planned = self.types.planned(column, added.name)
        default = default_here(planned)
        self._refuse_long([added.name])
        why = default.why
        if not why and default.rows == "NULL" and column.auto_increment:
            why = "the source has numbered its rows"
        if not why and default.rows == "NULL" and not column.nullable:
            why = "it is NOT NULL and has no default, so that another statement gave the source's rows their values"
        if why and self.has_rows(step.table):
            by_hand = f"ALTER TABLE {quoted_table(step.table)} ADD COLUMN {quoted(added.name)} {word} NULL"
            raise not_filled(self.change, step.table, added.name, why, added_by_hand(by_hand))
        return f"ADD COLUMN {quoted(added.name)} {word} {attributes(planned, nullable=column.nullable)}"

    # -- keys ------------------------------------------------------------------------------------------------------
    def _key(self, step: AlterTable) -> list[str]:
        if step.key is None:
            return []
        info, key_names = self.infos[step.table], {name.casefold() for name in step.key}
        if key_names and any({name.casefold() for name in key} == key_names for key in info.unique_keys):
            return []
        clauses = ["DROP PRIMARY KEY"] if any(key.name == "PRIMARY" for key in info.keys) else []
        return [*clauses, *([f"ADD PRIMARY KEY ({', '.join(map(quoted, step.key))})"] if key_names else [])]

    def _indexes_changed(self, step: AlterTable) -> tuple[list[str], list[str]]:
        """Return the names of indexes that go, and the definitions of new ones.

        A renamed column has its new name in them by itself.
        """
        if not step.indexes:
            return [], []
        renamed = {
            part.old.name.lower(): part.new.name
            for part in step.parts
            if part.kind is K.RENAME_COLUMN and part.old is not None and part.new is not None
        }
        before = self._lines(step.before, lambda name: self.held.column(step.one, renamed.get(name.lower(), name)))
        after = self._lines(step.after, lambda name: self.held.column(step.one, name))
        existing = {name.lower() for name in self.indexes(step.table)}
        removed_names = [name for name, line in before.items() if after.get(name) != line and name.lower() in existing]
        staying = existing - {name.lower() for name in removed_names}
        lines = [line for name, line in after.items() if before.get(name) != line and name.lower() not in staying]
        return removed_names, lines

    def _lines(self, table: TableDefinition, naming: Callable[[str], str | None]) -> dict[str, str]:
        """Return the definitions of the indexes that the target shall have, by name.

        ``naming``: the target's name of a source column.
        """
        columns = (self.types.planned(column, naming(column.name) or "", table.row_key) for column in table.columns)
        columns_by_name = {column.name.casefold(): column for column in columns if column.name and not column.generated}
        return index_lines(created_by(table, naming).indexes, columns_by_name)


def _clause(was: str, name: str, definition: str) -> str:
    if was == name:
        return f"MODIFY COLUMN {quoted(name)} {definition}"
    return f"CHANGE COLUMN {quoted(was)} {quoted(name)} {definition}"
