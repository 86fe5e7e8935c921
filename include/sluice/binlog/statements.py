"""What a statement in the log does, as far as a reader of rows has to know: to definitions, to rows, or nothing that matters."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from sluice.model.tables import TableId


class Effect(StrEnum):
    """Kinds of effect."""

    NONE = "none"
    DEFINITION = "definition"
    ROWS = "rows"


@dataclass(frozen=True, slots=True)
class Touch:
    """An effect and the tables it has; ``unclear``: there may be more than the ones named."""

    kind: Effect
    tables: tuple[TableId, ...] = ()
    unclear: bool = False


# a plain name's characters are given by the ASCII ones it lacks: the range \\u0080-\\uffff takes 60 ms to compile where case is ignored
_NAME = r"(?:`(?:[^`]|``)+`|\"(?:[^\"]|\"\")+\"|[^\x00-#%-/:-@\[-^`{-\x7f]+)"
_TABLE = rf"(?:{_NAME}\s*\.\s*)?{_NAME}"
_COMMENT = re.compile(r"/\*(?![!])(?:.|\n)*?\*/|(?:--[ \t\n]|#)[^\n]*")
_VERSIONED = re.compile(r"/\*!(?:M?\d{5,6})?((?:.|\n)*?)\*/")
_STRING = re.compile(r"'(?:[^'\\]|\\.|'')*'")

_DDL = (
    re.compile(
        rf"^CREATE\s+(?:OR\s+REPLACE\s+)?(?P<temp>TEMPORARY\s+)?TABLE\s+(?:IF\s+NOT\s+EXISTS\s+)?(?P<t>{_TABLE})", re.I
    ),
    re.compile(rf"^ALTER\s+(?:ONLINE\s+|OFFLINE\s+|IGNORE\s+)*TABLE\s+(?:IF\s+EXISTS\s+)?(?P<t>{_TABLE})", re.I),
    re.compile(
        rf"^(?:CREATE|DROP)\s+(?:OR\s+REPLACE\s+)?(?:ONLINE\s+|OFFLINE\s+|UNIQUE\s+|FULLTEXT\s+|SPATIAL\s+)*INDEX\s+.*?\bON\s+(?P<t>{_TABLE})",
        re.I | re.S,
    ),
    re.compile(rf"^TRUNCATE\s+(?:TABLE\s+)?(?P<t>{_TABLE})", re.I),
)
_DROP = re.compile(
    rf"^DROP\s+(?P<temp>TEMPORARY\s+)?TABLES?\s+(?:IF\s+EXISTS\s+)?(?P<list>{_TABLE}(?:\s*,\s*{_TABLE})*)", re.I
)
_RENAME = re.compile(r"^RENAME\s+TABLES?\s+(?:IF\s+EXISTS\s+)?(?P<list>.*)$", re.I | re.S)
_RENAME_IN_ALTER = re.compile(rf"\bRENAME\s+(?:TO\s+|AS\s+|=\s*)?(?!COLUMN\b|INDEX\b|KEY\b)(?P<t>{_TABLE})", re.I)
_DATABASE = re.compile(r"^(?:CREATE|ALTER|DROP)\s+(?:OR\s+REPLACE\s+)?(?:DATABASE|SCHEMA)\b", re.I)
_ROWS = re.compile(
    r"^(?:INSERT|REPLACE|UPDATE|DELETE|LOAD\s+DATA|LOAD\s+XML|WITH)\b", re.I
)  # with binlog_format=ROW none of these is logged as a statement
_NOTHING = re.compile(
    r"^(?:GRANT|REVOKE|SET|FLUSH|ANALYZE|OPTIMIZE|REPAIR|CHECK|INSTALL|UNINSTALL|KILL|RESET|USE|SAVEPOINT|RELEASE|START|BEGIN|COMMIT|ROLLBACK"
    r"|(?:CREATE|ALTER|DROP|RENAME)\s+(?:OR\s+REPLACE\s+)?(?:DEFINER\s*=\s*\S+\s+|SQL\s+SECURITY\s+\w+\s+|ALGORITHM\s*=\s*\w+\s+|AGGREGATE\s+)*"
    r"(?:IF\s+(?:NOT\s+)?EXISTS\s+)?"
    r"(?:USER|ROLE|VIEW|PROCEDURE|FUNCTION|TRIGGER|EVENT|SERVER|TABLESPACE|UNDO|LOGFILE|RESOURCE|SPATIAL\s+REFERENCE|INSTANCE|LIBRARY"
    r"|SEQUENCE|PACKAGE)\b)",
    re.I,
)


def plain_sql(sql: str) -> str:
    """The statement without comments; what stands in versioned comments (``/*!50…*/``) is part of it."""
    return _COMMENT.sub(" ", _VERSIONED.sub(r" \1 ", sql)).strip().rstrip(";").strip()


def look_at(sql: str, schema: str) -> list[Touch]:
    """The effects of a statement run in ``schema``. A statement that is not understood may concern any table its text names."""
    text = plain_sql(sql)
    if not text or _NOTHING.match(text):
        return [Touch(Effect.NONE)]
    if _DATABASE.match(text):
        return [Touch(Effect.DEFINITION)]
    drop = _DROP.match(text)
    if drop:
        if drop["temp"]:
            return [Touch(Effect.NONE)]
        return [Touch(Effect.DEFINITION, tuple(table_id(n, schema) for n in re.findall(_TABLE, drop["list"])))]
    rename = _RENAME.match(text)
    if rename:
        names = [n for n in re.findall(_TABLE, rename["list"]) if n.upper() not in {"TO", "WAIT", "NOWAIT"}]
        return [Touch(Effect.DEFINITION, tuple(table_id(n, schema) for n in names))]
    for pattern in _DDL:
        match = pattern.match(text)
        if match:
            if "temp" in match.groupdict() and match["temp"]:
                return [Touch(Effect.NONE)]
            tables = [table_id(match["t"], schema)]
            if text[:5].upper() == "ALTER":
                other = _RENAME_IN_ALTER.search(_STRING.sub("''", text[match.end() :]))
                if other:
                    tables.append(table_id(other["t"], schema))
            return [Touch(Effect.DEFINITION, tuple(tables))]
    if _ROWS.match(text):
        return [Touch(Effect.ROWS, named_tables(text, schema), unclear=False)]
    return [Touch(Effect.DEFINITION, named_tables(text, schema))]


def named_tables(text: str, schema: str) -> tuple[TableId, ...]:
    """Every name in a text that could be a table's, once in ``schema`` and once as it stands."""
    return tuple(dict.fromkeys(table_id(n, schema) for n in re.findall(_TABLE, _STRING.sub("''", text))))


def table_id(name: str, schema: str) -> TableId:
    """A name as written (quoted or not, with or without schema)."""
    parts = [_unquoted(p) for p in re.findall(_NAME, name)]
    return TableId(parts[0], parts[1]) if len(parts) > 1 else TableId(schema, parts[0])


def _unquoted(name: str) -> str:
    if name[:1] in {"`", '"'}:
        return name[1:-1].replace(name[0] * 2, name[0])
    return name
