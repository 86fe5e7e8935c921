"""``sluice migrate`` on real servers, by its commands, while applications write."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.crashes.conductor import CALLS
from tests.support.pipelines.migrating import SCHEMA, Moving, prepare, two_servers
from tests.support.running.waiting import wait_until


@pytest.fixture(scope="module")
def pair(server_folder: Path) -> Iterator[tuple[Any, Any]]:
    """Two servers of this file's own: a migration closes servers."""
    with two_servers(server_folder, "move", 141) as servers:
        yield servers


@pytest.fixture(scope="module")
def moving(pair: tuple[Any, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Moving]:
    """A migration whose rows are being copied; tests move its writes to and fro."""
    prepare(*pair)
    moving = Moving(tmp_path_factory.mktemp("migration"), *pair)
    begun = moving.begin()
    assert begun.returncode == 0, begun.stderr
    started = moving.sluice("start", SCHEMA, "--detach")
    assert started.returncode == 0, started.stderr
    moving.run()
    yield moving
    moving.end()


@pytest.mark.promise("G11")
def test_writes_move_and_come_back(moving: Moving) -> None:
    with moving.writing():
        moving.ready()
        assert moving.answer("switch", SCHEMA, "--yes")["done"]
        moving.writes("new")
        moving.ready(phase="switched")
        assert moving.answer("back", SCHEMA, "--yes")["done"]
        moving.writes("old")
        for application in moving.applications.values():
            application.stop()
        moving.delivered()
    assert len(moving.assert_never_both()) == 2
    moving.assert_kept("old")
    assert [entry["what"] for entry in moving.status()["history"]] == [
        "migrate start",
        "migrate switch",
        "migrate back",
    ]


SEEDS = int(os.environ.get("SLUICE_CUTOVERS", "5"))
STRIKES = ("conductor", "slow", "flow", "old", "new")


@pytest.mark.promise("G11")
@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_dies_one_server_takes_writes_and_has_every_acknowledged_row(moving: Moving, seed: int) -> None:
    """The next process ends the handover: before the point of no return it returns, after it it goes on."""
    choose = random.Random(seed)
    struck = STRIKES[seed] if seed < len(STRIKES) else choose.choice(STRIKES)
    call, when = choose.randint(1, CALLS), choose.choice(["before", "after"])
    delay_s, limit_s = choose.random() * 0.3, 3 if struck == "slow" else 60
    side = moving.open_side()
    assert side is not None
    to = "new" if side == "old" else "old"
    conductor = moving.conductor(call if struck == "conductor" else 0, when)
    assert conductor.stdin is not None
    assert moving.runner is not None
    with moving.writing():
        moving.ready(phase="started" if side == "old" else "switched")
        moving.writes(side, 50)
        if struck == "slow":
            moving.runner.send_signal(signal.SIGSTOP)
            moving.writes(side, 5)
        conductor.stdin.write(f"{to} {limit_s}\n")
        conductor.stdin.flush()
        refused, application = moving.applications[side].refused, moving.applications[side]
        wait_until(lambda: application.refused > refused or conductor.poll() is not None, "the stop of writes")
        time.sleep(delay_s)
        if struck == "flow":
            moving.run()
        elif struck in moving.servers:
            moving.servers[struck].kill()
            moving.servers[struck].start()
        out, _ = conductor.communicate(timeout=240)
        print(f"seed {seed}: {struck} {call} {when} {delay_s:.2f}: {out.strip()}")
        moving.runner.send_signal(signal.SIGCONT)
        wait_until(lambda: moving.open_side() is not None, "the end of the handover")
        now_open = moving.open_side()
        assert now_open is not None
        if struck == "slow":
            assert now_open == side
        if struck == "conductor":
            is_noted = call > 3 or (call, when) == (3, "after")
            assert now_open == (to if is_noted else side)
        moving.writes(now_open, 30)
        for application in moving.applications.values():
            application.stop()
        moving.delivered()
    moving.assert_kept(now_open)
    moving.assert_never_both()
