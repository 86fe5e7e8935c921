"""The contents of a batch whose messages one unit sends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from sluice.formats import Statement
from sluice.model.default_values import DefaultValue
from sluice.model.offset import Offset
from sluice.model.tables import TableId
from sluice.targets.messages.form import MessageForm
from sluice.targets.port import BatchInput, RowReader, TableInput


@dataclass(frozen=True, slots=True)
class BatchRows:
    """The contents of a batch. ``changes``: how many there are to read; 0: merged rows.

    ``replay``: as in :class:`BatchInput`. ``source``: its name in documents. ``defaults``: of columns, for schemas in
    messages.
    """

    reader: RowReader
    tables: tuple[TableInput, ...]
    position: Offset
    changes: int
    replay: str
    source: str
    statements: tuple[Statement, ...] = ()
    defaults: Mapping[TableId, Mapping[str, DefaultValue]] = field(default_factory=dict)

    @classmethod
    def of(cls, batch: BatchInput, pipeline: str, form: MessageForm, statements: tuple[Statement, ...] = ()) -> Self:
        """Return the contents of a batch, lighter tables first."""
        tables = tuple(sorted(batch.tables, key=lambda table: table.weight))
        defaults = batch.facts.column_defaults() if form.has_schemas else {}
        source = batch.facts.document_name(pipeline)
        return cls(batch.reader, tables, batch.position, batch.changes, batch.replay, source, statements, defaults)

    @property
    def cost(self) -> int:
        """The cost of the unit, in rows."""
        return max(sum(table.rows for table in self.tables), self.changes)

    @property
    def memory_bytes(self) -> int:
        """The memory that the unit takes: for merged rows those that are read at a time, for changes all."""
        files = [file for table in self.tables for file in table.files]
        return self.reader.memory_of(sum(file.arrow_bytes for file in files), len(files)) if files else 0
