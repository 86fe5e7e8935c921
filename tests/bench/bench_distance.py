"""Catch-up over a distance: the same job with 30 ms between the source, Sluice and the target, against the same job side by side.

Run by ``make bench-distance`` (``python tests/bench/bench_distance.py [--changes 1600000] [--ms 30]``). Every connection to the source and to
the target goes through a proxy in a process of its own; only its delay differs. Backlogs of the same kind and size are delivered in turn, the
steps of up to three batches side by side, as the window lets them.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT / "include"), str(_ROOT)]

import structlog  # noqa: E402

from devstack import processes  # noqa: E402
from devstack.mysql import MySQLServer  # noqa: E402
from sluice.sources.mysql.reader.batch_reader import warm_up  # noqa: E402
from tests.bench import applying as ap  # noqa: E402
from tests.bench.figures import save  # noqa: E402
from tests.support.pipelines.case import Case  # noqa: E402

RESULTS = Path(__file__).parent / "results" / "distance.json"
SCHEMA = "distance"


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


def main() -> None:
    processes.tether()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=1_600_000, help="changes in each backlog")
    parser.add_argument("--ms", type=float, default=30, help="round trip in milliseconds")
    parser.add_argument("--rounds", type=int, default=1, help="backlogs near and far, in turn")
    given = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    warm_up()
    took: dict[str, list[float]] = {"near": [], "far": []}
    with ap.servers(spark=False) as on, ap.pipeline(on, SCHEMA) as made:
        links = {"case_source": Link(on.source), "case_target": Link(on.target)}
        try:
            through(made, links)
            ap.warm(on, made)
            names = ap.sbtest(on.source, on.target, SCHEMA)
            ap.deliver(on, made)
            for name in names:
                ap.procedure(on.source, SCHEMA, "oltp", f"work_{name}", name, ap.TABLE_ROWS)
            ap.deliver(on, made)
            each = given.changes // len(names) // 4
            work: list[Callable[[Any], Any]] = [lambda c, n=name: c.execute(f"CALL work_{n}({each})") for name in names]
            for _ in range(given.rounds):
                for place, delay_s in (("near", 0.0), ("far", given.ms / 2000)):
                    ap.in_parallel(work, on.source, SCHEMA)
                    for link in links.values():
                        link.delay(delay_s)
                    steps = ap.overlapping(made, on.mode)
                    took[place].append(steps["all"])
                    print(
                        f"{place}: " + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in steps.items()),
                        flush=True,
                    )
            for link in links.values():
                link.delay(0.0)
            for name in names:
                sums = [s.execute(f"CHECKSUM TABLE {SCHEMA}.{name}")[0][1] for s in (on.source, on.target)]
                assert sums[0] == sums[1], f"{name} differs"
        finally:
            for link in links.values():
                link.end()
    near, far = (statistics.median(took[place]) for place in ("near", "far"))
    line = {
        "measure": "distance_throughput", "variant": f"{given.ms:g} ms",
        "workload": f"backlogs of {given.changes} oltp changes, {given.ms:g} ms round trip to source and target, median of {given.rounds}",
        "value": round(given.changes / far), "unit": "changes/s", "baseline": "the same without delay",
        "baseline_value": round(given.changes / near), "ratio": round(near / far, 3), "wanted": "at least 0.7", "cores": ap.cores(),
    }  # fmt: skip
    print(
        f"distance: {line['value']} changes/s, {line['ratio']:.0%} of {line['baseline_value']} without delay (wanted: at least 70 %)"
    )
    save(RESULTS, [line])
    print(f"written to {RESULTS.relative_to(_ROOT)}")


if __name__ == "__main__":
    main()
