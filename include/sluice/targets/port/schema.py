"""Schema changes that a target follows, and what it says about tables before their first row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from sluice.mapping import Mapping as TableMapping
from sluice.model.dialects import Dialect
from sluice.model.losses import Loss
from sluice.model.planned import PlannedTable
from sluice.model.row_effects import ColumnEffect
from sluice.model.schema_changes import ChangeKind, StatementSession, TableChange, cut_overs
from sluice.model.source_words import StatementMeaning
from sluice.model.tables import TableId


@dataclass(frozen=True, slots=True)
class SourceStatement:
    """A statement as the source ran it: for targets that understand its dialect, and for people.

    ``schema``: the session's default; ``mode``, ``session``: its settings. ``file``, ``offset``, ``gtid``,
    ``commit_time_us``: its place in the log.
    """

    dialect: Dialect
    text: str
    schema: str = ""
    mode: int = 0
    session: StatementSession | None = None
    file: str = ""
    offset: int = 0
    gtid: str | None = None
    commit_time_us: int = 0


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """A statement of the source's log that this target shall follow. The pipeline's policy is applied already.

    Attributes:
        number: its place among the batch's changes, from 0. where: file:offset in the log.
        statement: as recorded. tables: what it did to captured tables, at the source. mapping: where tables go.
        before_rows: it precedes the rows of the batch; else it follows them.
        kinds: only these kinds of change are wanted; None: the statement as it is.
        check_only: the policy is to stop: the target has it already, or it is an error.
        not_captured: tables in it that are not captured.
        columns: (source table, source column, target column) of columns with another name; excluded: (source table,
            column) that are left out.
        effects: what it did to stored values of columns that the target has, but for those that stay the same.
        copies: source tables that are copied again after it, as a target cannot do to its rows what the source did
            (``on_conversion: copy``).
        recopies: the kind of target offers that. consumer: the target's name. ddl_kinds: the words of its kinds in the
            target's ``ddl``; stop_kinds: those of them that the file sets to stop.
        meaning: what the statement's words mean: types and defaults of the columns, and which columns it names.
    """

    number: int
    where: str
    statement: SourceStatement
    tables: tuple[TableChange, ...]
    mapping: TableMapping
    before_rows: bool = False
    kinds: frozenset[ChangeKind] | None = None
    check_only: bool = False
    not_captured: frozenset[TableId] = frozenset()
    columns: tuple[tuple[TableId, str, str], ...] = ()
    excluded: tuple[tuple[TableId, str], ...] = ()
    effects: tuple[ColumnEffect, ...] = ()
    copies: frozenset[TableId] = frozenset()
    recopies: bool = False
    consumer: str = ""
    ddl_kinds: tuple[str, ...] = ()
    stop_kinds: tuple[str, ...] = ()
    meaning: StatementMeaning = field(default_factory=StatementMeaning, compare=False)

    @property
    def cut_overs(self) -> tuple[TableChange, ...]:
        """The changes that online schema changes made, see :func:`sluice.model.schema_changes.cut_overs`."""
        return cut_overs(self.tables, self.not_captured)

    @property
    def changes(self) -> tuple[TableChange, ...]:
        """``tables`` with each cut-over of an online schema change as one change of the captured table."""
        swapped = self.cut_overs
        names = {cut_over.table for cut_over in swapped}
        return (
            *swapped,
            *(
                table_change
                for table_change in self.tables
                if table_change.table not in names and table_change.renamed_to not in names
            ),
        )

    def target(self, table: TableId) -> TableId:
        """Return the target's name of a source table."""
        return self.mapping.route(table).target

    def name_after(self, table: TableId) -> TableId:
        """Return the name that a source table has after all renames of the statement, one after the other."""
        for table_change in self.changes:
            if table_change.table == table and table_change.renamed_to is not None:
                table = table_change.renamed_to
        return table

    @property
    def wanted(self) -> frozenset[ChangeKind]:
        """Kinds that the target has to follow."""
        every = frozenset(kind for table in self.tables for kind in table.kinds)
        return every if self.kinds is None else every & self.kinds


@dataclass(frozen=True, slots=True)
class TableFinding:
    """A finding about a planned table before its first row: ``severity`` is warning or error, ``column`` "" for the
    table itself.

    Attributes:
        statement: what would correct it at the target, in the target's own words; "" if nothing simple would.
        hint: the choices, if there are more than the statement.
        absent: the target lacks the table or the column itself, so that rows which it holds, or held, have no values
            there once the statement has made it.
        loses: the column changes values without an error, so that the target's ``accept_loss`` has to name it
            (:mod:`sluice.targets.accepted_losses`).
    """

    severity: str
    table: TableId
    column: str
    why: str
    statement: str = ""
    hint: str = ""
    absent: bool = False
    loses: bool = False


def about_values(table: TableId, column: str, types: str, why: str, statement: str = "") -> TableFinding:
    """Return the warning about a column that does not keep all of its values, or refuses some.

    ``types``: the source's type, and the target's; ``why``: a :class:`~sluice.model.losses.Loss` if values are lost.
    """
    return TableFinding("warning", table, column, f"{types}: {why}", statement, loses=isinstance(why, Loss))


Finding = TableFinding
"""The earlier name, which kinds of other repositories may import."""


class TargetSchema(Protocol):
    """Optional: compares tables, for targets that have any."""

    def compare(self, tables: Sequence[PlannedTable]) -> Sequence[TableFinding]:
        """Return everything to say about the planned tables before the first batch.

        Raises nothing for them and changes nothing.
        """

    def apply(self, statement: str) -> None:
        """Run what a finding proposes. Raises LoadError that shows it."""


class CopiesAgain(Protocol):
    """A target that holds rows in a way that some statements make wrong although no value is converted, until their
    tables are copied again.

    It declares :attr:`~sluice.targets.port.Capabilities.copies_again`. It empties what a later statement drops, and
    copies again what one renames: so a table that the source no longer has needs no copy.
    """

    def copied_again(self, change: SchemaChange) -> frozenset[TableId]:
        """Return the source tables, under their names before the statement, that are to be copied again after it.

        No I/O.
        """


class ConvertsRows(Protocol):
    """A target whose server runs the source's own statements, and converts the rows by itself.

    It declares :attr:`~sluice.targets.port.Capabilities.converts_rows`.
    """

    def converted_otherwise(self, change: SchemaChange) -> frozenset[TableId]:
        """Return the source tables, under their names before the statement, whose rows the server may not convert as
        the source did. It may ask the server.
        """
