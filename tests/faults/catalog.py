"""The faults of the walk.

A fault strikes, lasts, and is healed again within its call; it returns one line about what it did.

A further fault is one more entry in :data:`FAULTS`.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil
import pymysql
from kazoo.client import KazooClient

from sluice.errors import SluiceError
from sluice.operations import control
from tests.faults.crews import Crew
from tests.faults.dumps import dump_amid
from tests.faults.failing_over import fail_over
from tests.faults.walked import crash, kill_crew
from tests.faults.world import SCHEMA, SESSION_S, World

_LONG = bool(os.environ.get("SLUICE_FAULTS"))
"""Of `make faults`."""
TASKS = ("drain", "merge", "load", "ack")


@dataclass(frozen=True)
class Fault:
    """``strike(world, choose)`` does it and heals it; ``weight``: how often, against the others; ``possible``: here at
    all.
    """

    name: str
    strike: Callable[[World, random.Random], str]
    weight: int = 1
    possible: Callable[[], bool] = lambda: True
    in_file: bool = True
    """Also where positions are in a file."""


def _catch(world: World, choose: random.Random, kind: str, patience_s: float = 4.0) -> tuple[Crew, psutil.Process]:
    """A process that is at work on a task of this kind, as soon as there is one; after a while any process of a
    crew.
    """
    end = time.monotonic() + patience_s
    crews = choose.sample(world.crews, len(world.crews))
    while time.monotonic() < end:
        for crew in crews:
            for process in crew.tasks(kind):
                return crew, process
        time.sleep(0.002)
    return crews[0], (crews[0].processes() or world.crews[1].processes())[-1]


def kill_task(world: World, choose: random.Random) -> str:
    kind = choose.choice(TASKS)
    time.sleep(choose.uniform(0, 0.3))
    crew, process = _catch(world, choose, kind)
    time.sleep(choose.choice((0.0, 0.005, 0.02, 0.1)))
    with contextlib.suppress(psutil.Error):
        process.kill()
    return f"{kind} of {crew.name}"


def pause_task(world: World, choose: random.Random) -> str:
    """Longer than its session lives; then it comes back."""
    kind = choose.choice(TASKS)
    crew, process = _catch(world, choose, kind)
    time.sleep(choose.choice((0.0, 0.005, 0.02, 0.1)))
    for_s = SESSION_S * choose.uniform(1.2, 1.7)
    with contextlib.suppress(psutil.Error):
        process.suspend()
        time.sleep(for_s)
        process.resume()
    return f"{kind} of {crew.name} for {for_s:.1f} s"


def pause_crew(world: World, choose: random.Random) -> str:
    crew = choose.choice(world.crews)
    for_s = SESSION_S * choose.uniform(1.2, 1.7)
    crew.signal(signal.SIGSTOP)
    time.sleep(for_s)
    crew.signal(signal.SIGCONT)
    return f"{crew.name} for {for_s:.1f} s"


def freeze_server(world: World, choose: random.Random) -> str:
    """A server that neither answers nor closes."""
    name = choose.choice(world.names)
    server = getattr(world, name)
    process = psutil.Process(server.handle.pid)
    for_s = choose.uniform(0.5, SESSION_S * 1.5)
    process.suspend()
    time.sleep(for_s)
    process.resume()
    return f"{name} for {for_s:.1f} s"


def cut(world: World, choose: random.Random) -> str:
    name = choose.choice(world.names)
    link = world.links[name]
    count = 0
    for _ in range(choose.randint(1, 4)):
        count += link.cut()
        time.sleep(choose.uniform(0, 0.5))
    return f"{count} connections to {name}"


def refuse(world: World, choose: random.Random) -> str:
    name = choose.choice(world.names)
    link = world.links[name]
    link.refusing = True
    link.cut()
    time.sleep(choose.uniform(0.5, 2.0))
    link.heal()
    return name


def lose_session(world: World, choose: random.Random) -> str:
    """Nothing reaches ZooKeeper for longer than a session, and the crews' processes live on."""
    for_s = SESSION_S * choose.uniform(1.2, 1.8)
    link = world.links["zookeeper"]
    link.stall()
    time.sleep(for_s)
    link.cut()
    link.heal()
    return f"for {for_s:.1f} s"


def slow_link(world: World, choose: random.Random) -> str:
    name = choose.choice(world.names)
    link = world.links[name]
    link.delay_s, link.bytes_per_s = choose.uniform(0.02, 0.15), choose.choice((None, 50_000.0))
    time.sleep(choose.uniform(0.5, 2.0))
    link.heal()
    return name


def slow_target(world: World, choose: random.Random) -> str:
    """Somebody holds locks on the target."""
    table = choose.choice(("customers", "orders", "_sluice_ack"))
    for_s = choose.uniform(0.5, 2.0)
    with contextlib.suppress(pymysql.MySQLError), world.target.connect(SCHEMA) as connection:
        cursor = connection.cursor()
        cursor.execute("SET SESSION lock_wait_timeout = 5, innodb_lock_wait_timeout = 5")
        connection.begin()
        cursor.execute(f"SELECT COUNT(*) FROM {table} FOR UPDATE")
        time.sleep(for_s)
        connection.rollback()
    return f"{table} for {for_s:.1f} s"


def disk_full(world: World, choose: random.Random) -> str:
    pids = [process.pid for crew in world.crews for process in crew.processes()]
    world.disk.fill(pids)
    time.sleep(choose.uniform(0.5, 1.5))
    pids = [process.pid for crew in world.crews for process in crew.processes()]
    world.disk.empty(pids)
    return "a file system of its own" if world.disk.own else "by a limit on the size of files"


def clock_jump(world: World, choose: random.Random) -> str:
    crew = choose.choice(world.crews)
    offset_s = choose.choice((-86400 * 400, -3600, -30, 30, 3600, 86400 * 400))
    crew.clock.jump(offset_s)
    time.sleep(choose.uniform(0.3, 1.0))
    if choose.random() < 0.5:
        crew.clock.jump(0)
    return f"{crew.name} by {offset_s} s"


def pause_pipeline(world: World, choose: random.Random) -> str:
    control.pause(world.runtime(), by="walk", reason="a test")
    time.sleep(choose.uniform(0.2, 1.5))
    control.resume(world.runtime(), by="walk")
    return ""


def roll_back(world: World, choose: random.Random) -> str:
    """While a batch is on its way, if one comes along."""
    end = time.monotonic() + 3
    with world.state() as state:
        while not state.undelivered() and time.monotonic() < end:
            time.sleep(0.01)
    plan = control.rollback(world.runtime(), by="walk", dry_run=False)
    return plan.steps[0]


def restart_pipeline(world: World, choose: random.Random) -> str:
    control.restart(world.runtime(), by="walk", grace_s=choose.choice((0.0, 2.0)))
    return ""


def rotate(world: World, choose: random.Random) -> str:
    with contextlib.suppress(pymysql.MySQLError, SluiceError):
        world.source.execute("FLUSH BINARY LOGS")
    return ""


def no_work(world: World) -> bool:
    """True if no process captures or loads: a pause is noticed within a second, and what it ends may still write.

    Raises LeaseHeld.
    """
    with world.state() as state, state.replicator(wait_s=0), state.consumer("copy"):
        return True


def lose_segments(world: World, choose: random.Random) -> str:
    """Of the batches that are on their way, or the whole store; with the pipeline paused, they are captured again."""
    end = time.monotonic() + 3
    with world.state() as state:
        while not state.undelivered() and time.monotonic() < end:
            time.sleep(0.01)
    control.pause(world.runtime(), by="walk", reason="lost segments")
    world.wait_until(lambda: no_work(world), "the end of all work")
    with world.state() as state:
        waiting = state.undelivered()
    store = world.disk.path / "case"
    lost = [store] if choose.random() < 0.3 else [store / f"batch={number:010d}" for number in waiting]
    for folder in lost:
        shutil.rmtree(folder)
    said = world.sluice("recover", str(world.case.path), "--apply", "--yes")
    assert ("captured again" in said) == bool(waiting), said
    control.resume(world.runtime(), by="walk")
    return f"{'all' if lost == [store] else len(lost)}, {len(waiting)} batches were on their way"


def lose_zookeeper(world: World, choose: random.Random) -> str:
    """Every node of the pipeline, while no process of it lives; the segments with them, sometimes."""
    for crew in world.crews:
        crew.end()
    with world.state() as state:
        waiting = state.undelivered()
    time.sleep(SESSION_S * 1.2)
    if world.in_file:
        world.zookeeper.remove()
    else:
        client = KazooClient(f"127.0.0.1:{world.zookeeper.port}")
        client.start()
        try:
            client.delete(f"/test/{SCHEMA}", recursive=True)
        finally:
            client.stop()
            client.close()
    world.sluice("recover", str(world.case.path), "--apply", "--yes")
    world.counts_anew()
    return f"{len(waiting)} batches were on their way"


def put_target_back(world: World, choose: random.Random) -> str:
    """To a backup that is some batches old; nothing tells the pipeline."""
    tables = [
        str(row[0]) for row in world.target.execute(f"SHOW FULL TABLES FROM `{SCHEMA}` WHERE Table_type = 'BASE TABLE'")
    ]
    tables.remove("_history")
    control.pause(world.runtime(), by="walk", reason="a backup")
    _stopped(world)
    off, on = "SET SESSION foreign_key_checks = 0", "SET SESSION foreign_key_checks = 1"
    world.target.execute(
        "DROP DATABASE IF EXISTS backup", "CREATE DATABASE backup",
        *(f"CREATE TABLE backup.`{name}` AS SELECT * FROM `{SCHEMA}`.`{name}`" for name in tables),
    )  # fmt: skip
    before = world.acknowledged()[0]
    control.resume(world.runtime(), by="walk")
    world.wait_until(lambda: world.acknowledged()[0] > before + 2, "some batches more")
    control.pause(world.runtime(), by="walk", reason="a restore")
    _stopped(world)
    generated = {
        (str(table), str(column))
        for table, column in world.target.execute(
            f"SELECT TABLE_NAME, COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = '{SCHEMA}' AND "
            "GENERATION_EXPRESSION <> ''"
        )
    }
    names = {
        table: ", ".join(
            f"`{row[0]}`"
            for row in world.target.execute(f"SHOW COLUMNS FROM backup.`{table}`")
            if (table, str(row[0])) not in generated
        )
        for table in tables
    }
    world.target.execute(
        off,
        *(
            statement
            for name in tables
            for statement in (
                f"DELETE FROM `{SCHEMA}`.`{name}`",
                f"INSERT INTO `{SCHEMA}`.`{name}` ({names[name]}) SELECT {names[name]} FROM backup.`{name}`",
            )
        ),
        on,
    )
    lacks = world.acknowledged()[0] - before
    world.counts_anew()
    control.resume(world.runtime(), by="walk")
    return f"by {lacks} batches"


def _stopped(world: World) -> None:
    """Nothing writes to the target any more."""

    def quiet() -> bool:
        with world.state() as state:
            return state.owner() is None and state.owner("copy") is None

    world.wait_until(quiet, "the pause")


FAULTS: list[Fault] = [
    Fault("kill a task", kill_task, weight=6),
    Fault("kill a crew", kill_crew, weight=2),
    Fault("kill the source", crash("source")),
    Fault("kill the target", crash("target"), weight=2),
    Fault("kill ZooKeeper", crash("zookeeper"), weight=2, in_file=False),
    Fault("pause a task beyond its session", pause_task, weight=4),
    Fault("pause a crew beyond its session", pause_crew, weight=2),
    Fault("freeze a server", freeze_server, weight=2),
    Fault("cut connections", cut, weight=4),
    Fault("refuse connections", refuse, weight=2),
    Fault("lose the ZooKeeper session", lose_session, weight=2, in_file=False),
    Fault("slow link", slow_link),
    Fault("slow target", slow_target, weight=2),
    Fault("disk full", disk_full, weight=2),
    Fault("clock jump", clock_jump, weight=2),
    Fault("pause and resume", pause_pipeline, weight=2),
    Fault("roll back", roll_back, weight=2),
    Fault("restart", restart_pipeline),
    Fault("rotate the log", rotate),
    Fault("lost: segments", lose_segments, weight=2, possible=lambda: _LONG),
    Fault("lost: ZooKeeper's nodes", lose_zookeeper, possible=lambda: _LONG),
    Fault("lost: the source fails over", fail_over, weight=2, possible=lambda: _LONG),
    Fault("lost: the target goes back", put_target_back, possible=lambda: _LONG),
    Fault(
        "a dump, and another fault",
        dump_amid(lambda: [f.strike for f in FAULTS[:-1] if f.possible()]),
        weight=3,
        possible=lambda: _LONG,  # of `make faults`: it takes a quarter of a minute
    ),
]
