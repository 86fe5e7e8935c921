"""The service without its servers: pipelines, their tables, reads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import structlog

from sluice.config.connections import Endpoint
from sluice.coordination.shared_session import SharedSession, SharedSessions
from sluice.errors import AccessDenied, ConfigError, SluiceError, TooManyReads
from sluice.flows.runtime import Runtime
from sluice.model.tables import TableId
from sluice.operations.server_questions import NoAnswer, server_questions
from sluice.serve.access import Reader
from sluice.serve.batch_range import StoredBatches
from sluice.serve.batch_rows import BatchRows
from sluice.serve.feed import Feed
from sluice.serve.read import Reading, Shaping
from sluice.serve.requests import ReadRequest, SubscribeRequest
from sluice.serve.row_shapes import StreamShape
from sluice.serve.session import Session, connected
from sluice.serve.table_index import TableIndex, defined_tables

_log = structlog.get_logger()

_READY_S = 5.0
"""Seconds that ZooKeeper has to answer for the service to be ready."""


@dataclass
class Slots:
    """The limit of open reads: ``most`` in all, ``most_each`` of one reader. Any thread may use it."""

    most: int = 16
    most_each: int = 4
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _open: dict[str, int] = field(default_factory=dict)

    def take(self, reader: str) -> Callable[[], None]:
        """Take one slot. Return a function that releases it, once. Raises TooManyReads."""
        with self._lock:
            own_count, every = self._open.get(reader, 0), sum(self._open.values())
            if own_count >= self.most_each or every >= self.most:
                whose = f"{reader} has {own_count}" if own_count >= self.most_each else f"the service has {every}"
                raise TooManyReads(f"{whose} open reads, which is the limit", hint="end one, or try again later")
            self._open[reader] = own_count + 1
        releases: list[bool] = []

        def give_back() -> None:
            with self._lock:
                if not releases:
                    releases.append(True)
                    self._open[reader] -= 1

        return give_back

    @property
    def taken(self) -> int:
        """Reads that are open."""
        return sum(self._open.values())


class Slot:
    """A slot of a call that may rest: it is open still, and nothing is read for it, as it waits for the client's end.

    Resting calls have as many slots of their own, so that clients that never end block no reads, and are no more than
    that. Raises TooManyReads.
    """

    def __init__(self, slots: Slots, resting: Slots, reader: str) -> None:
        self._resting = resting
        self._reader = reader
        self._rests = False
        self._held = [slots.take(reader)]

    def rest(self) -> None:
        """Note that nothing more is read. Where too many calls rest, this one stays among the reads."""
        if not self._rests:
            with suppress(TooManyReads):
                self._held.append(self._resting.take(self._reader))
                self._rests = True
                self._held.pop(0)()

    def give_back(self) -> None:
        """Release the slot: the call is over."""
        for release in self._held:
            release()


@dataclass(frozen=True)
class Place:
    """The location in ZooKeeper of the state of pipelines."""

    endpoint: Endpoint
    session_timeout_s: float
    root: str

    @classmethod
    def of(cls, runtime: Runtime) -> Place:
        """Return the location of a pipeline's state. Raises ConfigError if its connection is not known."""
        coordination = runtime.pipeline.coordination
        timeout_s = coordination.session_timeout.total_seconds()
        return cls(runtime.resolver(coordination.connection), timeout_s, coordination.root)

    def __hash__(self) -> int:
        return hash((self.endpoint.address, self.endpoint.user, self.session_timeout_s, self.root))


class Service:
    """Reads of pipelines.

    Any thread may use it; each request has a runtime of its own, on the process's one session per ZooKeeper.

    Args:
        build: name -> the pipeline as its file is now; raises ConfigError. names: of all pipelines.
    """

    def __init__(
        self, build: Callable[[str], Runtime], names: Callable[[], Sequence[str]], slots: Slots | None = None
    ) -> None:
        self._build = build
        self._names = names
        self.slots = slots or Slots()
        self.resting = Slots(self.slots.most, self.slots.most_each)
        self._sessions = SharedSessions()
        self._lock = threading.Lock()
        self._indexes: dict[str, TableIndex] = {}
        self._feeds: dict[str, Feed] = {}

    def pipelines(self, reader: Reader) -> list[str]:
        """Return the names of the pipelines of which the reader may read something."""
        return sorted(name for name in self._names() if reader.may_see(name))

    def tables(self, pipeline: str, reader: Reader) -> dict[TableId, StreamShape]:
        """Return the tables of a pipeline that the reader may read, with the columns of each.

        Raises as :meth:`open`.
        """
        runtime = self._runtime(pipeline, reader)
        index = self._index(pipeline)
        with runtime.state() as state:
            index.refresh(StoredBatches.of(runtime, state), state)
            rows = BatchRows(runtime, "changes")
            columns = list(index.columns(rows, lambda table: reader.may_read(pipeline, table)))
            known_tables = {table for table, _ in columns}
            columns += defined_tables(
                runtime, state, rows, lambda table: table not in known_tables and reader.may_read(pipeline, table)
            )
        return {
            table: StreamShape.of(
                ReadRequest.of_table(pipeline, table), [column for column in columns if column[0] == table]
            )
            for table in sorted({table for table, _ in columns})
        }

    def open(self, request: ReadRequest, reader: Reader, shaping: Shaping = StreamShape.of) -> Reading:
        """Open a read.

        Raises:
            AccessDenied: the reader may not read that. ConfigError: there is no such pipeline, table or column.
            BatchesGone: the range begins before what is stored. RuleError, MappingError: the pipeline's files are
                wrong.
            SegmentError, StorageUnavailable, CoordinationUnavailable: what is stored cannot be read, or not now.
        """
        return self._reading(self._runtime(request.pipeline, reader), request, reader, shaping)

    def subscribe(self, request: SubscribeRequest, reader: Reader) -> Session:
        """Open a session of a named subscription; earlier ones of that name are fenced.

        Raises as :meth:`open`, and as :func:`connected`.
        """
        runtime = self._runtime(request.pipeline, reader)
        return connected(runtime, request, reader, lambda read_request: self._reading(runtime, read_request, reader))

    def close(self) -> None:
        """End the sessions."""
        self._sessions.close()

    def document_name(self, pipeline: str, reader: Reader) -> str:
        """Return the name under which documents speak of a pipeline's source. Raises AccessDenied."""
        return self._runtime(pipeline, reader).document_name

    def _runtime(self, pipeline: str, reader: Reader) -> Runtime:
        if not reader.may_see(pipeline):
            raise AccessDenied(f"{reader.name} may not read pipeline {pipeline}")
        runtime = self._build(pipeline)
        self._join(runtime)
        return runtime

    def _reading(
        self, runtime: Runtime, request: ReadRequest, reader: Reader, shaping: Shaping = StreamShape.of
    ) -> Reading:
        name = request.pipeline
        return Reading(
            runtime, request, reader, self._index(name), self._feed(name), partial(self._join, runtime), shaping
        )

    def places(self) -> dict[Place, list[str]]:
        """Return where the state of each pipeline is, and their names.

        What is wrong with a pipeline's files is logged.
        """
        places: dict[Place, list[str]] = {}
        for name in sorted(self._names()):
            try:
                places.setdefault(Place.of(self._build(name)), []).append(name)
            except ConfigError as error:
                _log.warning("pipeline_skipped", pipeline=name, error=str(error))
        return places

    def not_ready(self) -> list[str]:
        """Return which ensembles of ZooKeeper do not answer, a line each: without them nothing can be read."""
        problems = []
        for place, names in self.places().items():
            ask = partial(self._look, place)
            try:
                answer = server_questions.ask(f"ZooKeeper {place.endpoint.address}", ask, _READY_S)
            except SluiceError as error:
                problems.append(f"{', '.join(names)}: {error}")
            else:
                problems += [f"{', '.join(names)}: {answer}"] if isinstance(answer, NoAnswer) else []
        return problems

    def _look(self, place: Place) -> None:
        self.session_of(place).znodes.children(place.root)

    def session_of(self, place: Place) -> SharedSession:
        """Return the process's session there. Raises CoordinationUnavailable."""
        return self._sessions.get(place.endpoint, place.session_timeout_s)

    def _join(self, runtime: Runtime) -> None:
        runtime.join(self.session_of(Place.of(runtime)))

    def _index(self, pipeline: str) -> TableIndex:
        with self._lock:
            return self._indexes.setdefault(pipeline, TableIndex())

    def _feed(self, pipeline: str) -> Feed:
        with self._lock:
            return self._feeds.setdefault(pipeline, Feed())
