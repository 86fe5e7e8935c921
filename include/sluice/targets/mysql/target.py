"""MySQL and MariaDB as a target."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from sluice.config.connections import Endpoint
from sluice.config.pipeline import DdlKind, DdlPolicy, TargetConfig
from sluice.errors import LoadError, SluiceError
from sluice.model.dialects import MARIADB, MYSQL
from sluice.model.findings import Finding
from sluice.model.load_marks import LoadMark
from sluice.model.planned import PlannedTable
from sluice.model.rights import Scope, by_schema, rights_on
from sluice.model.row_effects import StepKind
from sluice.model.schema_changes import ChangeKind
from sluice.model.tables import TableId
from sluice.mysql.rights import TARGET, GrantedRights
from sluice.targets.mysql import foreign_keys as families
from sluice.targets.mysql import lockwait, range_delete
from sluice.targets.mysql.ack_table import NO_COLUMN, NOT_THERE, AckTable
from sluice.targets.mysql.compare import MySQLComparer
from sluice.targets.mysql.compatibility import hidden_tables, read_triggers, refuse_hidden, refuse_triggers, review
from sluice.targets.mysql.connection import LOCK_WAIT_S, TargetConnection, connect, errors, set_lock_wait
from sluice.targets.mysql.ddl import converts_otherwise
from sluice.targets.mysql.ddl_runner import DdlRunner, create_schema
from sluice.targets.mysql.digested_table import MySQLDigestedTable
from sluice.targets.mysql.extras import is_foreign
from sluice.targets.mysql.late_indexes import LateIndexes, left_out, made_with_indexes
from sluice.targets.mysql.mark_rows import MarkRows
from sluice.targets.mysql.row_writer import RowWriter
from sluice.targets.mysql.session import Session, kept
from sluice.targets.mysql.tables import compare_all, read_tables
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
from sluice.targets.sql.ack_rows import TABLE
from sluice.targets.sql.digest_rows import KeepsDigestRows
from sluice.targets.sql.foreign_keys import ordered
from sluice.targets.sql.loader import Again, compared_again
from sluice.targets.sql.session_pool import SessionPool
from sluice.targets.sql.tables import TargetTable
from sluice.targets.sql.target import SqlOptions, SqlTarget
from sluice.targets.sql.writer import SqlSession

_NOT_FOLLOWED = {
    ChangeKind.CREATE_DATABASE, ChangeKind.ALTER_DATABASE, ChangeKind.DROP_DATABASE, ChangeKind.ROWS_REPLACED,
    ChangeKind.UNKNOWN,
}  # fmt: skip


class MySQLOptions(SqlOptions):
    """The ``options:`` of a target of type mysql."""

    ack_schema: Annotated[str, Field(min_length=1, max_length=64)] | None = Field(
        None, description="Schema of the table _sluice_ack. Default: the connection's schema, else sluice."
    )
    triggers: Literal["refuse", "fire"] = Field(
        "refuse",
        description="A table with triggers is refused, as what the source's triggers wrote arrives as rows: its "
        "effect would be there twice. fire: they are meant for these rows, too.",
    )
    lock_wait: Annotated[int, Field(ge=1, le=300)] = Field(
        LOCK_WAIT_S,
        description="Seconds that a statement waits for a lock that somebody else holds on rows or on a table's "
        "definition. Then the transaction is given back and tried again, up to eight times; a change of definitions "
        "is tried again with its task.",
    )


class MySQLTarget(KeepsDigestRows, SqlTarget[Session, MySQLOptions, AckTable]):
    """One MySQL or MariaDB server. See :class:`SqlTarget`."""

    Options: ClassVar[type[SqlOptions]] = MySQLOptions
    kept: ClassVar[SessionPool[Any]] = kept
    CAPABILITIES: ClassVar[Capabilities] = Capabilities(
        inputs=frozenset({Input.MERGED}),
        guarantee=Guarantee.TRANSACTIONAL,
        ordering=frozenset({Ordering.NONE}),
        consistency=frozenset(Consistency),
        schema_changes=frozenset(ChangeKind) - _NOT_FOLLOWED,
        features=frozenset(Feature) - {Feature.BUNDLES},
        conversions=frozenset(StepKind),
        compares=True,
        counts_rows=True,
        marks_loads=True,
        keeps_digests=True,
        converts_rows=True,
        leaves_out_indexes=True,
    )

    def __init__(self, config: TargetConfig, endpoint: Endpoint, pipeline: str) -> None:
        super().__init__(config, endpoint, pipeline)
        self.mark: LoadMark | None = None

    @property
    def marks(self) -> MarkRows | None:
        """The origin marker around everything that is loaded; None: there is none."""
        return MarkRows(self.acks.schema, self.mark) if self.mark is not None else None

    @contextmanager
    def open(self, epoch: int) -> Iterator[SqlSession]:
        """See :class:`SqlTarget`. The marking table is made where it is used and missing."""
        if self.marks is not None:
            with self.session("making the marking table") as session:
                self.marks.create(session.cursor)
        with super().open(epoch) as opened:
            yield opened

    def digested(self, session: Session, plan: PlannedTable) -> MySQLDigestedTable:
        """See :class:`sluice.targets.sql.digest_rows.Keeper`."""
        return MySQLDigestedTable.of(session, plan)

    @property
    def lock_wait_s(self) -> int:
        """Seconds that a statement waits for a lock."""
        return self.options.lock_wait

    def _acks(self) -> AckTable:
        return AckTable(self.options.ack_schema or self.endpoint.schema or "sluice", *self.owner)

    def check(self, tables: Sequence[PlannedTable], again: Again | None = None) -> Mapping[TableId, TargetTable]:
        """See :meth:`sluice.targets.sql.loader.SqlLoader.check`."""
        places = [plan.target for plan in tables]
        with self.session("reading the target's tables") as session:
            infos = read_tables(session.cursor, places)
            refuse_hidden(hidden_tables(session.cursor, [place for place in places if place not in infos]))
            target_tables = compare_all(tables, infos, session.server)
            if self.options.triggers == "refuse":
                refuse_triggers(read_triggers(session.cursor, places))
            if self.options.foreign_keys == "ordered":
                target_tables = ordered(target_tables, families.read_references(session.cursor, places))
            compare_all(compared_again(tables, target_tables, again), infos, session.server)
        return target_tables

    def replaceable(self, plan: PlannedTable, *, listed: bool = False) -> tuple[TargetTable | None, str]:
        """See :meth:`SqlTarget.replaceable`.

        Rows that only the target has are found by ranges, so listed keys need no less.
        """
        with self.session("reading the target's tables") as session:
            info = read_tables(session.cursor, [plan.target]).get(plan.target)
            return range_delete.replaceable(plan, info, mariadb=session.mariadb)

    def location_of(self, table: TableId) -> str:
        """Return the URI of a table."""
        return self.endpoint.uri("mysql", 3306, table.schema, table.table)

    def comparer(self) -> MySQLComparer:
        """See :class:`sluice.targets.port.Comparer`."""
        return MySQLComparer(self)

    def compare(self, tables: Sequence[PlannedTable]) -> list[TableFinding]:
        """Return missing tables and columns, losses and triggers, with the DDL that corrects them."""
        with self.session("reading the target's tables") as session:
            places = [plan.target for plan in tables]
            infos, triggers = read_tables(session.cursor, places), read_triggers(session.cursor, places)
            hidden = hidden_tables(session.cursor, [place for place in places if place not in infos])
            findings = review(
                tables, infos, triggers, session.server, fire=self.options.triggers == "fire", hidden=hidden
            )
            if self.options.foreign_keys == "ordered":
                findings += families.remarks(tables, families.read_references(session.cursor, places))
            return findings

    def missing_rights(self, tables: Sequence[TableId] | None = None) -> list[Finding]:
        """See :class:`sluice.targets.port.NamesRights`."""
        ddl = any(self.config.ddl_policy(kind) not in {DdlPolicy.IGNORE, DdlPolicy.STOP} for kind in DdlKind)
        with self.session("reading the login's rights") as session:
            granted, dialect = GrantedRights.read(session.connection), MARIADB if session.mariadb else MYSQL
        if tables is None:
            return granted.missing(rights_on(Scope.CHECKPOINTS, TARGET), self.acks.schema, [TABLE])
        wanted_rights = rights_on(Scope.TABLES, TARGET, dialect, ddl=ddl)
        return [
            finding
            for schema, names in by_schema(tables).items()
            for finding in granted.missing(wanted_rights, schema, names)
        ]

    def apply(self, statement: str) -> None:
        """Run DDL, its schema made first where a table is created. Raises LoadError that shows the statement."""
        with self.session(f"running {statement[:200]}") as session:
            create_schema(session.cursor, statement)
            session.cursor.execute(statement)
            indexes = made_with_indexes(session, statement)
        if indexes is not None:
            with suppress(SluiceError):  # without the note it keeps its indexes while it is filled
                self.checkpoints.note_made(indexes)

    def leave_out_indexes(self, fence: Fence, tables: Sequence[TableId]) -> tuple[TableId, ...]:
        """See :class:`sluice.targets.port.indexes.LeavesOutIndexes`."""
        return LateIndexes(self, fence).leave_out(tables)

    def left_out_indexes(self) -> Mapping[TableId, tuple[str, ...]]:
        """See :class:`sluice.targets.port.indexes.LeavesOutIndexes`."""
        with self.session("reading which indexes are left out") as session:
            return left_out(self.acks, session.cursor)

    def build_indexes(self, fence: Fence, tables: Sequence[TableId]) -> None:
        """See :class:`sluice.targets.port.indexes.LeavesOutIndexes`."""
        LateIndexes(self, fence).build(tables)

    def apply_ddl(self, fence: Fence, change: SchemaChange) -> tuple[str, ...]:
        """See :meth:`sluice.targets.sql.loader.SqlLoader.apply_ddl`."""
        return DdlRunner(self, fence).apply(change)

    def converted_otherwise(self, change: SchemaChange) -> frozenset[TableId]:
        """See :class:`sluice.targets.port.ConvertsRows`."""
        unknown = [effect for effect in change.effects if effect.unknown]
        if not unknown or is_foreign(change.statement.dialect):
            return frozenset(effect.table for effect in unknown)
        with self.session(f"following {change.where}") as session:
            mariadb = session.mariadb
        return frozenset(effect.table for effect in unknown if converts_otherwise(change, effect, mariadb=mariadb))

    def note_ddl(self, session: Session, fence: Fence, state: dict[str, Any]) -> None:
        """Store how far the batch's DDL has come. Raises Fenced."""

        def work() -> None:
            self.acks.guard(session.cursor, fence)
            self.acks.note_ddl(session.cursor, fence, state)

        self.transaction(session, work, "noting how far the DDL has come")

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
        """Open a new connection. Raises what :func:`sluice.targets.mysql.connection.connect` raises."""
        return connect(self.endpoint)

    def _session(self, connection: Any) -> Session:
        return Session(connection)

    @contextmanager
    def _in_use(self, session: Session, doing: str) -> Iterator[None]:
        if session.lock_wait_s != self.options.lock_wait:
            session.cursor.execute(set_lock_wait(self.options.lock_wait))
            session.lock_wait_s = self.options.lock_wait
        lockwait.watch.enter(session, self.endpoint, self.owner, doing)
        try:
            yield
        finally:
            lockwait.watch.leave(session)

    def _errors(self, doing: str, where: str | None = None) -> AbstractContextManager[None]:
        return errors(self.endpoint, doing, where)

    def _blocker(self, session: Session | None) -> str:
        return f"; {session.blocker}" if session and session.blocker else ""

    def _rows(self, session: Session, fence: Fence) -> RowWriter:
        rows = RowWriter.over(self.name, self.endpoint, self.acks, session, fence, self.marks)
        return replace(rows, beside=self.beside(session))

    def interrupt(self) -> None:
        """See :class:`SqlTarget`. Raises TargetUnavailable, ConfigError."""
        lockwait.watch.interrupt(self.endpoint, self.owner)
