"""The part of a log that is read: values that the reader of a batch and the readers of closed files share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sluice.config.connections import Endpoint
from sluice.model.load_marks import TABLE as MARKING_TABLE
from sluice.model.load_marks import MarkRules
from sluice.model.offset import Offset
from sluice.model.tables import TableId
from sluice.mysql.ddl.catalog import SchemaState
from sluice.sources.mysql.decoder.row_layout import RowLayout
from sluice.sources.mysql.decoder.scanner import ARENA_BYTES
from sluice.sources.mysql.protocol.binlog_dump import BinlogDump, PrefetchedLogin
from sluice.sources.mysql.reader.parallel import PIECE_BYTES
from sluice.sources.port import StreamLimits
from sluice.sources.table_filter import Selection


@dataclass(frozen=True, slots=True)
class LogReading:
    """The part of a log that is read, and by whom.

    Attributes:
        endpoint: the source. server_id: the replica's id at the server.
        selection: which changes; limits: what closes the batch.
        marks: the watermark table of dumps; its rows go to the writer, too.
        history: gives the schema history as of the start of the batch, called when it is first needed.
        arena_bytes: row events that are decoded at a time.
        loads: what is done with what Sluice itself wrote at this server; None: it is captured as what applications
            write.
    """

    endpoint: Endpoint
    server_id: int
    selection: Selection
    limits: StreamLimits
    marks: TableId | None = None
    history: Callable[[], SchemaState] | None = None
    arena_bytes: int = ARENA_BYTES
    loads: MarkRules | None = None

    def is_marking(self, table: TableId) -> bool:
        """Return True for the table whose rows stand around what Sluice loaded, if marks are processed."""
        return self.loads is not None and table.table == MARKING_TABLE

    def lacks_key(self, layout: RowLayout) -> bool:
        """Return True for a table without a key in a channel that loops back: its rows would be loaded twice."""
        return self.loads is not None and self.loads.sends_back and not len(layout.key)


@dataclass(frozen=True, slots=True)
class Backlog:
    """Settings for reading closed files in parallel while there are several.

    Rows, positions and batches are the same for any number of readers.

    Attributes:
        readers: connections that read side by side. logs: (name, size in bytes) of the server's log files, oldest
            first.
        piece_bytes: what a reader takes at least. See :mod:`sluice.sources.mysql.reader.parallel`.
    """

    readers: int = 1
    logs: Sequence[tuple[str, int]] = ()
    piece_bytes: int = PIECE_BYTES


@dataclass(frozen=True, slots=True)
class OpenConnections:
    """Connections that are already open. A missing one is opened when it is needed.

    Attributes:
        sql: an SQL connection to the source that is free meanwhile. login: for the log's connection, begun already.
        log: the log from the start on; it is closed by whoever reads it.
        layouts: plans of tables by table map, of earlier batches that were read from ``log``; those that are met are
            added.
        keep: takes the log where the batch ended, to go on with later; None: it is closed.
    """

    sql: Any = None
    login: PrefetchedLogin | None = None
    log: BinlogDump | None = None
    layouts: dict[bytes, RowLayout] = field(default_factory=dict)
    keep: Callable[[BinlogDump, Offset], None] | None = None
