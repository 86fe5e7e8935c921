"""Marks around the select of a chunk: a row in the log, or nothing written and the server's own account of what it has
executed.

Why they are right:

* A row: a mark is a transaction. The low one is committed before the select begins, and the server commits in the order
  of its log (``binlog_order_commits``), so all that stands before it in the log is visible. The high one is written
  after the select has ended, so all that was visible stands before it.
* A GTID set (MySQL): a GTID enters ``gtid_executed`` after its transaction is visible, so the set read before the
  select holds nothing that the select did not see.
* A snapshot (MariaDB): ``START TRANSACTION WITH CONSISTENT SNAPSHOT`` says for which place in the log its snapshot
  stands.

In every case the end of the log, asked after the select, is after all that was visible: a transaction is written there
before it is committed.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pymysql

from sluice.config.connections import Endpoint
from sluice.config.pipeline import PipelineConfig
from sluice.errors import PreflightError
from sluice.model.dumps import Chunk, Mark, Marking
from sluice.model.log_files import place_order, split_file
from sluice.model.tables import TableId, quoted
from sluice.mysql.client import AccessDenied
from sluice.mysql.rights import DENIED
from sluice.sources.mysql.decoder.watermark_table import COLUMNS, mark_table
from sluice.sources.mysql.events.gtids import GtidSet
from sluice.sources.mysql.server.connection import is_replica, log_end, rows_of
from sluice.sources.mysql.snapshot.result_set import text_rows
from sluice.sources.port import Watermarker

SLOTS = 64
_MAY_NOT_WRITE = DENIED | {1290, 1792, 1836, 3989}


def mark_table_of(pipeline: PipelineConfig, endpoint: Endpoint) -> TableId:
    """Return the watermark table of a pipeline."""
    return mark_table(pipeline.dump.marks_schema or endpoint.schema or "sluice", pipeline.pipeline)


def required_mark_table(pipeline: PipelineConfig, endpoint: Endpoint, *, can_without: bool) -> TableId | None:
    """Return the watermark table if dumps do not work without it."""
    required = pipeline.dump.marks == "table" or (pipeline.dump.marks == "auto" and not can_without)
    return mark_table_of(pipeline, endpoint) if required else None


def choose_marking(connection: Any, pipeline: PipelineConfig, endpoint: Endpoint, *, mariadb: bool) -> Marking:
    """Choose how a new dump is marked, and create the watermark table where it is used.

    A row that is written to a replica is a transaction that the servers it follows lack. So with ``marks: auto``
    nothing is written to a replica if the dump works without.

    Raises:
        PreflightError: the server commits in another order than it logs, or nothing may be written and GTIDs are off.
    """
    settings = {
        str(name).lower(): str(value).upper()
        for name, value in rows_of(
            connection, "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('binlog_order_commits', 'gtid_mode')"
        )
    }
    if settings.get("binlog_order_commits") == "OFF":
        raise PreflightError(
            "binlog_order_commits is OFF: the server may commit in another order than it logs, and marks in the log "
            "mean nothing",
            where=endpoint.address,
            hint="SET PERSIST binlog_order_commits = ON",
        )
    refused, hint = "", ""
    can_without = mariadb or settings.get("gtid_mode") == "ON"
    spared = pipeline.dump.marks == "auto" and can_without and is_replica(connection, mariadb=mariadb)
    if pipeline.dump.marks != "none" and not spared:
        table = mark_table_of(pipeline, endpoint)
        try:
            _make(connection, table)
            return Marking.TABLE
        except pymysql.err.MySQLError as error:
            if pipeline.dump.marks == "table" or error.args[0] not in _MAY_NOT_WRITE:
                raise
            refused = f" (the user may not write {table}: {error.args[1]})"
            hint = f"{error.hint}; or " if isinstance(error, AccessDenied) else ""
    if mariadb:
        return Marking.SNAPSHOT
    if settings.get("gtid_mode") != "ON":
        raise PreflightError(
            f"a dump can't be marked: nothing may be written at the source, and GTIDs are off{refused}",
            where=endpoint.address,
            hint=f"{hint}turn gtid_mode on",
        )
    return Marking.GTID


def _make(connection: Any, table: TableId) -> None:
    have = rows_of(
        connection,
        "SELECT 1 FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
        (table.schema, table.table),
    )
    if not have:
        if not rows_of(connection, "SELECT 1 FROM information_schema.SCHEMATA WHERE SCHEMA_NAME = %s", (table.schema,)):
            rows_of(connection, f"CREATE DATABASE IF NOT EXISTS {quoted(table.schema)}")
        rows_of(
            connection,
            f"CREATE TABLE IF NOT EXISTS {quoted(table.schema)}.{quoted(table.table)} ({COLUMNS}) ENGINE = InnoDB",
        )
    write_mark(connection, table, 0, "made")


def write_mark(connection: Any, table: TableId, slot: int, text: str) -> None:
    """Write a mark: one committed transaction in the log. ``connection`` is in autocommit."""
    rows_of(
        connection,
        f"INSERT INTO {quoted(table.schema)}.{quoted(table.table)} (slot, mark) VALUES (%s, %s) "  # noqa: S608 - quoted
        "ON DUPLICATE KEY UPDATE mark = VALUES(mark)",
        (slot, text),
    )


class TableMarker:
    """Rows of the watermark table."""

    def __init__(self, connection: Any, table: TableId, owner: str) -> None:
        self._connection = connection
        self._table = table
        self._slot = 1 + zlib.crc32(owner.encode()) % SLOTS

    def low(self, chunk: Chunk) -> str:
        """Commit the low mark in the slot of this owner. The chunk has nothing to remember."""
        write_mark(self._connection, self._table, self._slot, Mark(chunk.id, chunk.attempt, high=False).text)
        return ""

    @contextmanager
    def reading(self, chunk: Chunk) -> Iterator[str | None]:
        """Yield None: the marks are rows of the log."""
        yield None

    def high(self, chunk: Chunk) -> None:
        """Commit the high mark in the slot of this owner."""
        write_mark(self._connection, self._table, self._slot, Mark(chunk.id, chunk.attempt, high=True).text)


class GtidMarker:
    """The set of executed GTIDs; nothing is written."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def low(self, chunk: Chunk) -> str:
        """Return ``gtid_executed``: the chunk remembers the set."""
        return str(rows_of(self._connection, "SELECT @@GLOBAL.gtid_executed")[0][0]).replace("\n", "")

    @contextmanager
    def reading(self, chunk: Chunk) -> Iterator[str | None]:
        """Yield None: what :meth:`low` returned stays."""
        yield None

    def high(self, chunk: Chunk) -> None:
        """Do nothing: the end of the log, asked after the select, closes the window."""
        return


class SnapshotMarker:
    """MariaDB's consistent snapshot on the connection that reads the rows, which knows its place in the log; nothing is
    written.
    """

    def __init__(self, reader: Any) -> None:
        self._reader = reader

    def low(self, chunk: Chunk) -> str:
        """Return "": the snapshot does not exist before :meth:`reading`."""
        return ""

    @contextmanager
    def reading(self, chunk: Chunk) -> Iterator[str | None]:
        """Open the snapshot and yield its position, ``file:offset``; roll back at the end."""
        rows_of(self._reader, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        rows_of(self._reader, "START TRANSACTION WITH CONSISTENT SNAPSHOT")
        try:
            status = dict(text_rows(self._reader, "SHOW STATUS LIKE 'binlog_snapshot_%'"))
            variables = {str(name).lower(): str(value) for name, value in status.items()}
            yield f"{variables['binlog_snapshot_file']}:{variables['binlog_snapshot_position']}"
        finally:
            self._reader.rollback()

    def high(self, chunk: Chunk) -> None:
        """Do nothing: the end of the log, asked after the select, closes the window."""
        return


@dataclass(frozen=True, slots=True)
class SnapshotMoment:
    """The place of a snapshot in the log, see :class:`sluice.sources.port.SnapshotDigest`."""

    low: str
    start: str
    end: str


@contextmanager
def quiet_snapshot(connection: Any, reader: Any, watermarks: Watermarker, chunk: Chunk) -> Iterator[SnapshotMoment]:
    """Open a consistent snapshot on the connection that reads rows, and say where it stands in the log.

    As long as it goes, it is opened anew until nothing is written around it. The log says afterwards whether something
    was. A mark that is a row is committed before the snapshot, and so is all that the log has before it.
    """
    if isinstance(watermarks, SnapshotMarker):
        start = end_of_log(connection)
        with watermarks.reading(chunk) as exact:
            yield SnapshotMoment(str(exact), start, end_of_log(connection))
        return
    least = min(_written_by(connection, watermarks, chunk) for _ in range(_PROBES))
    for attempt in range(_WINDOWS):
        start, low = end_of_log(connection), watermarks.low(chunk)
        rows_of(reader, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        rows_of(reader, "START TRANSACTION WITH CONSISTENT SNAPSHOT")
        try:
            end = end_of_log(connection)
            if _bytes_between(start, end) > least and attempt < _WINDOWS - 1:
                continue
            yield SnapshotMoment(low, start, end)
            return
        finally:
            reader.rollback()


_PROBES, _WINDOWS = 5, 100
"""Marks that show how many bytes of the log one has; snapshots that are tried."""


def _written_by(connection: Any, watermarks: Watermarker, chunk: Chunk) -> int:
    """Return the bytes of the log while a mark is made."""
    start = end_of_log(connection)
    watermarks.low(chunk)
    return _bytes_between(start, end_of_log(connection))


def _bytes_between(start: str, end: str) -> int:
    """Return the bytes of the log between two places; very many if they are in two files."""
    (file, offset), (last_file, last) = place_order(start), place_order(end)
    return last - offset if file == last_file else 1 << 62


def make_marker(marking: Marking, connection: Any, reader: Any, table: TableId, owner: str) -> Watermarker:
    """Return the marker of a dump. ``reader``: the connection that reads the rows."""
    if marking is Marking.TABLE:
        return TableMarker(connection, table, owner)
    return GtidMarker(connection) if marking is Marking.GTID else SnapshotMarker(reader)


def after_low(marking: Marking, low: str, rows: pa.Table) -> np.ndarray[Any, Any]:
    """Return a mask of the changes after the low watermark that a chunk remembers, for a marking without a table."""
    if marking is Marking.GTID:
        executed = GtidSet(low)
        gtids = rows["_gtid"].combine_chunks().dictionary_encode()
        is_later = np.array(
            [not executed.contains(GtidSet(g or "")) if g else True for g in gtids.dictionary.to_pylist()] or [True]
        )
        indexes = pc.fill_null(gtids.indices, 0).to_numpy(zero_copy_only=False)
        return np.asarray(is_later[indexes] if rows.num_rows else np.zeros(0, bool))
    file, place = place_order(low)
    files = rows["_file"].combine_chunks().dictionary_encode()
    numbers = np.array([split_file(f)[1] for f in files.dictionary.to_pylist()] or [0])
    number = numbers[files.indices.to_numpy(zero_copy_only=False)] if rows.num_rows else np.zeros(0, np.int64)
    offset = rows["_offset"].to_numpy().astype(np.int64)
    return np.asarray((number > file) | ((number == file) & (offset >= place)))


def end_of_log(connection: Any) -> str:
    """Return ``file:offset`` of the end of the log."""
    file, offset = log_end(connection)
    return f"{file}:{offset}"


__all__ = [
    "GtidMarker", "SnapshotMarker", "SnapshotMoment", "TableMarker", "after_low", "choose_marking", "end_of_log",
    "make_marker", "mark_table_of", "quiet_snapshot", "write_mark",
]  # fmt: skip
