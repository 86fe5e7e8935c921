"""The keys of a table: what becomes of them when columns change, which the server makes by itself, and how it names
them.

Sources: ``mysql_prepare_alter_table`` (keys that are kept) and ``mysql_prepare_create_table`` in MySQL's and MariaDB's
sql/sql_table.cc.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from sluice.errors import DecodeError
from sluice.model.definitions import ColumnDefinition, IndexDefinition, TableDefinition
from sluice.mysql.column_types import TYPES, Brackets, is_spatial, label_bytes
from sluice.mysql.ddl import ast as s
from sluice.mysql.ddl.types import Flavour, bytes_at_most

_UNNAMED_EXPRESSION = "functional_index"
_STRINGS = {row.word for row in TYPES if row.brackets in {Brackets.CHARACTERS, Brackets.BYTES}}
_LONG = {row.word for row in TYPES if row.brackets is Brackets.SIZE}
_WHOLE = {"fulltext", "spatial", "vector"}
_PART_BYTES = {"myisam": 1000}
_INNODB_PART_BYTES = 3072
"""What a key may have of a column, and MariaDB's unique one of all.

A longer one that is not unique is cut. Source: max_key_part_length() of the engines."""
_OTHER_BYTES = 32
"""A part of a key that is no string has between one byte and this number."""
_UNLIMITED = 1 << 40
_POINT_BYTES = 25
"""What MariaDB prints for keys over points."""
_HASHED_SHAPE_BYTES = 8
"""What it prints for a unique key over the hash of another shape."""


def kept_indexes(
    table: TableDefinition,
    columns: Mapping[str, tuple[ColumnDefinition, bool]],
    actions: Sequence[s.Action],
    flavour: Flavour,
) -> list[IndexDefinition]:
    """Return the keys that an ALTER TABLE leaves.

    ``columns``: old name in lower case -> (the column as it becomes, whether it was changed); a dropped one is missing.
    """
    dropped_names = {a.name.lower() for a in actions if isinstance(a, s.DropIndex)}
    constraints = {a.name.lower() for a in actions if isinstance(a, s.DropConstraint)}
    renamed = {a.old.lower(): a.new for a in actions if isinstance(a, s.RenameIndex)}
    kept_indexes = []
    for index in table.indexes:
        name = index.name.lower()
        if name in dropped_names or (name in constraints and index.unique):
            continue
        parts: list[tuple[str, int]] = []
        for column, prefix in index.columns:
            if not column:
                parts.append((column, prefix))
            elif column.lower() in columns:
                new, changed = columns[column.lower()]
                parts.append((
                    new.name,
                    _kept_prefix(prefix, table.column(column), new, flavour) if changed else prefix,
                ))
        if parts:
            kind = "index" if index.kind == "hash" else index.kind  # an ALTER TABLE forgets that USING HASH was written
            kept_indexes.append(replace(index, name=renamed.get(name, index.name), columns=tuple(parts), kind=kind))
    return kept_indexes


def _kept_prefix(prefix: int, old: ColumnDefinition, new: ColumnDefinition, flavour: Flavour) -> int:
    """Return the prefix after a column was changed; 0 (all of it) where it has no meaning any more."""
    if (
        old.labels and not flavour.mariadb
    ):  # to MySQL such a column is a string, and the bytes of its number are a prefix (tried)
        prefix = _label_bytes(old) // flavour.collations.max_bytes(old.charset)
    elif not _may_have_prefix(old):
        return 0
    if not prefix or not _may_have_prefix(new):
        return 0
    length = bytes_at_most(new.type) if new.family in _LONG else new.arguments[0] if new.arguments else 0
    return 0 if length and length < prefix else prefix


def _label_bytes(column: ColumnDefinition) -> int:
    return label_bytes(len(column.labels), several=column.family == "set")


def _may_have_prefix(column: ColumnDefinition) -> bool:
    return column.family in _STRINGS or column.family in _LONG or is_spatial(column.family)


def with_keys(table: TableDefinition, specs: Sequence[s.IndexSpec], flavour: Flavour) -> TableDefinition:
    """Add keys: names made up where none is given, the primary key first, its columns not null. Raises DecodeError."""
    indexes = list(table.indexes)
    explicit = {index.name.lower() for index in indexes} | {spec.name.lower() for spec in specs if spec.name}
    for spec in specs:
        if spec.kind == "check":
            continue
        used_names = {index.name.lower() for index in indexes}
        if spec.kind == "primary" and "primary" in used_names:
            if spec.if_not_exists:
                continue
            raise DecodeError(f"table {table.table} has a primary key already")
        if spec.name and spec.name.lower() in used_names and spec.if_not_exists:
            continue
        parts = tuple(_known(table, name, prefix) for name, prefix in spec.columns)
        name = spec.name
        if not name and any(not column for column, _ in parts):
            name = _made_up(_UNNAMED_EXPRESSION, explicit)
            explicit.add(name.lower())
        unique, generated = spec.kind in {"primary", "unique"}, spec.kind == "foreign"
        kind = "index" if unique or generated else spec.kind
        if spec.hashed and spec.kind == "unique" and flavour.mariadb and table.engine.lower() != "memory":
            kind = "hash"
        indexes.append(IndexDefinition(name, parts, unique, kind, generated))
    indexes = _named(_needed(indexes))
    key = {name.lower() for index in indexes if index.primary for name, _ in index.columns}
    for column in table.columns:
        implied = column.name.lower() in key and column.nullable and column.family == "timestamp"
        if implied and flavour.mariadb and column.default is None:  # it may get a default then
            raise DecodeError(f"what becomes of the default of {column.name} is not understood")
    columns = tuple(
        replace(column, nullable=False) if column.name.lower() in key and column.nullable else column
        for column in table.columns
    )
    table = replace(table, columns=columns)
    return in_order(replace(table, indexes=tuple(indexes)), flavour)


def in_order(table: TableDefinition, flavour: Flavour) -> TableDefinition:
    """Return the table with its keys as the server keeps them, in its order. Raises DecodeError."""
    indexes = [_fitted(index, table, flavour) for index in table.indexes]
    return replace(table, indexes=tuple(sorted(indexes, key=lambda index: _rank(index, table))))


def check_order(before: TableDefinition, remaining: Sequence[IndexDefinition], after: TableDefinition) -> None:
    """Raise DecodeError if the order of the keys, and so the row identity, is unknown after an ALTER TABLE.

    The ALTER TABLE adds no key. MariaDB keeps the old order then, but not always, and it is another where a key became
    a hash or is one no more. ``remaining``: the keys that are left, in the old order. Under a primary key the order
    does not matter.
    """
    unique = [index.name for index in after.indexes if index.unique]
    if after.primary_key or len(unique) < 2 or not any(i.kind == "hash" for i in (*before.indexes, *after.indexes)):
        return
    if before.primary_key or unique != [index.name for index in remaining if index.unique]:
        raise DecodeError("which of its unique keys is the server's first is not known: one of them is a hash")


def _known(table: TableDefinition, name: str, prefix: int) -> tuple[str, int]:
    try:
        return (table.column(name).name if name else "", prefix)
    except KeyError:
        raise DecodeError(f"table {table.table} has no column {name!r}") from None


def _needed(indexes: Sequence[IndexDefinition]) -> list[IndexDefinition]:
    """Drop the keys that the server made for foreign keys and that another key begins with.

    Source: ``foreign_key_prefix``.
    """
    redundant: set[int] = set()
    for number, index in enumerate(indexes):
        for earlier, other_index in enumerate(indexes[:number]):
            if earlier in redundant or not _begins(index, other_index):
                continue
            shorter = index.generated and len(index.columns) < len(other_index.columns)
            redundant.add(number if not other_index.generated or shorter else earlier)
            break
    return [index for number, index in enumerate(indexes) if number not in redundant]


def _begins(index: IndexDefinition, other_index: IndexDefinition) -> bool:
    """Return True if one of the two was made for a foreign key and the other one begins with it."""
    if not index.generated or (other_index.generated and len(index.columns) > len(other_index.columns)):
        index, other_index = other_index, index
    if not index.generated or len(index.columns) > len(other_index.columns):
        return False
    pairs = zip(index.columns, other_index.columns, strict=False)
    return all(a[0].lower() == b[0].lower() and a[1] == b[1] for a, b in pairs)


def _named(indexes: Iterable[IndexDefinition]) -> list[IndexDefinition]:
    named_indexes: list[IndexDefinition] = []
    for index in indexes:
        used_names = {earlier.name.lower() for earlier in named_indexes}
        named = index if index.name else replace(index, name=_made_up(index.columns[0][0], used_names))
        named_indexes.insert(0 if named.primary else len(named_indexes), named)
    return named_indexes


def _made_up(base: str, used_names: set[str]) -> str:
    if base.lower() not in used_names and base.lower() != "primary":
        return base
    return next(name for number in range(2, 1000) if (name := f"{base}_{number}").lower() not in used_names)


def _fitted(index: IndexDefinition, table: TableDefinition, flavour: Flavour) -> IndexDefinition:
    """Return the key with prefixes as the server keeps them.

    A whole column has none, and none is longer than the column or the engine allow.
    """
    if index.kind in _WHOLE:
        return replace(index, columns=tuple((name, 0) for name, _ in index.columns))
    limit = _PART_BYTES.get(table.engine.lower(), _INNODB_PART_BYTES)
    shapes = [name for name, _ in index.columns if name and is_spatial(table.column(name).family)]
    if shapes and not flavour.mariadb:
        return replace(index, kind="spatial", columns=tuple((name, 0) for name, _ in index.columns))
    hashed = flavour.mariadb and index.unique and not index.primary and _is_hash(index, table, limit, flavour)
    parts = tuple(
        (name, _prefix(prefix, table.column(name), index.unique, limit, flavour) if name else 0)
        for name, prefix in index.columns
    )
    return replace(index, columns=parts, kind="hash" if hashed else index.kind)


def hashed_keys(table: TableDefinition, flavour: Flavour) -> tuple[int, int]:
    """Return how many of MariaDB's keys are hashes, each of which is a column of the rows in its log, and how many may
    be.
    """
    if not flavour.mariadb:
        return 0, 0
    limit = _PART_BYTES.get(table.engine.lower(), _INNODB_PART_BYTES)
    others = [index for index in table.indexes if index.unique and not index.primary]
    hashes = sum(index.kind == "hash" for index in others)
    return hashes, sum(index.kind == "hash" or _key_bytes(index, table, flavour)[1] > limit for index in others)


def _is_hash(index: IndexDefinition, table: TableDefinition, limit: int, flavour: Flavour) -> bool:
    """Return True if MariaDB makes a hash of a unique key, because it is too long.

    Raises DecodeError if that is not known and matters.
    """
    least, most = _key_bytes(index, table, flavour)
    if least <= limit < most and not table.primary_key:
        raise DecodeError(f"whether the unique key {index.name} is a hash is not known")
    return least > limit


def _key_bytes(index: IndexDefinition, table: TableDefinition, flavour: Flavour) -> tuple[int, int]:
    """Return the least and the most bytes that a unique key may take."""
    least = most = 0
    for name, prefix in index.columns:
        column = table.column(name)
        family = column.family
        if (family in _LONG and not prefix) or (is_spatial(family) and family != "point"):
            return _UNLIMITED, _UNLIMITED
        if family in _LONG or family in _STRINGS:
            characters = prefix or (column.arguments[0] if column.arguments else 1)
            size = characters * flavour.collations.max_bytes(column.charset)
            least, most = least + size, most + size
        else:
            least, most = least + 1, most + _OTHER_BYTES
    return least, most


def _prefix(prefix: int, column: ColumnDefinition, unique: bool, limit: int, flavour: Flavour) -> int:
    family = column.family
    if family == "point":
        return _POINT_BYTES
    if is_spatial(family):
        return prefix or (_HASHED_SHAPE_BYTES if unique else limit)
    width = flavour.collations.max_bytes(column.charset)
    if family in _LONG:
        if not prefix and (unique or not flavour.mariadb):
            return 0  # MariaDB keeps a hash of all of it
        most = bytes_at_most(column.type)
        if not prefix:
            return min(most, limit // width)
        if flavour.mariadb:  # it takes the type's bytes for characters
            return min(prefix, most) if unique else min(prefix, most, limit // width)
        length = min(prefix * width, most)
        return (length if unique else min(length, limit)) // width
    if family in _STRINGS:
        argument = column.arguments[0] if column.arguments else 1
        length = prefix if prefix and prefix < argument else argument
        if not unique and length * width > limit:
            length = limit // width
        return 0 if length == argument else length
    return 0


def _rank(index: IndexDefinition, table: TableDefinition) -> tuple[bool, ...]:
    """Return the sort key of the server's order of keys (``sort_keys``).

    By it the server picks a unique key if there is no primary one.
    """
    nullable = any(not name or table.column(name).nullable for name, _ in index.columns)
    partial = any(prefix for _, prefix in index.columns)
    hashed = index.kind == "hash"  # of these MariaDB keeps the order
    return (
        not index.primary,
        not index.unique,
        hashed,
        index.unique and nullable and not hashed,
        index.unique and partial and not hashed,
        index.kind == "fulltext",
    )
