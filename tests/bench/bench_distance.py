"""Catch-up over a distance: the same job with 30 ms between the source, Sluice and the target, against the same job
side by side.

Run by ``make bench-distance`` (``python tests/bench/bench_distance.py [--changes 1600000] [--each 100000] [--ms 30]
[--rounds 3] [--in-task]``). Spark's workers merge and load, or this process with ``--in-task``. Every connection to the source and to the target goes through a proxy in a process of its own; only its delay differs.
Backlogs of the same kind and size are delivered in turn, the steps of up to three batches side by side, as the window
lets them. Each figure is the median of its rounds, near and far in turn.

First large backlogs of the mix. Then inserts, updates and the mix, each with 1, 2, 4 and 8 connections to the target
(``--each 0``: not).
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT / "include"), str(_ROOT)]

import structlog  # noqa: E402

from devstack import processes  # noqa: E402
from devstack.mysql import MySQLServer  # noqa: E402
from sluice.sources.mysql.reader.warm_up import compile_kernels  # noqa: E402
from tests.bench import applying as ap  # noqa: E402
from tests.bench.figures import Line, figure, save  # noqa: E402
from tests.support.pipelines.case import Case  # noqa: E402

RESULTS = Path(__file__).parent / "results" / "distance.json"
SCHEMA = "distance"

CONNECTIONS = (1, 2, 4, 8)
"""To the target: its ``parallelism``."""

INSERT = """CREATE PROCEDURE {name}(total INT) BEGIN
  DECLARE i INT DEFAULT 0; DECLARE base INT;
  SELECT COALESCE(MAX(id), 0) INTO base FROM {table};
  WHILE i < total DO
    INSERT INTO {table} WITH RECURSIVE s AS (SELECT 1 n UNION ALL SELECT n + 1 FROM s WHERE n < LEAST(100, total - i))
      SELECT base + i + n, n * 7, REPEAT(LEFT(SHA2(RAND(), 256), 32), 3), REPEAT(LEFT(SHA2(RAND(), 256), 32), 1) FROM s;
    SET i = i + 100;
  END WHILE; END"""
"""New keys, a hundred a transaction."""

UPDATE = """CREATE PROCEDURE {name}(total INT) BEGIN
  DECLARE i INT DEFAULT 0; DECLARE a INT;
  WHILE i < total DO
    SET a = 1 + FLOOR(RAND() * {rows});
    UPDATE {table} SET k = k + 1, c = REPEAT(LEFT(SHA2(RAND(), 256), 32), 3) WHERE id = a;
    SET i = i + 1;
  END WHILE; END"""
"""One row a transaction, of any key."""


class Link:
    """A proxy before ``server``, in a process of its own."""

    def __init__(self, server: MySQLServer) -> None:
        path = os.pathsep.join([str(_ROOT), str(_ROOT / "include")])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.servers.proxy", server.host, str(server.port)],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def delay(self, seconds: float) -> None:
        """Each byte arrives so much later, in each direction."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        self._process.stdout.readline()

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


def through(made: Case, links: dict[str, Link]) -> None:
    """The pipeline's connections lead through the links."""
    for connection, link in links.items():
        made.connections[connection] = json.dumps({**json.loads(made.connections[connection]), "port": link.port})


@dataclass
class Distance:
    """A pipeline between two links, and how to fill its source."""

    on: ap.Servers
    made: Case
    links: dict[str, Link]
    names: list[str]
    ms: float

    @property
    def where(self) -> str:
        """Where batches are merged and loaded, in words."""
        return "on Spark" if self.on.mode == "connect" else "in the task"

    def procedures(self) -> None:
        """Make the procedures that write: ``insert_NAME``, ``update_NAME`` and ``mix_NAME`` for each table."""
        for name in self.names:
            for kind, text in (("insert", INSERT), ("update", UPDATE)):
                table = f"{SCHEMA}.{name}"
                self.on.source.execute(text.format(name=f"{SCHEMA}.{kind}_{name}", table=table, rows=ap.TABLE_ROWS))
            ap.procedure(self.on.source, SCHEMA, "oltp", f"mix_{name}", name, ap.TABLE_ROWS)

    def connections(self, number: int) -> None:
        """Set the number of connections that load from here on."""
        text = self.made.path.read_text(encoding="utf-8")
        self.made.path.write_text(re.sub(r"parallelism: \d+", f"parallelism: {number}", text), encoding="utf-8")

    def delay(self, seconds: float) -> None:
        """Each byte takes so much longer, on every link."""
        for link in self.links.values():
            link.delay(seconds)

    def near_and_far(self, kind: str, changes: int) -> tuple[float, float]:
        """Deliver two backlogs of ``changes``, without and with the delay. Returns the seconds of each."""
        calls = changes // len(self.names) // (4 if kind == "mix" else 1)
        work: list[Callable[[Any], Any]] = [
            lambda c, n=name: c.execute(f"CALL {kind}_{n}({calls})") for name in self.names
        ]
        took = []
        for place, delay_s in (("near", 0.0), ("far", self.ms / 2000)):
            ap.in_parallel(work, self.on.source, SCHEMA)
            self.delay(delay_s)
            steps = ap.overlapping(self.made, self.on.mode)
            took.append(steps["all"])
            print(f"{place}: " + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in steps.items()), flush=True)
        self.delay(0.0)
        return took[0], took[1]

    def same(self) -> None:
        """Raises AssertionError that names a table that differs."""
        for name in self.names:
            sums = [s.execute(f"CHECKSUM TABLE {SCHEMA}.{name}")[0][1] for s in (self.on.source, self.on.target)]
            assert sums[0] == sums[1], f"{name} differs"


def medians(took: list[tuple[float, float]]) -> tuple[float, float]:
    """Seconds without and with the delay."""
    near, far = zip(*took, strict=True)
    return statistics.median(near), statistics.median(far)


def backlog(at: Distance, changes: int, rounds: int) -> list[Line]:
    """Large backlogs of the mix: what a distance leaves of the throughput."""
    near, far = medians([at.near_and_far("mix", changes) for _ in range(rounds)])
    workload = (
        f"backlogs of {changes} oltp changes, {at.ms:g} ms round trip to source and target, {at.where}, median of "
        f"{rounds}"
    )
    line = figure(
        "distance_throughput", workload, round(changes / far), "changes/s", "the same without delay",
        round(changes / near),
        variant=f"{at.ms:g} ms", wanted="at least 0.7",
    )  # fmt: skip
    return [line]


def by_connections(at: Distance, changes: int, rounds: int) -> list[Line]:
    """Inserts, updates and the mix, by each number of connections."""
    took: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for _ in range(rounds):
        for kind in ("insert", "update", "mix"):
            for number in CONNECTIONS:
                at.connections(number)
                took.setdefault((kind, number), []).append(at.near_and_far(kind, changes))
    lines = []
    for (kind, number), seconds in took.items():
        near, far = medians(seconds)
        workload = (
            f"backlogs of {changes} changes, {at.ms:g} ms round trip to source and target, {number} connections to the "
            f"target, {at.where}, median of {rounds}"
        )
        lines.append(
            figure(
                f"distance_{kind}",
                workload,
                round(changes / far),
                "changes/s",
                "the same without delay",
                round(changes / near),
                variant=f"{number} connections, {at.ms:g} ms",
            )
        )
    return lines


def main() -> None:
    processes.tether()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=1_600_000, help="changes in each large backlog; 0: none")
    parser.add_argument(
        "--each", type=int, default=100_000, help="changes for each kind and number of connections; 0: none"
    )
    parser.add_argument("--ms", type=float, default=30, help="round trip in milliseconds")
    parser.add_argument("--rounds", type=int, default=3, help="backlogs near and far, in turn")
    parser.add_argument("--in-task", action="store_true", help="merge and load in this process, and not on Spark")
    given = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    compile_kernels()
    lines: list[Line] = []
    with ap.servers(spark=not given.in_task) as on, ap.pipeline(on, SCHEMA) as made:
        links = {"case_source": Link(on.source), "case_target": Link(on.target)}
        try:
            through(made, links)
            ap.warm(on, made)
            at = Distance(on, made, links, ap.sbtest(on.source, on.target, SCHEMA), given.ms)
            ap.deliver(on, made)
            at.procedures()
            ap.deliver(on, made)
            if given.changes:
                lines += backlog(at, given.changes, given.rounds)
                at.same()
            if given.each:
                lines += by_connections(at, given.each, given.rounds)
                at.same()
        finally:
            for link in links.values():
                link.end()
    save(RESULTS, lines)
    print(f"written to {RESULTS.relative_to(_ROOT)}")


if __name__ == "__main__":
    main()
