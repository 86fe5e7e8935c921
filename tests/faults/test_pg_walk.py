"""A seeded random walk over faults of a PostgreSQL source, under load: its processes and the server itself are killed,
the slot is dropped, a standby is promoted, definitions change.

After each the target is equal to the source by the servers' own answers, acknowledgements came one by one, and every
change of the log is in the segments once and in order. With an odd seed the server streams transactions in progress.
``SLUICE_FAULTS``, ``SLUICE_FAULT_SEED`` and
``SLUICE_FAULT_ONLY`` are those of :mod:`tests.faults.test_walk`.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import psycopg
import pytest

from devstack import processes
from devstack.postgresql import PostgreSQLServer
from devstack.processes import ServerFailed
from sluice.operations import control
from tests.faults.pg_world import MEMBERS, OPTIONS, SCHEMA, SESSION_S, PgWorld
from tests.faults.pg_writers import large_transaction
from tests.faults.walked import crash, kill_crew
from tests.support.servers.pg_standby import FOLLOWER, standby_of

STEPS = int(os.environ.get("SLUICE_FAULTS", "12"))
SEED = int(os.environ.get("SLUICE_FAULT_SEED") or random.SystemRandom().randrange(10**6))
ONLY = os.environ.get("SLUICE_FAULT_ONLY", "")
LARGE_ROWS = 60_000
STANDBY = {**OPTIONS, "sync_replication_slots": "on"}
"""The standby takes slots over by itself: what it holds back meanwhile lets it get there under load."""

pytestmark = [pytest.mark.faults, pytest.mark.full, pytest.mark.timeout(600 + 120 * STEPS)]


# -- the connection and the processes ----------------------------------------------------------------------------------
def end_walsender(world: PgWorld, choose: random.Random) -> str:
    count = 0
    for _ in range(choose.randint(1, 4)):
        [(ended,)] = world.source.execute(
            "SELECT count(pg_terminate_backend(active_pid)) FROM pg_replication_slots WHERE active_pid IS NOT NULL"
        )
        count += ended
        time.sleep(choose.uniform(0, 0.6))
    return f"{count} connections"


def kill_task(world: PgWorld, choose: random.Random) -> str:
    kind = choose.choice(("drain", "drain", "load", "ack"))
    crew, process = world.catch(choose, kind)
    time.sleep(choose.choice((0.0, 0.005, 0.05, 0.2)))
    with contextlib.suppress(psutil.Error):
        process.kill()
    return f"{kind} of {crew.name}"


def pause_capture(world: PgWorld, choose: random.Random) -> str:
    """Longer than its session lives: it still has the slot, and another one wants it."""
    crew, process = world.catch(choose, "drain")
    time.sleep(choose.choice((0.0, 0.05, 0.2)))
    for_s = SESSION_S * choose.uniform(1.2, 1.7)
    with contextlib.suppress(psutil.Error):
        process.suspend()
        time.sleep(for_s)
        process.resume()
    return f"of {crew.name} for {for_s:.1f} s"


# -- the servers -------------------------------------------------------------------------------------------------------
def crash_in_recovery(world: PgWorld, choose: random.Random) -> str:
    """The server is killed again while it recovers from being killed, and then comes back."""
    world.source.kill()
    times = choose.randint(1, 3)
    for _ in range(times):
        starting = threading.Thread(target=_start, args=(world.source,))
        starting.start()
        time.sleep(choose.uniform(0.02, 0.5))
        with contextlib.suppress(psutil.Error):
            if (handle := world.source.handle) is not None:
                processes.kill(handle)
        starting.join()
        world.source.kill()
    world.source.start()
    return f"{times} times"


def _start(server: PostgreSQLServer) -> None:
    with contextlib.suppress(ServerFailed, psutil.Error):
        server.start()


def freeze_walsender(world: PgWorld, choose: random.Random) -> str:
    """The connection to the log stays open, and nothing comes over it."""
    for_s, frozen = choose.uniform(0.5, SESSION_S * 1.5), []
    for (pid,) in world.source.execute("SELECT active_pid FROM pg_replication_slots WHERE active_pid IS NOT NULL"):
        with contextlib.suppress(psutil.Error):
            frozen.append(psutil.Process(pid))
            frozen[-1].suspend()
    time.sleep(for_s)
    for process in frozen:
        with contextlib.suppress(psutil.Error):
            process.resume()
    return f"{len(frozen)} for {for_s:.1f} s"


# -- definitions -------------------------------------------------------------------------------------------------------
def alter(world: PgWorld, choose: random.Random) -> str:
    """Definitions change under load, alone and among rows of one transaction, and a task is killed meanwhile."""
    world.altered += 1
    extra = f"extra{world.altered}"
    with world.source.connect(options=f"-c search_path={SCHEMA}") as connection:
        connection.execute(f"ALTER TABLE accounts ADD COLUMN {extra} int NOT NULL DEFAULT {world.altered}")
        time.sleep(choose.uniform(0, 0.3))
        statements = (
            "LOCK TABLE accounts, lines IN ACCESS EXCLUSIVE MODE",
            f"UPDATE accounts SET {extra} = id WHERE id % 7 = 1",
            f"ALTER TABLE accounts ALTER COLUMN {extra} TYPE bigint",
            f"ALTER TABLE lines ADD COLUMN {extra} text",
            f"UPDATE lines SET {extra} = v WHERE b % 3 = 1",
        )
        while True:
            with contextlib.suppress(psycopg.errors.DeadlockDetected), connection.transaction():  # with a writer
                for statement in statements:
                    connection.execute(statement)
                break
        killed = kill_task(world, choose)
        connection.execute(f"ALTER TABLE accounts RENAME COLUMN {extra} TO {extra}_new")
        connection.execute(f"ALTER TABLE lines DROP COLUMN {extra}")
    return f"{extra}, and killed {killed}"


def restart_source(world: PgWorld, choose: random.Random) -> str:
    """An orderly stop and a start: the server waits for the reader of its log."""
    world.source.stop(60)
    assert "database system is shut down" in world.source.log.read_text()
    world.source.start()
    return ""


def crash_in_large_transaction(world: PgWorld, choose: random.Random) -> str:
    """The server is killed while it sends a transaction that it keeps on its disk."""
    with world.source.connect(options=f"-c search_path={SCHEMA}") as connection, connection.transaction():
        large_transaction(connection, choose, LARGE_ROWS)
    time.sleep(choose.uniform(0, 1.0))
    for _ in range(choose.randint(1, 2)):
        world.source.kill()
        world.source.start()
        time.sleep(choose.uniform(0, 0.5))
    return f"{LARGE_ROWS:,} rows"


# -- the slot ----------------------------------------------------------------------------------------------------------
def drop_slot(world: PgWorld, choose: random.Random) -> str:
    """The pipeline stops with LogPurged; `sluice check --apply` and `sluice recover` lead back to equal tables."""
    since, slot = time.monotonic(), world.case.slot

    def dropped() -> bool:
        world.source.execute(
            f"SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE slot_name = '{slot}' "
            "AND active_pid IS NOT NULL"
        )
        with contextlib.suppress(psycopg.errors.ObjectInUse):
            world.source.execute(f"SELECT pg_drop_replication_slot('{slot}')")
            return True
        return False

    world.wait_until(dropped, "the end of the slot")
    before = world.acknowledged()
    world.wait_until(lambda: any("was dropped" in text for text in world.said("LogPurged", since)), "LogPurged")
    pipeline = str(world.case.path)
    control.pause(world.case.runtime(), by="walk", reason="the slot is gone")
    world.case.cli("check", pipeline, "--apply", "--yes")  # not zero: the position is lost all the same
    assert world.said("LogPurged", since), "it went on by itself"
    said = world.sluice("recover", pipeline, "--apply", "--yes", "--choose", "source=dump")
    control.resume(world.case.runtime(), by="walk")
    time.sleep(choose.uniform(0, 2.0))
    world.rest()  # a chunk whose rows change meanwhile, and of which the log has a part, is read again
    copies = _finish_dumps(world)
    assert world.acknowledged() > before, said
    return f"copied by {copies} workers"


def _finish_dumps(world: PgWorld) -> int:
    """Work on copies, the oldest first, until there are none: rows that moved meanwhile are copied once more."""
    log = world.folder / "dump.log"

    def active() -> list[str]:
        with world.state() as state:
            return [dump.id for dump in state.dumps.active()]

    def worker(dump: str) -> subprocess.Popen[bytes]:
        with log.open("ab") as out:
            out.write(json.dumps({"dump": dump}).encode() + b"\n")
            return subprocess.Popen(
                world.case.command("dump", "work", str(world.case.path), dump, "--json"),
                env=world.case.environment, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    workers: list[subprocess.Popen[bytes]] = []

    def done() -> bool:
        left = active()
        if left and (not workers or workers[-1].poll() is not None):
            workers.append(worker(left[0]))
        return not left

    try:
        assert active()
        world.wait_until(done, "the end of the copies")
    finally:
        for one in workers:
            one.kill()
            one.wait()
    return len(workers)


# -- a standby ---------------------------------------------------------------------------------------------------------
def promote(world: PgWorld, choose: random.Random) -> str:
    """The primary is killed under load; its standby, which has the slot, is promoted, and the pipeline goes on there.

    The primary sends only what the standby has (``synchronized_standby_slots``).
    """
    before, member = world.source, 1 - world.member
    world.servers += 1
    after = standby_of(before, world.folder / f"source{world.servers}", port=world.ports[member], options=STANDBY)
    try:
        before.execute(f"ALTER SYSTEM SET synchronized_standby_slots = '{FOLLOWER}'", "SELECT pg_reload_conf()")

        def taken_over() -> bool:
            before.execute("SELECT pg_log_standby_snapshot()")
            there = f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{world.case.slot}' AND NOT temporary"
            return bool(after.execute(there))

        world.wait_until(taken_over, "the slot at the standby")
        time.sleep(choose.uniform(0, 2.0))
    except BaseException:
        after.kill()
        raise
    before.kill()
    world.source, world.member = after, member
    world.case.source = after
    after.execute("ALTER SYSTEM RESET synchronized_standby_slots", "SELECT pg_promote()")
    world.sluice("failover", str(world.case.path), "--to", MEMBERS[member], "--reason", "walk", "--yes")
    with world.state() as state:
        assert state.member.read().connection == MEMBERS[member]
    after.options = OPTIONS
    after.restart()
    shutil.rmtree(before.folder, ignore_errors=True)
    return f"to {MEMBERS[member]}"


Strike = Callable[[PgWorld, random.Random], str]
FAULTS: tuple[tuple[str, Strike, int], ...] = (
    ("end the walsender", end_walsender, 3),
    ("kill a task", kill_task, 4),
    ("pause a capture beyond its session", pause_capture, 2),
    ("kill a crew", kill_crew, 2),
    ("kill the source", crash("source"), 3),
    ("kill the source in recovery", crash_in_recovery, 2),
    ("freeze the walsender", freeze_walsender, 2),
    ("alter tables", alter, 3),
    ("restart the source", restart_source, 1),
    ("kill the source in a large transaction", crash_in_large_transaction, 2),
    ("kill the target", crash("target"), 1),
    ("kill ZooKeeper", crash("zookeeper"), 1),
    ("lost: the slot", drop_slot, 1),
    ("lost: the primary", promote, 1),
)
"""Name, what strikes and heals, weight."""


def plan(seed: int, steps: int) -> list[int]:
    """Every fault once in a random order, as far as the steps go, then by weight; the same seed gives the same walk."""
    choose = random.Random(seed)
    possible = [index for index, (name, _, _) in enumerate(FAULTS) if ONLY in name]
    chosen = choose.sample(possible, len(possible))
    while len(chosen) < steps:
        chosen.append(choose.choices(possible, [FAULTS[index][2] for index in possible])[0])
    return chosen[:steps]


def test_a_walk_over_faults_of_postgresql_ends_equal(tmp_path: Path) -> None:
    told: list[str] = []
    started = time.monotonic()
    with PgWorld(tmp_path, SEED) as world:
        for number, index in enumerate(plan(SEED, STEPS)):
            name, strike, _ = FAULTS[index]
            choose = random.Random(f"{SEED}/{number}")
            try:
                before = world.acknowledged()
                world.work()
                world.wait_until(lambda before=before: world.acknowledged() > before, "a batch before the fault")
                detail = strike(world, choose)
                time.sleep(choose.uniform(0, 0.3))
                world.settle()
            except BaseException as error:
                trail = "\n".join(told[-8:])
                raise AssertionError(
                    f"step {number} ({name}) of seed {SEED}: {error}\nbefore it:\n{trail}\nreplay: "
                    f"SLUICE_FAULT_SEED={SEED} SLUICE_FAULTS={number + 1} pytest tests/faults/test_pg_walk.py"
                ) from error
            told.append(f"{number:4} {time.monotonic() - started:6.1f} s  {name}: {detail}")
            print(told[-1], flush=True)
        print(f"seed {SEED}: {STEPS} faults, {world.acknowledged()} batches, {time.monotonic() - started:.0f} s")
