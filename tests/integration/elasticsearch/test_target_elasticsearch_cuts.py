"""The loading process killed at every request, an old one that comes back, the server killed in mid-load: each row
once.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from devstack.elasticsearch import SearchServer
from sluice.errors import CheckpointError, Fenced
from sluice.targets.elasticsearch.client import Client
from sluice.testing.targets import Pipe, changed, gone, new, people
from tests.support.benches.elasticsearch_bench import SETTINGS, ElasticsearchBench
from tests.support.crashes import elasticsearch_child
from tests.support.crashes.killed_servers import Kills, load_while_killed
from tests.support.crashes.strikes import At, children, stands_still, start

children.set_forkserver_preload([
    "tests.support.crashes.elasticsearch_child",
    "tests.support.benches.elasticsearch_bench",
])
FIRST = [new(n, "a", 0) for n in range(4)]
SECOND = [changed((0, "a", 0), (7, "b", 1)), gone(1, "a", 0), *(changed((n, "a", 0), (n, "b", 1)) for n in (2, 3))]
EXPECTED = Counter([(7, "b", 1), (2, "b", 1), (3, "b", 1)])


def test_an_old_writer_that_comes_back_after_versions_of_removed_rows_are_forgotten(
    elasticsearch: SearchServer,
) -> None:
    """It stands still with a request in its hand until the server no longer knows that a newer process removed the
    row.
    """
    bench = ElasticsearchBench(elasticsearch, {"settings": {**SETTINGS, "gc_deletes": "1s"}})
    table = people(bench.schema)
    bench.create_table(table)
    pipe = Pipe(bench)
    pipe.deliver((table, FIRST))
    batch = pipe.given([(table, [new(9, "old", 9)])])
    child, said = start(elasticsearch_child.load_counting_bulks, bench, batch, 2, At(0, False, signal.SIGSTOP))
    assert stands_still(child)
    pipe.epoch = 3
    pipe.write(batch)
    pipe.deliver((table, [gone(9, "old", 9)]))
    end = time.monotonic() + 120
    while True:  # until an older version of a removed row is created: then the hole is open
        assert time.monotonic() < end, "the server still knows the version of the removed row"
        path = f"/{table.table}/_doc/9?version=1&version_type=external_gte&refresh=true"
        if bench.ask("PUT", path, {"id": 9, "email": "probe", "points": 0}).get("result") == "created":
            break
        time.sleep(0.5)
    bench.ask("DELETE", f"/{table.table}/_doc/9?version=1&version_type=external_gte&refresh=true")
    os.kill(child.pid, signal.SIGCONT)
    _, error = said.get()
    child.join(60)
    assert error.startswith("Fenced"), error
    assert pipe.state(table) == Counter((n, "a", 0) for n in range(4))
    assert pipe.held == 3


def test_killed_at_every_request(elasticsearch: SearchServer) -> None:
    step = 1 if os.environ.get("SLUICE_CUTS") == "1" else 3
    point, deaths, calls = 0, 0, [""]
    while True:
        bench = ElasticsearchBench(elasticsearch)
        table = people(bench.schema)
        bench.create_table(table)
        pipe = Pipe(bench)
        pipe.deliver((table, FIRST))
        batch = pipe.given([(table, SECOND)])
        child, said = start(elasticsearch_child.load, bench, batch, 2, At(point // 2, point % 2 == 1, signal.SIGKILL))
        child.join(120)
        if child.exitcode == 0:
            calls, error = said.get()
            assert not error
            break
        assert child.exitcode == -signal.SIGKILL
        deaths += 1
        assert pipe.held < batch.number or pipe.state(table) == EXPECTED, "the checkpoint is ahead of the rows"
        pipe.epoch = 3
        if pipe.checkpoints.take_over(3).batch < batch.number:
            pipe.write(batch)
        assert pipe.state(table) == EXPECTED
        assert pipe.held == batch.number
        point += step
    assert deaths == -(-2 * len(calls) // step)


def test_an_old_writer_that_comes_back(elasticsearch: SearchServer) -> None:
    """It stands still at each request in turn; a newer one delivers the batch and the next; then the old one goes on
    and changes nothing.
    """
    stopped, call = 0, 4
    while True:
        bench = ElasticsearchBench(elasticsearch)
        table = people(bench.schema)
        bench.create_table(table)
        pipe = Pipe(bench)
        pipe.deliver((table, FIRST))
        batch = pipe.given([(table, SECOND)])
        child, said = start(elasticsearch_child.load, bench, batch, 2, At(call, False, signal.SIGSTOP))
        if not stands_still(child):
            break
        stopped += 1
        pipe.epoch = 3
        again = pipe.checkpoints.take_over(3).batch < batch.number
        if again:
            pipe.write(batch)
        pipe.deliver((table, [new(9, "z", 9), changed((2, "b", 1), (2, "c", 2))]))
        after = EXPECTED - Counter([(2, "b", 1)]) + Counter([(9, "z", 9), (2, "c", 2)])
        os.kill(child.pid, signal.SIGCONT)
        _, error = said.get()
        child.join(60)
        assert error.startswith("Fenced") or not again, (error, call)
        assert pipe.state(table) == after
        assert pipe.held == 3
        call += 4
    assert stopped >= 3


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
    table = people(bench.schema)
    bench.create_table(table)
    pipe = Pipe(bench)
    pipe.deliver((table, FIRST))
    path = f"/{bench.options['checkpoint_index']}/_doc/p.copy"
    bench.ask("PUT", path, {**bench.ask("GET", path)["_source"], "batch": 7})
    held = pipe.checkpoints.read()
    assert held is not None
    assert held.edited
    batch = pipe.given([(table, SECOND)])
    with pytest.raises((CheckpointError, Fenced)):
        pipe.write(batch)
    assert pipe.state(table) == Counter((n, "a", 0) for n in range(4))
