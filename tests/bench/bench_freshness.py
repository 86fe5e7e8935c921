"""How fresh the target is: seconds from a commit at the source to the row being visible at the target, on the demo
stack.

Run by ``make bench-freshness`` (``python tests/bench/bench_freshness.py [seconds [steady]]``). A steady 1,000 row
changes a second of the sample shop's workload; beside it a heartbeat row every 100 ms, whose age is taken when a reader
first sees it at the target. Four times: every batch merged, ruled and loaded by Spark's workers, by one task of the run
(the default), the same with the rule as a job of its own (``task: own``), and by each stage's own task
(``run: {tasks: own}``); then small batches in the task itself (``spark.from_changes: 5000``). Baseline: a native MySQL
replica of the same source under the same workload, in the same run, after Sluice (never at the same time: two cores are
shared by everything). Then a backlog, with the batches that carried it: they grow, and several are at work at the same
time. Prints a line a measurement and where the time went; asserts nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import sqlite3
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT / "include"), str(_ROOT)]

from devstack import processes  # noqa: E402
from devstack.demo import shop  # noqa: E402
from devstack.demo.show import HEARTBEAT, PIPELINE, LagMeter, checksums, read_status  # noqa: E402
from devstack.demo.workload import seed  # noqa: E402
from devstack.development import SOURCE_SCHEMA, TARGET_SCHEMA, Stack  # noqa: E402
from devstack.progress import DAG  # noqa: E402
from sluice.config.loading import find_pipeline  # noqa: E402
from sluice.flows.runtime import Runtime, pipelines_folder  # noqa: E402
from sluice.operations.status import status as read  # noqa: E402
from tests.bench.demo_stack import replica_of, stack_of_its_own, wait  # noqa: E402
from tests.support.servers.airflows import pause  # noqa: E402

RESULTS = _ROOT / "tests/bench/results/freshness.json"
RATE = 1000
WARM_S = 15.0
SECONDS = 40.0
CASES = {
    "": "every batch on Spark, one task a run",
    "_own_rule": "every batch on Spark, one task a run, the rule as a job of its own",
    "_own_tasks": "every batch on Spark, a task a stage",
    "_in_task": "small batches in the task, one task a run",
}
"""What the names of the measures end with."""
OWN_TASKS = "\nrun: {tasks: own}\n"
ONE_TASK = "\nrun: {tasks: one}\n"
OWN_RULE = "    task: own\n    order: 10"
BATCH = 500
"""Changes of a small batch, which ``small_batch_cpu`` is for."""
_TRAIN = re.compile(
    r"batch (\d+): (\d+) changes, closed by (\w+); drain ([\d.]+) s, merge ([\d.]+) s, reporting ([\d.]+) s"
)
BASELINE = "a native MySQL replica, same source, same workload, same run"

_WORKLOAD = """
import sys
from devstack import paths
from devstack.demo.workload import Workload
from devstack.development import SOURCE_SCHEMA, Stack
rate, seconds, changes, number = (float(a) for a in sys.argv[1:])
source = Stack.load(paths.demo_folder()).source
tally = Workload(source.connect, SOURCE_SCHEMA, connections=2, changes_per_s=rate or None, seconds=seconds or None,
                 changes=int(changes) or None, number=int(number)).run()
print(tally.changes)
"""


def main() -> None:
    processes.tether()
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS
    with stack_of_its_own() as stack:
        _prepare(stack)
        _change("\nwindow: 3\n", f"{ONE_TASK}window: 3\n")
        lines = _sluice(stack, seconds, "")
        rules = Path(os.environ["SLUICE_RULES"]) / "engine.yaml"
        _change("    order: 10", OWN_RULE, rules)
        lines += _sluice(stack, seconds, "_own_rule")
        _change(OWN_RULE, "    order: 10", rules)
        _change(ONE_TASK, OWN_TASKS)
        lines += _sluice(stack, seconds, "_own_tasks")
        _change(OWN_TASKS, ONE_TASK)
        _change("spark: {mode: connect,", "spark: {mode: connect, from_changes: 5000,")
        lines += _sluice(stack, seconds, "_in_task")
        if sys.argv[2:] == ["steady"]:  # while working on it: no backlog, no baseline, no results file
            print(*lines, sep="\n")
            return
        lines += _backlog(stack)
        native = _replica(stack, min(seconds, 30.0))
        native = {f"{measure}{case}": value for measure, value in native.items() for case in CASES}
    results = []
    for line in lines:
        theirs = native.get(line["measure"])
        ratio = round(theirs / line["value"], 4) if theirs else None
        results.append({**line, "baseline": BASELINE if theirs else None, "baseline_value": theirs, "ratio": ratio})
        beside = f"  native replica {theirs:.3f}  ratio {ratio}" if theirs else ""
        print(
            f"{line['measure']:<22} {line['value']:>10.3f} {line['unit']:<8}{beside}   ({line['workload']})", flush=True
        )
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(f"written to {RESULTS.relative_to(_ROOT)}")


def _prepare(stack: Stack) -> None:
    for server, schema in ((stack.source, SOURCE_SCHEMA), (stack.target, TARGET_SCHEMA)):
        server.execute(HEARTBEAT.format(schema=schema))
    stack.api.wait_for_dag(DAG)
    wait(lambda: (status := read_status()) is not None and status.captured is not None, 120, "the pipeline to begin")
    seed(stack.source.connect, SOURCE_SCHEMA, customers=2000, products=1000, orders=4000)
    wait(lambda: _equal(stack), 120, "the seeded rows to arrive")


def _change(was: str, now: str, path: Path | None = None) -> None:
    """Change the pipeline's file, or that of its rules. The run under way ends then, and the next one reads it."""
    path = path or Path(os.environ["SLUICE_PIPELINES"]) / f"{PIPELINE}.yaml"
    text = path.read_text(encoding="utf-8")
    assert text.count(was) == 1, was
    path.write_text(text.replace(was, now), encoding="utf-8")


def _sluice(stack: Stack, seconds: float, case: str) -> list[dict[str, Any]]:
    """Freshness under the steady load; prints the stages of a batch and the CPU seconds of each server."""
    print(f"-- {CASES[case]} (load average {os.getloadavg()[0]:.1f})", flush=True)
    process = _workload(stack, RATE, seconds + WARM_S, 0, 1 + 10 * list(CASES).index(case))
    time.sleep(WARM_S)
    before, began, grown = _cpu(stack), time.time(), _size(stack)
    with LagMeter(stack.source, stack.target, beat_s=0.1, look_s=0.01) as meter:
        time.sleep(seconds)
        meter.write_no_more()
        used, took = _cpu(stack), time.time() - began
        memory, grown = _memory(stack), _growth(grown, _size(stack), took)
        working = _working(stack)
        wait(lambda: meter.complete, 60, "the last heartbeat")
    changes = int(process.communicate()[0])
    print(f"CPU seconds a second: {_rates(before, used, took)}", flush=True)
    print(f"stages: {_stages(stack, began, began + seconds)}", flush=True)
    print(f"loops: {_loops(stack, began)}", flush=True)
    print(
        f"memory (PSS, MB): {', '.join(f'{name} {mb:.0f} in {count}' for name, (mb, count) in memory.items())}",
        flush=True,
    )
    print(f"Airflow an hour: {grown}", flush=True)
    rate = changes / (seconds + WARM_S)
    workload = (
        f"{rate:.0f} changes/s of the shop for {seconds:.0f} s, {len(meter.lags_ms)} heartbeats, demo stack, "
        f"{CASES[case]}"
    )
    wait(lambda: _equal(stack), 60, "both sides to be equal")
    cpu = sum(used[name] - before.get(name, 0.0) for name in used if name.startswith(OURS)) / took
    return [
        *(_line(f"freshness_p{share}{case}", workload, meter.percentile_ms(share / 100)) for share in (50, 95)),
        _line(f"small_batch_cpu{case}", f"{workload}; per {BATCH} changes", cpu / rate * BATCH * 1000, "CPU s"),
        _line(f"airflow_memory{case}", workload, sum(mb for mb, _ in memory.values()) * 1000, "MB"),
        _line(f"tasks_at_work{case}", workload, working * 1000, "tasks"),
    ]


def _backlog(stack: Stack) -> list[dict[str, Any]]:
    """100,000 changes: half while the DAG is paused, half as fast as they can be written while it works them off."""
    pause(stack.api, DAG)
    status = read_status()
    done = status.targets[0].batch or 0 if status else 0
    changes = int(_workload(stack, 0, 120, 50_000, 2).communicate()[0])
    began = time.time()
    pause(stack.api, DAG, paused=False)
    changes += int(_workload(stack, 0, 120, 50_000, 4).communicate()[0])
    wait(lambda: _equal(stack), 120, "the backlog to be delivered")
    took = time.time() - began
    runtime = Runtime.build(find_pipeline(PIPELINE, pipelines_folder()))
    sizes = [batch.changes for batch in read(runtime, recent=60).recent if batch.number > done]
    overlap = _overlap(stack, began)
    print(
        f"backlog: {changes} changes in batches of {sizes}; {overlap.batches} batches on their way and "
        f"{overlap.stages} stages at work at the same time at most, two or more stages in {overlap.share:.0%} of the "
        "time",
        flush=True,
    )
    workload = (
        f"{changes} changes of the shop, half of them waiting, half written meanwhile, until both sides are equal"
    )
    return [
        _line("backlog_throughput", workload, changes / took * 1000, "changes/s"),
        _line("backlog_largest_batch", f"{workload}; {len(sizes)} batches", max(sizes) * 1000, "changes"),
        _line("backlog_batches_at_once", workload, overlap.batches * 1000, "batches"),
        _line(
            "backlog_stages_overlap",
            f"{workload}; {overlap.stages} stages at most",
            overlap.share * 1000,
            "of the time",
        ),
    ]


def _replica(stack: Stack, seconds: float) -> dict[str, float]:
    """The same heartbeat through a native replica with four workers."""
    pause(stack.api, DAG)
    with replica_of(stack) as replica:
        replica.execute("START REPLICA")
        same = lambda: shop.checksums(stack.source, SOURCE_SCHEMA) == shop.checksums(replica, SOURCE_SCHEMA)  # noqa: E731
        wait(same, 180, "the replica to catch up", quietly=True)
        stack.source.execute(f"DELETE FROM `{SOURCE_SCHEMA}`.heartbeat")
        process = _workload(stack, RATE, seconds + 5, 0, 3)
        time.sleep(3)
        with LagMeter(stack.source, replica, beat_s=0.1, look_s=0.002, schema=SOURCE_SCHEMA) as meter:
            time.sleep(seconds)
            meter.write_no_more()
            wait(lambda: meter.complete, 60, "the last heartbeat")
        process.communicate()
    return {f"freshness_p{share}": round((meter.percentile_ms(share / 100) or 0) / 1000, 4) for share in (50, 95)}


def _line(measure: str, workload: str, value_ms: float | None, unit: str = "s") -> dict[str, Any]:
    return {"measure": measure, "workload": workload, "value": round((value_ms or 0) / 1000, 3), "unit": unit}


def _workload(stack: Stack, rate: float, seconds: float, changes: int, number: int) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", _WORKLOAD, str(rate), str(seconds), str(changes), str(number)]
    env = {**os.environ, "PYTHONPATH": str(_ROOT / "include")}
    return subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True)


def _equal(stack: Stack) -> bool:
    return checksums(stack.source, SOURCE_SCHEMA) == checksums(stack.target, TARGET_SCHEMA)


# -- where the time goes -----------------------------------------------------------------------------------------------


def _cpu(stack: Stack) -> dict[str, float]:
    """CPU seconds used so far by each server with all that it started, and by all else of the machine."""
    used: dict[str, float] = {}
    for name, handle in stack.handles().items():
        times = [t for p in processes.family(handle) if (t := _times(p))]
        used[name] = sum(times)
    machine = psutil.cpu_times()
    used["(this bench and its workload)"] = sum(
        _times(p)
        for p in (psutil.Process(), *psutil.Process().children())
        if p.pid not in {h.pid for h in stack.handles().values()}
    )
    used["(machine)"] = sum(machine) - machine.idle - getattr(machine, "iowait", 0.0)
    return used


def _times(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    return times.user + times.system + times.children_user + times.children_system


def _rates(before: dict[str, float], after: dict[str, float], seconds: float) -> str:
    found = {name: (after[name] - before.get(name, 0.0)) / seconds for name in after}
    return ", ".join(f"{name} {rate:.2f}" for name, rate in sorted(found.items(), key=lambda item: -item[1]))


OURS = ("airflow", "spark", "zookeeper", "subscriptions")
"""Servers whose CPU seconds a batch costs; the source's and the target's own work is not among them."""


def _working(stack: Stack) -> int:
    """Tasks of the pipeline that hold a worker now."""
    found = stack.api.call("GET", f"/dags/{DAG}/dagRuns/~/taskInstances?state=running&limit=1")
    return int(found["total_entries"])


def _memory(stack: Stack) -> dict[str, tuple[float, int]]:
    """Proportional set size (MB) of Airflow's processes by kind, and how many there are."""
    found = {}
    for name, handle in stack.handles().items():
        if name.startswith("airflow"):
            sizes = []
            for process in processes.family(handle):
                with contextlib.suppress(psutil.Error):
                    sizes.append(process.memory_full_info().pss / 1e6)
            found[name] = (sum(sizes), len(sizes))
    return found


def _size(stack: Stack) -> dict[str, float]:
    """What a busy pipeline makes in Airflow, so far."""
    home = stack.airflow_home
    database = home / "airflow.db"
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as opened:
        rows = {
            name: opened.execute(f"SELECT COUNT(*) FROM {name}").fetchone()[0]
            for name in ("dag_run", "task_instance", "xcom")
        }
    logs = [path for path in (home / "logs").rglob("*") if path.is_file()]
    return {
        **rows,
        "MB of database": sum(path.stat().st_size for path in home.glob("airflow.db*")) / 1e6,
        "log files": len(logs),
        "MB of logs": sum(path.stat().st_size for path in logs) / 1e6,
    }


def _growth(before: dict[str, float], after: dict[str, float], seconds: float) -> str:
    return ", ".join(f"{name} {(after[name] - before[name]) / seconds * 3600:.0f}" for name in after)


def _loops(stack: Stack, since: float) -> str:
    """Batches that loops delivered, by the logs of their tasks: how many, and the median seconds of their stages."""
    found: dict[str, tuple[str, ...]] = {}
    for path in (stack.airflow_home / "logs").rglob("*.log"):
        if path.stat().st_mtime >= since and DAG in str(path):
            found |= {line[0]: line for line in _TRAIN.findall(path.read_text(encoding="utf-8", errors="replace"))}
    if not found:
        return "no batches"
    last = sorted(found.values(), key=lambda line: int(line[0]))[-200:]
    reasons = {reason: sum(line[2] == reason for line in last) for reason in sorted({line[2] for line in last})}
    names = ("changes", "drain", "merge", "load and ack")
    medians = [statistics.median(float(line[at]) for line in last) for at in (1, 3, 4, 5)]
    return f"{len(found)} batches, closed by {reasons}; medians: " + ", ".join(
        f"{name} {value:g}" for name, value in zip(names, medians, strict=True)
    )


def _instances(stack: Stack, since: float) -> dict[str, dict[str, dict[str, float | None]]]:
    """Run -> task -> scheduled, queued, started, ended (seconds since 1970), of the runs that ended since."""
    asked = f"/dags/{DAG}/dagRuns?limit=100&order_by=-run_after&state=success"
    runs = [run for run in stack.api.call("GET", asked)["dag_runs"] if _seconds(run["end_date"]) > since]
    found: dict[str, dict[str, dict[str, float | None]]] = {}
    for run in runs:
        tasks = stack.api.call("GET", f"/dags/{DAG}/dagRuns/{run['dag_run_id']}/taskInstances")["task_instances"]
        found[run["dag_run_id"]] = {
            task["task_id"]: {
                name: _seconds(task[key]) if task.get(key) else None
                for name, key in (("scheduled", "scheduled_when"), ("queued", "queued_when"), ("start", "start_date"),
                    ("end", "end_date"))
            }
            for task in tasks
        }  # fmt: skip
    return found


def _stages(stack: Stack, since: float, until: float) -> str:
    """Median seconds of each task, of the way to it, and of a batch's cycle."""
    runs = _instances(stack, since)
    spans: dict[str, list[float]] = {}
    before = {"merge": "drain", "load.reporting": "merge", "ack.reporting": "load.reporting"}
    for tasks in runs.values():
        if any(tasks.get(name, {}).get("end") is None for name in ("drain", *before)):
            continue
        for name, at in tasks.items():
            assert at["start"] is not None
            assert at["end"] is not None
            spans.setdefault(f"{name} at work", []).append(at["end"] - at["start"])
            earlier = before.get(name)
            if earlier:
                ended = tasks[earlier]["end"]
                assert ended is not None
                spans.setdefault(f"{earlier} -> {name}", []).append(at["start"] - ended)
    drains = sorted(t["drain"]["start"] or 0.0 for t in runs.values() if t.get("drain", {}).get("start"))
    cycles = [b - a for a, b in itertools.pairwise(drains)]
    text = ", ".join(f"{name} {statistics.median(values):.2f}" for name, values in spans.items())
    return f"{text}, cycle {statistics.median(cycles) if cycles else 0:.2f} ({len(runs)} runs)"


@dataclass(frozen=True)
class Overlap:
    """``batches``: runs between the start of their drain and the end of their ack at the same time, at most.

    ``stages``: tasks of different kinds at work at the same moment, at most; ``share``: of the time in which anything
    was at work, that with two or more."""

    batches: int
    stages: int
    share: float


def _overlap(stack: Stack, since: float) -> Overlap:
    whole, tasks = [], []
    for run in _instances(stack, since).values():
        drain, ack = run.get("drain", {}), run.get("ack.reporting", {})
        if drain.get("start") and ack.get("end"):
            whole.append((drain["start"], ack["end"]))
            tasks += [(at["start"], at["end"], kind) for kind, at in run.items() if at["start"] and at["end"]]
    moments = sorted({moment for start, end, _ in tasks for moment in (start, end)})
    spans = [
        (until - at, len({kind for start, end, kind in tasks if start <= at < end}))
        for at, until in itertools.pairwise(moments)
    ]
    busy = sum(seconds for seconds, kinds in spans if kinds)
    return Overlap(
        max((sum(1 for start, end in whole if start <= at < end) for at, _ in whole), default=0),
        max((kinds for _, kinds in spans), default=0),
        sum(seconds for seconds, kinds in spans if kinds > 1) / busy if busy else 0.0,
    )


def _seconds(text: str | None) -> float:
    from datetime import datetime

    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() if text else 0.0


if __name__ == "__main__":
    main()
