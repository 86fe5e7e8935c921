"""Columns and keys as a statement writes them."""

from __future__ import annotations

from sluice.mysql.charsets import decoded
from sluice.mysql.column_types import SYNONYMS
from sluice.mysql.ddl.ast import VERSIONED, ColumnSpec, IndexSpec, Place, TableOptions, TypeSpec
from sluice.mysql.ddl.lexer import ORACLE, Kind
from sluice.mysql.ddl.token_cursor import Reader

_LABELLED = {"enum", "set"}
_LITERAL_WORDS = {"DATE", "TIME", "TIMESTAMP", "N"}
_KEY_WORDS = {"CONSTRAINT", "PRIMARY", "KEY", "INDEX", "UNIQUE", "FULLTEXT", "SPATIAL", "FOREIGN", "CHECK"}


def read_type(r: Reader) -> TypeSpec:
    """Read a type with its own attributes. Raises DecodeError."""
    if r.peek().kind not in {Kind.WORD, Kind.NAME}:
        raise r.stuck("expected a type")
    name, charset = _type_name(r)
    labels: tuple[str | bytes, ...] = ()
    arguments: tuple[int, ...] = ()
    if name in {"bool", "boolean"}:
        name, arguments = "tinyint", (1,)
    elif name in _LABELLED:
        labels = _labels(r)
    elif r.accept("("):
        numbers = [r.length()]
        while r.accept(","):
            numbers.append(r.number())
        if r.accept_any("BYTE", "CHAR") == "" and r.peek().upper not in {")"}:
            raise r.stuck("expected )")
        r.expect(")")
        arguments = tuple(numbers)
    unsigned = zerofill = binary = compressed = False
    collation: str | None = None
    while True:
        word = r.peek().upper
        if word in {"UNSIGNED", "SIGNED", "ZEROFILL"}:
            r.next()
            unsigned |= word != "SIGNED"
            zerofill |= word == "ZEROFILL"
        elif word == "BINARY":
            r.next()
            binary = True
        elif word in {"ASCII", "UNICODE", "BYTE"}:
            r.next()
            charset = {"ASCII": "latin1", "UNICODE": "ucs2", "BYTE": "binary"}[word]
        elif word == "COMPRESSED" and r.dialect.mariadb:
            r.next()
            compressed = True
            if r.accept("="):
                r.next()
        elif (named := read_charset(r)) is not None:
            charset = named
        elif word == "COLLATE":
            r.next()
            collation = r.word_or_string()
        else:
            break
    return TypeSpec(
        name=name,
        arguments=arguments,
        labels=labels,
        labels_charset=r.dialect.charset,
        unsigned=unsigned,
        zerofill=zerofill,
        charset=charset,
        collation=collation,
        binary=binary,
        compressed=compressed,
    )


_ORACLE = {"date": "datetime", "varchar2": "varchar", "clob": "longtext", "raw": "varbinary"}
"""The types of MariaDB in ``sql_mode=ORACLE``."""


def _type_name(r: Reader) -> tuple[str, str | None]:
    word = r.next().text.lower()
    charset = None
    oracle = r.dialect.mariadb and bool(r.dialect.sql_mode & ORACLE)
    if word in {"mariadb_schema", "oracle_schema"} and r.accept("."):
        oracle, word = word == "oracle_schema", r.next().text.lower()
    if oracle and word in {"number", "blob"}:
        sized = r.peek().upper == "("
        return {"number": "decimal" if sized else "double", "blob": "blob" if sized else "longblob"}[word], None
    if oracle:
        word = _ORACLE.get(word, word)
    if word == "national":
        word, charset = r.next().text.lower(), "utf8mb3"
    elif word == "nchar":
        word, charset = "char", "utf8mb3"
        if r.accept_any("VARCHAR", "VARCHARACTER"):
            word = "varchar"
    elif word in {"nvarchar", "nvarchar2"}:
        word, charset = "varchar", "utf8mb3"
    elif word == "long":
        if r.accept_any("VARBINARY"):
            return "mediumblob", None
        if r.accept_any("CHAR", "CHARACTER"):
            r.accept("VARYING")
        else:
            r.accept_any("VARCHAR", "VARCHARACTER")
        return "mediumtext", None
    elif word == "double":
        r.accept("PRECISION")
    elif word == "real":
        return ("float" if r.dialect.sql_mode & 1 else "double"), None
    word = SYNONYMS.get(word, word)
    if word == "char" and r.accept("VARYING"):
        word = "varchar"
    return word, charset


def _labels(r: Reader) -> tuple[str | bytes, ...]:
    r.expect("(")
    labels: list[str | bytes] = []
    while True:
        labels.append(_label(r))
        if not r.accept(","):
            r.expect(")")
            return tuple(labels)


def _label(r: Reader) -> str | bytes:
    """Read a label: text, or the bytes it has in the column's charset."""
    token = r.next()
    introducer = ""
    if token.kind is Kind.WORD and r.peek().kind in {Kind.STRING, Kind.HEX, Kind.BITS}:
        if token.text.startswith("_"):
            introducer = token.text[1:].lower()
        elif token.upper != "N":
            raise r.stuck("expected a label")
        token = r.next()
    if token.kind is Kind.HEX:
        data = bytes.fromhex(token.text if len(token.text) % 2 == 0 else "0" + token.text)
    elif token.kind is Kind.BITS:
        data = int(token.text or "0", 2).to_bytes((len(token.text) + 7) // 8, "big")
    elif token.kind is Kind.STRING and introducer:
        data = r.literal_bytes(token)
    elif token.kind is Kind.STRING:
        return token.text
    else:
        raise r.stuck("expected a label")
    return data if introducer in {"", "binary"} else decoded(data, introducer)


def read_charset(r: Reader) -> str | None:
    """Read ``CHARACTER SET x`` or ``CHARSET x``; None if it does not come next."""
    if r.accept("CHARACTER", "SET") or r.accept("CHARSET") or r.accept("CHAR", "SET"):
        r.accept("=")
        return r.word_or_string()
    return None


def read_column(r: Reader) -> ColumnSpec:
    """Name, type and attributes. Raises DecodeError."""
    name = r.column_name()
    if r.peek().upper == "SERIAL":
        r.next()
        column = ColumnSpec(
            name, TypeSpec(name="bigint", unsigned=True), nullable=False, auto_increment=True, keys=["unique"]
        )
    else:
        column = ColumnSpec(name, read_type(r))
        r.note_type(r.peek(-1).end, column)
    while _attribute(r, column):
        pass
    return column


def _attribute(r: Reader, column: ColumnSpec) -> bool:
    """Read one attribute of a column. Return False if none comes next."""
    if r.accept("NOT", "NULL"):
        column.nullable = False
    elif r.accept("NULL"):
        column.nullable = True
    elif r.accept("SERIAL", "DEFAULT", "VALUE"):
        column.nullable, column.auto_increment = False, True
        column.keys.append("unique")
    elif r.accept("DEFAULT"):
        column.default, column.has_default = read_default(r), True
    elif r.accept("ON", "UPDATE"):
        column.on_update = read_default(r)
    elif r.accept("AUTO_INCREMENT"):
        column.auto_increment, column.nullable = True, False  # unless NULL comes after it
    elif r.accept("PRIMARY", "KEY") or r.accept("PRIMARY") or r.accept("KEY"):
        column.keys.append("primary")
    elif r.accept("UNIQUE"):
        r.accept("KEY")
        column.keys.append("unique")
    elif r.accept("COMMENT"):
        r.accept("=")
        column.comment = r.word_or_string()
    elif r.accept("COLLATE"):
        column.type = _with(column.type, collation=r.word_or_string())
    elif r.accept("GENERATED", "ALWAYS", "AS", "ROW"):
        raise r.stuck(VERSIONED)
    elif r.accept("GENERATED", "ALWAYS", "AS") or r.accept("AS"):
        column.generated = r.in_brackets()
    elif word := r.accept_any("VIRTUAL", "STORED", "PERSISTENT"):
        column.stored = word != "VIRTUAL"
    elif word := r.accept_any("VISIBLE", "INVISIBLE"):
        column.invisible = word == "INVISIBLE"
    elif r.accept_any("COLUMN_FORMAT", "STORAGE"):
        r.next()
    elif r.accept_any("ENGINE_ATTRIBUTE", "SECONDARY_ENGINE_ATTRIBUTE", "SRID", "REF_SYSTEM_ID"):
        r.accept("=")
        r.next()
    elif r.accept("WITH", "SYSTEM", "VERSIONING"):
        raise r.stuck(VERSIONED)
    elif r.accept("NOT", "SECONDARY") or r.accept("WITHOUT", "SYSTEM", "VERSIONING"):
        pass
    elif r.accept("COMPRESSED"):
        column.type = _with(column.type, compressed=True)
        if r.accept("="):
            r.next()
    elif r.sees("REFERENCES"):
        _skip_references(r)
        column.keys.append("foreign")
    elif r.sees("CONSTRAINT") or r.sees("CHECK"):
        if r.accept("CONSTRAINT") and not r.sees("CHECK"):
            r.identifier()
        r.expect("CHECK")
        r.skip_brackets()
        if not r.accept("NOT", "ENFORCED"):
            r.accept("ENFORCED")
    elif r.peek().kind is Kind.WORD and "=" in r.peek(1).text and r.dialect.mariadb:  # an option of a storage engine
        r.next()
        r.next()
        r.next()
    else:
        return False
    return True


def _with(spec: TypeSpec, **changes: object) -> TypeSpec:
    from dataclasses import replace

    return replace(spec, **changes)  # type: ignore[arg-type]


def _skip_references(r: Reader) -> None:
    r.expect("REFERENCES")
    r.parent_table()
    if r.sees("("):
        r.skip_brackets()
    while True:
        if r.accept("MATCH"):
            r.next()
        elif r.sees("ON", "DELETE") or r.sees("ON", "UPDATE"):
            r.next()
            r.next()
            if not (r.accept("SET", "NULL") or r.accept("SET", "DEFAULT") or r.accept("NO", "ACTION")):
                r.next()
        else:
            return


def read_default(r: Reader) -> str | None:
    """Read a default as SQL text; None for NULL. Raises DecodeError."""
    start = r.peek().start
    if r.accept("NULL"):
        return None
    if r.sees("("):
        return r.in_brackets()
    while r.accept_any("+", "-"):
        pass
    token = r.next()
    if token.kind is Kind.END:
        raise r.stuck("expected a default")
    end = token.end
    introducer = token.text.startswith("_") and r.peek().kind in {Kind.STRING, Kind.HEX, Kind.BITS}
    if token.kind is Kind.WORD and (introducer or (token.upper in _LITERAL_WORDS and r.peek().kind is Kind.STRING)):
        end = r.next().end
    elif token.upper == "NEXT" and r.accept("VALUE", "FOR"):
        r.table()
        end = r.peek().start
    while r.peek().kind is Kind.STRING and token.kind is Kind.STRING:
        end = r.next().end
    while r.sees(".") and token.kind in {Kind.WORD, Kind.NAME}:
        r.next()
        end = r.next().end
    if token.kind in {Kind.WORD, Kind.NAME} and r.sees("("):
        r.skip_brackets()
        end = r.read_to
    return r.source(start, end)


def read_place(r: Reader) -> Place | None:
    """Read FIRST or AFTER c."""
    if r.accept("FIRST"):
        return Place(None)
    if r.accept("AFTER"):
        return Place(r.column_name())
    return None


def at_key(r: Reader) -> bool:
    """Return True if a key or a constraint comes next, not a column."""
    token = r.peek()
    if token.upper in _KEY_WORDS:
        return True
    return token.upper == "VECTOR" and r.peek(1).upper in {"INDEX", "KEY"}


def read_key(r: Reader) -> IndexSpec:
    """Read a key or a constraint. Raises DecodeError."""
    name = ""
    if r.accept("CONSTRAINT") and r.peek().upper not in {"PRIMARY", "UNIQUE", "FOREIGN", "CHECK"}:
        r.accept("IF", "NOT", "EXISTS")
        name = r.identifier()
    if r.accept("CHECK"):
        r.skip_brackets()
        r.skip_clause()
        return IndexSpec("check", name)
    if r.accept("FOREIGN", "KEY"):
        if_not_exists = r.accept("IF", "NOT", "EXISTS")
        if not r.sees("("):
            index_name = r.identifier()
            name = name or index_name
        columns = _key_columns(r)
        r.expect("REFERENCES")
        table = r.parent_table()
        r.skip_clause()
        return IndexSpec("foreign", name, columns, if_not_exists, table)
    if r.accept("PRIMARY", "KEY"):
        kind = "primary"
    elif word := r.accept_any("UNIQUE", "FULLTEXT", "SPATIAL", "VECTOR"):
        kind = word.lower()
        r.accept_any("INDEX", "KEY")
    elif r.accept_any("INDEX", "KEY"):
        kind = "index"
    else:
        raise r.stuck("expected a key")
    return read_key_tail(r, kind, name)


def read_key_tail(r: Reader, kind: str, name: str = "") -> IndexSpec:
    """Read what follows UNIQUE KEY and its like: a name, columns, options. Raises DecodeError."""
    if_not_exists = r.accept("IF", "NOT", "EXISTS")
    if not r.sees("(") and not r.sees("USING"):
        name = r.identifier()
    hashed = False
    if r.accept_any("USING", "TYPE"):
        hashed = r.next().upper == "HASH"
    columns = _key_columns(r)
    while not r.ended and not r.sees(",") and not r.sees(")"):  # the last one counts
        if r.accept_any("USING", "TYPE"):
            hashed = r.next().upper == "HASH"
        elif r.sees("("):
            r.skip_brackets()
        else:
            r.next()
    return IndexSpec(kind, "PRIMARY" if kind == "primary" else name, columns, if_not_exists, hashed=hashed)


def _key_columns(r: Reader) -> tuple[tuple[str, int], ...]:
    r.expect("(")
    columns = []
    while True:
        if r.sees("("):
            r.skip_brackets()
            columns.append(("", 0))
        else:
            name, prefix = r.column_name(), 0
            if r.accept("("):
                prefix = r.number()
                r.expect(")")
            columns.append((name, prefix))
        r.accept_any("ASC", "DESC")
        r.accept("WITHOUT", "OVERLAPS")
        if not r.accept(","):
            r.expect(")")
            return tuple(columns)


def read_option(r: Reader, options: TableOptions) -> bool:
    """Read one option of a table or database. Return False if none of interest comes next."""
    at_default = r.sees("DEFAULT") and r.peek(1).upper in {"CHARACTER", "CHARSET", "COLLATE"}
    if at_default:
        r.next()
    charset = read_charset(r)
    if charset is not None:
        r.note_charset(r.peek(-1).start, r.peek(-1).end, charset)
        options.charset = charset
    elif r.accept("COLLATE"):
        r.accept("=")
        options.collation = r.word_or_string()
    elif r.peek().upper in {"ENGINE", "TYPE"} and (
        r.peek(1).upper == "=" or r.peek(1).kind in {Kind.WORD, Kind.STRING, Kind.NAME}
    ):
        r.next()
        r.accept("=")
        options.engine = r.word_or_string()
    elif r.peek().upper == "COMMENT" and (r.peek(1).upper == "=" or r.peek(1).kind is Kind.STRING):
        r.next()
        r.accept("=")
        options.comment = r.word_or_string()
    elif r.accept("WITH", "SYSTEM", "VERSIONING"):
        options.versioned = True
    elif r.sees("UNION", "(") or r.sees("UNION", "=", "("):  # the tables of a MERGE table
        r.next()
        r.accept("=")
        r.expect("(")
        while not r.accept(")"):
            r.table()
            r.accept(",")
    else:
        return False
    return True
