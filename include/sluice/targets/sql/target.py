"""The common part of targets of every SQL dialect: sessions, transactions with retries, and a table of
acknowledgements.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import groupby
from typing import Any, ClassVar, Generic, Literal, Protocol, Self, TypeVar

import structlog
from pydantic import BaseModel, ConfigDict, Field
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from sluice.config.connections import Endpoint
from sluice.config.pipeline import TargetConfig
from sluice.errors import ConfigError, LoadError
from sluice.model.load_marks import LoadMark
from sluice.model.offset import Offset
from sluice.model.planned import PlannedTable
from sluice.model.tables import TableId
from sluice.targets.options import options_of
from sluice.targets.port import (
    BatchInput,
    Capabilities,
    Fence,
    OtherWriter,
    RejectedRows,
    SchemaChange,
    TableFinding,
    WriteResult,
)
from sluice.targets.sql.ack_rows import AckRows
from sluice.targets.sql.checkpoints import AckCheckpoints
from sluice.targets.sql.loader import Again, Contention, DdlProgress
from sluice.targets.sql.row_writer import SqlRowWriter
from sluice.targets.sql.session_pool import SessionPool
from sluice.targets.sql.tables import TableChanges, TargetTable
from sluice.targets.sql.writer import SqlSession

_log = structlog.get_logger()
_T = TypeVar("_T")

CONTENTION_ATTEMPTS = 8


class SqlOptions(BaseModel):
    """The ``options:`` that every dialect has."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    foreign_keys: Literal["unchecked", "ordered"] = Field(
        "unchecked",
        description="unchecked: as a replica writes, the source has made the checks. ordered: parents are written "
        "before children, the target checks each row that it gets, and at the end of the batch no row refers to one "
        "that is gone.",
    )


class Session(Protocol):
    """A connection with its cursor."""

    connection: Any
    cursor: Any

    def fileno(self) -> int:
        """Return the socket's file descriptor; -1 if it is closed."""

    def close(self) -> None:
        """Close the session in an orderly way."""

    def begin(self) -> None:
        """Begin a transaction."""

    def commit(self) -> None:
        """Commit it."""

    def rollback(self) -> None:
        """Roll back. Raises nothing: if the connection is gone, the server does it."""


class LoadMarker(Protocol):
    """The origin marker of what a pipeline loads, as a kind of server takes it."""

    @property
    def mark(self) -> LoadMark:
        """The content of the marker."""

    def around(self, cursor: Any, loaded: int = 0) -> AbstractContextManager[None]:
        """Mark what is written inside the context, after which the target holds batch ``loaded``."""


_S = TypeVar("_S", bound=Session)
_O = TypeVar("_O", bound=SqlOptions)
_A = TypeVar("_A", bound=AckRows)


class SqlTarget(ABC, Generic[_S, _O, _A]):
    """One server of an SQL dialect, for one target of one pipeline.

    A session is one verb's, and then kept for the next one for a short time.

    Attributes:
        owner: pipeline and target. acks: the table of acknowledgements. kept: sessions of this process that wait for
            their next use.
    """

    Options: ClassVar[type[SqlOptions]]
    CAPABILITIES: ClassVar[Capabilities]
    kept: ClassVar[SessionPool[Any]]

    def __init__(self, config: TargetConfig, endpoint: Endpoint, pipeline: str) -> None:
        self.options: _O = options_of(config, self.Options)  # type: ignore[assignment]
        if self.options.foreign_keys == "ordered" and config.consistency == "table":
            raise ConfigError(
                f"target {config.name!r}: options.foreign_keys: ordered writes a table in several transactions, and "
                "consistency: table in one",
                where=config.where("options", "foreign_keys"),
                hint="consistency: row, schema or batch; or foreign_keys: unchecked",
            )
        self.config = config
        self.endpoint = endpoint
        self.owner = (pipeline, config.name)
        self.acks = self._acks()

    # -- of the dialect ------------------------------------------------------------------------------------------------
    @abstractmethod
    def _acks(self) -> _A:
        """Return the table of acknowledgements."""

    @abstractmethod
    def connect(self) -> Any:
        """Open a new connection."""

    @abstractmethod
    def _session(self, connection: Any) -> _S:
        """Return a session over a new connection."""

    @abstractmethod
    def _in_use(self, session: _S, doing: str) -> AbstractContextManager[None]:
        """Register the session as in use inside the context: it waits for locks as the options say, and can be
        interrupted.
        """

    @abstractmethod
    def _errors(self, doing: str, where: str | None = None) -> AbstractContextManager[None]:
        """Turn the driver's exceptions into Sluice's inside the context.

        Deadlocks and lock waits become :class:`Contention`.
        """

    @abstractmethod
    def _blocker(self, session: _S | None) -> str:
        """Return who holds the lock that the session waited for, as the end of a sentence; "" if that is unknown.

        Raises nothing.
        """

    @abstractmethod
    def _rows(self, session: _S, fence: Fence) -> SqlRowWriter:
        """Return what writes rows over the session."""

    @abstractmethod
    def interrupt(self) -> None:
        """End what this process is doing at the target for this pipeline, because a person asked for it."""

    @abstractmethod
    def made_acks(self, session: _S, error: LoadError, doing: str) -> bool:
        """See :class:`sluice.targets.sql.checkpoints.Sessions`."""

    @abstractmethod
    def check(self, tables: Sequence[PlannedTable], again: Again | None = None) -> Mapping[TableId, TargetTable]:
        """See :meth:`sluice.targets.sql.loader.SqlLoader.check`."""

    @abstractmethod
    def replaceable(self, plan: PlannedTable, *, listed: bool = False) -> tuple[TargetTable | None, str]:
        """See :meth:`sluice.targets.sql.loader.SqlLoader.replaceable`."""

    @abstractmethod
    def compare(self, tables: Sequence[PlannedTable]) -> list[TableFinding]:
        """Return missing tables and columns, losses and triggers, with the DDL that corrects them."""

    @abstractmethod
    def apply(self, statement: str) -> None:
        """Run DDL, its schema made first where a table is created. Raises LoadError that shows the statement."""

    @abstractmethod
    def apply_ddl(self, fence: Fence, change: SchemaChange) -> tuple[str, ...]:
        """See :meth:`sluice.targets.sql.loader.SqlLoader.apply_ddl`."""

    # -- the port ------------------------------------------------------------------------------------------------------
    @property
    def name(self) -> str:
        """The target's name in the pipeline file."""
        return self.config.name

    @property
    def capabilities(self) -> Capabilities:
        """The abilities of a server of the dialect."""
        return self.CAPABILITIES

    @property
    def checkpoints(self) -> AckCheckpoints:
        """The table of acknowledgements."""
        return AckCheckpoints(self)

    @contextmanager
    def open(self, epoch: int) -> Iterator[SqlSession]:
        """See :meth:`sluice.targets.port.Target.open`; each call of the writer takes a kept connection."""
        yield SqlSession(self, epoch)

    def schema(self) -> Self:
        """Return itself: it has tables to compare."""
        return self

    def reconciler(self) -> Self:
        """Return itself: ranges can be replaced."""
        return self

    def refuses(self, table: PlannedTable) -> str:
        """See :meth:`sluice.targets.port.Reconciler.refuses`."""
        return self.replaceable(table)[1]

    def others(self) -> tuple[OtherWriter, ...]:
        """Return other pipelines that acknowledge in the same schema."""
        with self.session("reading who else writes here") as session:
            return self.acks.others(session.cursor)

    @property
    def marks(self) -> LoadMarker | None:
        """The origin marker of everything that is loaded; None: there is none."""
        return None

    def acknowledging(self, cursor: Any, batch: int) -> Callable[[], AbstractContextManager[None]]:
        """Return a marker for acknowledgements, too, if the channel tells from markers how far a site is."""
        marks = self.marks
        return partial(marks.around, cursor, batch) if marks is not None and marks.mark.numbered else nullcontext

    def beside(self, session: _S) -> Callable[[], None]:
        """Return what is written in the transaction that commits a checkpoint, besides."""
        return lambda: None

    def note_loading(self, fence: Fence) -> None:
        """See :meth:`sluice.targets.sql.loader.SqlLoader.note_loading`."""

    # -- for the shared writer -----------------------------------------------------------------------------------------
    def examine(self, batch: BatchInput) -> None:
        """See :meth:`sluice.targets.sql.loader.SqlLoader.examine`.

        Tables have the names that the pipeline gives them.
        """
        return

    def ddl_progress(self, batch: int) -> DdlProgress:
        """Return the progress of the batch."""
        with self.session("reading how far the batch has come") as session:
            state = self.acks.ddl_state(session.cursor, batch)
        return DdlProgress(bool(state.get("rows")), int(state.get("done", 0)))

    def rows_loaded(self, fence: Fence) -> None:
        """Record that the batch's rows are written. Raises Fenced."""
        doing = "noting that the rows are written"
        with self.session(doing) as session:

            def work() -> None:
                self.acks.guard(session.cursor, fence)
                state = self.acks.ddl_state(session.cursor, fence.batch)
                self.acks.note_ddl(session.cursor, fence, {"rows": True, "done": state.get("done", 0)})

            self.transaction(session, work, doing)

    def note_tables(self, fence: Fence, tables: Sequence[TableId]) -> None:
        """See :meth:`sluice.targets.sql.loader.SqlLoader.note_tables`."""
        doing = "noting which tables are written"
        with self.session(doing) as session:
            known_noted_tables = self.acks.noted_tables(session.cursor)
            if all(str(table) in known_noted_tables or f"{table.schema}.*" in known_noted_tables for table in tables):
                return

            def work() -> None:
                self.acks.guard(session.cursor, fence)
                self.acks.note_tables(session.cursor, fence, known_noted_tables | {str(table) for table in tables})

            self.transaction(session, work, doing)

    def finished_units(self, fence: Fence, plan: str) -> dict[int, WriteResult]:
        """See :meth:`sluice.targets.sql.loader.SqlLoader.finished_units`."""
        with self.session("reading which units are written") as session:
            noted = self.acks.noted_units(session.cursor)
        own_results: dict[int, WriteResult] = {}
        for name, (batch, counts) in noted.items():
            of, _, number = name.partition(":")
            if (of, batch) == (plan, fence.batch):
                own_results[int(number)] = WriteResult(**counts)
        if len(own_results) < len(noted):
            self.forget_units(fence)
            return {}
        return own_results

    def forget_units(self, fence: Fence) -> None:
        """See :meth:`sluice.targets.sql.loader.SqlLoader.forget_units`."""
        doing = "forgetting which units are written"
        with self.session(doing) as session:
            if not self.acks.noted_units(session.cursor):
                return

            def work() -> None:
                self.acks.guard(session.cursor, fence)
                self.acks.forget_units(session.cursor)

            self.transaction(session, work, doing)

    def load(
        self,
        fence: Fence,
        changes: Sequence[TableChanges],
        *,
        one_transaction: bool = False,
        acknowledge: Offset | None = None,
        rejected: RejectedRows | None = None,
        unit: str = "",
    ) -> WriteResult:
        """Write each table in a transaction of its own, or all in one. Deadlocks and lock waits are tried again."""
        with self.session("loading") as session:
            at_once = one_transaction or acknowledge is not None
            groups = [list(changes)] if at_once else [list(g) for _, g in groupby(changes, key=lambda c: c.table.table)]
            rows = self._rows(session, fence)
            total = WriteResult()
            for number, group in enumerate(groups, 1):
                ends = unit if number == len(groups) else ""
                write = partial(rows.write, group, acknowledge=acknowledge, rejected=rejected, ends=ends, before=total)
                result, retries = self.transaction(session, write, _names(group))
                total += result + WriteResult(retries=retries)
            return total

    @contextmanager
    def session(self, doing: str) -> Iterator[_S]:
        """Yield a session for one operation: one that is idle in this process, else a new one."""
        session: _S | None = self.kept.take(self.endpoint)
        connection = session.connection if session else self.connect()
        try:
            with self._errors(doing):
                session = session or self._session(connection)
                with self._in_use(session, doing):
                    yield session
        except Contention as error:
            error.message += self._blocker(session)
            connection.close()
            raise
        except BaseException:
            connection.close()
            raise
        self.kept.give(self.endpoint, session)

    def transaction(self, session: _S, work: Callable[[], _T], doing: str) -> tuple[_T, int]:
        """Run ``work`` in a transaction, again after a deadlock or a lock wait.

        Returns its result and the number of repeats.
        """
        retrying = Retrying(
            retry=retry_if_exception_type(Contention),
            stop=stop_after_attempt(CONTENTION_ATTEMPTS),
            wait=wait_random_exponential(0.02, 2),
            before_sleep=partial(self._tried_again, session, doing),
            reraise=True,
        )
        for attempt in retrying:
            with attempt, self._errors(doing):
                session.begin()
                try:
                    result = work()
                    session.commit()
                except BaseException:
                    session.rollback()
                    raise
        return result, attempt.retry_state.attempt_number - 1

    def _tried_again(self, session: _S, doing: str, state: RetryCallState) -> None:
        reason = self._blocker(session).removeprefix("; ")
        _log.info("target_retried", target=self.name, doing=doing, attempt=state.attempt_number, reason=reason)


def _names(group: Sequence[TableChanges]) -> str:
    names = [str(item.table.table) for item in group]
    return f"loading {', '.join(names[:3])}" + (f" and {len(names) - 3} more" if len(names) > 3 else "")
