"""The loading process killed at every command, an old one that comes back, the server killed in mid-load: each row once."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

from devstack.mongodb import FerretDBServer
from sluice.testing.targets import Pipe, changed, gone, new, people
from tests.support.benches.mongodb_bench import FERRETDB, MongoBench
from tests.support.crashes import mongodb_child
from tests.support.crashes.killed_servers import Kills, load_while_killed
from tests.support.crashes.strikes import At, children, stands_still, start

children.set_forkserver_preload(["tests.support.crashes.mongodb_child", "tests.support.benches.mongodb_bench"])
FIRST = [new(n, "a", 0) for n in range(4)]
SECOND = [changed((0, "a", 0), (7, "b", 1)), gone(1, "a", 0), *(changed((n, "a", 0), (n, "b", 1)) for n in (2, 3))]
EXPECTED = Counter([(7, "b", 1), (2, "b", 1), (3, "b", 1)])


def made(server: FerretDBServer) -> tuple[MongoBench, Pipe]:
    bench = MongoBench(server.host, server.port, FERRETDB)
    bench.create_table(people(bench.schema))
    return bench, Pipe(bench)


def test_an_old_writer_that_comes_back_after_its_row_was_removed(ferretdb: FerretDBServer) -> None:
    """It stands still with a command in its hand, while a newer process writes the row and removes it."""
    bench, pipe = made(ferretdb)
    table = people(bench.schema)
    pipe.deliver((table, FIRST))
    batch = pipe.given([(table, [new(9, "old", 9)])])
    child, said = start(mongodb_child.load_counting_rows, bench, batch, 2, At(0, False, signal.SIGSTOP))
    assert stands_still(child)
    pipe.epoch = 3
    pipe.write(batch)
    pipe.deliver((table, [gone(9, "old", 9)]))
    os.kill(child.pid, signal.SIGCONT)
    _, error = said.get()
    child.join(60)
    assert error.startswith("Fenced"), error
    assert pipe.state(table) == Counter((n, "a", 0) for n in range(4))
    assert pipe.held == 3


def test_killed_at_every_command(ferretdb: FerretDBServer) -> None:
    step = 1 if os.environ.get("SLUICE_CUTS") == "1" else 3
    point, deaths, calls = 0, 0, [""]
    while True:
        bench, pipe = made(ferretdb)
        table = people(bench.schema)
        pipe.deliver((table, FIRST))
        batch = pipe.given([(table, SECOND)])
        child, said = start(mongodb_child.load, bench, batch, 2, At(point // 2, point % 2 == 1, signal.SIGKILL))
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


def test_an_old_writer_that_comes_back(ferretdb: FerretDBServer) -> None:
    """It stands still at each command in turn; a newer one delivers the batch and the next; then the old one goes on and changes nothing."""
    stopped, call = 0, 0
    while True:
        bench, pipe = made(ferretdb)
        table = people(bench.schema)
        pipe.deliver((table, FIRST))
        batch = pipe.given([(table, SECOND)])
        child, said = start(mongodb_child.load, bench, batch, 2, At(call, False, signal.SIGSTOP))
        if not stands_still(child):
            break
        stopped += 1
        pipe.epoch = 3
        again = pipe.checkpoints.take_over(3).batch < batch.number
        if again:
            pipe.write(batch)
        pipe.deliver((table, [new(9, "z", 9), changed((2, "b", 1), (2, "c", 2)), gone(3, "b", 1)]))
        os.kill(child.pid, signal.SIGCONT)
        _, error = said.get()
        child.join(60)
        assert error.startswith("Fenced") or not again, (error, call)
        assert pipe.state(table) == Counter([(7, "b", 1), (9, "z", 9), (2, "c", 2)])
        assert pipe.held == 3
        call += 1
    assert stopped >= 3


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
