"""The PostgreSQL source: sessions of the port :mod:`sluice.sources.port`, and what they have open."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import structlog

from sluice.config.connections import ConnectionResolver, Endpoint
from sluice.config.pipeline import PipelineConfig, StartPosition
from sluice.errors import ConfigError, LostPosition, PreflightError, SluiceError, SourceUnavailable
from sluice.model.changes import SourceName
from sluice.model.completeness import Settled
from sluice.model.definitions import ColumnDefinition, Definitions, TableDefinition
from sluice.model.dialects import POSTGRESQL, Dialect
from sluice.model.digests import RangeDigest
from sluice.model.dumps import Marking
from sluice.model.findings import Finding
from sluice.model.load_marks import MarkRules
from sluice.model.offset import Offset
from sluice.model.row_effects import ColumnEffect, Ran
from sluice.model.schema_changes import TableChange
from sluice.model.tables import TableId, TableSchema
from sluice.postgresql.connection import Connection
from sluice.postgresql.row_digest import hashes_of, not_covered
from sluice.sources.log_digests import log_digest, not_digested
from sluice.sources.port import (
    Asked,
    Blindness,
    ChangeSink,
    RetainedLog,
    SourceIdentity,
    SourceTable,
    StreamLimits,
    StreamResult,
    TableFilter,
    raise_first,
)
from sluice.sources.port.log import M
from sluice.sources.postgresql import ddl_trigger
from sluice.sources.postgresql.catalog import table_list
from sluice.sources.postgresql.catalog.changed_definition import row_effects
from sluice.sources.postgresql.catalog.definitions import PostgreSQLDefinitions
from sluice.sources.postgresql.catalog.identity import read_attached, read_reshaped
from sluice.sources.postgresql.catalog.table import (
    CatalogTable,
    filled_defaults,
    read_table,
    read_tables,
    schema_of,
)
from sluice.sources.postgresql.decoder.in_progress import TransactionsInProgress
from sluice.sources.postgresql.decoder.scanner import Scanner
from sluice.sources.postgresql.history import PostgreSQLSchemaHistory
from sluice.sources.postgresql.position import Position, lsn_text
from sluice.sources.postgresql.preflight import (
    at_primary,
    missing_statements,
    position_findings,
    preflight,
    read_setup,
    rights_findings,
    whole_rows,
)
from sluice.sources.postgresql.preflight_ddl import DDL_SETTING, SHOWN
from sluice.sources.postgresql.protocol.replication import ReplicationStream, released_here
from sluice.sources.postgresql.reader.batch_reader import Lookups, OpenLog, capture
from sluice.sources.postgresql.reader.relations import RelationPlans
from sluice.sources.postgresql.server.connection import open_session, rows_of, source_errors
from sluice.sources.postgresql.server.info import ServerInfo, log_end, server_info, written_end
from sluice.sources.postgresql.server.publication import publication_name
from sluice.sources.postgresql.server.settled import settled_end
from sluice.sources.postgresql.server.slot import CREATE, DROP, Slot, advance, read_slot, slot_name
from sluice.sources.postgresql.server.standby import (
    ancestors,
    await_replay,
    lag_findings,
    make_slot,
    primary_of,
    timeline_now,
)
from sluice.sources.postgresql.snapshot.chunk_reader import (
    PostgresChunkReader,
    PostgresLoad,
    open_chunk_reader,
    open_load,
)
from sluice.sources.postgresql.snapshot.chunk_table import PostgresChunkTable, open_chunk_table
from sluice.sources.postgresql.snapshot.key_text import PostgresKeyText
from sluice.sources.postgresql.snapshot.watermarks import after_low, is_exact
from sluice.sources.table_filter import Selection


class PostgreSQLLogWatch:
    """See :class:`sluice.sources.port.LogWatch`. A slot is not read by two, so that only the end of the log is seen."""

    fresh: set[TableId] | None = None
    end: ClassVar[None] = None

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._connection: Connection | None = None
        self._head = -1

    def look(self, since: Offset | None = None) -> bool:
        """Ask for the end of the log; True if it moved since the last look, and at the first one."""
        before = self._head
        if self._connection is None or self._connection.closed:
            self._connection = open_session(self._endpoint, "sluice watch")
        try:
            with source_errors(self._endpoint, "looking at the log"):
                self._head = log_end(self._connection)
        except BaseException:
            self.close()
            raise
        return self._head != before

    def may_concern(self, since: Offset, wants: Callable[[TableId], bool]) -> bool:
        """Return True if the log is longer than up to ``since``, whatever is in it."""
        return self._head > Position.of(since).lsn

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


_log = structlog.get_logger()

_REPLAY_S = 60.0
"""How long a standby may take to replay a statement of its primary."""
KEPT_S = 60.0
"""How long a log that is not read stays open: the server decodes again what it kept for the slot when it is opened."""


@dataclass(frozen=True)
class PostgreSQLSource:
    """The source of one pipeline. See :class:`sluice.sources.port.Source`."""

    kind: ClassVar[str] = "postgresql"
    keeps_for_us: ClassVar[bool] = True
    watermark_table: ClassVar[None] = None
    pipeline: PipelineConfig
    resolver: ConnectionResolver
    loads: MarkRules | None = None

    @cached_property
    def endpoint(self) -> Endpoint:
        """The server and the database; looked up once."""
        return self.resolver(self.pipeline.source.connection)

    @property
    def where(self) -> str:
        """``host:port`` of the server."""
        return self.endpoint.address

    def location_of(self, table: TableId) -> str:
        """Return the URI of a table, as lineage names it."""
        return self.endpoint.uri("postgres", 5432, self.endpoint.schema, table.schema, table.table)

    def document_name(self) -> SourceName:
        """See :class:`sluice.sources.port.NamesConnector`."""
        return SourceName(self.pipeline.pipeline, "postgresql", self.endpoint.schema)

    def log_digest(self, schema: TableSchema, rows: pa.Table) -> RangeDigest | str:
        """See :class:`sluice.sources.port.DigestsLog`."""
        return self.not_digested(schema) or log_digest(schema, rows, hashes_of)

    def not_digested(self, schema: TableSchema) -> str:
        """See :class:`sluice.sources.port.DigestsLog`."""
        return not_digested(schema, not_covered)

    @property
    def keys(self) -> PostgresKeyText:
        """The writer of keys."""
        return PostgresKeyText()

    @property
    def slot(self) -> str:
        """The name of the pipeline's slot."""
        return slot_name(self.pipeline)

    def stored_definitions(self, base: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]) -> PostgreSQLDefinitions:
        """Return the definitions with the numbers of their columns."""
        return PostgreSQLDefinitions.from_stored(base, parts)

    def stored_table(self, definition: TableDefinition) -> TableSchema:
        """Return the columns that the log has for this definition. Raises UnsupportedType."""
        return Selection.compile(self.pipeline.capture).kept(schema_of(definition))

    def dialect(self, at: Offset) -> Dialect:
        """Return PostgreSQL's, wherever ``at`` is."""
        return POSTGRESQL

    def row_effects(self, at: Offset, change: TableChange, statement: Ran) -> tuple[ColumnEffect, ...]:
        """Return an unknown effect for each column that has another type, unless that only widens it."""
        return row_effects(change, statement)

    @property
    def watch_key(self) -> str:
        """The connection as JSON. Holds the password."""
        at = self.endpoint
        return json.dumps([self.kind, at.host, at.port, at.user, at.password, at.schema, dict(at.extra)], default=str)

    def watch(self) -> PostgreSQLLogWatch:
        """Return a watch of the end of this server's log."""
        return PostgreSQLLogWatch(self.endpoint)

    @contextmanager
    def open(self, *, to_stream: bool = False) -> Iterator[PostgreSQLSession]:
        """Connect to the server. The log is opened when it is first read."""
        with ExitStack() as opened:
            connection = open_session(self.endpoint, f"sluice {self.pipeline.pipeline}")
            opened.callback(connection.close)
            session = PostgreSQLSession(self, connection, to_stream=to_stream)
            opened.callback(session.close)
            yield session

    @contextmanager
    def open_chunks(self, marking: Marking, owner: str) -> Iterator[PostgresChunkReader]:
        """Open two connections: one for questions, one for the rows of chunks; at the standby of ``dump.connection``,
        if the pipeline has one, and chunks are marked: only that waits for the standby.
        """
        named = self.pipeline.dump.connection if marking is Marking.SNAPSHOT else None
        standby = self.resolver(named) if named is not None else None
        selection, name = Selection.compile(self.pipeline.capture), self.pipeline.pipeline
        with open_chunk_reader(self.endpoint, marking, name, standby=standby, selection=selection) as reader:
            yield reader

    @contextmanager
    def open_replica(self, connection: str) -> Iterator[PostgresLoad]:
        """Connect to a standby, to ask for its load and lag."""
        with open_load(self.resolver(connection)) as load:
            yield load

    def after_low(self, marking: Marking, low: str, rows: Mapping[str, Any] | pa.Table) -> np.ndarray[Any, Any]:
        """Return a mask of the changes that the snapshot in ``low`` does not see."""
        assert isinstance(rows, pa.Table)
        return after_low(low, rows)

    def is_exact(self, marking: Marking, low: str) -> bool:
        """Return True for the primary's snapshots, which name their transactions; a standby has only a position that it
        replayed at least.
        """
        return is_exact(low)


class PostgreSQLSession:
    """See :class:`sluice.sources.port.SourceSession`."""

    def __init__(self, source: PostgreSQLSource, connection: Connection, *, to_stream: bool) -> None:
        self.source = source
        self.connection = connection
        self._to_stream = to_stream
        self._log: OpenLog | None = None
        self._log_at: Offset | None = None
        self._kept_since = 0.0
        self._publication = self._labels = ""
        self._transaction = 0
        self._attached: list[TableId] = []

    def close(self) -> None:
        """Close the connection to the log, if it is open."""
        if self._log is not None:
            self._log.close()
            self._log = None

    @contextmanager
    def _asking(self) -> Iterator[None]:
        with source_errors(self.source.endpoint, "asking the source"):
            yield

    @cached_property
    def info(self) -> ServerInfo:
        """The server's description of itself."""
        with self._asking():
            info = server_info(self.connection)
            return replace(info, timeline=timeline_now(self.source.endpoint)) if info.in_recovery else info

    @contextmanager
    def _primary(self, doing: str = "asking the primary") -> Iterator[Connection | None]:
        """Connect to the primary of a standby; None if the source is no standby, or the pipeline names no primary."""
        named = self.source.pipeline.source.primary
        if named is None or not self.info.in_recovery:
            yield None
            return
        with primary_of(self.info, self.source.resolver(named), doing) as primary:
            yield primary

    @contextmanager
    def _primary_to_ask(self) -> Iterator[tuple[Connection | None, list[Finding]]]:
        """Connect as :meth:`_primary` does; where that fails yield why, as the standby is read without it, too."""
        with ExitStack() as opened:
            primary, findings = None, list[Finding]()
            try:
                primary = opened.enter_context(self._primary())
            except SluiceError as error:
                severity = "warning" if isinstance(error, SourceUnavailable) else "error"
                named = self.source.pipeline.source.primary or ""
                findings.append(Finding(severity, "source.primary", named, error.message, error.hint or ""))
            yield primary, findings

    @property
    def identity(self) -> SourceIdentity:
        """The system identifier, dialect and version."""
        info = self.info
        return SourceIdentity(info.server, POSTGRESQL, info.version)

    @property
    def head(self) -> Offset | None:
        """The end of the durable log; None if ``wal_level`` keeps it from being decoded."""
        info, _ = self.info, self._first_slot
        return info.position.as_offset() if info.settings.get("wal_level") == "logical" else None

    @property
    def _head(self) -> Position:
        """The end of the log, with what the last pre-flight saw."""
        return self._seen(self.info.position)

    def _seen(self, position: Position) -> Position:
        """Return a position with what the last pre-flight saw of the catalog."""
        return replace(
            position,
            publication=self._publication or position.publication,
            transaction=self._transaction or position.transaction,
        )

    @property
    def history(self) -> PostgreSQLSchemaHistory:
        """The schema history: the log names columns, but does not describe them in full."""
        return PostgreSQLSchemaHistory(self)

    @cached_property
    def _first_slot(self) -> Slot | None:
        """The slot as of the first question, as :attr:`info`: what is asked of both does not need the connection."""
        return self._slot()

    def _slot(self) -> Slot | None:
        with self._asking():
            return read_slot(self.connection, self.source.slot, self.info.version_number)

    def keeps(self, at: Offset) -> bool:
        """Return True if the slot still sends what comes after ``at``."""
        return not self._lost(self._slot(), self._position(at))

    def _lost(self, slot: Slot | None, position: Position) -> bool:
        """Return True if the log cannot be read on from a position; a standby may still be on its way to it."""
        findings = position_findings(self.info, slot, self.source.slot, position)
        return any(finding.kind is not SourceUnavailable for finding in findings)

    def _position(self, at: Offset) -> Position:
        """Return a position on the present timeline, if the log and this server's own slot went along to it."""
        position, info = Position.of(at), self.info
        if (position.system, position.timeline) == (info.position.system, info.timeline):
            return position
        slot = self._slot()
        if position.system != info.position.system or slot is None or slot.synced or slot.confirmed > position.lsn:
            return position
        with self._asking():
            left_at = ancestors(self.source.endpoint, info.timeline).get(position.timeline, 0)
        return replace(position, server=info.server, timeline=info.timeline) if position.lsn <= left_at else position

    def followed(self, at: Offset) -> Offset:
        """See :meth:`sluice.sources.port.FollowsTimelines.followed`."""
        return at if self.is_same_log(at) else self._position(at).as_offset()

    def is_same_log(self, at: Offset) -> bool:
        """Return False for a position of another server or timeline."""
        position = Position.of(at)
        return (position.server, position.timeline) == (self.info.server, self.info.timeline)

    def lag_bytes(self, at: Offset) -> int | None:
        """Return the bytes of log between ``at`` and the head; None if the slot does not keep them.

        In a session whose log stays open the head is asked for again. With a budget, what is in front of the slot is
        in the segments.
        """
        if self._log is None:
            slot, position = self._first_slot, self._position(at)
            if self.source.pipeline.source.slot_budget and slot is not None and slot.confirmed > position.lsn:
                position = position.at(slot.confirmed)
            if self._lost(slot, position):
                return None
            return max(self.info.head - Position.of(at).lsn, 0)
        with self._asking():
            return max(log_end(self.connection) - Position.of(at).lsn, 0)

    def retained(self) -> RetainedLog | None:
        """Return the bytes of log between the head and where the slot begins, both as of now; None without a slot."""
        slot = self._slot()
        if slot is None or slot.is_lost:
            return None
        with self._asking():
            head = log_end(self.connection)
        size_bytes, budget_bytes = max(head - slot.restart, 0), self.source.pipeline.source.slot_budget
        return RetainedLog(size_bytes, budget_bytes, slot.left, slot.is_nearly_lost(self.info.settings))

    # -- before reading ------------------------------------------------------------------------------------------------
    def preflight(self, at: Offset | None) -> list[Finding]:
        """Check the server's settings, the login, the slot, the publication and the identities of captured tables."""
        with self._primary_to_ask() as (primary, findings):
            findings += self._preflight(at, primary)
        with self._asking():
            if self.info.in_recovery:
                findings += lag_findings(PostgresLoad(self.source.endpoint, self.connection, "lag").replica_lag_s())
            rights = rights_findings(self.connection, self.source.pipeline)
            return findings + (at_primary(rights) if self.info.in_recovery else rights)

    def _preflight(self, at: Offset | None, primary: Connection | None = None) -> list[Finding]:
        info = self.info
        with self._asking():
            two_way = self.source.loads is not None and self.source.loads.two_way
            setup = read_setup(self.connection, info, self.source.pipeline, two_way=two_way, primary=primary)
            since = Position.of(at).transaction if at is not None else 0
            attached, self._transaction = read_attached(
                self.connection, 0 if self.source.pipeline.source.ddl else since
            )
            self._attached = [*attached, *read_reshaped(self.connection, since)]
        if setup.labels != self._labels:
            self.close()  # a log that is opened anew describes its tables again
        self._labels = setup.labels
        self._publication = setup.publication.mark if setup.publication is not None else ""
        if self._log is not None and self.source.pipeline.source.ddl:
            noted = setup.ddl.noted
            self._log.all_noted = noted.complete and noted.table_oid == self._log.scanner.ddl_table
        return preflight(setup, self.source.pipeline, self._position(at) if at is not None else None)

    def replication_findings(self) -> list[Finding]:
        """Return nothing: a physical standby has all that its primary has."""
        return []

    def require_ready(self, at: Offset | None) -> None:
        """Raise the first error of the pre-flight; log its warnings.

        Event triggers stop no capture: an unsafe one is no safer while nothing is read.
        """
        findings = [
            replace(finding, fix=SHOWN, severity="warning") if finding.setting == DDL_SETTING else finding
            for finding in self._preflight(at)
        ]
        raise_first(findings, f"source {self.source.pipeline.source.connection} ({self.info.version})")

    def partial_tables(self) -> dict[TableId, str]:
        """See :meth:`sluice.sources.port.LogsPartialRows.partial_tables`."""
        with self._asking():
            short_tables = table_list.cut_short_tables(self.connection)
        statements: dict[TableId, list[str]] = {}
        for table, held_table in short_tables:
            statements.setdefault(table, []).append(whole_rows(held_table))
        return {table: "; ".join(some) for table, some in statements.items()}

    def missing(self) -> list[str]:
        """Return the statements that make the slot and the publication, in order; nothing if both are there."""
        pipeline = self.source.pipeline
        with self._primary_to_ask() as (primary, _), self._asking():
            return missing_statements(read_setup(self.connection, self.info, pipeline, primary=primary), pipeline)

    def make(self, statement: str) -> None:
        """Run one of the statements of :meth:`missing`: at the primary of a standby, unless it is about the slot.

        Raises PreflightError if the login may not.
        """
        doing, endpoint = f"running {statement}", self.source.endpoint
        if self.info.in_recovery and not statement.startswith((CREATE, DROP)):
            with self._primary(doing) as primary:
                assert primary is not None, "missing() has nothing for a primary that is not named"
                _write(primary, statement)
                written = written_end(primary)
            with source_errors(endpoint, doing):
                await_replay(self.connection, written, _REPLAY_S)
            return
        with source_errors(endpoint, doing):
            if self.info.in_recovery and statement.startswith(CREATE):
                named = self.source.pipeline.source.primary
                make_slot(self.connection, statement, self.source.resolver(named) if named else None, self.source.where)
                return
            _write(self.connection, statement)

    def confirm(self, at: Offset) -> None:
        """Compare the slot with what was read up to ``at``. Raises LostPosition, WrongServer."""
        raise_first(position_findings(self.info, self._slot(), self.source.slot, self._position(at)), self.source.where)

    def goes_on(self, at: Offset) -> bool:
        """Return True if the log has been open at ``at`` for less than :data:`KEPT_S` seconds."""
        return self._log is not None and self._log_at == at and time.monotonic() - self._kept_since < KEPT_S

    def look_again(self) -> None:
        """Forget the server's description, so that the next question reads it."""
        self.__dict__.pop("info", None)
        self.__dict__.pop("_first_slot", None)

    def resolve_start(self, start: str | StartPosition) -> Offset:
        """Return the head, where the slot begins, or an LSN of this timeline. Raises LostPosition, ConfigError."""
        info = self.info
        if start == "latest":
            return self._head.as_offset()
        slot = self._slot()
        if start == "dump":  # rows that are copied from now on are worth nothing if the log is not kept from now on
            raise_first(position_findings(info, slot, self.source.slot, info.position), self.source.where)
            return self._head.as_offset()
        if slot is None:
            raise PreflightError(
                f"the server keeps its log for a slot, and there is no slot {self.source.slot}",
                where=self.source.where,
                hint="`sluice check PIPELINE --apply` makes it",
            )
        if start == "earliest":
            at = info.position.at(slot.confirmed)
        elif isinstance(start, StartPosition) and start.file is not None:
            at = Position.of(Offset.at(info.server, start.file, start.offset))
        else:
            raise ConfigError(
                "a PostgreSQL source starts at latest, earliest, dump, or {file: timeline1.000001, offset: LSN as a "
                "number}",
                where=self.source.where,
            )
        raise_first(position_findings(info, slot, slot.name, at), self.source.where)
        return at.as_offset()

    def relocate(self, at: Offset, *, patience_s: float = 0.0) -> Offset:
        """Return the same LSN on this server's timeline, if that went along the captured one up to there.

        Raises LostPosition if it left it before, or if its slot does not have what comes next.
        """
        position, info = Position.of(at), self.info
        if self.is_same_log(at):
            self.confirm(at)
            return at
        if position.system != info.position.system:
            raise LostPosition(
                f"this server is of another system: the position {position} belongs to {position.server}",
                where=self.source.where,
            )
        with self._asking():
            remaining_ancestors = ancestors(self.source.endpoint, info.timeline)
        if position.timeline not in remaining_ancestors:
            raise LostPosition(
                f"this server is on timeline {info.timeline}, which never was on timeline {position.timeline}",
                where=self.source.where,
            )
        if position.lsn > remaining_ancestors[position.timeline]:
            raise LostPosition(
                f"this server lacks transactions that were read: it left timeline {position.timeline} at "
                f"{lsn_text(remaining_ancestors[position.timeline])}, and {lsn_text(position.lsn)} was captured",
                where=self.source.where,
                hint="`sluice seek PIPELINE latest`, then, with the pipeline running, `sluice verify run PIPELINE "
                "--repair`",
            )
        moved = replace(position, server=info.server, timeline=info.timeline)
        raise_first(position_findings(info, self._slot(), self.source.slot, moved), self.source.where)
        return moved.as_offset()

    # -- the log -------------------------------------------------------------------------------------------------------
    def stream(
        self,
        start: Offset,
        limits: StreamLimits,
        table_filter: TableFilter,
        sink: Callable[[], ChangeSink[M]],
        *,
        definitions: Callable[[], Definitions] | None = None,
        one_reader: bool = False,
        progress: Callable[..., None] | None = None,
    ) -> StreamResult[M]:
        """Capture from the log that is open at ``start``, or from a new connection.

        There is one reader, as a slot has.
        """
        position = self._seen(Position.of(start))
        if limits.stop_at is not None and not limits.stop_at.follows(start):
            return StreamResult(start, None, 0, 0, 0, True, "head")
        log = self._opened(start, position)
        self._log = None
        keeps_log = False
        try:
            result = capture(
                log,
                position,
                limits,
                table_filter,
                sink,
                lookups=Lookups(self.catalog_table, self._type, self._filled_defaults),
                definitions=(lambda: _own(definitions())) if definitions is not None else None,
                head=self.info.head,
                progress=progress,
            )
            if self.info.in_recovery and result.last != start:
                self._require_timeline()
            keeps_log = self._to_stream
            if keeps_log:
                self._log, self._log_at, self._kept_since = log, result.last, time.monotonic()
            filled = [table for table in self._attached if Selection.compile(self.source.pipeline.capture).wants(table)]
            self._attached = []
            return replace(result, filled=(*result.filled, *filled)) if filled else result
        finally:
            if not keeps_log:
                log.close()

    def _require_timeline(self) -> None:
        """Raise SourceUnavailable if a standby went on to another timeline: its stream does not say where it did."""
        with self._asking():
            timeline = timeline_now(self.source.endpoint)
        if timeline != self.info.timeline:
            raise SourceUnavailable(
                f"the standby went from timeline {self.info.timeline} to {timeline} while its log was read",
                where=self.source.where,
                hint="it was promoted, or follows another primary; what was read is read again, by itself",
            )

    def _opened(self, start: Offset, position: Position) -> OpenLog:
        if self.goes_on(start) and self._log is not None:
            return self._log
        self.close()
        self.confirm(start)
        stream = ReplicationStream(
            self.source.endpoint,
            slot=self.source.slot,
            publications=[publication_name(self.source.pipeline)],
            start=position.lsn,
            origin=self.source.pipeline.source.origin,
            streaming=self.source.pipeline.source.streaming,
        )
        noted = self._noted_ddl()
        scanner = Scanner(position, marks=self.source.loads, ddl_table=noted.table_oid, ddl_column=ddl_trigger.CONTENT)
        in_progress = TransactionsInProgress() if self.source.pipeline.source.streaming else None
        return OpenLog(stream, scanner, RelationPlans.empty(), all_noted=noted.complete, in_progress=in_progress)

    def _noted_ddl(self) -> ddl_trigger.NotedDdl:
        """Return what may be believed of noted statements; nothing unless the pipeline asks for them."""
        if not self.source.pipeline.source.ddl:
            return ddl_trigger.NotedDdl()
        with self._asking():
            pipeline = self.source.pipeline
            return ddl_trigger.read_ddl_trigger(self.connection, publication_name(pipeline), pipeline.capture).noted

    def _type(self, oid: int, modifier: int) -> tuple[str, tuple[str, ...]]:
        """Return a type's words, and the labels of an enumerated one."""
        with self._asking():
            [(words, labels)] = rows_of(
                self.connection,
                "SELECT format_type(%s::oid, %s), (SELECT array_agg(enumlabel::text ORDER BY enumsortorder) FROM "
                "pg_enum WHERE enumtypid = %s::oid)",
                (oid, modifier, oid),
            )
        return str(words), tuple(labels or ())

    def settled(self) -> Settled:
        """Read the server's clock, the statements that may be committing, and the end of the log.

        Raises PreflightError.
        """
        position = self.info.position
        with self._primary() as primary, self._asking():
            time_us, lsn = settled_end(primary or self.connection, where=self.source.where)
        return Settled(time_us, position.at(lsn).as_offset())

    def release(self, delivered: Offset) -> None:
        """Let the server forget what is in front of ``delivered``.

        A log that this process has open says so with its next status; otherwise the slot is moved on, if nobody reads
        it.
        """
        position, slot = Position.of(delivered), self._slot()
        if slot is None or not self.is_same_log(delivered) or slot.confirmed >= position.lsn:
            return
        if released_here(self.source.endpoint, slot.name, position.lsn):
            return
        with self._asking():
            if not advance(self.connection, slot.name, position.lsn):
                _log.info("slot_not_released", slot=slot.name, position=str(position), reason="it is being read")

    # -- tables --------------------------------------------------------------------------------------------------------
    def tables(self, wants: Callable[[TableId], bool]) -> list[SourceTable]:
        """Return the tables that ``wants`` accepts, with definitions and estimates of the catalog."""
        with self._asking():
            selection = Selection.compile(self.source.pipeline.capture)
            return [table.kept(selection) for table in table_list.source_tables(self.connection, wants)]

    def catalog_table(self, table: TableId) -> CatalogTable | None:
        """Return the present definition of a table; None if there is none."""
        with self._asking():
            return read_table(self.connection, table)

    def _filled_defaults(
        self, oid: int, table: TableId, columns: Mapping[int, ColumnDefinition], noted: bool
    ) -> Mapping[str, str | None]:
        with self._asking():
            return filled_defaults(self.connection, oid, table, columns, noted=noted)

    def catalog_tables(self, wants: Callable[[TableId], bool]) -> list[CatalogTable]:
        """Return the present definitions of the tables that ``wants`` accepts."""
        with self._asking():
            return list(read_tables(self.connection, wants))

    def table_rows(self) -> dict[TableId, int]:
        """Return the server's last count of the rows of every table."""
        with self._asking():
            return table_list.table_rows(self.connection)

    def estimates(self, tables: Sequence[TableId]) -> dict[TableId, int]:
        """Return the planner's present estimate of these tables."""
        with self._asking():
            return table_list.estimates(self.connection, tables)

    def empty_tables(self, tables: Sequence[TableId]) -> list[TableId]:
        """Select one row of each table, and return the tables that have none."""
        with self._asking():
            return table_list.empty_tables(self.connection, tables)

    def keyless(self) -> set[TableId]:
        """Return the tables without a primary key and without a unique key of whole columns that are never null."""
        with self._asking():
            return table_list.keyless_tables(self.connection)

    def create_statement(self, table: TableId, named: TableId) -> str:
        """Return a CREATE TABLE under the other name."""
        with self._asking():
            return table_list.create_statement(self.connection, table, named)

    def blindness(self) -> Blindness | None:
        """Return the GRANT that the login lacks; None if it may select everywhere."""
        with self._asking():
            return table_list.blindness(self.connection)

    def numbering(self) -> tuple[int, int] | None:
        """Return None: sequences are no part of the log."""
        with self._asking():
            return table_list.numbering(self.connection)

    def same_keys(self, fields: Sequence[pa.Field], questions: Sequence[Asked]) -> Iterator[tuple[int, bool]]:
        """Let the server compare text keys by their collations."""
        with self._asking():
            yield from table_list.same_keys(fields, questions)

    # -- dumps ---------------------------------------------------------------------------------------------------------
    def choose_marking(self) -> Marking:
        """Return the only way: the snapshot in which a chunk is read. It needs nothing at the server."""
        return Marking.SNAPSHOT

    def chunk_table(self, table: TableId) -> PostgresChunkTable:
        """Read the table's definition and indexes. Raises DumpRefused if it is missing."""
        with self._asking():
            selection = Selection.compile(self.source.pipeline.capture)
            return open_chunk_table(self.source.endpoint, self.connection, table, selection)


def _write(connection: Connection, statement: str) -> None:
    rows_of(connection, "SET default_transaction_read_only = off")
    rows_of(connection, statement)


def _own(definitions: Definitions) -> PostgreSQLDefinitions:
    assert isinstance(definitions, PostgreSQLDefinitions)
    return definitions


__all__ = ["PostgreSQLSession", "PostgreSQLSource"]
