"""PostgreSQL as a target."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from typing import Annotated, ClassVar, Literal, TypeVar

import structlog
from pydantic import BaseModel, ConfigDict, Field
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from sluice.config.connections import Endpoint
from sluice.config.pipeline import TargetConfig
from sluice.errors import ConfigError, LoadError
from sluice.model.planned import PlannedTable
from sluice.model.positions import Position
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
from sluice.targets.options import options_of
from sluice.targets.postgresql import range_delete, waiting
from sluice.targets.postgresql.ack_table import AckTable
from sluice.targets.postgresql.catalog import Wanted, compare_all, read_references, read_tables, review
from sluice.targets.postgresql.connection import LOCK_WAIT_S, NOT_THERE, Connection, Contention, connect, errors
from sluice.targets.postgresql.ddl import FOLLOWED, Follower
from sluice.targets.postgresql.names import quoted_table
from sluice.targets.postgresql.row_writer import RowWriter
from sluice.targets.postgresql.session import Session, kept
from sluice.targets.sql.checkpoints import TAKING_OVER, AckCheckpoints
from sluice.targets.sql.foreign_keys import ordered
from sluice.targets.sql.loader import DdlProgress
from sluice.targets.sql.tables import TableChanges, TargetTable
from sluice.targets.sql.writer import SqlSession

_log = structlog.get_logger()
_T = TypeVar("_T")

CONTENTION_ATTEMPTS = 8


class PostgreSQLOptions(BaseModel):
    """``options:`` of a target of type postgresql."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    ack_schema: Annotated[str, Field(min_length=1, max_length=63)] = Field(
        "sluice", description="Schema of the table _sluice_ack; made if it is missing."
    )
    foreign_keys: Literal["unchecked", "ordered"] = Field(
        "unchecked",
        description="unchecked: as a replica writes, the source has made the checks. ordered: parents are written before children, the target "
        "checks each row that it gets, and at the end of the batch no row refers to one that is gone.",
    )
    triggers: Literal["refuse", "fire"] = Field(
        "refuse",
        description="A trigger that is ENABLE ALWAYS or REPLICA fires for rows that Sluice writes, and its table is refused; fire: it is meant for "
        "them. Other triggers do not fire.",
    )
    zero_dates: Literal["refuse", "null"] = Field(
        "refuse",
        description="What becomes of dates that no calendar has (0000-00-00, 2024-02-31): the row is refused, or the value is NULL.",
    )
    json_type: Literal["jsonb", "json"] = Field(
        "jsonb",
        description="Type of JSON columns in tables that are proposed or made here. json keeps the text as the source prints it.",
    )
    lock_wait: Annotated[int, Field(ge=1, le=300)] = Field(
        LOCK_WAIT_S,
        description="Seconds that a statement waits for a lock that somebody else holds. Then the transaction is given back and tried again, up to "
        "eight times.",
    )


class PostgreSQLTarget:
    """One PostgreSQL database. A session is one verb's, and then kept for the next one for a short time."""

    Options: ClassVar[type[BaseModel]] = PostgreSQLOptions
    CAPABILITIES: ClassVar[Capabilities] = Capabilities(
        inputs=frozenset({Input.MERGED}),
        guarantee=Guarantee.TRANSACTIONAL,
        ordering=frozenset({Ordering.NONE}),
        consistency=frozenset(Consistency),
        schema_changes=FOLLOWED,
        features=frozenset(Feature),
    )

    def __init__(self, config: TargetConfig, endpoint: Endpoint, pipeline: str) -> None:
        self.options = options_of(config, PostgreSQLOptions)
        if self.options.foreign_keys == "ordered" and config.consistency == "table":
            raise ConfigError(
                f"target {config.name!r}: options.foreign_keys: ordered writes a table in several transactions, and consistency: table in one",
                hint="consistency: row or batch; or foreign_keys: unchecked",
            )
        self.config = config
        self.endpoint = endpoint
        self.owner = (pipeline, config.name)
        self.acks = AckTable(self.options.ack_schema, pipeline, config.name)

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def capabilities(self) -> Capabilities:
        """What a PostgreSQL server can do."""
        return self.CAPABILITIES

    @property
    def checkpoints(self) -> AckCheckpoints:
        """The table of acknowledgements."""
        return AckCheckpoints(self)

    @contextmanager
    def open(self, epoch: int) -> Iterator[SqlSession]:
        """See :meth:`sluice.targets.base.Target.open`; each call of the writer takes a kept connection."""
        yield SqlSession(self, epoch)

    def schema(self) -> PostgreSQLTarget:
        """Itself: it has tables to compare."""
        return self

    def reconciler(self) -> PostgreSQLTarget:
        """Itself: ranges can be replaced."""
        return self

    def check(self, tables: Sequence[PlannedTable]) -> Mapping[TableId, TargetTable]:
        """Compare with the target's catalogs. Raises MappingError."""
        places = [plan.target for plan in tables]
        with self.session("reading the target's tables") as session:
            found = compare_all(tables, read_tables(session.cursor, places), self._wanted(session))
            if self.options.foreign_keys == "ordered":
                found = ordered(found, read_references(session.cursor, places))
            return found

    def replaceable(self, plan: PlannedTable) -> tuple[TargetTable | None, str]:
        """The table, if a range of its keys (``plan.columns``; none: the whole table) can be replaced; else None and why not."""
        with self.session("reading the target's tables") as session:
            return range_delete.replaceable(plan, read_tables(session.cursor, [plan.target]).get(plan.target))

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
            infos = read_tables(session.cursor, [plan.target for plan in tables])
            return review(tables, infos, self._wanted(session))

    def apply(self, statement: str) -> None:
        """Run DDL, its schema made first where a table is created. Raises LoadError that shows the statement."""
        with self.session(f"running {statement[:200]}") as session:
            session.begin()
            try:
                if statement.startswith("CREATE TABLE "):
                    schema = statement.removeprefix("CREATE TABLE ").partition('".')[0] + '"'
                    session.cursor.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
                session.cursor.execute(statement)
                session.commit()
            except BaseException:
                session.rollback()
                raise

    def ddl_progress(self, batch: int) -> DdlProgress:
        """How far the batch has come."""
        with self.session("reading how far the batch has come") as session:
            state = self.acks.ddl_state(session.cursor, batch)
        return DdlProgress(bool(state.get("rows")), int(state.get("done", 0)))

    def rows_loaded(self, fence: Fence) -> None:
        """The batch's rows are there. Raises Fenced."""
        doing = "noting that the rows are written"
        with self.session(doing) as session:

            def work() -> None:
                self.acks.guard(session.cursor, fence)
                state = self.acks.ddl_state(session.cursor, fence.batch)
                self.acks.note_ddl(session.cursor, fence, {"rows": True, "done": state.get("done", 0)})

            self.transaction(session, work, doing)

    def apply_ddl(self, fence: Fence, change: SchemaChange) -> tuple[str, ...]:
        """See :meth:`sluice.targets.sql.loader.SqlLoader.apply_ddl`. The statements and the note that they ran are one transaction."""
        doing = f"following {change.where}: {change.statement.text[:200]}"
        with self.session(doing) as session:

            def work() -> tuple[str, ...]:
                self.acks.guard(session.cursor, fence)
                state = self.acks.ddl_state(session.cursor, fence.batch)
                if int(state.get("done", 0)) > change.number:
                    return ()
                return self._follow(session, fence, change, rows=bool(state.get("rows")))

            return self.transaction(session, work, doing)[0]

    def _follow(self, session: Session, fence: Fence, change: SchemaChange, *, rows: bool) -> tuple[str, ...]:
        tables = sorted({change.target(table) for one in change.tables for table in one.tables if table.table})

        def has_rows(table: TableId) -> bool:
            session.cursor.execute(f"SELECT EXISTS (SELECT 1 FROM {quoted_table(table)})")  # noqa: S608 - quoted
            row = session.cursor.fetchone()
            return bool(row and row[0])

        infos = read_tables(session.cursor, tables)
        statements = Follower(change, infos, has_rows, self.options.json_type).statements()
        for statement in statements:
            _log.info("target_ddl", consumer=self.name, statement=statement[:500], source=change.where)
            try:
                with errors(self.endpoint, doing := "following the source's DDL", where=change.where):
                    session.cursor.execute(statement)
            except LoadError as error:
                error.message = (
                    f"{error.message} ({doing}: {statement[:500]}; of the source: {change.statement.text[:300]})"
                )
                error.hint = error.hint or (
                    "change the target so that it can run, or run it by hand in another form and set its kind to stop: the load goes on once the "
                    "target has the change"
                )
                raise
        self.acks.note_ddl(session.cursor, fence, {"rows": rows, "done": change.number + 1})
        return tuple(statements)

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
            rows = RowWriter.over(self.name, self.endpoint, self.acks, session, fence, self.options.zero_dates)
            total = WriteResult()
            for group in groups:
                write = partial(rows.write, group, acknowledge=acknowledge, rejected=rejected)
                done, retries = self.transaction(session, write, _names(group))
                total += done + WriteResult(retries=retries)
            return total

    def connect(self) -> Connection:
        """A new connection. Raises what :func:`sluice.targets.postgresql.connection.connect` raises."""
        return connect(self.endpoint, self._application)

    @contextmanager
    def session(self, doing: str) -> Iterator[Session]:
        """A session for one verb: one that waits in this process, else a new one."""
        session = kept.take(self.endpoint)
        connection = session.connection if session else self.connect()
        try:
            with errors(self.endpoint, doing):
                session = session or Session(connection)
                session.wait_for_locks(self.options.lock_wait)
                with waiting.in_use(session, self.owner):
                    yield session
        except Contention as error:
            error.message += waiting.blocker(session)
            connection.close()
            raise
        except BaseException:
            connection.close()
            raise
        kept.give(self.endpoint, session)

    def made_acks(self, session: Session, error: LoadError, doing: str) -> bool:
        """See :class:`sluice.targets.sql.checkpoints.Sessions`."""
        if error.code not in NOT_THERE:
            return False
        with errors(self.endpoint, doing, where=self.acks.name):
            self.acks.create(session.cursor)
        return True

    def interrupt(self) -> None:
        """End what this process is doing at the target for this pipeline: a person said so."""
        waiting.interrupt(self.owner)

    def transaction(self, session: Session, work: Callable[[], _T], doing: str) -> tuple[_T, int]:
        """Run ``work`` in a transaction, again after a deadlock or a lock wait. Returns its result and the number of repeats."""

        def tried_again(state: RetryCallState) -> None:
            said = waiting.blocker(session)
            if doing == TAKING_OVER:
                waiting.end_older(session, self._application)
            _log.info(
                "target_contention", target=self.config.name, doing=doing, attempt=state.attempt_number, because=said
            )

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

    # -- inside ----------------------------------------------------------------------------------------------------
    @property
    def _application(self) -> str:
        return f"sluice {self.owner[0]}.{self.owner[1]}"

    def _wanted(self, session: Session) -> Wanted:
        return Wanted(self.options.json_type, self.options.triggers == "fire", session.replica, session.user)


def _names(group: Sequence[TableChanges]) -> str:
    names = [str(item.table.table) for item in group]
    return f"loading {', '.join(names[:3])}" + (f" and {len(names) - 3} more" if len(names) > 3 else "")
