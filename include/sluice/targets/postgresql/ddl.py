"""A statement of the source's log as statements for this target, made from the definitions before and after it.

PostgreSQL's definitions change in transactions: the statements and the note that they ran commit together. Followed are tables and columns with their
types, NULL, defaults, comments and the primary key, and by choice other indexes. Counters and generated columns are the target's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from sluice.errors import DecodeError, LoadError
from sluice.model.column_types import ColumnType
from sluice.model.definitions import ColumnDefinition, TableDefinition
from sluice.model.schema_changes import ChangeKind, ColumnChange, TableChange, column_changes
from sluice.model.tables import TableId
from sluice.targets.port import SchemaChange
from sluice.targets.postgresql import extras
from sluice.targets.postgresql.catalog import ColumnInfo, TableInfo, Wanted
from sluice.targets.postgresql.collations import Collation, clause
from sluice.targets.postgresql.column_types import holds_all, own_type, pg_type
from sluice.targets.postgresql.conversions import excluded, is_done, rendered
from sluice.targets.postgresql.defaults import Default, default_of
from sluice.targets.postgresql.extras import Index
from sluice.targets.postgresql.held import Exists, PostgresHeld
from sluice.targets.postgresql.names import LONGEST_BYTES, Naming, quoted, quoted_table, too_long
from sluice.targets.schema.conversions import broken, effects_on, not_converted
from sluice.targets.schema.policy import require_held

K = ChangeKind
FOLLOWED = frozenset(ChangeKind) - {
    K.CREATE_DATABASE, K.ALTER_DATABASE, K.DROP_DATABASE, K.ROWS_REMOVED, K.ROWS_REPLACED, K.UNKNOWN, K.NOTHING,
}  # fmt: skip
"""Kinds of change that are followed. Options and partitions need nothing here, and other keys nothing without ``options.indexes``."""

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

    ``infos``: the target's tables before it; ``spelling``: what tables and columns are called; ``wanted``: how what is made is made;
    ``exists``: asks the catalog.
    """

    change: SchemaChange
    infos: Mapping[TableId, TableInfo]
    has_rows: Ask
    spelling: Naming
    wanted: Wanted
    exists: Exists = lambda query, parameters: False

    def statements(self) -> list[str]:
        """What to run, in order; empty if the target has it already. Raises LoadError."""
        change = self.change
        if change.statement.dialect not in {"mysql", "mariadb"}:
            raise self._by_hand(f"statements of {change.statement.dialect} are not understood", "")
        if change.check_only:
            require_held(change, PostgresHeld(change, self.infos, self.spelling, self.wanted, self.exists))
            return []
        cut_over = self._cut_over()
        if cut_over is not None:
            return self._altered(cut_over, cut_over.table)
        found: list[str] = []
        there = set(self.infos)
        for one in change.tables:
            found += self._of_table(one, there)
        return found

    # -- inside ----------------------------------------------------------------------------------------------------
    def _target(self, table: TableId) -> TableId:
        """The target's own name of a source table."""
        return self.spelling.table(self.change.target(table))

    def _kinds(self, one: TableChange) -> set[ChangeKind]:
        return set(one.kinds) if self.change.kinds is None else set(one.kinds) & self.change.kinds

    def _of_table(self, one: TableChange, there: set[TableId]) -> list[str]:
        """``there``: the target's tables by now."""
        target, kinds = self._target(one.table), self._kinds(one)
        if K.DROP_TABLE in kinds:
            if one.table in self.change.not_captured or target not in there:
                return []
            there.discard(target)
            return [f"DROP TABLE {quoted_table(target)}"]
        if K.CREATE_TABLE in kinds:
            if target in there or one.after is None:
                return []
            there.add(target)
            return self._created(target, one.table, one.after)
        found: list[str] = []
        if target in there and K.TRUNCATE_TABLE in kinds:
            found.append(f"TRUNCATE TABLE {quoted_table(target)}")
        if (
            target in there
            and one.before is not None
            and one.after is not None
            and one.table not in self.change.not_captured
        ):
            found += self._altered(one, one.table)
        if one.renamed_to is not None and K.RENAME_TABLE in kinds:
            found += self._renamed(one, one.renamed_to, there)
        return found

    def _renamed(self, one: TableChange, to: TableId, there: set[TableId]) -> list[str]:
        old, new = self._target(one.table), self._target(to)
        foreign = self.change.not_captured
        if one.table in foreign and to not in foreign and new not in there:
            raise LoadError(
                f"{one.table}, which is not captured, became {to}, which is: its rows were never seen: {self.change.statement.text[:300]}",
                where=self.change.where,
                hint=f"copy the table to the target by hand as {new}; the load goes on once it is there",
            )
        if old == new or old not in there or new in there:
            return []
        there -= {old}
        there |= {new}
        found = []
        if old.table != new.table:
            found.append(f"ALTER TABLE {quoted_table(old)} RENAME TO {quoted(new.table)}")
        if old.schema != new.schema:
            between = TableId(old.schema, new.table)
            found += [
                f"CREATE SCHEMA IF NOT EXISTS {quoted(new.schema)}",
                f"ALTER TABLE {quoted_table(between)} SET SCHEMA {quoted(new.schema)}",
            ]
        if self.wanted.indexes and one.before is not None and old.table != new.table:
            place = quoted(new.schema)
            found += [
                f"ALTER INDEX IF EXISTS {place}.{quoted(extras.index_name(old, index.name))} RENAME TO {quoted(extras.index_name(new, index.name))}"
                for index in extras.plain_indexes(one.before)
            ]
        return found

    def _naming(self, table: TableId, column: str) -> str | None:
        """Source column -> target column, None for one that does not go over."""
        lowered = column.lower()
        if any(t == table and name.lower() == lowered for t, name in self.change.excluded):
            return None
        renamed = (new for t, old, new in self.change.columns if t == table and old.lower() == lowered)
        return self.spelling.name(next(renamed, column))

    def _type(self, column: ColumnDefinition) -> ColumnType:
        made = self.change.meaning.types.get(column)
        if made is None:
            raise self._by_hand(f"the type {column.type} of column {column.name} is not known", "")
        return made

    def _created(self, target: TableId, source: TableId, after: TableDefinition) -> list[str]:
        lines: list[str] = []
        collations: dict[str, None] = {}
        primary = {name.lower() for name in after.row_key}
        for column in after.columns:
            name = self._naming(source, column.name)
            if name is None or column.generated is not None:
                continue
            made = self._type(column)
            collation = self._collated(target, column, after.row_key)
            if collation is not None:
                collations[collation.create] = None
            words = [
                quoted(name),
                self._own_type(made) + clause(collation),
            ]
            if not column.nullable or column.name.lower() in primary:
                words.append("NOT NULL")
            later = self._default(column, made).later
            lines.append(" ".join([*words, *([f"DEFAULT {later}"] if later else [])]))
        key = [self._naming(source, name) or name for name in after.row_key]
        self._refuse_long([target.schema, target.table, *key], lines)
        if key:
            lines.append(f"PRIMARY KEY ({', '.join(map(quoted, key))})")
        return [
            f"CREATE SCHEMA IF NOT EXISTS {quoted(target.schema)}",
            *collations,
            f"CREATE TABLE {quoted_table(target)} ({', '.join(lines)})",
            *([extras.comment_on_table(target, after.comment)] if after.comment else []),
            *(sql for column in after.columns for sql in self._commented(column, None, source, target)),
            *(index.create(target) for index in self._indexes(after, source)),
        ]

    def _commented(
        self, column: ColumnDefinition, old: ColumnDefinition | None, source: TableId, target: TableId
    ) -> list[str]:
        """The column's comment, where it is another one than before."""
        name = self._naming(source, column.name)
        if name is None or column.generated is not None or column.comment == (old.comment if old is not None else ""):
            return []
        return [extras.comment_on_column(target, name, column.comment)]

    def _indexes(
        self, table: TableDefinition, source: TableId, renamed: Mapping[str, str] = MappingProxyType({})
    ) -> list[Index]:
        """Those that the target shall have. ``renamed``: columns that have another name by now (lower case)."""
        if not self.wanted.indexes:
            return []
        found = []
        for one in extras.plain_indexes(table):
            columns = [table.column(name) for name, _ in one.columns]
            names = [self._naming(source, renamed.get(column.name.lower(), column.name)) for column in columns]
            if any(column.generated is not None for column in columns) or not extras.entry_fits(
                list(map(self._type, columns))
            ):
                continue
            if None not in names:
                found.append(Index(one.name, tuple(name for name in names if name is not None), one.unique))
        return found

    def _refuse_long(self, names: Sequence[str], lines: Sequence[str] = ()) -> None:
        name = too_long([*names, *(line[1:].partition('" ')[0] for line in lines)])
        if name:
            raise self._by_hand(f"the name {name!r} is longer than {LONGEST_BYTES} bytes", "")

    def _altered(self, one: TableChange, source: TableId) -> list[str]:
        assert one.before is not None
        assert one.after is not None
        target, kinds = self._target(source), self._kinds(one) or set(ChangeKind)
        info = self.infos[target]
        there = {column.name.casefold(): column for column in info.columns}
        found: list[str] = []
        columns = self._columns(one)
        values = self._converted_values(one.table, target, there)
        if one.table in self.change.copies:
            found.append(f"TRUNCATE TABLE {quoted_table(target)}")
        # a name may be taken over by another column: what goes, goes first, then names change, then columns come
        if K.DROP_COLUMN in kinds:
            found += [
                sql
                for part in columns
                if part.kind is K.DROP_COLUMN
                for sql in self._dropped(part, source, target, there)
            ]
        if K.RENAME_COLUMN in kinds:
            found += self._columns_renamed(
                [part for part in columns if part.kind is K.RENAME_COLUMN], source, target, there
            )
        for adding in (False, True):
            for part in columns:
                if part.kind in kinds - {K.DROP_COLUMN, K.RENAME_COLUMN} and (part.kind is K.ADD_COLUMN) is adding:
                    found += self._column(part, source, target, there, one.after.row_key, values)
        found += self._updates(target, values)
        if K.PRIMARY_KEY in kinds and one.before.row_key != one.after.row_key:
            found += self._key(info, target, source, one.after)
        if K.TABLE_OPTIONS in kinds and one.before.comment != one.after.comment:
            found.append(extras.comment_on_table(target, one.after.comment))
        if K.INDEXES in kinds or K.DROP_COLUMN in kinds:
            found += self._indexes_changed(one, source, target, columns)
        return found

    def _indexes_changed(
        self, one: TableChange, source: TableId, target: TableId, columns: Sequence[ColumnChange]
    ) -> list[str]:
        """A column that was renamed has its new name in the target's indexes by itself; one that was dropped has taken its indexes along."""
        assert one.before is not None
        assert one.after is not None
        renamed = {
            part.old.name.lower(): part.new.name
            for part in columns
            if part.kind is K.RENAME_COLUMN and part.old is not None and part.new is not None
        }
        before, after = self._indexes(one.before, source, renamed), self._indexes(one.after, source)
        gone = [index.drop(target) for index in before if index not in after]
        return gone + [index.create(target) for index in after if index not in before]

    def _columns(self, one: TableChange) -> tuple[ColumnChange, ...]:
        """Column by column. Which was renamed, only the statement tells."""
        assert one.before is not None
        assert one.after is not None
        if not {K.RENAME_COLUMN} & set(one.kinds) and not one.reuses_names:
            return column_changes(one.before, one.after)
        try:
            found = self.change.meaning.altered_columns(one)
        except DecodeError as error:
            raise self._by_hand(f"it is not understood: {error.message}", "") from error
        if found is None:
            raise self._by_hand("which columns were renamed is not known", "")
        return found

    def _dropped(self, part: ColumnChange, source: TableId, target: TableId, there: dict[str, ColumnInfo]) -> list[str]:
        assert part.old is not None
        name = self._naming(source, part.old.name)
        found = there.pop(name.casefold(), None) if name is not None else None
        return [f"ALTER TABLE {quoted_table(target)} DROP COLUMN {quoted(found.name)}"] if found is not None else []

    def _columns_renamed(
        self, parts: Sequence[ColumnChange], source: TableId, target: TableId, there: dict[str, ColumnInfo]
    ) -> list[str]:
        """Columns may swap their names: where one takes another's, all go through names in between."""
        pairs: list[tuple[ColumnInfo, str]] = []
        for part in parts:
            assert part.old is not None
            assert part.new is not None
            was, name = self._naming(source, part.old.name), self._naming(source, part.new.name)
            old = there.get(was.casefold()) if was is not None else None
            if old is not None and name is not None and old.name != name:
                pairs.append((old, name))
        self._refuse_long([name for _, name in pairs])
        for old, _ in pairs:
            del there[old.name.casefold()]
        for old, name in pairs:
            there[name.casefold()] = replace(old, name=name)
        alter = f"ALTER TABLE {quoted_table(target)} RENAME COLUMN"
        if not {old.name for old, _ in pairs} & {name for _, name in pairs}:
            return [f"{alter} {quoted(old.name)} TO {quoted(name)}" for old, name in pairs]
        between = [quoted(f"_sluice_renamed_{number}") for number in range(len(pairs))]
        return [
            *(f"{alter} {quoted(old.name)} TO {place}" for (old, _), place in zip(pairs, between, strict=True)),
            *(f"{alter} {place} TO {quoted(name)}" for (_, name), place in zip(pairs, between, strict=True)),
        ]

    def _column(
        self,
        part: ColumnChange,
        source: TableId,
        target: TableId,
        there: dict[str, ColumnInfo],
        key: Sequence[str],
        values: dict[str, str],
    ) -> list[str]:
        """One part of a change. ``there``: the target's columns by now, by casefolded name; ``key``: the table's, at the source.

        ``values``: expressions of converted values by the target's name; one that a change of type uses is taken out.
        """
        assert part.new is not None
        place, name = quoted_table(target), self._naming(source, part.new.name)
        if name is None or part.new.generated is not None:
            return []
        found = there.get(name.casefold())
        if part.kind is K.ADD_COLUMN:
            if found is not None:
                return []
            return self._added(part.new, name, target, there, key) + self._commented(part.new, None, source, target)
        if found is None:
            return []
        column = f"ALTER TABLE {place} ALTER COLUMN {quoted(found.name)}"
        if part.kind is K.ALLOW_NULL:
            return [] if found.nullable else [f"{column} DROP NOT NULL"]
        if part.kind is K.REQUIRE_VALUE:
            return [f"{column} SET NOT NULL"] if found.nullable else []
        if part.kind is K.COLUMN_ATTRIBUTES:
            comment = self._commented(part.new, part.old, source, target)
            if part.old is not None and part.old.default == part.new.default:
                return comment
            later = self._default(part.new, self._type(part.new)).later
            return [f"{column} SET DEFAULT {later}" if later else f"{column} DROP DEFAULT", *comment]
        if part.kind in {K.WIDEN_COLUMN, K.CHANGE_COLUMN}:
            return self._converted(part, found, column, self._collated(target, part.new, key), values)
        return []

    def _converted_values(self, source: TableId, target: TableId, there: Mapping[str, ColumnInfo]) -> dict[str, str]:
        """Expressions that make converted values out of those that the target has, by the target's name of the column after the statement.

        ``there``: the target's columns now. Raises LoadError for values that the target cannot convert as the source did.
        """
        values: dict[str, str] = {}
        for effect in effects_on(self.change, source):
            was, name = self._naming(source, effect.old.name), self._naming(source, effect.new.name)
            found = there.get(was.casefold()) if was is not None else None
            if found is None and name is not None:
                found = there.get(name.casefold())  # somebody was here before
            if found is None or name is None:
                continue
            if effect.unknown:
                raise not_converted(self.change, effect, target)
            called = name if effect.old.name != effect.new.name else found.name
            held, now, later = pg_type(found.declared), quoted(found.name), quoted(called)
            for step in effect.steps:
                condition = excluded(now, step)
                if condition is not None:
                    if self.has_rows(target, condition):
                        raise not_converted(self.change, effect, target, broken(step.kind))
                    continue
                if is_done(step, held):
                    continue
                made = rendered(later, step, held)
                if made is None:
                    why = f"PostgreSQL does not convert {found.declared} so ({step.kind.value})"
                    raise not_converted(self.change, effect, target, why)
                later = made
            if later != quoted(called):
                values[called] = later
        return values

    def _updates(self, target: TableId, values: Mapping[str, str]) -> list[str]:
        """Statements for values that change in columns whose type stays."""
        return [
            f"UPDATE {quoted_table(target)} SET {quoted(name)} = {value} WHERE {quoted(name)} IS DISTINCT FROM {value}"  # noqa: S608 - quoted
            for name, value in values.items()
        ]

    def _converted(
        self,
        part: ColumnChange,
        found: ColumnInfo,
        column: str,
        collation: Collation | None,
        values: dict[str, str],
    ) -> list[str]:
        assert part.new is not None
        assert part.old is not None
        old, new, held = self._type(part.old), self._type(part.new), pg_type(found.declared)
        wanted = self._own_type(new)
        same = pg_type(self._own_type(old)).word == pg_type(wanted).word
        if holds_all(new, held) and (same or part.kind is K.WIDEN_COLUMN):
            return []
        if wanted == held.declared and same:
            return []
        emptied = bool(self.change.copies)
        if pg_type(wanted).word not in _CASTS.get(held.word, ()) and not emptied:
            raise self._by_hand(
                f"PostgreSQL converts {held.declared} to {wanted} in its own way, if at all",
                f"{column} TYPE {wanted} USING …",
            )
        made = [collation.create] if collation is not None else []
        value = values.pop(found.name, "")
        using = f" USING NULL::{wanted}" if emptied else f" USING {value}::{wanted}" if value else ""
        return [*made, f"{column} DROP DEFAULT", f"{column} TYPE {wanted}{clause(collation)}{using}"]

    def _default(self, column: ColumnDefinition, made: ColumnType) -> Default:
        return default_of(column, made, self.change.meaning.default_value(column), self.wanted.zero_dates)

    def _own_type(self, made: ColumnType) -> str:
        return own_type(made, self.wanted.json, self.wanted.spatial)

    def _collated(self, target: TableId, column: ColumnDefinition, key: Sequence[str]) -> Collation | None:
        """The ICU collation of a column that is made, None for the database's own."""
        keyed = column.name.lower() in {name.lower() for name in key}
        return self.wanted.collations.of(target, self._type(column), key=keyed)

    def _added(
        self, column: ColumnDefinition, name: str, target: TableId, there: dict[str, ColumnInfo], key: Sequence[str]
    ) -> list[str]:
        made, collation = self._type(column), self._collated(target, column, key)
        self._refuse_long([name])
        kind, default = self._own_type(made), self._default(column, made)
        there[name.casefold()] = ColumnInfo(name, kind, column.nullable)
        place, required = quoted_table(target), "" if column.nullable else " NOT NULL"
        alter = f"ALTER TABLE {place} ALTER COLUMN {quoted(name)}"
        value = default.rows
        if value is None:
            if self.has_rows(target, "true"):
                raise LoadError(
                    f"the rows that {target} has would get other values in the new column {name} than at the source: {default.why}: "
                    f"{self.change.statement.text[:300]}",
                    where=self.change.where,
                    hint=f"add the column at the target by hand (ALTER TABLE {place} ADD COLUMN {quoted(name)} {kind}); the load goes on once it is "
                    "there. Then copy the table anew (`sluice dump start`), which copies the source's values",
                )
            value = "NULL"
        preset = f" DEFAULT {value}" if value != "NULL" else ""
        found = [collation.create] if collation is not None else []
        found.append(f"ALTER TABLE {place} ADD COLUMN {quoted(name)} {kind}{clause(collation)}{preset}{required}")
        if default.later != (value if preset else ""):
            found.append(f"{alter} SET DEFAULT {default.later}" if default.later else f"{alter} DROP DEFAULT")
        return found

    def _key(self, info: TableInfo, target: TableId, source: TableId, after: TableDefinition) -> list[str]:
        wanted = [self._naming(source, name) or name for name in after.row_key]
        if any(
            one.arbiter and {c.casefold() for c in one.columns} == {c.casefold() for c in wanted} for one in info.keys
        ):
            return []
        place = quoted_table(target)
        found = [f"ALTER TABLE {place} DROP CONSTRAINT {quoted(info.primary)}"] if info.primary else []
        return [
            *found,
            *([f"ALTER TABLE {place} ADD PRIMARY KEY ({', '.join(map(quoted, wanted))})"] if wanted else []),
        ]

    def _cut_over(self) -> TableChange | None:
        """One RENAME that takes a captured table away and puts another, which is not, in its place: the same table with a new definition."""
        found = self.change.cut_over
        if found is None or self._target(found.table) not in self.infos:
            return None
        kinds = {*found.kinds, K.PRIMARY_KEY}
        if {K.ADD_COLUMN, K.DROP_COLUMN} <= kinds:
            raise self._by_hand(
                f"a column of {found.table} may have been renamed, or dropped and added: the definitions do not tell",
                "",
            )
        return replace(found, kinds=tuple(kinds))

    def _by_hand(self, why: str, statement: str) -> LoadError:
        run = f"run it by hand ({statement})" if statement else "make the change by hand"
        return LoadError(
            f"the source's DDL cannot be followed at a PostgreSQL target: {why}: {self.change.statement.text[:500]}",
            where=self.change.where,
            hint=f"{run}, then set its kind to ignore in the target's ddl until the batch is delivered; `sluice dump start` copies the table anew",
        )
