"""What a channel costs: the marks of loads, seconds until two sites that both take writes are equal, and rows that are
sent back.

Run by ``make bench-channel`` (``python tests/bench/bench_channel.py --help``).
Overhead: the same pipeline in a channel and in none, on the same servers, in turns that change places; the ratio is the
median of the pairs'. Convergence: the demo stack with a channel (``time_intersection``), both sites changed at 500
changes/s, the same rows too. Conflicts: how many rows a channel sends back to where they were written, with
``loop_back`` and with ``time_intersection``, where it exists. Prints a line a measurement, writes those measured to
tests/bench/results/channel.json; asserts nothing but that both sites are equal.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, get_args

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT / "include"), str(_ROOT)]

import pyarrow.compute as pc  # noqa: E402
import structlog  # noqa: E402

from devstack import processes  # noqa: E402
from devstack.demo.shop import TABLES  # noqa: E402
from devstack.demo.show import checksums, wait_until_enabled  # noqa: E402
from devstack.demo.two_way import PIPELINES  # noqa: E402
from devstack.demo.workload import Workload, seed  # noqa: E402
from devstack.development import SOURCE_SCHEMA, Stack  # noqa: E402
from devstack.mysql import MySQLServer  # noqa: E402
from devstack.zookeeper import ZooKeeperServer  # noqa: E402
from sluice.config.channel import ChannelConfig  # noqa: E402
from sluice.flows.capture.drain import drain, head_of  # noqa: E402
from sluice.flows.load.ack import ack  # noqa: E402
from sluice.flows.load.load import load  # noqa: E402
from sluice.flows.runtime import Runtime  # noqa: E402
from sluice.flows.transform.merge import merge  # noqa: E402
from sluice.segments.changeset import read_changeset, read_changeset_file  # noqa: E402
from sluice.sources.mysql.reader.warm_up import compile_kernels  # noqa: E402
from tests.bench import applying as ap  # noqa: E402
from tests.bench.demo_stack import stack_of_its_own, wait  # noqa: E402
from tests.support.pipelines.channels import Network  # noqa: E402

RESULTS = _ROOT / "tests/bench/results/channel.json"
ROWS = 50_000
SMALL_BATCH = 50
SMALL_BATCHES = 60
RATE = 500
"""Changes a second at each site."""
CONFLICTING = 0.01
"""Share of the writes that fall on rows of both sites."""
SHARED_ROWS = 50
OWN_ROWS = 10_000
FIGURES = ("overhead", "convergence", "conflicts")
LINES: list[dict[str, Any]] = []


def report(
    measure: str,
    workload: str,
    value: float,
    unit: str,
    baseline: str = "",
    baseline_value: float | None = None,
    ratio: float | None = None,
    wanted: str = "",
    **more: Any,
) -> None:
    """One figure."""
    LINES.append({
        "measure": measure, "workload": workload, "value": round(value, 4), "unit": unit, "baseline": baseline or None,
        "baseline_value": round(baseline_value, 4) if baseline_value is not None else None,
        "ratio": round(ratio, 4) if ratio is not None else None, "wanted": wanted or None, "cores": ap.cores(), **more,
    })  # fmt: skip
    beside = f"  {baseline}: {baseline_value:,.2f}  ratio {ratio:.3f}" if baseline_value and ratio else ""
    print(f"{measure:<30} {value:>12,.3f} {unit:<10}{beside}  wanted {wanted}   ({workload})", flush=True)


# -- overhead ----------------------------------------------------------------------------------------------------------


@contextmanager
def two_servers() -> Iterator[tuple[Path, dict[str, MySQLServer], ZooKeeperServer]]:
    """Two MySQL servers and a ZooKeeper."""
    with ExitStack() as stack:
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-bench-", ignore_cleanup_errors=True))
        )
        servers = {
            name: stack.enter_context(MySQLServer(folder / name, server_id=950 + number, options=ap.OPTIONS))
            for number, name in enumerate(("a", "b"))
        }
        yield folder, servers, stack.enter_context(ZooKeeperServer(folder / "zookeeper"))


def site_pair(
    folder: Path, servers: dict[str, MySQLServer], zookeeper: ZooKeeperServer, schema: str, *, channel: str | None
) -> Network:
    """Two sites with a schema, and pipelines between them: in a channel with these lines, or from a to b alone."""
    made = Network(folder / schema, servers, zookeeper, schema, max_wait="2s")  # a backlog is one batch
    made.folder.mkdir()
    for server in servers.values():
        server.execute(f"CREATE DATABASE {schema}")
    used(made)
    names = [made.pipe("a", "b", target_extra=f"    parallelism: {ap.WORKERS}")]
    if channel is not None:
        names.append(made.pipe("b", "a"))
        made.channel(*names, extra=channel)
    return made


def used(made: Network) -> None:
    """From here on files of pipelines and channels are those of ``made``."""
    os.environ["SLUICE_PIPELINES"], os.environ["SLUICE_CHANNELS"] = str(made.pipelines), str(made.channels)


def delivered(made: Network, name: str = "a_to_b") -> tuple[float, float]:
    """Return what :func:`deliver` returns, of a loop that ends with it."""
    with loop(made, name) as runtime:
        return deliver(made, runtime)


@contextmanager
def loop(made: Network, name: str = "a_to_b") -> Iterator[Runtime]:
    """What a run's process keeps while it makes one batch after the other."""
    used(made)
    runtime = made.runtime(name)
    with runtime.state(caches_reads=True):
        yield runtime


def deliver(made: Network, runtime: Runtime) -> tuple[float, float]:
    """Seconds of capture, and of merge, load and acknowledgement, of all there is in the log."""
    used(made)
    until = head_of(runtime)
    capture_s = apply_s = 0.0
    while True:
        began = time.perf_counter()
        outcome = drain(runtime, claim=f"bench:1:{time.time_ns()}", idle_wait_s=0.05, until=until)
        capture_s += time.perf_counter() - began
        if outcome.batch is None:
            if until.follows(outcome.position):  # so far there were only changes of the other pair
                continue
            return capture_s, apply_s
        began = time.perf_counter()
        merge(runtime, outcome.batch)
        load(runtime, "b", outcome.batch)
        ack(runtime, "b", outcome.batch)
        apply_s += time.perf_counter() - began


def overhead(rounds: int, changes: int) -> None:
    """The same work with marks and without, in turns."""
    with two_servers() as (folder, servers, zookeeper):
        pairs = {
            kind: site_pair(folder, servers, zookeeper, kind, channel=channel)
            for kind, channel in (("plain", None), ("marked", ""))
        }
        for kind, made in pairs.items():
            used(made)
            made.once()
            [table] = ap.sbtest(servers["a"], servers["b"], kind, tables=1, rows=ROWS)
            delivered(made)
            ap.procedure(servers["a"], kind, "oltp", "work", table, ROWS)
            delivered(made)
        large = _in_turns(pairs, servers["a"], f"CALL work({changes // 4})", rounds)
        update = f"UPDATE sbtest1 SET k = k + 1 WHERE id BETWEEN 1 AND {SMALL_BATCH}"
        small = _in_turns(pairs, servers["a"], update, SMALL_BATCHES)
        for kind in pairs:
            sums = {server.execute(f"CHECKSUM TABLE {kind}.sbtest1")[0][1] for server in servers.values()}
            assert len(sums) == 1, f"{kind}.sbtest1 differs"
    words = f"{changes:,} changes of sysbench's oltp_write_only, {rounds} pairs"
    _report_pairs("channel_overhead_capture", words, changes, large, 0)
    _report_pairs("channel_overhead_apply", words, changes, large, 1)
    words = f"batches of {SMALL_BATCH} changes, {SMALL_BATCHES} pairs"
    _report_pairs("channel_overhead_apply_small", words, SMALL_BATCH, small, 1)


def _in_turns(
    pairs: dict[str, Network], source: MySQLServer, statement: str, rounds: int
) -> dict[str, list[tuple[float, float]]]:
    """Seconds of both steps in each round, by kind; who is first changes from round to round.

    The first round is not counted.
    """
    found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in pairs}
    with ExitStack() as stack:
        loops = {kind: stack.enter_context(loop(made)) for kind, made in pairs.items()}
        for number in range(rounds + 1):
            order = list(pairs)[:: 1 if number % 2 else -1]
            for kind in order:
                source.execute(statement, database=kind)
            for kind in order:
                took = deliver(pairs[kind], loops[kind])
                if number:
                    found[kind].append(took)
    return found


def _report_pairs(
    measure: str, words: str, changes: int, found: dict[str, list[tuple[float, float]]], step: int
) -> None:
    marked, plain = ([changes / times[step] for times in found[kind]] for kind in ("marked", "plain"))
    ratios = [mine / theirs for mine, theirs in zip(marked, plain, strict=True)]
    report(
        measure, words, statistics.median(marked), "changes/s", "without marks, same run, in turns",
        statistics.median(plain),
        statistics.median(ratios), "at least 0.95", ratio_spread=_spread(ratios),
    )  # fmt: skip


def _spread(values: Sequence[float]) -> list[float]:
    """First and third quartile."""
    if len(values) < 2:
        return [round(value, 4) for value in values]
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return [round(first, 4), round(third, 4)]


# -- convergence -------------------------------------------------------------------------------------------------------


def convergence(rounds: int, seconds: float) -> None:
    """From the last write until both sites are equal, through the real DAGs and Spark."""
    took = []
    with stack_of_its_own(channel=True) as stack:
        for pipeline in PIPELINES:
            stack.api.wait_for_dag(f"sync__{pipeline}")
            wait_until_enabled(pipeline, 120)
        seed(stack.source.connect, SOURCE_SCHEMA, customers=2000, products=1000, orders=4000)
        wait(lambda: _equal(stack), 120, "the seeded rows to arrive")
        for number in range(rounds + 1):
            _write_both(stack, seconds, number)
            ended = time.monotonic()
            wait(lambda: _equal(stack), 120, "both sites to be equal", every_s=0.05)
            if number:  # Spark's workers have started
                took.append(time.monotonic() - ended)
                print(f"   equal after {took[-1]:.2f} s", flush=True)
    words = (
        f"{RATE} changes/s of the shop at each site for {seconds:.0f} s, the same rows too, time_intersection, "
        f"demo stack, {rounds} rounds"
    )
    p50, p95 = (statistics.quantiles(took, n=100, method="inclusive")[at] for at in (49, 94))
    report("channel_convergence_p50", words, p50, "s")
    report("channel_convergence_p95", words, p95, "s", wanted="at most 5 s")


def _write_both(stack: Stack, seconds: float, number: int) -> None:
    workloads = [
        Workload(
            server.connect, SOURCE_SCHEMA, connections=2, changes_per_s=RATE, seconds=seconds,
            number=1 + 2 * number + site, swaps=False
        ).start()
        for site, server in enumerate((stack.source, stack.target))
    ]  # fmt: skip
    for workload in workloads:
        workload.wait()


def _equal(stack: Stack) -> bool:
    """True if no table differs. The first one that does ends the look: what it measures needs the processor, too."""
    ends = (stack.source, stack.target)
    return all(len({checksums(end, SOURCE_SCHEMA, [table])[table] for end in ends}) == 1 for table in TABLES)


# -- conflicts ---------------------------------------------------------------------------------------------------------


def conflicts(seconds: float) -> None:
    """How many rows a channel sends back to where they were written, with both consistencies."""
    known = get_args(ChannelConfig.model_fields["consistency"].annotation)
    looped = _sent_back("loop_back", seconds)
    words = (
        f"{RATE} changes/s at each site for {seconds:.0f} s, {CONFLICTING:.0%} of them on {SHARED_ROWS} rows of both"
    )
    report("channel_conflicts_loop_back", words, looped, "of the writes")
    if "time_intersection" not in known:
        print("channel_conflicts: left out, there is no consistency: time_intersection", flush=True)
        return
    repaired = _sent_back("time_intersection", seconds)
    ratio = looped / repaired if repaired else None
    report(
        "channel_conflicts", words, repaired, "of the writes", "consistency: loop_back, same run", looped, ratio,
        "at least 20x"
    )  # fmt: skip


def _sent_back(consistency: str, seconds: float) -> float:
    """Rows last written at the main site that the other pipeline loads there again, as a share of all that applications
    wrote.
    """
    with two_servers() as (folder, servers, zookeeper):
        made = site_pair(folder, servers, zookeeper, consistency, channel=f"consistency: {consistency}")
        made.everywhere("CREATE TABLE items (id INT PRIMARY KEY, site CHAR(1) NOT NULL, n INT NOT NULL DEFAULT 0)")
        made.once()
        count = SHARED_ROWS + 2 * OWN_ROWS
        servers["a"].execute(
            "SET SESSION cte_max_recursion_depth = 1000000",
            f"INSERT INTO {consistency}.items (id, site) WITH RECURSIVE s AS (SELECT 0 n UNION ALL SELECT n + 1 FROM "
            f"s WHERE n < {count - 1}) SELECT n, 'a' FROM s",
        )
        made.settle()
        before = _loaded_again(made)
        written: dict[str, int] = {}

        def write(site: str, first: int) -> None:
            written[site] = _write(made, site, first, seconds)

        writers = [
            threading.Thread(target=write, args=(site, SHARED_ROWS + number * OWN_ROWS))
            for number, site in enumerate(servers)
        ]
        with made.running():
            for writer in writers:
                writer.start()
            for writer in writers:
                writer.join()
        made.settle()
        made.assert_equal("items")
        return (_loaded_again(made) - before) / sum(written.values())


def _write(made: Network, site: str, first: int, seconds: float) -> int:
    """Rows of the site's own, and now and then one of both. Returns how many."""
    choose, count, began = random.Random(site), 0, time.monotonic()
    with made.servers[site].connect(made.schema, autocommit=True) as connection, connection.cursor() as cursor:
        while (elapsed := time.monotonic() - began) < seconds:
            shared = choose.random() < CONFLICTING
            key = choose.randrange(SHARED_ROWS) if shared else first + choose.randrange(OWN_ROWS)
            count += cursor.execute("UPDATE items SET site = %s, n = %s WHERE id = %s", (site, count + 1, key))
            time.sleep(max(count / RATE - elapsed, 0))
    return count


def _loaded_again(made: Network) -> int:
    """Rows of site a in all that b_to_a has loaded."""
    runtime, total = made.runtime("b_to_a"), 0
    with runtime.state() as state:
        paths = [state.batches.require(number).changeset for number in state.batches.numbers()]
    for path in filter(None, paths):
        for table in read_changeset(runtime.store, path).manifest.tables:
            for file in table.files:
                sites = read_changeset_file(runtime.store, file)["site"]
                total += pc.sum(pc.equal(sites, "a")).as_py() or 0
    return total


def main() -> None:
    processes.tether()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=FIGURES, action="append", help="default: all")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--changes", type=int, default=100_000, help="overhead: of a round")
    parser.add_argument(
        "--seconds",
        type=float,
        default=6.0,
        help="of writing, in each round of convergence; five times as long for conflicts",
    )
    asked = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    compile_kernels()
    figures = asked.only or FIGURES
    if "overhead" in figures:
        overhead(max(asked.rounds // 3, 1), asked.changes)
    if "conflicts" in figures:
        conflicts(asked.seconds * 5)
    if "convergence" in figures:
        convergence(asked.rounds, asked.seconds)
    _save()


def _save() -> None:
    """A figure measured again replaces its old line."""
    old = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else []
    lines = {line["measure"]: line for line in [*old, *LINES]}
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(list(lines.values()), indent=1) + "\n", encoding="utf-8")
    print(f"written to {RESULTS.relative_to(_ROOT)}")


if __name__ == "__main__":
    main()
