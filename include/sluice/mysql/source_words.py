"""The meaning of MySQL's and MariaDB's definitions and statements; see
:class:`sluice.model.source_words.SourceWords`.
"""

from __future__ import annotations

from dataclasses import dataclass

from sluice.errors import DecodeError
from sluice.model.column_types import ColumnType
from sluice.model.default_values import DefaultValue
from sluice.model.definitions import ColumnDefinition, IndexDefinition
from sluice.model.planned import CreatedTable
from sluice.model.row_effects import Ran
from sluice.model.source_words import AlteredNames
from sluice.mysql.column_defaults import Statement, default_value
from sluice.mysql.ddl import ast
from sluice.mysql.ddl.columns import altered_names
from sluice.mysql.ddl.lexer import Dialect
from sluice.mysql.ddl.parser import parse_statement
from sluice.mysql.type_loss import definition_type


@dataclass(frozen=True, slots=True)
class MySQLWords:
    """Reads the words of MySQL, or of MariaDB."""

    mariadb: bool = False

    def column_type(self, column: ColumnDefinition) -> ColumnType | None:
        """Return the type of a column's values."""
        return definition_type(column)

    def altered_names(self, statement: Ran) -> AlteredNames | None:
        """Return the names that the statement changes."""
        return altered_names(statement.text, statement.schema, Dialect(self.mariadb, 0, statement.mode))

    def default_value(self, column: ColumnDefinition, wrote: Ran | None = None) -> DefaultValue:
        """Return the default of a column, by the SQL mode and session of the statement that wrote it."""
        return default_value(column, Statement(self.mariadb, wrote.mode, wrote.session) if wrote is not None else None)

    def created_table(self, text: str, schema: str) -> CreatedTable | None:
        """Return the table that a ``CREATE TABLE`` makes, or None if the text is not such a statement."""
        try:
            statement = parse_statement(text, schema, Dialect(self.mariadb))
        except DecodeError:
            return None
        if not isinstance(statement, ast.CreateTable):
            return None
        comments = tuple((column.name, column.comment) for column in statement.columns if column.comment)
        named = (spec for spec in statement.indexes if spec.name and spec.kind in {"index", "unique"})
        indexes = tuple(IndexDefinition(spec.name, spec.columns, spec.kind == "unique") for spec in named)
        return CreatedTable(statement.options.comment or "", comments, indexes)
