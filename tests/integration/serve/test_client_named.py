"""``subscribe(..., name=...)`` on a real service: the place is kept by the service, whoever is killed; an acknowledged
batch never comes again.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import closing
from itertools import islice
from typing import Any

import pytest
from pyarrow import flight

from devstack import ports
from devstack.zookeeper import ZooKeeperServer
from sluice.client import StoredBatch, subscribe
from sluice.coordination.servers import Servers
from tests.support.pipelines.case import Case
from tests.support.pipelines.subscribing import replayed, served, serving, shop_case, write
from tests.support.running.waiting import wait_until


def rows_of(batches: list[StoredBatch]) -> dict[Any, dict[str, Any]]:
    return replayed([row for batch in batches for row in batch.rows.to_pylist()])


def test_an_acknowledged_batch_never_comes_again_and_no_other_is_missing(shop: Case) -> None:
    numbers = [write(shop, "INSERT INTO orders (id, v) VALUES (1, 10)"), write(shop, "UPDATE orders SET v = 11")]
    moved = write(shop, "ALTER TABLE orders MODIFY v VARCHAR(20)", "UPDATE orders SET v = 'twelve'")
    with serving(shop) as (server, _):
        address = f"grpc://127.0.0.1:{server.port}"

        def named(**more: Any) -> Any:
            return closing(subscribe(address, "case", name="mine", start={"batch": numbers[0]}, follow=False, **more))

        with named() as mine:
            first, second = islice(mine, 2)
            first.ack()
            assert [first.number, second.number] == numbers
            mine.rollback()
            assert next(mine).number == numbers[1]
        with named() as mine:  # another client
            given = []
            for batch in mine:
                given.append(batch)
                batch.ack()
            assert given[0].number == numbers[1]
            assert given[-1].number == moved
            assert rows_of([first, *given])[1]["v"] == "twelve"
            given[0].ack()  # again: it is known
        with named() as mine:
            assert list(mine) == []
        with named(reset=True, window=1) as mine:
            assert next(mine).number == numbers[0]
            with pytest.raises(RuntimeError, match="1 batches are not acknowledged"):
                next(mine)
        with pytest.raises(RuntimeError, match="name="):
            next(subscribe(address, "case")).ack()


def test_a_killed_service_and_a_zookeeper_that_restarts_lose_nothing(
    tmp_path, mysql_source, mysql_target, fresh_schema
) -> None:
    port = ports.free_port()
    schema = fresh_schema(mysql_source, mysql_target)
    with (
        ZooKeeperServer(tmp_path / "zookeeper") as zookeeper,
        shop_case(tmp_path / "own", (mysql_source, mysql_target, zookeeper), schema) as made,
    ):
        numbers = [write(made, "INSERT INTO orders (id, v) VALUES (1, 0)")]
        numbers += [write(made, f"UPDATE orders SET v = {n + 1}") for n in range(5)]
        options = {"name": "mine", "start": {"batch": numbers[0]}, "patience_s": 300}
        with closing(subscribe(f"grpc://127.0.0.1:{port}", "case", **options)) as mine:
            with served(made, port) as service:
                first, second = next(mine), next(mine)
                first.ack()
                service.send_signal(signal.SIGKILL)
            with served(made, port):
                second.ack()  # of the session before
                third = next(mine)
                third.ack()
                zookeeper.kill()
                zookeeper.start()
                fourth = next(mine)
                fourth.ack()
                given = [first, second, third, fourth, *islice(mine, len(numbers) - 4)]
        assert [batch.number for batch in given] == numbers
        with made.runtime().state() as state:
            kept = state.subscriptions.get("mine")
        assert kept
        assert kept.batch == numbers[3]


CLIENT = """
import sys
from sluice.client import subscribe
for batch in subscribe(sys.argv[1], "case", name="mine"):
    print("got", batch.number, flush=True)
    if sys.argv[2] == "ack":
        batch.ack()
        print("done", batch.number, flush=True)
"""


def test_a_client_that_is_killed_between_get_and_ack_gets_the_batch_again(shop: Case) -> None:
    last = [write(shop, "INSERT INTO orders (id, v) VALUES (1, 10)"), write(shop, "UPDATE orders SET v = 11")][-1]
    with serving(shop) as (server, _):

        def heard(how: str, until: str) -> list[str]:
            lines: list[str] = []
            command = [sys.executable, "-c", CLIENT, f"grpc://127.0.0.1:{server.port}", how]
            with subprocess.Popen(command, env=shop.environment, stdout=subprocess.PIPE, text=True) as client:
                assert client.stdout is not None
                for line in client.stdout:
                    lines.append(line.strip())
                    if lines[-1] == until:
                        break
                client.kill()
            return lines

        got = heard("wait", f"got {last}")
        wait_until(lambda: server._service.slots.taken == 0, "the end of the killed client's session")
        again = heard("ack", f"done {last}")
        assert [line for line in again if line.startswith("got")] == got
        new = write(shop, "UPDATE orders SET v = 12")
        assert heard("ack", f"done {new}") == [f"got {new}", f"done {new}"]


@pytest.mark.promise("A35")
def test_a_client_finds_a_service_in_zookeeper_and_goes_on_at_another_one(shop: Case) -> None:
    numbers = [write(shop, "INSERT INTO orders (id, v) VALUES (1, 0)")]
    numbers += [write(shop, f"UPDATE orders SET v = {n + 1}") for n in range(3)]
    ports_of = [ports.free_port(), ports.free_port()]
    root = f"/test/{shop.schema}"
    address = f"zk://{shop.zookeeper_hosts}{root}"

    def registered() -> set[str]:
        with shop.runtime().state() as state:
            return {entry.address for entry in Servers(state._z, root).all() if entry.pipelines == ("case",)}

    with pytest.raises(flight.FlightUnavailableError, match="no service of case is registered"):
        next(subscribe(address, "case", name="mine", patience_s=0))
    with (
        served(shop, ports_of[0], "--register") as one,
        served(shop, ports_of[1], "--advertise", f"localhost:{ports_of[1]}") as other,
    ):
        known = {f"grpc://127.0.0.1:{ports_of[0]}": one, f"grpc://localhost:{ports_of[1]}": other}
        wait_until(lambda: registered() == set(known), "both are registered")
        options: dict[str, Any] = {"start": {"batch": numbers[0]}, "patience_s": 300}
        with closing(subscribe(address, "case", name="mine", **options)) as mine:
            first = next(mine)
            read_at = mine._server._last
            known.pop(read_at).kill()
            first.ack()
            given = [first, *islice(mine, len(numbers) - 1)]
            given[-1].ack()
            assert mine._server._last != read_at
        unnamed = [batch.number for batch in subscribe(address, "case", follow=False, **options)]
        assert [batch.number for batch in given] == unnamed == numbers
        [left] = known.values()
        left.terminate()
        assert left.wait(120) == 0
        wait_until(lambda: not registered(), "the end of what is registered")
    refused = shop.cli("serve", "--register", "--host", "0.0.0.0", "--allow-insecure")
    assert "--advertise HOST" in refused.stderr
