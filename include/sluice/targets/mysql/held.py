"""The traces of the source's schema changes in a MySQL target's information_schema, see
:mod:`sluice.targets.schema.policy`.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from sluice.model.column_types import ColumnKind
from sluice.model.definitions import ColumnDefinition, IndexDefinition
from sluice.model.dialects import MARIADB
from sluice.model.row_effects import ColumnEffect
from sluice.model.schema_changes import ColumnChange, TableChange
from sluice.model.tables import TableId
from sluice.mysql.column_types import Brackets, find_type
from sluice.mysql.type_loss import SqlType
from sluice.targets.mysql.table_info import ColumnInfo, TableInfo
from sluice.targets.port import SchemaChange
from sluice.targets.schema.policy import Answer, has
from sluice.targets.sql.held import CatalogHeld


class MysqlHeld(CatalogHeld[TableInfo, ColumnInfo]):
    """See :class:`sluice.targets.schema.policy.Held`. ``mariadb``: the target is."""

    def __init__(self, change: SchemaChange, infos: Mapping[TableId, TableInfo], cursor: Any, *, mariadb: bool) -> None:
        super().__init__(change, infos)
        self.cursor = cursor
        self.same_dialect = (change.statement.dialect == MARIADB) == mariadb

    def type(self, table: TableId, name: str, part: ColumnChange, effect: ColumnEffect | None) -> Answer:
        """Compare the words of the types; the server that got the type by hand has converted the rows itself."""
        column, new = self.info(table, name), part.new
        assert new is not None
        if declared_words(column.sql_type) != declared_words(new.type):
            return Answer.LACKS
        if new.charset and _charset(column.charset) != _charset(new.charset):
            return Answer.LACKS
        compares = self.same_dialect and part.old is not None and part.old.collation != new.collation
        return has(not compares or column.collation == new.collation)

    def nullable(self, table: TableId, name: str) -> bool | None:
        """Return True if the catalog's column takes NULL."""
        return self.info(table, name).nullable

    def attributes(self, table: TableId, name: str, part: ColumnChange) -> Answer:
        """Compare default, EXTRA and comment with information_schema, as far as the change is about them."""
        assert part.new is not None
        rows = self._rows(
            "SELECT column_default, extra, column_comment FROM information_schema.columns "
            "WHERE table_schema = %s AND table_name = %s AND column_name = %s",
            (table.schema, table.table, name),
        )
        old, new = part.old, part.new
        [(default, extra, comment)] = rows
        attributes = _Attributes(_default(default), str(extra or "").lower(), str(comment or ""))
        return has(all(attributes.agree(field, old, new) for field in _Attributes.FIELDS))

    def order(self, table: TableId, names: list[str]) -> Answer:
        """Compare the order of those columns that the table has."""
        table_columns = [column.name.casefold() for column in self.infos[table].columns]
        expected = [name.casefold() for name in names if name.casefold() in table_columns]
        return has([name for name in table_columns if name in set(expected)] == expected)

    def key(self, table: TableId, names: tuple[str, ...]) -> Answer:
        """Return HAS if a unique key has these columns in this order; without names, if there is no primary key."""
        keys = [tuple(column.casefold() for column in key) for key in self.infos[table].unique_keys]
        primary = any(key.name == "PRIMARY" for key in self.infos[table].keys)
        return has(tuple(name.casefold() for name in names) in keys if names else not primary)

    def index(self, table: TableId, index: IndexDefinition, names: tuple[str, ...], *, wanted: bool) -> Answer:
        """Compare name, uniqueness, columns and prefixes; of other kinds than plain indexes only the name."""
        rows = self._rows(
            "SELECT index_name, non_unique, column_name, sub_part FROM information_schema.statistics "
            "WHERE table_schema = %s AND table_name = %s ORDER BY index_name, seq_in_index",
            (table.schema, table.table),
        )
        indexes: dict[str, tuple[bool, list[tuple[str, int]]]] = {}
        for key, non_unique, column, prefix in rows:
            indexes.setdefault(str(key).lower(), (not int(non_unique), []))[1].append((
                (column or "").casefold(),
                int(prefix or 0),
            ))
        parts = [(name.casefold(), prefix) for name, (_, prefix) in zip(names, index.columns, strict=True)]
        plain = index.kind == "index" and all(name for name, _ in index.columns)
        held_index = indexes.get(index.name.lower())
        same = held_index is not None and (not plain or held_index == (index.unique, parts))
        return has(same if wanted else not same)

    def options(self, table: TableId, table_change: TableChange) -> Answer:
        """Compare engine, collation and comment, as far as the change is about them."""
        assert table_change.before is not None
        assert table_change.after is not None
        rows = self._rows(
            "SELECT engine, table_collation, table_comment FROM information_schema.tables WHERE table_schema = %s AND "
            "table_name = %s",
            (table.schema, table.table),
        )
        [(engine, collation, comment)] = rows
        before, after = table_change.before, table_change.after
        fits = before.comment == after.comment or (comment or "") == after.comment
        fits = fits and (before.engine == after.engine or str(engine or "").lower() == after.engine.lower())
        moved = self.same_dialect and before.collation != after.collation
        return has(fits and (not moved or collation == after.collation))

    def partitions(self, table: TableId) -> Answer:
        """Return UNSEEN: partitions are not compared."""
        return Answer.UNSEEN

    def _rows(self, query: str, parameters: tuple[str, ...]) -> list[tuple[Any, ...]]:
        self.cursor.execute(query, parameters)
        return list(self.cursor.fetchall())


class _Attributes:
    """Compares a column's attributes besides its type, one by one, as far as the change touched them."""

    FIELDS = ("default", "on_update", "auto_increment", "invisible", "comment", "generated")

    def __init__(self, default: str | None, extra: str, comment: str) -> None:
        self.default, self.extra, self.comment = default, extra, comment

    def agree(self, field: str, old: ColumnDefinition | None, new: ColumnDefinition) -> bool:
        expected = getattr(new, field)
        if old is not None and getattr(old, field) == expected:
            return True
        match field:
            case "default":
                return self.default == _default(expected)
            case "comment":
                return bool(self.comment == expected)
            case "on_update":
                return ("on update" in self.extra) is (expected is not None)
            case "generated":
                return ("generated" in self.extra.replace("default_generated", "")) is (expected is not None)
        return (field in self.extra) is bool(expected)


def declared_words(declared: str) -> SqlType:
    """Return a type without display widths."""
    sql_type = SqlType.parse(declared)
    kind = find_type(sql_type.word)
    shows_width = kind is not None and (kind.brackets is Brackets.WIDTH or kind.kind is ColumnKind.YEAR)
    return SqlType(sql_type.word, (), sql_type.unsigned) if shows_width else sql_type


def _charset(name: str | None) -> str:
    return "utf8mb3" if name == "utf8" else name or ""


def _default(text: str | None) -> str | None:
    """Return a default as both the history and information_schema may have it, in one spelling."""
    if text is None or text.upper() == "NULL":
        return None
    plain = text.strip()
    while plain.startswith("(") and plain.endswith(")"):
        plain = plain[1:-1].strip()
    if plain.startswith("'") and plain.endswith("'") and len(plain) > 1:
        plain = plain[1:-1].replace("''", "'")
    try:
        return str(Decimal(plain).normalize())
    except InvalidOperation:
        return plain.lower().removesuffix("()")
