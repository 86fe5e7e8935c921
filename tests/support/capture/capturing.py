"""Helpers of the capture tests: drain a server from a position into a store, and read back what is there."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sluice.config.connections import parse_connection
from sluice.config.pipeline import CaptureConfig
from sluice.model.changes import Change
from sluice.model.tables import stored_name
from sluice.model.temporal import to_text
from sluice.segments.manifest import SegmentManifest
from sluice.segments.reader import iter_changes, read_file
from sluice.segments.store import SegmentStore
from sluice.segments.writer import SegmentWriter
from sluice.sources.mysql.position import Position
from sluice.sources.mysql.reader.batch_reader import capture
from sluice.sources.mysql.reader.log_part import Backlog, LogReading
from sluice.sources.mysql.server.connection import open_connection, server_info
from sluice.sources.port import StreamLimits, StreamResult
from sluice.sources.table_filter import Selection


@dataclass
class Drain:
    """Drains one server batch by batch."""

    server: Any
    store: SegmentStore
    config: CaptureConfig
    position: Position
    server_id: int = 3_000_000_001
    batch: int = 0
    results: list[StreamResult[SegmentManifest]] = field(default_factory=list)
    arena_bytes: int = 24 * 2**20
    readers: int = 1
    piece_bytes: int = 1

    @property
    def endpoint(self):
        return parse_connection("source", self.server.connection_json())

    def once(self, writer: Callable[[], SegmentWriter] | None = None, **limits: Any) -> StreamResult[SegmentManifest]:
        """One batch (or none), up to the head of now unless told otherwise."""
        if "stop_at" not in limits:
            limits["stop_at"] = head(self.endpoint).as_offset()
        number = self.batch + 1
        wanted = StreamLimits(**({"max_wait_s": 30.0, "idle_wait_s": 10.0} | limits))
        selection = Selection.compile(self.config)
        result = capture(
            LogReading(self.endpoint, self.server_id, selection, wanted, arena_bytes=self.arena_bytes),
            self.position,
            writer or (lambda: SegmentWriter(self.store, number, 1)),
            backlog=Backlog(self.readers, log_files(self.endpoint) if self.readers > 1 else (), self.piece_bytes),
        )
        self.position = Position.of(result.last)
        if result.manifest is not None:
            self.batch = number
            self.results.append(result)
        return result

    def all(self, **limits: Any) -> list[SegmentManifest]:
        """Everything up to the head of now."""
        stop = head(self.endpoint).as_offset()
        made = []
        while True:
            result = self.once(stop_at=stop, **limits)
            if result.manifest is not None:
                made.append(result.manifest)
            if result.reached_head:
                return made

    def changes(self, manifests: list[SegmentManifest]) -> list[Change]:
        return [change for manifest in manifests for change in iter_changes(self.store, manifest)]

    def table(self, manifests: list[SegmentManifest], table: str) -> pa.Table:
        """All rows of a table that has one definition, in log order."""
        parts = [read_file(self.store, f) for m in manifests for f in m.files if f.table == table]
        whole = pa.concat_tables(parts)
        whole = whole.filter(pc.not_equal(whole.column("_op"), "k"))
        return whole.sort_by([("_file", "ascending"), ("_offset", "ascending"), ("_row", "ascending")])


def head(endpoint: Any) -> Position:
    with open_connection(endpoint) as connection:
        return server_info(connection).head


def log_files(endpoint: Any) -> tuple[tuple[str, int], ...]:
    with open_connection(endpoint) as connection:
        return server_info(connection).binary_logs


@contextmanager
def draining(server: Any, folder: Path, schema: str, **config: Any):
    """A Drain that starts at the head of now."""
    config.setdefault("include", (rf"{schema}\..*",))
    endpoint = parse_connection("source", server.connection_json())
    yield Drain(server, SegmentStore(f"file://{folder}/store", "test"), CaptureConfig(**config), head(endpoint))


def texts(table: pa.Table | pa.StructArray, column: str, sql_type: str) -> list[str | None]:
    """A stored column as the text (or hex digits) the server prints for it, see ``printed``."""
    name = stored_name(column)
    values = table.column(name).combine_chunks() if isinstance(table, pa.Table) else table.field(name)
    kind = values.type
    if pa.types.is_date32(kind) or pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        digits = int(sql_type.partition("(")[2].rstrip(")") or 0)
        return to_text(values, fsp=digits).to_pylist()
    if pa.types.is_binary(kind):
        return [None if v is None else v.hex().upper() for v in values.to_pylist()]
    if sql_type.startswith("year"):
        return [None if v is None else f"{v:04d}" for v in values.to_pylist()]
    if pa.types.is_decimal(kind):
        return [None if v is None else f"{v:f}" for v in values.to_pylist()]
    if pa.types.is_floating(kind):
        return [None if v is None else repr(float(v)) for v in values.to_pylist()]
    return [None if v is None else str(v) for v in values.to_pylist()]


_HEX = {"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "vector"} | {
    "geometry", "point", "linestring", "polygon", "geometrycollection", "multipoint",
}  # fmt: skip


def printed(column: str, sql_type: str) -> str:
    """SQL that gives the text :func:`texts` gives."""
    kind = sql_type.split("(")[0].split()[0].lower()
    if kind in _HEX:
        return f"HEX(`{column}`)"
    if kind == "bit" or "zerofill" in sql_type:
        return f"CAST(`{column}` + 0 AS CHAR)"
    if kind in {"float", "double"}:
        return f"`{column}` * 1e0"
    if kind == "year":
        return f"LPAD(CAST(`{column}` AS CHAR), 4, '0')"
    return f"CAST(`{column}` AS CHAR)"


def server_text(value: Any, sql_type: str) -> str | None:
    """What came back for ``printed``, as text."""
    if value is None:
        return None
    if isinstance(value, float):
        return repr(value)
    return value.decode() if isinstance(value, bytes) else str(value)
