"""``sluice.client.subscribe`` on a real service: whole batches, each once, over changes of columns and a service that
ends and comes again.
"""

from __future__ import annotations

import threading
from contextlib import closing
from itertools import islice

import pytest

from sluice.client import StoredBatch, subscribe
from sluice.serve.feed import Feed
from tests.support.pipelines.case import Case
from tests.support.pipelines.subscribing import serving, write
from tests.support.running.waiting import counted, ended, wait_until


@pytest.mark.parametrize("name", [None, "early"])
def test_columns_may_change_in_the_first_batch_after_it_began_to_wait(shop: Case, name: str | None) -> None:
    """A stream that begins with a batch which is not stored yet has the columns that rows had so far."""
    write(shop, "INSERT INTO orders (id, v) VALUES (1, 10)")
    last = write(shop, "ALTER TABLE orders ADD COLUMN more INT")
    with serving(shop) as (server, _), counted(Feed, "after") as waits:
        batches: list[StoredBatch] = []

        def read() -> None:
            address = f"grpc://127.0.0.1:{server.port}"
            with closing(subscribe(address, "case", name=name, start={"batch": last + 1}, patience_s=300)) as given:
                batches.extend(islice(given, 1))

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        wait_until(lambda: waits.by_thread, "that it waits for a batch")
        moved = write(shop, "INSERT INTO orders (id, more) VALUES (2, 20)")
        ended(reader)
        assert [batch.number for batch in batches] == [last + 1] == [moved]
        assert [row["more"] for row in batches[0].rows.to_pylist()] == [20]
