"""The plan of a schema change as statements of PostgreSQL, see :mod:`sluice.targets.schema.plan`.

PostgreSQL's definitions change in transactions: the statements and the note that they ran commit together. Followed are
tables and columns with their types, NULL, defaults, comments and the primary key, and by choice other indexes. Counters
and generated columns are the target's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sluice.model.column_types import ColumnType
from sluice.model.definitions import ColumnDefinition, TableDefinition
from sluice.model.schema_changes import ChangeKind
from sluice.model.tables import TableId
from sluice.postgresql.names import LONGEST_BYTES, quoted, quoted_table, too_long
from sluice.postgresql.type_names import pg_type
from sluice.targets.port import SchemaChange
from sluice.targets.postgresql import extras
from sluice.targets.postgresql.catalog import ColumnInfo, TableInfo, Wanted
from sluice.targets.postgresql.collations import Collation, clause
from sluice.targets.postgresql.column_types import holds_all, own_type
from sluice.targets.postgresql.conversions import excluded, is_done, rendered
from sluice.targets.postgresql.defaults import default_of
from sluice.targets.postgresql.extras import Index
from sluice.targets.postgresql.held import Exists, PostgresHeld
from sluice.targets.schema.conversions import broken, effects_on, not_converted
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
from sluice.targets.schema.policy import added_by_hand, not_filled, not_followed, require_held
from sluice.targets.sql.names import Naming

K = ChangeKind
FOLLOWED = frozenset(ChangeKind) - {
    K.CREATE_DATABASE, K.ALTER_DATABASE, K.DROP_DATABASE, K.ROWS_REMOVED, K.ROWS_REPLACED, K.UNKNOWN, K.NOTHING,
}  # fmt: skip
"""Kinds of change that are followed.

Options and partitions need nothing here, and other keys nothing without ``options.indexes``.
"""

_WHOLE = ("smallint", "integer", "bigint", "numeric")
_TEXTS = ("text", "character varying")
_CASTS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(_WHOLE, (*_WHOLE, *_TEXTS)),
    **dict.fromkeys(_TEXTS, _TEXTS),
    "real": ("double precision",),
    "date": ("date", "timestamp without time zone"),
    **{
        word: (word,)
        for word in (
            "bytea",
            "geometry",
            "timestamp without time zone",
            "timestamp with time zone",
            "interval",
            "double precision",
        )
    },
}
"""Types whose values PostgreSQL converts as MySQL does: type -> types."""

Ask = Callable[[TableId, str], bool]
"""True if the table has rows for which a condition holds."""


@dataclass(frozen=True, slots=True)
class Follower:
    """Makes the statements of one change.

    ``infos``: the target's tables before it; ``spelling``: what tables and columns are called; ``wanted``: how what is
    made is made; ``exists``: asks the catalog.
    """

    change: SchemaChange
    infos: Mapping[TableId, TableInfo]
    has_rows: Ask
    spelling: Naming
    wanted: Wanted
    exists: Exists = lambda query, parameters: False

    def statements(self) -> list[str]:
        """Return what to run, in order; empty if the target has it already. Raises LoadError."""
        answers = PostgresHeld(self.change, self.infos, self.spelling, self.wanted, self.exists)
        if self.change.check_only:
            require_held(self.change, answers)
            return []
        statements: list[str] = []
        for step in steps_of(self.change, answers):
            match step:
                case DropTable(table):
                    statements.append(f"DROP TABLE {quoted_table(table)}")
                case EmptyTable(table):
                    statements.append(f"TRUNCATE TABLE {quoted_table(table)}")
                case RenameTable():
                    statements += self._renamed(step)
                case CreateTable():
                    statements += self._created(step)
                case AlterTable():
                    statements += self._altered(step, answers)
        return statements

    # -- inside ----------------------------------------------------------------------------------------------------
    def _schema(self, name: str) -> list[str]:
        """Return the statement that makes a schema if it is missing: also IF NOT EXISTS takes the right to make it."""
        exists = self.exists("SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = %s", (name,))
        return [] if exists else [f"CREATE SCHEMA IF NOT EXISTS {quoted(name)}"]

    def _renamed(self, step: RenameTable) -> list[str]:
        old, new = step.table, step.to
        statements = []
        if old.table != new.table:
            statements.append(f"ALTER TABLE {quoted_table(old)} RENAME TO {quoted(new.table)}")
        if old.schema != new.schema:
            between = TableId(old.schema, new.table)
            statements += [
                *self._schema(new.schema),
                f"ALTER TABLE {quoted_table(between)} SET SCHEMA {quoted(new.schema)}",
            ]
        if self.wanted.indexes and step.before is not None and old.table != new.table:
            place = quoted(new.schema)
            statements += [
                f"ALTER INDEX IF EXISTS {place}.{quoted(extras.index_name(old, index.name))} RENAME TO "
                f"{quoted(extras.index_name(new, index.name))}"
                for index in extras.plain_indexes(step.before)
            ]
        return statements

    def _type(self, column: ColumnDefinition) -> ColumnType:
        return type_of(self.change, column)

    def _created(self, step: CreateTable) -> list[str]:
        target, after = step.table, step.after
        lines: list[str] = []
        collations: dict[str, None] = {}
        primary = {name.lower() for name in after.row_key}
        for added in step.columns:
            column, column_type = added.column, self._type(added.column)
            collation = self._collated(target, column, after.row_key)
            if collation is not None:
                collations[collation.create] = None
            words = [quoted(added.name), self._own_type(column_type) + clause(collation)]
            if not column.nullable or column.name.lower() in primary:
                words.append("NOT NULL")
            later = self._default(column, column_type).later
            lines.append(" ".join([*words, *([f"DEFAULT {later}"] if later else [])]))
        self._refuse_long([target.schema, target.table, *step.key, *(added.name for added in step.columns)])
        if step.key:
            lines.append(f"PRIMARY KEY ({', '.join(map(quoted, step.key))})")
        names = {added.column.name.lower(): added.name for added in step.columns}
        return [
            *self._schema(target.schema),
            *collations,
            f"CREATE TABLE {quoted_table(target)} ({', '.join(lines)})",
            *([extras.comment_on_table(target, after.comment)] if after.comment else []),
            *(
                extras.comment_on_column(target, column.name, column.column.comment)
                for column in step.columns
                if column.column.comment
            ),
            *(index.create(target) for index in self._indexes(after, lambda name: names.get(name.lower()))),
        ]

    def _indexes(self, table: TableDefinition, naming: Callable[[str], str | None]) -> list[Index]:
        """Return those that the target shall have. ``naming``: the target's name of a source column."""
        if not self.wanted.indexes:
            return []
        indexes = []
        for index in extras.plain_indexes(table):
            columns = [table.column(name) for name, _ in index.columns]
            names = [naming(column.name) for column in columns]
            if any(column.generated is not None for column in columns) or not extras.entry_fits(
                list(map(self._type, columns))
            ):
                continue
            if None not in names:
                indexes.append(Index(index.name, tuple(name for name in names if name is not None), index.unique))
        return indexes

    def _refuse_long(self, names: Iterable[str]) -> None:
        name = too_long(names)
        if name:
            raise not_followed(self.change, f"the name {name!r} is longer than {LONGEST_BYTES} bytes")

    def _altered(self, step: AlterTable, answers: PostgresHeld) -> list[str]:
        target, info, place = step.table, self.infos[step.table], quoted_table(step.table)
        columns = {column.name.casefold(): column for column in info.columns}
        values = self._converted_values(step, answers, columns)
        statements = [f"TRUNCATE TABLE {place}"] if step.copied else []
        statements += [f"ALTER TABLE {place} DROP COLUMN {quoted(name)}" for name in step.drops]
        statements += self._columns_renamed(step)
        for part in step.changes:
            statements += self._changed(part, columns[part.was.casefold()], step, values)
        for added in step.adds:
            statements += [] if added.there else self._added(added.column, added.name, step)
        statements += self._updates(target, values)
        if step.key is not None:
            statements += self._key(info, target, step.key)
        if step.comment is not None:
            statements.append(extras.comment_on_table(target, step.comment))
        if step.indexes:
            statements += self._indexes_changed(step, answers)
        return statements

    def _indexes_changed(self, step: AlterTable, answers: PostgresHeld) -> list[str]:
        """Return statements for other indexes.

        A renamed column has its new name in them by itself; a dropped one has taken its indexes along.
        """
        renamed = {
            part.old.name.lower(): part.new.name
            for part in step.parts
            if part.kind is K.RENAME_COLUMN and part.old is not None and part.new is not None
        }
        before = self._indexes(step.before, lambda name: answers.column(step.one, renamed.get(name.lower(), name)))
        after = self._indexes(step.after, lambda name: answers.column(step.one, name))
        drops = [index.drop(step.table) for index in before if index not in after]
        return drops + [index.create(step.table) for index in after if index not in before]

    def _columns_renamed(self, step: AlterTable) -> list[str]:
        """Rename columns. They may swap their names: where one takes another's, all go through names in between."""
        self._refuse_long(name for _, name in step.renames)
        alter = f"ALTER TABLE {quoted_table(step.table)} RENAME COLUMN"
        if not {old for old, _ in step.renames} & {name for _, name in step.renames}:
            return [f"{alter} {quoted(old)} TO {quoted(name)}" for old, name in step.renames]
        between = [quoted(f"_sluice_renamed_{number}") for number in range(len(step.renames))]
        return [
            *(f"{alter} {quoted(old)} TO {place}" for (old, _), place in zip(step.renames, between, strict=True)),
            *(f"{alter} {place} TO {quoted(name)}" for (_, name), place in zip(step.renames, between, strict=True)),
        ]

    def _changed(
        self, part: ChangeColumn, held_column: ColumnInfo, step: AlterTable, values: dict[str, str]
    ) -> list[str]:
        """Return statements for one change of a column that was ``held_column``.

        ``values``: expressions of converted values by the target's name; one that a change of type uses is taken out.
        """
        column = f"ALTER TABLE {quoted_table(step.table)} ALTER COLUMN {quoted(part.name)}"
        if part.kind is K.ALLOW_NULL:
            return [] if held_column.nullable else [f"{column} DROP NOT NULL"]
        if part.kind is K.REQUIRE_VALUE:
            return [f"{column} SET NOT NULL"] if held_column.nullable else []
        if part.kind is K.COLUMN_ATTRIBUTES:
            new = part.new
            differs = new.comment != part.old.comment
            comment = [extras.comment_on_column(step.table, part.name, new.comment)] if differs else []
            if part.old.default == new.default:
                return comment
            later = self._default(new, self._type(new)).later
            return [f"{column} SET DEFAULT {later}" if later else f"{column} DROP DEFAULT", *comment]
        if part.kind in {K.WIDEN_COLUMN, K.CHANGE_COLUMN}:
            return self._converted(
                part, held_column, column, self._collated(step.table, part.new, step.after.row_key), values
            )
        return []

    def _converted_values(
        self, step: AlterTable, names: PostgresHeld, columns: Mapping[str, ColumnInfo]
    ) -> dict[str, str]:
        """Return expressions that convert the values which the target has, by the target's name of the column after the
        statement.

        ``columns``: the target's columns now. Raises LoadError for values that the target cannot convert as the source
        did.
        """
        target = step.table
        values: dict[str, str] = {}
        for effect in effects_on(self.change, step.source):
            was, name = (names.column(step.one, each.name) for each in (effect.old, effect.new))
            column = columns.get(was.casefold()) if was is not None else None
            if column is None and name is not None:
                column = columns.get(name.casefold())  # somebody was here before
            if column is None or name is None:
                continue
            if effect.unknown:
                raise not_converted(self.change, effect, target)
            called = name if effect.old.name != effect.new.name else column.name
            held_pg_type, now, later = pg_type(column.declared), quoted(column.name), quoted(called)
            for conversion in effect.steps:
                condition = excluded(now, conversion)
                if condition is not None:
                    if self.has_rows(target, condition):
                        raise not_converted(self.change, effect, target, broken(conversion.kind))
                    continue
                if is_done(conversion, held_pg_type):
                    continue
                converted = rendered(later, conversion, held_pg_type)
                if converted is None:
                    why = f"PostgreSQL does not convert {column.declared} so ({conversion.kind.value})"
                    raise not_converted(self.change, effect, target, why)
                later = converted
            if later != quoted(called):
                values[called] = later
        return values

    def _updates(self, target: TableId, values: Mapping[str, str]) -> list[str]:
        """Return statements for values that change in columns whose type stays."""
        return [
            f"UPDATE {quoted_table(target)} SET {quoted(name)} = {value} WHERE {quoted(name)} IS DISTINCT FROM {value}"  # noqa: S608 - quoted
            for name, value in values.items()
        ]

    def _converted(
        self,
        part: ChangeColumn,
        held_column: ColumnInfo,
        column: str,
        collation: Collation | None,
        values: dict[str, str],
    ) -> list[str]:
        old, new, held_type = self._type(part.old), self._type(part.new), pg_type(held_column.declared)
        new_type = self._own_type(new)
        same = pg_type(self._own_type(old)).word == pg_type(new_type).word
        if holds_all(new, held_type) and (same or part.kind is K.WIDEN_COLUMN):
            return []
        if new_type == held_column.declared and same:
            return []
        emptied = bool(self.change.copies)
        if pg_type(new_type).word not in _CASTS.get(held_type.word, ()) and not emptied:
            raise not_followed(
                self.change,
                f"PostgreSQL converts {held_column.declared} to {new_type} in its own way, if at all",
                f"run it by hand ({column} TYPE {new_type} USING …)",
            )
        statements = [collation.create] if collation is not None else []
        value = values.pop(part.name, "")
        using = f" USING NULL::{new_type}" if emptied else f" USING {value}::{new_type}" if value else ""
        return [*statements, f"{column} DROP DEFAULT", f"{column} TYPE {new_type}{clause(collation)}{using}"]

    def _default(self, column: ColumnDefinition, column_type: ColumnType) -> Default:
        return default_of(column, column_type, self.change.meaning.default_value(column), self.wanted.zero_dates)

    def _own_type(self, column_type: ColumnType) -> str:
        return own_type(column_type, self.wanted.json, self.wanted.spatial)

    def _collated(self, target: TableId, column: ColumnDefinition, key: Sequence[str]) -> Collation | None:
        """Return the ICU collation of a column that is made, None for the database's own."""
        keyed = column.name.lower() in {name.lower() for name in key}
        return self.wanted.collations.of(target, self._type(column), key=keyed)

    def _added(self, column: ColumnDefinition, name: str, step: AlterTable) -> list[str]:
        target = step.table
        column_type, collation = self._type(column), self._collated(target, column, step.after.row_key)
        self._refuse_long([name])
        kind, default = self._own_type(column_type), self._default(column, column_type)
        place, required = quoted_table(target), "" if column.nullable else " NOT NULL"
        alter = f"ALTER TABLE {place} ALTER COLUMN {quoted(name)}"
        value = default.rows
        if value is None:
            if self.has_rows(target, "true"):
                by_hand = f"ALTER TABLE {place} ADD COLUMN {quoted(name)} {kind}"
                raise not_filled(self.change, target, name, default.why, added_by_hand(by_hand))
            value = "NULL"
        preset = f" DEFAULT {value}" if value != "NULL" else ""
        statements = [collation.create] if collation is not None else []
        statements.append(f"ALTER TABLE {place} ADD COLUMN {quoted(name)} {kind}{clause(collation)}{preset}{required}")
        if default.later != (value if preset else ""):
            statements.append(f"{alter} SET DEFAULT {default.later}" if default.later else f"{alter} DROP DEFAULT")
        if column.comment:
            statements.append(extras.comment_on_column(target, name, column.comment))
        return statements

    def _key(self, info: TableInfo, target: TableId, names: Sequence[str]) -> list[str]:
        if any(
            key.arbiter and {c.casefold() for c in key.columns} == {c.casefold() for c in names} for key in info.keys
        ):
            return []
        place = quoted_table(target)
        drop = [f"ALTER TABLE {place} DROP CONSTRAINT {quoted(info.primary)}"] if info.primary else []
        return [
            *drop,
            *([f"ALTER TABLE {place} ADD PRIMARY KEY ({', '.join(map(quoted, names))})"] if names else []),
        ]
