"""The abilities of a kind of target, as data: ``sluice targets list`` shows them, and a pipeline file that asks for
more is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sluice.model.row_effects import StepKind
from sluice.model.schema_changes import ChangeKind


class Input(StrEnum):
    """The form in which a target gets changes. The words are those of ``changes:`` in the pipeline file."""

    MERGED = "latest"
    """One row per key: its columns, ``_op`` and ``_before``."""
    CHANGES = "all"
    """Every change in log order, with its whole envelope."""


class Guarantee(StrEnum):
    """The effect that a repeated batch may have."""

    TRANSACTIONAL = "transactional"
    """Rows and checkpoint commit together."""
    IDEMPOTENT = "idempotent"
    """A repeat ends in the same state: a key or a version decides. The checkpoint follows the rows."""
    AT_LEAST_ONCE = "at_least_once"
    """A repeat may be seen; each row carries an idempotency key."""


class Ordering(StrEnum):
    """The changes that keep the order of the log."""

    NONE = "none"
    KEY = "key"
    TABLE = "table"
    GLOBAL = "global"


class Consistency(StrEnum):
    """The changes that readers of the target see together. The words are those of ``consistency:``."""

    ROW = "row"
    TABLE = "table"
    SCHEMA = "schema"
    BATCH = "batch"


class Execution(StrEnum):
    """The way rows are written."""

    UNITS = "units"
    """Rows are written by :class:`WriteUnit` in Python workers."""
    FRAME = "frame"
    """Large tables are written by Spark itself, through :class:`StatementRunner`; small ones by units."""


class Held(StrEnum):
    """The form in which values are stored. It says which of the source's conversions change them."""

    TYPED = "typed"
    """Columns have types of a server; generated columns are not sent, or the server computes them."""
    TEXTS = "texts"
    """Values are texts with as many digits as the column has; generated columns are stored like others."""
    NUMBERS = "numbers"
    """Like texts; what is too exact for the target's numbers and dates is a text."""


class Feature(StrEnum):
    """An ability beyond inserts and updates of whole rows by key."""

    DELETE = "delete"
    KEYLESS = "keyless"
    """Rows of tables without a key: of equal rows, as many stay as the source has."""
    PARTIAL_ROWS = "partial_rows"
    """Rows of which the log has only the changed columns."""
    RECONCILE = "reconcile"
    """Ranges of a table can be made equal to the source's: see :class:`Reconciler`."""
    ROW_REJECTION = "row_rejection"
    """One refused row does not stop the others (``on_error: dead_letter``)."""
    FOREIGN_KEYS = "foreign_keys"
    RECOPIES = "recopies"
    """A table whose rows cannot be converted as the source's were is emptied, and copied again
    (``on_conversion: copy``).
    """
    BUNDLES = "bundles"
    """Several batches in one commit (``commit_every``): see :mod:`sluice.targets.bundles`."""
    CUT_OVERS = "cut_overs"
    """The cut-over of an online schema change is followed as a change of the table (:attr:`SchemaChange.cut_overs`),
    whatever is done for renames.
    """


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The abilities of a kind of target.

    Data: shown by ``sluice targets list``, and used to refuse a pipeline file early.

    Attributes:
        schema_changes: the kinds of schema changes that it can follow.
        conversions: conversion steps that it applies to existing rows.
        held: the form in which it stores values.
        max_writers: units at a time; 1: a single writer, which a global order needs.
        compares: it has ``comparer()``, see :class:`~sluice.targets.port.compare.Comparer`.
        compares_in_one_process: its comparer remembers what it read, so that workers do not get one each.
        lists_keys: its comparer lists the keys that it holds, see :class:`~sluice.targets.port.compare.KeyLister`.
        counts_rows: its comparer counts rows without a key, see :class:`~sluice.targets.port.compare.CountingComparer`.
        removes_listed_keys: its reconciler removes listed keys, see
            :class:`~sluice.targets.port.reconcile.ListReconciler`.
        maintains_files: it has ``maintainer()``, see :class:`~sluice.targets.port.maintain.Maintainer`.
        keeps_versions: it has ``versions()``, see :class:`~sluice.targets.port.versions.VersionReader`.
        marks_loads: it has ``mark``, see :class:`~sluice.targets.port.target.MarksLoads`.
        copies_again: it has ``copied_again()``, see :class:`~sluice.targets.port.schema.CopiesAgain`.
        keeps_digests: it has ``digests``, see :class:`~sluice.targets.port.digests.KeepsDigests`.
        converts_rows: it has ``converted_otherwise()``, see :class:`~sluice.targets.port.schema.ConvertsRows`.
        leaves_out_indexes: it has ``leave_out_indexes()``, see :class:`~sluice.targets.port.indexes.LeavesOutIndexes`.
    """

    inputs: frozenset[Input] = frozenset({Input.MERGED})
    guarantee: Guarantee = Guarantee.TRANSACTIONAL
    ordering: frozenset[Ordering] = frozenset({Ordering.NONE})
    consistency: frozenset[Consistency] = frozenset({Consistency.ROW})
    schema_changes: frozenset[ChangeKind] = frozenset()
    conversions: frozenset[StepKind] = frozenset()
    held: Held = Held.TYPED
    features: frozenset[Feature] = frozenset({Feature.DELETE})
    execution: Execution = Execution.UNITS
    max_writers: int | None = None
    compares: bool = False
    compares_in_one_process: bool = False
    lists_keys: bool = False
    counts_rows: bool = False
    removes_listed_keys: bool = False
    maintains_files: bool = False
    keeps_versions: bool = False
    marks_loads: bool = False
    copies_again: bool = False
    keeps_digests: bool = False
    converts_rows: bool = False
    leaves_out_indexes: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the capabilities as JSON values, sorted."""
        return {
            "inputs": sorted(self.inputs),
            "guarantee": str(self.guarantee),
            "ordering": sorted(self.ordering),
            "consistency": sorted(self.consistency),
            "schema_changes": sorted(self.schema_changes),
            "conversions": sorted(self.conversions),
            "held": str(self.held),
            "features": sorted(self.features),
            "execution": str(self.execution),
            "max_writers": self.max_writers,
            "compares": self.compares,
            "lists_keys": self.lists_keys,
            "counts_rows": self.counts_rows,
            "removes_listed_keys": self.removes_listed_keys,
            "maintains_files": self.maintains_files,
            "keeps_versions": self.keeps_versions,
            "marks_loads": self.marks_loads,
            "copies_again": self.copies_again,
            "keeps_digests": self.keeps_digests,
            "converts_rows": self.converts_rows,
            "leaves_out_indexes": self.leaves_out_indexes,
        }
