"""The meaning of MySQL's and MariaDB's definitions and statements; see :class:`sluice.model.source_words.SourceWords`."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.model.column_types import ColumnType
from sluice.model.default_values import DefaultValue
from sluice.model.definitions import ColumnDefinition
from sluice.model.row_effects import Ran
from sluice.model.source_words import AlteredNames
from sluice.mysql.column_defaults import Statement, default_value
from sluice.mysql.ddl.columns import altered_names
from sluice.mysql.ddl.lexer import Dialect
from sluice.mysql.type_loss import definition_type


@dataclass(frozen=True, slots=True)
class MySQLWords:
    """Reads the words of MySQL, or of MariaDB."""

    mariadb: bool = False

    def column_type(self, column: ColumnDefinition) -> ColumnType | None:
        return definition_type(column)

    def altered_names(self, statement: Ran) -> AlteredNames | None:
        return altered_names(statement.text, statement.schema, Dialect(self.mariadb, 0, statement.mode))

    def default_value(self, column: ColumnDefinition, wrote: Ran | None = None) -> DefaultValue:
        return default_value(column, Statement(self.mariadb, wrote.mode, wrote.session) if wrote is not None else None)


__all__ = ["MySQLWords"]
