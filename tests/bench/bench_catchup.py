"""How fast a backlog is delivered by everything that is there: the real DAG, Spark, ZooKeeper; against a native replica
with four workers.

Run by ``make bench-catchup`` (``python tests/bench/bench_catchup.py [changes]``; 3,000,000 by default). The backlog is
sysbench's oltp_write_only, written while the pipeline is paused. Both sides start at the same position of the same log,
one after the other; CHECKSUM TABLE of source, replica and target is compared before the figure counts. Written to
``tests/bench/results/catchup.json``.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT / "include"), str(_ROOT)]

from devstack import processes  # noqa: E402
from devstack.demo.show import PIPELINE, read_status  # noqa: E402
from devstack.development import SOURCE_SCHEMA, TARGET_SCHEMA, Stack  # noqa: E402
from devstack.mysql import MySQLServer  # noqa: E402
from devstack.progress import DAG  # noqa: E402
from sluice.config.loading import find_pipeline  # noqa: E402
from sluice.flows.runtime import Runtime, pipelines_folder  # noqa: E402
from sluice.operations import control  # noqa: E402
from sluice.operations.status import status  # noqa: E402
from tests.bench import applying as ap  # noqa: E402
from tests.bench.demo_stack import replica_of, stack_of_its_own, wait  # noqa: E402

RESULTS = _ROOT / "tests/bench/results/catchup.json"
CHANGES = 3_000_000


def main() -> None:
    processes.tether()
    changes = int(sys.argv[1]) if len(sys.argv) > 1 else CHANGES
    with stack_of_its_own() as stack:
        stack.api.wait_for_dag(DAG)
        wait(lambda: (now := read_status()) is not None and now.captured is not None, 120, "the pipeline to begin")
        names = _tables(stack)
        wait(lambda: _same(names, stack.source, stack.target), 180, "the rows before the backlog")
        with replica_of(stack) as replica:
            replica.execute("START REPLICA")
            wait(lambda: _same(names, stack.source, replica), 180, "the replica to catch up", quietly=True)
            replica.execute("STOP REPLICA")
            runtime = Runtime.build(find_pipeline(PIPELINE, pipelines_folder()))
            control.pause(runtime, by="bench")
            _write(stack, names, changes)
            ours = _deliver(stack, runtime, names)
            theirs = _replicate(stack, replica)
            if not _same(names, stack.source, replica):
                raise SystemExit("the replica differs from its source")
    line = {
        "measure": "catchup_airflow",
        "workload": f"{changes} changes of sysbench's oltp_write_only in {len(names)} tables, the real DAG with every "
        "batch on Spark",
        "value": round(ours, 2),
        "unit": "s",
        "baseline": f"a native replica, {ap.WORKERS} workers, same log",
        "baseline_value": round(theirs, 2),
        "ratio": round(theirs / ours, 2),
        "cores": ap.cores(),
    }
    print(
        f"{line['measure']:<22} {ours:>10.2f} s  {line['baseline']} {theirs:.2f}  ratio {line['ratio']}  wanted at "
        "least 5",
        flush=True,
    )
    RESULTS.write_text(json.dumps([line], indent=1) + "\n", encoding="utf-8")
    print(f"written to {RESULTS.relative_to(_ROOT)}")


def _tables(stack: Stack) -> list[str]:
    names = ap.sbtest(stack.source, stack.target, SOURCE_SCHEMA, target_schema=TARGET_SCHEMA)
    for name in names:
        ap.procedure(stack.source, SOURCE_SCHEMA, "oltp", f"work_{name}", name, ap.TABLE_ROWS)
    return names


def _write(stack: Stack, names: list[str], changes: int) -> None:
    began = time.monotonic()
    each = changes // len(names) // 4  # a transaction is four changes
    work: list[Callable[[Any], Any]] = [lambda c, name=name: c.execute(f"CALL work_{name}({each})") for name in names]
    ap.in_parallel(work, stack.source, SOURCE_SCHEMA)
    print(f"{changes} changes written in {time.monotonic() - began:.0f} s", flush=True)


def _deliver(stack: Stack, runtime: Runtime, names: list[str]) -> float:
    """Seconds from the moment that the pipeline goes on until it has delivered everything."""
    before = status(runtime).targets[0].batch or 0
    began = time.monotonic()
    control.resume(runtime, by="bench")
    wait(lambda: (now := read_status()) is not None and now.state == "idle", 1200, "the backlog to be delivered")
    took = time.monotonic() - began
    if not _same(names, stack.source, stack.target):
        raise SystemExit("the target differs from its source")
    sizes = [batch.changes for batch in status(runtime, recent=60).recent if batch.number > before]
    print(f"batches: {sizes}", flush=True)
    return took


def _replicate(stack: Stack, replica: MySQLServer) -> float:
    wanted = stack.source.execute("SELECT @@GLOBAL.gtid_executed")[0][0]
    began = time.monotonic()
    replica.execute("START REPLICA")
    replica.execute(f"SELECT WAIT_FOR_EXECUTED_GTID_SET('{wanted}')")
    return time.monotonic() - began


def _same(names: list[str], source: MySQLServer, other: MySQLServer) -> bool:
    schema = TARGET_SCHEMA if other.execute(f"SHOW DATABASES LIKE '{TARGET_SCHEMA}'") else SOURCE_SCHEMA
    return all(
        source.execute(f"CHECKSUM TABLE {SOURCE_SCHEMA}.{name}")[0][1]
        == other.execute(f"CHECKSUM TABLE {schema}.{name}")[0][1]
        for name in names
    )


if __name__ == "__main__":
    main()
