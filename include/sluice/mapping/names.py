"""Column names of a pipeline's mapping, held against the columns that its tables have: a misspelt one would go over, or
tell no rows apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sluice.config.pipeline import TableMapping
from sluice.mapping.tables import Mapping as Routes
from sluice.model.nearest import meant, meant_table
from sluice.model.tables import TableId


@dataclass(frozen=True, slots=True)
class KnownTable:
    """Columns that a table has, or had; ``key``: those of its primary key; ``left_out``: those that are not stored."""

    columns: frozenset[str]
    key: frozenset[str] = frozenset()
    left_out: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class NamedColumn:
    """A column that a line of the mapping names: ``number`` of the line, ``field`` of it."""

    number: int
    line: str
    field: str
    column: str

    @property
    def place(self) -> str:
        """The path of the name in the file."""
        return f"mapping.{self.number} ({self.line}): {self.field}"

    @property
    def stored(self) -> str:
        """The name under which it is remembered; where it stands in the file does not matter."""
        return f"{self.line} {self.field} {self.column}"


@dataclass(frozen=True, slots=True)
class WrongName:
    """A name that cannot be meant, and why."""

    name: NamedColumn
    why: str
    fix: str


def named_columns(lines: Sequence[TableMapping]) -> list[NamedColumn]:
    """Return every source column that the lines name."""
    named = []
    for number, line in enumerate(lines):
        columns = line.columns
        by_field: dict[str, Iterable[str]] = {
            "columns.include": columns.include or (),
            "columns.exclude": columns.exclude,
            "columns.rename": columns.rename,
            "columns.convert": columns.convert,
            "key": line.key,
            "column_groups": [name for group in line.column_groups for name in group],
        }
        named += [NamedColumn(number, line.from_, field, name) for field, names in by_field.items() for name in names]
    return named


def tables_by_line(lines: Sequence[TableMapping], tables: Mapping[TableId, KnownTable]) -> dict[int, list[KnownTable]]:
    """Return the tables that each line matches. A line that matches none is missing."""
    routes, by_line = Routes.compile(lines), dict[int, list[KnownTable]]()
    for table, definition in tables.items():
        matched = routes.matched(table)
        if matched is not None:
            by_line.setdefault(lines.index(matched[0]), []).append(definition)
    return by_line


def misspelt_tables(lines: Sequence[TableMapping], tables: Mapping[TableId, KnownTable]) -> list[WrongName]:
    """Return the lines by which no table goes, and whose table was probably meant to be another one that no line names.

    That one goes over by its own name, with all of its columns.
    """
    by_line, wrong = tables_by_line(lines, tables), []
    named = {line.from_ for line in lines}
    unnamed = [str(table) for table in tables if str(table) not in named]
    for number, line in enumerate(lines):
        likely = "" if number in by_line or line.from_.endswith(".*") else meant_table(line.from_, unnamed)
        if likely:
            name = NamedColumn(number, line.from_, "from", line.from_)
            why = f"no captured table goes by this line; did you mean {likely!r}?"
            wrong.append(WrongName(name, why, "correct its from, or remove the line until there is such a table"))
    return wrong


def protects(line: TableMapping) -> bool:
    """Return True if a line keeps columns from the target."""
    return bool(line.columns.exclude) or line.columns.include is not None


def wrong_names(lines: Sequence[TableMapping], tables: Mapping[TableId, KnownTable]) -> list[WrongName]:
    """Return the names that no table of their line has, and keys that are excluded.

    A line by which no table goes is not looked at.
    """
    by_line, wrong = tables_by_line(lines, tables), []
    for name in named_columns(lines):
        matched = by_line.get(name.number)
        if matched is None:
            continue
        columns = dict.fromkeys(column for table in matched for column in sorted(table.columns))
        if name.field != "columns.exclude" and any(name.column in table.left_out for table in matched):
            why = f"{name.column!r} is kept out of storage by capture.columns.exclude"
            wrong.append(WrongName(name, why, "leave its name out here, or store it"))
        elif name.column not in columns:
            why = f"there is no column {name.column!r}{meant(name.column, columns)}"
            wrong.append(
                WrongName(name, why, "names are compared exactly; a column that is to come is named when it is there")
            )
        elif name.field == "columns.exclude" and any(name.column in table.key for table in matched):
            why = f"{name.column!r} is a column of the primary key: without it no row can be told apart at the target"
            wrong.append(WrongName(name, why, "rename it, or mask it with a rule"))
    return wrong
