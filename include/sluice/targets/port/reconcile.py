"""Optional: ranges of a table that are made equal to the source's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from sluice.model.planned import PlannedTable
from sluice.model.tables import TableId


@dataclass(frozen=True, slots=True)
class StoredRange:
    """A range of keys of one target table of which the source's rows are all there is.

    Picklable; read by :meth:`RowReader.key_range`.

    ``plan``: the key's columns; none: the whole table. ``stored``: for the reader. ``listed``: only listed keys of it
    are looked at.
    """

    plan: PlannedTable
    stored: Any = None
    listed: bool = False


@dataclass(frozen=True, slots=True)
class KeyRange:
    """A range of keys: rows in it whose key is not kept are removed, before anything of the batch is written.

    Attributes:
        names: key columns at the target, in key order; empty: every row is removed.
        lower, upper, after, upto: bounds of ``lower <= key <= upper`` and ``after < key <= upto``, each a table of one
            row: the first columns of the key, in key order. None: no bound.
        listed: the only keys looked at, columns in key order; None: all of the range.
        kept: the keys that stay, a column a name (target names).

    Values are those of the source's key, in the types in which they are stored. Where one is no value of its column, as
    a bound that a person typed may be, the column has a wider type (:mod:`sluice.model.exact_values`).
    """

    names: tuple[str, ...] = ()
    lower: pa.Table | None = None
    upper: pa.Table | None = None
    after: pa.Table | None = None
    upto: pa.Table | None = None
    listed: pa.Table | None = None
    kept: pa.Table | None = None


@dataclass(frozen=True, slots=True)
class OtherWriter:
    """Another pipeline that acknowledges at the same target.

    Attributes:
        tables: target tables that it writes, as ``schema.table`` or ``schema.*``; None: its version did not record
            them.
        idle_s: seconds since its last acknowledgement.
        forget: the statement that removes its acknowledgement, if the pipeline does not exist any more.
    """

    pipeline: str
    tables: frozenset[str] | None = None
    idle_s: float = 0.0
    forget: str = ""

    def may_write(self, table: TableId) -> bool:
        """Return True if the pipeline is known to write this table, or if nothing is known about it and it was active
        within a day.
        """
        if self.tables is None:
            return self.idle_s < IDLE_WRITER_S
        return str(table) in self.tables or f"{table.schema}.*" in self.tables


IDLE_WRITER_S = 86_400.0
"""Seconds without an acknowledgement after which a pipeline that notes no tables counts as gone."""


class Reconciler(Protocol):
    """Optional, with Feature.RECONCILE: makes a range of a table equal to the source's
    (:attr:`BatchInput.reconcile`).
    """

    def refuses(self, table: PlannedTable) -> str:
        """Return why a range of the table's keys (``table.columns``; none: the whole table) cannot be made equal, "" if
        it can.
        """

    def others(self) -> tuple[OtherWriter, ...]:
        """Return other pipelines that write to the same target; the rows in the tables that they write must stay."""


class ListReconciler(Protocol):
    """Optional, for a :class:`Reconciler` that refuses ranges: removes listed keys of them (:attr:`KeyRange.listed`).

    Its kind declares :attr:`Capabilities.removes_listed_keys`.
    """

    def refuses_listed(self, table: PlannedTable) -> str:
        """Return why listed keys of the table (``table.columns``) cannot be removed, "" if they can."""
