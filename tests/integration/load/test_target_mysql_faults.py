"""The target dies in the middle of a load, as often as it likes."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from devstack.mysql import MySQLServer
from sluice.errors import RetryableError
from tests.support.pipelines.small_units import small_units
from tests.support.running.waiting import wait_until
from tests.support.tables.batches import Delivery
from tests.support.tables.people import DDL, delete, insert, people, update


@pytest.mark.faults
@pytest.mark.parametrize("consistency", ["row", "table", "batch"])
def test_kill_9_of_the_target_while_it_is_loaded(tmp_path: Path, monkeypatch: Any, consistency: str) -> None:
    small_units(monkeypatch, 1500)
    seed = random.randrange(1 << 30)
    choose = random.Random(seed)
    n = 6000
    schema, heap = people("shop"), people("shop", "heap")
    heap = type(heap)(heap.table, heap.columns)
    with MySQLServer(tmp_path / "server", server_id=404) as server:
        server.execute(
            "CREATE DATABASE shop",
            DDL.format("shop", "people"),
            "CREATE TABLE shop.heap (id INT, email VARCHAR(80), points INT)",
        )
        pipe = Delivery(tmp_path, server, target={"consistency": consistency, "options": {"ack_schema": "shop"}})
        pipe.deliver({schema: [insert(i, f"u{i}") for i in range(n)], heap: [insert(i) for i in range(50)]})
        rotate = [update(insert(i, f"u{i}"), email=f"u{i + 1}" if i < n - 1 else "u1", points=i) for i in range(1, n)]
        changeset = pipe.merge(
            pipe.write({schema: [delete(insert(0, "u0")), *rotate], heap: [insert(7), delete(insert(8))]})
        )
        for attempt in range(30):
            pipe.epoch += 1
            if attempt < 3:
                delay = choose.uniform(0.05, 0.6)
                threading.Thread(target=lambda delay=delay: (time.sleep(delay), server.kill())).start()
                try:
                    pipe.load(changeset)
                except RetryableError as error:
                    assert error.__class__.__name__ == "TargetUnavailable", f"seed {seed}: {error}"  # noqa: PT017
                wait_until(lambda: not server.running, "the kill")
                server.start()
                if pipe.held == 2:
                    break
            else:
                pipe.load(changeset)
                break
        expected = [(i, f"u{i + 1}" if i < n - 1 else "u1", i) for i in range(1, n)]
        assert sorted(server.execute("SELECT * FROM shop.people")) == expected, f"seed {seed}"
        counts = dict(server.execute("SELECT id, COUNT(*) FROM shop.heap GROUP BY id"))
        assert counts == {i: 2 if i == 7 else 1 for i in range(50) if i != 8}, f"seed {seed}"
        assert pipe.held == 2
