"""The demonstration of a channel: two servers that both take writes, of the same rows too, and are equal at the end."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from devstack.demo import shop
from devstack.demo.show import HEARTBEAT, LagMeter, checksums, settled, wait_until_enabled
from devstack.demo.workload import Tally, Workload, seed
from devstack.development import SOURCE, SOURCE_SCHEMA, TARGET, Stack
from devstack.mysql import MySQLServer
from devstack.progress import write

if TYPE_CHECKING:
    from devstack.progress import Progress

PIPELINES = ("a_to_b", "b_to_a")
CHANNEL = "a_b"
BEATS = {"a": "heartbeat", "b": "heartbeat_b"}
"""Site -> the table of its heartbeat."""
TABLES = (*shop.TABLES, *BEATS.values())
CHANGES_A_SECOND = 150
"""The load of each site."""
_STILL_S = 3.0


def show(stack: Stack, progress: Progress, *, seconds: int, patience_s: float = 180.0) -> int:
    """Run the demonstration; 0 when both sites are equal at the end and their logs stand still.

    The stack is left running.
    """
    os.environ.update(stack.environment())
    sites = {"a": stack.source, "b": stack.target}
    progress(f"site a is {SOURCE}, port {stack.source.port}; site b is {TARGET}, port {stack.target.port}")
    for server in (stack.target, stack.source):
        server.execute(
            HEARTBEAT.format(schema=SOURCE_SCHEMA),
            f"CREATE TABLE IF NOT EXISTS `{SOURCE_SCHEMA}`.{BEATS['b']} LIKE `{SOURCE_SCHEMA}`.{BEATS['a']}",
        )
    for pipeline in PIPELINES:
        stack.api.wait_for_dag(f"sync__{pipeline}")
        wait_until_enabled(pipeline, patience_s)
    progress(f"both pipelines of the channel {CHANNEL} are enabled; the main site is a")
    ready_s = progress.seconds
    seeded = seed(stack.source.connect, SOURCE_SCHEMA)
    arrived = _until(lambda: _equal(sites), patience_s)
    progress(f"seeded the shop at a: {seeded.inserts} rows, {'and they are at b' if arrived else 'which are NOT at b'}")
    with (
        LagMeter(stack.source, stack.target, schema=SOURCE_SCHEMA, table=BEATS["a"]) as there,
        LagMeter(stack.target, stack.source, schema=SOURCE_SCHEMA, table=BEATS["b"]) as back,
    ):
        tallies = _change(sites, seconds, progress)
        there.write_no_more()
        back.write_no_more()
        equal = _until(lambda: _equal(sites), patience_s)
    progress("both sites are equal" if equal else f"the sites are NOT equal after {patience_s:.0f} s")
    still = equal and _until(lambda: _stands_still(sites), patience_s)
    return _report(stack, progress, sites, tallies, {"a to b": there, "b to a": back}, ready_s, still=still)


def _change(sites: dict[str, MySQLServer], seconds: int, progress: Progress) -> dict[str, Tally]:
    """Change the shop at both sites at the same time: each site's own rows, and rows that the other site changes,
    too.
    """
    first = time.time_ns() // 10**9
    workloads = {
        name: Workload(
            server.connect,
            SOURCE_SCHEMA,
            connections=2,
            changes_per_s=CHANGES_A_SECOND,
            seconds=seconds,
            number=first + number,
            swaps=False,
        )
        for number, (name, server) in enumerate(sites.items())
    }
    progress(
        f"changing the shop at both sites for {seconds} s, about {CHANGES_A_SECOND} a second at each, the same rows too"
    )
    try:
        for workload in workloads.values():
            workload.start()
        next_line = time.monotonic() + 10
        while any(workload.running for workload in workloads.values()):
            time.sleep(0.2)
            if time.monotonic() >= next_line:
                next_line += 10
                progress(
                    ", ".join(
                        f"{workload.tally.changes} changes written at {name}" for name, workload in workloads.items()
                    )
                )
        return {name: workload.wait() for name, workload in workloads.items()}
    finally:
        for workload in workloads.values():
            workload.stop()


def _equal(sites: dict[str, MySQLServer]) -> bool:
    left, right = (checksums(server, SOURCE_SCHEMA, TABLES) for server in sites.values())
    return left == right


def _stands_still(sites: dict[str, MySQLServer]) -> bool:
    """Return True if nothing is written to either log for some seconds: what a site got did not start another round."""
    before = [_head(server) for server in sites.values()]
    time.sleep(_STILL_S)
    return before == [_head(server) for server in sites.values()]


def _head(server: MySQLServer) -> tuple[str, int]:
    """Return where the server's log ends."""
    file, size_bytes, *_ = server.execute("SHOW BINARY LOGS")[-1]
    return str(file), int(size_bytes)


def _until(condition: Callable[[], bool], patience_s: float) -> bool:
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.3)
    return False


def _report(
    stack: Stack,
    progress: Progress,
    sites: dict[str, MySQLServer],
    tallies: dict[str, Tally],
    meters: dict[str, LagMeter],
    ready_s: float,
    *,
    still: bool,
) -> int:
    left, right = (checksums(server, SOURCE_SCHEMA, TABLES) for server in sites.values())
    write()
    write(f"{'table':<14}{'rows':>8}{'checksum at a':>16}{'at b':>14}")
    for table in TABLES:
        verdict = "equal" if left[table] == right[table] else "DIFFERENT"
        rows = stack.source.execute(f"SELECT COUNT(*) FROM `{SOURCE_SCHEMA}`.`{table}`")[0][0]  # noqa: S608 - fixed names
        write(f"{table:<14}{rows:>8}{left[table]!s:>16}{right[table]!s:>14}  {verdict}")
    write()
    for name, tally in tallies.items():
        write(f"changes at {name}  {tally.changes} in {tally.transactions} transactions")
    for way, meter in meters.items():
        p50, p95 = meter.percentile_ms(0.5), meter.percentile_ms(0.95)
        if p50 is not None and p95 is not None:
            write(f"lag {way}   p50 {p50 / 1000:.2f} s, p95 {p95 / 1000:.2f} s ({len(meter.lags_ms)} heartbeats)")
    for pipeline in PIPELINES:
        state = settled(pipeline)
        if state is not None and state.targets:
            write(f"{pipeline}       {state.targets[0].batch} batches, position {state.targets[0].position}")
        if state is not None and state.conflicts is not None:
            write(
                f"conflicts    {state.conflicts}: rows that both changed at the same time; a won (sluice channel "
                f"conflicts {CHANNEL})"
            )
    write("both logs     stand still: nothing goes round" if still else "the logs      do NOT stand still")
    write(f"time         ready after {ready_s:.1f} s, all after {progress.seconds:.1f} s")
    write(f"Airflow UI   {stack.api.address}   login: admin / {stack.settings.keys['admin_password']}")
    write("Write to either site yourself: `sluice channel show a_b`, `sluice status`; make demo-down stops the stack.")
    if left != right or not still:
        write("The sites differ, or do not come to rest: look at the task logs in the UI, and at sluice status.")
        return 1
    return 0
