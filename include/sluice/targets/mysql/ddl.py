"""A statement of the source's log as statements for this target: the recorded text with the target's names, or what the
definitions tell.

The recorded text is best: the server does what the source's did. Definitions are used where it cannot be: a gh-ost or
pt-online-schema-change cut-over (the new table's definition arrives under the old name), columns that have other names
here, CREATE TABLE … SELECT, and policies that want a part of a statement.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from sluice.errors import DecodeError
from sluice.model import dialects
from sluice.model.definitions import ColumnDefinition, TableDefinition
from sluice.model.row_effects import ColumnEffect
from sluice.model.schema_changes import ChangeKind, TableChange
from sluice.model.tables import TableId, quoted_table
from sluice.mysql.column_defaults import Statement
from sluice.mysql.ddl import ast as s
from sluice.mysql.ddl.lexer import ORACLE, Dialect, Kind, tokens
from sluice.mysql.ddl.names import NamesReader, Replacement, replaced
from sluice.mysql.ddl.parser import parse_statement
from sluice.mysql.literals import text_literal
from sluice.targets.mysql import definitions
from sluice.targets.mysql.collations import Knows
from sluice.targets.mysql.column_types import Server
from sluice.targets.mysql.said_charsets import said
from sluice.targets.port import SchemaChange
from sluice.targets.schema.plan import CreateTable, DropTable, EmptyTable, Planner, RenameTable
from sluice.targets.schema.policy import NAMES, OnlyColumns, followed, never_seen, not_followed, require_told_columns

Columns = Callable[[TableId], Collection[str] | None]
"""The target's columns of one of its tables in lower case, None if there is no such table."""
Defaults = Mapping[tuple[TableId, str], str]
"""Texts of defaults, by source table and the column's name in lower case."""


def is_mariadb(change: SchemaChange) -> bool:
    """Return True if the source is MariaDB, False for MySQL. Raises LoadError for a statement of another dialect."""
    dialect = change.statement.dialect
    if dialect not in {dialects.MYSQL, dialects.MARIADB}:  # :mod:`sluice.targets.mysql.follow` takes those
        raise not_followed(change, f"statements of {dialect} are not understood")
    return dialect == dialects.MARIADB


def dialect_of(change: SchemaChange) -> Dialect:
    """Return what the statement is read by."""
    return Dialect(is_mariadb(change), 0, change.statement.mode)


class MysqlTables(OnlyColumns):
    """See :class:`sluice.targets.schema.policy.Tables`."""

    def __init__(self, change: SchemaChange, columns: Columns) -> None:
        super().__init__(change)
        self._columns = columns

    def columns(self, table: TableId) -> Mapping[str, str] | None:
        """Return the columns of a table, lower-case name -> name; None if the table is missing."""
        columns = self._columns(table)
        return {name.casefold(): name for name in columns} if columns is not None else None


_MODES = {
    1: "REAL_AS_FLOAT", 2: "PIPES_AS_CONCAT", 4: "ANSI_QUOTES", 8: "IGNORE_SPACE", 64: "NO_UNSIGNED_SUBTRACTION",
    1 << 19: "NO_AUTO_VALUE_ON_ZERO",
    1 << 20: "NO_BACKSLASH_ESCAPES", 1 << 25: "ALLOW_INVALID_DATES",
    1 << 29: "HIGH_NOT_PRECEDENCE", 1 << 31: "PAD_CHAR_TO_FULL_LENGTH",
}  # fmt: skip


def sql_mode_names(bits: int) -> str:
    """Return the modes that change what a statement means, without those that only refuse values: the source
    accepted it.
    """
    return ",".join(dict.fromkeys([*(name for bit, name in _MODES.items() if bits & bit), "ALLOW_INVALID_DATES"]))


_MODES_OF_ONE = {
    False: {1 << 32: "TIME_TRUNCATE_FRACTIONAL"},
    True: {ORACLE: "ORACLE", 1 << 32: "EMPTY_STRING_IS_NULL", 1 << 34: "TIME_ROUND_FRACTIONAL"},
}
"""Whether the source is MariaDB -> modes that only this kind of server has, by their bits."""

_BITS = {"TIME_TRUNCATE_FRACTIONAL": 1 << 32, "TIME_ROUND_FRACTIONAL": 1 << 34}

_UTF8MB4 = {45: "utf8mb4_general_ci", 255: "utf8mb4_0900_ai_ci"}

_TEXT = re.compile(r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\"")
_DIFFERS = re.compile(
    r"\b(?:uuid|uuid_v4|uuid_v7|uuid_short|sys_guid|rand|random_bytes|sysdate|user|session_user|system_user|connection_id|load_file|version"
    r"|found_rows|row_count|last_insert_id|nextval|lastval|setval)\s*\(|\bcurrent_(?:user|role)\b|\bnext\s+value\b|@",
    re.I,
)
"""Parts of a default that another server, or the next row, evaluates to another value.

The time is not among it: it is the statement's.
"""
_READ_OTHERWISE = re.compile(
    r"\|\||\bsysdate\b|\b(?:concat|substr|substring|mid|decode|length|l?trim|rtrim|replace|[lr]pad|chr)\s*\(", re.I
)
"""Operators and functions with another meaning in ``sql_mode=ORACLE``."""
_TIME = re.compile(
    r"\b(?:now|current_timestamp|localtime|localtimestamp|curdate|curtime|current_date|current_time|utc_\w+|unix_timestamp)\b",
    re.I,
)


def session_settings(change: SchemaChange, *, mariadb: bool) -> list[str]:
    """Return SET statements that give a session what the statement's own had, as a replica's applier does.

    ``mariadb``: the target is.
    """
    modes = ",".join([sql_mode_names(change.statement.mode), *_own_modes(change, mariadb=mariadb)])
    settings = [f"sql_mode = '{modes}'"]
    session = change.statement.session
    if session is None:
        return [f"SET SESSION {settings[0]}"]
    seconds, micros = divmod(session.timestamp_us, 1_000_000)
    settings += [
        f"timestamp = {seconds}.{micros:06d}2",  # MariaDB cuts the double that it reads to microseconds
        f"auto_increment_increment = {session.auto_increment[0]}",
        f"auto_increment_offset = {session.auto_increment[1]}",
    ]
    if session.lc_time_names is not None:
        settings.append(f"lc_time_names = {session.lc_time_names}")
    if is_mariadb(change) == mariadb:  # the numbers of collations are each one's own
        if session.collation is not None:
            settings.append(f"collation_connection = {session.collation}")
        if session.utf8mb4_collation in _UTF8MB4 and not mariadb:
            settings.append(f"default_collation_for_utf8mb4 = {_UTF8MB4[session.utf8mb4_collation]}")
    session_settings = [f"SET SESSION {', '.join(settings)}"]
    if session.timestamps_explicit is not None:
        explicit = f"explicit_defaults_for_timestamp = {int(session.timestamps_explicit)}"
        # before MariaDB 10.10 it is the server's alone
        session_settings[0] += f" /*M!101000 , {explicit} */" if mariadb else f", {explicit}"
    if session.time_zone is not None:
        session_settings.append(f"SET SESSION time_zone = {text_literal(session.time_zone)}")
    return session_settings


def _own_modes(change: SchemaChange, *, mariadb: bool) -> list[str]:
    if is_mariadb(change) and not mariadb:  # what is too precise is cut by the one, and rounded by the other
        return [] if change.statement.mode & 1 << 34 else ["TIME_TRUNCATE_FRACTIONAL"]
    if mariadb and not is_mariadb(change):
        return [] if change.statement.mode & 1 << 32 else ["TIME_ROUND_FRACTIONAL"]
    return [n for bit, n in _MODES_OF_ONE[mariadb].items() if change.statement.mode & bit]


def read_here(change: SchemaChange, *, mariadb: bool) -> Statement:
    """Return the statement as the target reads it, under the settings of :func:`session_settings`.

    ``mariadb``: the target is.
    """
    source_modes = sum(bit for bit in _MODES if change.statement.mode & bit) | 1 << 25
    modes = source_modes | sum(_BITS.get(n, 0) for n in _own_modes(change, mariadb=mariadb))
    return Statement(mariadb, modes, change.statement.session)


def new_columns(change: SchemaChange, columns: Columns) -> Iterator[tuple[TableChange, TableId, str, ColumnDefinition]]:
    """Yield (change, target table, name there, column) of columns that the statement adds to a table that the target
    has.
    """
    for table in _told(change):
        if table.before is None or table.after is None:
            continue
        target, naming = change.target(table.table), _naming(change, table.table)
        target_columns = columns(target)
        old = {column.name.lower(): column for column in table.before.columns}
        for column in table.after.columns:
            name = naming(column.name)
            if target_columns is None or name is None:
                continue
            was_there = name.lower() in target_columns or column.name.lower() in old
            if was_there and not (table.reuses_names or _takes_over(table, column, old)):
                continue
            yield table, target, name, column


def _with_defaults(change: TableChange, defaults: Defaults) -> TableChange:
    """Return the change with other texts for some defaults of its definitions."""

    def column(old: ColumnDefinition) -> ColumnDefinition:
        text = defaults.get((change.table, old.name.lower()))
        return replace(old, default=text) if text is not None else old

    if not defaults or change.after is None:
        return change
    parts = tuple(replace(part, new=column(part.new)) if part.new is not None else part for part in change.columns)
    after = replace(change.after, columns=tuple(map(column, change.after.columns)))
    return replace(change, after=after, columns=parts)


def irreproducible(change: SchemaChange, columns: Columns) -> list[tuple[TableId, str, str]]:
    """Return (target table, column, why) of columns that are new, and whose values in existing rows are not known from
    the statement.
    """
    swapped = {change.table for change in change.cut_overs}
    findings = []
    for table, target, name, column in new_columns(change, columns):
        default = _TEXT.sub("''", column.default or "")
        if _DIFFERS.search(default):
            why = f"its default {column.default} has another value on every server or for every row"
        elif table.table in swapped and _TIME.search(default):
            why = f"its default {column.default} was evaluated whenever a row was copied"
        elif column.auto_increment and table.before is not None and not table.before.primary_key:
            why = "rows of a table without a primary key are numbered in no order that two servers share"
        else:
            continue
        findings.append((target, name, why))
    return findings


def is_oracle(change: SchemaChange) -> bool:
    """Return True for a statement of a MariaDB that read it as Oracle does (``sql_mode=ORACLE``)."""
    return is_mariadb(change) and bool(change.statement.mode & ORACLE)


def require_read_alike(change: SchemaChange) -> None:
    """Raise LoadError if a new default or generated column has what MariaDB read as Oracle does, and MySQL does not."""
    for table in change.changes:
        before = {column.name: column for column in table.before.columns} if table.before is not None else {}
        for column in table.after.columns if table.after is not None else ():
            text = column.generated or column.default or ""
            if before.get(column.name) != column and _READ_OTHERWISE.search(_TEXT.sub("''", text)):
                raise not_followed(
                    change,
                    f"its session had sql_mode=ORACLE, in which {text} of column {column.name} has another meaning",
                    "change the table at the target by hand, with what MySQL computes in the same way",
                )


def converts_otherwise(change: SchemaChange, effect: ColumnEffect, *, mariadb: bool) -> str:
    """Return why this server may not convert a column's rows as the source did, "" if it does.

    ``mariadb``: the target is.
    """
    if not effect.unknown:
        return ""
    left_out = {(table, name.lower()) for table, name in change.excluded}
    if (change.statement.dialect == dialects.MARIADB) != mariadb or (effect.table, effect.old.name.lower()) in left_out:
        return effect.unknown
    session = change.statement.session
    clocks = (effect.old.family == "timestamp") != (effect.new.family == "timestamp")
    if clocks and session is not None and session.time_zone in {None, "SYSTEM"} and not change.cut_overs:
        return "the session had the time zone of the source's machine (SYSTEM), and that of the target's may be another"
    return ""


def _takes_over(change: TableChange, column: ColumnDefinition, old: dict[str, ColumnDefinition]) -> bool:
    """Return True for a column that may be new under a name that another one had before it was renamed."""
    before = old.get(column.name.lower())
    renames = {ChangeKind.ADD_COLUMN, ChangeKind.RENAME_COLUMN} <= set(change.kinds)
    return renames and before is not None and before.default != column.default


def model_of(change: SchemaChange) -> TableId | None:
    """Return the target's name of the table that a CREATE TABLE … LIKE copies, None for other statements."""
    try:
        statement = parse_statement(change.statement.text, change.statement.schema, dialect_of(change))
    except DecodeError:
        return None
    like = statement.like if isinstance(statement, s.CreateTable) else None
    return change.target(like) if like is not None else None


def _knows_none(charset: str, collation: str) -> bool:
    return False


def _no_collation(table: TableId) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Words:
    """The words in which the target is told.

    Attributes:
        knows: which collations it has; those that a statement leaves to a default are said.
        server: what it understands of a definition.
        defaults: texts of defaults to be written in place of the statement's own.
        by_definition: the recorded text is not understood there: the definitions tell it.
        collation: the default collation of a table there, "" if it is not known.
    """

    knows: Knows = _knows_none
    server: Server = field(default_factory=Server)
    defaults: Defaults = field(default_factory=dict)
    by_definition: bool = False
    collation: Callable[[TableId], str] = _no_collation


def renderable(change: SchemaChange) -> bool:
    """Return True if the definitions tell what the statement made, but for foreign keys, checks and partitions: no
    index of an expression.
    """
    definitions = [table.after for table in change.tables if table.after is not None]
    return bool(definitions) and not any(
        not name for table in definitions for index in table.indexes for name, _ in index.columns
    )


def statements_for(change: SchemaChange, columns: Columns, words: Words | None = None) -> list[str]:
    """Return what to run, in order; empty if the target has it already. Raises LoadError.

    ``columns``: also of :func:`model_of`.
    """
    words = words or Words()
    if change.cut_overs:
        swapped = _told(change)[: len(change.cut_overs)]
        for part in followed(change):
            target_columns = columns(change.target(part.one.table))
            if target_columns is not None and not _named_as_after(change, part.one, columns):
                require_told_columns(change, part)
        return [
            *_altered(change, [_with_defaults(table, words.defaults) for table in swapped], columns, words),
            *_of_tables(change, columns),
        ]
    change = replace(change, tables=tuple(_with_defaults(table, words.defaults) for table in change.tables))
    text = change.statement
    names = NamesReader(text.text, text.schema, dialect_of(change))
    try:
        statement = parse_statement(text.text, text.schema, names.dialect, names)
    except DecodeError as error:
        raise not_followed(change, f"it is not understood: {error.message}", "run it at the target by hand") from error
    match statement:
        case s.AlterTable():
            return _alter(change, statement, names, columns, words)
        case s.CreateTable():
            return _of_tables(change, columns, lambda: _created(change, statement, names, columns, words))
        case s.DropTables() | s.DropDatabase() | s.RenameTables() | s.TruncateTable():
            return _of_tables(change, columns)
        case _:
            return []


def _of_tables(change: SchemaChange, columns: Columns, created: Callable[[], list[str]] = list) -> list[str]:
    """Return statements for whole tables.

    A dropped database takes its captured tables: the target's may hold others, or have another name.
    """
    statements: list[str] = []
    renames: list[str] = []
    planner = Planner(change, MysqlTables(change, columns))
    for step in (step for part in followed(change) if not part.cut_over for step in planner.steps(part)):
        match step:
            case DropTable(table):
                statements.append(f"DROP TABLE IF EXISTS {quoted_table(table)}")
            case EmptyTable(table):
                statements.append(f"TRUNCATE TABLE {quoted_table(table)}")
            case RenameTable(table, to):
                renames.append(f"{quoted_table(table)} TO {quoted_table(to)}")
            case CreateTable():
                statements += created()
    return statements + ([f"RENAME TABLE {', '.join(renames)}"] if renames else [])


def _alter(
    change: SchemaChange, statement: s.AlterTable, names: NamesReader, columns: Columns, words: Words
) -> list[str]:
    target = change.target(statement.table)
    edit = next((c for c in change.tables if c.table == statement.table), None)
    if edit is not None and edit.after is not None and columns(target) is None:
        table = change.target(edit.renamed_to or statement.table)
        if columns(table) is not None:
            return []
        if edit.renamed_to is not None and edit.table in change.not_captured:
            raise never_seen(change, edit, table)
        return [definitions.create_sql(table, edit.after, _naming(change, statement.table), words.server)]
    if edit is not None and NAMES & set(edit.kinds) and edit.names_differ and _named_as_after(change, edit, columns):
        return []  # somebody was here before
    partly = change.kinds is not None or any(t == statement.table for t, *_ in (*change.columns, *change.excluded))
    if partly or words.by_definition:
        return _altered(change, [c for c in change.tables if c.table == statement.table], columns, words)
    after = edit.after if edit is not None else None
    more = [
        *said(statement, names, after, words.knows, words.collation(target)),
        *_said_defaults(statement.table, names, words.defaults),
    ]
    return [_rewritten(change, names, more)]


def _said_defaults(table: TableId, names: NamesReader, defaults: Defaults) -> Iterator[Replacement]:
    """Yield other texts in the places of defaults."""
    if not defaults:
        return
    sql_tokens = tokens(names.sql, names.dialect)
    for end, column in names.types:
        text = defaults.get((table, column.name.lower()))
        if text is None or column.default is None:
            continue
        for token, after in pairwise(token for token in sql_tokens if token.start >= end):
            if (
                token.kind is Kind.WORD
                and token.upper == "DEFAULT"
                and names.sql.startswith(column.default, after.start)
            ):
                yield after.start, after.start + len(column.default), text
                break


def _rewritten(change: SchemaChange, names: NamesReader, more: Sequence[Replacement] = ()) -> str:
    """Return the recorded text, its tables by the target's names, and with ``more`` in other places."""
    pieces: list[Replacement] = [
        *more,
        *((start, end, quoted_table(change.target(table))) for start, (end, table) in names.places.items()),
    ]
    if names.in_transaction is not None:
        pieces.append((*names.in_transaction, ""))
    return replaced(change.statement.text, pieces).strip().rstrip(";")


def _naming(change: SchemaChange, table: TableId) -> definitions.Naming:
    renamed = {column.lower(): name for t, column, name in change.columns if t == table}
    excluded = {column.lower() for t, column in change.excluded if t == table}
    return lambda column: None if column.lower() in excluded else renamed.get(column.lower(), column)


def _created(
    change: SchemaChange, statement: s.CreateTable, names: NamesReader, columns: Columns, words: Words
) -> list[str]:
    target = change.target(statement.table)
    table = next((c for c in change.tables if c.table == statement.table), None)
    after = table.after if table is not None else None
    special = any(t == statement.table for t, *_ in (*change.columns, *change.excluded))
    unlike = statement.like is not None and not _has_columns(columns(change.target(statement.like)), after)
    if (special or statement.select or unlike or words.by_definition) and after is not None:
        return [definitions.create_sql(target, after, _naming(change, statement.table), words.server)]
    return [_rewritten(change, names, said(statement, names, after, words.knows))]


def _has_columns(target_columns: Collection[str] | None, definition: TableDefinition | None) -> bool:
    """Return True if the target's table has the columns of a definition: a table that is not captured may be another
    one here, or none.
    """
    return (
        target_columns is not None
        and definition is not None
        and set(target_columns) == {c.name.lower() for c in definition.columns}
    )


def _told(change: SchemaChange) -> list[TableChange]:
    """Return the changes of tables; the definitions tell all of a cut-over of an online schema change."""
    swapped = change.cut_overs
    return [replace(change, kinds=(), columns=()) if change in swapped else change for change in change.changes]


def _altered(change: SchemaChange, changes: list[TableChange], columns: Columns, words: Words) -> list[str]:
    statements = []
    for table in changes:
        target = change.target(table.table)
        present = columns(target)
        if present is None:
            continue
        sql = definitions.alter_sql(target, table, _naming(change, table.table), present, change.kinds, words.server)
        if sql:
            statements.append(sql)
    return statements


def _named_as_after(change: SchemaChange, table: TableChange, columns: Columns) -> bool:
    target_columns = columns(change.target(table.renamed_to or table.table))
    if target_columns is None or table.after is None:
        return table.after is None
    naming = _naming(change, table.table)
    names_after = {n.lower() for c in table.after.columns if (n := naming(c.name)) is not None}
    before = table.before.columns if table.before else ()
    kept_names = {c.name.lower() for c in table.after.columns}
    removed = {n.lower() for c in before if c.name.lower() not in kept_names and (n := naming(c.name)) is not None}
    return names_after <= set(target_columns) and not removed & set(target_columns)
