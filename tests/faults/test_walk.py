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


def plan(seed: int, steps: int) -> list[tuple[int, str]]:
    """Every fault once in a random order, as far as the steps go, then by weight; the same seed gives the same walk."""
    choose = random.Random(seed)
    possible = [index for index, fault in enumerate(FAULTS) if fault.possible() and ONLY in fault.name]
    chosen = choose.sample(possible, len(possible))
    while len(chosen) < steps:
        chosen.append(choose.choices(possible, [FAULTS[index].weight for index in possible])[0])
    consistencies = [choose.choice(("row", "table", "batch")) for _ in range(steps)]
    return list(zip(chosen[:steps], consistencies, strict=False))


@pytest.mark.promise("E5", "F3")
def test_a_walk_over_faults_ends_equal(tmp_path: Path) -> None:
    told: list[str] = []
    started = time.monotonic()
    with World(tmp_path, SEED) as world:
        for number, (index, consistency) in enumerate(plan(SEED, STEPS)):
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
    counts = Counter(FAULTS[index].name for index, _ in plan(SEED, STEPS))
    print(f"seed {SEED}: {STEPS} faults, {batches} batches, {time.monotonic() - started:.0f} s: {dict(counts)}")
