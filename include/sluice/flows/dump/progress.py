"""The progress of dumps, and the actions that people take on them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import structlog

from sluice.config.pipeline import MAX_COUNT, MAX_SPAN
from sluice.coordination.dumps import DumpStates
from sluice.coordination.state import PipelineState
from sluice.errors import ConfigError, OutOfOrder, SluiceError
from sluice.flows.incomplete_tables import copied
from sluice.flows.runtime import Runtime
from sluice.model.dumps import REASONS, UNPAUSE, WAITS_BY_ITSELF, Chunk, ChunkId, ChunkState, Dump, DumpState, Tuning
from sluice.model.stored_fields import known_fields

_log = structlog.get_logger()

WAITING_CHUNKS = 4
"""Chunks that are read and not placed, besides those being read.

With more, reading waits until the capture has placed some, unless they are few rows (:data:`WAITING_ROWS`).
"""
WAITING_ROWS = 1_000_000
"""Rows that may always be read ahead of the capture: what it places in a second, as it places once a batch."""
_MOST_WAITING = 24
DRAIN_WAIT_S = 5.0
"""Seconds that a chunk may wait for a capture before that is reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableView:
    """One table of a dump.

    Attributes:
        rows: placed in the log's order; overtaken: left out, the log had newer ones; waiting: read, not placed yet.
        undelivered: placed, and not acknowledged by every target.
        reading: read so far of a table without a key, which is one chunk.
        estimate: rows there are, as the server guesses; rate: rows a second since the dump began; remaining_s: None:
            not known. Both mean nothing while no process reads the table: 0 and None.
        state: waiting, reading, no reader, delivering (all is placed, and a target lacks some), done; paused or
            cancelled where it was not done.
    """

    table: str
    state: str
    rows: int
    overtaken: int
    waiting: int
    estimate: int
    chunks: int
    rate: float
    remaining_s: float | None
    reading: int = 0
    undelivered: int = 0

    @property
    def share(self) -> float:
        """The share that the targets have, 0 to 1; 1 only when it is done."""
        if self.state == "done":
            return 1.0
        known_rows = self.rows - self.undelivered + self.overtaken + self.reading
        if self.state == "delivering":
            return min(known_rows / max(self.rows + self.overtaken, 1), 0.99)
        return min(known_rows / self.estimate, 0.99) if self.estimate else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpView:
    """One dump.

    Attributes:
        state: of the dump; ``delivering``: all is placed, and a target lacks some of it.
        waiting_for: what a worker waits for, ``""`` for nothing.
        no_reader_since_ms: something is left to read and has had no reader since then (milliseconds since 1970); 0: it
            has one, or needs none.
        no_reader_why: what the last reader said when it stopped, ``""`` for nothing.
    """

    id: str
    state: str
    reason: str
    by: str
    targets: tuple[str, ...]
    marking: str
    tuning: Tuning
    created_ms: int
    ended_ms: int
    workers: int
    note: str
    tables: tuple[TableView, ...]
    waiting_for: str = ""
    no_reader_since_ms: int = 0
    no_reader_why: str = ""

    @property
    def no_reader(self) -> str:
        """The time since which the dump has had no reader, and why, in words; ``""`` if it has one or needs none."""
        if not self.no_reader_since_ms:
            return ""
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(self.no_reader_since_ms / 1000))
        return f"no reader since {since} UTC" + (f" ({self.no_reader_why})" if self.no_reader_why else "")

    @property
    def take_up(self) -> str:
        """The way to go on with a dump that has no reader; ``PIPELINE`` stands for the pipeline's name."""
        if self.no_reader_why.endswith(UNPAUSE):
            return f"its run begins then; or `sluice dump work PIPELINE {self.id}`"
        if any(table.chunks or table.waiting for table in self.tables) or self.no_reader_why:
            return f"`sluice dump work PIPELINE {self.id}` goes on with it, or Clear on its run in Airflow"
        return f"its run in Airflow has not begun (is its DAG paused?); or `sluice dump work PIPELINE {self.id}`"

    @property
    def is_first_copy(self) -> bool:
        """True while targets lack rows that the dump was started for without anybody asking."""
        return self.reason in REASONS and self.state in {"running", "paused", "delivering"}

    @property
    def share(self) -> float:
        """The share of all tables that the targets have, 0 to 1."""
        sizes = [max(table.estimate, table.rows, 1) for table in self.tables]
        parts = (table.share * size for table, size in zip(self.tables, sizes, strict=True))
        return sum(parts) / sum(sizes) if sizes else 1.0

    @property
    def rows(self) -> int:
        """Rows placed, over all tables."""
        return sum(t.rows for t in self.tables)

    @property
    def rate(self) -> float:
        """Rows a second, over all tables."""
        return sum(t.rate for t in self.tables if t.state != "done")

    def to_json(self) -> dict[str, Any]:
        """Return the view as commands print it."""
        data = asdict(self)
        data |= {"rows": self.rows, "share": round(self.share, 4), "take_up": self.take_up}
        data["is_first_copy"] = self.is_first_copy
        for table, view in zip(data["tables"], self.tables, strict=True):
            table["share"] = round(view.share, 4)
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> DumpView:
        """Return the view of which ``data`` is the JSON; fields of a newer version are left out."""
        return cls(**{
            **known_fields(cls, data),
            "targets": tuple(data["targets"]),
            "tuning": Tuning(**known_fields(Tuning, data["tuning"])),
            "tables": tuple(TableView(**known_fields(TableView, table)) for table in data["tables"]),
        })


def _lacks_a_drain(state: PipelineState, chunks: Sequence[Chunk], last_ms: int) -> bool:
    """Return True if chunks were read a while ago and no capture runs that would place them."""
    waits = any(chunk.state is ChunkState.MARKED for chunk in chunks)
    return waits and time.time() * 1000 - last_ms > DRAIN_WAIT_S * 1000 and state.owner() is None


def view(state: PipelineState, dump: Dump) -> DumpView:
    """Return the progress of a dump as it is now."""
    dumps = state.dumps
    readers = dumps.readers(dump.id)
    chunks = dumps.chunks(dump.id)
    working = dumps.working(dump.id)
    names = dump.targets or state.targets
    delivered = state.delivered(names)
    goes = dump.state in {DumpState.RUNNING, DumpState.PAUSED}
    tables = []
    said_ms, why = (0, "") if readers or working else dumps.last_read(dump.id)
    deferred = why == WAITS_BY_ITSELF
    asks_for_a_reader, last_ms = False, dump.created_ms
    for ordinal, request in enumerate(dump.tables):
        plan, placed = dumps.planned(dump.id, ordinal), dumps.placed(dump.id, ordinal)
        own_chunks = [c for c in chunks if c.id.table == ordinal]
        waiting = sum(c.rows for c in own_chunks if c.state in {ChunkState.STORED, ChunkState.MARKED})
        reading = sum(c.rows for c in own_chunks if request.keyless and not placed.chunks)
        left_to_read = goes and (not plan.exhausted or any(c.state is not ChunkState.MARKED for c in own_chunks))
        is_read = any(tables_ is None or ordinal in tables_ for tables_ in readers) or any(
            ChunkId.of(dump.id, name).table == ordinal for name in working
        )
        asks_for_a_reader |= left_to_read
        last_ms = max(last_ms, placed.last_ms)
        undelivered = placed.undelivered(delivered)
        all_placed = "delivering" if undelivered else "done"
        word = all_placed if plan.exhausted and not own_chunks else "reading" if plan.chunks else "waiting"
        if word not in {"done", "delivering"} and dump.state is not DumpState.RUNNING:
            word = dump.state.value
        elif left_to_read and not is_read and not deferred and (plan.chunks or not (readers or working)):
            word = "no reader"
        seconds = max(placed.last_ms - dump.created_ms, 1) / 1000
        rate = (placed.rows + placed.overtaken) / seconds if placed.rows + placed.overtaken else 0.0
        rows_left = request.estimate - placed.rows - placed.overtaken
        remaining = None if word not in {"reading", "done"} or rows_left <= 0 or not rate else rows_left / rate
        remaining = 0.0 if word == "done" else remaining
        tables.append(
            TableView(
                table=str(request.table),
                state=word,
                rows=placed.rows,
                overtaken=placed.overtaken,
                waiting=waiting,
                estimate=request.estimate,
                chunks=placed.chunks,
                rate=0.0 if word == "no reader" else round(rate, 1),
                remaining_s=None if remaining is None else round(remaining, 1),
                reading=reading,
                undelivered=undelivered,
            )
        )
    lacks = any(table.undelivered for table in tables)
    unread = asks_for_a_reader and not readers and not working
    waiting_for = dumps.held(dump.id) if dump.state is DumpState.RUNNING else ""
    if unread and deferred:
        waiting_for = waiting_for or why
    if not waiting_for and dump.state is DumpState.RUNNING and _lacks_a_drain(state, chunks, last_ms):
        name = state.layout.pipeline
        waiting_for = (
            f"a capture, which places what was read: none captures {name} now; its DAG does, or `sluice run {name}`"
        )
    return DumpView(
        id=dump.id,
        state="delivering" if dump.state is DumpState.DONE and lacks else dump.state.value,
        reason=dump.reason,
        by=dump.by,
        targets=dump.targets,
        marking=dump.marking.value,
        tuning=dump.tuning,
        created_ms=dump.created_ms,
        ended_ms=dump.ended_ms,
        workers=len(working),
        note=dump.note,
        tables=tuple(tables),
        waiting_for=waiting_for,
        no_reader_since_ms=said_ms or last_ms if unread and not deferred else 0,
        no_reader_why=why if unread and not deferred else "",
    )


def recent(state: PipelineState, *, ended_within_s: float = 600.0) -> list[DumpView]:
    """Return the dumps that run or are paused and those that ended lately, oldest first.

    For pages that poll: reads no other dump.
    """
    border = int((time.time() - ended_within_s) * 1000)
    dumps = sorted(state.dumps.under_way_since(border), key=lambda d: (d.created_ms, d.id))
    return [view(state, dump) for dump in dumps]


def views(runtime: Runtime) -> list[DumpView]:
    """Return the progress of all dumps, oldest first."""
    with runtime.state() as state:
        dumps = [settle(state, name) for name in state.dumps.ids()]
        return [view(state, dump) for dump in dumps]


def one_view(runtime: Runtime, dump: str) -> DumpView:
    """Return the progress of one dump. Raises ConfigError if there is none."""
    with runtime.state() as state:
        return view(state, settle(state, newest(state, dump)))


def newest(state: PipelineState, dump: str) -> str:
    """Return ``dump``; for an empty name the newest dump that is not done, else the newest of all.

    Raises ConfigError if there is none.
    """
    if dump:
        return state.dumps.require(dump).id
    active = state.dumps.active()
    ids = [d.id for d in active] or state.dumps.ids()
    if not ids:
        raise ConfigError("there is no dump", hint="`sluice dump start PIPELINE` begins one")
    return ids[-1]


def change(runtime: Runtime, dump: str, *, by: str, what: str, to: Callable[[Dump], Dump]) -> DumpView:
    """Change what people want of a dump, and note it. Raises OutOfOrder for one that has ended."""
    with runtime.state() as state:
        name = newest(state, dump)
        while True:
            now = state.dumps.require(name)
            if now.state in {DumpState.DONE, DumpState.CANCELLED}:
                raise OutOfOrder(f"dump {name} is {now.state.value}", where=f"pipeline {runtime.name}")
            if state.dumps.update(to(now)):
                break
        state.audit.note(by=by, what=f"dump {what}", details={"dump": name})
        return view(state, state.dumps.require(name))


def settle(state: PipelineState, dump_id: str) -> Dump:
    """Mark a running dump as done if all of its chunks are placed. Return the dump."""
    while True:
        dump = state.dumps.require(dump_id)
        if dump.state is not DumpState.RUNNING or not is_placed(state.dumps, dump, None):
            return dump
        copied(state, dump)
        ended = state.dumps.update(dump.to_state(DumpState.DONE, ended_ms=int(time.time() * 1000)))
        if ended:
            _log.info("dump_completed", dump=dump_id)
            return ended


def is_placed(dumps: DumpStates, dump: Dump, tables: tuple[int, ...] | None) -> bool:
    """Return True if every chunk of these tables is placed."""
    wanted_tables = range(len(dump.tables)) if tables is None else tables
    if not all(dumps.planned(dump.id, ordinal).exhausted for ordinal in wanted_tables):
        return False
    return not any(chunk.id.table in wanted_tables for chunk in dumps.chunks(dump.id))


def is_over(state: PipelineState, dump_id: str, tables: tuple[int, ...] | None) -> bool:
    """Return True if the dump has ended, or all chunks of these tables are placed."""
    dump = state.dumps.require(dump_id)
    return dump.state in {DumpState.CANCELLED, DumpState.DONE} or is_placed(state.dumps, dump, tables)


def has_work(state: PipelineState, dump_id: str, tables: tuple[int, ...] | None) -> bool:
    """Return False while a worker could only wait: the dump or the pipeline is paused, or the capture has to place
    chunks first.

    Returns True also once :func:`is_over` does.
    """
    if is_over(state, dump_id, tables):
        return True
    dump = state.dumps.require(dump_id)
    if dump.state is DumpState.PAUSED or not state.pause_switch.read().open:
        return False
    return _waiting(state.dumps, dump) <= most_waiting(dump) // 2 and is_unread(state.dumps, dump, tables)


def only_waits(state: PipelineState, dump: Dump, tables: tuple[int, ...] | None) -> bool:
    """Return True if no chunk is being read and none can be read now."""
    if dump.state is DumpState.PAUSED or not state.pause_switch.read().open:
        return True
    if state.dumps.working(dump.id):
        return False
    return _waiting(state.dumps, dump) >= most_waiting(dump) or not is_unread(state.dumps, dump, tables)


def _waiting(dumps: DumpStates, dump: Dump) -> int:
    """Return how many chunks are read and not yet placed."""
    return sum(chunk.state is ChunkState.MARKED for chunk in dumps.chunks(dump.id))


def most_waiting(dump: Dump) -> int:
    """Return the number of unplaced chunks at which no further chunk is read."""
    fewest = WAITING_CHUNKS + dump.tuning.parallelism
    return max(fewest, min(WAITING_ROWS // max(dump.tuning.chunk_rows, 1), _MOST_WAITING))


def is_unread(dumps: DumpStates, dump: Dump, tables: tuple[int, ...] | None) -> bool:
    """Return True if something is left to read."""
    wanted_tables = range(len(dump.tables)) if tables is None else tables
    if not all(dumps.planned(dump.id, ordinal).exhausted for ordinal in wanted_tables):
        return True
    return any(c.state is not ChunkState.MARKED for c in dumps.chunks(dump.id) if c.id.table in wanted_tables)


def pause(runtime: Runtime, dump: str, *, by: str) -> DumpView:
    """Let running chunks end and start no new one until :func:`resume`, whichever process dies in between."""
    return change(runtime, dump, by=by, what="pause", to=lambda d: d.to_state(DumpState.PAUSED))


def resume(runtime: Runtime, dump: str, *, by: str) -> DumpView:
    """Continue after the last finished chunk."""
    return change(runtime, dump, by=by, what="resume", to=lambda d: d.to_state(DumpState.RUNNING))


def cancel(runtime: Runtime, dump: str, *, by: str) -> DumpView:
    """Cancel the dump: placed rows stay, chunks that are not placed are discarded."""
    view = change(
        runtime,
        dump,
        by=by,
        what="cancel",
        to=lambda d: d.to_state(DumpState.CANCELLED, ended_ms=int(time.time() * 1000)),
    )
    with runtime.state() as state:
        for chunk in state.dumps.chunks(view.id):
            state.dumps.drop(chunk)
            if chunk.path:
                with suppress(SluiceError):
                    runtime.store.delete(chunk.path)
    return view


_LIMITS = {
    "chunk_rows": (1, 5_000_000),
    "parallelism": (1, 64),
    "delay_ms": (0, 86_400_000),
    "max_rows_per_second": (0, MAX_COUNT),
    "max_threads_running": (0, 1_000_000),
    "max_replica_lag_s": (0, MAX_SPAN.total_seconds()),
}


def sensible(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``changes`` to a tuning that are not None.

    Raises ConfigError for one that is no number within its limits.
    """
    wanted_values = {name: value for name, value in changes.items() if value is not None}
    for name, value in wanted_values.items():
        low, high = _LIMITS[name]
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not low <= value <= high or (name != "max_replica_lag_s" and value != int(value)):
            raise ConfigError(f"{name} cannot be {value!r}", hint=f"from {low} to {high:,.0f}")
    return {name: value if name == "max_replica_lag_s" else int(value) for name, value in wanted_values.items()}


def tune(runtime: Runtime, dump: str, *, by: str, **changes: Any) -> DumpView:
    """Change chunk size, delay, parallelism or limits while it runs.

    Raises ConfigError for a number that makes no sense.
    """
    settings = sensible(changes)
    if not settings:
        raise ConfigError(
            "nothing to change", hint="for example: --chunk-rows 10000, --delay-ms 100 or --parallelism 4"
        )
    return change(runtime, dump, by=by, what="tune", to=lambda d: replace(d, tuning=replace(d.tuning, **settings)))
