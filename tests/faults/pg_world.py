"""A pipeline from a PostgreSQL to another one that faults can strike, and what must hold after each of them."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg

from devstack import ports
from devstack.postgresql import PostgreSQLServer
from devstack.zookeeper import ZooKeeperServer
from sluice.coordination.state import PipelineState
from sluice.errors import SluiceError
from sluice.segments.reader import iter_changes
from sluice.sources.postgresql.position import Position
from tests.faults.crews import Crew, Nursery
from tests.faults.pg_writers import ACCOUNTS, JOURNAL, LINES, TABLES, Writers
from tests.faults.walked import Walked
from tests.faults.world import LANES, PATIENCE_S
from tests.faults.world import SESSION_S as SHORTEST_S
from tests.support.pipelines.pg_source import PgCase, pg_case
from tests.support.servers.pg_standby import LOGICAL

SCHEMA = "walk"
MEMBERS = ("case_source", "case_second")
SESSION_S = max(SHORTEST_S, 4.0)
"""The timeout of ZooKeeper's sessions: this walk is about the source, and leaves the machine little else."""
OPTIONS = {**LOGICAL, "logical_decoding_work_mem": "64kB", "max_slot_wal_keep_size": "4GB"}
"""Large transactions do not fit the server's memory: it writes them to its disk, or sends them before they commit."""


class PgWorld(Walked):
    """See the module. ``source`` is the server that is read now, the other member's address is free."""

    errors = (SluiceError, psycopg.Error, OSError)
    quiet = frozenset({"LeaseHeld"})

    def __init__(self, folder: Path, number: int) -> None:
        super().__init__(folder, number, PATIENCE_S)
        self.member = 0
        self.servers = 1
        self._writers: Writers | None = None
        self._rounds = self._checked = self.altered = 0
        self._last_place = (0, 0, 0)

    def _begin(self) -> None:
        enter = self._stack.enter_context
        self.ports = [ports.free_port(), ports.free_port()]
        self.source = PostgreSQLServer(self.folder / "source1", port=self.ports[0], options=OPTIONS).start()
        self._stack.callback(lambda: self.source.kill())
        self.target: PostgreSQLServer = enter(PostgreSQLServer(self.folder / "target", name="target"))
        self.zookeeper: ZooKeeperServer = enter(ZooKeeperServer(self.folder / "zookeeper"))
        self.target.execute(f"CREATE SCHEMA {SCHEMA}")
        self.case: PgCase = enter(
            pg_case(
                self.folder, self.source, self.zookeeper, schema=SCHEMA, tables=TABLES, target=self.target,
                source_extra=f", ddl: true, streaming: {'true' if self.number % 2 else 'false'}",
                target_extra=f"    options: {{ack_schema: {SCHEMA}}}",
            )
        )  # fmt: skip
        self.case.connections[MEMBERS[1]] = self.source.connection_json().replace(
            f'"port": {self.ports[0]}', f'"port": {self.ports[1]}'
        )
        text = self.case.yaml.replace("connection: case_source, ", f"connections: [{', '.join(MEMBERS)}], ")
        for old, new in (
            ("session_timeout: 10s", f"session_timeout: {SESSION_S:g}s"),
            ("max_wait: 200ms", "max_wait: 100ms"),
        ):
            text = text.replace(old, new)
        self.case.path.write_text(text, encoding="utf-8")
        self.case.prepare()
        self.case.run_until_head()
        self.case.write("INSERT INTO journal VALUES ('first', 1)")
        self.case.run_until_head()
        self.target.execute(
            f"CREATE TABLE {SCHEMA}._history (id bigint GENERATED ALWAYS AS IDENTITY, old bigint, new bigint, "
            "epoch bigint)",
            f"CREATE FUNCTION {SCHEMA}._noted() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN INSERT INTO "
            f"{SCHEMA}._history (old, new, epoch) VALUES (OLD.batch, NEW.batch, NEW.epoch); RETURN NULL; END$$",
            f"CREATE TRIGGER _watch AFTER UPDATE ON {SCHEMA}._sluice_ack FOR EACH ROW "
            f"WHEN (NEW.scope = '' AND NEW.batch <> OLD.batch) EXECUTE FUNCTION {SCHEMA}._noted()",
        )
        nursery = Nursery(self.folder, self.case.environment)
        self._stack.callback(nursery.end)
        self._stack.callback(lambda: [crew.end() for crew in self.crews])
        self.crews = [Crew(name, self.case.path, self.folder, nursery, LANES) for name in ("A", "B")]

    # -- looking -------------------------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def state(self) -> Iterator[PipelineState]:
        with self.case.runtime().state(connect_timeout_s=3) as state:
            yield state

    def head(self) -> int:
        return int(self.source.execute("SELECT pg_current_wal_flush_lsn() - '0/0'")[0][0])

    def has_all(self, head: int) -> bool:
        """True once all that the source had at ``head`` is captured and acknowledged, and no copy is under way."""
        with self.state() as state:
            cursor = state.cursor()
            return (
                cursor is not None
                and Position.of(cursor.position).lsn >= head
                and not state.undelivered()
                and not state.dumps.active()
            )

    def acknowledged(self) -> int:
        with self.state() as state:
            found = state.acks.get("copy")
        return found.batch if found is not None else 0

    def said(self, kind: str, since: float) -> list[str]:
        """Texts of the errors of one kind with which tasks of the crews ended since then."""
        return [
            event["text"]
            for crew in self.crews
            for event in crew.history()
            if event["what"] == "error" and event["kind"] == kind and event["at"] >= since
        ]

    def story(self) -> str:
        """Also where the pipeline stands."""
        with contextlib.suppress(*self.errors), self.state() as state:
            return (
                f"  captured {state.cursor()}, undelivered {state.undelivered()}, dumps "
                f"{[dump.id for dump in state.dumps.active()]}; head {self.head()}; slot {self.case.slot_row()}\n"
                f"{super().story()}"
            )
        return super().story()

    def catch(self, choose: random.Random, kind: str, patience_s: float = 4.0) -> tuple[Crew, psutil.Process]:
        """A process at work on a task of this kind, as soon as there is one; else any process of a crew."""
        end = time.monotonic() + patience_s
        while time.monotonic() < end:
            for crew in choose.sample(self.crews, len(self.crews)):
                for process in crew.tasks(kind):
                    return crew, process
            time.sleep(0.002)
        return next((crew, crew.processes()[-1]) for crew in self.crews if crew.processes())

    # -- load ----------------------------------------------------------------------------------------------------------
    def work(self) -> None:
        self._rounds += 1
        self._writers = Writers(lambda: self.source, SCHEMA, f"{self.number}/{self._rounds}")

    def rest(self) -> None:
        """No more changes."""
        if self._writers is not None:
            writers, self._writers = self._writers, None
            writers.rest()

    # -- what must hold ------------------------------------------------------------------------------------------------
    def settle(self) -> None:
        """Wait until all is delivered; then compare everything."""
        self.rest()
        head = self.head()
        self.wait_until(lambda: self.has_all(head), "delivery of all changes")
        for crew in self.crews:
            crew.check_errors()
        self.compare()
        self.check_history()
        self.check_segments()

    def compare(self) -> None:
        """The servers' own digests of the rows, and of the table without a key the number of each row."""
        for table, row in ((ACCOUNTS, "t::text"), (LINES, "t::text"), (JOURNAL, "t::text")):
            query = f"SELECT {row}, count(*) FROM {SCHEMA}.{table} t GROUP BY 1"
            total = f"SELECT count(*), coalesce(sum(hashtextextended({row}, 0)::numeric), 0) FROM {SCHEMA}.{table} t"
            if self.source.execute(total) != self.target.execute(total):
                rows = [set(server.execute(query)) for server in (self.source, self.target)]
                lacking, beyond = sorted(rows[0] - rows[1])[:3], sorted(rows[1] - rows[0])[:3]
                shown = [[f"{one[:120]} x{count}" for one, count in side] for side in (lacking, beyond)]
                raise AssertionError(f"{table} differs: only at the source {shown[0]}, only at the target {shown[1]}")

    def check_history(self) -> None:
        """The target's own record of its acknowledgement."""
        held = None
        moves = self.target.execute(f"SELECT old, new, epoch FROM {SCHEMA}._history ORDER BY id")
        for old, new, _ in moves:
            assert new == old + 1, f"the target went from batch {old} to {new}"
            assert held is None or old == held, f"the target held {held}, then moved from {old}"
            held = new
        epochs = [epoch for _, _, epoch in moves]
        assert epochs == sorted(epochs), "an older epoch wrote after a newer one"
        assert held is None or held == self.acknowledged()

    def check_segments(self) -> None:
        """Every change of the log is in the batches once, in the order of the log."""
        store = self.case.runtime().store
        with self.state() as state:
            numbers = state.batches.numbers()
            records = [state.batches.get(number) for number in numbers if number > self._checked]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), f"batches with gaps: {numbers}"
        for record in records:
            assert record is not None
            for change in iter_changes(store, store.read_manifest(record.manifest)):
                if change.op == "r":
                    continue  # of a copy
                timeline = int(change.file.split(".")[0].removeprefix("timeline"))
                place = (timeline, change.offset, change.row)
                assert place > self._last_place, f"batch {record.number}: {place} comes after {self._last_place}"
                self._last_place = place
            self._checked = record.number


__all__ = ["MEMBERS", "OPTIONS", "SCHEMA", "SESSION_S", "PgWorld"]
