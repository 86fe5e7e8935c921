"""The demonstration on a stack that was just started: enable, change, wait, compare, print."""

from __future__ import annotations

import contextlib
import os
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pymysql

from devstack.demo import shop
from devstack.demo.workload import Workload, seed
from devstack.development import SOURCE_SCHEMA, TARGET_SCHEMA, Stack
from devstack.mysql import MySQLServer
from devstack.processes import ServerFailed
from sluice.errors import SluiceError

if TYPE_CHECKING:
    from devstack.kinds import Kind
    from devstack.progress import Progress
    from sluice.operations.status import Status

_T = TypeVar("_T")

PIPELINE = "shop_to_reporting"
HEARTBEAT = """CREATE TABLE IF NOT EXISTS `{schema}`.heartbeat (
  id INT UNSIGNED NOT NULL, written_us BIGINT UNSIGNED NOT NULL, PRIMARY KEY (id)
) ENGINE=InnoDB"""
TABLES = (*shop.TABLES, "heartbeat")


@dataclass
class LagMeter:
    """Lag as a reader sees it: a row written at the source, and when it is first seen at the target.

    A row every ``beat_s``, a look every ``look_s``; milliseconds. ``schema``: where the table is at the target;
    ``table``: its name.
    """

    source: MySQLServer
    target: MySQLServer
    beat_s: float = 0.5
    look_s: float = 0.05
    schema: str = TARGET_SCHEMA
    table: str = "heartbeat"
    lags_ms: list[float] = field(default_factory=list)
    _enough: threading.Event = field(default_factory=threading.Event)
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)
    _written: int = 0
    _before: int = 0
    """The last row of an earlier meter."""

    def __enter__(self) -> LagMeter:
        with contextlib.closing(self.source.connect(SOURCE_SCHEMA)) as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT COALESCE(MAX(id), 0) FROM {self.table}")  # noqa: S608 - a fixed name
            self._before = int((cursor.fetchone() or (0,))[0])
        for work in (self._write, self._watch):
            thread = threading.Thread(target=work, daemon=True)
            self._threads.append(thread)
            thread.start()
        return self

    def write_no_more(self) -> None:
        """Stop writing rows; those on their way are still watched."""
        self._enough.set()
        self._threads[0].join(5)

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self._stop.set()
        for thread in self._threads:
            thread.join(5)

    @property
    def complete(self) -> bool:
        """Every row that was written has been seen."""
        return len(self.lags_ms) >= self._written

    def percentile_ms(self, share: float) -> float | None:
        """Return the lag in milliseconds that this share (0 to 1) of the rows did not exceed; None without rows."""
        if len(self.lags_ms) < 2:
            return self.lags_ms[0] if self.lags_ms else None
        return statistics.quantiles(self.lags_ms, n=100, method="inclusive")[round(share * 100) - 1]

    def _write(self) -> None:
        with (
            contextlib.suppress(pymysql.MySQLError),
            contextlib.closing(self.source.connect(SOURCE_SCHEMA)) as connection,
        ):
            while not self._enough.wait(self.beat_s):
                self._written += 1
                row = (self._before + self._written, int(time.time() * 1e6))
                with connection.cursor() as cursor:
                    cursor.execute(f"INSERT INTO {self.table} (id, written_us) VALUES (%s, %s)", row)  # noqa: S608

    def _watch(self) -> None:
        seen = self._before
        with (
            contextlib.suppress(pymysql.MySQLError),
            contextlib.closing(self.target.connect(self.schema)) as connection,
        ):
            while not self._stop.wait(self.look_s):
                with connection.cursor() as cursor:
                    query = f"SELECT id, written_us FROM {self.table} WHERE id > %s ORDER BY id"  # noqa: S608
                    cursor.execute(query, (seen,))
                    now_us = time.time() * 1e6
                    for number, written_us in cursor.fetchall():
                        seen = number
                        self.lags_ms.append((now_us - written_us) / 1000)


def show(stack: Stack, progress: Progress, *, seconds: int, patience_s: float = 180.0) -> int:
    """Run the demonstration; 0 when both sides are equal at the end. The stack is left running."""
    from devstack.progress import DAG, write

    os.environ.update(stack.environment())
    for server, schema in ((stack.source, SOURCE_SCHEMA), (stack.target, TARGET_SCHEMA)):
        server.execute(HEARTBEAT.format(schema=schema))
    stack.api.wait_for_dag(DAG)
    progress(f"the DAG {DAG} is there")
    wait_until_enabled(PIPELINE, patience_s)
    progress("the pipeline is enabled; its position is the end of the source's log")
    ready_s = progress.seconds
    if stack.kind:
        made = _make_missing()
        progress(f"made what is missing at {stack.kind.name}, as `sluice check --apply` does: {made} statements")
    tally = seed(stack.source.connect, SOURCE_SCHEMA)
    progress(f"seeded the shop: {tally.inserts} rows in {tally.transactions} transactions")
    pace = stack.kind.changes_per_s if stack.kind else 300
    with LagMeter(stack.source, stack.target) as meter:
        workload = Workload(
            stack.source.connect,
            SOURCE_SCHEMA,
            connections=2,
            changes_per_s=pace,
            seconds=seconds,
            number=time.time_ns() // 10**9,
        ).start()
        progress(f"changing the shop for {seconds} s: inserts, updates, key changes, deletes, about {pace} a second")
        try:
            _watch(workload, stack, progress)
            done = workload.wait()
        finally:
            workload.stop()
        meter.write_no_more()
        caught_up = _arrives(
            partial(checksums, stack.target, TARGET_SCHEMA),
            partial(checksums, stack.source, SOURCE_SCHEMA),
            patience_s,
            lambda _: None,
        )
    tally.add(done)
    if caught_up and (kind := stack.kind):
        wanted = _counts(stack)

        def tell(now: dict[str, int]) -> None:
            progress(f"{sum(now.values())} of {sum(wanted.values())} rows at {kind.name}")

        look = partial(kind.rows, stack.other, TARGET_SCHEMA, TABLES)
        caught_up = _arrives(look, lambda: wanted, patience_s, tell)
    progress("the target has caught up" if caught_up else f"the target has NOT caught up within {patience_s:.0f} s")
    return _report(stack, progress, tally.changes, meter, caught_up=caught_up, ready_s=ready_s, write=write)


def read_status(pipeline: str = PIPELINE) -> Status | None:
    """Return the pipeline's status, by the flow that the command line uses; None while it cannot be read."""
    from sluice.config.loading import find_pipeline
    from sluice.flows.runtime import Runtime, pipelines_folder
    from sluice.operations.status import status

    with contextlib.suppress(SluiceError):
        return status(Runtime.build(find_pipeline(pipeline, pipelines_folder())))
    return None


def wait_until_enabled(pipeline: str, patience_s: float) -> None:
    """Wait until a capture has recorded where it begins. Raises ServerFailed."""
    end = time.monotonic() + patience_s
    last: Status | None = None
    while time.monotonic() < end:
        last = read_status(pipeline)
        if last is not None and last.captured is not None:
            return
        time.sleep(0.3)
    why = "; ".join(last.errors) if last and last.errors else "no drain has recorded a position"
    raise ServerFailed(
        f"{pipeline} did not begin within {patience_s:.0f} s: {why}", hint="look at the drain task's log in the UI"
    )


def _watch(workload: Workload, stack: Stack, progress: Progress) -> None:
    """Print a progress line every ten seconds while the workload runs."""
    next_line = time.monotonic() + 10
    while workload.running:
        time.sleep(0.2)
        if time.monotonic() >= next_line:
            next_line += 10
            rows = sum(shop.counts(stack.target, TARGET_SCHEMA).values())
            progress(f"{workload.tally.changes} changes written, {rows} rows at the target")


def _arrives(look: Callable[[], _T], wanted: Callable[[], _T], patience_s: float, tell: Callable[[_T], None]) -> bool:
    """Wait until a target has what is wanted; the patience begins anew with each change. ``tell``: each ten seconds."""
    end, next_line, last = time.monotonic() + patience_s, time.monotonic() + 10, None
    while time.monotonic() < end:
        now = look()
        if now == wanted():
            return True
        if now != last:
            last, end = now, time.monotonic() + patience_s
        if time.monotonic() >= next_line:
            next_line += 10
            tell(now)
        time.sleep(0.3)
    return False


def _make_missing() -> int:
    """Create the tables or topics of the other kind of target; return how many statements that took."""
    from sluice.config.loading import find_pipeline
    from sluice.flows.runtime import Runtime, pipelines_folder
    from sluice.operations.check import apply_missing, check

    runtime = Runtime.build(find_pipeline(PIPELINE, pipelines_folder()))
    statements = check(runtime).statements
    apply_missing(runtime, statements)
    return len(statements)


def _counts(stack: Stack) -> dict[str, int]:
    """Return the number of rows of each table of the demo at the MySQL target."""
    beats = stack.target.execute(f"SELECT COUNT(*) FROM `{TARGET_SCHEMA}`.heartbeat")  # noqa: S608 - a fixed name
    return shop.counts(stack.target, TARGET_SCHEMA) | {"heartbeat": int(beats[0][0])}


def settled(pipeline: str = PIPELINE, patience_s: float = 30.0) -> Status | None:
    """Return the status once the last batch is acknowledged, which is a task later than it is visible."""
    end = time.monotonic() + patience_s
    while True:
        state = read_status(pipeline)
        if (state is not None and state.captured is not None and not state.in_flight) or time.monotonic() > end:
            return state
        time.sleep(0.3)


def checksums(server: MySQLServer, schema: str, tables: Sequence[str] = TABLES) -> dict[str, int | None]:
    """Return the ``CHECKSUM TABLE`` of the demo's tables."""
    rows = server.execute("CHECKSUM TABLE " + ", ".join(f"`{schema}`.`{table}`" for table in tables))
    return {name.partition(".")[2]: value for name, value in rows}


def _report(
    stack: Stack, progress: Progress, changes: int, meter: LagMeter, *, caught_up: bool, ready_s: float, write: Any
) -> int:
    state = settled() if caught_up else read_status()
    left, right = checksums(stack.source, SOURCE_SCHEMA), checksums(stack.target, TARGET_SCHEMA)
    rows = _counts(stack)
    write()
    write(f"{'table':<14}{'rows':>8}{'checksum at source':>22}{'at target':>14}")
    for table in TABLES:
        verdict = "equal" if left[table] == right[table] else "DIFFERENT"
        write(f"{table:<14}{rows[table]:>8}{left[table]!s:>22}{right[table]!s:>14}  {verdict}")
    if stack.kind:
        _show_other(stack, stack.kind, rows, write)
    write()
    if state is not None and state.targets:
        target = state.targets[0]
        write(f"position     {target.position}")
        write(f"batches      {target.batch}")
    p50, p95 = meter.percentile_ms(0.5), meter.percentile_ms(0.95)
    if p50 is not None and p95 is not None:
        write(
            f"lag          p50 {p50 / 1000:.2f} s, p95 {p95 / 1000:.2f} s ({len(meter.lags_ms)} heartbeats, source "
            "write to visible at target)"
        )
    write(f"changes      {changes}")
    write(f"time         ready after {ready_s:.1f} s, all after {progress.seconds:.1f} s")
    write(f"Airflow UI   {stack.api.address}   login: admin / {stack.settings.keys['admin_password']}")
    write(
        "subscribe    curl -sN "
        f"'{stack.subscriptions.address}/v1/pipelines/{PIPELINE}/changes?tables={TARGET_SCHEMA}.orders&follow=true'"
    )
    write("The stack is running; make demo-down stops it.")
    if not caught_up:
        write("The two sides differ: look at the task logs in the UI, and at sluice status shop_to_reporting.")
        return 1
    return 0


def _show_other(stack: Stack, kind: Kind, rows: dict[str, int], write: Any) -> None:
    """Print the number of rows at the other target, and a few of them."""
    other = stack.other
    write()
    write(f"{'table':<14}{'rows':>8}  at {kind.name}, {getattr(other, 'port', other)}")
    for table, count in kind.rows(other, TARGET_SCHEMA, TABLES).items():
        write(f"{table:<14}{count:>8}  {'equal' if count == rows[table] else 'DIFFERENT'}")
    for line in kind.sample(other, TARGET_SCHEMA):
        write(line)
