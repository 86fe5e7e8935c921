"""A dump in the walk: it runs while rows change and another fault strikes; its worker is killed, too, and started
again.

A table of versions shows what a dump must never do: the version of a row only grows, over deletes and replaces, and so
it must at the target.
"""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import threading
import time
from collections.abc import Callable

import pymysql

from sluice.flows.dump.progress import one_view
from sluice.flows.dump.start import start, tuned
from sluice.model.dumps import DumpState
from tests.faults.world import SCHEMA, World

KEYS = 400
MOST_CHUNKS = 60


class _Loop(threading.Thread):
    """Does ``step`` with a connection until it is stopped; a connection that breaks is opened again."""

    def __init__(
        self, connect: Callable[..., pymysql.connections.Connection], step: Callable[[pymysql.cursors.Cursor], None]
    ) -> None:
        super().__init__(daemon=True)
        self._connect, self._step = connect, step
        self._stop_it = threading.Event()

    def run(self) -> None:
        while not self._stop_it.is_set():
            with contextlib.suppress(pymysql.MySQLError, OSError), self._connect(SCHEMA) as connection:
                cursor = connection.cursor()
                while not self._stop_it.wait(0.01):
                    self._step(cursor)
            self._stop_it.wait(0.2)

    def end(self) -> None:
        self._stop_it.set()
        self.join()


class _Versions:
    """Writes at the source, looks at the target."""

    def __init__(self, world: World, choose: random.Random) -> None:
        self._dice = random.Random(choose.random())
        self._version = int(time.time() * 1000)  # grows over all dumps of a walk
        self._seen: dict[int, int] = {}
        self.back: list[str] = []
        self.polls = 0
        self._world = world
        self._loops = [_Loop(self._connect, self._write), _Loop(world.target.connect, self._look)]

    def __enter__(self) -> _Versions:
        for loop in self._loops:
            loop.start()
        return self

    def __exit__(self, *_: object) -> None:
        for loop in self._loops:
            loop.end()

    def _connect(self, schema: str) -> pymysql.connections.Connection:
        self._source = self._world.source
        return self._source.connect(schema)

    def _write(self, cursor: pymysql.cursors.Cursor) -> None:
        self._version += 1
        key, act = self._dice.randrange(KEYS), self._dice.random()
        with self._world.writing:
            if self._source is not self._world.source:
                raise pymysql.OperationalError("the source failed over")
            if act < 0.4:
                cursor.execute("REPLACE INTO versions VALUES (%s, %s)", (key, self._version))
            elif act < 0.8:
                cursor.execute("UPDATE versions SET version = %s WHERE id = %s", (self._version, key))
            else:
                cursor.execute("DELETE FROM versions WHERE id = %s", (key,))

    def _look(self, cursor: pymysql.cursors.Cursor) -> None:
        cursor.execute("SELECT id, version FROM versions")
        for key, version in cursor.fetchall():
            if version < self._seen.get(key, 0):
                self.back.append(f"row {key} went from version {self._seen[key]} to {version}")
            self._seen[key] = max(version, self._seen.get(key, 0))
        self.polls += 1


def dump_amid(
    faults: Callable[[], list[Callable[[World, random.Random], str]]],
) -> Callable[[World, random.Random], str]:
    """The fault: a dump, and one of ``faults`` in the middle of it."""

    def strike(world: World, choose: random.Random) -> str:
        replace = choose.random() < 0.5
        if replace:  # rows that the source does not have, beyond all that is written
            lost = ",".join(f"({KEYS + choose.randrange(1000)}, 0)" for _ in range(50))
            world.target.execute(f"INSERT IGNORE INTO `{SCHEMA}`.versions VALUES {lost}")
        runtime = world.runtime()
        names = [f"{SCHEMA}.versions", f"{SCHEMA}.orders"]
        orders = world.source.execute(f"SELECT COUNT(*) FROM `{SCHEMA}`.orders")[0][0]
        pace = tuned(
            runtime.pipeline,  # the drain places a few chunks a batch: a long walk's tables are not cut into thousands
            chunk_rows=max(choose.choice((60, 300, 5000) if replace else (500, 5000)), orders // MOST_CHUNKS),
            delay_ms=choose.choice((0, 50)),
            parallelism=2,
        )
        with _Versions(world, choose) as versions:
            dump = start(runtime, tables=names if replace else [], replace=replace, tuning=pace).id
            workers = [_worker(world, dump)]
            time.sleep(choose.uniform(0.5, 2.0))
            if choose.random() < 0.5:
                workers[-1].kill()
            told = choose.choice(faults())(world, choose)

            def done() -> bool:
                if one_view(world.runtime(), dump).state == DumpState.DONE:
                    return True
                if workers[-1].poll() is not None:
                    workers.append(_worker(world, dump))
                return False

            try:
                world.wait_until(done, f"the end of dump {dump} ({told})")
            except AssertionError as error:
                raise AssertionError(f"{error}\n  {one_view(world.runtime(), dump)}") from None
            finally:
                for worker in workers:
                    worker.kill()
                    worker.wait()
        world.rest()
        world.wait_until(world.is_level, "delivery of all that was dumped")
        sums = [s.execute(f"CHECKSUM TABLE `{SCHEMA}`.versions")[0][1] for s in (world.source, world.target)]
        assert sums[0] == sums[1], "the versions differ"
        assert versions.polls
        assert not versions.back, versions.back[:5]
        return f"{'replacing, ' if replace else ''}{len(workers)} workers; {told}"

    return strike


def _worker(world: World, dump: str) -> subprocess.Popen[bytes]:
    argv = world.disk.inside(world.case.command("dump", "work", str(world.case.path), dump, "--json"))
    with (world.folder / "dump.log").open("ab") as log:
        log.write(json.dumps({"dump": dump, "at": time.time()}).encode() + b"\n")
        log.flush()
        return subprocess.Popen(
            argv, env=world.case.environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
