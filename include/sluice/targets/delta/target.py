"""Delta Lake tables as a target, written by delta-rs: rows are merged, or every change is appended, and each commit notes its batch."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar

from pydantic import BaseModel

from sluice.config.connections import Endpoint
from sluice.config.pipeline import TargetConfig
from sluice.errors import LoadError, MappingError
from sluice.model.tables import TableId
from sluice.targets.base import (
    BatchInput,
    Capabilities,
    Checkpoint,
    Consistency,
    Feature,
    Fence,
    Guarantee,
    Input,
    Ordering,
    RejectedRows,
    RowReader,
    StoredRange,
    TableInput,
    WriteResult,
)
from sluice.targets.delta.appending import append
from sluice.targets.delta.checkpoints import DeltaCheckpoints
from sluice.targets.delta.client import place_of
from sluice.targets.delta.committing import holds
from sluice.targets.delta.comparing import DeltaComparer
from sluice.targets.delta.follow import FOLLOWED_CHANGES, FOLLOWED_MERGED, Follower
from sluice.targets.delta.maintaining import DeltaMaintainer
from sluice.targets.delta.merging import Merging
from sluice.targets.delta.options import DeltaOptions
from sluice.targets.delta.removing import DeltaReconciler, Removing
from sluice.targets.delta.schema import DeltaSchema
from sluice.targets.delta.site import Site
from sluice.targets.options import options_of

_COPIES = 3
"""Rows of a unit are in memory as they are read, as the table has them, and in the client's merge."""


def _capabilities(changes: Input) -> Capabilities:
    every = changes is Input.CHANGES
    return Capabilities(
        inputs=frozenset(Input),
        guarantee=Guarantee.IDEMPOTENT,
        ordering=frozenset({Ordering.TABLE if every else Ordering.NONE}),
        consistency=frozenset({Consistency.ROW, Consistency.TABLE}),
        schema_changes=FOLLOWED_CHANGES if every else FOLLOWED_MERGED,
        features=frozenset({Feature.DELETE, Feature.KEYLESS} if every else {Feature.DELETE, Feature.ROW_REJECTION}),
        max_writers=1 if every else None,
    )


class DeltaTarget:
    """See :class:`sluice.targets.base.Target`."""

    Options: ClassVar[type[BaseModel]] = DeltaOptions
    CAPABILITIES: ClassVar[Capabilities] = _capabilities(Input.MERGED)

    def __init__(self, config: TargetConfig, endpoint: Endpoint, pipeline: str) -> None:
        self.config = config
        self.options = options_of(config, DeltaOptions)
        place = place_of(endpoint, self.options.location, config.name)
        self.site = Site(place, self.options, pipeline, config.name, every=self.input is Input.CHANGES)

    @property
    def input(self) -> Input:
        """What it is given."""
        return Input(self.config.changes)

    @property
    def capabilities(self) -> Capabilities:
        """Of merged rows, or of every change."""
        return _capabilities(self.input)

    @property
    def checkpoints(self) -> DeltaCheckpoints:
        """A small table in the same location."""
        return self.site.checkpoints

    @contextmanager
    def open(self, epoch: int) -> Iterator[DeltaSession]:
        """See :meth:`sluice.targets.base.Target.open`."""
        yield DeltaSession(self.site, epoch)

    def schema(self) -> DeltaSchema:
        """The tables."""
        return DeltaSchema(self.site)

    def reconciler(self) -> DeltaReconciler | None:
        """Of merged rows, for listed keys."""
        return DeltaReconciler(self.site) if self.input is Input.MERGED else None

    def comparer(self) -> DeltaComparer | None:
        """By key; every change is not compared."""
        return DeltaComparer(self.site) if self.input is Input.MERGED else None

    def maintainer(self) -> DeltaMaintainer:
        """Compaction and vacuum."""
        return DeltaMaintainer(self.site)

    def interrupt(self) -> None:
        """Nothing waits at the target: a commit is taken or refused."""


@dataclass(frozen=True)
class DeltaSession:
    """See :class:`sluice.targets.base.TargetSession`."""

    site: Site
    epoch: int

    def begin(self, batch: BatchInput) -> DeltaWriter:
        """No I/O."""
        return DeltaWriter(self.site, batch, Fence(self.epoch, batch.held, batch.number))


@dataclass(frozen=True)
class DeltaWriter:
    """See :class:`sluice.targets.base.BatchWriter`."""

    site: Site
    batch: BatchInput
    fence: Fence

    def prepare(self) -> None:
        """Schema changes that precede the rows."""
        self._follow(before_rows=True)

    def _follow(self, *, before_rows: bool) -> None:
        changes = [one for one in self.batch.schema_changes if one.before_rows is before_rows]
        if changes and self._delivered():
            return
        for change in changes:
            self.site.checkpoints.guard(self.fence)
            Follower(self.site, self.fence, change).run()

    def _delivered(self) -> bool:
        """A repeat of the commit: the batch is there."""
        found = self.site.checkpoints.read()
        return found is not None and (found.epoch, found.batch) == (self.fence.epoch, self.batch.number)

    def plan(self, parallelism: int) -> list[list[DeltaUnit]]:
        """One unit a table, lighter tables first; every change: one unit. Raises MappingError."""
        batch = self.batch
        unit = DeltaUnit(self.site, self.fence, batch.reader, replay=batch.replay)
        if batch.changes:
            return [[replace(unit, changes=batch.changes)]]
        schema = DeltaSchema(self.site)
        for table in batch.tables:
            if self.site.every:
                raise LoadError(
                    f"rows of {table.plan.source} are not changes, and a table of changes takes nothing else",
                    where=str(table.target),
                    hint=f"`sluice dump start {self.site.pipeline} --table {table.plan.source}` reads them anew from the source",
                )
        for scope, table in scoped(batch.tables):
            try:
                schema.require(table.plan)
            except MappingError:  # unless the rows are there, and a change that follows them is, too
                if batch.replay or not holds(self.site, self.fence, table.target, scope):
                    raise
        units: dict[TableId, DeltaUnit] = {}
        weights: dict[TableId, int] = {}
        for table in batch.tables:
            known = units.get(table.target, unit)
            units[table.target] = replace(known, tables=(*known.tables, table))
            weights[table.target] = min(weights.get(table.target, table.weight), table.weight)
        removing = [replace(unit, removes=tuple(batch.reconcile))] if batch.reconcile else []
        phases = [
            [one for target, one in units.items() if weights[target] == weight]
            for weight in sorted(set(weights.values()))
        ]
        return [removing, *phases] if removing else phases

    def commit(self, results: Sequence[WriteResult]) -> None:
        """Later schema changes, then the checkpoint: all tables hold the batch by now. Raises Fenced."""
        self._follow(before_rows=False)
        if not self.batch.replay:
            self.site.checkpoints.advance(Checkpoint(self.fence.epoch, self.batch.number, self.batch.position))

    def abort(self) -> None:
        """A commit was taken or not: there is nothing to undo. Files of commits that were not taken are for vacuum."""


@dataclass(frozen=True)
class DeltaUnit:
    """See :class:`sluice.targets.base.WriteUnit`: all rows of a batch for one table, all of its changes, or keys that are removed before."""

    site: Site
    fence: Fence
    reader: RowReader
    tables: tuple[TableInput, ...] = ()
    changes: int = 0
    replay: str = ""
    removes: tuple[StoredRange, ...] = ()

    @property
    def cost(self) -> int:
        """In rows."""
        return max(sum(table.rows for table in self.tables), self.changes)

    @property
    def memory_bytes(self) -> int:
        """Of merged rows: of all of one table."""
        files = [file for table in self.tables for file in table.files]
        return self.reader.memory_of(sum(file.arrow_bytes for file in files) * _COPIES, len(files)) if files else 0

    def write(self, rejected: RejectedRows | None = None) -> WriteResult:
        """One commit for each source table that goes to this table. Raises what the port says."""
        started, total = time.monotonic(), WriteResult()
        if self.changes:
            total = append(self.site, self.fence, self.reader)
        for number, stored in enumerate(self.removes):
            scope = f"{stored.plan.source}#removed{number}"
            total += Removing(self.site, self.fence, self.reader, stored, scope).run()
        for scope, table in scoped(self.tables):
            total += Merging(self.site, self.fence, self.reader, table, scope, self.replay).run(rejected)
        return replace(total, seconds=time.monotonic() - started)


def scoped(tables: Sequence[TableInput]) -> Iterator[tuple[str, TableInput]]:
    """Each with what its commit is noted under: its source table, numbered where that goes to a target table more than once."""
    met: dict[tuple[TableId, str], int] = {}
    for table in tables:
        source = str(table.plan.source)
        met[table.target, source] = number = met.get((table.target, source), 0) + 1
        yield source if number == 1 else f"{source}#{number}", table
