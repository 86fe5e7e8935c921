"""A statement of the source's log as statements for this target: the recorded text with the target's names, or what the definitions tell.

The recorded text is best: the server does what the source's did. Definitions are used where it cannot be: a gh-ost or pt-online-schema-change
cut-over (the new table's definition arrives under the old name), columns that have other names here, CREATE TABLE … SELECT, and policies that
want a part of a statement.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from sluice.errors import DecodeError, LoadError
from sluice.mapping import Mapping as TableMapping
from sluice.model.definitions import ColumnDefinition, TableDefinition
from sluice.model.row_effects import ColumnEffect
from sluice.model.schema_changes import ChangeKind, TableChange, cut_over
from sluice.model.sessions import StatementSession
from sluice.model.tables import TableId, quoted_table
from sluice.mysql.column_defaults import Statement
from sluice.mysql.ddl import ast as s
from sluice.mysql.ddl.lexer import Dialect, Kind, tokens
from sluice.mysql.ddl.names import NamesReader, Replacement, replaced
from sluice.mysql.ddl.parser import parse_statement
from sluice.targets.mysql import definitions
from sluice.targets.mysql.said_charsets import Knows, said
from sluice.targets.port import SchemaChange

Columns = Callable[[TableId], Collection[str] | None]
"""The target's columns of one of its tables in lower case, None if there is no such table."""
Defaults = Mapping[tuple[TableId, str], str]
"""Texts of defaults, by source table and the column's name in lower case."""


@dataclass(frozen=True, slots=True)
class DdlStep:
    """A schema change with the definitions of the source's dialect.

    Attributes:
        number: its place among the batch's steps, from 0. where: file:offset in the log.
        sql: as recorded, run with the default schema ``schema`` and the bits ``sql_mode``.
        changes: what it did to captured tables, at the source. mapping: where tables go. foreign: tables in it that are not captured.
        columns: (source table, source column, target column) of columns with another name; excluded: (source table, column) that are left out.
        session: of the statement at the source; None: recorded by a version that did not look at it.
        check_only: the policy is stop: done already, or an error. kinds: only these kinds of change are wanted; None: the statement as it is.
    """

    number: int
    where: str
    sql: str
    schema: str
    sql_mode: int
    changes: tuple[TableChange, ...]
    mapping: TableMapping
    foreign: frozenset[TableId] = frozenset()
    columns: tuple[tuple[TableId, str, str], ...] = ()
    excluded: tuple[tuple[TableId, str], ...] = ()
    check_only: bool = False
    kinds: frozenset[ChangeKind] | None = None
    mariadb: bool = False
    session: StatementSession | None = None

    def target(self, table: TableId) -> TableId:
        """The target's name of a source table."""
        return self.mapping.route(table).target


def step_of(change: SchemaChange) -> DdlStep:
    """Raises LoadError for a statement of another dialect."""
    statement = change.statement
    if statement.dialect not in {"mysql", "mariadb"}:
        raise LoadError(
            f"a MySQL target cannot follow a statement of {statement.dialect}: {statement.text[:300]}",
            where=change.where,
            hint="make the change at the target by hand, then set its kind to ignore in the target's ddl until the batch is delivered",
        )
    return DdlStep(
        number=change.number,
        where=change.where,
        sql=statement.text,
        schema=statement.schema,
        sql_mode=statement.mode,
        session=statement.session,
        changes=change.tables,
        mapping=change.mapping,
        foreign=change.not_captured,
        columns=change.columns,
        excluded=change.excluded,
        check_only=change.check_only,
        kinds=change.kinds,
        mariadb=statement.dialect == "mariadb",
    )


_MODES = {
    1: "REAL_AS_FLOAT", 2: "PIPES_AS_CONCAT", 4: "ANSI_QUOTES", 8: "IGNORE_SPACE", 64: "NO_UNSIGNED_SUBTRACTION", 1 << 19: "NO_AUTO_VALUE_ON_ZERO",
    1 << 20: "NO_BACKSLASH_ESCAPES", 1 << 25: "ALLOW_INVALID_DATES",
    1 << 29: "HIGH_NOT_PRECEDENCE", 1 << 31: "PAD_CHAR_TO_FULL_LENGTH",
}  # fmt: skip


def sql_mode_names(bits: int) -> str:
    """The modes that change what a statement means, without those that only refuse values: the source accepted it."""
    return ",".join(dict.fromkeys([*(name for bit, name in _MODES.items() if bits & bit), "ALLOW_INVALID_DATES"]))


_MODES_OF_ONE = {
    False: {1 << 32: "TIME_TRUNCATE_FRACTIONAL"},
    True: {1 << 32: "EMPTY_STRING_IS_NULL", 1 << 34: "TIME_ROUND_FRACTIONAL"},
}
"""By whether the source is MariaDB."""

_BITS = {"TIME_TRUNCATE_FRACTIONAL": 1 << 32, "TIME_ROUND_FRACTIONAL": 1 << 34}

_UTF8MB4 = {45: "utf8mb4_general_ci", 255: "utf8mb4_0900_ai_ci"}

_TEXT = re.compile(r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\"")
_DIFFERS = re.compile(
    r"\b(?:uuid|uuid_v4|uuid_v7|uuid_short|sys_guid|rand|random_bytes|sysdate|user|session_user|system_user|connection_id|load_file|version"
    r"|found_rows|row_count|last_insert_id|nextval|lastval|setval)\s*\(|\bcurrent_(?:user|role)\b|\bnext\s+value\b|@",
    re.I,
)
"""In a default: what another server, or the next row, evaluates to another value. The time is not among it: it is the statement's."""
_TIME = re.compile(
    r"\b(?:now|current_timestamp|localtime|localtimestamp|curdate|curtime|current_date|current_time|utc_\w+|unix_timestamp)\b",
    re.I,
)


def session_settings(step: DdlStep, *, mariadb: bool) -> list[str]:
    """SET statements that give a session what the statement's own had, as a replica's applier does. ``mariadb``: the target is."""
    modes = ",".join([sql_mode_names(step.sql_mode), *_own_modes(step, mariadb=mariadb)])
    settings = [f"sql_mode = '{modes}'"]
    session = step.session
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
    if step.mariadb == mariadb:  # the numbers of collations are each one's own
        if session.collation is not None:
            settings.append(f"collation_connection = {session.collation}")
        if session.timestamps_explicit is not None:
            settings.append(f"explicit_defaults_for_timestamp = {int(session.timestamps_explicit)}")
        if session.utf8mb4_collation in _UTF8MB4 and not mariadb:
            settings.append(f"default_collation_for_utf8mb4 = {_UTF8MB4[session.utf8mb4_collation]}")
    made = [f"SET SESSION {', '.join(settings)}"]
    if session.time_zone is not None:
        escaped = session.time_zone.replace("\\", "\\\\").replace("'", "''")
        made.append(f"SET SESSION time_zone = '{escaped}'")
    return made


def _own_modes(step: DdlStep, *, mariadb: bool) -> list[str]:
    if step.mariadb and not mariadb:  # what is too precise is cut by the one, and rounded by the other
        return [] if step.sql_mode & 1 << 34 else ["TIME_TRUNCATE_FRACTIONAL"]
    if mariadb and not step.mariadb:
        return [] if step.sql_mode & 1 << 32 else ["TIME_ROUND_FRACTIONAL"]
    return [n for bit, n in _MODES_OF_ONE[mariadb].items() if step.sql_mode & bit]


def read_here(step: DdlStep, *, mariadb: bool) -> Statement:
    """The statement as the target reads it, under the settings of :func:`session_settings`. ``mariadb``: the target is."""
    known = sum(bit for bit in _MODES if step.sql_mode & bit) | 1 << 25
    return Statement(mariadb, known | sum(_BITS.get(n, 0) for n in _own_modes(step, mariadb=mariadb)), step.session)


def new_columns(step: DdlStep, columns: Columns) -> Iterator[tuple[TableChange, TableId, str, ColumnDefinition]]:
    """(change, target table, name there, column) of columns that the statement adds to a table that the target has."""
    swapped = _cut_over(step)
    for change in [swapped] if swapped is not None else step.changes:
        if change.before is None or change.after is None:
            continue
        target, naming = step.target(change.table), _naming(step, change.table)
        there = columns(target)
        old = {column.name.lower(): column for column in change.before.columns}
        for column in change.after.columns:
            name = naming(column.name)
            if there is None or name is None:
                continue
            was_there = name.lower() in there or column.name.lower() in old
            if was_there and not (change.reuses_names or _takes_over(change, column, old)):
                continue
            yield change, target, name, column


def _with_defaults(change: TableChange, said: Defaults) -> TableChange:
    """The change with other texts for some defaults of its definitions."""

    def column(one: ColumnDefinition) -> ColumnDefinition:
        text = said.get((change.table, one.name.lower()))
        return replace(one, default=text) if text is not None else one

    if not said or change.after is None:
        return change
    parts = tuple(replace(one, new=column(one.new)) if one.new is not None else one for one in change.columns)
    return replace(
        change,
        after=replace(change.after, columns=tuple(map(column, change.after.columns))),
        columns=parts,
    )


def irreproducible(step: DdlStep, columns: Columns) -> list[tuple[TableId, str, str]]:
    """(target table, column, why) of columns that are new, and whose values in existing rows are not known from the statement."""
    swapped = _cut_over(step)
    found = []
    for change, target, name, column in new_columns(step, columns):
        default = _TEXT.sub("''", column.default or "")
        if _DIFFERS.search(default):
            why = f"its default {column.default} has another value on every server or for every row"
        elif swapped is not None and _TIME.search(default):
            why = f"its default {column.default} was evaluated whenever a row was copied"
        elif column.auto_increment and change.before is not None and not change.before.primary_key:
            why = "rows of a table without a primary key are numbered in no order that two servers share"
        else:
            continue
        found.append((target, name, why))
    return found


def converts_otherwise(change: SchemaChange, effect: ColumnEffect, *, mariadb: bool) -> str:
    """Return why this server may not convert a column's rows as the source did, "" if it does. ``mariadb``: the target is."""
    if not effect.unknown:
        return ""
    left_out = {(table, name.lower()) for table, name in change.excluded}
    if (change.statement.dialect == "mariadb") != mariadb or (effect.table, effect.old.name.lower()) in left_out:
        return effect.unknown
    session = change.statement.session
    clocks = (effect.old.family == "timestamp") != (effect.new.family == "timestamp")
    if clocks and session is not None and session.time_zone in {None, "SYSTEM"} and change.cut_over is None:
        return "the session had the time zone of the source's machine (SYSTEM), and that of the target's may be another"
    return ""


def _takes_over(change: TableChange, column: ColumnDefinition, old: dict[str, ColumnDefinition]) -> bool:
    """True for a column that may be new under a name that another one had before it was renamed."""
    before = old.get(column.name.lower())
    renames = {ChangeKind.ADD_COLUMN, ChangeKind.RENAME_COLUMN} <= set(change.kinds)
    return renames and before is not None and before.default != column.default


def model_of(step: DdlStep) -> TableId | None:
    """The target's name of the table that a CREATE TABLE … LIKE copies, None for other statements."""
    try:
        statement = parse_statement(step.sql, step.schema, Dialect(step.mariadb, 0, step.sql_mode))
    except DecodeError:
        return None
    like = statement.like if isinstance(statement, s.CreateTable) else None
    return step.target(like) if like is not None else None


def _knows_none(charset: str, collation: str) -> bool:
    return False


def _no_collation(table: TableId) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Words:
    """In what words the target is told.

    Attributes:
        knows: which collations it has; those that a statement leaves to a default are said.
        server: what it understands of a definition.
        defaults: texts of defaults to be written in place of the statement's own.
        by_definition: the recorded text is not understood there: the definitions tell it.
        collation: the default collation of a table there, "" if it is not known.
    """

    knows: Knows = _knows_none
    server: definitions.Server = definitions.SAME
    defaults: Defaults = field(default_factory=dict)
    by_definition: bool = False
    collation: Callable[[TableId], str] = _no_collation


def renderable(step: DdlStep) -> bool:
    """True if the definitions tell what the statement made, but for foreign keys, checks and partitions: no index of an expression."""
    made = [change.after for change in step.changes if change.after is not None]
    return bool(made) and not any(not name for table in made for index in table.indexes for name, _ in index.columns)


def statements_for(step: DdlStep, columns: Columns, words: Words | None = None) -> list[str]:
    """What to run, in order; empty if the target has it already. Raises LoadError.

    ``columns``: also of :func:`model_of`.
    """
    words = words or Words()
    swapped = _cut_over(step)
    if swapped is not None:
        return _altered(step, [_with_defaults(swapped, words.defaults)], columns, words)
    step = replace(step, changes=tuple(_with_defaults(change, words.defaults) for change in step.changes))
    names = NamesReader(step.sql, step.schema, Dialect(step.mariadb, 0, step.sql_mode))
    try:
        statement = parse_statement(step.sql, step.schema, names.dialect, names)
    except DecodeError as error:
        raise LoadError(
            f"a statement of the source is not understood: {error.message}",
            where=step.where,
            hint=f"run it at the target by hand ({step.sql[:200]}), then set its kind to ignore in the target's ddl until it is delivered",
        ) from error
    match statement:
        case s.CreateTable():
            return _created(step, statement, names, columns, words)
        case (
            s.DropTables() | s.DropDatabase()
        ):  # of a database its captured tables: the target's may hold others, or have another name
            gone = (c.table for c in step.changes if ChangeKind.DROP_TABLE in c.kinds and c.table not in step.foreign)
            targets = list(dict.fromkeys(map(step.target, gone)))
            return [f"DROP TABLE IF EXISTS {quoted_table(t)}" for t in targets if columns(t) is not None]
        case s.RenameTables():
            return _renamed(step, columns)
        case s.TruncateTable():
            target = step.target(statement.table)
            return [f"TRUNCATE TABLE {quoted_table(target)}"] if columns(target) is not None else []
        case s.AlterTable():
            changed = next((c for c in step.changes if c.table == statement.table), None)
            if changed is not None and changed.after is not None and columns(step.target(statement.table)) is None:
                target = step.target(changed.renamed_to or statement.table)
                made = columns(target) is None
                sql = definitions.create_sql(target, changed.after, _naming(step, statement.table), words.server)
                return [sql] if made else []
            if (
                changed is not None
                and _NAMED & set(changed.kinds)
                and changed.names_differ
                and _named_as_after(step, changed, columns)
            ):
                return []  # somebody was here before
            partly = step.kinds is not None or any(t == statement.table for t, *_ in (*step.columns, *step.excluded))
            if partly or words.by_definition:
                return _altered(step, [c for c in step.changes if c.table == statement.table], columns, words)
            after = changed.after if changed is not None else None
            more = [
                *said(statement, names, after, words.knows, words.collation(step.target(statement.table))),
                *_said_defaults(statement.table, names, words.defaults),
            ]
            return [_rewritten(step, names, more)]
        case _:
            return []


def _said_defaults(table: TableId, names: NamesReader, defaults: Defaults) -> Iterator[Replacement]:
    """Other texts in the places of defaults."""
    if not defaults:
        return
    found = tokens(names.sql, names.dialect)
    for end, column in names.types:
        text = defaults.get((table, column.name.lower()))
        if text is None or column.default is None:
            continue
        for one, after in pairwise(token for token in found if token.start >= end):
            if one.kind is Kind.WORD and one.upper == "DEFAULT" and names.sql.startswith(column.default, after.start):
                yield after.start, after.start + len(column.default), text
                break


def _rewritten(step: DdlStep, names: NamesReader, more: Sequence[Replacement] = ()) -> str:
    """The recorded text, its tables by the target's names, and with ``more`` in other places."""
    pieces: list[Replacement] = [
        *more,
        *((start, end, quoted_table(step.target(table))) for start, (end, table) in names.places.items()),
    ]
    if names.in_transaction is not None:
        pieces.append((*names.in_transaction, ""))
    return replaced(step.sql, pieces).strip().rstrip(";")


def _naming(step: DdlStep, table: TableId) -> definitions.Naming:
    renamed = {column.lower(): name for t, column, name in step.columns if t == table}
    excluded = {column.lower() for t, column in step.excluded if t == table}
    return lambda column: None if column.lower() in excluded else renamed.get(column.lower(), column)


def _created(step: DdlStep, statement: s.CreateTable, names: NamesReader, columns: Columns, words: Words) -> list[str]:
    target = step.target(statement.table)
    if statement.replace and columns(target) is not None:
        return [f"DROP TABLE {quoted_table(target)}", *_created_anew(step, statement, names, columns, words)]
    if columns(target) is not None:
        return []
    return _created_anew(step, statement, names, columns, words)


def _created_anew(
    step: DdlStep, statement: s.CreateTable, names: NamesReader, columns: Columns, words: Words
) -> list[str]:
    target = step.target(statement.table)
    change = next((c for c in step.changes if c.table == statement.table), None)
    after = change.after if change is not None else None
    special = any(t == statement.table for t, *_ in (*step.columns, *step.excluded))
    unlike = statement.like is not None and not _has_columns(columns(step.target(statement.like)), after)
    if (special or statement.select or unlike or words.by_definition) and after is not None:
        return [definitions.create_sql(target, after, _naming(step, statement.table), words.server)]
    return [_rewritten(step, names, said(statement, names, after, words.knows))]


def _has_columns(there: Collection[str] | None, definition: TableDefinition | None) -> bool:
    """True if the target's table has the columns of a definition: a table that is not captured may be another one here, or none."""
    return there is not None and definition is not None and set(there) == {c.name.lower() for c in definition.columns}


def _renamed(step: DdlStep, columns: Columns) -> list[str]:
    """The renames, one after the other, of tables that are there by then. Raises LoadError for rows that come from nowhere."""
    targets = {step.target(table) for change in step.changes for table in change.tables}
    present = {table for table in targets if columns(table) is not None}
    pairs = []
    for change in step.changes:
        if change.renamed_to is None:
            continue
        old, new = step.target(change.table), step.target(change.renamed_to)
        if change.table in step.foreign and change.renamed_to not in step.foreign and new not in present:
            raise LoadError(
                f"{change.table}, which is not captured, became {change.renamed_to}, which is: its rows were never seen: {step.sql[:300]}",
                where=step.where,
                hint=f"copy the table to the target by hand as {new}; the load goes on once it is there",
            )
        if old != new and old in present and new not in present:
            pairs.append(f"{quoted_table(old)} TO {quoted_table(new)}")
            present = (present - {old}) | {new}
    return [f"RENAME TABLE {', '.join(pairs)}"] if pairs else []


def _cut_over(step: DdlStep) -> TableChange | None:
    """One RENAME that takes a captured table away and puts another, which is not, in its place: the same table with a new definition."""
    found = cut_over(step.changes, step.foreign)
    return replace(found, kinds=(), columns=()) if found is not None else None


def _altered(step: DdlStep, changes: list[TableChange], columns: Columns, words: Words) -> list[str]:
    found = []
    for change in changes:
        target = step.target(change.table)
        there = columns(target)
        if there is None:
            continue
        sql = definitions.alter_sql(target, change, _naming(step, change.table), there, step.kinds, words.server)
        if sql:
            found.append(sql)
    return found


_NAMED = {ChangeKind.ADD_COLUMN, ChangeKind.DROP_COLUMN, ChangeKind.RENAME_COLUMN}


def _named_as_after(step: DdlStep, change: TableChange, columns: Columns) -> bool:
    there = columns(step.target(change.renamed_to or change.table))
    if ChangeKind.DROP_TABLE in change.kinds:
        return there is None
    if change.after is None:
        return True
    if there is None:
        return False
    naming = _naming(step, change.table)
    wanted = {n.lower() for c in change.after.columns if (n := naming(c.name)) is not None}
    before = change.before.columns if change.before else ()
    kept = {c.name.lower() for c in change.after.columns}
    gone = {n.lower() for c in before if c.name.lower() not in kept and (n := naming(c.name)) is not None}
    return wanted <= set(there) and not gone & set(there)
