"""MySQL and MariaDB as a target."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import structlog
from pydantic import BaseModel, ConfigDict, Field
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from sluice.config.connections import Endpoint
from sluice.config.pipeline import TargetConfig
from sluice.errors import ConfigError, LoadError
from sluice.model.planned import PlannedTable
from sluice.model.positions import Position
from sluice.model.schema_changes import ChangeKind
from sluice.model.tables import TableId
from sluice.targets.base import (
    Capabilities,
    Consistency,
    Feature,
    Fence,
    Finding,
    Guarantee,
    Input,
    Ordering,
    RejectedRows,
    SchemaChange,
    WriteResult,
)
from sluice.targets.mysql import foreign_keys as families
from sluice.targets.mysql import lockwait, range_delete
from sluice.targets.mysql.ack_table import NO_COLUMN, NOT_THERE, AckTable
from sluice.targets.mysql.compatibility import hidden_tables, read_triggers, refuse_hidden, refuse_triggers, review
from sluice.targets.mysql.connection import (
    LOCK_WAIT_S,
    Contention,
    TargetConnection,
    connect,
    errors,
    set_lock_wait,
)
from sluice.targets.mysql.ddl_runner import DdlRunner, create_schema
from sluice.targets.mysql.row_writer import RowWriter
from sluice.targets.mysql.session import Session, kept
from sluice.targets.mysql.tables import compare_all, read_tables
from sluice.targets.options import options_of
from sluice.targets.sql.checkpoints import AckCheckpoints
from sluice.targets.sql.foreign_keys import ordered
from sluice.targets.sql.loader import DdlProgress
from sluice.targets.sql.tables import TableChanges, TargetTable
from sluice.targets.sql.writer import SqlSession

_log = structlog.get_logger()
_T = TypeVar("_T")

CONTENTION_ATTEMPTS = 8
_NOT_FOLLOWED = {
    ChangeKind.CREATE_DATABASE, ChangeKind.ALTER_DATABASE, ChangeKind.DROP_DATABASE, ChangeKind.ROWS_REPLACED, ChangeKind.UNKNOWN,
}  # fmt: skip


class MySQLOptions(BaseModel):
    """``options:`` of a target of type mysql."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    ack_schema: Annotated[str, Field(min_length=1, max_length=64)] | None = Field(
        None, description="Schema of the table _sluice_ack. Default: the connection's schema, else sluice."
    )

    foreign_keys: Literal["unchecked", "ordered"] = Field(
        "unchecked",
        description="unchecked: as a replica writes, the source has made the checks. ordered: parents are written before children, the target "
        "checks each row that it gets, and at the end of the batch no row refers to one that is gone.",
    )
    triggers: Literal["refuse", "fire"] = Field(
        "refuse",
        description="A table with triggers is refused, as what the source's triggers wrote arrives as rows: its effect would be there twice. "
        "fire: they are meant for these rows, too.",
    )
    lock_wait: Annotated[int, Field(ge=1, le=300)] = Field(
        LOCK_WAIT_S,
        description="Seconds that a statement waits for a lock that somebody else holds on rows or on a table's definition. Then the transaction is "
        "given back and tried again, up to eight times; a change of definitions is tried again with its task.",
    )


class MySQLTarget:
    """One MySQL or MariaDB server. A session is one verb's, and then kept for the next one for a short time."""

    Options: ClassVar[type[BaseModel]] = MySQLOptions
    CAPABILITIES: ClassVar[Capabilities] = Capabilities(
        inputs=frozenset({Input.MERGED}),
        guarantee=Guarantee.TRANSACTIONAL,
        ordering=frozenset({Ordering.NONE}),
        consistency=frozenset(Consistency),
        schema_changes=frozenset(ChangeKind) - _NOT_FOLLOWED,
        features=frozenset(Feature),
    )

    def __init__(self, config: TargetConfig, endpoint: Endpoint, pipeline: str) -> None:
        self.options = options_of(config, MySQLOptions)
        if self.options.foreign_keys == "ordered" and config.consistency == "table":
            raise ConfigError(
                f"target {config.name!r}: options.foreign_keys: ordered writes a table in several transactions, and consistency: table in one",
                hint="consistency: row or batch; or foreign_keys: unchecked",
            )
        self.config = config
        self.endpoint = endpoint
        self.owner = (pipeline, config.name)
        self.acks = AckTable(self.options.ack_schema or endpoint.schema or "sluice", pipeline, config.name)

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def lock_wait_s(self) -> int:
        """Seconds that a statement waits for a lock."""
        return self.options.lock_wait

    @property
    def capabilities(self) -> Capabilities:
        """What a MySQL server can do."""
        return self.CAPABILITIES

    @property
    def checkpoints(self) -> AckCheckpoints:
        """The table of acknowledgements."""
        return AckCheckpoints(self)

    @contextmanager
    def open(self, epoch: int) -> Iterator[SqlSession]:
        """See :meth:`sluice.targets.base.Target.open`; each call of the writer takes a kept connection."""
        yield SqlSession(self, epoch)

    def schema(self) -> MySQLTarget:
        """Itself: it has tables to compare."""
        return self

    def reconciler(self) -> MySQLTarget:
        """Itself: ranges can be replaced."""
        return self

    def check(self, tables: Sequence[PlannedTable]) -> Mapping[TableId, TargetTable]:
        """Compare with the target's information_schema. Raises MappingError."""
        places = [plan.target for plan in tables]
        with self.session("reading the target's tables") as session:
            infos = read_tables(session.cursor, places)
            refuse_hidden(hidden_tables(session.cursor, [place for place in places if place not in infos]))
            found = compare_all(tables, infos)
            if self.options.triggers == "refuse":
                refuse_triggers(read_triggers(session.cursor, places))
            if self.options.foreign_keys == "ordered":
                found = ordered(found, families.read_references(session.cursor, places))
            return found

    def replaceable(self, plan: PlannedTable) -> tuple[TargetTable | None, str]:
        """The table, if a range of its keys (``plan.columns``; none: the whole table) can be replaced; else None and why not."""
        with self.session("reading the target's tables") as session:
            info = read_tables(session.cursor, [plan.target]).get(plan.target)
            return range_delete.replaceable(plan, info, mariadb=session.mariadb)

    def refuses(self, table: PlannedTable) -> str:
        """See :meth:`sluice.targets.base.Reconciler.refuses`."""
        return self.replaceable(table)[1]

    def others(self) -> tuple[str, ...]:
        """Other pipelines that acknowledge in the same schema."""
        with self.session("reading who else writes here") as session:
            return self.acks.others(session.cursor)

    def compare(self, tables: Sequence[PlannedTable]) -> list[Finding]:
        """Missing tables and columns, losses, triggers; with the DDL that puts them right."""
        with self.session("reading the target's tables") as session:
            places = [plan.target for plan in tables]
            infos, triggers = read_tables(session.cursor, places), read_triggers(session.cursor, places)
            flavour = "MariaDB" if session.mariadb else "MySQL"
            hidden = hidden_tables(session.cursor, [place for place in places if place not in infos])
            found = review(tables, infos, triggers, flavour, fire=self.options.triggers == "fire", hidden=hidden)
            if self.options.foreign_keys == "ordered":
                found += families.remarks(tables, families.read_references(session.cursor, places))
            return found

    def apply(self, statement: str) -> None:
        """Run DDL, its schema made first where a table is created. Raises LoadError that shows the statement."""
        with self.session(f"running {statement[:200]}") as session:
            create_schema(session.cursor, statement)
            session.cursor.execute(statement)

    def ddl_progress(self, batch: int) -> DdlProgress:
        """How far the batch has come."""
        with self.session("reading how far the batch has come") as session:
            state = self.acks.ddl_state(session.cursor, batch)
        return DdlProgress(bool(state.get("rows")), int(state.get("done", 0)))

    def rows_loaded(self, fence: Fence) -> None:
        """The batch's rows are there. Raises Fenced."""
        with self.session("noting that the rows are written") as session:
            state = self.acks.ddl_state(session.cursor, fence.batch)
            self.note_ddl(session, fence, {"rows": True, "done": state.get("done", 0)})

    def apply_ddl(self, fence: Fence, change: SchemaChange) -> tuple[str, ...]:
        """See :meth:`sluice.targets.sql.loader.SqlLoader.apply_ddl`."""
        return DdlRunner(self, fence).apply(change)

    def note_ddl(self, session: Session, fence: Fence, state: dict[str, Any]) -> None:
        """Store how far the batch's DDL has come. Raises Fenced."""

        def work() -> None:
            self.acks.guard(session.cursor, fence)
            self.acks.note_ddl(session.cursor, fence, state)

        self.transaction(session, work, "noting how far the DDL has come")

    def load(
        self,
        fence: Fence,
        changes: Sequence[TableChanges],
        *,
        one_transaction: bool = False,
        acknowledge: Position | None = None,
        rejected: RejectedRows | None = None,
    ) -> WriteResult:
        """Write each table in a transaction of its own, or all in one. Deadlocks and lock waits are tried again."""
        with self.session("loading") as session:
            whole = one_transaction or acknowledge is not None
            groups = [list(changes)] if whole else [list(g) for _, g in groupby(changes, key=lambda c: c.table.table)]
            rows = RowWriter.over(self.name, self.endpoint, self.acks, session, fence)
            total = WriteResult()
            for group in groups:
                write = partial(rows.write, group, acknowledge=acknowledge, rejected=rejected)
                done, retries = self.transaction(session, write, _names(group))
                total += done + WriteResult(retries=retries)
            return total

    def made_acks(self, session: Session, error: LoadError, doing: str) -> bool:
        """See :class:`sluice.targets.sql.checkpoints.Sessions`."""
        if error.code not in NOT_THERE and error.code != NO_COLUMN:
            return False
        with errors(self.endpoint, doing, where=self.acks.name):
            if error.code == NO_COLUMN:
                self.acks.upgrade(session.cursor)
            else:
                self.acks.create(session.cursor)
        return True

    def connect(self) -> TargetConnection:
        """A new connection. Raises what :func:`sluice.targets.mysql.connection.connect` raises."""
        return connect(self.endpoint)

    @contextmanager
    def session(self, doing: str) -> Iterator[Session]:
        """A session for one verb: one that waits in this process, else a new one."""
        session = kept.take(self.endpoint)
        connection = session.connection if session else self.connect()
        try:
            with errors(self.endpoint, doing):
                session = session or Session(connection)
                if session.lock_wait_s != self.options.lock_wait:
                    session.cursor.execute(set_lock_wait(self.options.lock_wait))
                    session.lock_wait_s = self.options.lock_wait
                lockwait.watch.enter(session, self.endpoint, self.owner, doing)
                try:
                    yield session
                finally:
                    lockwait.watch.leave(session)
        except Contention as error:
            connection.close()
            error.message += f"; {session.blocker}" if session and session.blocker else ""
            raise
        except BaseException:
            connection.close()
            raise
        kept.give(self.endpoint, session)

    def interrupt(self) -> None:
        """End what this process is doing at the target for this pipeline: a person said so. Raises TargetUnavailable, ConfigError."""
        lockwait.watch.interrupt(self.endpoint, self.owner)

    def transaction(self, session: Session, work: Callable[[], _T], doing: str) -> tuple[_T, int]:
        """Run ``work`` in a transaction, again after a deadlock or a lock wait. Returns its result and the number of repeats."""

        def tried_again(state: RetryCallState) -> None:
            _log.info("target_contention", target=self.config.name, doing=doing, attempt=state.attempt_number)

        retrying = Retrying(
            retry=retry_if_exception_type(Contention),
            stop=stop_after_attempt(CONTENTION_ATTEMPTS),
            wait=wait_random_exponential(0.02, 2),
            before_sleep=tried_again,
            reraise=True,
        )
        for attempt in retrying:
            with attempt, errors(self.endpoint, doing, where=doing):
                session.begin()
                try:
                    result = work()
                    session.commit()
                except BaseException:
                    session.rollback()
                    raise
        return result, attempt.retry_state.attempt_number - 1


def _names(group: Sequence[TableChanges]) -> str:
    names = [str(item.table.table) for item in group]
    return f"loading {', '.join(names[:3])}" + (f" and {len(names) - 3} more" if len(names) > 3 else "")
