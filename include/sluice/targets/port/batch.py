"""A batch as a target is given it, on the driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from sluice.model.default_values import DefaultValue
from sluice.model.offset import Offset
from sluice.model.planned import PlannedTable
from sluice.model.tables import TableId
from sluice.targets.port.reconcile import StoredRange
from sluice.targets.port.rows import RowReader, TableInput
from sluice.targets.port.schema import SchemaChange


class SourceFacts(Protocol):
    """Answers a target's questions about the source while it plans a batch.

    On the driver; each question is answered when it is asked.
    """

    def being_copied(self) -> frozenset[TableId]:
        """Return the target tables that a dump is filling, or was when the batch was captured: rows may be missing."""

    def unique_keys(self, plan: PlannedTable) -> tuple[PlannedTable, frozenset[str]]:
        """Return the table with the source's unique keys as of the batch (``plan.unique``, None: unknown), and columns
        that only a rule makes.
        """

    def captured_tables(self) -> Mapping[TableId, TableId]:
        """Return the captured tables, as far as known at the start of the batch: source table -> target table."""

    def column_defaults(self) -> Mapping[TableId, Mapping[str, DefaultValue]]:
        """Return the defaults that columns of the batch's tables have at the source, as far as its definitions are
        known: target table -> name at the target -> value.
        """

    def document_name(self, pipeline: str) -> str:
        """Return the name under which documents speak of the source, with its connector if it names one."""


class NoFacts:
    """Answers as if nothing were known about the source but its name in documents ("": the pipeline's)."""

    named: str = ""

    def __init__(self, named: str = "") -> None:
        self.named = named

    def being_copied(self) -> frozenset[TableId]:
        """Return no table."""
        return frozenset()

    def unique_keys(self, plan: PlannedTable) -> tuple[PlannedTable, frozenset[str]]:
        """Return the table as it is."""
        return plan, frozenset()

    def captured_tables(self) -> Mapping[TableId, TableId]:
        """Return no table."""
        return {}

    def column_defaults(self) -> Mapping[TableId, Mapping[str, DefaultValue]]:
        """Return no table."""
        return {}

    def document_name(self, pipeline: str) -> str:
        """Return the name that is known."""
        return self.named or pipeline


class StatementRunner(Protocol):
    """Runs SQL statements on Spark, from the driver; thread-safe."""

    def run(self, statement: str, settings: Mapping[str, str], required: Mapping[str, str]) -> None:
        """Run one statement to its end in its own Spark session with these settings, on a server that was started with
        those ``required``.

        Raises:
            LoadError: Spark refused it; the message has Spark's words.
            SparkUnavailable: it may still run, or not.
            ConfigError: the server has another setting than one that is required; nothing was run.
        """


@dataclass(frozen=True, slots=True)
class BatchInput:
    """A batch as a target is given it. On the driver; ``reader`` travels with the units.

    Attributes:
        number: of the batch. position: at its end. held: the batch that the target holds while this one is written: the
            one before, or, where several are written as one (Feature.BUNDLES), the one before the first of them.
        tables: merged rows (Input.MERGED). changes: how many there are to read (Input.CHANGES).
        reconcile: ranges of which the source's rows are all there is.
        schema_changes: in log order.
        apart: it is not written with others, so that the tables can be read as of the batch before it.
        replay: "" for a batch in its turn; else the name of a dead letter, whose rows are written again: the checkpoint
            stays.
        spark: for kinds with Execution.FRAME; None: there is no Spark, and all is written by units.
    """

    number: int
    position: Offset
    held: int
    reader: RowReader
    tables: tuple[TableInput, ...] = ()
    schema_changes: tuple[SchemaChange, ...] = ()
    reconcile: tuple[StoredRange, ...] = ()
    facts: SourceFacts = field(default_factory=NoFacts)
    replay: str = ""
    changes: int = 0
    spark: StatementRunner | None = None
    apart: bool = False
