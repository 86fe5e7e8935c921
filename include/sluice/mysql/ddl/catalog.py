"""All definitions as of a position, and what a statement does to them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sluice.errors import DecodeError, SluiceError, SourceUnavailable, UnsupportedType
from sluice.model.definitions import DatabaseDefinition, TableDefinition, Unknown
from sluice.model.schema_changes import ChangeKind, TableChange
from sluice.model.tables import TableId
from sluice.mysql.ddl import ast as s
from sluice.mysql.ddl.apply import alter_table, create_table, like
from sluice.mysql.ddl.changes import altered
from sluice.mysql.ddl.collations import DEFAULT, Collations
from sluice.mysql.ddl.lexer import Dialect
from sluice.mysql.ddl.names import lowered
from sluice.mysql.ddl.parser import concerned, parse_statement
from sluice.mysql.ddl.types import Flavour

K = ChangeKind

Ask = Callable[[TableId], TableDefinition | None]
"""Returns what a statement made of a table, by the table's new name; None: that is not known either."""


def nobody(_: TableId) -> TableDefinition | None:
    """Know no table."""
    return None


@dataclass(frozen=True, slots=True)
class Session:
    """The settings that a logged statement inherited from the session that ran it.

    ``sql_mode``: bits; ``charset``: in which it was sent;
    ``timestamps_explicit``: explicit_defaults_for_timestamp; ``server_collation``: default of new databases;
    ``utf8mb4_collation``: default_collation_for_utf8mb4. None: the log does not say.
    """

    sql_mode: int = 0
    timestamps_explicit: bool | None = None
    server_collation: str | None = None
    utf8mb4_collation: str | None = None
    default_collations: tuple[tuple[str, str], ...] = ()
    """(charset, its default collation in the session)."""
    charset: str = "utf8mb4"


@dataclass
class SchemaState:
    """Tables and databases; mutable, folded forward statement by statement.

    Attributes:
        flavour: of the server; timestamps_explicit: its default for sessions that do not say.
        unknown: tables that exist, or may, under a definition that is not known.
        others: views and sequences, which are renamed, and in part dropped, by statements for tables.
        touched: tables and databases changed since the last :meth:`mark`.
    """

    flavour: Flavour = field(default_factory=Flavour)
    timestamps_explicit: bool = True
    server_collation: str = ""
    databases: dict[str, DatabaseDefinition] = field(default_factory=dict)
    tables: dict[TableId, TableDefinition] = field(default_factory=dict)
    unknown: dict[TableId, Unknown] = field(default_factory=dict)
    others: set[TableId] = field(default_factory=set)
    touched: set[TableId] = field(default_factory=set)

    # -- asking --------------------------------------------------------------------------------------------------------
    def find(self, table: TableId) -> TableDefinition | None:
        """Return the definition, None if it is not known."""
        return self.tables.get(self.canonical(table))

    def why_unknown(self, table: TableId) -> Unknown | None:
        """Return why the definition is not known; None if it is, or if the table was never seen."""
        return self.unknown.get(self.canonical(table))

    # -- changing ------------------------------------------------------------------------------------------------------
    def put(self, definition: TableDefinition) -> None:
        """Set a table's definition. Raises DecodeError for one that cannot be stored."""
        if not _can_be_stored(definition):
            raise DecodeError(f"the definition of {definition.table} has bytes that are not text")
        name = self.canonical(definition.table)
        self.tables[name] = replace(definition, table=name)
        self.unknown.pop(name, None)
        self.touched.add(name)

    def lose(self, table: TableId, unknown: Unknown) -> None:
        """Record that the table's definition is not known any more."""
        name = self.canonical(table)
        self.tables.pop(name, None)
        self.unknown[name] = unknown
        self.touched.add(name)

    def forget(self, table: TableId) -> None:
        """Remove a table that is gone."""
        name = self.canonical(table)
        self.tables.pop(name, None)
        self.unknown.pop(name, None)
        self.touched.add(name)

    def note_other(self, name: TableId) -> None:
        """Add a view or sequence."""
        name = self.canonical(name)
        self.others.add(name)
        self.touched.add(name)

    def drop_other(self, name: TableId) -> bool:
        """Remove a view or sequence. Return False if there is none of this name."""
        name = self.canonical(name)
        if name not in self.others:
            return False
        self.others.remove(name)
        self.touched.add(name)
        return True

    def fold(
        self, sql: str, schema: str, session: Session, where: str = "", error_code: int = 0, ask: Ask = nobody
    ) -> list[TableChange]:
        """Apply a statement as logged.

        What is not understood makes its tables unknown, with the reason; what is kept can be stored.

        Args:
            error_code: with which the statement ended at the server; 0: it did what it says.
            ask: called where a table is renamed, or made like another one, that was never heard of.

        Raises:
            DecodeError: the statement does not parse, and not even its beginning says which tables it changes.
            SourceUnavailable: of ``ask``.
        """
        dialect = Dialect(self.flavour.mariadb, self.flavour.version, session.sql_mode, session.charset)
        changes: list[TableChange] = []
        step = _Step(self, session, where, storable(sql), changes, ask)
        try:
            statement = parse_statement(sql, schema, dialect)
        except Exception as error:
            step.lose_concerned(concerned(sql, schema, dialect), error)
            return changes
        try:
            if error_code and not isinstance(statement, s.DropTables):  # of tables it drops those that there are
                raise DecodeError(
                    f"a statement ended with error {error_code}, and the log does not say what it had done"
                )
            step.apply(statement)
        except SourceUnavailable:
            raise
        except Exception as error:
            # whatever it is: a definition that may be wrong by now is worse than one that is not known
            changes.clear()
            step.lose_concerned(tables_of(statement), error)
        return changes

    def canonical(self, table: TableId) -> TableId:
        """Return the name as the server stores and logs it."""
        return lowered(table) if self.flavour.lower_case_names else table

    def database(self, name: str) -> DatabaseDefinition:
        """Return a database, with the server's defaults if it is not in the history."""
        key = name.lower() if self.flavour.lower_case_names else name
        database = self.databases.get(key)
        if database is not None:
            return database
        collation = self.server_collation
        return DatabaseDefinition(name, self.flavour.collations.charset_of.get(collation, ""), collation)

    def put_database(self, database: DatabaseDefinition) -> None:
        """Set a database's defaults."""
        name = database.name.lower() if self.flavour.lower_case_names else database.name
        self.databases[name] = replace(database, name=name)
        self.touched.add(TableId(name, ""))

    # -- storing -------------------------------------------------------------------------------------------------------
    def to_json(self) -> dict[str, Any]:
        """Return all definitions as JSON."""
        return {
            "flavour": {
                "mariadb": self.flavour.mariadb,
                "version": self.flavour.version,
                "lower_case_names": self.flavour.lower_case_names,
                "collations": self.flavour.collations.to_json(),
            },
            "timestamps_explicit": self.timestamps_explicit,
            "server_collation": self.server_collation,
            **self.part(None),
        }

    def part(self, names: Iterable[TableId] | None) -> dict[str, Any]:
        """Return the named tables and databases as they are now, and those of them that are gone; None: all there
        is.
        """
        wanted_names = (
            set(names)
            if names is not None
            else {*self.tables, *self.unknown, *self.others, *(TableId(d, "") for d in self.databases)}
        )
        tables = sorted(wanted_names)
        return {
            "databases": [
                [d.name, d.charset, d.collation] for n in tables if not n.table and (d := self.databases.get(n.schema))
            ],
            "tables": [self.tables[n].to_json() for n in tables if n in self.tables],
            "unknown": [[n.schema, n.table, self.unknown[n].to_json()] for n in tables if n in self.unknown],
            "others": [[n.schema, n.table] for n in tables if n in self.others],
            "gone": [
                [n.schema, n.table]
                for n in tables
                if (
                    n not in self.tables and n not in self.unknown and n not in self.others
                    if n.table
                    else n.schema not in self.databases
                )
            ],
        }

    def take(self, part: Mapping[str, Any]) -> None:
        """Lay a :meth:`part` over this state."""
        for schema, table in part["gone"]:
            if table:
                self.forget(TableId(schema, table))
                self.others.discard(TableId(schema, table))
            else:
                self.databases.pop(schema, None)
        for name, charset, collation in part["databases"]:
            self.databases[name] = DatabaseDefinition(name, charset, collation)
        self.others |= {TableId(*name) for name in part.get("others", ())}
        for data in part["tables"]:
            self.put(TableDefinition.from_json(data))
        for schema, table, why in part["unknown"]:
            self.lose(TableId(schema, table), Unknown(**why))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SchemaState:
        """Read a stored schema state."""
        flavour = data["flavour"]
        state = cls(
            Flavour(
                flavour["mariadb"],
                flavour["version"],
                Collations.from_json(flavour["collations"]),
                flavour["lower_case_names"],
            ),
            data["timestamps_explicit"],
            data["server_collation"],
        )
        state.take(data)
        state.touched.clear()
        return state

    @classmethod
    def from_stored(cls, base: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]) -> SchemaState:
        """Rebuild the state from ``base`` (of :meth:`to_json`) and ``parts`` (of :meth:`part`, oldest first)."""
        state = cls.from_json(base)
        for part in parts:
            state.take(part)
        state.touched.clear()
        return state


def storable(text: str) -> str:
    """Escape what is no character in the text."""
    return text.encode("utf-8", "backslashreplace").decode()


def _can_be_stored(definition: TableDefinition) -> bool:
    texts = [definition.comment, definition.engine, definition.table.schema, definition.table.table]
    for c in definition.columns:
        texts += [c.name, c.type, *c.labels, c.default or "", c.generated or "", c.on_update or "", c.comment]
    for index in definition.indexes:
        texts += [index.name, *(name for name, _ in index.columns)]
    return not _SURROGATE.search("\n".join(texts))


_SURROGATE = re.compile("[\ud800-\udfff]")


def tables_of(statement: s.Statement) -> tuple[TableId, ...]:
    """Return the tables that a statement changes, as far as it names them."""
    match statement:
        case s.CreateTable(table=table, temporary=temporary):
            return () if temporary else (table,)
        case s.TruncateTable(table=table):
            return (table,)
        case s.AlterTable(table=table, actions=actions):
            renames = [a.table for a in actions if isinstance(a, s.RenameTo)]
            others = [a.other for a in actions if isinstance(a, s.PartitionAction) and a.other is not None]
            return (table, *renames, *others)
        case s.RenameTables(pairs=pairs):
            return tuple(table for pair in pairs for table in pair)
        case s.DropTables(tables=tables, temporary=temporary):
            return () if temporary else tables
        case _:
            return ()


@dataclass
class _Step:
    """One statement at work on a state."""

    state: SchemaState
    session: Session
    where: str
    sql: str
    changes: list[TableChange]
    ask: Ask

    def lose_concerned(self, tables: Sequence[TableId] | None, error: Exception) -> None:
        """Make tables unknown after an error. Raises DecodeError if there is none to be named."""
        why = error.message if isinstance(error, SluiceError) else f"{type(error).__name__}: {error}"
        if tables is None:
            raise DecodeError(why) from error
        for table in dict.fromkeys(tables):
            self._lose(table, why)

    def apply(self, statement: s.Statement) -> None:
        if isinstance(statement, s.CreateTable):
            self._create_table(statement)
        elif isinstance(statement, s.AlterTable):
            self._alter_table(statement)
        elif isinstance(statement, s.RenameTables):
            for old, new in statement.pairs:
                self._rename(old, new)
        elif isinstance(statement, s.DropTables):
            if not statement.temporary:
                for table in statement.tables:
                    self._drop_table(table, surely=not statement.if_exists)
        elif isinstance(statement, s.TruncateTable):
            definition = self.state.find(statement.table)
            self._changed(statement.table, K.TRUNCATE_TABLE, before=definition, after=definition)
        elif isinstance(statement, s.CreateDatabase | s.AlterDatabase):
            self._database(statement)
        elif isinstance(statement, s.DropDatabase):
            self._drop_database(statement.name)
        elif isinstance(statement, s.OtherObjects):
            for name in statement.names:
                if statement.dropped:
                    self.state.drop_other(name)
                else:
                    self.state.note_other(name)

    def _changed(
        self, table: TableId, *kinds: ChangeKind, before: TableDefinition | None = None,
        after: TableDefinition | None = None,
        renamed_to: TableId | None = None, reason: str = "",
    ) -> None:  # fmt: skip
        name = self.state.canonical
        renamed = name(renamed_to) if renamed_to is not None else None
        self.changes.append(TableChange(name(table), kinds, before, after, (), renamed, reason))

    @property
    def _explicit(self) -> bool:
        explicit = self.session.timestamps_explicit
        return self.state.timestamps_explicit if explicit is None else explicit

    @property
    def _flavour(self) -> Flavour:
        """The server's, with the session's own default collations."""
        flavour = self.state.flavour
        own = dict(self.session.default_collations)
        if self.session.utf8mb4_collation:
            own["utf8mb4"] = self.session.utf8mb4_collation
        collations = flavour.collations
        if not own or own.items() <= collations.default_of.items():
            return flavour
        return replace(flavour, collations=replace(collations, default_of={**collations.default_of, **own}))

    def _lose(self, table: TableId, reason: str, kind: ChangeKind = K.UNKNOWN) -> None:
        before = self.state.find(table)
        reason = storable(reason)
        self.state.lose(table, Unknown(reason, self.where, self.sql[:2000]))
        self._changed(table, *dict.fromkeys((kind, K.UNKNOWN)), before=before, reason=reason)

    def _create_table(self, statement: s.CreateTable) -> None:
        if statement.temporary:
            return
        known_definition = self.state.find(statement.table)
        if known_definition is not None and statement.if_not_exists and not statement.replace:
            self._changed(statement.table, K.NOTHING, before=known_definition, after=known_definition)
            return
        try:
            if statement.like is not None:
                definition = self._like(statement.like, statement.table)
            elif statement.select:
                raise DecodeError("the columns come from a query")
            else:
                database = self.state.database(statement.table.schema)
                definition = create_table(statement, database, self._flavour, timestamps_explicit=self._explicit)
        except (DecodeError, UnsupportedType) as error:
            self._lose(statement.table, error.message, K.CREATE_TABLE)
            return
        self.state.put(definition)
        self._changed(statement.table, K.CREATE_TABLE, before=known_definition, after=self.state.find(statement.table))

    def _like(self, other_table: TableId, table: TableId) -> TableDefinition:
        """Return the definition of a new table that is like another. Raises DecodeError."""
        model = self.state.find(other_table)
        if model is not None:
            return like(model, table, self._flavour)
        definition = self.ask(table) if self.state.why_unknown(other_table) is None else None
        if definition is None:
            raise DecodeError(f"the definition of {other_table} is not known")
        return definition

    def _alter_table(self, statement: s.AlterTable) -> None:
        before = self.state.find(statement.table)
        if before is None and self.state.canonical(statement.table) in self.state.others:
            for action in statement.actions:
                if isinstance(action, s.RenameTo):
                    self._rename(statement.table, action.table)
            return
        renames = [a.table for a in statement.actions if isinstance(a, s.RenameTo)]
        renamed_to = self.state.canonical(renames[-1]) if renames else None
        for action in statement.actions:
            if isinstance(action, s.PartitionAction) and action.other is not None:
                self._partition_neighbour(statement.table, action)
        if before is None:
            self._alter_unknown(statement, renamed_to)
            return
        try:
            after = alter_table(
                before,
                statement.actions,
                self.state.database(statement.table.schema),
                self._flavour,
                timestamps_explicit=self._explicit,
            )
        except (DecodeError, UnsupportedType) as error:
            self.state.forget(before.table)
            self._lose(renamed_to or statement.table, error.message)
            return
        if renamed_to is not None:
            self.state.forget(before.table)
            after = replace(after, table=renamed_to)
        self.state.put(after)
        self.changes.append(altered(before, after, statement.actions, renamed_to, ignore=statement.ignore))

    def _alter_unknown(self, statement: s.AlterTable, renamed_to: TableId | None) -> None:
        why = self.state.why_unknown(statement.table)
        reason = why.reason if why else f"{statement.table} is not in the schema history before this statement"
        if renamed_to is not None and why is None and (after := self.ask(renamed_to)) is not None:
            self.state.put(replace(after, table=statement.table))
            self._rename(statement.table, renamed_to)
            return
        if renamed_to is not None:
            self.state.forget(statement.table)
            self.state.lose(renamed_to, Unknown(reason, self.where, self.sql[:2000]))
            self._changed(statement.table, K.RENAME_TABLE, K.UNKNOWN, renamed_to=renamed_to, reason=reason)
            return
        self.state.lose(statement.table, Unknown(reason, self.where, self.sql[:2000]))
        self._changed(statement.table, K.UNKNOWN, reason=reason)

    def _partition_neighbour(self, table: TableId, action: s.PartitionAction) -> None:
        other_table = action.other
        assert other_table is not None
        definition, model = self.state.find(other_table), self.state.find(table)
        if action.what == "exchange":
            self._changed(other_table, K.ROWS_REPLACED, before=definition, after=definition)
        elif action.what == "convert out" and model is not None:
            self.state.put(like(model, other_table, self._flavour))
            self._changed(other_table, K.CREATE_TABLE, K.ROWS_REPLACED, after=self.state.find(other_table))
        elif action.what == "convert in":
            self.state.forget(other_table)
            self._changed(other_table, K.DROP_TABLE, before=definition)

    def _rename(self, old: TableId, new: TableId) -> None:
        if self.state.drop_other(old):
            self.state.note_other(new)
            return
        before, why = self.state.find(old), self.state.why_unknown(old)
        if before is None and why is None and (definition := self.ask(self.state.canonical(new))) is not None:
            before = replace(definition, table=self.state.canonical(old))
        if before is None:
            self.state.forget(old)
            reason = why.reason if why else f"{old} is not in the schema history before it was renamed"
            self.state.lose(new, Unknown(reason, self.where, self.sql[:2000]))
            self._changed(old, K.RENAME_TABLE, K.UNKNOWN, renamed_to=new, reason=reason)
            return
        self.state.forget(old)
        new = self.state.canonical(new)
        after = replace(before, table=new)
        self.state.put(after)
        self._changed(old, K.RENAME_TABLE, before=before, after=after, renamed_to=new)

    def _database(self, statement: s.CreateDatabase | s.AlterDatabase) -> None:
        new = isinstance(statement, s.CreateDatabase)
        lowered = statement.name.lower() if self.state.flavour.lower_case_names else statement.name
        exists = lowered in self.state.databases
        if isinstance(statement, s.CreateDatabase) and exists:
            if statement.if_not_exists:
                return
            if statement.replace:
                self._drop_database(statement.name)
        current = self.state.database(statement.name)
        server = self.session.server_collation or self.state.server_collation
        if new:
            current = DatabaseDefinition(
                statement.name, self.state.flavour.collations.charset_of.get(server, ""), server
            )
        try:
            otherwise = (current.charset, current.collation)
            if (statement.charset or "").lower() == DEFAULT:
                otherwise = (self.state.flavour.collations.charset_of.get(server, ""), server)
            charset, collation = self._flavour.collations.resolve(statement.charset, statement.collation, otherwise)
        except (DecodeError, UnsupportedType):
            charset, collation = "", ""  # a table that takes it from its database is unknown from here on
        self.state.put_database(DatabaseDefinition(statement.name, charset, collation))
        self._changed(TableId(statement.name, ""), K.CREATE_DATABASE if new else K.ALTER_DATABASE)

    def _drop_table(self, table: TableId, *, surely: bool) -> None:
        """Note a dropped table. ``surely``: it was there, even if nothing was ever heard of it."""
        if self.state.drop_other(table):
            return
        before, unknown = self.state.find(table), self.state.why_unknown(table)
        reason = unknown.reason if unknown is not None else "nothing was heard of it before" if surely else ""
        self._changed(table, K.DROP_TABLE, before=before, reason="" if before is not None else reason)
        self.state.forget(table)

    def _drop_database(self, name: str) -> None:
        lowered = name.lower() if self.state.flavour.lower_case_names else name
        for table in [t for t in (*self.state.tables, *self.state.unknown) if t.schema == lowered]:
            self._drop_table(table, surely=True)
        for other_table in [other_table for other_table in self.state.others if other_table.schema == lowered]:
            self.state.drop_other(other_table)
        self.state.databases.pop(lowered, None)
        self.state.touched.add(TableId(lowered, ""))
        self._changed(TableId(name, ""), K.DROP_DATABASE)
