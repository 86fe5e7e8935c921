"""Oracle Database as a target."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Annotated, Any, ClassVar, Literal

import oracledb
import structlog
from pydantic import Field

from sluice.config.connections import Endpoint
from sluice.config.pipeline import TargetConfig
from sluice.errors import ConfigError, LoadError
from sluice.model.planned import PlannedTable
from sluice.model.tables import TableId
from sluice.targets.oracle import connection as oracle_connection
from sluice.targets.oracle import range_delete
from sluice.targets.oracle.ack_table import AckTable
from sluice.targets.oracle.catalog import TableInfo, Wanted, compare_all, read_tables, review
from sluice.targets.oracle.column_types import EXTENDED_BYTES, STANDARD_BYTES
from sluice.targets.oracle.compare import OracleComparer
from sluice.targets.oracle.connection import CALL_S, LOCK_WAIT_S, NOT_THERE, code_of, connect, errors
from sluice.targets.oracle.ddl import DONE, FOLLOWED, Follower
from sluice.targets.oracle.row_writer import RowWriter
from sluice.targets.oracle.session import Session, kept
from sluice.targets.oracle.values import Policies
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
from sluice.targets.sql import sessions_in_use
from sluice.targets.sql.folding_target import Comparison, FoldingTarget
from sluice.targets.sql.names import Naming, quoted_table
from sluice.targets.sql.session_pool import SessionPool
from sluice.targets.sql.tables import TargetTable
from sluice.targets.sql.target import SqlOptions

_log = structlog.get_logger()


class OracleOptions(SqlOptions):
    """The ``options:`` of a target of type oracle."""

    ack_schema: Annotated[str, Field(max_length=128)] = Field(
        "", description="Schema of the table SLUICE_ACK, which has to exist; empty: the login's own."
    )
    identifiers: Literal["folded", "quoted"] = Field(
        "folded",
        description="Names of schemas, tables and columns: in upper case, as Oracle reads names without quotes; or as "
        "the source (or the mapping) spells them, so that statements have to quote them.",
    )
    empty_strings: Literal["refuse", "null", "blank"] = Field(
        "refuse",
        description="What becomes of empty texts and bytes, which are NULL to Oracle: the row is refused; or the value "
        "is NULL, and columns that are made here take it; or a text of one blank (bytes are refused).",
    )
    zero_dates: Literal["refuse", "null"] = Field(
        "refuse",
        description="What becomes of dates that no calendar has (0000-00-00, 2024-02-31): the row is refused, or the "
        "value is NULL.",
    )
    max_string_size: Literal["standard", "extended"] = Field(
        "standard",
        description="The server's MAX_STRING_SIZE: a VARCHAR2 has 4,000 bytes, or 32,767. Longer texts are CLOB in "
        "tables that are proposed or made here.",
    )
    triggers: Literal["refuse", "fire"] = Field(
        "refuse",
        description="A table with enabled triggers is refused, as they fire for rows that Sluice writes; fire: they "
        "are meant for these rows.",
    )
    lock_wait: Annotated[int, Field(ge=1, le=300)] = Field(
        LOCK_WAIT_S,
        description="Seconds that the checkpoint's row, or a definition, is waited for while somebody else has it "
        "locked. Then the transaction is given back and tried again, up to eight times.",
    )
    call_timeout: Annotated[int, Field(ge=1, le=86_400)] = Field(
        CALL_S,
        description="Seconds that one call to the server may take, waits for locks of rows included. Then the batch is "
        "tried again.",
    )


class OracleTarget(FoldingTarget[Session, OracleOptions, AckTable]):
    """One Oracle database. See :class:`sluice.targets.sql.target.SqlTarget`."""

    Options: ClassVar[type[SqlOptions]] = OracleOptions
    kept: ClassVar[SessionPool[Any]] = kept
    CAPABILITIES: ClassVar[Capabilities] = Capabilities(
        inputs=frozenset({Input.MERGED}),
        guarantee=Guarantee.TRANSACTIONAL,
        ordering=frozenset({Ordering.NONE}),
        consistency=frozenset(Consistency),
        schema_changes=FOLLOWED,
        features=frozenset(Feature) - {Feature.BUNDLES, Feature.FOREIGN_KEYS},
        max_writers=1,
        compares=True,
        lists_keys=True,
        removes_listed_keys=True,
    )

    def __init__(self, config: TargetConfig, endpoint: Endpoint, pipeline: str) -> None:
        super().__init__(config, endpoint, pipeline)
        if self.options.foreign_keys != "unchecked":
            raise ConfigError(
                f"target {config.name!r}: options.foreign_keys: {self.options.foreign_keys} is not offered by oracle",
                where=config.where("options", "foreign_keys"),
                hint="leave it out; foreign keys at the target have to be disabled: ALTER TABLE … DISABLE CONSTRAINT …",
            )

    @property
    def naming(self) -> Naming:
        """The names of tables and columns at the target."""
        return Naming(self.options.identifiers == "folded", upper=True)

    def _acks(self) -> AckTable:
        schema = self.naming.name(self.options.ack_schema)
        return AckTable(schema, *self.owner, self.options.lock_wait)

    def _comparison(self, session: Session, places: Sequence[TableId]) -> Comparison:
        infos, settings = self._infos(session, places), self._wanted(session)
        return lambda plans: compare_all(plans, infos, settings)

    def _reviewed(self, session: Session, plans: Sequence[PlannedTable]) -> list[TableFinding]:
        return review(plans, self._infos(session, [plan.target for plan in plans]), self._wanted(session))

    def _replaceable(self, session: Session, plan: PlannedTable, *, listed: bool) -> tuple[TargetTable | None, str]:
        place = self.naming.table(plan.target)
        return range_delete.replaceable(plan, self._infos(session, [place]).get(place), listed=listed)

    def _infos(self, session: Session, places: Sequence[TableId]) -> dict[TableId, TableInfo]:
        infos = read_tables(session.cursor, places)
        session.rollback()  # a query began a transaction
        return infos

    def location_of(self, table: TableId) -> str:
        """Return the URI of a table in its service, or pluggable database."""
        return oracle_connection.location_of(self.endpoint, table.schema, table.table)

    def comparer(self) -> OracleComparer:
        """See :class:`sluice.targets.port.Comparer`."""
        return OracleComparer(self, self._policies)

    def apply(self, statement: str) -> None:
        """Run DDL, which commits by itself. Raises LoadError that shows the statement."""
        with self.session(f"running {statement[:200]}") as session:
            session.cursor.execute(statement)

    def apply_ddl(self, fence: Fence, change: SchemaChange) -> tuple[str, ...]:
        """See :meth:`sluice.targets.sql.loader.SqlLoader.apply_ddl`.

        A statement commits by itself. What will run is noted before the first one, and how many have run after each.
        One that a crash left in doubt is run again, and may then say that it has run. While one runs, a second session
        holds the checkpoint's row, so that no other process can take the target over in between.
        """
        doing = f"following {change.where}: {change.statement.text[:200]}"
        with self.session(doing) as session, self.session(doing) as holder:

            def note(state: dict[str, Any]) -> None:
                def work() -> None:
                    self.acks.guard(session.cursor, fence)
                    self.acks.note_ddl(session.cursor, fence, state)

                self.transaction(session, work, doing)

            state = self.acks.ddl_state(session.cursor, fence.batch)
            if int(state.get("done", 0)) > change.number:
                return ()
            rows, running = bool(state.get("rows")), state.get("running")
            doubtful = running["ran"] if running else -1
            if not running:
                running = {"statements": self._statements(session, change), "ran": 0}
            for number, statement in enumerate(running["statements"]):
                if number < running["ran"]:
                    continue
                note({"rows": rows, "done": change.number, "running": {**running, "ran": number}})
                holder.begin()
                self.acks.guard(holder.cursor, fence)
                try:
                    self._run(session, change, statement, doubtful=number == doubtful)
                finally:
                    holder.rollback()
            note({"rows": rows, "done": change.number + 1})
            return tuple(running["statements"])

    def _statements(self, session: Session, change: SchemaChange) -> list[str]:
        tables = sorted({
            self.naming.table(change.target(table))
            for table_change in change.tables
            for table in table_change.tables
            if table.table
        })

        def has_rows(table: TableId) -> bool:
            session.cursor.execute(f"SELECT 1 FROM {quoted_table(table)} WHERE ROWNUM <= 1")  # noqa: S608 - quoted
            return session.cursor.fetchone() is not None

        infos = self._infos(session, tables)
        return Follower(change, infos, has_rows, self.naming, self._wanted(session)).statements()

    def _run(self, session: Session, change: SchemaChange, statement: str, *, doubtful: bool) -> None:
        _log.info("target_ddl_issued", target=self.name, statement=statement[:500], source=change.where)
        try:
            with self._errors(doing := "following the source's DDL", where=change.where):
                try:
                    session.cursor.execute(statement)
                except oracledb.Error as error:
                    if not doubtful or code_of(error) not in DONE:
                        raise
        except LoadError as error:
            error.message = (
                f"{error.message} ({doing}: {statement[:500]}; of the source: {change.statement.text[:300]})"
            )
            error.hint = error.hint or (
                "change the target so that it can run, or run it by hand in another form and set its kind to stop: the "
                "load goes on once the target has the change"
            )
            raise

    def connect(self) -> Any:
        """Open a new connection. Raises what :func:`sluice.targets.oracle.connection.connect` raises."""
        program = f"sluice {self.owner[0]}.{self.owner[1]}"
        return connect(self.endpoint, program[:48], self.options.call_timeout)

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
        return "; V$SESSION.BLOCKING_SESSION names who holds it" if session is not None else ""

    def _rows(self, session: Session, fence: Fence) -> RowWriter:
        return RowWriter.over(self.name, self.endpoint, self.acks, session, fence, self._policies)

    def made_acks(self, session: Session, error: LoadError, doing: str) -> bool:
        """See :class:`sluice.targets.sql.checkpoints.Sessions`."""
        if error.code != NOT_THERE:
            return False
        with errors(self.endpoint, doing, where=self.acks.name):
            self.acks.create(session.cursor)
        return True

    def interrupt(self) -> None:
        """See :class:`sluice.targets.sql.target.SqlTarget`."""
        sessions_in_use.interrupt(self.owner)

    # -- inside ----------------------------------------------------------------------------------------------------
    @property
    def _policies(self) -> Policies:
        return Policies(self.options.empty_strings, self.options.zero_dates)

    def _wanted(self, session: Session) -> Wanted:
        return Wanted(
            EXTENDED_BYTES if self.options.max_string_size == "extended" else STANDARD_BYTES,
            self.options.triggers == "fire",
            self.options.empty_strings,
            self.options.zero_dates,
            session.longest_bytes,
        )
