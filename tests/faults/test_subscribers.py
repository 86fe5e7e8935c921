"""Twenty clients of ``sluice serve`` at random positions; services are killed, ZooKeeper is restarted, batches are
removed.

Every client's tables equal the source's, after every batch and at the end. ``SLUICE_FAULT_SEED`` repeats a run, as far
as threads and processes do.
"""

from __future__ import annotations

import os
import random
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from devstack import ports
from devstack.zookeeper import ZooKeeperServer
from sluice.config.loading import load_pipeline
from sluice.errors import SluiceError
from sluice.flows.runtime import Runtime
from sluice.operations.retention import prune
from tests.faults.subscribers import CREATE, KEYS, Client, Workload, closed, difference, plans, selected
from tests.support.pipelines.case import Case, case
from tests.support.running.waiting import ended, wait_until

pytest.importorskip("deltalake")
pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(900)]

SEED = int(os.environ.get("SLUICE_FAULT_SEED") or random.SystemRandom().randrange(10**6))


class Services:
    """Processes of ``sluice serve --register``."""

    def __init__(self, made: Case, choose: random.Random) -> None:
        self._made, self._choose = made, choose
        self._running: list[tuple[int, subprocess.Popen[str]]] = []
        self._log = (made.folder / "services.log").open("a", encoding="utf-8")

    def start(self, port: int | None = None) -> None:
        """A new one, on this port or a free one. It need not be ready yet."""
        port = port or ports.free_port()
        command = self._made.command("serve", "--port", str(port), "--register")
        environment, folder = self._made.environment, self._made.folder
        process = subprocess.Popen(command, env=environment, cwd=folder, stdout=self._log, stderr=self._log, text=True)
        self._running.append((port, process))

    def strike(self) -> None:
        """One is killed, and another started, on its port or on another one."""
        port, process = self._running.pop(self._choose.randrange(len(self._running)))
        process.kill()
        process.wait()
        self.start(port if self._choose.random() < 0.5 else None)

    def end(self) -> None:
        for _, process in self._running:
            process.kill()
            process.wait()
        self._log.close()


class Delivering(threading.Thread):
    """Drains and loads again and again, as a scheduler does."""

    def __init__(self, made: Case) -> None:
        super().__init__(name="delivering", daemon=True)
        self._made = made
        self._over = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        while not self._over.is_set():
            try:
                self._made.run_until_head()
            except SluiceError as error:
                if not error.retryable:
                    self.error = error
                    return
                self._over.wait(0.2)
            except BaseException as error:
                self.error = error
                return

    def end(self) -> None:
        self._over.set()
        ended(self)


@contextmanager
def pipeline(folder: Path, source: Any, target: Any, zookeeper: Any, schema: str) -> Iterator[Case]:
    """Captures three tables from their beginning, and keeps a snapshot."""
    source.execute(f"USE {schema}", *CREATE)
    extra = f'snapshot: {{uri: "{(folder / "lake").as_uri()}", retain_log: 7d}}'
    with case(folder, source, target, zookeeper, schema, extra=extra, session_s=4) as made:
        made.make_missing()
        made.run_until_head()
        source.execute(f"USE {schema}", "INSERT INTO clock VALUES (1, 0)")
        made.run_until_head()
        yield made


def removing(made: Case, expire: str) -> Runtime:
    """The pipeline with settings that have retention remove all that it may."""
    folder = made.folder / "removing"
    folder.mkdir(exist_ok=True)
    path = folder / "case.yaml"
    path.write_text(
        made.yaml.replace("segments: {uri:", "segments: {retain: 0s, uri:") + f"subscriptions: {{expire: {expire}}}\n",
        encoding="utf-8",
    )
    return Runtime.build(load_pipeline(path), resolver=made.resolver, runner="local")


def test_twenty_clients_end_equal_whatever_is_killed(
    tmp_path: Path, mysql_source: Any, mysql_target: Any, fresh_schema: Any
) -> None:
    print(f"seed {SEED}")
    choose = random.Random(SEED)
    schema = fresh_schema(mysql_source, mysql_target)
    began = time.monotonic()

    def tell(what: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {what}", flush=True)

    with ExitStack() as stack:
        zookeeper = stack.enter_context(ZooKeeperServer(tmp_path / "zookeeper"))
        made = stack.enter_context(pipeline(tmp_path / "own", mysql_source, mysql_target, zookeeper, schema))
        workload, delivering, services = Workload(mysql_source, schema, SEED), Delivering(made), Services(made, choose)
        stack.callback(services.end)
        for _ in range(2):
            services.start()
        gates = {name: threading.Event() for name in ("begin", "early", "late")}
        address = f"zk://{zookeeper.hosts}/test/{schema}"
        store = made.runtime().store
        clients = [
            Client(plan, address, schema, SEED, workload, gates, lambda: max(store.batches(), default=1)).begin()
            for plan in plans(random.Random(SEED))
        ]
        assert len(clients) == 20
        stack.callback(closed, clients)
        for thread in (workload, delivering):
            thread.start()
            stack.callback(thread.end)

        def until(condition: Callable[[], object], what: str) -> None:
            def looked() -> object:
                for one in (workload, delivering, *clients):
                    if one.error is not None:
                        name = one.plan.who if isinstance(one, Client) else one.name
                        raise AssertionError(f"seed {SEED}: {name}: {one.error!r}") from one.error
                return condition()

            try:
                wait_until(looked, what, 300)
            except AssertionError:
                print("\n".join(client.describe() for client in clients))
                raise

        def more_for(who: Callable[[Client], bool], batches: int = 2) -> None:
            """Clients that read get some more."""
            seen = {client.plan.who: client.batches for client in clients if who(client)}
            until(
                lambda: all(c.batches >= seen[c.plan.who] + batches for c in clients if c.plan.who in seen),
                "more batches for all that read",
            )

        def reads(client: Client) -> bool:
            return client.batches > 0 and client.plan.who != "named_slow"

        def zookeeper_restarts() -> None:
            zookeeper.kill()
            done = workload.done
            until(lambda: workload.done > done + 30, "transactions without ZooKeeper")
            zookeeper.start()

        def both_at_once() -> None:
            services.strike()
            services.strike()

        def batches_go() -> None:
            removed: list[int] = []

            def some() -> bool:
                removed.extend(prune(removing(made, "1h")).removed)
                return bool(removed)

            until(some, "batches that may go")

        def subscriptions_expire() -> None:
            until(lambda: prune(removing(made, "0s")).expired, "subscriptions that had not acknowledged")

        tables = [f"{schema}.{table}" for table in KEYS]
        until(
            lambda: all(mysql_target.execute(f"SELECT 1 FROM {table} LIMIT 1") for table in tables),
            "changes of every table: one without any cannot be asked for",
        )
        gates["begin"].set()
        until(lambda: len(store.batches()) > 5, "the first batches")
        gates["early"].set()
        until(
            lambda: all(reads(c) for c in clients if c.plan.waits_for != "late" and c.plan.who != "named_slow"),
            "batches for all that began",
        )
        tell("all that began read")
        faults = [
            ("a service is killed", services.strike),
            ("ZooKeeper restarts", zookeeper_restarts),
            ("batches are removed", batches_go),
            ("a column comes", workload.widened.set),
            ("both services are killed", both_at_once),
        ]
        choose.shuffle(faults)
        for number, (what, strike) in enumerate([
            *faults,
            ("subscriptions expire", subscriptions_expire),
            ("a service is killed", services.strike),
        ]):
            strike()
            tell(what)
            if number == 1:
                batches_go()
                gates["late"].set()
            more_for(reads)
        last = workload.finish()
        tell(f"{last} transactions")
        until(lambda: mysql_target.execute(f"SELECT n FROM {schema}.clock")[0][0] == last, "the last batch")
        delivering.end()
        closing = workload.history[-1]
        for client in clients:
            until(lambda client=client: not client.thread.is_alive(), f"the end of {client.plan.who}")
        until(lambda: True, "no error")
        tell("all clients have all")
        print("\n".join(client.describe() for client in clients))
        source = selected(mysql_source, schema)
        assert source == closing, "the history is what the source has"
        for client in clients:
            assert client.state.tables is not None
            for table in client.plan.tables:
                difference(f"seed {SEED}: {client.plan.who}: {table}", client.state.tables[table], source[table])
        assert sum(client.resets for client in clients if client.plan.start.__name__ != "snapshot") > 0
        assert {table: len(rows) for table, rows in source.items() if rows}.keys() == KEYS.keys()
