"""The loading process killed at every request, an old one that comes back, the server killed in mid-load: each row
once.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from devstack.elasticsearch import SearchServer
from sluice.errors import CheckpointError, Fenced
from sluice.targets.elasticsearch.client import Client
from sluice.testing.targets import Pipe, gone, new, people
from tests.support.benches.elasticsearch_bench import SETTINGS, ElasticsearchBench
from tests.support.crashes import calls
from tests.support.crashes.deaths import (
    FIRST,
    SECOND,
    an_old_writer_comes_back,
    first_delivered,
    killed_at_every_call,
    standing_still,
)
from tests.support.crashes.killed_servers import Kills, load_while_killed
from tests.support.crashes.strikes import children
from tests.support.running.waiting import wait_until

children.set_forkserver_preload(["tests.support.crashes.calls", "tests.support.benches.elasticsearch_bench"])


def test_an_old_writer_that_comes_back_after_versions_of_removed_rows_are_forgotten(
    elasticsearch: SearchServer,
) -> None:
    """It stands still with a request in its hand until the server no longer knows that a newer process removed the
    row.
    """
    bench = ElasticsearchBench(elasticsearch, {"settings": {**SETTINGS, "gc_deletes": "1s"}})
    table, pipe = first_delivered(bench)
    batch = pipe.given([(table, [new(9, "old", 9)])])
    with standing_still(calls.bulks_of_elasticsearch, bench, batch):
        pipe.epoch = 3
        pipe.write(batch)
        pipe.deliver((table, [gone(9, "old", 9)]))
        path = f"/{table.table}/_doc/9?version=1&version_type=external_gte&refresh=true"
        probe = {"id": 9, "email": "probe", "points": 0}
        wait_until(  # an older version of a removed row is created: then the hole is open
            lambda: bench.ask("PUT", path, probe).get("result") == "created",
            "a server that no longer knows the version of the removed row",
        )
        bench.ask("DELETE", path)
    assert pipe.state(table) == Counter((n, "a", 0) for n in range(4))
    assert pipe.held == 3


def test_killed_at_every_request(elasticsearch: SearchServer) -> None:
    killed_at_every_call(calls.elasticsearch, lambda: ElasticsearchBench(elasticsearch), 3)


def test_an_old_writer_that_comes_back(elasticsearch: SearchServer) -> None:
    an_old_writer_comes_back(calls.elasticsearch, lambda: ElasticsearchBench(elasticsearch), 4, 4)


@pytest.mark.parametrize("kind", ["elasticsearch", "opensearch"])
def test_the_server_is_killed_in_mid_load(tmp_path: Path, kind: str) -> None:
    """Batches are loaded and tried again meanwhile: at the end each row is there, once."""
    seed = int(os.environ.get("SLUICE_FAULT_SEED", "1"))
    with SearchServer(tmp_path / "server", kind, kind=kind) as server:
        bench = ElasticsearchBench(server, {"bulk_rows": 200, "retry_for": "2s"})
        table = people(bench.schema)
        bench.create_table(table)
        pipe = Pipe(bench)  # a start takes longer than a batch, so that the kills have an end
        kills = Kills(rows=2000, batches=5, least=2, pauses_s=(0.5, 3.0), within_s=400, start_s=180, most=3)
        number, rows = load_while_killed(server, pipe, table, kills, seed)
        server.ask(
            "/_cluster/health?wait_for_status=yellow&timeout=25s"
        )  # the last kill may have come after the last batch
        assert pipe.held == number
        assert pipe.state(table) == rows


def test_an_alias_that_a_late_process_makes_is_taken_away(
    elasticsearch: SearchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newer process takes over just before: otherwise an older unit, which still stands still, could write through
    it.
    """
    bench = ElasticsearchBench(elasticsearch)
    table = people(bench.schema)
    bench.create_table(table)
    pipe = Pipe(bench)
    batch = pipe.given([(table, FIRST)])
    pipe.take_over()
    writer, sent = pipe.writer(batch), Client.acknowledged

    def late(client: Client, doing: str, *args: Any, **more: Any) -> Any:
        if doing == "making aliases":
            pipe.checkpoints.take_over(9)
        return sent(client, doing, *args, **more)

    monkeypatch.setattr(Client, "acknowledged", late)
    with pytest.raises(Fenced):
        writer.plan(1)
    assert bench.ask("GET", f"/{table.table}/_alias") == {str(table.table): {"aliases": {}}}


def test_a_checkpoint_that_somebody_edited_stops_the_load(elasticsearch: SearchServer) -> None:
    bench = ElasticsearchBench(elasticsearch)
    table, pipe = first_delivered(bench)
    path = f"/{bench.options['checkpoint_index']}/_doc/p.copy"
    bench.ask("PUT", path, {**bench.ask("GET", path)["_source"], "batch": 7})
    held = pipe.checkpoints.read()
    assert held is not None
    assert held.edited
    batch = pipe.given([(table, SECOND)])
    with pytest.raises((CheckpointError, Fenced)):
        pipe.write(batch)
    assert pipe.state(table) == Counter((n, "a", 0) for n in range(4))
