"""One way to write to a source of any kind, for the tests that every kind passes."""

from __future__ import annotations

import itertools
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from sluice.config.connections import Endpoint, parse_connection
from sluice.config.pipeline import PipelineConfig
from sluice.model.changes import Change
from sluice.model.dumps import Marking
from sluice.model.load_marks import COLUMN, TABLE, MarkRules
from sluice.model.offset import Offset
from sluice.model.tables import TableId
from sluice.postgresql.load_messages import MARK_PREFIX
from sluice.segments.reader import iter_changes
from sluice.segments.store import SegmentStore
from sluice.segments.writer import SegmentWriter
from sluice.sources import open_source
from sluice.sources.memory.log import MemoryStore, RowChange, forget_store, store_of
from sluice.sources.port import Source, SourceSession, StreamLimits, StreamResult
from sluice.sources.postgresql import ddl_trigger
from sluice.sources.postgresql.server.slot import slot_name
from sluice.sources.table_filter import Selection
from tests.support.twins.servers import TwinSource

Write = tuple[str, str, tuple[Any, ...]]
"""insert, update or delete; the table; (id, v) of the row, of a delete only (id,)."""

_numbers = itertools.count(1)


def pipeline(name: str, kind: str, schema: str, **more: Any) -> PipelineConfig:
    """From ``test`` to nowhere that anybody asks."""
    return PipelineConfig.model_validate({
        "version": 1,
        "pipeline": name,
        "source": {"connection": "test", "type": kind},
        "targets": [{"name": "t", "type": "mysql", "connection": "nowhere"}],
        "capture": {"include": [rf"{schema}\..*"]},
        "coordination": {"connection": "nowhere"},
        **more,
    })


@dataclass
class SourceCase(ABC):
    """A source with a schema of its own.

    Tables are (id INT, v text), the id their primary key, unless a test makes others.
    """

    schema: str
    config: PipelineConfig

    @property
    @abstractmethod
    def endpoint(self) -> Endpoint:
        """The endpoint of the connection ``test``."""

    @abstractmethod
    def execute(self, *statements: str) -> None:
        """Run statements in one session in the case's schema, a transaction each unless one begins another."""

    def create(self, name: str, *, key: bool = True) -> None:
        """Make a table."""
        self.execute(f"CREATE TABLE `{name}` (id INT NOT NULL{' PRIMARY KEY' if key else ''}, v VARCHAR(40))")

    def whole_images(self, name: str) -> tuple[str, ...]:
        """Return the statements after which the log has a table's whole rows."""
        return ()

    @abstractmethod
    def commit(self, *writes: Write) -> None:
        """One transaction."""

    @abstractmethod
    def load(self, token: str, *writes: Write) -> None:
        """One transaction that Sluice marked as its own with ``token``."""

    marking: ClassVar[Marking] = Marking.TABLE
    """How a dump of it is marked."""
    loads: MarkRules | None = None
    """What the source does with marked transactions."""

    @property
    def source(self) -> Source:
        return open_source(self.config, lambda _: self.endpoint, self.loads)

    def table(self, name: str) -> TableId:
        return TableId(self.schema, name)

    @property
    def wanted(self) -> Selection:
        return Selection.compile(self.config.capture)

    def of_another_server(self, at: Offset) -> Offset:
        """An offset that another server gave."""
        return Offset.from_json({**at.to_json(), "server_uuid": "another", "last_event": None})

    @abstractmethod
    def lost(self, at: Offset) -> Offset:
        """An offset whose log is no longer kept."""


class MemoryCase(SourceCase):
    @property
    def endpoint(self) -> Endpoint:
        return Endpoint("test", "memory", self.schema)

    @property
    def store(self) -> MemoryStore:
        return store_of(self.schema)

    @cached_property
    def twin(self) -> TwinSource:
        """The store as a server that understands SQL."""
        return TwinSource(self.schema)

    def execute(self, *statements: str) -> None:
        self.twin.execute(*statements, database=self.schema)

    def commit(self, *writes: Write) -> None:
        self.store.commit(*self._changes(writes))

    def load(self, token: str, *writes: Write) -> None:
        self.store.commit(*self._changes(writes), mark=token)

    def _changes(self, writes: Sequence[Write]) -> list[RowChange]:
        changes = []
        known = {name: {row["id"]: row for row in self.store.rows(self.table(name))} for _, name, _ in writes}
        for verb, name, values in writes:
            before = known[name].get(values[0]) if verb != "insert" else None
            after = dict(zip(("id", "v"), values, strict=True)) if verb != "delete" else None
            if after is not None:
                known[name][values[0]] = after
            changes.append(RowChange(self.table(name), before, after))
        return changes

    def lost(self, at: Offset) -> Offset:
        self.store.release(len(self.store.log))
        return at


@dataclass
class ServerCase(SourceCase):
    """MySQL or MariaDB."""

    server: Any = None

    @property
    def endpoint(self) -> Endpoint:
        return parse_connection("test", self.server.connection_json())

    def execute(self, *statements: str) -> None:
        self.server.execute(*statements, database=self.schema)

    def commit(self, *writes: Write) -> None:
        self._transact(writes)

    def load(self, token: str, *writes: Write) -> None:
        self.execute(f"CREATE TABLE IF NOT EXISTS `{TABLE}` ({COLUMN})")
        self._transact(writes, f"INSERT INTO `{TABLE}` VALUES ('{token}')", f"DELETE FROM `{TABLE}`")

    def _transact(self, writes: Sequence[Write], first: str = "", last: str = "") -> None:
        words = {
            "insert": "INSERT INTO {} VALUES (%(id)s, %(v)s)",
            "update": "UPDATE {} SET v = %(v)s WHERE id = %(id)s",
            "delete": "DELETE FROM {} WHERE id = %(id)s",
        }
        connection = self.server.connect(self.schema)
        try:
            with connection.cursor() as cursor:
                cursor.execute("BEGIN")
                if first:
                    cursor.execute(first)
                for verb, name, values in writes:
                    sql = words[verb].format(f"`{self.schema}`.`{name}`")
                    cursor.execute(sql, dict(zip(("id", "v"), values, strict=False)))
                if last:
                    cursor.execute(last)
            connection.commit()
        finally:
            connection.close()

    def lost(self, at: Offset) -> Offset:
        base, _, _ = at.row_place[0].rpartition(".")
        return Offset.from_json({**at.to_json(), "file": f"{base}.000000", "last_event": None, "gtid_set": ""})


@dataclass
class PostgreSQLCase(SourceCase):
    """PostgreSQL: a schema, a slot and a publication of the schema's tables."""

    marking: ClassVar[Marking] = Marking.SNAPSHOT
    server: Any = None

    @property
    def endpoint(self) -> Endpoint:
        return parse_connection("test", self.server.connection_json())

    def execute(self, *statements: str) -> None:
        with self.server.connect(options=f"-c search_path={self.schema}") as connection:
            for statement in statements:
                connection.execute(statement)

    def create(self, name: str, *, key: bool = True) -> None:
        self.execute(
            f"CREATE TABLE {name} (id INT NOT NULL{' PRIMARY KEY' if key else ''}, v VARCHAR(40))",
            *self.whole_images(name),
        )

    def whole_images(self, name: str) -> tuple[str, ...]:
        return (f"ALTER TABLE {name} REPLICA IDENTITY FULL",)

    def commit(self, *writes: Write) -> None:
        self._transact(writes)

    def load(self, token: str, *writes: Write) -> None:
        self._transact(writes, token)

    def _transact(self, writes: Sequence[Write], token: str = "") -> None:
        words = {
            "insert": "INSERT INTO {} VALUES (%(id)s, %(v)s)",
            "update": "UPDATE {} SET v = %(v)s WHERE id = %(id)s",
            "delete": "DELETE FROM {} WHERE id = %(id)s",
        }
        with self.server.connect() as connection, connection.transaction():
            if token:
                connection.execute("SELECT pg_logical_emit_message(true, %s, %s)", (MARK_PREFIX, token))
            for verb, name, values in writes:
                sql = words[verb].format(f'"{self.schema}"."{name}"')
                connection.execute(sql, dict(zip(("id", "v"), values, strict=False)))

    def lost(self, at: Offset) -> Offset:
        [(head,)] = self.server.execute("SELECT pg_current_wal_flush_lsn()::text")
        self.server.execute(f"SELECT pg_replication_slot_advance('{self.slot}', '{head}')")
        return at

    @property
    def slot(self) -> str:
        return slot_name(self.config)


@contextmanager
def postgresql_case(server: Any, **source: Any) -> Iterator[PostgreSQLCase]:
    """A source at a real PostgreSQL, with a schema, a slot and a publication of its own. ``source``: its options."""
    schema = f"c{os.getpid()}_{next(_numbers)}"
    options = {"source": {"connection": "test", "type": "postgresql", **source}}
    made = PostgreSQLCase(schema, pipeline(f"contract_{schema}", "postgresql", schema, **options), server=server)
    server.execute(
        f"CREATE SCHEMA {schema}",
        f"CREATE PUBLICATION {made.slot} FOR TABLES IN SCHEMA {schema} WITH (publish_via_partition_root = true)",
        f"SELECT pg_create_logical_replication_slot('{made.slot}', 'pgoutput')",
    )
    try:
        yield made
    finally:
        server.execute(
            "SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots "
            f"WHERE slot_name = '{made.slot}' AND active_pid IS NOT NULL",
            f"SELECT pg_drop_replication_slot('{made.slot}')",
            f"DROP PUBLICATION {made.slot}",
            f"DROP SCHEMA {schema} CASCADE",
        )


@contextmanager
def noting(server: Any) -> Iterator[PostgreSQLCase]:
    """A source whose server notes statements by the event triggers that `sluice check --apply` makes."""
    with postgresql_case(server, ddl=True) as made:
        try:
            apply_missing(made)
            yield made
        finally:
            server.execute(ddl_trigger.REMOVAL)


def apply_missing(case: PostgreSQLCase) -> list[str]:
    """Run what ``sluice check --apply`` runs; return the statements."""
    with case.source.open() as session:
        statements = list(session.missing())  # type: ignore[attr-defined]
        for statement in statements:
            session.make(statement)  # type: ignore[attr-defined]
        assert session.missing() == []  # type: ignore[attr-defined]
    return statements


@contextmanager
def memory_case() -> Iterator[MemoryCase]:
    """A source in memory with an empty store."""
    name = f"m{next(_numbers)}"
    try:
        yield MemoryCase(name, pipeline(f"contract_{name}", "memory", name))
    finally:
        forget_store(name)


def server_case(server: Any, schema: str) -> ServerCase:
    """A source at a real server."""
    config = pipeline(f"contract_{schema}", "mysql", schema, dump={"marks_schema": schema})
    return ServerCase(schema, config, server=server)


@dataclass
class Reader:
    """Streams a source batch by batch into a store, as a drain does."""

    case: SourceCase
    folder: Path
    at: Offset
    batch: int = 0
    known: Any = None
    known_at: Offset | None = None
    """Definitions as of a place where a batch ended."""

    def __post_init__(self) -> None:
        self.store = SegmentStore(f"file://{self.folder}/store", "contract")
        self.aborted: list[int] = []

    def once(self, session: SourceSession | None = None, **limits: Any) -> StreamResult[Any]:
        """One batch; by default all up to the head of now."""
        if session is not None:
            return self._once(session, **limits)
        with self.case.source.open(to_stream=True) as opened:
            return self._once(opened, **limits)

    def _once(
        self, session: SourceSession, *, sink: Any = None, progress: Any = None, **limits: Any
    ) -> StreamResult[Any]:
        if "stop_at" not in limits:
            limits["stop_at"] = session.head
        number, history = self.batch + 1, session.history
        at = self.at
        known = self.known if self.known_at == at else None
        if history is not None and known is None:
            known = history.snapshot(at, self.case.wanted)
        result = session.stream(
            at,
            StreamLimits(**({"max_wait_s": 30.0, "idle_wait_s": 10.0} | limits)),
            self.case.wanted,
            sink or (lambda: SegmentWriter(self.store, number, 1)),
            definitions=(lambda: known) if known is not None else None,
            progress=progress,
        )
        self.known, self.known_at = result.schema or known, result.last
        self.at = result.last
        self.batch += result.manifest is not None
        return result

    def all(self, **limits: Any) -> list[StreamResult[Any]]:
        """Batch after batch, up to the head of now."""
        with self.case.source.open() as session:
            stop = session.head
        return self.all_until(stop, **limits) if stop is not None else []

    def all_until(self, stop: Offset, **limits: Any) -> list[StreamResult[Any]]:
        """Batch after batch, up to a place."""
        found = []
        while stop.follows(self.at):
            found.append(self.once(stop_at=stop, **limits))
        return [result for result in found if result.manifest is not None]

    def changes(self, results: Sequence[StreamResult[Any]]) -> list[Change]:
        """Of these batches, in the order of the log."""
        return [change for result in results for change in iter_changes(self.store, result.manifest)]
