"""The demo's whole stack on Airflow and Spark: 60,000 random changes (``make faults``: 200,000), then a kill of every
kind of process while a batch is on its way.

Nothing is mended by hand: the stack's supervisor restarts servers as an operating system would, Airflow retries tasks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from devstack import paths
from devstack.demo import shop
from devstack.demo.workload import Workload, seed
from devstack.development import SOURCE_SCHEMA, SPARK, TARGET_SCHEMA, ZOOKEEPER, Stack
from sluice.config.loading import load_pipeline
from sluice.flows.runtime import Runtime

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(1200)]

REPOSITORY = Path(__file__).resolve().parents[2]
CHANGES = int(os.environ.get("SLUICE_STACK_CHANGES", "60000"))
PATIENCE_S = 420


@pytest.fixture(scope="module")
def stack(tmp_path_factory) -> Iterator[Stack]:
    """A stack of its own, in a temporary folder; the fetched servers are those of the checkout."""
    home = tmp_path_factory.mktemp("stack")
    for name in ("mysql", "mariadb", "templates"):
        if (paths.home() / name).exists():
            (home / name).symlink_to(paths.home() / name)
    env = {**os.environ, "SLUICE_HOME": str(home), "PYTHONPATH": str(REPOSITORY / "include")}
    for name in list(env):
        if name.startswith(("AIRFLOW", "SLUICE_UI")):
            del env[name]

    def command(verb: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "devstack", verb],
            cwd=REPOSITORY,
            env=env,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )

    started = command("up")
    try:
        assert started.returncode == 0, started.stdout + started.stderr
        loaded = Stack.load(home / "demo")
        assert loaded is not None
        saved = dict(os.environ)
        os.environ.update(loaded.environment())
        loaded.api.wait_for_dag("sync__shop_to_reporting")
        wait_for(lambda: runtime().status().captured is not None, 300, "the first drain")
        seed(loaded.source.connect, SOURCE_SCHEMA)
        yield loaded
        os.environ.clear()
        os.environ.update(saved)
    finally:
        stopped = command("down")
        assert stopped.returncode == 0, stopped.stdout + stopped.stderr


class _Looks:
    """The pipeline as the command line sees it."""

    def __init__(self) -> None:
        self.runtime = Runtime.build(load_pipeline(REPOSITORY / "include/pipelines/shop_to_reporting.yaml"))

    def status(self):
        from sluice.operations.status import status

        return status(self.runtime)

    def owner(self, target: str | None = None) -> int | None:
        """Process id of whoever drains, or loads ``target``, right now."""
        with self.runtime.state() as state:
            label = state.owner(target)
        return int(label.rsplit(":", 1)[1]) if label else None


def runtime() -> _Looks:
    return _Looks()


def wait_for(condition: Callable[[], object], patience_s: float, what: str) -> None:
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        try:
            if condition():
                return
        except Exception as error:  # a server that is being restarted
            last = error
        else:
            last = None
        time.sleep(0.2)
    raise AssertionError(f"{what} did not happen within {patience_s} s ({last})")


def equal(stack: Stack) -> bool:
    return shop.checksums(stack.source, SOURCE_SCHEMA) == shop.checksums(stack.target, TARGET_SCHEMA)


def held_batch(stack: Stack) -> int:
    """What the target itself says it holds; 0 before its first batch."""
    tables = {row[0] for row in stack.target.execute(f"SHOW TABLES FROM `{TARGET_SCHEMA}`")}
    if "_sluice_ack" not in tables:
        return 0
    rows = stack.target.execute(f"SELECT batch FROM `{TARGET_SCHEMA}`._sluice_ack WHERE scope = ''")
    return int(rows[0][0]) if rows else 0


def settled(stack: Stack) -> None:
    """Both sides are equal, everything is acknowledged, and the acknowledgements have no gap."""
    wait_for(lambda: equal(stack), PATIENCE_S, "equality of source and target")
    wait_for(lambda: not runtime().status().in_flight, 60, "the last acknowledgement")
    seen = runtime().status()
    assert seen.targets[0].batch == seen.next_batch - 1
    assert held_batch(stack) == seen.targets[0].batch


def test_random_changes_from_four_connections_end_equal(stack: Stack) -> None:
    done = Workload(stack.source.connect, SOURCE_SCHEMA, connections=4, changes=CHANGES, number=11).run()
    assert done.changes >= CHANGES
    assert min(done.inserts, done.updates, done.deletes) > CHANGES // 50
    settled(stack)
    runs = stack.api.call("GET", "/dags/sync__shop_to_reporting/dagRuns?state=failed")
    assert runs["total_entries"] == 0


def test_every_kind_of_process_is_killed_once(stack: Stack) -> None:
    looks = runtime()
    workload = Workload(
        stack.source.connect, SOURCE_SCHEMA, connections=4, changes_per_s=250, seconds=900, number=12
    ).start()
    killed: list[str] = []

    def progress(name: str) -> None:
        """A whole batch goes through after each kill, so that the next one meets a pipeline at work."""
        before = held_batch(stack)
        wait_for(lambda: held_batch(stack) > before, 400, f"a further batch after the kill of {name}")
        killed.append(name)

    def kill_owner(target: str | None) -> None:
        end = time.monotonic() + 300
        while time.monotonic() < end:
            pid = looks.owner(target)
            if pid is not None and psutil.pid_exists(pid):
                psutil.Process(pid).kill()
                return
            time.sleep(0.005)
        raise AssertionError("nobody held the lease")

    def kill_spark_worker() -> None:
        server = psutil.Process(Stack.load(stack.folder).servers[SPARK].handle.pid)
        for process in reversed(server.children(recursive=True)):
            try:
                if "pyspark" in " ".join(process.cmdline()):
                    process.kill()
                    return
            except psutil.Error:  # it ended by itself meanwhile
                continue
        raise AssertionError("there is no Python worker")

    try:
        progress("nothing yet")
        kill_owner(None)
        progress("the drain")
        kill_owner("reporting")
        progress("the loader")
        kill_spark_worker()
        progress("a Spark worker")
        for name in ("airflow-scheduler", "airflow-triggerer", ZOOKEEPER, "mysql-target"):
            current = Stack.load(stack.folder)
            current.servers[name].kill()
            wait_for(lambda name=name: Stack.load(stack.folder).servers[name].running, 300, f"restart of {name}")
            progress(name)
    finally:
        workload.stop()
        workload.wait()
    assert len(killed) == 8
    settled(stack)
    current = Stack.load(stack.folder)  # once more at rest, when the drain waits in the triggerer
    current.servers["airflow-triggerer"].kill()
    Workload(stack.source.connect, SOURCE_SCHEMA, connections=1, changes=50, number=99).run()
    settled(stack)
    print(json.dumps({"killed": killed, "changes": workload.tally.changes}))


def test_no_password_reached_a_file(stack: Stack) -> None:
    """Neither a log, nor XCom and the rest of Airflow's database, nor a segment holds a password of a connection."""
    passwords = [p.encode() for p in stack.settings.passwords.values() if len(p) > 8]
    assert len(passwords) >= 3
    looked_at = 0
    for path in stack.folder.rglob("*"):
        if (
            path.name == "stack.json"
            or not path.is_file()
            or path.is_relative_to(stack.folder / "mysql-source" / "data")
        ):
            continue
        if path.suffix not in {".log", ".db", ".json", ".parquet", ".db-wal"}:
            continue
        looked_at += 1
        content = path.read_bytes()
        assert not [p for p in passwords if p in content], f"a password is in {path}"
    assert looked_at > 20
