"""A dump: its request, its chunks, its marks. Values only; stored in ZooKeeper as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from sluice.model.column_types import ColumnKind
from sluice.model.stored_fields import known_fields
from sluice.model.tables import Column, TableId, TableSchema

POSITION_LOST = "position lost"
"""Reason of a dump that repairs a gap in the log."""
UNPAUSE = "is paused: unpause it"
"""The end of the sentence that says why a run of Airflow does not begin."""

KEPT_BATCHES = 100
"""Batches of which a table's progress says how many rows they hold."""

WAITS_BY_ITSELF = "its task waits for the sync DAG to place chunks, or for the end of a pause, and continues by itself"
"""Why a dump has no reader for now, and needs no one to take it up."""


MOVED = "moved under a copy"
"""Reason of a dump that copies rows which moved past the chunks of another."""
CONVERTED = "converted rows"
"""The reason for copying a table again whose rows a target cannot convert as the source did."""
REASONS = ("initial", "newly captured", "new target", POSITION_LOST, MOVED, CONVERTED)
"""The reasons for which a dump is started automatically."""


class DumpState(StrEnum):
    """The state of a dump that people asked for."""

    RUNNING = "running"
    PAUSED = "paused"
    CANCELLED = "cancelled"
    DONE = "done"


class ChunkState(StrEnum):
    """The progress of a chunk. A chunk that is placed is gone: its rows are counted and its node is removed."""

    TODO = "todo"
    """To be selected again: something made the last attempt unusable."""
    RUNNING = "running"
    STORED = "stored"
    """Its rows are durable, its high mark may not be written yet."""
    MARKED = "marked"
    """Its high mark stands in the log (or in the chunk itself): the capture will meet it."""


class Marking(StrEnum):
    """The ways to mark a chunk's window."""

    TABLE = "table"
    """A row in a small table at the source, written before and after the select."""
    GTID = "gtid"
    """The set of executed transactions before and after the select (MySQL); nothing is written."""
    SNAPSHOT = "snapshot"
    """The snapshot in which the select reads: its place in the log (MariaDB), or the transactions that
    it sees (PostgreSQL). Nothing is written.
    """


@dataclass(frozen=True, slots=True)
class Tuning:
    """Settings that may change while a dump runs.

    Attributes:
        chunk_rows: rows a chunk, at most.
        delay_ms: pause between two chunks of a worker.
        parallelism: chunks at the same time, over all tables and workers.
        max_rows_per_second: 0: as fast as it goes.
        max_threads_running: wait while the source runs more statements than this; 0: don't look.
        max_replica_lag_s: wait while a replica of the source is further behind; 0: don't look.
    """

    chunk_rows: int = 50_000
    delay_ms: int = 0
    parallelism: int = 2
    max_rows_per_second: int = 0
    max_threads_running: int = 0
    max_replica_lag_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TableRequest:
    """One table of a dump.

    Attributes:
        where: the user's own condition, ``""`` for all rows.
        lower, upper: literals of the first and last key (both included) of a key range, empty for an open end.
        key_file: path in the store of a Parquet file of keys to dump; ``""``: all keys.
        estimate: rows, as the server guesses (or as many as there are keys).
        index: name of the index to chunk by; ``""``: the primary key.
        keyless: nothing tells its rows apart: it is one chunk, and its changes are held back until that is placed.
        identity: columns that tell rows apart, if not the primary key (the mapping says so).
        replace: what the targets hold in the range of a chunk and the source does not, goes.
    """

    table: TableId
    where: str = ""
    lower: tuple[str, ...] = ()
    upper: tuple[str, ...] = ()
    key_file: str = ""
    estimate: int = 0
    index: str = ""
    keyless: bool = False
    identity: tuple[str, ...] = ()
    replace: bool = False

    @property
    def is_whole(self) -> bool:
        """True if every row of the table is wanted."""
        return not (self.where or self.lower or self.upper or self.key_file)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> TableRequest:
        """Read a request from a dump's node. Unknown fields are left out."""
        table = TableId(**known_fields(TableId, data["table"]))
        literals = {name: tuple(data.get(name, ())) for name in ("lower", "upper", "identity")}
        return cls(**{**known_fields(cls, data), "table": table, **literals})


@dataclass(frozen=True, slots=True)
class Dump:
    """A dump: what was asked for, and what people want of it now.

    Attributes:
        targets: names of the targets that get its rows; empty: all.
        marking: how windows are marked; reason: why there is this dump (``initial``, ``backfill``, ...); by: who asked.
        created_ms, ended_ms: wall clock, milliseconds since 1970; 0 while it runs.
        since_batch: the batch that was next when it was recorded: no window of it begins in an earlier one; 0: not
            known.
    """

    id: str
    tables: tuple[TableRequest, ...]
    targets: tuple[str, ...] = ()
    state: DumpState = DumpState.RUNNING
    tuning: Tuning = Tuning()
    marking: Marking = Marking.TABLE
    reason: str = ""
    by: str = ""
    note: str = ""
    created_ms: int = 0
    ended_ms: int = 0
    since_batch: int = 0
    version: int = -1

    def to_json(self) -> dict[str, Any]:
        """Return the content of the dump's node, without its version."""
        data = asdict(self)
        del data["version"]
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any], version: int = -1) -> Dump:
        """Read a dump from its node. Unknown fields are left out."""
        values = {
            **known_fields(cls, data),
            "tables": tuple(TableRequest.from_json(t) for t in data["tables"]),
            "targets": tuple(data["targets"]),
            "state": DumpState(data["state"]),
            "marking": Marking(data["marking"]),
            "tuning": Tuning(**known_fields(Tuning, data["tuning"])),
            "version": version,
        }
        return cls(**values)

    def to_state(self, state: DumpState, *, note: str = "", ended_ms: int = 0) -> Dump:
        """Return the same dump in another state."""
        return replace(self, state=state, note=note or self.note, ended_ms=ended_ms)


@dataclass(frozen=True, slots=True)
class TablePlanned:
    """The progress of cutting a table into chunks: keys up to ``upto`` are in chunks; ``exhausted``: all are."""

    upto: tuple[str, ...] = ()
    chunks: int = 0
    exhausted: bool = False
    version: int = -1

    def to_json(self) -> dict[str, Any]:
        """Return the content of the node of a table's plan."""
        return {"upto": list(self.upto), "chunks": self.chunks, "exhausted": self.exhausted}

    @classmethod
    def from_json(cls, data: dict[str, Any], version: int) -> TablePlanned:
        """Read what :meth:`to_json` returned, with the node's version."""
        return cls(tuple(data["upto"]), data["chunks"], data["exhausted"], version)


@dataclass(frozen=True, slots=True)
class TablePlaced:
    """The placed chunks and rows of a table, and the rows left out because the log had newer ones.

    ``first_ms``, ``last_ms``: wall clock of the first and the last time, milliseconds since 1970. ``batches``: (number,
    rows) of the batches in which they were placed, the newest :data:`KEPT_BATCHES`; older ones are counted to the next.
    """

    chunks: int = 0
    rows: int = 0
    overtaken: int = 0
    first_ms: int = 0
    last_ms: int = 0
    batches: tuple[tuple[int, int], ...] = ()
    version: int = -1

    def to_json(self) -> dict[str, Any]:
        """Return the content of the node of a table's progress, without its version."""
        data = asdict(self)
        del data["version"]
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any], version: int) -> TablePlaced:
        """Read the progress from its node. Unknown fields are left out."""
        batches = tuple((int(number), int(rows)) for number, rows in data.get("batches", ()))
        return cls(**{**known_fields(cls, data), "batches": batches, "version": version})

    def in_batch(self, number: int, rows: int, delivered: int) -> tuple[tuple[int, int], ...]:
        """Return ``batches`` with more rows of one; those that every target has are left out."""
        rows += sum(count for at, count in self.batches if at == number)
        counts = [(at, count) for at, count in self.batches if delivered < at < number]
        while len(counts) >= KEPT_BATCHES:
            (_, old), (at, count), *rest = counts
            counts = [(at, old + count), *rest]
        return (*counts, (number, rows))

    def undelivered(self, delivered: int) -> int:
        """Return how many placed rows are in batches after ``delivered``."""
        return sum(rows for at, rows in self.batches if at > delivered)


@dataclass(frozen=True, slots=True)
class ChunkId:
    """The identity of a chunk: the dump, the ordinal of its table in the dump, and its own number within the table."""

    dump: str
    table: int
    number: int

    @property
    def name(self) -> str:
        """The name of its node."""
        return f"{self.table:04d}-{self.number:08d}"

    @classmethod
    def of(cls, dump: str, name: str) -> ChunkId:
        """Parse a :attr:`name`."""
        table, number = name.split("-")
        return cls(dump, int(table), int(number))


@dataclass(frozen=True, slots=True)
class Chunk:
    """A range of keys of one table, on its way into the log's order.

    Attributes:
        after, upto: literals of the key before its first and of its last one; empty: open.
        attempt: which try this is; marks of another one don't count.
        path, rows, crc32, size_bytes, buckets: the stored file, and the least and greatest key bucket in it.
        low: where nothing is written: the GTID set before the select, or the ``file:offset`` its snapshot stands for.
        position: ``file:offset`` of the log's end before the low mark: a window never begins before it.
        end: ``file:offset`` of the log's end after the high mark: all that the select saw stands before it.
    """

    id: ChunkId
    state: ChunkState = ChunkState.RUNNING
    after: tuple[str, ...] = ()
    upto: tuple[str, ...] = ()
    attempt: int = 1
    path: str = ""
    rows: int = 0
    crc32: str = ""
    size_bytes: int = 0
    buckets: tuple[int, int] = (0, 0)
    low: str = ""
    position: str = ""
    end: str = ""
    version: int = -1

    def to_json(self) -> dict[str, Any]:
        """Return the content of the chunk's node; its id is the node's path."""
        data = asdict(self)
        for name in ("id", "version"):
            del data[name]
        return data

    @classmethod
    def from_json(cls, id_: ChunkId, data: dict[str, Any], version: int) -> Chunk:
        """Read a chunk from its node. Unknown fields are left out."""
        values = {
            **known_fields(cls, data),
            "id": id_,
            "state": ChunkState(data["state"]),
            "after": tuple(data["after"]),
            "upto": tuple(data["upto"]),
            "buckets": tuple(data.get("buckets", (0, 0))),
            "version": version,
        }
        return cls(**values)


@dataclass(frozen=True, slots=True)
class Mark:
    """A row of the watermark table: the attempt at a chunk that it marks, and which end of its window."""

    chunk: ChunkId
    attempt: int
    high: bool

    @property
    def text(self) -> str:
        """The mark as it is stored in the table."""
        return f"{self.chunk.dump}/{self.chunk.name}/{self.attempt}/{'high' if self.high else 'low'}"

    @classmethod
    def parse(cls, text: str) -> Mark | None:
        """Parse a :attr:`text`; None if it is no mark."""
        parts = text.split("/")
        if len(parts) != 4 or parts[3] not in {"low", "high"} or not parts[2].isdigit():
            return None
        try:
            return cls(ChunkId.of(parts[0], parts[1]), int(parts[2]), parts[3] == "high")
        except ValueError:
            return None


def schema_to_json(schema: TableSchema) -> str:
    """Return a definition as text, for the metadata of a chunk's file."""
    return json.dumps(asdict(schema), ensure_ascii=False)


def schema_from_json(text: str | bytes) -> TableSchema:
    """Parse the text of :func:`schema_to_json`."""
    data = json.loads(text)
    columns = tuple(
        Column(**{**known_fields(Column, c), "kind": ColumnKind(c["kind"]), "labels": tuple(c["labels"])})
        for c in data["columns"]
    )
    return TableSchema(TableId(**data["table"]), columns, tuple(data["primary_key"]), bool(data.get("deferrable")))
