"""A target is switched to a MySQL replica, while changes come in: nothing is lost or doubled, and a replica that lags
is refused. Every other case: tests/unit/flows/test_target_switch.py.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devstack.mysql import MySQLServer
from sluice.errors import CheckpointError, SluiceError
from sluice.operations import target_switch
from sluice.operations.status import status
from sluice.operations.target_switch import switch
from sluice.sources.mysql.reader.warm_up import compile_kernels
from tests.support.pipelines.case import Case, case
from tests.support.running.waiting import ended, wait_until
from tests.support.servers.fixtures import UNSAFE
from tests.support.tables.numbered import deliver, insert, rows, sluice

pytestmark = pytest.mark.full


@pytest.fixture
def replica(mysql_target: Any, tmp_path: Path) -> Iterator[MySQLServer]:
    """A server that follows the target from here on: not all that other tests did there can be done again."""
    [(done,)] = mysql_target.execute("SELECT @@GLOBAL.gtid_executed")
    with MySQLServer(tmp_path / "replica", name="replica", server_id=83, options=UNSAFE) as server:
        server.execute(
            "RESET BINARY LOGS AND GTIDS",
            f"SET GLOBAL gtid_purged = '{done}'",
            f"CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_PORT = {mysql_target.port}, "
            "SOURCE_USER = 'root', SOURCE_AUTO_POSITION = 1, GET_SOURCE_PUBLIC_KEY = 1",
            "START REPLICA",
        )
        yield server


@pytest.fixture
def made(
    tmp_path: Path, mysql_source: Any, mysql_target: Any, replica: Any, zookeeper: Any, fresh_schema: Any
) -> Iterator[Case]:
    compile_kernels()
    schema = fresh_schema(mysql_source, mysql_target)
    for server in (mysql_source, mysql_target):
        server.execute(f"CREATE TABLE `{schema}`.t (id INT PRIMARY KEY, note VARCHAR(40))")
    with case(tmp_path, mysql_source, mysql_target, zookeeper, schema) as one:
        one.connections["case_replica"] = replica.connection_json(schema=schema)
        text = one.path.read_text()
        group = "connections: [case_target, case_replica]\n    group: warehouse"
        assert "connection: case_target" in text
        one.path.write_text(text.replace("connection: case_target", group))
        one.run_until_head()
        yield one


def replicated(made: Case, replica: MySQLServer) -> list[int]:
    """The rows of the replica; none before it has the table."""
    has = f"SELECT 1 FROM information_schema.tables WHERE table_schema = '{made.schema}' AND table_name = 't'"
    return rows(made, replica) if replica.execute(has) else []


@pytest.mark.promise("G2")
def test_a_target_is_switched_to_its_replica_under_load(
    made: Case, replica: MySQLServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    deliver(made, 1, 2)
    wait_until(lambda: replicated(made, replica) == [1, 2], "the replica")
    assert "written at case_replica from now on" in sluice(made, "targets", "switch", "case", "copy", "--dry-run")

    replica.execute("STOP REPLICA SQL_THREAD")
    deliver(made, 3)
    monkeypatch.setattr(target_switch, "PATIENCE_S", 0.5)
    with pytest.raises(CheckpointError, match="case_replica lacks 1 batch, 1 changes that were acknowledged"):
        switch(made.runtime(), "copy", "", by="me", reason="", dry_run=False)
    replica.execute("START REPLICA SQL_THREAD")
    monkeypatch.setattr(target_switch, "PATIENCE_S", 60.0)

    stop, numbers, delivered = threading.Event(), list(range(1, 4)), threading.Semaphore(0)
    errors: list[BaseException] = []

    def load_on() -> None:
        try:
            while not stop.is_set():
                numbers.append(numbers[-1] + 1)
                insert(made, numbers[-1])
                try:
                    made.run_until_head()
                    delivered.release()
                except SluiceError as error:
                    if not error.retryable:
                        raise
        except BaseException as error:
            errors.append(error)
            delivered.release()

    thread = threading.Thread(target=load_on, daemon=True)
    thread.start()
    try:
        for _ in range(3):
            assert delivered.acquire(timeout=120)
        sluice(made, "targets", "switch", "--group", "warehouse", "--to", "case_replica", "--yes")
        for _ in range(3):
            assert delivered.acquire(timeout=120)
    finally:
        stop.set()
        ended(thread)
    assert not errors, errors[0]
    replica.execute("STOP REPLICA")
    made.run_until_head()
    assert rows(made, replica) == rows(made, made.source) == numbers
    assert len(rows(made, made.target)) < len(numbers), "the first server is not written any more"
    assert status(made.runtime()).targets[0].server == "case_replica"


def test_a_server_that_takes_no_writes_is_refused_and_the_first_one_is_written_on(
    made: Case, replica: MySQLServer
) -> None:
    deliver(made, 1)
    wait_until(lambda: replicated(made, replica) == [1], "the replica")
    replica.execute("SET GLOBAL super_read_only = ON")
    with pytest.raises(SluiceError) as refused:
        sluice(made, "targets", "switch", "case", "copy", "--to", "case_replica", "--yes")
    assert refused.value.message.startswith("the target takes no writes while taking the target over")
    assert refused.value.where.startswith("case_replica (")
    assert "SET GLOBAL read_only = OFF" in refused.value.hint
    deliver(made, 2)
    assert status(made.runtime()).targets[0].server == "case_target"
    wait_until(lambda: rows(made, replica) == rows(made, made.target) == [1, 2], "the replica")
    replica.execute("SET GLOBAL read_only = OFF")
    sluice(made, "targets", "switch", "case", "copy", "--to", "case_replica", "--yes")
    assert status(made.runtime()).targets[0].server == "case_replica"
