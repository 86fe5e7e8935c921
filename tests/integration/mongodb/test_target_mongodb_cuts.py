"""The loading process killed at every command, an old one that comes back, the server killed in mid-load: each row once."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from devstack.mongodb import FerretDBServer
from sluice.testing.targets import Pipe, gone, new, people
from tests.support.benches.mongodb_bench import FERRETDB, MongoBench
from tests.support.crashes import calls
from tests.support.crashes.deaths import an_old_writer_comes_back, first_delivered, killed_at_every_call, standing_still
from tests.support.crashes.killed_servers import Kills, load_while_killed
from tests.support.crashes.strikes import children

children.set_forkserver_preload(["tests.support.crashes.calls", "tests.support.benches.mongodb_bench"])


def bench_of(server: FerretDBServer) -> MongoBench:
    return MongoBench(server.host, server.port, FERRETDB)


def test_an_old_writer_that_comes_back_after_its_row_was_removed(ferretdb: FerretDBServer) -> None:
    """It stands still with a command in its hand, while a newer process writes the row and removes it."""
    bench = bench_of(ferretdb)
    table, pipe = first_delivered(bench)
    batch = pipe.given([(table, [new(9, "old", 9)])])
    with standing_still(calls.writing_rows_of_mongodb, bench, batch):
        pipe.epoch = 3
        pipe.write(batch)
        pipe.deliver((table, [gone(9, "old", 9)]))
    assert pipe.state(table) == Counter((n, "a", 0) for n in range(4))
    assert pipe.held == 3


def test_killed_at_every_command(ferretdb: FerretDBServer) -> None:
    killed_at_every_call(calls.mongodb, lambda: bench_of(ferretdb), 3)


def test_an_old_writer_that_comes_back(ferretdb: FerretDBServer) -> None:
    an_old_writer_comes_back(calls.mongodb, lambda: bench_of(ferretdb), 0, 1)


def test_the_server_is_killed_in_mid_load(tmp_path: Path) -> None:
    """Batches are loaded and tried again meanwhile: at the end each row is there, once."""
    seed = int(os.environ.get("SLUICE_FAULT_SEED", "1"))
    with FerretDBServer(tmp_path / "server") as server:
        bench = MongoBench(server.host, server.port, {**FERRETDB, "timeout": "5s"})
        table = people(bench.schema)
        bench.create_table(table)
        pipe = Pipe(bench)  # a start takes longer than a batch, so that the kills have an end
        kills = Kills(rows=200, batches=4, least=2, pauses_s=(0.3, 1.5), within_s=400, start_s=60, most=4)
        number, rows = load_while_killed(server, pipe, table, kills, seed)
        assert pipe.held == number
        assert pipe.state(table) == rows
