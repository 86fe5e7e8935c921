"""Data definition statements, parsed: MySQL 5.7 to 9.x and MariaDB.

Decision: a parser of our own, of the grammar that changes tables, rather than sqlglot's. sqlglot 30.30 reads RENAME
TABLE of several tables, CONVERT TO CHARACTER SET and clauses in versioned comments as opaque commands, and fails on ADD
PARTITION (tried). The truth in the tests is the server's information_schema. More grammar than fits here would make it
wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace as changed

from sluice.errors import DecodeError
from sluice.model.tables import TableId
from sluice.mysql.ddl.alter_clauses import read_actions
from sluice.mysql.ddl.ast import (
    VERSIONED,
    AddIndex,
    AlterDatabase,
    AlterTable,
    ColumnSpec,
    CreateDatabase,
    CreateTable,
    DropDatabase,
    DropIndex,
    DropTables,
    IndexSpec,
    NoDefinition,
    OtherObjects,
    RenameTables,
    Statement,
    TableOptions,
    TruncateTable,
)
from sluice.mysql.ddl.column_clauses import at_key, read_column, read_key, read_key_tail, read_option
from sluice.mysql.ddl.lexer import Dialect, Kind
from sluice.mysql.ddl.token_cursor import Reader

_NO_DEFINITION = {
    "GRANT", "REVOKE", "SET", "FLUSH", "ANALYZE", "OPTIMIZE", "REPAIR", "CHECK", "INSTALL", "UNINSTALL", "KILL",
    "RESET", "USE", "SAVEPOINT",
    "RELEASE", "START", "BEGIN", "COMMIT", "ROLLBACK", "INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD", "XA", "CALL",
    "DO", "SELECT", "WITH",
    "CHANGE", "STOP", "PURGE", "END", "GET", "SIGNAL", "RESIGNAL", "HELP", "EXPLAIN", "DESCRIBE", "DESC", "HANDLER",
    "TABLE", "VALUES",
    "RESTART", "BACKUP", "SHOW", "LOCK", "UNLOCK", "CACHE", "IMPORT", "SHUTDOWN", "CLONE", "BINLOG", "DEALLOCATE",
    "PREPARE", "EXECUTE",
}  # fmt: skip
_OTHER_OBJECTS = {
    "USER", "ROLE", "VIEW", "PROCEDURE", "FUNCTION", "TRIGGER", "EVENT", "SERVER", "TABLESPACE", "UNDO", "LOGFILE",
    "RESOURCE", "INSTANCE",
    "LIBRARY", "SEQUENCE", "PACKAGE", "MATERIALIZED", "JSON", "MASKING", "AGGREGATE", "DEFINER", "SQL", "ALGORITHM",
    "PREPARE",
    "CATALOG",
}  # fmt: skip

_NAMED_AS_TABLES = ("VIEW", "SEQUENCE")
_WITH_BODIES = {"PROCEDURE", "FUNCTION", "TRIGGER", "EVENT", "PACKAGE", "LIBRARY"}


def parse_statement(sql: str, schema: str, dialect: Dialect, reader: Reader | None = None) -> Statement:
    """Parse one statement as logged, run with the default schema ``schema``.

    ``reader``: one over the same text, that notes what it reads. Raises DecodeError for a statement that is not
    understood.
    """
    r = reader or Reader(sql, schema, dialect)
    if r.ended:
        return NoDefinition()
    word = r.peek().upper
    if word in _NO_DEFINITION:
        return NoDefinition(word.lower())
    r.next()
    if word == "CREATE":
        return _create(r)
    if word == "ALTER":
        return _alter(r)
    if word == "DROP":
        return _drop(r)
    if word == "RENAME":
        return _rename(r)
    if word == "TRUNCATE":
        r.accept("TABLE")
        return TruncateTable(r.table())
    raise DecodeError(f"the statement begins with {word or r.peek().text!r}, which is not understood")


def dropped_by_failure(sql: str, schema: str, dialect: Dialect) -> TableId | None:
    """Return the table that a failed statement dropped, None if it is no such statement.

    CREATE OR REPLACE TABLE drops the old table first.
    """
    try:
        statement = parse_statement(sql, schema, dialect)
    except DecodeError:
        return None
    replaced = isinstance(statement, CreateTable) and statement.replace and not statement.temporary
    return statement.table if replaced and isinstance(statement, CreateTable) else None


def concerned(sql: str, schema: str, dialect: Dialect) -> tuple[TableId, ...] | None:
    """Return the tables that a statement may change, for one that does not parse as a whole.

    Only its beginning has to be understood. None: not even that is.
    """
    r = Reader(sql, schema, dialect)
    try:
        return _concerned(r)
    except DecodeError:
        return None


def _concerned(r: Reader) -> tuple[TableId, ...] | None:
    verb = r.next().upper
    if verb == "CREATE":
        r.accept("OR", "REPLACE")
        temporary = r.accept("TEMPORARY")
        r.accept("EXTERNAL")
        if r.accept("TABLE"):
            r.accept("IF", "NOT", "EXISTS")
            table = r.table()
            return () if temporary else (table,)
        return _concerned_by_index(r)
    if verb == "ALTER":
        while r.accept_any("ONLINE", "OFFLINE", "IGNORE"):
            pass
        if not r.accept("TABLE"):
            return None
        r.accept("IF", "EXISTS")
        return (r.table(), *_other_tables(r))
    if verb == "DROP":
        return _concerned_by_index(r)
    if verb == "TRUNCATE":
        r.accept("TABLE")
        return (r.table(),)
    return None


def _concerned_by_index(r: Reader) -> tuple[TableId, ...] | None:
    while r.accept_any("ONLINE", "OFFLINE", "UNIQUE", "FULLTEXT", "SPATIAL", "VECTOR"):
        pass
    if not r.accept("INDEX"):
        return None
    while not r.ended:
        if r.accept("ON"):
            return (r.table(),)
        r.next()
    return None


def _other_tables(r: Reader) -> Iterator[TableId]:
    """Yield new names, and the tables that partitions are exchanged with. Raises DecodeError."""
    while not r.ended:
        word = r.next().upper
        if word == "RENAME" and r.peek().upper not in {"COLUMN", "INDEX", "KEY"}:
            r.accept_any("TO", "AS", "=")
            yield r.table()
        elif word == "TABLE":
            yield r.table()


def _other_object(r: Reader) -> bool:
    return r.peek().upper in _OTHER_OBJECTS or r.sees("SPATIAL", "REFERENCE") or r.sees("IF", "NOT")


def _create_other(r: Reader) -> Statement:
    """Read the name of a view or sequence, behind its ALGORITHM and DEFINER; not that of other objects."""
    word = ""
    while not r.ended and word not in _NAMED_AS_TABLES and word not in _WITH_BODIES:
        word = r.next().upper
    if word not in _NAMED_AS_TABLES:
        return NoDefinition(f"create {word.lower()}")
    r.accept("IF", "NOT", "EXISTS")
    return OtherObjects((r.table(),))


def _create(r: Reader) -> Statement:
    replace = r.accept("OR", "REPLACE")
    if r.accept_any("DATABASE", "SCHEMA"):
        if_not_exists = r.accept("IF", "NOT", "EXISTS")
        name = r.database()
        options = _database_options(r)
        return CreateDatabase(name, options.charset, options.collation, if_not_exists, replace)
    if _other_object(r):
        return _create_other(r)
    temporary = r.accept("TEMPORARY")
    if temporary and r.accept("SEQUENCE"):
        return NoDefinition("create sequence")
    r.accept("EXTERNAL")
    if r.accept("TABLE"):
        return _create_table(r, temporary, replace)
    r.accept_any("ONLINE", "OFFLINE")
    kind = (r.accept_any("UNIQUE", "FULLTEXT", "SPATIAL", "VECTOR") or "INDEX").lower()
    if r.accept("INDEX"):
        if_not_exists = r.accept("IF", "NOT", "EXISTS")
        name = r.identifier()
        hashed = bool(r.accept_any("USING", "TYPE")) and r.next().upper == "HASH"
        r.expect("ON")
        table = r.table()
        if r.accept("WAIT"):
            r.number()
        r.accept("NOWAIT")
        spec = read_key_tail(r, kind, name)
        spec = changed(spec, if_not_exists=if_not_exists, hashed=spec.hashed or hashed)
        before = (DropIndex(name, if_exists=True),) if replace else ()
        return AlterTable(table, (*before, AddIndex(spec)))
    raise r.stuck("CREATE of something that is not understood")


def _database_options(r: Reader) -> TableOptions:
    options = TableOptions()
    while not r.ended:
        if not read_option(r, options):
            r.next()
    return options


def _create_table(r: Reader, temporary: bool, replace: bool) -> Statement:
    if_not_exists = r.accept("IF", "NOT", "EXISTS")
    table = r.own_table()
    if r.accept("WAIT"):
        r.number()
    r.accept("NOWAIT")

    def like() -> CreateTable:
        return CreateTable(table, like=r.table(), temporary=temporary, if_not_exists=if_not_exists, replace=replace)

    if r.accept("LIKE"):
        return like()
    order: list[ColumnSpec | IndexSpec] = []
    if r.sees("(", "LIKE") and r.peek(2).kind in {Kind.WORD, Kind.NAME} and r.peek(3).upper in {")", "."}:
        r.next()
        r.next()
        return like()
    if r.sees("(") and r.peek(1).upper != "SELECT":
        r.next()
        while True:
            if at_key(r):
                order.append(read_key(r))
            elif r.sees("PERIOD", "FOR"):
                raise r.stuck(VERSIONED if r.sees("PERIOD", "FOR", "SYSTEM_TIME") else "a period is not understood")
            else:
                order.append(read_column(r))
            if not r.accept(","):
                r.expect(")")
                break
        r.note_columns(r.peek(-1).end)
    options = TableOptions()
    select = False
    while not r.ended:
        if read_option(r, options):
            continue
        if r.peek().upper in {"SELECT", "WITH", "VALUES", "TABLE"} and not (r.sees("WITH", "SYSTEM")):
            select = True
            break
        if r.sees("("):
            r.skip_brackets()
        elif r.sees("START", "TRANSACTION"):
            r.in_transaction = (r.peek().start, r.peek(1).end)
            r.accept("START", "TRANSACTION")
        else:
            r.next()
    columns = tuple(item for item in order if isinstance(item, ColumnSpec))
    indexes = tuple(item for item in order if isinstance(item, IndexSpec))
    return CreateTable(
        table, columns, indexes, options, None, select or not columns, temporary, if_not_exists, replace, tuple(order)
    )


def _alter(r: Reader) -> Statement:
    if r.accept_any("DATABASE", "SCHEMA"):
        name = r.schema
        if r.peek().kind is Kind.NAME or r.peek().upper not in {
            "DEFAULT",
            "CHARACTER",
            "CHARSET",
            "COLLATE",
            "ENCRYPTION",
            "READ",
            "COMMENT",
            "UPGRADE",
        }:
            name = r.database()
        options = _database_options(r)
        return AlterDatabase(name, options.charset, options.collation)
    r.accept("OR", "REPLACE")
    ignore = False
    while word := r.accept_any("ONLINE", "OFFLINE", "IGNORE"):
        ignore = ignore or word == "IGNORE"
    if r.accept("TABLE"):
        if_exists = r.accept("IF", "EXISTS")
        table = r.own_table()
        if r.accept("WAIT"):
            r.number()
        r.accept("NOWAIT")
        return AlterTable(table, tuple(read_actions(r)), if_exists, ignore)
    if _other_object(r):
        return NoDefinition("alter " + r.peek().text.lower())
    raise r.stuck("ALTER of something that is not understood")


def _drop(r: Reader) -> Statement:
    if r.accept_any("DATABASE", "SCHEMA"):
        r.accept("IF", "EXISTS")
        return DropDatabase(r.database())
    temporary = r.accept("TEMPORARY")
    if r.accept_any("TABLE", "TABLES"):
        if_exists = r.accept("IF", "EXISTS")
        tables = [r.table()]
        while r.accept(","):
            tables.append(r.table())
        return DropTables(tuple(tables), temporary, if_exists)
    r.accept_any("ONLINE", "OFFLINE")
    if r.accept("INDEX"):
        if_exists = r.accept("IF", "EXISTS")
        name = r.identifier()
        r.expect("ON")
        table = r.table()
        return AlterTable(table, (DropIndex("PRIMARY" if name.upper() == "PRIMARY" else name, if_exists),))
    if r.accept_any(*_NAMED_AS_TABLES):
        r.accept("IF", "EXISTS")
        names = [r.table()]
        while r.accept(","):
            names.append(r.table())
        return OtherObjects(tuple(names), dropped=True)
    if _other_object(r) or r.sees("SPATIAL"):
        return NoDefinition("drop " + r.peek().text.lower())
    raise r.stuck("DROP of something that is not understood")


def _rename(r: Reader) -> Statement:
    if r.accept("USER"):
        return NoDefinition("rename user")
    if not r.accept_any("TABLE", "TABLES"):
        raise r.stuck("RENAME of something that is not understood")
    r.accept("IF", "EXISTS")
    pairs = []
    while True:
        old = r.table()
        if r.accept("WAIT"):
            r.number()
        r.accept("NOWAIT")
        r.expect("TO")
        pairs.append((old, r.table()))
        if not r.accept(","):
            return RenameTables(tuple(pairs))
