"""What applying costs: from the stored position to the acknowledgement, against a native replica with four workers on
the same log.

Run by ``make bench-apply``; one figure at a time by
``python tests/bench/bench_apply.py FIGURE [--changes N] [--batch N] [--degrees 1 2]`` (``--help`` lists all). Both
sides start at the same position with the same backlog, one after the other; CHECKSUM TABLE of source, replica and
target is compared before a figure counts. Figures that were measured are written to ``tests/bench/results/apply.json``;
the others stay as they are.
"""

from __future__ import annotations

import argparse
import cProfile
import logging
import pstats
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT / "include"), str(_ROOT)]

from devstack import processes  # noqa: E402
from sluice.sources.mysql.reader.warm_up import compile_kernels  # noqa: E402
from tests.bench import applying as ap  # noqa: E402
from tests.bench.figures import save  # noqa: E402

RESULTS = _ROOT / "tests/bench/results/apply.json"
LINES: list[dict[str, Any]] = []


def report(
    measure: str,
    variant: str,
    workload: str,
    value: float,
    unit: str,
    baseline: str = "",
    baseline_value: float = 0.0,
    wanted: str = "",
) -> None:
    """One figure; ``ratio`` is how many times better it is than its baseline."""
    ratio = None
    if baseline_value:
        ratio = round(value / baseline_value if unit.endswith("/s") else baseline_value / value, 2)
    LINES.append({
        "measure": measure, "variant": variant, "workload": workload, "value": round(value, 4), "unit": unit,
        "baseline": baseline or None,
        "baseline_value": round(baseline_value, 3) or None, "ratio": ratio, "wanted": wanted or None,
        "cores": ap.cores(),
    })  # fmt: skip
    beside = f"  {baseline}: {baseline_value:,.2f}  ratio {ratio}" if baseline else ""
    print(f"{measure:<18} {variant:<18} {value:>10,.3f} {unit:<10}{beside}  wanted {wanted}   ({workload})", flush=True)


REPLICA = f"native replica, {ap.WORKERS} workers"


def apply_oltp(on: ap.Servers, changes: int, rows: int) -> None:
    """A backlog of sysbench's oltp_write_only."""
    _against_replica(on, "apply_oltp", "oltp", changes, rows, "at least 10x")


def apply_hot(on: ap.Servers, changes: int, rows: int) -> None:
    """A backlog in which 1 % of the keys take 99 % of the updates."""
    _against_replica(on, "apply_hot", "hot", changes, rows, "at least 20x")


def _against_replica(on: ap.Servers, measure: str, kind: str, changes: int, rows: int, wanted: str) -> None:
    with ap.pipeline(on, measure) as made:
        ap.warm(on, made)
        names = ap.sbtest(on.source, on.target, measure, rows=rows)
        ap.deliver(on, made)
        for name in names:
            ap.procedure(on.source, measure, kind, f"work_{name}", name, rows)
        ap.deliver(on, made)
        ap.replicate(on)
        each = changes // len(names) // (4 if kind == "oltp" else 1)
        work: list[Callable[[Any], Any]] = [
            lambda c, name=name: c.execute(f"CALL work_{name}({each})") for name in names
        ]
        began = time.perf_counter()
        size = ap.log_mb(on.source, lambda: ap.in_parallel(work, on.source, measure))
        print(
            f"{measure}: {changes} changes written in {time.perf_counter() - began:.0f} s, {size:.0f} MB of log",
            flush=True,
        )
        steps = ap.overlapping(made, on.mode)
        theirs = ap.replicate(on)
        ap.same(on, measure, names)
        words = f"{changes} changes, {size:.0f} MB of log, {len(names)} tables of {rows} rows"
        report(measure, f"{changes}", words, steps["all"], "s", REPLICA, theirs, wanted)
        print("   " + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in steps.items()), flush=True)
        LINES[-1]["phases_s"] = {name: round(seconds, 3) for name, seconds in steps.items()}
        LINES[-1]["changes_per_s"] = round(changes / steps["all"])


def apply_bulk_insert(on: ap.Servers, changes: int, rows: int) -> None:
    """Multi-row inserts of 5,000 rows into an empty table."""
    del rows
    with ap.pipeline(on, "apply_bulk") as made:
        ap.warm(on, made)
        names = ap.sbtest(on.source, on.target, "apply_bulk", tables=1, rows=0)
        ap.procedure(on.source, "apply_bulk", "bulk", "work", names[0], 0)
        ap.deliver(on, made)
        ap.replicate(on)
        each = -(-changes // 5000) * 5000
        ap.in_parallel([lambda c: c.execute(f"CALL work({each})")], on.source, "apply_bulk")
        steps = ap.overlapping(made, on.mode)
        theirs = ap.replicate(on)
        ap.same(on, "apply_bulk", names)
        report(
            "apply_bulk_insert", f"{each}", f"{each} rows in inserts of 5,000, one table with a secondary key",
            steps["all"], "s",
            REPLICA, theirs, "at least 1.5x",
        )  # fmt: skip
        print("   " + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in steps.items()), flush=True)
        LINES[-1]["phases_s"] = {name: round(seconds, 3) for name, seconds in steps.items()}


def apply_parallelism(on: ap.Servers, changes: int, rows: int) -> None:
    """The paper's table: inserts, updates and a mix, at 1, 2, 4 and 8 connections."""
    for degree in on.degrees:
        for kind in ("insert", "update", "mix"):
            schema = f"par_{kind}_{degree}"
            with ap.pipeline(on, schema, target=f"    parallelism: {degree}") as made:
                ap.warm(on, made)
                names = ap.sbtest(on.source, on.target, schema, rows=0 if kind == "insert" else rows)
                flavour = {"insert": "bulk", "update": "hot", "mix": "oltp"}[kind]
                for name in names:
                    ap.procedure(on.source, schema, flavour, f"work_{name}", name, rows)
                ap.deliver(on, made)
                each = changes // len(names) // (4 if kind == "mix" else 1)
                work: list[Callable[[Any], Any]] = [
                    lambda c, n=name, each=each: c.execute(f"CALL work_{n}({each})") for name in names
                ]
                ap.in_parallel(work, on.source, schema)
                seconds = ap.overlapping(made, on.mode)["all"]
                for name in names:
                    sums = {s.execute(f"CHECKSUM TABLE {schema}.{name}")[0][1] for s in (on.source, on.target)}
                    assert len(sums) == 1, f"{schema}.{name} differs"
                report(
                    "apply_parallelism",
                    f"{kind} x{degree}",
                    f"{changes} changes, {degree} connections",
                    changes / seconds,
                    "changes/s",
                )


def batch_50_tables(on: ap.Servers, changes: int, rows: int) -> None:
    """100 changes over 50 tables: merge, rules and load, warm."""
    del changes, rows
    _small_batches(on, "batch_50_tables", tables=50, changes=100, wanted="under 1.0 s", rounds=5)


def batch_1000_tables(on: ap.Servers, changes: int, rows: int) -> None:
    """2,000 changes over 1,000 tables in one batch."""
    del changes, rows
    _small_batches(on, "batch_1000_tables", tables=1000, changes=2000, wanted="at most 10 s", rounds=2)


def _small_batches(on: ap.Servers, measure: str, *, tables: int, changes: int, wanted: str, rounds: int) -> None:
    rule = "def transform(row, context):\n    row['k'] = row['k'] + 0\n    return row\n"
    with ap.pipeline(on, measure, extra="rules: engine.yaml") as made:
        (made.folder / "rules" / "same.py").write_text(rule, encoding="utf-8")
        engine = f"rules:\n  - {{name: same, path: same.py, type: row, order: 1, match: {{schema: {measure}}}}}\n"
        (made.folder / "rules" / "engine.yaml").write_text(engine, encoding="utf-8")
        ap.warm(on, made)
        names = ap.sbtest(on.source, on.target, measure, tables=tables, rows=0)
        ap.deliver(on, made)
        took: list[dict[str, float]] = []
        for number in range(rounds + 1):
            with on.source.connect(measure) as connection, connection.cursor() as cursor:
                connection.begin()
                for i in range(changes):
                    cursor.execute(f"INSERT INTO {names[i % tables]} VALUES (%s, 1, 'c', 'p')", (number * changes + i,))
                connection.commit()
            took.append(ap.overlapping(made, on.mode))
        sums = [
            [row[1] for row in s.execute("CHECKSUM TABLE " + ", ".join(f"{measure}.{n}" for n in names))]
            for s in (on.source, on.target)
        ]
        assert sums[0] == sums[1], f"{measure}: source and target differ"
        warm = [t["merge"] + t["load"] for t in took[1:]]
        value = statistics.median(warm)
        report(
            measure,
            "merge+rules+load",
            f"{changes} changes over {tables} tables, one rule, warm, median of {rounds}",
            value,
            "s",
            wanted=wanted,
        )
        LINES[-1]["phases_s"] = {name: round(statistics.median(t[name] for t in took[1:]), 3) for name in took[0]}
        LINES[-1]["ms_a_table"] = round(value / tables * 1000, 2)
        print(
            "   " + ", ".join(f"{name} {seconds:.3f} s" for name, seconds in LINES[-1]["phases_s"].items()), flush=True
        )


FIGURES: dict[str, tuple[Callable[[ap.Servers, int, int], None], int]] = {
    "apply_oltp": (apply_oltp, 800_000),
    "apply_bulk_insert": (apply_bulk_insert, 1_000_000),
    "apply_hot": (apply_hot, 400_000),
    "apply_parallelism": (apply_parallelism, 100_000),
    "batch_50_tables": (batch_50_tables, 100),
    "batch_1000_tables": (batch_1000_tables, 2_000),
}
"""Figure -> how it is measured, and how many changes its backlog has unless ``--changes`` says so."""


def main() -> None:
    processes.tether()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("figures", nargs="*", default=list(FIGURES), metavar="figure", help=", ".join(FIGURES))
    parser.add_argument("--changes", type=int, help="changes in the backlog")
    parser.add_argument("--rows", type=int, default=ap.TABLE_ROWS, help="rows a table before the backlog")
    parser.add_argument(
        "--batch", type=int, default=0, help="most changes in a batch, if not the default of capture.batch"
    )
    parser.add_argument("--degrees", type=int, nargs="+", default=[1, 2, 4, 8], help="of apply_parallelism")
    parser.add_argument("--local", action="store_true", help="work units in this process, without Spark")
    parser.add_argument("--profile", action="store_true", help="print where this process spends its time")
    given = parser.parse_args()
    unknown = set(given.figures) - set(FIGURES)
    if unknown:
        parser.error(f"there is no figure {', '.join(sorted(unknown))}; there are {', '.join(FIGURES)}")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    compile_kernels()
    profiler = cProfile.Profile() if given.profile else None
    with ap.servers(spark=not given.local) as on:
        on.batch, on.degrees = given.batch, tuple(given.degrees)
        for name in given.figures:
            measure, changes = FIGURES[name]
            if profiler:
                profiler.enable()
            measure(on, given.changes or changes, given.rows)
            if profiler:
                profiler.disable()
    if profiler:
        pstats.Stats(profiler).sort_stats("cumulative").print_stats(50)
    save(RESULTS, LINES)
    print(f"written to {RESULTS.relative_to(_ROOT)}")


if __name__ == "__main__":
    main()
