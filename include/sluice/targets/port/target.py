"""The core of the port: a target, its session, the writer of a batch and its units.

The way of a batch::

    target.checkpoints.take_over(epoch)        on the driver, under the lease; every older writer is refused from here on
    with target.open(epoch) as session:
        writer = session.begin(batch)          no I/O
        writer.prepare()                       schema changes that precede the rows
        for phase in writer.plan(parallelism): units of a phase side by side, phases in order
            unit.write(rejected)               on workers; checks the fence first
        writer.commit(results)                 makes visible what is not yet, follows later schema changes, advances the checkpoint
    or writer.abort()

A repeat of a batch starts at ``prepare`` again, whatever the first attempt got to. A process that was paused and comes
back finds a higher epoch and raises Fenced.

A kind is a class with the attributes of :class:`Target`. It may offer :class:`TargetSchema` and :class:`Reconciler`. It
is registered by one line in ``targets/registry.py``, by the entry point ``sluice.targets``, or as a file in
``include/targets/``; and it passes the contract suite.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, cast, runtime_checkable

import pyarrow as pa
from pydantic import BaseModel

from sluice.config.pipeline import TargetConfig
from sluice.model.findings import Finding
from sluice.model.load_marks import LoadMark
from sluice.model.planned import PlannedTable
from sluice.model.tables import TableId
from sluice.targets.port.batch import BatchInput
from sluice.targets.port.capabilities import Capabilities
from sluice.targets.port.checkpoint import CheckpointStore
from sluice.targets.port.reconcile import ListReconciler, OtherWriter, Reconciler
from sluice.targets.port.schema import TargetSchema


@dataclass(frozen=True, slots=True)
class Rejection:
    """A row (a table of one) that the target did not take, why, and its number or word for the reason."""

    row: pa.Table
    reason: str
    where: str


class RejectedRows(Protocol):
    """Stores rejected rows. Picklable.

    Called for each part of a unit before what lacks the rows is committed, also if none is rejected.
    """

    def __call__(self, part: str, table: TableId, rejected: Sequence[Rejection]) -> None:
        """Store the rejected rows. ``part``: a name of the part that is the same in every attempt to write it."""


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The counts of what was written. ``message``: what ``commit`` needs from the unit (files, offsets); picklable."""

    upserted: int = 0
    deleted: int = 0
    appended: int = 0
    rejected: int = 0
    statements: int = 0
    retries: int = 0
    seconds: float = 0.0
    message: Any = None

    def __add__(self, other: WriteResult) -> WriteResult:
        return WriteResult(
            self.upserted + other.upserted,
            self.deleted + other.deleted,
            self.appended + other.appended,
            self.rejected + other.rejected,
            self.statements + other.statements,
            self.retries + other.retries,
            self.seconds + other.seconds,
        )


class WriteUnit(Protocol):
    """Work for one worker: a small picklable value. It connects by itself."""

    @property
    def cost(self) -> int:
        """The cost of the unit, in rows."""

    @property
    def memory_bytes(self) -> int:
        """The memory that the unit takes of a process."""

    def write(self, rejected: RejectedRows | None = None) -> WriteResult:
        """Check the fence, then write.

        A repeat, also one at the same time, ends in the same state (or is seen, with the same idempotency key, if the
        guarantee is at least once). ``rejected`` None: the first row that is refused stops the batch.

        Raises:
            Fenced, TargetUnavailable, LoadError, SegmentError.
        """


class BatchWriter(Protocol):
    """One batch. Calls come in this order: prepare, plan, write on workers, commit; or abort."""

    def prepare(self) -> None:
        """Follow schema changes that precede the rows, once over all repeats; resume a half-done batch.

        Raises LoadError, Fenced.
        """

    def plan(self, parallelism: int) -> Sequence[Sequence[WriteUnit]]:
        """Return phases of units. Units of a phase may run in parallel; phases run in order.

        Nothing is written if a table does not fit.

        Raises:
            MappingError: names table, column and remedy.
        """

    def commit(self, results: Sequence[WriteResult]) -> None:
        """Make visible what is not yet, follow later schema changes, advance the checkpoint. A repeat is harmless.

        Raises Fenced, LoadError.
        """

    def abort(self) -> None:
        """Remove what would be in the way of the next attempt. Must not undo what a newer process wrote."""


class TargetSession(Protocol):
    """A target taken over, on the driver, under the lease of one epoch."""

    def begin(self, batch: BatchInput) -> BatchWriter:
        """Return the writer of a batch. No I/O."""


@runtime_checkable
class Located(Protocol):
    """A target, or a source, that says where its tables are. Two tables of one server have two addresses."""

    def location_of(self, table: TableId) -> str:
        """Return the URI of a table, without credentials; "" for the usual one."""


@runtime_checkable
class Target(Protocol):
    """One target of one pipeline. Made without I/O, as ``Kind(config, endpoint, pipeline)``; picklable.

    Raises TargetUnavailable (retryable), ConfigError, MappingError, LoadError, Fenced; nothing else, and no secret in
    any of them.
    """

    Options: ClassVar[type[BaseModel]]
    """``options:`` of the pipeline file; refuses unknown keys. See :func:`sluice.targets.options.options_of`."""

    config: TargetConfig

    @property
    def capabilities(self) -> Capabilities:
        """The abilities of this kind."""

    @property
    def checkpoints(self) -> CheckpointStore | None:
        """The store of the checkpoint. None: the target keeps nothing, and ZooKeeper keeps it."""

    def open(self, epoch: int) -> AbstractContextManager[TargetSession]:
        """Open a session for writing, after the checkpoint was taken over with ``epoch``."""

    def schema(self) -> TargetSchema | None:
        """Return what compares tables, None if there is nothing to compare."""

    def reconciler(self) -> Reconciler | None:
        """Return what makes ranges equal, None if that is impossible."""

    def interrupt(self) -> None:
        """End what this process is waiting for at the target, for this pipeline, because a person asked for it.

        Raises TargetUnavailable, ConfigError.
        """


class MarksLoads(Protocol):
    """A target that can mark what is written to it, so that a pipeline that reads its server knows these changes.

    It declares :attr:`Capabilities.marks_loads`.
    """

    mark: LoadMark | None
    """The origin marker; None: nothing is marked."""


@runtime_checkable
class NamesRights(Protocol):
    """Optional: a target that knows which rights its login lacks."""

    def missing_rights(self, tables: Sequence[TableId] | None = None) -> list[Finding]:
        """Return findings, each with the statement that grants the rights, about ``tables``; None: the checkpoint.

        Raises TargetUnavailable, ConfigError.
        """


@runtime_checkable
class NamesRisks(Protocol):
    """Optional: a target that knows what those who read it could get wrong."""

    def risks(self) -> list[Finding]:
        """Return warnings. No I/O."""


def marking(target: Target) -> MarksLoads | None:
    """Return the target if it can mark what is written to it, else None."""
    return cast(MarksLoads, target) if target.capabilities.marks_loads else None


def other_writers(target: Target) -> tuple[OtherWriter, ...]:
    """Return other pipelines that write to the same target, none if it makes no ranges equal."""
    reconciler = target.reconciler()
    return reconciler.others() if reconciler is not None else ()


def refuses(target: Target, table: PlannedTable, *, listed: bool) -> str:
    """Return why a target cannot make a range of keys equal, or remove listed keys; "" if it can."""
    reconciler = target.reconciler()
    if reconciler is None:
        return "its kind of target removes no ranges of keys"
    if listed and target.capabilities.removes_listed_keys:
        return cast(ListReconciler, reconciler).refuses_listed(table)
    return reconciler.refuses(table)
