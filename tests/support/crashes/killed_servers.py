"""A server that is killed and started again while batches are loaded and tried again."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from sluice.errors import RetryableError
from sluice.testing.targets import Pipe, changed, gone, new


@dataclass(frozen=True)
class Kills:
    """The load and the kills.

    Attributes:
        rows: of the first batch. batches, least: of batches and kills, at least. most: kills at most.
        pauses_s: between a start and the next kill. within_s: for all batches. start_s: that a last start may take.
    """

    rows: int
    batches: int
    least: int
    pauses_s: tuple[float, float]
    within_s: float
    start_s: float
    most: int = 1 << 30


def load_while_killed(server: Any, pipe: Pipe, table: Any, kills: Kills, seed: int) -> tuple[int, Counter[Any]]:
    """Load batches of new, changed, moved and removed rows; return the number of the last one, and the rows that there
    are.
    """
    choose, pauses, done = random.Random(seed), random.Random(seed), threading.Event()
    struck = 0

    def strike() -> None:
        nonlocal struck
        while struck < kills.most and not done.wait(pauses.uniform(*kills.pauses_s)):
            server.kill()
            server.start()
            struck += 1

    striker = threading.Thread(target=strike)
    rows = dict.fromkeys(range(kills.rows), ("a", 0))
    ops, number = [new(n, *row) for n, row in rows.items()], 0
    delivered = dict(rows)
    striker.start()
    try:
        end = time.monotonic() + kills.within_s
        while number < kills.batches or struck < kills.least:
            batch, number = pipe.given([(table, ops)]), number + 1
            while True:
                assert time.monotonic() < end, f"batch {number} is not delivered (seed {seed}, {struck} kills)"
                try:
                    if pipe.checkpoints.take_over(pipe.epoch).batch < batch.number:
                        pipe.write(batch)
                    break
                except RetryableError:
                    pipe.epoch += 1
            delivered = dict(rows)
            ops = []
            for n in choose.sample(sorted(rows), len(rows) // 2):
                old, row = rows.pop(n), (f"b{number}", number)
                there = n + 10_000 * number if choose.random() < 0.1 else n
                ops.append(changed((n, *old), (there, *row)))
                rows[there] = row
            removed = 50 if number <= kills.batches else 0  # a quick server takes many more batches between two kills
            for n in choose.sample(sorted(set(rows) & set(delivered)), removed):
                if rows[n] == delivered[n]:
                    ops.append(gone(n, *rows.pop(n)))
    finally:
        done.set()
        striker.join(kills.start_s)
    return number, Counter((n, *row) for n, row in delivered.items())
