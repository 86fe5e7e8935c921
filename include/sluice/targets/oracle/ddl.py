"""The plan of a schema change as statements of Oracle, see :mod:`sluice.targets.schema.plan`.

Each statement commits by itself, so that what has run is noted after each. Followed are tables and columns with their
types, NULL, defaults, comments and the primary key. Counters, generated columns and other indexes are the target's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from sluice.model.column_types import ColumnType
from sluice.model.definitions import ColumnDefinition
from sluice.model.row_effects import ColumnEffect
from sluice.model.schema_changes import ChangeKind, ColumnChange
from sluice.model.tables import TableId
from sluice.targets.oracle.catalog import ColumnInfo, TableInfo, Wanted, comment_on_column, comment_on_table
from sluice.targets.oracle.column_types import OracleType, holds_all, oracle_type, own_type
from sluice.targets.oracle.defaults import default_of
from sluice.targets.port import SchemaChange
from sluice.targets.schema.conversions import effects_on, not_converted
from sluice.targets.schema.defaults import Default
from sluice.targets.schema.plan import (
    AlterTable,
    ChangeColumn,
    CreateTable,
    DropTable,
    EmptyTable,
    RenameTable,
    steps_of,
    type_of,
)
from sluice.targets.schema.policy import (
    FOLLOWED_BY_NAME,
    Answer,
    added_by_hand,
    has,
    not_filled,
    not_followed,
    require_held,
)
from sluice.targets.sql.held import SpelledHeld
from sluice.targets.sql.names import Naming, quoted, quoted_table, too_long


class OracleHeld(SpelledHeld[TableInfo, ColumnInfo]):
    """See :class:`sluice.targets.schema.policy.Held`. Other indexes than the key are the target's own choice."""

    def __init__(
        self, change: SchemaChange, infos: Mapping[TableId, TableInfo], spelling: Naming, settings: Wanted
    ) -> None:
        super().__init__(change, infos, spelling)
        self.wanted = settings

    def type(self, table: TableId, name: str, part: ColumnChange, effect: ColumnEffect | None) -> Answer:
        """Compare the declared type with the one of the change, which it may exceed.

        Rows that the source converted leave no trace in it (UNSEEN).
        """
        declared = self.info(table, name).declared
        old, new = (
            self.change.meaning.types.get(column) if column is not None else None for column in (part.old, part.new)
        )
        size = self.wanted.string_bytes
        if new is not None and declared == own_type(new, size) and (old is None or declared != own_type(old, size)):
            return Answer.HAS  # somebody changed it
        if effect is not None or new is None:
            return Answer.UNSEEN
        return has(holds_all(new, oracle_type(declared)))

    def nullable(self, table: TableId, name: str) -> bool | None:
        """Return True if the dictionary's column takes NULL; None if that is the target's own choice."""
        column = self.info(table, name)
        return None if column.nullable and self.wanted.empty_strings == "null" else column.nullable

    def attributes(self, table: TableId, name: str, part: ColumnChange) -> Answer:
        """Compare only whether there is a default at all: its text is Oracle's own."""
        if part.old is None or part.new is None or part.old.default == part.new.default:
            return Answer.HAS
        if (part.new.default is None) is self.info(table, name).default:
            return Answer.LACKS
        return Answer.HAS if part.new.default is None or part.old.default is None else Answer.UNSEEN

    def key(self, table: TableId, names: tuple[str, ...]) -> Answer:
        """Return HAS if a unique key has these columns; without names, if there is no primary key."""
        column_names = {name.casefold() for name in names}
        keys = [{column.casefold() for column in key.columns} for key in self.infos[table].keys]
        return has(column_names in keys if column_names else not self.infos[table].primary)


K = ChangeKind
FOLLOWED = (FOLLOWED_BY_NAME | {K.PRIMARY_KEY}) - {K.NOTHING}
"""Kinds of change that are followed. Options and partitions, and other keys, need nothing here."""
DONE = frozenset({942, 904, 955, 957, 1418, 1430, 1442, 1451, 2260, 2441, 2443})
"""The errors of a statement that has run already: the table or column is not there any more, or is there already; it is
NULL, NOT NULL or has its key already.
"""
_GROWS = frozenset({"NUMBER", "VARCHAR2", "RAW", "TIMESTAMP", "INTERVAL DAY TO SECOND"})
"""Types that a column with values keeps while it gets longer."""


@dataclass(frozen=True, slots=True)
class Follower:
    """Makes the statements of one change.

    ``infos``: the target's tables before it; ``has_rows``: reads whether a table has rows; ``spelling``: how tables and
    columns are named; ``wanted``: settings for new tables and columns.
    """

    change: SchemaChange
    infos: Mapping[TableId, TableInfo]
    has_rows: Callable[[TableId], bool]
    spelling: Naming
    wanted: Wanted

    def statements(self) -> list[str]:
        """Return the statements to run, in order; none if the target has the change. Raises LoadError."""
        definitions = OracleHeld(self.change, self.infos, self.spelling, self.wanted)
        if self.change.check_only:
            require_held(self.change, definitions)
            return []
        statements: list[str] = []
        for step in steps_of(self.change, definitions):
            match step:
                case DropTable(table):
                    statements.append(f"DROP TABLE {quoted_table(table)}")
                case EmptyTable(table):
                    statements.append(f"TRUNCATE TABLE {quoted_table(table)}")
                case RenameTable():
                    statements.append(self._renamed(step))
                case CreateTable():
                    statements += self._created(step)
                case AlterTable():
                    statements += self._altered(step, definitions)
        return statements

    # -- inside ----------------------------------------------------------------------------------------------------
    def _renamed(self, step: RenameTable) -> str:
        old, new = step.table, step.to
        if old.schema != new.schema:
            raise not_followed(self.change, f"Oracle moves no table from schema {old.schema} to {new.schema}")
        self._refuse_long([new.table])
        return f"ALTER TABLE {quoted_table(old)} RENAME TO {quoted(new.table)}"

    def _created(self, step: CreateTable) -> list[str]:
        target, after = step.table, step.after
        primary = {name.lower() for name in after.row_key}
        lines: list[str] = []
        for added in step.columns:
            column, key = added.column, added.column.name.lower() in primary
            column_type = type_of(self.change, column)
            later = self._default(column, column_type).later
            words = [quoted(added.name), own_type(column_type, self.wanted.string_bytes, key=key)]
            words += [f"DEFAULT {later}"] if later else []
            lines.append(" ".join([*words, *(["NOT NULL"] if key or self._required(column, column_type) else [])]))
        self._refuse_long([target.schema, target.table, *step.key, *(added.name for added in step.columns)])
        if step.key:
            lines.append(f"PRIMARY KEY ({', '.join(map(quoted, step.key))})")
        return [
            f"CREATE TABLE {quoted_table(target)} ({', '.join(lines)})",
            *([comment_on_table(target, after.comment)] if after.comment else []),
            *(
                comment_on_column(target, added.name, added.column.comment)
                for added in step.columns
                if added.column.comment
            ),
        ]

    def _refuse_long(self, names: Iterable[str]) -> None:
        name = too_long(names, self.wanted.longest_bytes)
        if name:
            raise not_followed(self.change, f"the name {name!r} is longer than {self.wanted.longest_bytes} bytes")

    def _required(self, column: ColumnDefinition, column_type: ColumnType) -> bool:
        return not column.nullable and not self.wanted.may_be_null(column_type.arrow_type)

    def _default(self, column: ColumnDefinition, column_type: ColumnType) -> Default:
        value = self.change.meaning.default_value(column)
        return default_of(column, column_type, value, self.wanted.empty_strings, self.wanted.zero_dates)

    def _altered(self, step: AlterTable, definitions: OracleHeld) -> list[str]:
        place = quoted_table(step.table)
        self._refuse_conversions(step, definitions)
        statements = [f"TRUNCATE TABLE {place}"] if step.copied else []
        statements += [f"ALTER TABLE {place} DROP COLUMN {quoted(name)}" for name in step.drops]
        statements += self._columns_renamed(step)
        for part in step.changes:
            statements += self._changed(part, step, definitions)
        for added in step.new:
            statements += self._added(added.column, added.name, step)
        if step.key is not None:
            statements += self._key(step)
        if step.comment is not None:
            statements.append(comment_on_table(step.table, step.comment))
        return statements

    def _refuse_conversions(self, step: AlterTable, definitions: OracleHeld) -> None:
        """Raise LoadError for values that the source converted: Oracle is not asked to do the same."""
        for effect in effects_on(self.change, step.source):
            name = definitions.column(step.one, effect.new.name)
            columns = definitions.columns(step.table) or {}
            old = definitions.column(step.one, effect.old.name)
            if any(
                column_name is not None and column_name.casefold() in columns for column_name in (name, old)
            ) and self.has_rows(step.table):
                why = "" if effect.unknown else "Oracle is not asked to convert what it holds"
                raise not_converted(self.change, effect, step.table, why)

    def _columns_renamed(self, step: AlterTable) -> list[str]:
        """Rename columns. They may swap their names: where one takes another's, all go through names in between."""
        self._refuse_long(name for _, name in step.renames)
        alter = f"ALTER TABLE {quoted_table(step.table)} RENAME COLUMN"
        if not {old for old, _ in step.renames} & {name for _, name in step.renames}:
            return [f"{alter} {quoted(old)} TO {quoted(name)}" for old, name in step.renames]
        pairs = [(old, quoted(f"SLUICE_RENAMED_{n}"), name) for n, (old, name) in enumerate(step.renames)]
        return [
            *(f"{alter} {quoted(old)} TO {between}" for old, between, _ in pairs),
            *(f"{alter} {between} TO {quoted(name)}" for _, between, name in pairs),
        ]

    def _changed(self, part: ChangeColumn, step: AlterTable, definitions: OracleHeld) -> list[str]:
        """Return statements for one change of a column."""
        stored, new = definitions.info(step.table, part.was), part.new
        modify = f"ALTER TABLE {quoted_table(step.table)} MODIFY ({quoted(part.name)}"
        if part.kind is K.ALLOW_NULL:
            return [] if stored.nullable else [f"{modify} NULL)"]
        if part.kind is K.REQUIRE_VALUE:
            required = self._required(new, type_of(self.change, new))
            return [f"{modify} NOT NULL)"] if stored.nullable and required else []
        if part.kind is K.COLUMN_ATTRIBUTES:
            differs = new.comment != part.old.comment
            comment = [comment_on_column(step.table, part.name, new.comment)] if differs else []
            if part.old.default == new.default:
                return comment
            later = self._default(new, type_of(self.change, new)).later
            return [f"{modify} DEFAULT {later or 'NULL'})", *comment]
        if part.kind in {K.WIDEN_COLUMN, K.CHANGE_COLUMN}:
            return self._converted(part, oracle_type(stored.declared), step)
        return []

    def _converted(self, part: ChangeColumn, stored_type: OracleType, step: AlterTable) -> list[str]:
        key = part.new.name.lower() in {name.lower() for name in step.after.row_key}
        old, new = type_of(self.change, part.old), type_of(self.change, part.new)
        size = self.wanted.string_bytes
        declared = own_type(new, size, key=key)
        same = oracle_type(own_type(old, size, key=key)).word == oracle_type(declared).word
        if holds_all(new, stored_type) and (same or part.kind is K.WIDEN_COLUMN):
            return []
        if declared == stored_type.declared and same:
            return []
        place, name = quoted_table(step.table), quoted(part.name)
        modify = f"ALTER TABLE {place} MODIFY ({name} {declared})"
        empty = step.copied or not self.has_rows(step.table)
        if empty and (oracle_type(declared).is_lob or stored_type.is_lob):
            return [f"ALTER TABLE {place} DROP COLUMN {name}", f"ALTER TABLE {place} ADD ({name} {declared})"]
        grows = oracle_type(declared).word == stored_type.word and stored_type.word in _GROWS
        if not grows and not empty:
            why = f"Oracle changes no {stored_type.declared} with values to {declared}"
            raise not_followed(self.change, why, f"run it by hand ({modify}, or a new column that takes its place)")
        return [modify]

    def _added(self, column: ColumnDefinition, name: str, step: AlterTable) -> list[str]:
        target, column_type = step.table, type_of(self.change, column)
        self._refuse_long([name])
        key = column.name.lower() in {key_name.lower() for key_name in step.after.row_key}
        kind, default = own_type(column_type, self.wanted.string_bytes, key=key), self._default(column, column_type)
        place, required = quoted_table(target), " NOT NULL" if self._required(column, column_type) else ""
        value = default.rows
        if value is None:
            if self.has_rows(target):
                by_hand = f"ALTER TABLE {place} ADD ({quoted(name)} {kind})"
                raise not_filled(self.change, target, name, default.why, added_by_hand(by_hand))
            value = "NULL"
        preset = f" DEFAULT {value}" if value != "NULL" else ""
        statements = [f"ALTER TABLE {place} ADD ({quoted(name)} {kind}{preset}{required})"]
        if default.later != (value if preset else ""):
            statements.append(f"ALTER TABLE {place} MODIFY ({quoted(name)} DEFAULT {default.later or 'NULL'})")
        if column.comment:
            statements.append(comment_on_column(target, name, column.comment))
        return statements

    def _key(self, step: AlterTable) -> list[str]:
        info, key = self.infos[step.table], step.key or ()
        if any({c.casefold() for c in unique_key.columns} == {c.casefold() for c in key} for unique_key in info.keys):
            return []
        place = quoted_table(step.table)
        drops = [f"ALTER TABLE {place} DROP PRIMARY KEY"] if info.primary else []
        return [
            *drops,
            *([f"ALTER TABLE {place} ADD PRIMARY KEY ({', '.join(map(quoted, key))})"] if key else []),
        ]
