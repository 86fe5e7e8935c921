"""The clauses of ALTER TABLE."""

from __future__ import annotations

from collections.abc import Iterator

from sluice.mysql.ddl import ast as s
from sluice.mysql.ddl.column_clauses import (
    at_key,
    read_charset,
    read_column,
    read_default,
    read_key,
    read_option,
    read_place,
)
from sluice.mysql.ddl.lexer import Kind
from sluice.mysql.ddl.token_cursor import Reader

_HARMLESS = {
    "FORCE", "ENABLE", "DISABLE", "ALGORITHM", "LOCK", "SECONDARY_LOAD", "SECONDARY_UNLOAD", "AUTO_INCREMENT",
    "ROW_FORMAT", "KEY_BLOCK_SIZE",
    "STATS_PERSISTENT", "STATS_AUTO_RECALC", "STATS_SAMPLE_PAGES", "CHECKSUM", "DELAY_KEY_WRITE", "AVG_ROW_LENGTH",
    "MAX_ROWS", "MIN_ROWS",
    "PACK_KEYS", "INSERT_METHOD", "TABLESPACE", "STORAGE", "COMPRESSION", "ENCRYPTION", "CONNECTION", "DATA", "INDEX",
    "PASSWORD", "UNION",
    "AUTOEXTEND_SIZE", "ENGINE_ATTRIBUTE", "SECONDARY_ENGINE_ATTRIBUTE", "SECONDARY_ENGINE", "ENCRYPTED",
    "ENCRYPTION_KEY_ID", "PAGE_CHECKSUM",
    "PAGE_COMPRESSED", "PAGE_COMPRESSION_LEVEL", "TRANSACTIONAL", "ITEF_QUOTES", "SEQUENCE", "NODEGROUP", "WAIT",
    "NOWAIT", "ONLINE",
}  # fmt: skip
_PARTITION_VERBS = {
    "ANALYZE", "CHECK", "OPTIMIZE", "REBUILD", "REPAIR", "TRUNCATE", "COALESCE", "REORGANIZE", "EXCHANGE", "REMOVE",
}  # fmt: skip


def read_actions(r: Reader) -> Iterator[s.Action]:
    """Read all clauses up to the end of the statement. Raises DecodeError for one that is not understood."""
    while not r.ended:
        yield from _action(r)
        if not r.accept(",") and not r.ended and not _may_follow(r):
            raise r.stuck("a clause of ALTER TABLE is not understood")


def _may_follow(r: Reader) -> bool:
    """Return True for table options and partitions, which may follow a clause without a comma."""
    word = r.peek().upper
    return word in _HARMLESS or word in {
        "PARTITION",
        "DEFAULT",
        "CHARACTER",
        "CHARSET",
        "COLLATE",
        "ENGINE",
        "COMMENT",
        "REMOVE",
        "WITH",
    }


def _action(r: Reader) -> Iterator[s.Action]:
    word = r.peek().upper
    if word == "ADD":
        r.next()
        yield from _add(r)
    elif word == "DROP":
        r.next()
        yield _drop(r)
    elif word == "MODIFY":
        r.next()
        r.accept("COLUMN")
        if_exists = r.accept("IF", "EXISTS")
        column = read_column(r)
        yield s.ChangeColumn(column.name, column, read_place(r), if_exists)
    elif word == "CHANGE":
        r.next()
        r.accept("COLUMN")
        if_exists = r.accept("IF", "EXISTS")
        old = r.column_name()
        yield s.ChangeColumn(old, read_column(r), read_place(r), if_exists)
    elif word == "ALTER":
        r.next()
        yield _alter(r)
    elif word == "RENAME":
        r.next()
        yield _rename(r)
    elif word == "CONVERT":
        r.next()
        yield _convert(r)
    elif word in {"DISCARD", "IMPORT"}:
        r.next()
        r.skip_clause()
        yield s.Tablespace(word.lower())
    elif word in _PARTITION_VERBS:
        r.next()
        yield _partition(r, word.lower())
    elif word == "PARTITION":
        r.next()
        r.expect("BY")
        while not r.ended:
            r.next()
        yield s.PartitionAction("by")
    elif word == "ORDER":
        _order(r)
        yield s.Harmless("order")
    elif r.accept("WITH", "VALIDATION") or r.accept("WITHOUT", "VALIDATION"):
        yield s.Harmless("validation")
    else:
        yield _options(r)


def _options(r: Reader) -> s.Action:
    options = s.TableOptions()
    has_options = False
    while read_option(r, options):
        has_options = True
    if has_options:
        return s.SetOptions(options)
    word = r.peek()
    harmless = word.upper in _HARMLESS or (
        word.kind in {Kind.WORD, Kind.NAME} and r.peek(1).upper == "=" and r.dialect.mariadb
    )
    if not harmless:
        raise r.stuck("a clause of ALTER TABLE is not understood")
    r.next()
    while not r.ended and not r.sees(",") and not read_option(r, options) and not r.sees("PARTITION"):
        if r.sees("("):
            r.skip_brackets()
        else:
            r.next()
    return s.SetOptions(options) if options != s.TableOptions() else s.Harmless(word.text.lower())


def _order(r: Reader) -> None:
    r.expect("ORDER", "BY")
    while True:
        r.column_name()
        r.accept_any("ASC", "DESC")
        following = r.peek(1)
        if not r.sees(",") or (
            following.kind is Kind.WORD
            and following.upper in {"ADD", "DROP", "MODIFY", "CHANGE", "RENAME", "ALGORITHM", "LOCK"}
        ):
            return
        r.next()


def _add(r: Reader) -> Iterator[s.Action]:
    if (
        r.sees("PARTITION")
        and r.peek(1).kind in {Kind.SIGN, Kind.WORD}
        and r.peek(1).upper in {"(", "PARTITIONS", "IF"}
    ):
        r.next()
        r.skip_clause()
        yield s.PartitionAction("add")
    elif r.sees("SYSTEM", "VERSIONING") or r.sees("PERIOD", "FOR", "SYSTEM_TIME"):
        raise r.stuck(s.VERSIONED)
    elif r.sees("PERIOD", "FOR"):
        raise r.stuck("a period is not understood")
    elif at_key(r):
        yield s.AddIndex(read_key(r))
    else:
        r.accept("COLUMN")
        if_not_exists = r.accept("IF", "NOT", "EXISTS")
        if r.accept("("):
            while True:
                if at_key(r):
                    yield s.AddIndex(read_key(r))
                else:
                    yield s.AddColumn(read_column(r), None, if_not_exists)
                if not r.accept(","):
                    r.expect(")")
                    return
        yield s.AddColumn(read_column(r), read_place(r), if_not_exists)


def _drop(r: Reader) -> s.Action:
    if r.accept("PRIMARY", "KEY"):
        return s.DropIndex("PRIMARY")
    if r.accept("FOREIGN", "KEY"):
        r.accept("IF", "EXISTS")
        r.identifier()
        return s.Harmless("drop foreign key")
    if r.sees("CHECK") and r.peek(1).kind in {Kind.WORD, Kind.NAME}:
        r.next()
        r.identifier()
        return s.Harmless("drop check")
    if r.accept("CONSTRAINT"):
        r.accept("IF", "EXISTS")
        return s.DropConstraint(r.identifier())
    if r.accept_any("INDEX", "KEY"):
        if_exists = r.accept("IF", "EXISTS")
        name = r.identifier()
        return s.DropIndex("PRIMARY" if name.upper() == "PRIMARY" else name, if_exists)
    if r.sees("PARTITION") and r.peek(1).kind in {Kind.WORD, Kind.NAME}:
        return _partition(r, "drop")
    if r.sees("SYSTEM", "VERSIONING") or r.sees("PERIOD", "FOR"):
        raise r.stuck("the end of a period, or of the history, is not understood")
    r.accept("COLUMN")
    if_exists = r.accept("IF", "EXISTS")
    name = r.column_name()
    r.accept_any("RESTRICT", "CASCADE")
    return s.DropColumn(name, if_exists)


def _alter(r: Reader) -> s.Action:
    if r.accept_any("INDEX", "KEY", "CHECK", "CONSTRAINT"):
        r.skip_clause()
        return s.Harmless("alter index or check")
    r.accept("COLUMN")
    if_exists = r.accept("IF", "EXISTS")
    name = r.column_name()
    if r.accept("SET", "DEFAULT"):
        return s.AlterColumn(name, read_default(r), True, None, if_exists)
    if r.accept("DROP", "DEFAULT"):
        return s.AlterColumn(name, None, True, None, if_exists)
    if r.accept("SET") and (word := r.accept_any("VISIBLE", "INVISIBLE")):
        return s.AlterColumn(name, None, False, word == "INVISIBLE", if_exists)
    raise r.stuck("a change of a column is not understood")


def _rename(r: Reader) -> s.Action:
    if r.accept("COLUMN"):
        if_exists = r.accept("IF", "EXISTS")
        old = r.column_name()
        r.expect("TO")
        return s.RenameColumn(old, r.column_name(), if_exists)
    if r.peek().upper in {"INDEX", "KEY"} and r.peek(1).kind in {Kind.WORD, Kind.NAME}:
        r.next()
        r.accept("IF", "EXISTS")
        old = r.identifier()
        r.expect("TO")
        return s.RenameIndex(old, r.identifier())
    r.accept_any("TO", "AS", "=")
    return s.RenameTo(r.table())


def _convert(r: Reader) -> s.Action:
    if r.accept("PARTITION"):
        name = r.identifier()
        r.expect("TO", "TABLE")
        return s.PartitionAction("convert out", (name,), r.table())
    if r.accept("TABLE"):
        table = r.table()
        r.skip_clause()
        return s.PartitionAction("convert in", (), table)
    r.expect("TO")
    charset = read_charset(r)
    if charset is None:
        raise r.stuck("expected CHARACTER SET")
    r.note_charset(r.peek(-1).start, r.peek(-1).end, charset)
    collation = None
    if r.accept("COLLATE"):
        r.accept("=")
        collation = r.word_or_string()
    return s.ConvertCharset(None if charset.upper() == "DEFAULT" else charset, collation)


def _partition(r: Reader, verb: str) -> s.PartitionAction:
    if verb == "remove":
        r.expect("PARTITIONING")
        return s.PartitionAction(verb)
    r.expect("PARTITION")
    r.accept_any("NO_WRITE_TO_BINLOG", "LOCAL")
    r.accept("IF", "EXISTS")
    if verb == "exchange":
        name = r.identifier()
        r.expect("WITH", "TABLE")
        other_table = r.table()
        if not r.accept("WITH", "VALIDATION"):
            r.accept("WITHOUT", "VALIDATION")
        return s.PartitionAction(verb, (name,), other_table)
    if verb in {"drop", "truncate"}:
        names = [r.identifier()]
        while r.sees(",") and r.peek(1).kind in {Kind.WORD, Kind.NAME}:
            r.next()
            names.append(r.identifier())
        return s.PartitionAction(verb, tuple(names))
    while not r.ended:  # the rest of the statement: partition verbs stand alone
        r.next()
    return s.PartitionAction(verb)
