"""How the source's DDL is run at the target, so that it can be found out afterwards whether it ran."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Protocol

import pymysql
import structlog

from sluice.config.connections import Endpoint
from sluice.errors import LoadError
from sluice.model.dialects import MARIADB, MYSQL
from sluice.model.tables import TableId, quoted, quoted_table
from sluice.mysql.client import AccessDenied, of_server
from sluice.mysql.column_defaults import default_value
from sluice.targets.mysql import ddl, lockwait
from sluice.targets.mysql.ack_table import AckTable
from sluice.targets.mysql.connection import CONTENTION, TargetConnection, code_of, errors, kept_alive, set_lock_wait
from sluice.targets.mysql.default_literals import alike, literals_of
from sluice.targets.mysql.definitions import wants_brackets
from sluice.targets.mysql.extras import is_foreign
from sluice.targets.mysql.follow import SETTINGS, FollowedHeld, Follower
from sluice.targets.mysql.held import MysqlHeld
from sluice.targets.mysql.mark_rows import MarkRows
from sluice.targets.mysql.session import Session
from sluice.targets.mysql.tables import (
    column_specs,
    default_collation,
    definitions_of,
    has_rows,
    index_names,
    read_tables,
)
from sluice.targets.port import Fence, SchemaChange
from sluice.targets.schema.conversions import effects_on, not_converted
from sluice.targets.schema.policy import added_by_hand, not_filled, require_held, require_whole

_log = structlog.get_logger()

_CREATED_IN = re.compile(r"CREATE TABLE (`(?:[^`]|``)+`)\.")


def create_schema(cursor: Any, statement: str) -> None:
    """Create the schema of a table that ``statement`` creates."""
    created = _CREATED_IN.match(statement)
    if created:
        cursor.execute(f"CREATE DATABASE IF NOT EXISTS {created[1]}")


def create_renamed_schemas(cursor: Any, change: SchemaChange) -> None:
    """Create the schema in which a table gets a name, if it is missing: it may not be captured."""
    schemas = {change.target(table.renamed_to).schema for table in change.tables if table.renamed_to is not None}
    for schema in sorted(schemas):
        cursor.execute("SELECT COUNT(*) FROM information_schema.schemata WHERE schema_name = %s", (schema,))
        if not cursor.fetchone()[0]:
            cursor.execute(f"CREATE DATABASE IF NOT EXISTS {quoted(schema)}")


class DdlTarget(Protocol):
    """What this needs of the target."""

    @property
    def name(self) -> str:
        """The target's name in the pipeline file."""

    @property
    def endpoint(self) -> Endpoint:
        """The server and its login."""

    @property
    def owner(self) -> tuple[str, str]:
        """(pipeline, target), as the table of acknowledgements has it."""

    @property
    def acks(self) -> AckTable:
        """The table of acknowledgements."""

    @property
    def lock_wait_s(self) -> int:
        """Seconds that a statement waits for a lock."""

    @property
    def marks(self) -> MarkRows | None:
        """The writer of origin markers; None if loads are not marked."""

    def connect(self) -> TargetConnection:
        """Open a new connection."""

    def session(self, doing: str) -> AbstractContextManager[Session]:
        """Give a session for one verb."""

    def note_ddl(self, session: Session, fence: Fence, state: dict[str, Any]) -> None:
        """Store how far the batch's DDL has come. Raises Fenced."""


_LONGEST_S = 24 * 3600
"""Seconds that a statement may take: a large table is copied, or an index of it is built."""

_NO_WORDS = frozenset({1064, 1115, 1273, 4161, 6134})
"""The errors for a text that this server has no words for: syntax, charsets, collations, types, keys of vectors."""


@dataclass
class _Watched:
    """A connection for one DDL statement, watched while it waits for a lock."""

    connection: TargetConnection
    mariadb: bool
    blocker: str = ""


def run_alone(
    target: DdlTarget,
    fence: Fence,
    session: Session,
    holder: Session,
    statement: str,
    doing: str,
    *,
    before: Callable[[Any], None] = lambda cursor: None,
) -> None:
    """Run a DDL statement in a connection of its own, while ``holder`` holds the acknowledgement row shared: no other
    process takes the target over meanwhile.

    Args:
        session: told who holds the lock that the statement waits for.
        before: called with the connection's cursor first.

    Raises Fenced, and the driver's errors.
    """
    with errors(target.endpoint, doing):
        runner = _Watched(target.connect(), session.mariadb)
    holder.begin()
    lockwait.watch.enter(runner, target.endpoint, target.owner, doing)
    try:
        target.acks.guard(holder.cursor, fence)
        cursor = runner.connection.cursor()
        cursor.execute(set_lock_wait(target.lock_wait_s))
        before(cursor)
        runner.connection.wait_for(_LONGEST_S)
        with kept_alive(session.connection, holder.connection):
            cursor.execute(target.marks.statement(statement) if target.marks is not None else statement)
    except pymysql.err.Error:
        session.blocker = runner.blocker
        raise
    finally:
        lockwait.watch.leave(runner)
        holder.rollback()
        runner.connection.close()


_NO_LINES: dict[str, Any] = {"statements": [], "tables": [], "ran": 0, "before": None}


@dataclass(frozen=True, slots=True)
class DdlRunner:
    """Runs the DDL of one batch."""

    target: DdlTarget
    fence: Fence

    def apply(self, change: SchemaChange) -> tuple[str, ...]:
        """See :meth:`sluice.targets.sql.loader.SqlLoader.apply_ddl`.

        What will run is noted with the tables' definitions before it: a repeat that finds them changed knows that it
        has run. While it runs, a second connection holds the acknowledgement row shared, so that no other process can
        take the target over in between.
        """
        doing = f"following {change.where}: {change.statement.text[:200]}"
        with self.target.session(doing) as session, self.target.session(doing) as holder:
            state = self.target.acks.ddl_state(session.cursor, self.fence.batch)
            rows_note = {"rows": bool(state.get("rows"))}
            lines = self._lines(session, state, change)
            for number, statement in enumerate(lines["statements"]):
                if number < lines["ran"]:
                    continue
                tables = [TableId(*pair) for pair in lines["tables"]]
                now = definitions_of(session.cursor, tables)
                if lines["before"] is None or lines["before"] == now:
                    lines = {**lines, "before": now}
                    self.target.note_ddl(session, self.fence, {**rows_note, "done": change.number, "running": lines})
                    self._run(session, holder, change, statement)
                lines = {**lines, "ran": number + 1, "before": None}
                self.target.note_ddl(session, self.fence, {**rows_note, "done": change.number, "running": lines})
            self.target.note_ddl(session, self.fence, {**rows_note, "done": change.number + 1})
            return tuple(lines["statements"])

    def _lines(self, session: Session, state: dict[str, Any], change: SchemaChange) -> dict[str, Any]:
        """Return the statements of a change: those that were begun, or made now from what the target has."""
        running = state.get("running") if state.get("done") == change.number else None
        if running:
            return dict(running)
        tables = sorted({change.target(t) for table in change.tables for t in table.tables if t.table})
        if is_foreign(change.statement.dialect):
            return self._followed(session, change, tables)
        model = ddl.model_of(change)
        infos = read_tables(session.cursor, [*tables, model] if model is not None else tables)

        def columns(table: TableId) -> set[str] | None:
            info = infos.get(table)
            return {c.name.lower() for c in info.columns} if info else None

        held_tables = MysqlHeld(change, infos, session.cursor, mariadb=session.mariadb)
        if change.check_only:
            require_held(change, held_tables)
            return _NO_LINES
        self._refuse_other_conversions(session, change, columns)
        statements_ = self._statements(session, change, columns)
        if statements_:
            self._refuse_irreproducible(session, change, columns)
        else:
            require_whole(change, held_tables)
        emptied = [place for copy in sorted(change.copies) if columns(place := change.target(copy)) is not None]
        statements_ = [*(f"TRUNCATE TABLE {quoted_table(place)}" for place in emptied), *statements_]
        return {
            "statements": statements_, "tables": [[t.schema, t.table] for t in tables], "ran": 0, "before": None,
        }  # fmt: skip

    @staticmethod
    def _keeps_rows(session: Session, change: SchemaChange, table: TableId) -> bool:
        """Return True if a target table has rows, and is not emptied to be copied again."""
        emptied = {change.target(copy) for copy in change.copies}
        return table not in emptied and has_rows(session.cursor, table)

    def _followed(self, session: Session, change: SchemaChange, tables: list[TableId]) -> dict[str, Any]:
        """Return the statements of a change that a source of another dialect made: its definitions tell them."""
        cursor, mariadb = session.cursor, session.mariadb
        infos = read_tables(cursor, tables)
        held_tables = FollowedHeld(change, infos, cursor, mariadb=mariadb)
        if change.check_only:
            require_held(change, held_tables)
            return _NO_LINES

        keeps_rows, specs = partial(self._keeps_rows, session, change), partial(column_specs, cursor, mariadb=mariadb)
        follower = Follower(change, infos, held_tables, keeps_rows, cache(specs), partial(index_names, cursor), mariadb)
        statements = follower.statements()
        return {"statements": statements, "tables": [[t.schema, t.table] for t in tables], "ran": 0, "before": None}

    def _statements(self, session: Session, change: SchemaChange, columns: ddl.Columns) -> list[str]:
        """Return what to run.

        Between MySQL and MariaDB the definitions tell it where the recorded text is no SQL to this server.
        """
        server = session.server
        if ddl.is_mariadb(change) == session.mariadb:
            server = replace(server, oracle=ddl.is_oracle(change))
            return ddl.statements_for(
                change, columns, ddl.Words(server.has, server, collation=partial(default_collation, session.cursor))
            )
        if ddl.is_oracle(change):
            ddl.require_read_alike(change)
        words = ddl.Words(
            server.has,
            replace(server, lacks_words=not session.mariadb),
            self._defaults(session, change, columns),
            collation=partial(default_collation, session.cursor),
        )
        statements = ddl.statements_for(change, columns, words)
        if not statements or not ddl.renderable(change):
            return statements
        if not ddl.is_oracle(change) and self._understood(session, change, statements):
            return statements
        rendered = ddl.statements_for(change, columns, replace(words, by_definition=True))
        _log.info(
            "target_ddl_rendered",
            target=self.target.name,
            source=change.where,
            statement=change.statement.text[:500],
        )
        return rendered

    def _understood(self, session: Session, change: SchemaChange, statements: list[str]) -> bool:
        """Return whether this server's parser takes the statements, and no default is one that it refuses later.

        Nothing is run.
        """
        if not session.mariadb and any(
            wants_brackets(column)
            for table in change.tables
            for column in (table.after.columns if table.after is not None else ())
        ):
            return False
        with errors(self.target.endpoint, f"following {change.where}"):
            connection = self.target.connect()
            try:
                cursor = connection.cursor()
                self._set(cursor, ddl.session_settings(change, mariadb=session.mariadb)[0], change)
                for statement in statements:
                    cursor.execute(f"SET @sluice_ddl = CONVERT(0x{statement.encode().hex()} USING utf8mb4)")
                    try:
                        cursor.execute("PREPARE sluice_ddl FROM @sluice_ddl")
                    except pymysql.err.MySQLError as error:
                        if code_of(error) in _NO_WORDS:
                            return False
                        if not of_server(code_of(error)):
                            raise
            finally:
                connection.close()
        return True

    def _defaults(self, session: Session, change: SchemaChange, columns: ddl.Columns) -> ddl.Defaults:
        """Return texts for the defaults of new columns that this server reads as other values.

        Raises LoadError for one that has none.
        """
        defaults: dict[tuple[TableId, str], str] = {}
        here = ddl.read_here(change, mariadb=session.mariadb)
        for table_change, table, name, column in ddl.new_columns(change, columns):
            wanted_default, read = change.meaning.default_value(column), default_value(column, here)
            if (wanted_default.value is None and read.value is None) or alike(wanted_default.value, read.value):
                continue
            text = next(
                (
                    text
                    for text in literals_of(wanted_default.value)
                    if alike(wanted_default.value, default_value(replace(column, default=text), here).value)
                ),
                None,
            )
            if text is not None:
                defaults[table_change.table, column.name.lower()] = text
            elif self._keeps_rows(session, change, table):
                servers = (MARIADB, MYSQL) if ddl.is_mariadb(change) else (MYSQL, MARIADB)
                why = f"{servers[1]} reads its default {column.default} otherwise than {servers[0]}"
                why = f"{why} ({wanted_default.why})" if wanted_default.why else why
                raise not_filled(change, table, name, why, added_by_hand())
        return defaults

    def _refuse_other_conversions(self, session: Session, change: SchemaChange, columns: ddl.Columns) -> None:
        """Raise LoadError where this server would not convert the rows that are there as the source did."""
        for table in {effect.table for effect in change.effects}:
            target = change.target(table)
            for effect in effects_on(change, table) if columns(target) is not None else ():
                why = ddl.converts_otherwise(change, effect, mariadb=session.mariadb)
                if why and self._keeps_rows(session, change, target):
                    raise not_converted(change, effect, target, why)

    def _refuse_irreproducible(self, session: Session, change: SchemaChange, columns: ddl.Columns) -> None:
        for table, column, why in ddl.irreproducible(change, columns):
            if self._keeps_rows(session, change, table):
                raise not_filled(change, table, column, why, added_by_hand())

    def _run(self, session: Session, holder: Session, change: SchemaChange, statement: str) -> None:
        """Run a statement with the settings of the session that ran it at the source."""

        def before(cursor: Any) -> None:
            for setting in self._settings(change, mariadb=session.mariadb):
                self._set(cursor, setting, change)
            create_schema(cursor, statement)
            create_renamed_schemas(cursor, change)
            _log.info("target_ddl_issued", target=self.target.name, statement=statement[:500], source=change.where)

        doing = f"following {change.where}"
        try:
            run_alone(self.target, self.fence, session, holder, statement, doing, before=before)
        except AccessDenied:
            raise  # with the GRANT
        except pymysql.err.Error as error:
            if code_of(error) in CONTENTION or not of_server(code_of(error)):
                raise
            raise LoadError(
                f"the target refused the source's DDL: {error.args[-1]} (error {code_of(error)}): {statement[:500]}",
                where=change.where,
                hint="change the target so that it can run, or run it by hand in another form and set its kind to "
                "stop: the load goes on once the target has the change",
            ) from error

    @staticmethod
    def _settings(change: SchemaChange, *, mariadb: bool) -> list[str]:
        return [SETTINGS] if is_foreign(change.statement.dialect) else ddl.session_settings(change, mariadb=mariadb)

    @staticmethod
    def _set(cursor: Any, setting: str, change: SchemaChange) -> None:
        try:
            cursor.execute(setting)
        except pymysql.err.MySQLError as error:
            if not of_server(code_of(error)):
                raise
            raise LoadError(
                f"the target cannot run the source's DDL with its session's settings: {error.args[-1]} (error "
                f"{code_of(error)}): {setting}: {change.statement.text[:300]}",
                where=change.where,
                hint="a time zone that is not known is loaded with mysql_tzinfo_to_sql; or make the change at the "
                "target by hand: the load goes on once the target has it",
            ) from error
