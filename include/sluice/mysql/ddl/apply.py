"""CREATE TABLE and ALTER TABLE, done to definitions the way the server does them.

Source of the order in which clauses work: ``mysql_prepare_alter_table`` in MySQL's sql/sql_table.cc. Old names are
names of the table as it was; names after AFTER are those of the table as it becomes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace

from sluice.errors import DecodeError
from sluice.model.definitions import ColumnDefinition, DatabaseDefinition, TableDefinition, may_be_cut
from sluice.model.tables import TableId
from sluice.mysql.column_types import is_spatial, type_named
from sluice.mysql.ddl import ast as s
from sluice.mysql.ddl.collations import DEFAULT
from sluice.mysql.ddl.keys import check_order, in_order, kept_indexes, with_keys
from sluice.mysql.ddl.types import (
    BLOBS,
    TEXTS,
    Flavour,
    converted_text,
    of_length,
    stored_type,
    varying,
    written_length,
)

_CONVERTS_TO_CHARSET = 10_09_00
"""The version from which MariaDB takes CONVERT TO CHARACTER SET DEFAULT for the charset of the schema alone, without
its collation.
"""
_WIDE = {"ucs2", "utf16", "utf16le", "utf32"}
_NUMBER = re.compile(r"(['\"]?)([+-]?(?:\d+\.?\d*|\.\d+))([eE][+-]?\d+)?\1")


def create_table(
    statement: s.CreateTable, database: DatabaseDefinition, flavour: Flavour, *, timestamps_explicit: bool = True
) -> TableDefinition:
    """Return the definition that a CREATE TABLE makes. Raises DecodeError, UnsupportedType.

    ``timestamps_explicit``: explicit_defaults_for_timestamp.
    """
    if statement.options.versioned:
        raise DecodeError(s.VERSIONED)
    charset, collation = flavour.collations.resolve(
        statement.options.charset, statement.options.collation, (database.charset, database.collation)
    )
    columns = [_column(spec, (charset, collation), flavour, timestamps_explicit) for spec in statement.columns]
    table = TableDefinition(
        statement.table,
        tuple(columns),
        (),
        charset,
        collation,
        statement.options.engine or "",
        statement.options.comment or "",
    )
    if not timestamps_explicit:
        table = _implied_defaults(table)
    return with_keys(table, _written_keys(statement, flavour), flavour)


def _written_keys(statement: s.CreateTable, flavour: Flavour) -> list[s.IndexSpec]:
    """Return all keys in the order in which they are written, on which the names that the server makes up depend."""
    keys: list[s.IndexSpec] = []
    for item in statement.order or (*statement.columns, *statement.indexes):
        keys += [item] if isinstance(item, s.IndexSpec) else _column_keys(item, flavour)
    return keys


def like(model: TableDefinition, table: TableId, flavour: Flavour) -> TableDefinition:
    """CREATE TABLE … LIKE. Raises DecodeError."""
    definition = replace(model, table=table)
    if not any(index.kind == "hash" for index in model.indexes):
        return definition
    indexes = (replace(i, kind="index" if i.kind == "hash" else i.kind) for i in model.indexes)
    return in_order(replace(definition, indexes=tuple(indexes)), flavour)


def alter_table(
    table: TableDefinition,
    actions: Sequence[s.Action],
    database: DatabaseDefinition,
    flavour: Flavour,
    *,
    timestamps_explicit: bool = True,
) -> TableDefinition:
    """Return the definition after an ALTER TABLE (its name as it was: see RenameTo).

    Raises DecodeError, UnsupportedType.
    """
    before = table
    primary = {name.lower() for name in table.primary_key}
    primary |= {
        name.lower()
        for a in actions
        if isinstance(a, s.AddIndex) and a.index.kind == "primary"
        for name, _ in a.index.columns
    }
    there_before = {index.name.lower() for index in table.indexes}
    table = _options(table, actions, database, flavour)
    changes = {a.old.lower(): a for a in actions if isinstance(a, s.ChangeColumn)}
    column_names = {column.name.lower() for column in table.columns}
    changes = {old: change for old, change in changes.items() if old in column_names or not change.if_exists}
    for old in changes:
        if old not in column_names:
            raise DecodeError(f"table {table.table} has no column {old!r}")
    dropped = {a.name.lower() for a in actions if isinstance(a, s.DropColumn)}
    renamed = {a.old.lower(): a.new for a in actions if isinstance(a, s.RenameColumn)}
    for a in actions:
        if isinstance(a, s.DropColumn | s.RenameColumn | s.AlterColumn):
            name = a.old if isinstance(a, s.RenameColumn) else a.name
            if name.lower() not in column_names and not a.if_exists:
                raise DecodeError(f"table {table.table} has no column {name!r}")
    default = (table.charset, table.collation)
    columns: list[ColumnDefinition] = []
    moved: list[tuple[ColumnDefinition, s.Place | None]] = []
    became: dict[str, tuple[str, bool]] = {}
    for column in table.columns:
        key = column.name.lower()
        if key in dropped:
            continue
        change = changes.get(key)
        if change is not None:
            definition = _column(change.column, default, flavour, timestamps_explicit)
            became[key] = (definition.name, True)
            if change.place is None:
                columns.append(definition)
            continue
        definition = replace(column, name=renamed.get(key, column.name))
        became[key] = (definition.name, False)
        columns.append(_altered(definition, key, actions, flavour, in_key=key in primary))
    for action in actions:
        if isinstance(action, s.AddColumn):
            if action.if_not_exists and action.column.name.lower() in column_names:
                continue
            moved.append((_column(action.column, default, flavour, timestamps_explicit), action.place))
        elif isinstance(action, s.ChangeColumn) and action.place is not None and action.old.lower() in changes:
            moved.append((_column(action.column, default, flavour, timestamps_explicit), action.place))
    for column, place in moved:
        columns.insert(_where(columns, place, table.table), column)
    conversion = _convert(actions)
    if conversion is not None:
        olds = {new.lower(): (table.column(old), changed) for old, (new, changed) in became.items()}
        types = {a.column.name.lower(): a.column.type for a in actions if isinstance(a, s.AddColumn | s.ChangeColumn)}
        types = {name: type_ for name, type_ in types.items() if name not in olds or olds[name][1]}
        columns = [
            _converted(c, olds.get(c.name.lower()), types.get(c.name.lower()), conversion, database, flavour)
            for c in columns
        ]
        columns = [_still_binary(c, actions, flavour) for c in columns]
    by_name = {column.name.lower(): column for column in columns}
    remaining = {
        old: (by_name[new.lower()], changed or conversion is not None)
        for old, (new, changed) in became.items()
        if new.lower() in by_name
    }
    indexes = kept_indexes(table, remaining, actions, flavour)
    table = replace(table, columns=tuple(columns), indexes=tuple(indexes))
    if not timestamps_explicit:
        named = {a.column.name.lower() for a in actions if isinstance(a, s.AddColumn | s.ChangeColumn)}
        table = _implied_defaults(table, named, flavour)
    added = _new_keys(actions, column_names, flavour, there_before)
    table = with_keys(table, added, flavour)
    if not added:
        check_order(before, indexes, table)
    return table


def _implied_defaults(
    table: TableDefinition, named: Collection[str] | None = None, flavour: Flavour | None = None
) -> TableDefinition:
    """Add the defaults of TIMESTAMP columns that explicit_defaults_for_timestamp = off implies.

    The first TIMESTAMP follows the clock and the others begin at zero. ``named``: columns that an ALTER TABLE names, in
    lower case; None: all are new. MySQL gives an older column the clock, never zero; when MariaDB does so is not
    understood.
    """
    columns = list(table.columns)
    first = True
    for number, column in enumerate(columns):
        if column.family != "timestamp":
            continue
        new = named is None or column.name.lower() in named
        if not column.nullable and column.default is None and column.generated is None:
            if not new and flavour is not None and flavour.mariadb:
                raise DecodeError(f"what becomes of the default of {column.name} is not understood")
            now = "CURRENT_TIMESTAMP" + (f"({column.arguments[0]})" if column.arguments else "")
            if first and column.on_update is None:
                columns[number] = replace(column, default=now, on_update=now)
            elif new:
                columns[number] = replace(column, default="'0000-00-00 00:00:00'")
        first = False
    return replace(table, columns=tuple(columns))


def _convert(actions: Sequence[s.Action]) -> s.ConvertCharset | None:
    return next((a for a in actions if isinstance(a, s.ConvertCharset)), None)


def _options(
    table: TableDefinition, actions: Sequence[s.Action], database: DatabaseDefinition, flavour: Flavour
) -> TableDefinition:
    if (
        flavour.mariadb
    ):  # a default charset next to CONVERT TO is the table's wherever it stands; MySQL takes the last of the two
        actions = sorted(actions, key=lambda a: not isinstance(a, s.ConvertCharset))
    before = (table.charset, table.collation) if flavour.mariadb else None
    for action in actions:
        if isinstance(action, s.SetOptions):
            options = action.options
            if options.versioned:
                raise DecodeError(s.VERSIONED)
            charset, collation = table.charset, table.collation
            if options.charset or options.collation:
                default = (options.charset or "").lower() == DEFAULT
                otherwise = (database.charset, database.collation) if default else (charset, collation)
                if not options.charset and before is not None:  # COLLATE DEFAULT is of the charset before a CONVERT TO
                    otherwise = before if (options.collation or "").lower() == DEFAULT else otherwise
                elif options.charset:
                    before = None
                charset, collation = flavour.collations.resolve(options.charset, options.collation, otherwise)
            table = replace(
                table,
                charset=charset,
                collation=collation,
                engine=options.engine or table.engine,
                comment=table.comment if options.comment is None else options.comment,
            )
        elif isinstance(action, s.ConvertCharset):
            charset, collation = _conversion(action, database, flavour)
            table = replace(table, charset=charset, collation=collation)
    return table


def _conversion(action: s.ConvertCharset, database: DatabaseDefinition, flavour: Flavour) -> tuple[str, str]:
    otherwise = (database.charset, database.collation)
    if flavour.mariadb and flavour.version >= _CONVERTS_TO_CHARSET and action.charset is None and not action.collation:
        otherwise = (database.charset, flavour.collations.default_of.get(database.charset, database.collation))
    return flavour.collations.resolve(action.charset, action.collation, otherwise)


def _altered(
    column: ColumnDefinition, old_name: str, actions: Sequence[s.Action], flavour: Flavour, *, in_key: bool
) -> ColumnDefinition:
    for action in actions:
        if isinstance(action, s.AlterColumn) and action.name.lower() == old_name:
            if action.touches_default and column.generated is None:
                default = _kept_default(action.default, column.family, flavour)
                if (
                    in_key and not flavour.mariadb and (default or "").startswith("(")
                ):  # MySQL prints none, and says that there is one
                    raise DecodeError(f"what becomes of the default of {column.name} is not understood")
                if column.auto_increment and not (default or "").startswith("("):
                    default = None  # the servers take a literal there, and forget it
                column = replace(column, default=_marked_whole(default) if column.family == "float" else default)
            if action.invisible is not None:
                column = replace(column, invisible=action.invisible)
    return column


def _kept_default(default: str | None, family: str, flavour: Flavour) -> str | None:
    """Drop a literal default of a BLOB: where MySQL is not strict, it accepts the default and forgets it."""
    forgets = not flavour.mariadb and (family in TEXTS or family in BLOBS or family == "json" or is_spatial(family))
    return None if forgets and default is not None and not default.startswith("(") else default


def _converted(
    column: ColumnDefinition,
    old: tuple[ColumnDefinition, bool] | None,
    written: s.TypeSpec | None,
    action: s.ConvertCharset,
    database: DatabaseDefinition,
    flavour: Flavour,
) -> ColumnDefinition:
    """Return a column after CONVERT TO.

    ``old``: as it was, and whether the statement changes it by name, too; None: it is new. ``written``: the type that
    the statement names, of which the length is in characters of the new charset.
    """
    length = written_length(written, flavour) if written is not None else None
    if length is not None and column.charset is None:
        return column
    if column.charset is None and column.family in BLOBS and old is not None and old[1] and not flavour.mariadb:
        longest = column.family == BLOBS[-1]
        return column if longest else replace(column, type=BLOBS[TEXTS.index(_text_size(old[0]))])
    if column.charset is None or column.charset == "binary":
        return column
    charset, collation = _conversion(action, database, flavour)
    family = column.family
    if (
        column.labels
        and charset != column.charset
        and not (
            all(
                label.isascii() and "?" not in label and "\\" not in label for label in column.labels
            )  # ? may stand for what cannot be printed, and a backslash is not the same character everywhere
            and _WIDE.isdisjoint({charset, column.charset})
        )
    ):  # it keeps the labels' bytes, and takes them for bytes of the other charset
        raise DecodeError(f"the labels of {column.name} change when the server converts them")
    blank = type_named(family).twin
    if written is not None and length is not None:
        kind = of_length(written, length, charset, flavour)
        binary = charset == "binary"
        return replace(column, type=kind, charset=None if binary else charset, collation=None if binary else collation)
    if charset == "binary" and blank:
        return replace(column, type=column.type.replace(family, blank, 1), charset=None, collation=None)
    kind = column.type
    if family in TEXTS and old is not None:
        kind = _converted_size(column, *old, charset, flavour)
    elif family == "varchar":
        kind = varying("varchar", column.arguments[0], charset, flavour)
    return replace(column, type=kind, charset=charset, collation=collation)


def _converted_size(
    column: ColumnDefinition, old: ColumnDefinition, changed: bool, charset: str, flavour: Flavour
) -> str:
    """Return the TEXT type that CONVERT TO gives a column.

    MySQL uses the old one's size even where the statement names another (tried).
    """
    if changed and (flavour.mariadb or column.family == TEXTS[-1]):
        return column.type
    was = _text_size(old)
    if old.family not in TEXTS and old.family not in BLOBS:
        return was
    return converted_text(was, flavour.collations.max_bytes(old.charset), flavour.collations.max_bytes(charset))


def _still_binary(column: ColumnDefinition, actions: Sequence[s.Action], flavour: Flavour) -> ColumnDefinition:
    """Give BINARY of a column that is added next to CONVERT TO the new charset, as MySQL does."""
    added = any(
        isinstance(a, s.AddColumn) and a.column.type.binary and a.column.name.lower() == column.name.lower()
        for a in actions
    )
    if not added or flavour.mariadb or not column.charset or column.charset == "binary":
        return column
    return replace(column, collation=flavour.collations.binary_of(column.charset))


def _text_size(old: ColumnDefinition) -> str:
    """Return the TEXT type in which MySQL counts an old column's size."""
    if old.family in BLOBS:
        return TEXTS[BLOBS.index(old.family)]
    if old.family in TEXTS:
        return old.family
    return TEXTS[-1] if old.family == "json" or is_spatial(old.family) else TEXTS[0]


def _where(columns: Sequence[ColumnDefinition], place: s.Place | None, table: TableId) -> int:
    if place is None:
        return len(columns)
    if place.after is None:
        return 0
    for number, column in enumerate(columns):
        if column.name.lower() == place.after.lower():
            return number + 1
    raise DecodeError(f"table {table} has no column {place.after!r}")


def _new_keys(actions: Sequence[s.Action], columns: set[str], flavour: Flavour, indexes: set[str]) -> list[s.IndexSpec]:
    """Return the keys that the clauses add.

    ``columns``, ``indexes``: columns and keys before the statement, in lower case.
    """
    keys: list[s.IndexSpec] = []
    for action in actions:
        if isinstance(action, s.AddIndex):
            keys.append(action.index)
        elif isinstance(action, s.ChangeColumn) and action.old.lower() in columns:
            keys += _conditional(_column_keys(action.column, flavour), action.if_exists)
        elif isinstance(action, s.AddColumn) and not (action.if_not_exists and action.column.name.lower() in columns):
            keys += _conditional(_column_keys(action.column, flavour), action.if_not_exists)
    return [key for key in keys if not (key.if_not_exists and _name_of(key) in indexes)]


def _conditional(keys: Sequence[s.IndexSpec], condition: bool) -> list[s.IndexSpec]:
    """Mark keys IF NOT EXISTS if they are written with a column IF (NOT) EXISTS, as MariaDB understands that."""
    return [replace(key, if_not_exists=key.if_not_exists or condition) for key in keys]


def _name_of(key: s.IndexSpec) -> str:
    """Return what MariaDB looks for, in lower case: keys before the statement, also if it drops them.

    ``""`` for no key.
    """
    if key.kind in {"foreign", "check"}:
        return ""
    return (key.name or (key.columns[0][0] if key.columns else "")).lower()


def _column_keys(column: s.ColumnSpec, flavour: Flavour) -> list[s.IndexSpec]:
    kinds = list(dict.fromkeys(column.keys))
    if flavour.mariadb and {"primary", "unique"} <= set(kinds):
        kinds.remove("unique")  # MySQL makes both
    if "foreign" in kinds and flavour.version and flavour.version < (100500 if flavour.mariadb else 90000):
        kinds.remove("foreign")  # read and forgotten by older ones
    return [s.IndexSpec(kind, "PRIMARY" if kind == "primary" else "", ((column.name, 0),)) for kind in kinds]


def _marked_whole(default: str | None) -> str | None:
    """Mark a statement's own number as complete, though a server might print as many digits (:func:`may_be_cut`)."""
    match = _NUMBER.fullmatch(default or "")
    if match is None or not may_be_cut(match[2]):
        return default
    return match[1] + match[2] + ("0" if "." in match[2] else ".0") + (match[3] or "") + match[1]


def _column(
    spec: s.ColumnSpec, default: tuple[str, str], flavour: Flavour, timestamps_explicit: bool
) -> ColumnDefinition:
    stored = stored_type(spec.type, default, flavour)
    nullable = spec.nullable
    family = stored.type.partition("(")[0]
    default_text, on_update = _kept_default(spec.default, family, flavour), spec.on_update
    if nullable is None:
        implied = stored.type.startswith("timestamp") and not timestamps_explicit and spec.generated is None
        nullable = not (implied or spec.auto_increment or "primary" in spec.keys)
    if flavour.mariadb and "primary" in spec.keys:  # even if NULL is written, and if the key is not made
        nullable = False
    if family == "float":
        default_text = _marked_whole(default_text)
    if flavour.mariadb and on_update and not nullable and not spec.has_default:
        default_text = "'0000-00-00 00:00:00'"
    return ColumnDefinition(
        name=spec.name,
        type=stored.type,
        nullable=nullable,
        charset=stored.charset,
        collation=stored.collation,
        labels=stored.labels,
        default=default_text,
        generated=spec.generated,
        stored=spec.stored,
        invisible=spec.invisible,
        auto_increment=spec.auto_increment,
        on_update=on_update,
        comment=spec.comment,
        compressed=spec.type.compressed,
    )
