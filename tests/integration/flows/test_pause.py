"""Pause and restart reach work that is under way, on Spark too: it does not go on to its end first."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.errors import Paused, Restarted
from sluice.flows.capture.drain import drain
from sluice.flows.load.load import load
from sluice.flows.transform.merge import merge
from sluice.operations import control
from tests.support.pipelines.case import Case, case
from tests.support.running.waiting import wait_until, waits_for_a_row

pytestmark = pytest.mark.slow

SLOW = """\
import pathlib
import time

def transform(row, context):
    pathlib.Path({at_work!r}).touch()
    time.sleep(300)
    return row
"""
QUICK = "def transform(row, context):\n    return row\n"


@pytest.fixture
def orders(
    tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, spark_connect: Any, fresh_schema: Any
) -> Iterator[Case]:
    schema = fresh_schema(mysql_source, mysql_target)
    for server in (mysql_source, mysql_target):
        server.execute(f"CREATE TABLE `{schema}`.orders (id INT PRIMARY KEY, note VARCHAR(20))")
    with case(tmp_path, mysql_source, mysql_target, zookeeper, schema, extra="rules: engine.yaml") as made:
        made.connections["spark_connect_default"] = spark_connect.connection_json()
        made.path.write_text(made.yaml.replace("spark: {mode: local}", "spark: {mode: connect, from_changes: 0}"))
        (tmp_path / "rules/engine.yaml").write_text(
            f"rules:\n  - {{name: slow, path: slow.py, type: row, order: 1, match: {{schema: {schema}, table: "
            "orders}}\n"
        )
        (tmp_path / "rules/slow.py").write_text(QUICK)
        made.run_until_head("connect")
        yield made


class Work:
    """A flow in a thread of its own; ``error``: what it raised."""

    def __init__(self, flow: Callable[[], object]) -> None:
        self.error: BaseException | None = None
        self._flow = flow
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._flow()
        except BaseException as error:
            self.error = error

    def reaches(self, condition: Callable[[], object], what: str) -> None:
        """Wait for ``condition``, and say what the flow raised if it ends before."""
        wait_until(lambda: condition() or not self.thread.is_alive(), what)
        assert self.error is None, f"{what} did not happen: {self.error!r}"

    def ends(self) -> BaseException | None:
        """Long before it would by itself."""
        self.thread.join(timeout=150)
        assert not self.thread.is_alive(), "it goes on"
        return self.error


def a_batch(made: Case) -> int:
    made.source.execute(f"INSERT INTO `{made.schema}`.orders VALUES (1, 'a'), (2, 'b')")
    batch = drain(made.runtime("connect"), claim="test:a:b", idle_wait_s=5).batch
    assert batch is not None
    return batch


@pytest.mark.parametrize("what", ["pause", "restart", "rollback"])
def test_a_merge_at_work_stops(orders: Case, what: str) -> None:
    at_work = orders.folder / "at_work"
    (orders.folder / "rules/slow.py").write_text(SLOW.format(at_work=str(at_work)))
    batch, runtime = a_batch(orders), orders.runtime("connect")
    work = Work(lambda: merge(runtime, batch))
    work.reaches(at_work.exists, "the rule at work")
    if what == "pause":
        control.pause(orders.runtime(), by="test", reason="tea")
        assert isinstance(work.ends(), Paused)
        control.resume(orders.runtime(), by="test")
    elif what == "restart":
        control.restart(orders.runtime(), by="test")
        assert isinstance(work.ends(), Restarted)
    else:
        control.rollback(orders.runtime(), by="test", dry_run=False)
        assert isinstance(work.ends(), Restarted)
    (orders.folder / "rules/slow.py").write_text(QUICK)
    orders.run_until_head("connect")
    orders.assert_equal("orders")


def test_a_load_that_waits_for_a_lock_stops_and_delivers_later(orders: Case) -> None:
    orders.source.execute(f"INSERT INTO `{orders.schema}`.orders VALUES (9, 'z')")
    orders.run_until_head("connect")
    batch, runtime = a_batch(orders), orders.runtime("connect")
    merge(runtime, batch)
    with orders.target.connect(orders.schema) as connection:
        connection.begin()
        connection.cursor().execute("INSERT INTO orders VALUES (1, 'in the way')")
        work = Work(lambda: load(runtime, "copy", batch))
        wait_until(lambda: waits_for_a_row(orders.target), "the load waiting for the row")
        control.pause(orders.runtime(), by="test", reason="tea")
        assert isinstance(work.ends(), Paused)
        connection.rollback()
    # the transaction that was waiting inside a worker may still end, rows and checkpoint together; ZooKeeper has the
    # batch as not acknowledged
    with orders.runtime().state() as state:
        held = state.acks.get("copy")
        assert held is not None
        assert held.batch == batch - 1
    control.resume(orders.runtime(), by="test")
    orders.run_until_head("connect")
    orders.assert_equal("orders")


def test_a_load_that_waits_for_an_older_ones_lock_stops_too(orders: Case) -> None:
    """A server notices late that a client inside a lock wait is gone, and the dead one's transaction holds the
    acknowledgement meanwhile.
    """
    orders.source.execute(f"INSERT INTO `{orders.schema}`.orders VALUES (9, 'z')")
    orders.run_until_head("local")
    batch, runtime = a_batch(orders), orders.runtime("local")
    merge(runtime, batch)
    with orders.target.connect(orders.schema) as connection:
        connection.begin()
        connection.cursor().execute("SELECT * FROM _sluice_ack LOCK IN SHARE MODE")
        work = Work(lambda: load(runtime, "copy", batch))
        wait_until(lambda: waits_for_a_row(orders.target), "the load waiting for the acknowledgement's row")
        control.pause(orders.runtime(), by="test", reason="tea")
        assert isinstance(work.ends(), Paused)
        connection.rollback()
    control.resume(orders.runtime(), by="test")
    orders.run_until_head("local")
    orders.assert_equal("orders")
