"""The readers of definitions and statements, by the dialect that :meth:`sluice.sources.port.Source.dialect` returns."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from sluice.errors import DecodeError
from sluice.model.column_types import ColumnType
from sluice.model.default_values import DefaultValue
from sluice.model.definitions import ColumnDefinition
from sluice.model.dialects import MARIADB, MYSQL, POSTGRESQL, Dialect
from sluice.model.planned import CreatedTable
from sluice.model.row_effects import Ran
from sluice.model.source_words import AlteredNames, SourceWords


@dataclass(frozen=True, slots=True)
class _UnknownWords:
    """Understands nothing of a dialect that has no reader."""

    dialect: Dialect

    def column_type(self, column: ColumnDefinition) -> ColumnType | None:
        return None

    def altered_names(self, statement: Ran) -> AlteredNames | None:
        raise DecodeError(self._why)

    def default_value(self, column: ColumnDefinition, wrote: Ran | None = None) -> DefaultValue:
        return DefaultValue(None, self._why)

    def created_table(self, text: str, schema: str) -> CreatedTable | None:
        return None

    @property
    def _why(self) -> str:
        return f"statements of {self.dialect} are not understood"


@functools.cache
def words_of(dialect: Dialect) -> SourceWords:
    """Return the reader of a dialect; of one that no one reads, a reader that says so.

    The parsers are imported with the first of their dialect: most commands need none.
    """
    if dialect in {MYSQL, MARIADB}:
        from sluice.mysql.source_words import MySQLWords

        return MySQLWords(mariadb=dialect == MARIADB)
    if dialect == POSTGRESQL:
        from sluice.postgresql.source_words import PostgreSQLWords

        return PostgreSQLWords()
    return _UnknownWords(dialect)


__all__ = ["words_of"]
