"""CREATE TABLE and ALTER TABLE, done to definitions the way the server does them.

Source of the order in which clauses work: ``mysql_prepare_alter_table`` in MySQL's sql/sql_table.cc. Old names are names of the table as it
was; names behind AFTER are those of the table as it becomes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from sluice.errors import DecodeError
from sluice.model.tables import TableId
from sluice.schema import statements as s
from sluice.schema.definitions import ColumnDefinition, DatabaseDefinition, IndexDefinition, TableDefinition
from sluice.schema.types import CHARACTER, TEXTS, Flavour, converted_text, stored_type

_UNNAMED_EXPRESSION = "functional_index"
_NO_LIST = {"foreign", "check"}
_WIDE = {"ucs2", "utf16", "utf16le", "utf32"}


def create_table(
    statement: s.CreateTable, database: DatabaseDefinition, flavour: Flavour, *, timestamps_explicit: bool = True
) -> TableDefinition:
    """The definition a CREATE TABLE makes. ``timestamps_explicit``: explicit_defaults_for_timestamp. Raises DecodeError, UnsupportedType."""
    if statement.options.versioned:
        raise DecodeError("system-versioned tables have columns that no statement names")
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
    specs = [key for column in statement.columns for key in _column_keys(column)]
    return _with_keys(table, [*specs, *statement.indexes])


def like(model: TableDefinition, table: TableId) -> TableDefinition:
    """CREATE TABLE … LIKE."""
    return replace(model, table=table)


def alter_table(
    table: TableDefinition,
    actions: Sequence[s.Action],
    database: DatabaseDefinition,
    flavour: Flavour,
    *,
    timestamps_explicit: bool = True,
) -> TableDefinition:
    """The definition after an ALTER TABLE (its name as it was: see RenameTo). Raises DecodeError, UnsupportedType."""
    table = _options(table, actions, database, flavour)
    changes = {a.old.lower(): a for a in actions if isinstance(a, s.ChangeColumn)}
    known = {column.name.lower() for column in table.columns}
    changes = {old: change for old, change in changes.items() if old in known or not change.if_exists}
    for old in changes:
        if old not in known:
            raise DecodeError(f"table {table.table} has no column {old!r}")
    dropped = {a.name.lower() for a in actions if isinstance(a, s.DropColumn)}
    renamed = {a.old.lower(): a.new for a in actions if isinstance(a, s.RenameColumn)}
    for a in actions:
        if isinstance(a, s.DropColumn | s.RenameColumn | s.AlterColumn):
            name = a.old if isinstance(a, s.RenameColumn) else a.name
            if name.lower() not in known and not a.if_exists:
                raise DecodeError(f"table {table.table} has no column {name!r}")
    default = (table.charset, table.collation)
    columns: list[ColumnDefinition] = []
    moved: list[tuple[ColumnDefinition, s.Place | None]] = []
    new_names: dict[str, str] = {}
    for column in table.columns:
        key = column.name.lower()
        if key in dropped:
            continue
        change = changes.get(key)
        if change is not None:
            made = _column(change.column, default, flavour, timestamps_explicit)
            new_names[key] = made.name
            if change.place is None:
                columns.append(made)
            continue
        made = replace(column, name=renamed.get(key, column.name))
        new_names[key] = made.name
        columns.append(_altered(made, key, actions))
    for action in actions:
        if isinstance(action, s.AddColumn):
            if action.if_not_exists and action.column.name.lower() in known:
                continue
            moved.append((_column(action.column, default, flavour, timestamps_explicit), action.place))
        elif isinstance(action, s.ChangeColumn) and action.place is not None and action.old.lower() in changes:
            moved.append((_column(action.column, default, flavour, timestamps_explicit), action.place))
    for column, place in moved:
        columns.insert(_where(columns, place, table.table), column)
    columns = [
        _converted(c, a, database, flavour) if isinstance(a, s.ConvertCharset) else c
        for c in columns
        for a in [_convert(actions)]
    ]
    indexes = _kept_indexes(table.indexes, new_names, dropped, actions)
    table = replace(table, columns=tuple(columns), indexes=tuple(indexes))
    if not timestamps_explicit:
        table = _implied_defaults(table)
    return _with_keys(table, _new_keys(actions, known))


def _implied_defaults(table: TableDefinition) -> TableDefinition:
    """With explicit_defaults_for_timestamp off, the first TIMESTAMP follows the clock and the others begin at zero."""
    columns = list(table.columns)
    first = True
    for number, column in enumerate(columns):
        if column.family != "timestamp":
            continue
        if not column.nullable and column.default is None and column.on_update is None and column.generated is None:
            now = "CURRENT_TIMESTAMP" + (f"({column.arguments[0]})" if column.arguments else "")
            columns[number] = (
                replace(column, default=now, on_update=now)
                if first
                else replace(column, default="'0000-00-00 00:00:00'")
            )
        first = False
    return replace(table, columns=tuple(columns))


def _convert(actions: Sequence[s.Action]) -> s.ConvertCharset | None:
    return next((a for a in actions if isinstance(a, s.ConvertCharset)), None)


def _options(
    table: TableDefinition, actions: Sequence[s.Action], database: DatabaseDefinition, flavour: Flavour
) -> TableDefinition:
    if (
        flavour.mariadb
    ):  # a default charset beside CONVERT TO is the table's wherever it stands; MySQL takes the last of the two
        actions = sorted(actions, key=lambda a: not isinstance(a, s.ConvertCharset))
    for action in actions:
        if isinstance(action, s.SetOptions):
            options = action.options
            if options.versioned:
                raise DecodeError("system-versioned tables have columns that no statement names")
            charset, collation = table.charset, table.collation
            if options.charset or options.collation:
                charset, collation = flavour.collations.resolve(
                    options.charset, options.collation, (charset, collation)
                )
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
    return flavour.collations.resolve(action.charset, action.collation, otherwise)


def _altered(column: ColumnDefinition, old_name: str, actions: Sequence[s.Action]) -> ColumnDefinition:
    for action in actions:
        if isinstance(action, s.AlterColumn) and action.name.lower() == old_name:
            if action.touches_default:
                column = replace(column, default=action.default)
            if action.invisible is not None:
                column = replace(column, invisible=action.invisible)
    return column


def _converted(
    column: ColumnDefinition, action: s.ConvertCharset, database: DatabaseDefinition, flavour: Flavour
) -> ColumnDefinition:
    if column.charset is None:
        return column
    charset, collation = _conversion(action, database, flavour)
    family = column.family
    if (
        column.labels
        and charset != column.charset
        and not (all(label.isascii() for label in column.labels) and _WIDE.isdisjoint({charset, column.charset}))
    ):  # it keeps the labels' bytes, and takes them for bytes of the other charset
        raise DecodeError(f"the labels of {column.name} become others when the server converts them")
    if charset == "binary" and family in CHARACTER:
        blank = {"char": "binary", "varchar": "varbinary"}.get(family, family.replace("text", "blob"))
        return replace(column, type=column.type.replace(family, blank, 1), charset=None, collation=None)
    kind = column.type
    if family in TEXTS:
        sizes = flavour.collations
        kind = converted_text(family, sizes.max_bytes(column.charset), sizes.max_bytes(charset))
    return replace(column, type=kind, charset=charset, collation=collation)


def _where(columns: Sequence[ColumnDefinition], place: s.Place | None, table: TableId) -> int:
    if place is None:
        return len(columns)
    if place.after is None:
        return 0
    for number, column in enumerate(columns):
        if column.name.lower() == place.after.lower():
            return number + 1
    raise DecodeError(f"table {table} has no column {place.after!r}")


def _kept_indexes(
    indexes: Iterable[IndexDefinition], new_names: dict[str, str], dropped: set[str], actions: Sequence[s.Action]
) -> list[IndexDefinition]:
    gone = {a.name.lower() for a in actions if isinstance(a, s.DropIndex | s.DropConstraint)}
    renamed = {a.old.lower(): a.new for a in actions if isinstance(a, s.RenameIndex)}
    kept = []
    for index in indexes:
        if index.name.lower() in gone:
            continue
        parts = tuple(
            (new_names.get(name.lower(), name), prefix) for name, prefix in index.columns if name.lower() not in dropped
        )
        if parts:
            kept.append(replace(index, name=renamed.get(index.name.lower(), index.name), columns=parts))
    return kept


def _new_keys(actions: Sequence[s.Action], known: set[str]) -> list[s.IndexSpec]:
    keys = []
    for action in actions:
        if isinstance(action, s.AddIndex):
            keys.append(action.index)
        elif isinstance(action, s.ChangeColumn) or (
            isinstance(action, s.AddColumn) and not (action.if_not_exists and action.column.name.lower() in known)
        ):
            keys += _column_keys(action.column)
    return keys


def _column_keys(column: s.ColumnSpec) -> list[s.IndexSpec]:
    return [
        s.IndexSpec(kind, "PRIMARY" if kind == "primary" else "", ((column.name, 0),))
        for kind in dict.fromkeys(column.keys)
    ]


def _with_keys(table: TableDefinition, specs: Sequence[s.IndexSpec]) -> TableDefinition:
    """Adds keys: names made up where none is given, the primary key first, its columns not null."""
    indexes = list(table.indexes)
    for spec in specs:
        if spec.kind in _NO_LIST:
            continue
        taken = {index.name.lower() for index in indexes}
        if spec.kind == "primary" and "primary" in taken:
            if spec.if_not_exists:
                continue
            raise DecodeError(f"table {table.table} has a primary key already")
        if spec.name and spec.name.lower() in taken and spec.if_not_exists:
            continue
        parts = []
        for name, prefix in spec.columns:
            if name:
                try:
                    name = table.column(name).name
                except KeyError:
                    raise DecodeError(f"table {table.table} has no column {name!r}") from None
            parts.append((name, prefix))
        name = spec.name or _made_up(parts[0][0] or _UNNAMED_EXPRESSION, taken)
        unique = spec.kind in {"primary", "unique"}
        index = IndexDefinition(name, tuple(parts), unique, "index" if unique else spec.kind)
        indexes.insert(0 if spec.kind == "primary" else len(indexes), index)
    key = {name.lower() for index in indexes if index.primary for name, _ in index.columns}
    columns = tuple(
        replace(column, nullable=False) if column.name.lower() in key and column.nullable else column
        for column in table.columns
    )
    table = replace(table, columns=columns)
    return replace(table, indexes=tuple(sorted(indexes, key=lambda index: _rank(index, table))))


def _rank(index: IndexDefinition, table: TableDefinition) -> tuple[bool, ...]:
    """The order in which the server keeps keys, and so the unique key that it picks where there is no primary one (``sort_keys``)."""
    nullable = any(not name or table.column(name).nullable for name, _ in index.columns)
    partial = any(prefix for _, prefix in index.columns)
    return (
        not index.primary,
        not index.unique,
        index.unique and nullable,
        index.unique and partial,
        index.kind == "fulltext",
    )


def _made_up(base: str, taken: set[str]) -> str:
    if base.lower() not in taken and base.lower() != "primary":
        return base
    return next(name for number in range(2, 1000) if (name := f"{base}_{number}").lower() not in taken)


def _column(
    spec: s.ColumnSpec, default: tuple[str, str], flavour: Flavour, timestamps_explicit: bool
) -> ColumnDefinition:
    stored = stored_type(spec.type, default, flavour)
    nullable = spec.nullable
    default_text, on_update = spec.default, spec.on_update
    if nullable is None:
        implied = stored.type.startswith("timestamp") and not timestamps_explicit and spec.generated is None
        nullable = not (implied or spec.auto_increment or "primary" in spec.keys)
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
