"""Charsets and collations that a statement leaves to a default, added to its text as the source's definitions have
them.

A default depends on the server, the schema and the session: at the target it would be another one, and other values
would be equal, or refused.
"""

from __future__ import annotations

from sluice.model.definitions import TableDefinition
from sluice.mysql.column_types import find_type
from sluice.mysql.ddl import ast as s
from sluice.mysql.ddl.names import NamesReader, Replacement
from sluice.targets.mysql.collations import Knows

_DEFAULT = "DEFAULT"


def said(
    statement: s.Statement, names: NamesReader, after: TableDefinition | None, knows: Knows, default: str = ""
) -> list[Replacement]:
    """Return what to write where in the statement that ``names`` has read.

    ``after``: the table as the statement made it; None: it is not known.

    A column without a charset of its own keeps the table's default, except one that ALTER TABLE adds where the target's
    table has another one than the column needs. ``default``: the collation of the target's table before the statement,
    "" if it is not known. A collation that the target lacks is not said: its own default stands for it.
    """
    if after is None:
        return []
    replacements: list[Replacement] = []
    if isinstance(statement, s.CreateTable):
        replacements += _of_table(statement.options, names, after, knows)
        added: set[str] = set()
    elif isinstance(statement, s.AlterTable):
        for action in statement.actions:
            if isinstance(action, s.ConvertCharset):
                replacements += _collated(action.collation, names, after, knows)
            elif isinstance(action, s.SetOptions) and action.options.charset is not None:
                replacements += _collated(action.options.collation, names, after, knows)
        moves = any(isinstance(action, s.ConvertCharset | s.SetOptions) for action in statement.actions)
        inherited = {
            column.name.lower() for column in after.columns if default and column.collation == default and not moves
        }
        added = {
            action.column.name.lower() for action in statement.actions if isinstance(action, s.AddColumn)
        } - inherited
    else:
        return []
    return list(dict.fromkeys([*replacements, *_of_columns(names, after, added, knows)]))


def _of_table(options: s.TableOptions, names: NamesReader, after: TableDefinition, knows: Knows) -> list[Replacement]:
    if options.charset is not None:
        return _collated(options.collation, names, after, knows)
    if options.collation is not None or names.columns_end is None or not _known(after.charset, after.collation, knows):
        return []
    words = f" DEFAULT CHARACTER SET {after.charset} COLLATE {after.collation}"
    return [(names.columns_end, names.columns_end, words)]


def _collated(collation: str | None, names: NamesReader, after: TableDefinition, knows: Knows) -> list[Replacement]:
    """Write the collation after each charset of the table; DEFAULT becomes the charset that it was."""
    if collation is not None or not _known(after.charset, after.collation, knows):
        return []
    return [
        (start, end, f"{after.charset if name.upper() == _DEFAULT else names.sql[start:end]} COLLATE {after.collation}")
        for start, end, name in names.charsets
    ]


def _of_columns(names: NamesReader, after: TableDefinition, added: set[str], knows: Knows) -> list[Replacement]:
    columns = []
    definitions = {column.name.lower(): column for column in after.columns}
    for end, column in names.types:
        definition, written = definitions.get(column.name.lower()), column.type
        kind = find_type(written.name)
        if definition is None or kind is None or not kind.charset or written.collation is not None:
            continue
        if written.binary or written.compressed or not _known(definition.charset, definition.collation, knows):
            continue
        if written.charset is not None:
            columns.append((end, end, f" COLLATE {definition.collation}"))
        elif column.name.lower() in added:
            columns.append((end, end, f" CHARACTER SET {definition.charset} COLLATE {definition.collation}"))
    return columns


def _known(charset: str | None, collation: str | None, knows: Knows) -> bool:
    return bool(charset and collation) and knows(charset or "", collation or "")
