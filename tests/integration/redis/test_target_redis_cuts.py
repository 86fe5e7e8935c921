"""The loading process killed at every command, an old one that comes back, the server killed in mid-load: each row
once, each change once.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from sluice.errors import CheckpointError, Fenced
from sluice.testing.targets import Pipe, people
from tests.support.crashes import calls
from tests.support.crashes.deaths import SECOND, an_old_writer_comes_back, first_delivered, killed_at_every_call
from tests.support.crashes.killed_servers import Kills, load_while_killed
from tests.support.crashes.strikes import children, twice_arrived

pytest.importorskip("redis")

from devstack.redis import RedisServer, find_redis, find_valkey
from tests.support.benches.redis_bench import RedisBench

children.set_forkserver_preload(["tests.support.crashes.calls", "tests.support.benches.redis_bench"])


@pytest.mark.parametrize("changes", ["latest", "all"])
def test_killed_at_every_call(redis_server: Any, changes: str) -> None:
    killed_at_every_call(calls.redis, lambda: RedisBench(redis_server, changes), 3)


@pytest.mark.parametrize(("changes", "step"), [("latest", 5), ("all", 3)], ids=["latest", "all"])
def test_an_old_writer_that_comes_back(redis_server: Any, changes: str, step: int) -> None:
    an_old_writer_comes_back(calls.redis, lambda: RedisBench(redis_server, changes), 4, step)


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
    table, pipe = first_delivered(bench)
    key = f"{bench.schema}:checkpoint:p.copy"
    with bench.client as client:
        client.hset(key, "batch", "7")
    assert pipe.checkpoints.read().edited  # type: ignore[union-attr]
    batch = pipe.given([(table, SECOND)])
    with pytest.raises((CheckpointError, Fenced)):
        pipe.write(batch)
    assert pipe.state(table) == Counter((n, "a", 0) for n in range(4))
