"""The cost of digests kept from the log, and how fast they answer.

100,000 updates of a sysbench table are captured, merged and loaded with and without ``verify.digest: log``, in turn,
from one MySQL server to another. The cost is in seconds of a core: of this process, and of each server. Then the
question whether the table is equal is asked by a new connection each time.

Run by ``make bench-digests`` (``python tests/bench/bench_digests.py [rows]``). Prints a line a measurement, writes
tests/bench/results/digests.json.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT / "include"), str(_ROOT)]

from devstack import processes  # noqa: E402
from devstack.mysql import MySQLServer  # noqa: E402
from devstack.zookeeper import ZooKeeperServer  # noqa: E402
from sluice.operations.verify.digests import SweepSpec, read_digests, sweep  # noqa: E402
from sluice.targets.mysql.session import kept  # noqa: E402
from tests.bench.bench_dump import FAST, fill  # noqa: E402
from tests.bench.bench_verify import cpu_s, running, twin, verified  # noqa: E402
from tests.bench.figures import keep  # noqa: E402
from tests.support.pipelines.case import Case, case  # noqa: E402

RESULTS = _ROOT / "tests/bench/results/digests.json"
CHANGES = 100_000
ROUNDS = 3
QUESTIONS = 60
WHERE = ("here", "source", "target")


def set_digest(made: Case, way: str) -> None:
    """Ask for digests (log), or for none."""
    made.path.write_text(made.yaml + f"\nverify: {{digest: {way}}}\n", encoding="utf-8")


def delivered(made: Case, rows: int, seed: int) -> list[float]:
    """Change rows all over the table, and return the seconds of a core that their delivery takes."""
    made.source.execute(
        "USE bench", f"UPDATE sbtest SET k = k + {seed} WHERE id % {max(rows // CHANGES, 1)} = 0 LIMIT {CHANGES}"
    )
    before, own = cpu_s(made.source, made.target), time.process_time()
    made.run_until_head()
    used = [later - earlier for earlier, later in zip(before, cpu_s(made.source, made.target), strict=True)]
    return [time.process_time() - own, *used]


def answered(made: Case) -> list[float]:
    """Milliseconds of each question, over a new connection."""
    found, runtime = [], made.runtime()
    for _ in range(QUESTIONS):
        while (session := kept.take(runtime.open_target("copy").endpoint)) is not None:
            session.close()
        began = time.perf_counter()
        report = read_digests(runtime)
        found.append((time.perf_counter() - began) * 1000)
        assert report.outcome == "equal", report
    return found


def main() -> None:
    processes.tether()
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 400_000
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder, ExitStack() as servers:
        root = Path(folder)
        source = servers.enter_context(MySQLServer(root / "source", server_id=31, options=FAST))
        source.execute("CREATE DATABASE bench")
        fill(source, "bench", rows)
        source.stop(120)
        target = servers.enter_context(twin(source, root / "target"))
        source.start()
        zookeeper = servers.enter_context(ZooKeeperServer(root / "zookeeper"))
        with case(root / "case", source, target, zookeeper, "bench") as made:
            set_digest(made, "log")
            made.run_until_head()
            delivered(made, rows, 1)
            with running(made):
                assert sweep(made.runtime(), SweepSpec(source=True)).outcome == "equal"
                verified(made, rows, "checksums")
                began = time.monotonic()
                verified(made, rows, "checksums")
                by_reading_s = time.monotonic() - began
            used: dict[str, list[list[float]]] = {"log": [], "none": []}
            for number in range(ROUNDS):
                for way in ("none", "log"):
                    set_digest(made, way)
                    if way == "log":  # the digests were not kept meanwhile
                        with running(made):
                            assert sweep(made.runtime(), SweepSpec(source=True)).outcome == "equal"
                    used[way].append(delivered(made, rows, number + 2))
            load, asked = os.getloadavg()[0], sorted(answered(made))
    middle = {way: [statistics.median(values) for values in zip(*some, strict=True)] for way, some in used.items()}
    more = [round(one - other, 2) for one, other in zip(middle["log"], middle["none"], strict=True)]
    middle_ms, p95 = statistics.median(asked), asked[int(len(asked) * 0.95)]
    results: list[dict[str, Any]] = [
        {
            "measure": "digest_cpu",
            "workload": f"{CHANGES:,} updates of sysbench's table of {rows:,} rows, MySQL to MySQL",
            "value": round(sum(middle["log"]), 2), "unit": "CPU s",
            "baseline": "the same without digests", "baseline_value": round(sum(middle["none"]), 2),
            "ratio": round(sum(middle["log"]) / sum(middle["none"]), 2), "wanted": "", "cores": os.cpu_count(),
            "more_cpu_s": dict(zip(WHERE, more, strict=True)), "load": round(load, 1),
        },
        {
            "measure": "digest_answer", "workload": "is the table equal: median, a new connection each time",
            "value": round(middle_ms, 1), "unit": "ms",
            "baseline": "sluice verify of the same table by checksums", "baseline_value": round(by_reading_s * 1000),
            "ratio": round(by_reading_s * 1000 / middle_ms, 1), "wanted": "at most 100 ms", "cores": os.cpu_count(),
            "p95": round(p95, 1), "load": round(load, 1), "samples": len(asked),
        },
    ]  # fmt: skip
    keep(RESULTS, results)


if __name__ == "__main__":
    main()
