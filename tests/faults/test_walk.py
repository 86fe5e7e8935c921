"""A seeded random walk over faults, under load.

After each: both sides equal, acknowledgements one by one, no batch twice.

``make test`` takes 2 steps of a fixed seed, ``make faults`` 60, ``SLUICE_FAULTS=1000`` is the long walk.
``SLUICE_FAULT_SEED`` replays one; ``SLUICE_FAULT_ONLY`` keeps to the faults whose name contains it.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.faults.catalog import FAULTS
from tests.faults.world import World

STEPS = int(os.environ.get("SLUICE_FAULTS", "2"))
SEED = int(os.environ.get("SLUICE_FAULT_SEED") or random.SystemRandom().randrange(10**6))
ONLY = os.environ.get("SLUICE_FAULT_ONLY", "")

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(300 + 90 * STEPS)]


def plan(seed: int, steps: int, *, in_file: bool = False) -> list[tuple[int, str]]:
    """Every fault once in a random order, as far as the steps go, then by weight; the same seed gives the same walk."""
    choose = random.Random(seed)
    here = [index for index, fault in enumerate(FAULTS) if fault.in_file or not in_file]
    possible = [index for index in here if FAULTS[index].possible() and ONLY in FAULTS[index].name]
    chosen = choose.sample(possible, len(possible))
    while len(chosen) < steps:
        chosen.append(choose.choices(possible, [FAULTS[index].weight for index in possible])[0])
    consistencies = [choose.choice(("row", "table", "batch")) for _ in range(steps)]
    return list(zip(chosen[:steps], consistencies, strict=False))


@pytest.mark.promise("E5", "F3")
def test_a_walk_over_faults_ends_equal(tmp_path: Path) -> None:
    walk(tmp_path)


@pytest.mark.full
@pytest.mark.promise("G7")
def test_a_walk_with_positions_in_a_file_ends_equal(tmp_path: Path) -> None:
    walk(tmp_path, in_file=True)


def walk(tmp_path: Path, *, in_file: bool = False) -> None:
    """Take the steps. ``in_file``: without a ZooKeeper."""
    told: list[str] = []
    started = time.monotonic()
    with World(tmp_path, SEED, in_file=in_file) as world:
        for number, (index, consistency) in enumerate(plan(SEED, STEPS, in_file=in_file)):
            fault, choose = FAULTS[index], random.Random(f"{SEED}/{number}")
            try:
                if number % 10 == 0:
                    world.set_consistency(consistency)
                    world.set_turns(number % 20 < 10)
                    world.prune()
                before, clock = world.acknowledged()[0], [time.monotonic()]
                world.work()
                world.wait_until(lambda before=before: world.acknowledged()[0] > before, "a batch before the fault")
                clock.append(time.monotonic())
                detail = fault.strike(world, choose)
                clock.append(time.monotonic())
                time.sleep(choose.uniform(0, 0.3))
                world.settle()
                clock.append(time.monotonic())
            except BaseException as error:
                trail = "\n".join(told[-8:])
                raise AssertionError(
                    f"step {number} ({fault.name}) of seed {SEED}: {error}\nbefore it:\n{trail}\n"
                    f"replay: SLUICE_FAULT_SEED={SEED} SLUICE_FAULTS={number + 1} make faults"
                ) from error
            parts = " + ".join(f"{later - earlier:.1f}" for earlier, later in itertools.pairwise(clock))
            how = f"{parts} s, {world.consistency}{', in turns' if world.turns else ''}"
            told.append(f"{number:4} {time.monotonic() - started:6.1f} s  {fault.name}: {detail} ({how})")
            print(told[-1], flush=True)
        batches = world.acknowledged()[0]
    counts = Counter(FAULTS[index].name for index, _ in plan(SEED, STEPS, in_file=in_file))
    print(f"seed {SEED}: {STEPS} faults, {batches} batches, {time.monotonic() - started:.0f} s: {dict(counts)}")
