"""``sluice.client.subscribe`` on a real service: whole batches, each once, over changes of columns and a service that
ends and comes again.
"""

from __future__ import annotations

import threading
import time
from contextlib import closing
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest
from pyarrow import flight

from devstack import ports
from sluice import client
from sluice.client import StoredBatch, subscribe
from sluice.config.readers import hashed
from sluice.serve.access import Readers
from sluice.serve.flight import FlightServer
from sluice.serve.service import Service
from tests.support.pipelines.case import Case
from tests.support.pipelines.subscribing import replayed, serving, write
from tests.support.running.waiting import ended, wait_until


def rows_of(batches: list[StoredBatch]) -> dict[Any, dict[str, Any]]:
    return replayed([row for batch in batches for row in batch.rows.to_pylist()])


@pytest.mark.promise("D16")
def test_batches_come_whole_and_once_over_a_change_of_columns(shop: Case) -> None:
    write(shop, "INSERT INTO orders (id, v) VALUES (1, 10), (2, 20)")
    write(shop, "UPDATE orders SET v = 21 WHERE id = 2")
    write(shop, "ALTER TABLE orders MODIFY v VARCHAR(20)", "INSERT INTO orders (id, v) VALUES (3, 'thirty')")
    path = shop.folder / "readers.yml"
    path.write_text(f"readers: [{{name: me, token_sha256: {hashed('mine')}, may_read: {{case: ['.*']}}}}]\n")
    with serving(shop, readers=Readers(path)) as (server, _):
        address = f"grpc://127.0.0.1:{server.port}"
        batches = list(subscribe(address, "case", follow=False, token="mine"))
        numbers = [batch.number for batch in batches]
        assert numbers == sorted(set(numbers))
        assert {key: str(row["v"]) for key, row in rows_of(batches).items()} == {1: "10", 2: "21", 3: "thirty"}
        assert [one["kinds"] for batch in batches for one in batch.statements if one["table"].endswith("orders")]
        again = list(
            subscribe(address, "case", follow=False, token="mine", start={"batch": numbers[1]}, columns=["id"])
        )
        assert [batch.number for batch in again] == numbers[1:]
        with pytest.raises(flight.FlightUnauthenticatedError):
            next(subscribe(address, "case", token="other"))
        with pytest.raises(flight.FlightServerError, match="no stored batch"):
            next(subscribe(address, "case", tables=["shop.none"], token="mine"))


@pytest.mark.parametrize("name", [None, "late"])
def test_it_goes_on_where_it_was_when_the_service_comes_again_after_a_quiet_hour(
    shop: Case, monkeypatch: pytest.MonkeyPatch, name: str | None
) -> None:
    quiet_s = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + quiet_s[0], sleep=time.sleep)
    monkeypatch.setattr(client, "time", clock)
    first = write(shop, "INSERT INTO orders (id, v) VALUES (1, 10)")
    port = ports.free_port()
    address = f"grpc://127.0.0.1:{port}"

    def service() -> tuple[Service, FlightServer]:
        made = Service(lambda name: shop.runtime(), lambda: ["case"])
        return made, FlightServer(made, address)

    served, server = service()
    batches: list[StoredBatch] = []
    wanted = [first]

    def read() -> None:
        with closing(subscribe(address, "case", name=name, patience_s=600)) as given:
            for batch in given:
                batches.append(batch)
                if name:
                    batch.ack()
                if len(wanted) > 1 and batch.number >= wanted[-1]:
                    return

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    wait_until(lambda: any(batch.number == first for batch in batches), "the first batch")
    quiet_s[0] = 3600.0
    assert server.stop(60)
    served.close()
    write(shop, "UPDATE orders SET v = 11")
    wanted.append(write(shop, "INSERT INTO orders (id, v) VALUES (2, 20)"))
    served, server = service()
    try:
        ended(reader)
    finally:
        assert server.stop(60)
        served.close()
    numbers = [batch.number for batch in batches]
    assert numbers == list(range(numbers[0], wanted[-1] + 1))
    assert {key: row["v"] for key, row in rows_of(batches).items()} == {1: 11, 2: 20}
    with pytest.raises(flight.FlightUnavailableError):
        list(islice(subscribe(address, "case", patience_s=0.0), 1))
