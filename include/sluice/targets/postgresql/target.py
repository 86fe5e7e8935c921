"""PostgreSQL as a target."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import psycopg
import structlog
from pydantic import Field
from tenacity import RetryCallState

from sluice.config.connections import Endpoint
from sluice.config.pipeline import DdlKind, DdlPolicy, TargetConfig
from sluice.errors import ConfigError, LoadError
from sluice.model.findings import Finding
from sluice.model.load_marks import LoadMark
from sluice.model.planned import PlannedTable
from sluice.model.rights import Scope, by_schema, rights_on
from sluice.model.tables import TableId
from sluice.postgresql.connection import Connection
from sluice.postgresql.load_messages import LoadMessages
from sluice.postgresql.names import quoted_table
from sluice.postgresql.rights import TARGET, Place, missing_rights
from sluice.targets.options import TableName
from sluice.targets.port import (
    Capabilities,
    Consistency,
    Feature,
    Fence,
    Guarantee,
    Input,
    Ordering,
    SchemaChange,
    TableFinding,
)
from sluice.targets.postgresql import range_delete
from sluice.targets.postgresql.ack_table import AckTable
from sluice.targets.postgresql.catalog import Wanted, compare_all, read_references, read_tables, review
from sluice.targets.postgresql.collations import Collations
from sluice.targets.postgresql.compare import PostgreSQLComparer
from sluice.targets.postgresql.connection import LOCK_WAIT_S, NOT_THERE, connect, errors
from sluice.targets.postgresql.conversions import CONVERSIONS
from sluice.targets.postgresql.ddl import FOLLOWED, Follower
from sluice.targets.postgresql.digested_table import PostgreSQLDigestedTable
from sluice.targets.postgresql.row_writer import RowWriter
from sluice.targets.postgresql.session import Session, kept
from sluice.targets.sql import sessions_in_use
from sluice.targets.sql.ack_rows import TABLE
from sluice.targets.sql.checkpoints import TAKING_OVER
from sluice.targets.sql.digest_rows import KeepsDigestRows
from sluice.targets.sql.folding_target import Comparison, FoldingTarget
from sluice.targets.sql.foreign_keys import ordered
from sluice.targets.sql.names import Naming
from sluice.targets.sql.session_pool import SessionPool
from sluice.targets.sql.tables import TargetTable
from sluice.targets.sql.target import SqlOptions

_OLDEST = """SELECT pid, COALESCE(usename::text, '?'), COALESCE(application_name, ''), COALESCE(state, 'at work'), left(COALESCE(query, ''), 120),
  COALESCE(extract(epoch FROM now() - xact_start), 0)::int FROM pg_stat_activity
WHERE xact_start IS NOT NULL AND pid <> pg_backend_pid() AND datname = current_database() ORDER BY xact_start LIMIT 1"""  # noqa: E501
_OLDER = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE application_name = left(%s, 63) AND usename = current_user AND datname = current_database() AND xact_start < now() - make_interval(secs => %s)
  AND pid <> pg_backend_pid()"""  # noqa: E501


def blocker(session: Session | None) -> str:
    """Return who probably holds the lock that the session waited for, as the end of a sentence; "" if none is visible.

    Never raises.
    """
    row = None
    if session is not None:
        with suppress(psycopg.Error):
            row = session.cursor.execute(_OLDEST).fetchone()
    if row is None:
        return ""
    pid, user, application, state, query, seconds = row
    who = f"{user}, {application}" if application else user
    return (
        f"; the oldest open transaction is that of connection {pid} ({who}), {state}, {seconds} s, last statement "
        f"{query!r} (SELECT pg_terminate_backend({pid}) ends it)"
    )


def end_older(session: Session, application: str) -> int:
    """End open transactions of other sessions with this application name.

    The server does not time out a loader that stands still inside a COPY.
    """
    with suppress(psycopg.Error):
        return len(session.cursor.execute(_OLDER, (application, session.lock_wait_s)).fetchall())
    return 0


_log = structlog.get_logger()


class PostgreSQLOptions(SqlOptions):
    """The ``options:`` of a target of type postgresql."""

    ack_schema: Annotated[str, Field(min_length=1, max_length=63)] = Field(
        "sluice", description="Schema of the table _sluice_ack; made if it is missing."
    )
    triggers: Literal["refuse", "fire"] = Field(
        "refuse",
        description="A trigger that is ENABLE ALWAYS or REPLICA fires for rows that Sluice writes, and its table is "
        "refused; fire: it is meant for them. Other triggers do not fire.",
    )
    zero_dates: Literal["refuse", "null"] = Field(
        "refuse",
        description="What becomes of dates that no calendar has (0000-00-00, 2024-02-31): the row is refused, or the "
        "value is NULL.",
    )
    json_type: Literal["jsonb", "json"] = Field(
        "jsonb",
        description="Type of JSON columns in tables that are proposed or made here. json keeps the text as the source "
        "prints it.",
    )
    indexes: bool = Field(
        False,
        description="Tables that are proposed or made here get the source's secondary indexes, and changes of these "
        "are followed.",
    )
    identifiers: Literal["quoted", "folded"] = Field(
        "quoted",
        description="Names of schemas, tables and columns: as the source (or the mapping) spells them, so that "
        "statements have to quote them; or folded to lower case, as PostgreSQL reads names without quotes. Not with "
        "foreign_keys: ordered.",
    )
    icu_collations: frozenset[Annotated[TableName, Field(pattern=r"^[^.]+\.[^.]+$")]] = Field(
        frozenset(),
        description="Target tables (schema.table, or schema.*) whose texts are compared as at the source: tables that "
        "are proposed or made "
        "here get an ICU collation for each text column that is not in the key, made in ack_schema under the source's "
        "name of it.",
    )
    lock_wait: Annotated[int, Field(ge=1, le=300)] = Field(
        LOCK_WAIT_S,
        description="Seconds that a statement waits for a lock that somebody else holds. Then the transaction is "
        "given back and tried again, up to eight times.",
    )


class PostgreSQLTarget(KeepsDigestRows, FoldingTarget[Session, PostgreSQLOptions, AckTable]):
    """One PostgreSQL database. See :class:`sluice.targets.sql.target.SqlTarget`."""

    Options: ClassVar[type[SqlOptions]] = PostgreSQLOptions
    kept: ClassVar[SessionPool[Any]] = kept
    CAPABILITIES: ClassVar[Capabilities] = Capabilities(
        inputs=frozenset({Input.MERGED}),
        guarantee=Guarantee.TRANSACTIONAL,
        ordering=frozenset({Ordering.NONE}),
        consistency=frozenset(Consistency),
        schema_changes=FOLLOWED,
        features=frozenset(Feature) - {Feature.BUNDLES},
        conversions=CONVERSIONS,
        compares=True,
        lists_keys=True,
        counts_rows=True,
        removes_listed_keys=True,
        marks_loads=True,
        keeps_digests=True,
    )

    def __init__(self, config: TargetConfig, endpoint: Endpoint, pipeline: str) -> None:
        super().__init__(config, endpoint, pipeline)
        self.mark: LoadMark | None = None
        if self.options.foreign_keys == "ordered" and self.naming.folds:
            raise ConfigError(
                f"target {config.name!r}: options.foreign_keys: ordered is not offered with identifiers: folded",
                where=config.where("options", "foreign_keys"),
                hint="identifiers: quoted, with lower-case names in the mapping; or foreign_keys: unchecked",
            )

    @property
    def naming(self) -> Naming:
        """The names of tables and columns at the target."""
        return Naming(self.options.identifiers == "folded")

    @property
    def marks(self) -> LoadMessages | None:
        """The origin marker of everything that is loaded; None: there is none."""
        return LoadMessages(self.mark) if self.mark is not None else None

    def _acks(self) -> AckTable:
        return AckTable(self.options.ack_schema, *self.owner)

    def _comparison(self, session: Session, places: Sequence[TableId]) -> Comparison:
        infos, settings = read_tables(session.cursor, places), self._wanted(session)
        if self.options.foreign_keys == "ordered":
            references = read_references(session.cursor, places)
            return lambda plans: ordered(compare_all(plans, infos, settings), references)
        return lambda plans: compare_all(plans, infos, settings)

    def _reviewed(self, session: Session, plans: Sequence[PlannedTable]) -> list[TableFinding]:
        infos = read_tables(session.cursor, [plan.target for plan in plans])
        return review(plans, infos, self._wanted(session))

    def _replaceable(self, session: Session, plan: PlannedTable, *, listed: bool) -> tuple[TargetTable | None, str]:
        place = self.naming.table(plan.target)
        return range_delete.replaceable(plan, read_tables(session.cursor, [place]).get(place), listed=listed)

    def location_of(self, table: TableId) -> str:
        """Return the URI of a table in its database."""
        return self.endpoint.uri("postgres", 5432, self.endpoint.schema, table.schema, table.table)

    def digested(self, session: Session, plan: PlannedTable) -> PostgreSQLDigestedTable:
        """See :class:`sluice.targets.sql.digest_rows.Keeper`."""
        folded = self.naming.plan(plan)
        return PostgreSQLDigestedTable.of(plan, self._comparison(session, [folded.target])([folded])[folded.target])

    def comparer(self) -> PostgreSQLComparer:
        """See :class:`sluice.targets.port.Comparer`."""
        return PostgreSQLComparer(self, self.options.zero_dates)

    def missing_rights(self, tables: Sequence[TableId] | None = None) -> list[Finding]:
        """See :class:`sluice.targets.port.NamesRights`."""
        places: dict[Scope, Sequence[Place]] = {
            Scope.CHECKPOINTS: [self.acks.schema], Scope.CHECKPOINT_TABLE: [TableId(self.acks.schema, TABLE)]
        }  # fmt: skip
        if tables is not None:
            own = [self.naming.table(table) for table in tables]
            places = {Scope.TABLES: list(by_schema(own)), Scope.TARGET_TABLES: own}
        ddl = any(self.config.ddl_policy(kind) not in {DdlPolicy.IGNORE, DdlPolicy.STOP} for kind in DdlKind)
        scopes = (Scope.DATABASE, *places) if tables is None else places
        wanted_scopes = [right for scope in scopes for right in rights_on(scope, TARGET, ddl=ddl)]
        with self.session("reading the login's rights") as session:
            return missing_rights(session.connection, wanted_scopes, places)

    def apply(self, statement: str) -> None:
        """Run DDL, its schema made first where a table is created. Raises LoadError that shows the statement."""
        with self.session(f"running {statement[:200]}") as session:
            session.begin()
            try:
                for beginning in ("CREATE TABLE ", "CREATE COLLATION IF NOT EXISTS "):
                    if not statement.startswith(beginning):
                        continue
                    schema = statement.removeprefix(beginning).partition('".')[0] + '"'
                    session.cursor.execute("SELECT to_regnamespace(%s) IS NULL", (schema,))
                    if session.cursor.fetchone() == (True,):  # else no right to make schemas is needed
                        session.cursor.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
                session.cursor.execute(statement)
                session.commit()
            except BaseException:
                session.rollback()
                raise

    def apply_ddl(self, fence: Fence, change: SchemaChange) -> tuple[str, ...]:
        """See :meth:`sluice.targets.sql.loader.SqlLoader.apply_ddl`.

        The statements and the note that they ran are one transaction.
        """
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
        tables = sorted({
            self.naming.table(change.target(table)) for part in change.tables for table in part.tables if table.table
        })

        def has_rows(table: TableId, condition: str) -> bool:
            session.cursor.execute(f"SELECT EXISTS (SELECT 1 FROM {quoted_table(table)} WHERE {condition})")  # noqa: S608 - quoted
            row = session.cursor.fetchone()
            return bool(row and row[0])

        def exists(query: str, parameters: tuple[object, ...]) -> bool:
            session.cursor.execute(query, parameters)
            return session.cursor.fetchone() is not None

        infos = read_tables(session.cursor, tables)
        statements = Follower(
            change,
            infos,
            has_rows,
            self.naming,
            self._wanted(session),
            exists,
        ).statements()
        if statements and self.marks is not None:
            self.marks.write(session.cursor)  # some of them change rows
        for statement in statements:
            _log.info("target_ddl_issued", target=self.name, statement=statement[:500], source=change.where)
            try:
                with self._errors(doing := "following the source's DDL", where=change.where):
                    session.cursor.execute(statement)
            except LoadError as error:
                error.message = (
                    f"{error.message} ({doing}: {statement[:500]}; of the source: {change.statement.text[:300]})"
                )
                error.hint = error.hint or (
                    "change the target so that it can run, or run it by hand in another form and set its kind to "
                    "stop: the load goes on once the target has the change"
                )
                raise
        self.acks.note_ddl(session.cursor, fence, {"rows": rows, "done": change.number + 1})
        return tuple(statements)

    def connect(self) -> Connection:
        """Open a new connection. Raises what :func:`sluice.targets.postgresql.connection.connect` raises."""
        return connect(self.endpoint, self._application)

    def _session(self, connection: Any) -> Session:
        return Session(connection)

    @contextmanager
    def _in_use(self, session: Session, doing: str) -> Iterator[None]:
        session.wait_for_locks(self.options.lock_wait)
        with sessions_in_use.in_use(session, self.owner):
            yield

    def _errors(self, doing: str, where: str | None = None) -> AbstractContextManager[None]:
        return errors(self.endpoint, doing, where)

    def _blocker(self, session: Session | None) -> str:
        return blocker(session)

    def _rows(self, session: Session, fence: Fence) -> RowWriter:
        rows = RowWriter.over(
            self.name, self.endpoint, self.acks, session, fence, self.options.zero_dates, marks=self.marks
        )
        return replace(rows, beside=self.beside(session))

    def made_acks(self, session: Session, error: LoadError, doing: str) -> bool:
        """See :class:`sluice.targets.sql.checkpoints.Sessions`."""
        if error.code not in NOT_THERE:
            return False
        with errors(self.endpoint, doing, where=self.acks.name):
            self.acks.create(session.cursor)
        return True

    def interrupt(self) -> None:
        """See :class:`sluice.targets.sql.target.SqlTarget`."""
        sessions_in_use.interrupt(self.owner)

    def _tried_again(self, session: Session, doing: str, state: RetryCallState) -> None:
        super()._tried_again(session, doing, state)
        if doing == TAKING_OVER:
            end_older(session, self._application)

    # -- inside ----------------------------------------------------------------------------------------------------
    @property
    def _application(self) -> str:
        return f"sluice {self.owner[0]}.{self.owner[1]}"

    def _wanted(self, session: Session) -> Wanted:
        return Wanted(
            self.options.json_type,
            self.options.triggers == "fire",
            session.replica,
            session.user,
            self.options.indexes,
            self._collations,
            session.spatial,
            self.options.zero_dates,
        )

    @property
    def _collations(self) -> Collations:
        return Collations(self.options.ack_schema, frozenset(map(self.naming.name, self.options.icu_collations)))
