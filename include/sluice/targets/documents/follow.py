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
        found = self._read(table)
        return found if found is not None and found.table == str(table) else None

    def columns(self, table: TableId) -> Mapping[str, str] | None:
        """Return the columns of a table; None if it is not there."""
        found = self.definition(table)
        return {name.casefold(): name for name in found.columns} if found is not None else None

    def key(self, table: TableId, names: tuple[str, ...]) -> Answer:
        """Return HAS if the table's key has these columns in this order."""
        found = self.definition(table)
        return has(found is not None and found.key == names)


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
    def document_value(self, table: TableId, name: str, values: pa.Array, made: ColumnType) -> Any:
        """Return one value of a column as documents have it."""

    def follow(self, place: RecordPlace, fence: Fence) -> None:
        """Follow the change once over all repeats. Raises LoadError, Fenced."""
        if self.record.followed(fence, self.change.number):
            return
        self._follow()
        if self.change.check_only:
            return

        def done(found: Record | None) -> Record:
            held = require_record(found, place, fence.epoch)
            return replace(held, statements=(fence.batch, self.change.number + 1))

        self.change_record(done)

    def _follow(self) -> None:
        held = HeldTables(self.change, self.read)
        if self.change.check_only:
            require_held(self.change, held)
            return
        self._end_renames(held)
        for step in list(steps_of(self.change, held, generated=True)):
            self._step(step, held)

    def _end_renames(self, held: HeldTables) -> None:
        """Remove what is left of each table whose rename was done but for that."""
        for one in self.change.changes:
            old = held.definition(held.table(one.table)) if one.renamed_to is not None else None
            if old is not None and old.moves_to and held.definition(TableId(*old.moves_to.split(".", 1))) is not None:
                self.drop(held.table(one.table))

    def _step(self, step: Step, held: HeldTables) -> None:
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
                self._alter(step, held)

    def _alter(self, step: AlterTable, held: HeldTables) -> None:
        given = held.definition(step.table)
        assert given is not None  # the plan saw it
        for effect in effects_on(self.change, step.source):
            why = effect.unknown or f"a target of type {self.KIND} converts no rows"
            raise not_converted(self.change, effect, step.table, why)
        definition = replace(given, columns=step.columns_after(given.columns), key=step.key_after(given.key))
        if step.copied:
            self.make_anew(step, definition)
            return
        if step.takes_names:
            why = "a column takes the name of another one, which a load that is repeated would do twice"
            raise not_followed(self.change, why)
        self.alter(step, definition, self._values(step))

    def _values(self, step: AlterTable) -> dict[str, Any]:
        """Return what documents that are there get in new columns. Raises LoadError for a value that is not known."""
        found: dict[str, Any] = {}
        for added in step.new:
            if added.column.generated is not None:
                continue
            known = self.change.meaning.default_value(added.column)
            if known.value is None:
                raise not_filled(self.change, step.table, added.name, known.why, added_by_hand())
            value = pa.repeat(known.value, 1)
            found[added.name] = self.document_value(step.table, added.name, value, type_of(self.change, added.column))
        return found


__all__ = ["Follower", "HeldTables"]
