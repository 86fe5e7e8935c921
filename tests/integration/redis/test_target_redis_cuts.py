"""The loading process killed at every command, an old one that comes back, the server killed in mid-load: each row
once, each change once.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from sluice.errors import CheckpointError, Fenced
from sluice.testing.targets import Pipe, changed, gone, new, people
from tests.support.crashes.killed_servers import Kills, load_while_killed
from tests.support.crashes.strikes import At, children, stands_still, start, twice_arrived

pytest.importorskip("redis")

from devstack.redis import RedisServer, find_redis, find_valkey
from tests.support.benches.redis_bench import RedisBench
from tests.support.crashes import redis_child

children.set_forkserver_preload(["tests.support.crashes.redis_child", "tests.support.benches.redis_bench"])
FIRST = [new(n, "a", 0) for n in range(4)]
SECOND = [changed((0, "a", 0), (7, "b", 1)), gone(1, "a", 0), *(changed((n, "a", 0), (n, "b", 1)) for n in (2, 3))]
EXPECTED = Counter([(7, "b", 1), (2, "b", 1), (3, "b", 1)])


@pytest.mark.parametrize("changes", ["latest", "all"])
def test_killed_at_every_call(redis_server: Any, changes: str) -> None:
    step = 1 if os.environ.get("SLUICE_CUTS") == "1" else 3
    point, deaths, calls = 0, 0, [""]
    while True:
        bench = RedisBench(redis_server, changes)
        table = people(bench.schema)
        bench.create_table(table)
        pipe = Pipe(bench)
        pipe.deliver((table, FIRST))
        batch = pipe.given([(table, SECOND)])
        child, said = start(redis_child.load, bench, batch, 2, At(point // 2, point % 2 == 1, signal.SIGKILL))
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
        if changes == "all":
            assert not twice_arrived(bench)
        point += step
    assert deaths == -(-2 * len(calls) // step)


@pytest.mark.parametrize("changes", ["latest", "all"])
def test_an_old_writer_that_comes_back(redis_server: Any, changes: str) -> None:
    """It stands still at each command in turn; a newer one delivers the batch and the next; then the old one goes on
    and changes nothing.
    """
    stopped, call = 0, 4
    while True:
        bench = RedisBench(redis_server, changes)
        table = people(bench.schema)
        bench.create_table(table)
        pipe = Pipe(bench)
        pipe.deliver((table, FIRST))
        batch = pipe.given([(table, SECOND)])
        child, said = start(redis_child.load, bench, batch, 2, At(call, False, signal.SIGSTOP))
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
        if changes == "all":
            assert not twice_arrived(bench)
        call += {"latest": 5, "all": 3}[changes]
    assert stopped >= 3


@pytest.mark.parametrize("find", [find_redis, find_valkey])
@pytest.mark.parametrize("changes", ["latest", "all"])
def test_the_server_is_killed_in_mid_load(tmp_path: Path, changes: str, find: Any) -> None:
    """Every few moments, while batches are loaded and tried again: at the end each row is there, and each change
    once.
    """
    seed = int(os.environ.get("SLUICE_FAULT_SEED", "1"))
    server = RedisServer(
        tmp_path / "server", program=find(), password="s3cret-of-one", settings={"appendfsync": "always"}
    )
    with server:
        bench = RedisBench(server, changes)
        table = people(bench.schema)
        bench.create_table(table)
        pipe = Pipe(bench)
        kills = Kills(rows=3000, batches=8, least=4, pauses_s=(0.1, 0.8), within_s=240, start_s=60)
        number, rows = load_while_killed(server, pipe, table, kills, seed)
        assert pipe.held == number
        assert pipe.state(table) == rows
        if changes == "all":
            assert not twice_arrived(bench)


def test_a_checkpoint_that_somebody_edited_stops_the_load(redis_server: Any) -> None:
    bench = RedisBench(redis_server)
    table = people(bench.schema)
    bench.create_table(table)
    pipe = Pipe(bench)
    pipe.deliver((table, FIRST))
    key = f"{bench.schema}:checkpoint:p.copy"
    with bench.client as client:
        client.hset(key, "batch", "7")
    assert pipe.checkpoints.read().edited  # type: ignore[union-attr]
    batch = pipe.given([(table, SECOND)])
    with pytest.raises((CheckpointError, Fenced)):
        pipe.write(batch)
    assert pipe.state(table) == Counter((n, "a", 0) for n in range(4))
