"""The schema history at work in a capture: statements are folded into it, bare table maps are completed from it."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import structlog

from sluice.errors import DecodeError, SchemaUnknown, UnsupportedType
from sluice.model.definitions import TableDefinition, Unknown
from sluice.model.schema_changes import ChangeKind, TableChange
from sluice.model.tables import TableId, quoted_table
from sluice.mysql.charsets import UTF8, decode_bytes
from sluice.mysql.ddl.catalog import SchemaState, Session, storable
from sluice.mysql.ddl.introduced import as_hexadecimal
from sluice.mysql.ddl.lexer import NO_BACKSLASH_ESCAPES, Dialect, executed_text
from sluice.mysql.ddl.names import lower_names
from sluice.mysql.ddl.parser import dropped_by_failure
from sluice.mysql.exact_labels import may_hide
from sluice.sources.mysql.catalog.complete_table_map import complete
from sluice.sources.mysql.decoder.scanner import LoggedStatement
from sluice.sources.mysql.events import table_map as t
from sluice.sources.mysql.events.control import Query
from sluice.sources.mysql.events.query_status import EXPLICIT_TIMESTAMPS, SessionStatus, parse_status
from sluice.sources.mysql.events.statement_effects import named_tables
from sluice.sources.mysql.position import Position

_log = structlog.get_logger()


_SAYS_TIMESTAMPS = 101002
"""The version of MariaDB from which the log says it."""

_NAME = rb"(?:`(?:[^`]|``)+`|\"(?:[^\"]|\"\")+\")"
_PRINTED = re.compile(
    rb"CREATE (?:OR REPLACE )?TABLE (?:IF NOT EXISTS )?(?:" + _NAME + rb"\.)?" + _NAME + rb" \(\n  [`\"].*\n\)(.*)",
    re.S,
)
"""How servers print a table, and how they log CREATE TABLE … SELECT and CREATE TABLE … LIKE of a temporary one: in
UTF-8 with backslashes as escapes, whatever the session has, and with ``?`` for characters of four bytes. Dumps have it
from SHOW CREATE TABLE, with all options.
"""
_SELECTED = re.compile(rb"\s*START TRANSACTION\b")
"""What MySQL writes after the columns of CREATE TABLE … SELECT; no session may say it."""
_DUMPED = re.compile(rb"ENGINE=.* DEFAULT CHARSET=", re.S)

Rereader = Callable[[TableId, Position], TableDefinition]
"""Reads a definition from the server and proves that it held at a position already; raises SchemaUnknown if it cannot.
"""


def once(load: Callable[[], SchemaState]) -> Callable[[], SchemaState]:
    """Return a function that calls ``load`` at its first call, in whatever thread; all calls get the same state."""
    lock = threading.Lock()
    loaded: list[SchemaState] = []

    def state() -> SchemaState:
        with lock:
            if not loaded:
                loaded.append(load())
            return loaded[0]

    return state


class SchemaTracker:
    """One capture's view of the history.

    Args:
        load: gives the state as of the capture's start; called when it is first needed.
        collations: collation id -> (collation, charset), as the server lists them.
        reread: see :data:`Rereader`; None: a definition that is not known stops the capture.
        wants: the captured tables. One that a statement renames or copies from a table that the history does not have,
            because it is of a schema that is not captured, is read from the server at that statement.
    """

    def __init__(
        self,
        load: Callable[[], SchemaState],
        collations: Callable[[], Mapping[int, tuple[str, str]]],
        reread: Rereader | None = None,
        wants: Callable[[TableId], bool] = lambda table: False,
    ) -> None:
        self._load = load
        self._wants = wants
        self._collations = collations
        self._reread = reread
        self._state: SchemaState | None = None
        self._ids: dict[str, int] | None = None

    @property
    def state(self) -> SchemaState:
        """The definitions as of the place in the log that was reached."""
        if self._state is None:
            self._state = self._load()
        return self._state

    @property
    def changed(self) -> bool:
        """True if a statement was folded since the start."""
        return self._state is not None and bool(self._state.touched)

    def statement(self, statement: LoggedStatement) -> list[TableChange]:
        """Fold a statement.

        What is not understood makes the captured tables that it names unknown; nothing is raised here.
        """
        query, where = statement.query, str(statement.position)
        status = parse_status(query.status)
        names = self._collations()
        session = Session(
            self.sql_mode(query),
            self._timestamps_explicit(status),
            names.get(status.server_collation or 0, (None,))[0],
            names.get(status.utf8mb4_collation or 0, (None,))[0],
            tuple((names[a][1], names[b][0]) for a, b in status.default_collations if a in names and b in names),
            names.get(status.client_collation or 0, ("", "utf8mb4"))[1],
        )
        sql = self._text(query, session.charset)
        try:
            ask = partial(self._made_by, statement)
            changes = self.state.fold(sql, self.schema(query), session, where, query.error_code, ask)
            return self._doubted(changes, query, sql, where)
        except DecodeError as error:
            return self._not_understood(storable(sql), self.schema(query), where, storable(error.message))

    def _made_by(self, statement: LoggedStatement, table: TableId) -> TableDefinition | None:
        """Return the definition of a captured table behind a statement, if no later one changed it."""
        if self._reread is None or statement.in_transaction or not self._wants(table):
            return None
        try:
            return self._reread(table, statement.position)
        except SchemaUnknown:
            return None

    def sql_mode(self, query: Query) -> int:
        """Return the sql_mode to read the statement with.

        In what the server wrote itself, backslashes are escapes whatever the session's mode is.
        """
        mode = parse_status(query.status).sql_mode
        return mode & ~NO_BACKSLASH_ESCAPES if _is_printed(query.raw) else mode

    def _doubted(self, changes: list[TableChange], query: Query, sql: str, where: str) -> list[TableChange]:
        """Return ``changes``, with a new table unknown if its statement may not say what the table is."""
        definitions = [change.after for change in changes if change.after and ChangeKind.CREATE_TABLE in change.kinds]
        if not definitions:
            return changes
        why = ""
        if b"\\" in query.raw and self.sql_mode(query) != parse_status(query.status).sql_mode:
            why = "its backslashes are escapes if the server wrote its statement, and plain if the session did"
        if _by_server(query.raw):
            hidden = any(may_hide(c.labels, c.charset) for table in definitions for c in table.columns)
            why = (
                "the server wrote its own CREATE TABLE into the log, with ? for some characters in labels"
                if hidden
                else ""
            )
        if not why:
            return changes
        doubted = []
        for change in changes:
            if change.after is not None and ChangeKind.CREATE_TABLE in change.kinds:
                self.state.lose(change.table, Unknown(why, where, storable(sql)[:2000]))
                change = replace(change, kinds=(*change.kinds, ChangeKind.UNKNOWN), after=None, reason=why)
            doubted.append(change)
        return doubted

    def _timestamps_explicit(self, status: SessionStatus) -> bool | None:
        flavour = self.state.flavour
        if flavour.mariadb and flavour.version >= _SAYS_TIMESTAMPS:
            return bool(status.flags & EXPLICIT_TIMESTAMPS)
        return status.timestamps_explicit

    def schema(self, query: Query) -> str:
        """Return the session's default schema, as the server stores its name."""
        return query.schema.lower() if self.state.flavour.lower_case_names else query.schema

    def text(self, query: Query) -> str:
        """Return a statement as text that can be stored and run again; in the log it has the session's charset."""
        status = parse_status(query.status)
        return storable(self._text(query, self._collations().get(status.client_collation or 0, ("", "utf8mb4"))[1]))

    def _text(self, query: Query, charset: str) -> str:
        if charset not in UTF8 and _is_printed(query.raw):
            charset = "utf8mb4"
        dialect, schema = self._dialect(query, charset), self.schema(query)
        text = executed_text(_text(query, as_hexadecimal(query.raw, dialect), charset), dialect)
        if self.state.flavour.lower_case_names:
            text = lower_names(text, schema, dialect)
        if query.error_code and (dropped := dropped_by_failure(text, schema, dialect)):
            return f"DROP TABLE IF EXISTS {quoted_table(dropped)} /* {text.replace('*/', '* /')} */"
        return text

    def _dialect(self, query: Query, charset: str) -> Dialect:
        flavour = self.state.flavour
        return Dialect(flavour.mariadb, flavour.version, self.sql_mode(query), charset)

    def _not_understood(self, sql: str, schema: str, where: str, why: str) -> list[TableChange]:
        changes = []
        for table in named_tables(sql, schema):
            table = self.state.canonical(table)
            before = self.state.find(table)
            if before is not None or self.state.why_unknown(table) is not None:
                self.state.lose(table, Unknown(why, where, sql[:2000]))
                changes.append(TableChange(table, (ChangeKind.UNKNOWN,), before, reason=why))
        if changes:
            _log.warning("statement_not_understood", position=where, reason=why, tables=[str(c.table) for c in changes])
        return changes

    def definition(self, table: TableId, position: Position, where: str) -> TableDefinition:
        """Return a table's definition as of ``position``.

        Raises SchemaUnknown that says since when, and what to run.
        """
        definition = self.state.find(table)
        if definition is not None:
            return definition
        if self._reread is not None:
            definition = self._reread(table, position)
            self.state.put(definition)
            return definition
        raise unknown_table(table, self.state.why_unknown(table), where)

    def complete(self, table_map: t.TableMap, position: Position, where: str) -> t.TableMap:
        """Return ``table_map`` with what the log leaves out. Raises SchemaUnknown, DecodeError."""
        definition = self.definition(table_map.table, position, where)
        if self._ids is None:
            self._ids = {name: number for number, (name, _) in self._collations().items()}
        try:
            return complete(table_map, definition, self._ids, self.state.flavour)
        except DecodeError as error:
            raise DecodeError(
                f"table {table_map.table}: {error.message}",
                where=where,
                hint=f"`sluice schema show PIPELINE {table_map.table}` prints the history's; `sluice schema set` and "
                "`sluice schema reload` fix it",
            ) from error


def _text(query: Query, raw: bytes, charset: str) -> str:
    """Decode ``raw``, a part of the statement.

    Bytes that are no character of the session's charset become lone surrogates.
    """
    if query.raw.isascii():
        return query.sql
    try:
        return decode_bytes(raw, charset)
    except (LookupError, UnicodeDecodeError, UnsupportedType):
        return raw.decode("utf-8", "surrogateescape") if charset in UTF8 else query.sql


def _is_printed(raw: bytes) -> bool:
    """Return True for a statement as a server prints it, in UTF-8."""
    if _PRINTED.fullmatch(raw) is None:
        return False
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _by_server(raw: bytes) -> bool:
    """Return True for a statement that the server wrote itself, in place of the session's.

    It is False where the session may have sent what was dumped.
    """
    match = _PRINTED.fullmatch(raw)
    return match is not None and (_SELECTED.match(match[1]) is not None or _DUMPED.search(match[1]) is None)


def unknown_table(table: TableId, why: Unknown | None, where: str) -> SchemaUnknown:
    """Return the error for a table whose definition is not known."""
    reason = why.reason if why else "it is not in the schema history (may the pipeline's user see it?)"
    statement = f", since {why.where}: {' '.join(why.sql.split())[:200]}" if why and why.sql else ""
    return SchemaUnknown(
        f"the log does not carry the column names of {table}, and its definition there is not known: "
        f"{reason}{statement}",
        where=where,
        hint=f"`sluice schema set PIPELINE {table} --file create.sql` tells it (the CREATE TABLE as of that "
        "position), `sluice schema reload "
        f"PIPELINE {table}` takes today's if no later statement changed it; SET GLOBAL binlog_row_metadata = 'FULL' "
        "makes both needless",
    )
