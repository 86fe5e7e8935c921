"""Schema changes at a target with a document for each row: steps of the one policy of all targets, which a kind carries
out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pyarrow as pa

from sluice.model.column_types import ColumnType
from sluice.model.tables import TableId
from sluice.targets.documents.definitions import Definition
from sluice.targets.documents.records import Record
from sluice.targets.port import Fence, SchemaChange
from sluice.targets.port.record import Decision, RecordPlace, require_record
from sluice.targets.schema.conversions import effects_on, not_converted
from sluice.targets.schema.plan import (
    AlterTable,
    CreateTable,
    DropTable,
    EmptyTable,
    RenameTable,
    Step,
    steps_of,
    type_of,
)
from sluice.targets.schema.policy import (
    Answer,
    OnlyColumns,
    added_by_hand,
    has,
    not_filled,
    not_followed,
    require_held,
)


class HeldTables(OnlyColumns):
    """See :class:`sluice.targets.schema.policy.Held`: what the definitions say.

    ``read``: returns that of a table as of now.
    """

    def __init__(self, change: SchemaChange, read: Callable[[TableId], Definition | None]) -> None:
        super().__init__(change)
        self._read = read

    def definition(self, table: TableId) -> Definition | None:
        """Return the definition of a table as of now; None if there is none, or one of another table."""
        definition = self._read(table)
        return definition if definition is not None and definition.table == str(table) else None

    def columns(self, table: TableId) -> Mapping[str, str] | None:
        """Return the columns of a table; None if it is not there."""
        definition = self.definition(table)
        return {name.casefold(): name for name in definition.columns} if definition is not None else None

    def key(self, table: TableId, names: tuple[str, ...]) -> Answer:
        """Return HAS if the table's key has these columns in this order."""
        definition = self.definition(table)
        return has(definition is not None and definition.key == names)


@dataclass
class Follower(ABC):
    """Changes documents first and the definition last, so that a repeat begins with the same definition."""

    KIND: ClassVar[str] = ""
    change: SchemaChange
    record: Record

    @abstractmethod
    def change_record(self, decide: Decision[Record]) -> None:
        """Change the checkpoint's record by compare-and-set."""

    @abstractmethod
    def read(self, table: TableId) -> Definition | None:
        """Return the definition of what would hold the documents of a table."""

    @abstractmethod
    def drop(self, table: TableId) -> None:
        """Remove the documents and the definition of a table. What is gone is no error."""

    @abstractmethod
    def empty(self, table: TableId) -> None:
        """Remove the documents of a table."""

    @abstractmethod
    def rename(self, table: TableId, to: TableId) -> None:
        """Give a table another name; a repeat goes on."""

    @abstractmethod
    def create(self, step: CreateTable, definition: Definition) -> None:
        """Make what holds the documents of a table, with a definition."""

    @abstractmethod
    def make_anew(self, step: AlterTable, definition: Definition) -> None:
        """Empty a table whose rows are copied again, and change its definition."""

    @abstractmethod
    def alter(self, step: AlterTable, definition: Definition, values: Mapping[str, Any]) -> None:
        """Change documents, then the definition. ``values``: of new columns, as documents have them."""

    @abstractmethod
    def document_value(self, table: TableId, name: str, values: pa.Array, column_type: ColumnType) -> Any:
        """Return one value of a column as documents have it."""

    def follow(self, place: RecordPlace, fence: Fence) -> None:
        """Follow the change once over all repeats. Raises LoadError, Fenced."""
        if self.record.followed(fence, self.change.number):
            return
        self._follow()
        if self.change.check_only:
            return

        def done(record: Record | None) -> Record:
            held_record = require_record(record, place, fence.epoch)
            return replace(held_record, statements=(fence.batch, self.change.number + 1))

        self.change_record(done)

    def _follow(self) -> None:
        held_tables = HeldTables(self.change, self.read)
        if self.change.check_only:
            require_held(self.change, held_tables)
            return
        self._end_renames(held_tables)
        for step in list(steps_of(self.change, held_tables, generated=True)):
            self._step(step, held_tables)

    def _end_renames(self, held_tables: HeldTables) -> None:
        """Remove what is left of each table whose rename was done but for that."""
        for change in self.change.changes:
            old = held_tables.definition(held_tables.table(change.table)) if change.renamed_to is not None else None
            if (
                old is not None
                and old.moves_to
                and held_tables.definition(TableId(*old.moves_to.split(".", 1))) is not None
            ):
                self.drop(held_tables.table(change.table))

    def _step(self, step: Step, held_tables: HeldTables) -> None:
        match step:
            case DropTable(table):
                self.drop(table)
            case EmptyTable(table):
                self.empty(table)
            case RenameTable(table, to):
                self.rename(table, to)
            case CreateTable():
                names = tuple(added.name for added in step.columns)
                self.create(step, Definition(str(step.table), names, step.key))
            case AlterTable():
                self._alter(step, held_tables)

    def _alter(self, step: AlterTable, held_tables: HeldTables) -> None:
        given_definition = held_tables.definition(step.table)
        assert given_definition is not None  # the plan saw it
        for effect in effects_on(self.change, step.source):
            why = effect.unknown or f"a target of type {self.KIND} converts no rows"
            raise not_converted(self.change, effect, step.table, why)
        definition = replace(
            given_definition,
            columns=step.columns_after(given_definition.columns),
            key=step.key_after(given_definition.key),
        )
        if step.copied:
            self.make_anew(step, definition)
            return
        if step.takes_names:
            why = "a column takes the name of another one, which a load that is repeated would do twice"
            raise not_followed(self.change, why)
        self.alter(step, definition, self._values(step))

    def _values(self, step: AlterTable) -> dict[str, Any]:
        """Return what documents that are there get in new columns. Raises LoadError for a value that is not known."""
        values: dict[str, Any] = {}
        for added in step.new:
            if added.column.generated is not None:
                continue
            known_default_value = self.change.meaning.default_value(added.column)
            if known_default_value.value is None:
                raise not_filled(self.change, step.table, added.name, known_default_value.why, added_by_hand())
            value = pa.repeat(known_default_value.value, 1)
            values[added.name] = self.document_value(step.table, added.name, value, type_of(self.change, added.column))
        return values


__all__ = ["Follower", "HeldTables"]
