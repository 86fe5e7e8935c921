"""From one pipeline to a thousand, and to 100 TB of log a day: what is used up first, by arithmetic on what was
measured.

``python tests/bench/simulate_scale.py`` prints the tables of docs/scale.md. The costs of one pipeline are those of
bench_scale.py and bench_pipelines.py where their results have them, else the defaults below, which say where they are
from. Everything is linear: no queueing, no bursts. So the table says which part is used up first and how many of it are
needed, not how long anything takes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "results/pipelines.json"
STAGES = Path(__file__).resolve().parent / "results/scale.json"
DAY_S = 86_400.0


@dataclass(frozen=True)
class Costs:
    """Of one unit of work. CPU in seconds of a core.

    Attributes:
        bytes_per_change: of binary log, of an OLTP row change (bench_capture: 200 to 400).
        change_cpu_s: of capture, merge and load of one change (bench_apply: 15 to 20 s of two cores for a million
            changes).
        batch_cpu_s: of a small batch in addition to that, in the drain's process (a loop of 10 changes/s: 0.066 to
            0.074 s a batch).
        batch_changes: most changes of a batch; batches_per_s: most batches a second of one pipeline.
        run_cpu_s: of a run for the scheduler, the workers' start and the API server. run_s: how long a busy run goes
            on.
        fixed_cpu_s: of one Airflow, whatever it does: scheduler, API server and triggerer look for work.
        idle_cpu_s: of a pipeline that waits, in the triggerer, a second.
        batch_zk_writes, batch_zk_reads, batch_requests: at ZooKeeper and at the object store, a batch. File: two files
            are written, and read twice.
        idle_zk_requests: of a pipeline that waits, a second.
        run_db_bytes: in Airflow's database, a run with its tasks and events.
        store_write_share: of the requests at the object store, those that write.
    """

    bytes_per_change: float = 300.0
    change_cpu_s: float = 18e-6
    batch_cpu_s: float = 0.07
    batch_changes: float = 2_000_000.0
    batches_per_s: float = 2.0
    run_cpu_s: float = 1.0
    run_s: float = 225.0
    fixed_cpu_s: float = 0.25
    idle_cpu_s: float = 0.0002
    batch_zk_writes: float = 8.6
    batch_zk_reads: float = 47.0
    batch_requests: float = 8.0
    idle_zk_requests: float = 0.2
    run_db_bytes: float = 9_000.0
    store_write_share: float = 0.5


@dataclass(frozen=True)
class Limits:
    """What one of each carries. Rules of thumb, each stated in docs/scale.md; a machine's own figures replace them."""

    cores: float = 16.0
    scheduler_runs_per_s: float = 5.0
    triggers: float = 1000.0
    zk_writes_per_s: float = 10_000.0
    zk_requests_per_s: float = 50_000.0
    store_requests_per_s: float = 3_500.0
    source_log_bytes_per_s: float = 200e6
    dump_connections: float = 100.0


@dataclass(frozen=True)
class Load:
    """``busy`` pipelines of ``changes_per_s`` each on ``sources`` servers, and ``idle`` ones; ``max_wait_s``:
    ``capture.batch.max_wait``.
    """

    busy: int
    changes_per_s: float
    idle: int = 0
    sources: int = 1
    max_wait_s: float = 0.5

    @classmethod
    def of_log(cls, bytes_a_day: float, busy: int, sources: int, costs: Costs, idle: int = 0) -> Load:
        """So much log a day, spread evenly."""
        return cls(busy, bytes_a_day / DAY_S / busy / costs.bytes_per_change, idle, sources)


@dataclass(frozen=True)
class Needs:
    """What a load takes, and ``used``: part -> share of one of it."""

    cores: float
    workers: int
    connections: int
    runs_per_s: float
    db_bytes_per_h: float
    zk_writes_per_s: float
    store_requests_per_s: float
    log_bytes_per_s: float
    used: Mapping[str, float]

    @property
    def first(self) -> str:
        """The part that is used up first."""
        return max(self.used, key=lambda part: self.used[part])

    @property
    def machines(self) -> int:
        """For the CPU alone."""
        return math.ceil(self.used["cores of a machine"])


def needs(load: Load, costs: Costs, limits: Limits) -> Needs:
    """Of all pipelines together."""
    changes = load.busy * load.changes_per_s
    each_batches = 0.0
    if load.changes_per_s:
        smallest = min(costs.batches_per_s, load.changes_per_s, 1 / load.max_wait_s)
        each_batches = max(smallest, load.changes_per_s / costs.batch_changes)
    batches = load.busy * each_batches
    runs = load.busy / costs.run_s if load.changes_per_s else 0.0
    waiting = load.idle
    cpu = (
        costs.fixed_cpu_s
        + changes * costs.change_cpu_s
        + batches * costs.batch_cpu_s
        + runs * costs.run_cpu_s
        + waiting * costs.idle_cpu_s
    )
    log = changes * costs.bytes_per_change
    zk_writes = batches * costs.batch_zk_writes + 1.0
    zk_requests = zk_writes + batches * costs.batch_zk_reads + waiting * costs.idle_zk_requests
    requests = batches * costs.batch_requests
    connections = 2 * load.busy + 2 * load.sources
    used = {
        "cores of a machine": cpu / limits.cores,
        "scheduler": runs / limits.scheduler_runs_per_s,
        "triggerer": (load.idle + load.busy) / limits.triggers,
        "ZooKeeper": max(zk_writes / limits.zk_writes_per_s, zk_requests / limits.zk_requests_per_s),
        "object store (a prefix)": requests / limits.store_requests_per_s,
        # every busy pipeline reads all of its source's log
        "a source's log, sent": log * max(load.busy / load.sources, 1) / load.sources / limits.source_log_bytes_per_s,
        "a source's connections": connections / load.sources / limits.dump_connections,
    }
    return Needs(cpu, load.busy, connections, runs, runs * 3600 * costs.run_db_bytes, zk_writes, requests, log, used)


def measured(results: Sequence[Mapping[str, object]], costs: Costs | None = None) -> Costs:
    """Costs with what bench_pipelines.py found."""
    found = {str(one["measure"]): float(str(one["value"])) for one in results}
    found |= {
        f"old:{one['measure']}": float(str(one["baseline_value"]))
        for one in results
        if one.get("baseline_value") is not None
    }
    made = costs or Costs()
    growth = "airflow_growth_"
    if f"{growth}zookeeper_writes_a_batch" in found:
        writes = found[f"{growth}zookeeper_writes_a_batch"]
        made = replace(
            made, batch_zk_writes=writes, batch_zk_reads=max(found[f"{growth}zookeeper_requests_a_batch"] - writes, 0.0)
        )
    runs, size = found.get(f"{growth}rows_in_dag_run", 0.0), found.get(f"{growth}database_bytes", 0.0)
    if runs and size:
        made = replace(made, run_db_bytes=size / runs)
    made = _shares(found, made)
    waiting = found.get("idle_still_waiting", 0.0)
    if waiting:
        made = replace(
            made,
            idle_cpu_s=found["idle_triggerer_cpu"] / waiting,
            idle_zk_requests=found["idle_zookeeper_requests"] / waiting,
        )
    return made


def _shares(found: Mapping[str, float], costs: Costs) -> Costs:
    """The CPU of a run, and of an Airflow that only looks, from two shapes: a run a batch (``old:``), and many batches
    a run.

    That of a batch is known. As it is where they do not tell.
    """
    growth = "airflow_growth_"
    kinds = ("scheduler", "api-server", "triggerer")
    names = [f"{growth}batches", f"{growth}rows_in_dag_run", *(f"{growth}cpu_{kind}" for kind in kinds)]
    if any(name not in found or f"old:{name}" not in found for name in names):
        return costs
    batches, runs, *cpu = (found[name] for name in names)
    old_batches, old_runs, *old_cpu = (found[f"old:{name}"] for name in names)
    if old_runs <= runs:
        return costs
    used, old_used = (sum(one) - costs.batch_cpu_s * made for one, made in ((cpu, batches), (old_cpu, old_batches)))
    run = (old_used - used) / (old_runs - runs)
    fixed = (used - run * runs) / 3600
    return replace(costs, run_cpu_s=run, fixed_cpu_s=fixed) if run > 0 and fixed > 0 else costs


def loads(costs: Costs) -> dict[str, Load]:
    """The rows of the table."""
    return {
        "1 x 1,000 changes/s": Load(1, 1000),
        "10 x 10 changes/s, 200 idle": Load(10, 10, 200),
        "100 x 10 changes/s, 10 sources": Load(100, 10, 0, 10),
        "100 x 1,000 changes/s, 10 sources": Load(100, 1000, 0, 10),
        "1,000 x 10 changes/s, 100 sources": Load(1000, 10, 0, 100),
        "the same, max_wait: 5s": Load(1000, 10, 0, 100, 5.0),
        "1,000 x 1,000 changes/s, 100 sources": Load(1000, 1000, 0, 100),
        "the same, max_wait: 5 s": Load(1000, 1000, 0, 100, 5.0),
        "1 TB a day, 10 pipelines, 10 sources": Load.of_log(1e12, 10, 10, costs),
        "100 TB a day, 100 pipelines, 100 sources": Load.of_log(100e12, 100, 100, costs),
        "100 TB a day, 1,000 pipelines, 1,000 sources": Load.of_log(100e12, 1000, 1000, costs),
    }


def table(costs: Costs, limits: Limits) -> str:
    """In Markdown."""
    lines = [
        "| load | cores | workers | connections to sources | database MB/h | ZooKeeper writes/s | store requests/s | "
        "log MB/s | first used up |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for name, load in loads(costs).items():
        n = needs(load, costs, limits)
        lines.append(
            f"| {name} | {n.cores:,.1f} | {n.workers:,} | {n.connections:,} | {n.db_bytes_per_h / 1e6:,.1f} | "
            f"{n.zk_writes_per_s:,.0f} | {n.store_requests_per_s:,.0f} | {n.log_bytes_per_s / 1e6:,.1f} | {n.first}: "
            f"{n.used[n.first]:.2f} |"
        )
    return "\n".join(lines)


@dataclass(frozen=True)
class Prices:
    """Assumed prices in dollars, of the order of what clouds ask on demand. Put in your own."""

    core_hour: float = 0.05
    store_writes_million: float = 5.0
    store_reads_million: float = 0.4
    database_gb_month: float = 0.1


def machines(costs: Costs, limits: Limits | None = None, prices: Prices | None = None) -> str:
    """How many of each part a load takes, and dollars a month of cores and store requests, in Markdown."""
    limits, prices = limits or Limits(), prices or Prices()
    lines = [
        "| load | machines of 16 cores | schedulers | triggerers | workers | ZooKeeper ensembles | store prefixes | "
        "cores, $ a month | store requests, $ a month |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, load in loads(costs).items():
        n = needs(load, costs, limits)
        cores = n.cores * prices.core_hour * 730
        writes, reads = n.store_requests_per_s * costs.store_write_share, n.store_requests_per_s
        reads -= writes
        requests = (writes * prices.store_writes_million + reads * prices.store_reads_million) * 730 * 3600 / 1e6
        count = {part: max(math.ceil(n.used[part]), 1) for part in n.used}
        lines.append(
            f"| {name} | {count['cores of a machine']:,} | {count['scheduler']:,} | {count['triggerer']:,} | "
            f"{n.workers:,} | {count['ZooKeeper']:,} | {count['object store (a prefix)']:,} | {cores:,.0f} | "
            f"{requests:,.0f} |"
        )
    return "\n".join(lines)


def of_stages(lines: Sequence[Mapping[str, object]], costs: Costs) -> Costs:
    """Costs with what bench_scale.py found, all stages together. Databases are not ours, and are not in it."""
    found = {str(one["measure"]): float(str(one["value"])) for one in lines}

    def of_all(name: str) -> float:
        return sum(value for measure, value in found.items() if measure.endswith(f"_{name}"))

    if not found:
        return costs
    writes, reads = of_all("store_writes_a_batch"), of_all("store_reads_a_batch")
    zk_writes = of_all("zk_writes_a_batch")
    return replace(
        costs,
        change_cpu_s=of_all("own_s_a_million") / 1e6,
        batch_cpu_s=of_all("own_s_a_batch"),
        batch_zk_writes=zk_writes,
        batch_zk_reads=max(of_all("zk_requests_a_batch") - zk_writes, 0.0),
        batch_requests=writes + reads,
        store_write_share=writes / max(writes + reads, 1e-9),
    )


def kept() -> Costs:
    """The costs that are stored: of Airflow by bench_pipelines.py, of the stages by bench_scale.py."""
    costs = measured(json.loads(RESULTS.read_text(encoding="utf-8"))) if RESULTS.exists() else Costs()
    return of_stages(json.loads(STAGES.read_text(encoding="utf-8")), costs) if STAGES.exists() else costs


def main() -> None:
    costs = kept()
    print(f"{costs}\n\n{table(costs, Limits())}\n\n{machines(costs)}")


if __name__ == "__main__":
    main()
