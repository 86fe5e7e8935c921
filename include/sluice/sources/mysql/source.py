"""The MySQL and MariaDB source: sessions of the port :mod:`sluice.sources.port`, and what they have open."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from sluice.config.connections import ConnectionResolver, Endpoint
from sluice.config.pipeline import PipelineConfig, StartPosition
from sluice.errors import ConfigError, DecodeError, SluiceError, UnsupportedType
from sluice.model import dialects
from sluice.model.column_types import ColumnType
from sluice.model.completeness import Settled
from sluice.model.definitions import Definitions, TableDefinition
from sluice.model.digests import RangeDigest
from sluice.model.dumps import Marking
from sluice.model.findings import Finding
from sluice.model.load_marks import MarkRules
from sluice.model.offset import Offset
from sluice.model.rights import SETTING
from sluice.model.row_effects import ColumnEffect, Ran
from sluice.model.schema_changes import TableChange
from sluice.model.tables import Column, TableId, TableSchema
from sluice.mysql.client import MySQLConnection
from sluice.mysql.ddl.apply import create_table
from sluice.mysql.ddl.ast import CreateTable
from sluice.mysql.ddl.catalog import SchemaState
from sluice.mysql.ddl.lexer import Dialect
from sluice.mysql.ddl.parser import parse_statement
from sluice.mysql.ddl.row_effects import row_effects
from sluice.mysql.key_sql import key_literals, key_table, shown_literal, typed_literal
from sluice.mysql.rights import GrantedRights, grant
from sluice.mysql.row_digest import HashedColumn, hashes_of, not_covered
from sluice.sources.log_digests import hashed_columns, log_digest, not_digested
from sluice.sources.mysql.catalog.history_tracker import SchemaTracker
from sluice.sources.mysql.catalog.live_table import read_definition
from sluice.sources.mysql.catalog.stored_table import schema_of
from sluice.sources.mysql.decoder.row_layout import RowLayout
from sluice.sources.mysql.decoder.scanner import LoggedStatement
from sluice.sources.mysql.history.schema_snapshot import reread_table, snapshot_at
from sluice.sources.mysql.position import Position, is_mariadb
from sluice.sources.mysql.protocol.binlog_dump import BinlogDump, PrefetchedLogin
from sluice.sources.mysql.protocol.log_archive import ArchivedEndpoint, LogArchive, copy_closed, with_archive
from sluice.sources.mysql.reader.batch_reader import capture
from sluice.sources.mysql.reader.event_reread import reread, same_log
from sluice.sources.mysql.reader.log_part import Backlog, LogReading, OpenConnections
from sluice.sources.mysql.reader.log_watch import LogWatch
from sluice.sources.mysql.reader.relocation import relocate
from sluice.sources.mysql.reader.start_position import dump_start, resolve_start
from sluice.sources.mysql.reader.statement_scan import statements_between
from sluice.sources.mysql.server import table_list
from sluice.sources.mysql.server.connection import (
    ServerInfo,
    collations,
    connected,
    log_end,
    open_connection,
    retention_s,
    server_info,
    source_errors,
)
from sluice.sources.mysql.server.control import MySQLControl, control
from sluice.sources.mysql.server.key_equality import same_keys
from sluice.sources.mysql.server.merge_tables import refuse_merge
from sluice.sources.mysql.server.preflight import preflight, privileges, require_ready, rights_findings
from sluice.sources.mysql.server.replication_filters import replication_findings
from sluice.sources.mysql.server.server_ids import check_id, lookahead_id, readers_of, replica_id
from sluice.sources.mysql.server.settled import settled_end
from sluice.sources.mysql.server.table_list import captured_schemas
from sluice.sources.mysql.server.two_way import numbering, unique_keys
from sluice.sources.mysql.snapshot.chunk_reader import MySQLChunkReader, MySQLLoad
from sluice.sources.mysql.snapshot.chunk_table import MySQLChunkTable
from sluice.sources.mysql.snapshot.result_set import open_reader
from sluice.sources.mysql.snapshot.watermarks import (
    after_low,
    choose_marking,
    make_marker,
    mark_table_of,
    required_mark_table,
)
from sluice.sources.port import (
    Blindness,
    ChangeSink,
    SourceIdentity,
    SourceTable,
    StreamLimits,
    StreamResult,
    TableFilter,
    raise_first,
)
from sluice.sources.port.log import M
from sluice.sources.table_filter import Selection

KEPT_S = 10.0
"""How long a log that is not read stays open: the server gives up after a minute in which it cannot send."""


class MySQLKeyText:
    """Keys as SQL literals."""

    def literals(self, columns: Sequence[Column], keys: pa.Table) -> list[tuple[str, ...]]:
        """Print each value of each row as a literal of MySQL."""
        return key_literals(columns, keys)

    def values(self, types: Mapping[str, ColumnType], keys: Sequence[tuple[str, ...]]) -> pa.Table:
        """Read literals of MySQL."""
        return key_table(types, keys)

    def typed(self, column: Column, text: str) -> str:
        """Return the literal for what a person typed, by the column's type. Raises ConfigError."""
        return typed_literal(column, text)

    def shown(self, key: tuple[str, ...]) -> list[str]:
        """Return the values without quotes and escapes."""
        return list(map(shown_literal, key))


@dataclass(frozen=True)
class MySQLSource:
    """The source of one pipeline. See :class:`sluice.sources.port.Source`."""

    kind: ClassVar[str] = "mysql"
    keeps_for_us: ClassVar[bool] = False
    pipeline: PipelineConfig
    resolver: ConnectionResolver
    loads: MarkRules | None = None

    @cached_property
    def endpoint(self) -> Endpoint:
        """The server, with the archive of its log; looked up once."""
        endpoint, uri = self.resolver(self.pipeline.source.connection), self.pipeline.source.archive
        return ArchivedEndpoint.of(endpoint, LogArchive(uri)) if uri else endpoint

    @property
    def where(self) -> str:
        """``host:port`` of the server."""
        return self.endpoint.address

    def location_of(self, table: TableId) -> str:
        """Return the URI of a table, as lineage names it."""
        return self.endpoint.uri("mysql", 3306, table.schema, table.table)

    @property
    def keys(self) -> MySQLKeyText:
        """The writer of keys as SQL literals."""
        return MySQLKeyText()

    def stored_definitions(self, base: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]) -> SchemaState:
        """Return the definitions with the version and settings of the server that they were captured from."""
        return SchemaState.from_stored(base, parts)

    def stored_table(self, definition: TableDefinition) -> TableSchema:
        """Return the columns that the binary log has for this definition. Raises UnsupportedType."""
        return Selection.compile(self.pipeline.capture).kept(schema_of(definition))

    def dialect(self, at: Offset) -> dialects.Dialect:
        """Return MariaDB's if the offset's server is one, else MySQL's."""
        return dialects.MARIADB if is_mariadb(at.server) else dialects.MYSQL

    def row_effects(self, at: Offset, change: TableChange, statement: Ran) -> tuple[ColumnEffect, ...]:
        """Return the effect of a statement on stored values, by the conversion rules of the server that ran it."""
        return row_effects(change, statement, mariadb=self.dialect(at) == dialects.MARIADB)

    def log_digest(self, schema: TableSchema, rows: pa.Table) -> RangeDigest | str:
        """See :class:`sluice.sources.port.DigestsLog`."""
        refused = self.not_digested(schema)
        columns = list(map(HashedColumn.of, hashed_columns(schema)))
        return refused or log_digest(schema, rows, partial(hashes_of, columns))

    def not_digested(self, schema: TableSchema) -> str:
        """See :class:`sluice.sources.port.DigestsLog`."""
        return not_digested(schema, lambda column: not_covered(HashedColumn.of(column)))

    @property
    def watermark_table(self) -> TableId:
        """The pipeline's own table in ``dump.marks_schema``, the connection's schema or ``sluice``."""
        return mark_table_of(self.pipeline, self.endpoint)

    @property
    def server_id(self) -> int:
        """The pipeline's own replica id."""
        return replica_id(self.pipeline)

    @property
    def watch_key(self) -> str:
        """The connection as JSON. Holds the password."""
        at = self.endpoint
        return json.dumps([self.kind, at.host, at.port, at.user, at.password, at.schema, dict(at.extra)], default=str)

    def watch(self) -> LogWatch:
        """Return a watch over the binary log of this server."""
        return LogWatch(self.endpoint)

    @contextmanager
    def open(self, *, to_stream: bool = False) -> Iterator[MySQLSession]:
        """Connect to the server; with ``to_stream`` also log in for the log, in the background."""
        with ExitStack() as opened:
            login = opened.enter_context(closing(PrefetchedLogin(self.endpoint))) if to_stream else None
            session = MySQLSession(self, opened.enter_context(connected(self.endpoint)), login)
            opened.callback(session.close)
            yield session

    def control(self, name: str, *, within_s: float) -> AbstractContextManager[MySQLControl]:
        """Open the controlling session of this name."""
        return control(self.endpoint, name, within_s=within_s)

    @contextmanager
    def open_chunks(self, marking: Marking, owner: str) -> Iterator[MySQLChunkReader]:
        """Open two connections: one for questions and marks, one for the rows of chunks."""
        with open_connection(self.endpoint) as connection, open_reader(self.endpoint) as reader:
            marker = make_marker(marking, connection, reader, self.watermark_table, owner)
            selection = Selection.compile(self.pipeline.capture)
            yield MySQLChunkReader(
                self.endpoint, connection, reader, marker, pipeline=self.pipeline.pipeline, selection=selection
            )

    @contextmanager
    def open_replica(self, connection: str) -> Iterator[MySQLLoad]:
        """Connect to a replica, to ask for its load and lag."""
        endpoint = self.resolver(connection)
        with open_connection(endpoint) as opened:
            yield MySQLLoad(endpoint, opened, "asking a replica how far behind it is")

    def after_low(self, marking: Marking, low: str, rows: Mapping[str, Any] | pa.Table) -> np.ndarray[Any, Any]:
        """Return a mask of the changes after the GTID set, or after the position of the snapshot, in ``low``."""
        assert isinstance(rows, pa.Table)
        return after_low(marking, low, rows)

    def is_exact(self, marking: Marking, low: str) -> bool:
        """Return True for MariaDB's snapshots, which have a position of the log; rows of a table and GTID sets are
        written or read before the select begins.
        """
        return marking is Marking.SNAPSHOT


class MySQLSession:
    """See :class:`sluice.sources.port.SourceSession`. ``login``: of the log's connection; None: it does not stream."""

    def __init__(self, source: MySQLSource, connection: MySQLConnection, login: PrefetchedLogin | None) -> None:
        self.source = source
        self.connection = connection
        self._login = login
        self._log: BinlogDump | None = None
        self._log_at: Offset | None = None
        self._goes_on_since: float | None = None
        self._layouts: dict[bytes, RowLayout] = {}

    def close(self) -> None:
        """Close the log's connection, if it is open."""
        if self._log is not None:
            self._log.close()
            self._log = None
        self._goes_on_since = None

    @contextmanager
    def _asking(self) -> Iterator[None]:
        with source_errors(self.source.endpoint, "asking the source"):
            yield

    @cached_property
    def info(self) -> ServerInfo:
        """The server's description of itself."""
        with self._asking():
            return server_info(self.connection)

    def logged(self, at: Offset | None) -> ServerInfo:
        """Return the same, with the archived files of the log if the server lacks the one of ``at``."""
        return with_archive(self.info, self.source.endpoint, Position.of(at).file) if at else self.info

    @cached_property
    def collations(self) -> dict[int, tuple[str, str]]:
        """The server's collations, by number."""
        with self._asking():
            return collations(self.connection)

    @property
    def identity(self) -> SourceIdentity:
        """The server's UUID, dialect, version and ``server_id``."""
        info = self.info
        return SourceIdentity(info.server_uuid, info.dialect, info.version, info.server_id)

    @property
    def head(self) -> Offset | None:
        """The end of the binary log; None if ``log_bin`` is off."""
        return self.info.head.as_offset() if self.info.head.file else None

    def archive(self) -> Iterator[tuple[str, int]]:
        """Copy the closed files of the log that its archive lacks."""
        return copy_closed(self.source.endpoint, self.info, server_id=lookahead_id(self.source.server_id))

    def retention_s(self) -> float | None:
        """Return for how many seconds the server keeps its binary log."""
        with self._asking():
            return retention_s(self.connection, self.info)

    @property
    def history(self) -> MySQLSchemaHistory:
        """The schema history: the binary log names columns, but does not describe them in full."""
        return MySQLSchemaHistory(self)

    def lag_bytes(self, at: Offset) -> int | None:
        """Return the bytes of log files between ``at`` and the head; None if the file of ``at`` was purged.

        In a session whose log stays open the head is asked for again.
        """
        if self._goes_on_since is None:
            return self.logged(at).bytes_behind(Position.of(at))
        with self._asking():  # what was said at the begin of the session is old by now
            file, offset = log_end(self.connection)
        reached = Position.of(at)
        if file == reached.file:
            return max(offset - reached.offset, 0)
        self.look_again()
        return self.logged(at).bytes_behind(reached)

    # -- before reading ------------------------------------------------------------------------------------------------
    def preflight(self, at: Offset | None) -> list[Finding]:
        """Check the server's settings, the login's rights and the log at ``at``; in a channel the unique keys too."""
        try:
            info = self.logged(at)
        except SluiceError:
            lacking = self._lacking_rights()
            if lacking:
                return lacking
            raise
        with self._asking():
            findings = preflight(
                self.connection, info, self.source.pipeline, _read(at), self.source.server_id, two_way=self._two_way
            )
            if self._two_way:
                findings += unique_keys(self.connection, Selection.compile(self.source.pipeline.capture))
            if not any(finding.setting == SETTING for finding in findings):
                can_without = info.is_mariadb or info.variables.get("gtid_mode", "").upper() == "ON"
                watermarks = required_mark_table(self.source.pipeline, self.source.endpoint, can_without=can_without)
                findings += rights_findings(self.connection, self.source.pipeline, watermarks)
            return findings

    def _lacking_rights(self) -> list[Finding]:
        """Return what a login that may not even ask for the log lacks; watermarks may need more."""
        pipeline = self.source.pipeline
        watermarks = required_mark_table(pipeline, self.source.endpoint, can_without=True)
        with self._asking():
            return privileges(self.connection) + rights_findings(self.connection, pipeline, watermarks)

    def replication_findings(self) -> list[Finding]:
        """Return the replication filters that keep changes of captured tables out of this server."""
        info = self.info
        with self._asking():
            return replication_findings(self.connection, info, Selection.compile(self.source.pipeline.capture))

    def require_ready(self, at: Offset | None) -> None:
        """Raise the first error of the pre-flight, without the check of unique keys; log its warnings."""
        info = self.logged(at)
        with self._asking():
            require_ready(
                self.connection, info, self.source.pipeline, _read(at), self.source.server_id, two_way=self._two_way
            )

    @property
    def _two_way(self) -> bool:
        """The server is a site of a channel."""
        return self.source.loads is not None and self.source.loads.two_way

    def confirm(self, at: Offset) -> None:
        """Read the last event before ``at`` again. Raises LostPosition if another one is there."""
        mariadb, own = self.info.is_mariadb, self.source.server_id
        number = own if self._login is not None else check_id(own)
        with self._asking():
            stream = reread(self.source.endpoint, Position.of(at), server_id=number, mariadb=mariadb, login=self._login)
        if self._login is not None:
            self.close()
            self._log, self._log_at = stream, at
        elif stream is not None:
            stream.close()

    def goes_on(self, at: Offset) -> bool:
        """Return True if the log has been open at ``at`` for less than :data:`KEPT_S` seconds."""
        since = self._goes_on_since
        return self._log is not None and self._log_at == at and since is not None and time.monotonic() - since < KEPT_S

    def look_again(self) -> None:
        """Forget the server's description, so that the next question reads it."""
        self.__dict__.pop("info", None)

    def _info_anew(self) -> ServerInfo:
        self.look_again()
        return self.info

    def _keep(self, stream: BinlogDump, at: Offset) -> None:
        self._log, self._log_at, self._goes_on_since = stream, at, time.monotonic()

    def resolve_start(self, start: str | StartPosition) -> Offset:
        """Return the offset for a word, file and offset, GTID set or time. Raises LostPosition, ConfigError."""
        info = self.info
        if start == "earliest":
            info = with_archive(info, self.source.endpoint, None)
        with self._asking():
            return resolve_start(self.source.endpoint, self.connection, info, start, self.source.server_id).as_offset()

    def relocate(self, at: Offset, *, patience_s: float = 0.0) -> Offset:
        """Find the position by the GTID set, unless a replication filter may have left transactions out.

        Raises LostPosition, ConfigError, PreflightError.
        """
        info = self.info
        with self._asking():
            raise_first(
                [finding for finding in self.replication_findings() if finding.severity == "error"], self.source.where
            )
            return relocate(
                self.connection,
                info,
                Position.of(at),
                look_again=self._info_anew,
                patience_s=patience_s,
                where=self.source.where,
            ).as_offset()

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

        Several readers share a long backlog of MySQL; MariaDB has one reader.
        """
        info, source = self.logged(start), self.source
        known_position = Position.of(start)
        begin = dump_start(info, known_position)
        goes_on = self.goes_on(start)
        stream, self._log, self._goes_on_since = self._log, None, None
        if stream is not None and (begin != known_position or self._log_at != start):
            stream.close()
            stream = None
        if not goes_on:
            self._layouts.clear()
        several = not one_reader and not info.is_mariadb  # MariaDB 10.11.19 crashed under several
        reading = LogReading(
            source.endpoint,
            source.server_id,
            table_filter,
            limits,
            marks=source.watermark_table,
            loads=source.loads,
            history=(lambda: _own(definitions())) if definitions is not None else None,
        )
        return capture(
            reading,
            begin,
            sink,
            progress=progress,
            redefine=lambda table, at: self.history.definition(table, at.as_offset()),
            backlog=Backlog(readers_of(source.pipeline) if several else 1, info.binary_logs),
            opened=OpenConnections(
                self.connection, self._login, stream, self._layouts, self._keep if self._login is not None else None
            ),
        )

    def settled(self) -> Settled:
        """Read the server's clock and then the end of its log. Raises PreflightError."""
        info = self.info
        with self._asking():
            return settled_end(self.connection, info, where=self.source.where)

    def release(self, delivered: Offset) -> None:
        """Do nothing: the server keeps its log as long as it is configured to, whoever reads it."""

    # -- tables --------------------------------------------------------------------------------------------------------
    def tables(self, wants: Callable[[TableId], bool]) -> list[SourceTable]:
        """Return the tables that ``wants`` accepts, with definitions and estimates of ``information_schema``."""
        with self._asking():
            selection = Selection.compile(self.source.pipeline.capture)
            return [table.kept(selection) for table in table_list.source_tables(self.connection, wants)]

    def table_rows(self) -> dict[TableId, int]:
        """Return ``TABLE_ROWS`` of the captured schemas' tables; MySQL may have it from a cache that is a day old."""
        with self._asking():
            schemas = captured_schemas(self.connection, Selection.compile(self.source.pipeline.capture))
            return table_list.table_rows(self.connection, schemas)

    def estimates(self, tables: Sequence[TableId]) -> dict[TableId, int]:
        """Return ``TABLE_ROWS`` of these tables, without cached statistics."""
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
        """Return ``SHOW CREATE TABLE`` under the other name, without counter and foreign keys."""
        with self._asking():
            return table_list.create_statement(self.connection, table, named)

    def blindness(self) -> Blindness | None:
        """Return the GRANT that the login lacks; None if it may select everywhere."""
        with self._asking():
            granted = GrantedRights.read(self.connection)
        if granted.has("SELECT"):
            return None
        return Blindness(
            granted.user, grant(["SELECT"], granted.account), lambda schema: grant(["SELECT"], granted.account, schema)
        )

    def numbering(self) -> tuple[int, int] | None:
        """Return ``auto_increment_increment`` and ``auto_increment_offset`` of the server."""
        with self._asking():
            return numbering(self.connection)

    def same_keys(
        self, fields: Sequence[pa.Field], questions: Sequence[tuple[int, tuple[Any, ...], Sequence[tuple[Any, ...]]]]
    ) -> Iterator[tuple[int, bool]]:
        """Let the server compare text keys by their collations."""
        with self._asking():
            yield from same_keys(self.connection, fields, questions)

    # -- dumps ---------------------------------------------------------------------------------------------------------
    def choose_marking(self) -> Marking:
        """Choose by ``dump.marks`` and the server's settings, and create the watermark table if it is used.

        Raises PreflightError.
        """
        mariadb = self.info.is_mariadb
        with self._asking():
            return choose_marking(self.connection, self.source.pipeline, self.source.endpoint, mariadb=mariadb)

    def chunk_table(self, table: TableId) -> MySQLChunkTable:
        """Read the table's definition and indexes. Raises ConfigError if it is missing or a MERGE table."""
        info = self.info
        with self._asking():
            live = read_definition(self.connection, table, lambda: self.collations)
            refuse_merge(self.connection, table)
        return MySQLChunkTable(self.source.endpoint, info, live.kept(Selection.compile(self.source.pipeline.capture)))


def _read(at: Offset | None) -> Position | None:
    return Position.of(at) if at is not None else None


def _own(definitions: Definitions) -> SchemaState:
    assert isinstance(definitions, SchemaState)
    return definitions


@dataclass(frozen=True)
class MySQLSchemaHistory:
    """See :class:`sluice.sources.port.SchemaHistory`."""

    session: MySQLSession

    @property
    def _endpoint(self) -> Endpoint:
        return self.session.source.endpoint

    def snapshot(
        self, at: Offset, table_filter: TableFilter, progress: Callable[[], None] | None = None
    ) -> SchemaState:
        """Read today's definitions; a table that a statement changed since ``at`` is unknown in them."""
        session = self.session
        info = session.logged(at)
        with session._asking():
            return snapshot_at(
                self._endpoint,
                session.connection,
                info,
                dump_start(info, Position.of(at)),
                server_id=session.source.server_id,
                selection=table_filter,
                progress=progress,
            )

    def has(self, at: Offset) -> bool:
        """Return True if the log file of ``at`` is still on the server, or archived."""
        return Position.of(at).file in {name for name, _ in self.session.logged(at).binary_logs}

    def is_same_log(self, at: Offset) -> bool:
        """Read the last event before ``at`` again; False if it is another one than was read."""
        number = lookahead_id(self.session.source.server_id)
        with self.session._asking():
            return same_log(self._endpoint, Position.of(at), server_id=number, mariadb=self.session.info.is_mariadb)

    def fold(
        self, definitions: Definitions, start: Offset, stop: Offset, progress: Callable[[], None] | None = None
    ) -> None:
        """Read the DDL statements between two offsets from the log and apply them."""
        info, names = self.session.logged(start), self.session.collations
        wanted_selection = Selection.compile(self.session.source.pipeline.capture)
        tracker = SchemaTracker(
            lambda: _own(definitions),
            lambda: names,
            lambda table, at: self.definition(table, at.as_offset()),
            wanted_selection.wants,
        )

        def fold(statement: LoggedStatement) -> None:
            tracker.statement(statement)

        with self.session._asking():
            statements_between(
                self._endpoint,
                server_id=self.session.source.server_id,
                start=dump_start(info, Position.of(start)),
                stop=dump_start(info, Position.of(stop)),
                statement=fold,
                progress=progress,
            )

    def definition(self, table: TableId, at: Offset) -> TableDefinition:
        """Read today's definition on a connection of its own. Raises SchemaUnknown if it changed since ``at``."""
        number = self.session.source.server_id
        with open_connection(self._endpoint) as connection:
            info = with_archive(server_info(connection), self._endpoint, Position.of(at).file)
            return reread_table(
                self._endpoint, connection, info, table, dump_start(info, Position.of(at)), server_id=number
            )

    def parse(self, definitions: Definitions, table: TableId, sql: str) -> TableDefinition:
        """Parse the CREATE TABLE by the dialect and settings of ``definitions``. Raises ConfigError."""
        known_state = _own(definitions)
        hint = "give the CREATE TABLE as SHOW CREATE TABLE printed it then"
        try:
            statement = parse_statement(
                sql, table.schema, Dialect(known_state.flavour.mariadb, known_state.flavour.version)
            )
            if not isinstance(statement, CreateTable) or not statement.columns:
                raise ConfigError("the statement is not a CREATE TABLE with columns", where=str(table), hint=hint)
            return create_table(
                replace(statement, table=table), known_state.database(table.schema), known_state.flavour
            )
        except (DecodeError, UnsupportedType) as error:
            raise ConfigError(
                f"the CREATE TABLE is not understood: {error.message}", where=str(table), hint=hint
            ) from error


__all__ = ["MySQLKeyText", "MySQLSchemaHistory", "MySQLSession", "MySQLSource"]
