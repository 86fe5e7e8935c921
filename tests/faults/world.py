"""Everything that a fault can strike: two databases, ZooKeeper, a proxy before each, two crews of workers, a disk,
clocks, a load.

And what must hold after every fault, whatever it was: both sides equal, acknowledgements one by one, no batch twice.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql

from devstack import ports
from devstack.demo import shop
from devstack.demo.workload import Workload, seed
from devstack.mysql import MySQLServer
from devstack.zookeeper import ZooKeeperServer
from sluice.config.connections import Endpoint, parse_connection
from sluice.config.loading import load_pipeline
from sluice.coordination.state import PipelineState
from sluice.errors import SluiceError
from sluice.flows.capture.drain import head_of
from sluice.flows.runtime import Runtime
from tests.faults.crews import Crew, Nursery
from tests.faults.disk import Disk
from tests.faults.walked import Walked
from tests.support.pipelines.case import Case, case
from tests.support.servers.positions_file import PositionsFile
from tests.support.servers.proxy import TcpProxy

SCHEMA = "walk"
_BUSY = "PYTEST_XDIST_WORKER" in os.environ or os.getloadavg()[0] > 2 * (os.cpu_count() or 1)
SESSION_S = float(os.environ.get("SLUICE_FAULT_SESSION_S") or (4.0 if _BUSY else 1.5))
"""Of ZooKeeper.

On a machine full of other work, such as other tests, a process may get no CPU for longer than a short one, again and
again.
"""
LANES = 3
PATIENCE_S = float(os.environ.get("SLUICE_FAULT_PATIENCE_S", "120"))
KEYLESS = f"CREATE TABLE `{SCHEMA}`.journal (what VARCHAR(40) NOT NULL, n INT NOT NULL)"
JOURNAL = "journal"
VERSIONS = f"CREATE TABLE `{SCHEMA}`.versions (id INT PRIMARY KEY, version BIGINT NOT NULL)"


class World(Walked):
    """See the module. ``consistency`` is the target's; the crews read the pipeline file anew for every task."""

    errors = (SluiceError, pymysql.MySQLError, OSError)

    def __init__(self, folder: Path, number: int, *, in_file: bool = False) -> None:
        """``in_file``: positions are in a file, and there is no ZooKeeper."""
        super().__init__(folder, number, PATIENCE_S)
        self.in_file = in_file
        self.consistency = "row"
        self.turns = False
        self._rounds = 0
        self._workload: Workload | None = None
        self._journal: threading.Thread | None = None
        self._stop_journal = threading.Event()

    def _begin(self) -> None:
        enter = self._stack.enter_context
        self.disk = Disk(self.folder / "store")
        self._stack.callback(self.disk.close)
        self.source: MySQLServer = enter(MySQLServer(self.folder / "source", name="source", server_id=201))
        self.target: MySQLServer = enter(MySQLServer(self.folder / "target", name="target", server_id=202))
        self.replica = MySQLServer(self.folder / "replica", name="replica", server_id=203, port=ports.free_port())
        self._stack.callback(self.replica.kill)
        self.members = {201: "case_source", 203: "case_second"}
        self.writing = threading.Lock()  # whoever holds it is the only one who may write at the source
        servers: dict[str, Any] = {"source": self.source, "target": self.target}
        self.zookeeper: Any = PositionsFile(self.folder / "positions.db")
        if not self.in_file:
            servers["zookeeper"] = self.zookeeper = enter(ZooKeeperServer(self.folder / "zookeeper"))
        self.names = tuple(servers)
        servers["replica"] = self.replica
        self.links = {name: enter(TcpProxy("127.0.0.1", server.port or 0)) for name, server in servers.items()}
        for server in (self.source, self.target):
            shop.create_tables(server, SCHEMA)
            server.execute(KEYLESS, VERSIONS)
        self.case: Case = enter(case(self.folder, self.source, self.target, self.zookeeper, SCHEMA))
        self.case.connections["case_second"] = self.replica.connection_json()
        group = "{connections: [case_source, case_second], start: latest}"
        if os.environ.get("SLUICE_FAULTS"):  # of `make faults`, where it fails over
            self.case.yaml = self.case.yaml.replace("{connection: case_source, start: latest}", group)
        self._direct = dict(self.case.connections)
        for name, connection in (
            ("source", "case_source"),
            ("replica", "case_second"),
            ("target", "case_target"),
            ("zookeeper", "zookeeper_default"),
        ):
            if name not in self.links:
                continue
            data = json.loads(self.case.connections[connection])
            self.case.connections[connection] = json.dumps({**data, "port": self.links[name].port})
        self.set_consistency("row")
        with self.runtime().state():
            pass
        self.nursery = Nursery(self.folder, self.case.environment, self.disk.inside)
        self._stack.callback(self.nursery.end)
        self._stack.callback(lambda: [crew.end() for crew in self.crews])
        self.crews = [Crew(name, self.case.path, self.folder, self.nursery, LANES) for name in ("A", "B")]
        self.wait_until(lambda: self.captured() is not None, "the first drain")
        seed(self.source.connect, SCHEMA, customers=60, products=40, orders=80)
        self.wait_until(self.is_level, "the first batches")
        self.target.execute(
            f"CREATE TABLE `{SCHEMA}`._history (id INT AUTO_INCREMENT PRIMARY KEY, old BIGINT, new BIGINT, epoch "
            "BIGINT)",
            f"CREATE TRIGGER `{SCHEMA}`._watch AFTER UPDATE ON `{SCHEMA}`._sluice_ack FOR EACH ROW BEGIN "
            "IF NEW.scope = '' AND NEW.batch <> OLD.batch THEN "
            f"INSERT INTO `{SCHEMA}`._history (old, new, epoch) VALUES (OLD.batch, NEW.batch, NEW.epoch); END IF; END",
        )
        self._began: tuple[int, int] | None = self.acknowledged()

    # -- looking -------------------------------------------------------------------------------------------------------
    def runtime(self) -> Runtime:
        """The pipeline past the proxies, for looking at it and for acting on it."""

        def resolve(connection_id: str) -> Endpoint:
            return parse_connection(connection_id, self._direct[connection_id])

        return Runtime.build(load_pipeline(self.case.path), resolver=resolve, runner="local")

    @contextlib.contextmanager
    def state(self) -> Iterator[PipelineState]:
        with self.runtime().state(connect_timeout_s=3) as state:
            yield state

    def captured(self) -> Any:
        with self.state() as state:
            return state.cursor()

    def is_level(self) -> bool:
        """All that the source has is captured and acknowledged."""
        runtime = self.runtime()
        head = head_of(runtime)
        with runtime.state(connect_timeout_s=3) as state:
            cursor = state.cursor()
            return cursor is not None and cursor.position.order == head.order and not state.undelivered()

    # -- load ----------------------------------------------------------------------------------------------------------
    def work(self, changes_per_s: float = 250) -> None:
        """Mixed changes from two connections, and a table without a key, until :meth:`rest`."""
        self._rounds += 1
        self._workload = Workload(
            self.source.connect,
            SCHEMA,
            connections=2,
            changes_per_s=changes_per_s,
            seconds=600,
            number=self.number % 10_000 * 10_000 + self._rounds,
        ).start()
        self._stop_journal.clear()
        self._journal = threading.Thread(target=self._keep_journal, daemon=True)
        self._journal.start()

    def rest(self) -> None:
        """No more changes."""
        self._stop_journal.set()
        if self._workload is not None:
            self._workload.stop()
            with contextlib.suppress(SluiceError):  # the source was killed under it: its last transaction is gone
                self._workload.wait()
            self._workload = None
        if self._journal is not None:
            self._journal.join()
            self._journal = None

    def _keep_journal(self) -> None:
        choose = random.Random(f"{self.number}/{self._rounds}")
        with contextlib.suppress(pymysql.MySQLError), self.source.connect(SCHEMA) as connection:
            cursor = connection.cursor()
            while not self._stop_journal.wait(0.02):
                if choose.random() < 0.8:
                    cursor.execute(
                        "INSERT INTO journal VALUES (%s, %s)", (f"{self._rounds}", choose.randrange(20))
                    )  # doubles are wanted
                else:
                    cursor.execute("DELETE FROM journal WHERE n = %s LIMIT 1", (choose.randrange(20),))

    def set_consistency(self, word: str) -> None:
        """How the target is loaded from the next task on."""
        self.consistency = word
        text = self.case.yaml.replace(
            "connection: case_target\n", f"connection: case_target\n    consistency: {word}\n"
        )
        for old, new in (
            ("segments: {uri:", "segments: {retain: 1s, uri:"),
            ("session_timeout: 10s", f"session_timeout: {SESSION_S:g}s"),
            ("max_wait: 200ms", "max_wait: 100ms"),
        ):
            text = text.replace(old, new)
        partial = self.case.path.with_suffix(".tmp")
        partial.write_text(text)
        partial.rename(self.case.path)

    def set_turns(self, taken: bool) -> None:
        """Do the crews take turns, as installations do, or does everybody work on everything?"""
        self.turns = taken
        flag = self.case.path.with_suffix(".turns")
        if taken:
            flag.touch()
        else:
            flag.unlink(missing_ok=True)

    # -- what must hold ------------------------------------------------------------------------------------------------
    def settle(self) -> None:
        """Wait until all is delivered; then compare everything."""
        self.rest()
        self.wait_until(self.is_level, "delivery of all changes")
        for crew in self.crews:
            crew.check_errors()
        self.compare()
        self.check_history()

    def compare(self) -> None:
        """CHECKSUM TABLE of both sides; of the table without a key, its rows as a multiset."""
        here, there = (shop.checksums(server, SCHEMA) for server in (self.source, self.target))
        assert here == there, f"the tables differ: {here} and {there}"
        query = f"SELECT what, n, COUNT(*) FROM `{SCHEMA}`.{JOURNAL} GROUP BY what, n ORDER BY what, n"
        rows = [server.execute(query) for server in (self.source, self.target)]
        assert rows[0] == rows[1], f"the journal differs: {set(rows[0]) ^ set(rows[1])}"

    def check_history(self) -> None:
        """The target's own record of its acknowledgement, and ZooKeeper's count of the moves."""
        moves = self.target.execute(f"SELECT old, new, epoch FROM `{SCHEMA}`._history ORDER BY id")
        held = None
        for old, new, _ in moves:
            assert new == old + 1, f"the target went from batch {old} to {new}"
            assert held is None or old == held, f"the target held {held}, then moved from {old}"
            held = new
        epochs = [epoch for _, _, epoch in moves]
        assert epochs == sorted(epochs), "an older epoch wrote after a newer one"
        batch, version = self.acknowledged()
        assert held is None or held == batch, f"the target holds {held}, ZooKeeper says {batch}"
        began = self._began = self._began or (batch, version)
        assert version - began[1] == batch - began[0], "the acknowledgement moved more or less than once a batch"
        with self.state() as state:
            numbers = state.batches.numbers()
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), f"batches with gaps: {numbers}"
            last = state.batches.get(numbers[-1])
            cursor = state.cursor()
        assert last is not None
        assert cursor is not None
        assert cursor.next_batch == numbers[-1] + 1

    def acknowledged(self) -> tuple[int, int]:
        """The acknowledged batch, and how often ZooKeeper's node of it was written."""
        with self.state() as state:
            process = state.acks.get("copy")
        assert process is not None
        return process.batch, process.version

    def prune(self) -> None:
        """Retention, as its DAG runs it."""
        self.sluice("segments", str(self.case.path), "--prune")

    def inside(self, argv: list[str]) -> subprocess.CompletedProcess[str]:
        return super().inside(self.disk.inside(argv))

    def counts_anew(self) -> None:
        """What the target and ZooKeeper noted of earlier batches does not count: one of them was put back."""
        self.target.execute(f"DELETE FROM `{SCHEMA}`._history")
        self._began = None
