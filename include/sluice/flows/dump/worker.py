"""dump: read tables of the source in chunks, while the log is read.

The capture gives each chunk its place, see :mod:`sluice.flows.dump.interleaver`.

Any number of processes may work on one dump: each takes the next range of keys by a compare-and-set, and what a dead
one left is taken over.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta

import pyarrow as pa
import structlog

from sluice.coordination.dumps import DumpStates
from sluice.coordination.leases import owner_label
from sluice.coordination.state import PipelineState
from sluice.errors import DumpRefused, RetryableError, SluiceError, SourceUnavailable, TerminalError
from sluice.flows.dump.key_lists import stored_keys
from sluice.flows.dump.progress import is_placed, is_unread, most_waiting, only_waits, settle
from sluice.flows.dump.throttle import Throttle
from sluice.flows.runtime import Runtime
from sluice.model.backoff import wait_after
from sluice.model.dumps import (
    WAITS_BY_ITSELF,
    Chunk,
    ChunkId,
    ChunkState,
    Dump,
    DumpState,
    TablePlanned,
    TableRequest,
)
from sluice.segments.chunk_file import chunk_path, write_chunk
from sluice.sources.port import ReadsInParts

_log = structlog.get_logger()

_KNOWN_S = 0.5
"""Seconds for which a worker remembers that a chunk waits for its place: only a chunk that is reset needs a reader."""

SAY_EVERY_S = 5.0
"""Seconds between two signs of life of a process that reads: a killed one is noticed with this precision."""

LOOK_EVERY_S = 0.05
LINGER_S = 5.0
"""Seconds that a worker waits for the capture, or for the end of a pause, before it leaves the waiting to a trigger."""
PAUSED_LOOK_EVERY_S = 0.5
NICENESS = 10
KEYLESS_TRIES = 50
"""Attempts of one process to read a table without a key, if the source does not say which changes the select saw."""

TRIES = 6
"""Consecutive attempts of a worker that read nothing before its error ends the work."""

_RETRY, _LONGEST_RETRY = timedelta(seconds=0.4), timedelta(seconds=5)


# -- work --------------------------------------------------------------------------------------------------------------


@dataclass
class _Shared:
    """The state that the workers of one process share."""

    stop: threading.Event = field(default_factory=threading.Event)
    errors: list[BaseException] = field(default_factory=list)
    hook: Callable[[str, Chunk], None] | None = None
    first_attempts: dict[str, int] = field(default_factory=dict)
    """The attempt that this process began with, by chunk name, for tables without a key."""


def work(
    runtime: Runtime,
    dump_id: str,
    *,
    tables: tuple[int, ...] | None = None,
    stop: threading.Event | None = None,
    why_stop: str = "",
    until_placed: bool = True,
    hook: Callable[[str, Chunk], None] | None = None,
) -> Dump:
    """Read chunks of a dump until every one is placed, or it is cancelled, or ``stop`` is set.

    As many threads as its parallelism.

    Args:
        tables: ordinals of the tables to work on; None: all. why_stop: what people read of the dump once ``stop`` was
            set.
        until_placed: False: return when there was nothing but waiting to do for ``LINGER_S``; ``progress.has_work``
            says when to go on.
        hook: told of each step of each chunk (tests).

    Raises:
        ConfigError: a table is gone. DumpRefused: it has no usable key, or its rows cannot be read under the condition.
            SourceUnavailable: the source does not answer. The dump goes on where it stood when somebody works on it
            again.
    """
    shared = _Shared(hook=hook)  # its event ends only these threads; the caller's may end another dump later
    with runtime.state() as state, _Presence(state.dumps, state.dumps.require(dump_id).id, tables) as presence:
        threads: list[threading.Thread] = []
        waits_since = time.monotonic()
        try:
            while True:
                presence.say()
                dump = state.dumps.require(dump_id)
                if shared.errors or dump.state in {DumpState.CANCELLED, DumpState.DONE} or shared.stop.is_set():
                    break
                if stop is not None and stop.is_set():
                    shared.stop.set()  # no thread starts another chunk
                    presence.leave(why_stop)  # before running chunks end: whoever set it may not wait long
                    break
                if is_placed(state.dumps, dump, tables):
                    break
                threads = [t for t in threads if t.is_alive()]
                if until_placed or not only_waits(state, dump, tables):
                    waits_since = time.monotonic()
                elif time.monotonic() - waits_since > LINGER_S:
                    presence.leave(WAITS_BY_ITSELF)
                    break
                if not is_unread(state.dumps, dump, tables):
                    shared.stop.wait(LOOK_EVERY_S)
                    continue
                for number in range(len(threads), dump.tuning.parallelism):
                    threads.append(_started(runtime, dump_id, tables, number, shared))
                shared.stop.wait(LOOK_EVERY_S * 2)
        finally:  # also if ZooKeeper is gone: no thread outlives this call
            shared.stop.set()
            for thread in threads:
                thread.join()
        if shared.errors:
            error = shared.errors[0]
            if isinstance(error, TerminalError):
                with suppress(SluiceError):
                    state.dumps.add_note(dump_id, f"work stopped: {error.message}")
            raise error
        return settle(state, dump_id)


class _Presence:
    """Shows other processes that this process reads the dump; afterwards the time and reason at which reading
    stopped.
    """

    def __init__(self, dumps: DumpStates, dump: str, tables: tuple[int, ...] | None) -> None:
        self._dumps, self._dump, self._tables = dumps, dump, tables
        self._name = ""
        self._said = 0.0

    def __enter__(self) -> _Presence:
        self._name = self._dumps.join(self._dump, self._tables)
        self._said = time.monotonic()
        return self

    def say(self) -> None:
        if time.monotonic() - self._said >= SAY_EVERY_S:
            self._dumps.still_reads(self._dump)
            self._said = time.monotonic()

    def leave(self, why: str) -> None:
        if self._name:
            self._dumps.leave(self._dump, self._name, why)
            self._name = ""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with suppress(SluiceError):  # ZooKeeper is gone, and the ephemeral node with it
            self.leave(error.message if isinstance(error, SluiceError) else "")


def _started(
    runtime: Runtime, dump_id: str, tables: tuple[int, ...] | None, number: int, shared: _Shared
) -> threading.Thread:
    """Start one more thread of this process that reads chunks."""
    thread = threading.Thread(
        target=_worker, args=(runtime, dump_id, tables, number, shared), name=f"dump-{number}", daemon=True
    )
    thread.start()
    return thread


def _worker(runtime: Runtime, dump_id: str, tables: tuple[int, ...] | None, number: int, shared: _Shared) -> None:
    failed = 0
    with suppress(OSError, AttributeError):  # the log has priority if processors are scarce
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
    while not shared.stop.is_set():
        worker = None
        try:
            with ExitStack() as stack:
                own = replace(runtime, _state=None)
                state = stack.enter_context(own.state())
                worker = _Worker(own, state, dump_id, tables, number=number, shared=shared, stack=stack)
                worker.run()
                return
        except RetryableError as error:
            failed = 1 if worker is not None and worker.read else failed + 1
            if failed >= TRIES:
                shared.errors.append(error)
                shared.stop.set()
            _log.warning("dump_worker_failed", dump=dump_id, attempt=failed, error=str(error))
            shared.stop.wait(wait_after(failed, _RETRY, _LONGEST_RETRY).total_seconds())
        except BaseException as error:  # raised in the caller of work()
            shared.errors.append(error)
            shared.stop.set()


class _CountedRows:
    """The rows of a chunk on their way to its file. Those of a table that is one chunk are counted while it is read."""

    def __init__(self, dumps: DumpStates, chunk: Chunk, *, is_said: bool) -> None:
        self.chunk = chunk
        self._dumps, self._is_said = dumps, is_said

    def counted(self, pieces: Iterator[pa.Table]) -> Iterator[pa.Table]:
        """Yield the pieces, and record from time to time how many rows they had. Raises SourceUnavailable if another
        worker has taken the chunk over.
        """
        rows, reported_at = 0, time.monotonic()
        for piece in pieces:
            yield piece
            rows += piece.num_rows
            if self._is_said and time.monotonic() - reported_at >= SAY_EVERY_S:
                moved = self._dumps.move(self.chunk, ChunkState.RUNNING, rows=rows)
                if moved is None:
                    raise SourceUnavailable(
                        "another worker reads the chunk now",
                        where=f"dump {self.chunk.id.dump}",
                        hint="this happens by itself",
                    )
                self.chunk, reported_at = moved, time.monotonic()


class _Worker:
    """One thread: its connections, and its way from chunk to chunk."""

    def __init__(
        self,
        runtime: Runtime,
        state: PipelineState,
        dump_id: str,
        tables: tuple[int, ...] | None,
        *,
        number: int,
        shared: _Shared,
        stack: ExitStack,
    ) -> None:
        self.runtime = runtime
        self.state = state
        self.dumps = state.dumps
        self.dump_id = dump_id
        self.tables = tables
        self.number = number
        self.shared = shared
        self.store = runtime.store
        dump = self.dumps.require(dump_id)
        owner = f"{owner_label()}:{number}"
        self.member = runtime.member(state)
        self.reader = stack.enter_context(runtime.source_at(self.member).open_chunks(dump.marking, owner))
        self.throttle = stack.enter_context(Throttle.open(runtime.source, runtime.pipeline.dump.replicas))
        self.read = 0
        self.waiting_for = ""
        self._known: dict[str, Chunk] = {}
        self._known_since = 0.0
        self.label = owner.replace("/", "-")

    def _hold(self, why: str) -> None:
        """Publish what this worker waits for."""
        if why != self.waiting_for:
            self.dumps.say_held(self.dump_id, self.label, why)
            self.waiting_for = why

    def run(self) -> None:
        while not self.shared.stop.is_set():
            dump = self.dumps.require(self.dump_id)
            if dump.state in {DumpState.CANCELLED, DumpState.DONE} or self.number >= dump.tuning.parallelism:
                return
            if dump.state is DumpState.PAUSED or not self.state.pause_switch.read().open or self.state.cursor() is None:
                self.shared.stop.wait(PAUSED_LOOK_EVERY_S)
                continue
            working = set(self.dumps.working(dump.id))
            chunks = self._unplaced(dump, working)
            waiting = sum(c.state is ChunkState.MARKED for c in chunks)
            if waiting >= most_waiting(dump) or len(working) >= dump.tuning.parallelism:
                self.shared.stop.wait(LOOK_EVERY_S)
                continue
            self._hold(self.throttle.hold(dump.tuning, self.reader))
            if self.waiting_for:
                self.shared.stop.wait(PAUSED_LOOK_EVERY_S)
                continue
            chunk = self._left_behind(chunks, working) or self._next(dump)
            if chunk is None:
                if not is_unread(self.dumps, dump, self.tables):
                    return
                self._known = {}  # what is left may be a chunk that was reset
                self.shared.stop.wait(LOOK_EVERY_S)
                continue
            started = time.monotonic()
            try:
                done = self._read(dump, chunk)
            finally:
                with suppress(SluiceError):
                    self.dumps.release(chunk)
            if done is not None:
                self.read = 0
                self.shared.stop.wait(self.throttle.pause(dump.tuning, done.rows, time.monotonic() - started))

    def _unplaced(self, dump: Dump, working: set[str]) -> list[Chunk]:
        """Return the chunks that no process reads and that are not placed; what was known of one half a second ago
        counts.
        """
        if time.monotonic() - self._known_since > _KNOWN_S:
            self._known, self._known_since = {}, time.monotonic()
        unplaced = []
        for name in self.dumps.chunk_names(dump.id):
            if name in working:
                continue
            chunk = self._known.get(name) or self.dumps.chunk(ChunkId.of(dump.id, name))
            if chunk is not None and chunk.state is ChunkState.MARKED:
                self._known[name] = chunk
            if chunk is not None:
                unplaced.append(chunk)
        return unplaced

    def _left_behind(self, chunks: list[Chunk], working: set[str]) -> Chunk | None:
        """Claim a chunk that has to be read again and that no process reads; None if there is none."""
        for chunk in chunks:
            if self.tables is not None and chunk.id.table not in self.tables:
                continue
            if chunk.state is not ChunkState.MARKED and chunk.id.name not in working:
                taken_chunk = self.dumps.take_over(chunk)
                if taken_chunk:
                    return taken_chunk
        return None

    # -- the next range ------------------------------------------------------------------------------------------------
    def _next(self, dump: Dump) -> Chunk | None:
        wanted_tables = range(len(dump.tables)) if self.tables is None else self.tables
        order = (
            list(wanted_tables)[self.number % max(len(wanted_tables), 1) :]
            + list(wanted_tables)[: self.number % max(len(wanted_tables), 1)]
        )
        for ordinal in order:
            plan = self.dumps.planned(dump.id, ordinal)
            if plan.exhausted:
                continue
            chunk = self._claim(dump, ordinal, plan)
            if chunk:
                return chunk
        return None

    def _claim(self, dump: Dump, ordinal: int, plan: TablePlanned) -> Chunk | None:
        request = dump.tables[ordinal]
        if request.key_file:
            border, last = self._next_keys(dump, request, plan)
        else:
            border, last = self.reader.next_border(request, plan, dump.tuning.chunk_rows)
        chunk = Chunk(ChunkId(dump.id, ordinal, plan.chunks + 1), after=plan.upto, upto=border)
        moved = replace(plan, upto=border, chunks=plan.chunks + 1, exhausted=last)
        return self.dumps.claim(plan, moved, chunk)

    def _next_keys(self, dump: Dump, request: TableRequest, plan: TablePlanned) -> tuple[tuple[str, ...], bool]:
        start = int(plan.upto[0]) if plan.upto else 0
        upto_ = min(start + dump.tuning.chunk_rows, request.estimate)
        return (str(upto_),), upto_ >= request.estimate

    # -- one chunk -----------------------------------------------------------------------------------------------------
    def _read(self, dump: Dump, chunk: Chunk) -> Chunk | None:
        """Read a chunk: low mark, SELECT, store, high mark. Return None if another worker has taken the chunk over."""
        self._tell("claimed", chunk)
        request = dump.tables[chunk.id.table]
        tries = chunk.attempt - self.shared.first_attempts.setdefault(chunk.id.name, chunk.attempt)
        if request.keyless and tries >= KEYLESS_TRIES:
            raise DumpRefused(
                f"{request.table} has no primary key, and was written during each of {KEYLESS_TRIES} attempts to read "
                "it in one piece",
                hint="pause the writers for as long as one read takes and continue (`sluice dump work "
                f"{self.runtime.name} {dump.id}`, or Clear "
                f"on the task), or cancel the dump (`sluice dump cancel {self.runtime.name} {dump.id}`) and give the "
                "table a primary key",
            )
        marks = self.reader.watermarks
        position = self.reader.end_of_log()
        low = marks.low(chunk)
        self._tell("low", chunk)
        with marks.reading(chunk) as exact:
            schema = self.reader.schema(request.table)
            path = chunk_path(chunk)
            rows = _CountedRows(self.dumps, chunk, is_said=request.keyless)
            written = write_chunk(self.store, path, schema, rows.counted(self._rows(dump, request, chunk)))
        self._tell("selected", chunk)
        self._require_member()
        stored = self.dumps.move(
            rows.chunk,
            ChunkState.STORED,
            path=path,
            rows=written.rows,
            size_bytes=written.size_bytes,
            crc32=written.crc32,
            buckets=written.buckets,
            low=exact if exact is not None else low,
            position=position,
        )
        if stored is None:
            return None
        self._tell("stored", stored)
        marks.high(stored)
        self._tell("high", stored)
        self._require_member()
        marked = self.dumps.move(stored, ChunkState.MARKED, end=self.reader.end_of_log())
        self._tell("marked", marked or stored)
        _log.debug("chunk_read", dump=dump.id, chunk=chunk.id.name, rows=written.rows, size_bytes=written.size_bytes)
        return marked or stored

    def _require_member(self) -> None:
        """Raise SourceUnavailable after a failover, as a chunk's positions belong to the log of one server.

        The thread then starts again.
        """
        now = self.runtime.member(self.state)
        if now != self.member:
            raise SourceUnavailable(
                f"{now} is read now, and no longer {self.member}: the chunk is read again",
                where=f"dump {self.dump_id}",
                hint="this happens by itself",
            )

    def _rows(self, dump: Dump, request: TableRequest, chunk: Chunk) -> Iterator[pa.Table]:
        if request.keyless and isinstance(self.reader, ReadsInParts):
            free = dump.tuning.parallelism - len(self.dumps.working(dump.id)) + 1
            return self.reader.rows_in_parts(request, chunk, max(free, 1))
        keys: Iterable[list[tuple[str, ...]]] = ()
        if request.key_file:
            start, stop = int(chunk.after[0]) if chunk.after else 0, int(chunk.upto[0])
            keys = stored_keys(self.store, request.key_file, start, stop)
        return self.reader.rows(request, chunk, keys)

    def _tell(self, step: str, chunk: Chunk) -> None:
        if self.shared.hook:
            self.shared.hook(step, chunk)


__all__ = ["work"]
