"""Two servers, a migration between them as a user runs it, and applications that write wherever they may."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import pymysql

from devstack.mysql import Distribution, MySQLServer, find_mysql
from sluice.config.env_file import read_env_file
from tests.support.pipelines.case import REPOSITORY
from tests.support.running.waiting import ended, wait_until
from tests.support.servers.fixtures import UNSAFE

SCHEMA, PASSWORD = "shop", "app-3f81"
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("SLUICE_", "AIRFLOW_CONN_"))} | {
    "PYTHONPATH": f"{REPOSITORY / 'include'}:{REPOSITORY}",
    "COLUMNS": "300",
}


@dataclass(frozen=True)
class Written:
    """A row that a server acknowledged: its key, and when the statement began and ended."""

    key: int
    began: float
    ended: float


@dataclass
class Application:
    """Inserts rows at one server as long as it lets it, by a login of an application."""

    server: Any
    side: str
    pause_s: float = 0.01
    rows: list[Written] = field(default_factory=list)
    refused: int = 0
    _over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        connection: Any = None
        while not self._over.wait(self.pause_s):
            began = time.monotonic()
            try:
                if connection is None:
                    connection = self.server.connect(
                        SCHEMA, user="app", password=PASSWORD, autocommit=False, connect_timeout=2, read_timeout=5
                    )
                with connection.cursor() as cursor:
                    cursor.execute("INSERT INTO orders (site, n) VALUES (%s, 0)", (self.side,))
                    key = cursor.lastrowid
                    cursor.execute("UPDATE orders SET n = n + 1 WHERE id = %s", (key,))
                connection.commit()
                self.rows.append(Written(key, began, time.monotonic()))
            except (pymysql.err.Error, OSError):
                self.refused += 1
                with suppress(Exception):
                    connection.close()
                connection = None

    def stop(self) -> None:
        self._over.set()


@dataclass
class Moving:
    """A migration of ``shop`` in a folder of its own."""

    folder: Path
    old: Any
    new: Any
    applications: dict[str, Application] = field(default_factory=dict)
    runner: subprocess.Popen[bytes] | None = None

    @property
    def servers(self) -> dict[str, Any]:
        return {"old": self.old, "new": self.new}

    def address(self, side: str) -> str:
        there = json.loads(self.servers[side].connection_json())
        return f"mysql://root@{there['host']}:{there['port']}/{SCHEMA}"

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "sluice.cli", "--env-file", "sluice.env", "migrate", *arguments]

    def begin(self, *options: str) -> subprocess.CompletedProcess[str]:
        begun = [
            sys.executable,
            "-m",
            "sluice.cli",
            "migrate",
            "new",
            self.address("old"),
            self.address("new"),
            *options,
        ]
        return subprocess.run(
            begun, cwd=self.folder, env=CLEAN, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300
        )

    def sluice(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments),
            cwd=self.folder, env=CLEAN, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300,
        )  # fmt: skip

    def answer(self, *arguments: str) -> Any:
        done = self.sluice(*arguments, "--json")
        assert done.stdout, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def conductor(self, call: int = 0, when: str = "before") -> subprocess.Popen[str]:
        """Start a process that moves writes once it is told to; see :mod:`tests.support.crashes.conductor`."""
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.crashes.conductor", str(call), when],
            cwd=self.folder, env=CLEAN, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "armed\n"
        return process

    def open_side(self) -> str | None:
        """Return the side at which writes are open, None while a handover is under way."""
        status = self.status()
        return None if status["handover"] else str(status["open"])

    def status(self) -> dict[str, Any]:
        """Return what the command ``status`` prints, without a process for it."""
        from sluice.cli.migrate import sites_of
        from sluice.operations.migrate.steps import status

        with mock.patch.dict(os.environ, read_env_file(self.folder / "sluice.env")):
            return status(sites_of(SCHEMA))

    def process(self, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{arguments[0]}.log").open("ab") as log:
            return subprocess.Popen(
                self.command(*arguments), cwd=self.folder, env=CLEAN, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def run(self) -> None:
        """Run the flows in a process, in place of the one that was killed."""
        if self.runner is not None:
            self.runner.kill()
            self.runner.wait()
        self.runner = self.process("run", SCHEMA)

    def end(self) -> None:
        """End that process."""
        if self.runner is not None:
            self.runner.send_signal(signal.SIGCONT)
            self.runner.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.runner.wait(60)
            self.runner.kill()
            self.runner.wait()

    @contextmanager
    def writing(self, pause_s: float = 0.01) -> Iterator[None]:
        """Let an application write at each server, wherever it is let."""
        self.applications = {side: Application(server, side, pause_s) for side, server in self.servers.items()}
        threads = [threading.Thread(target=each.run, daemon=True) for each in self.applications.values()]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            for application in self.applications.values():
                application.stop()
            for thread in threads:
                ended(thread)

    def ready(self, phase: str = "started") -> None:
        """Wait until the migration is in this phase, nothing keeps writes from moving, and digests are known."""

        def is_ready() -> bool:
            status = self.status()
            return status["phase"] == phase and not status["obstacles"] and set(status["digests"]) == {"equal"}

        wait_until(is_ready, "the copy, and digests of all tables")

    def writes(self, side: str, more: int = 20) -> None:
        """Wait until the application has written more rows at a server."""
        application = self.applications[side]
        count = len(application.rows)
        wait_until(lambda: len(application.rows) >= count + more, f"writes at the {side} server")

    def rows(self, side: str, table: str = "orders") -> list[tuple[Any, ...]]:
        return self.servers[side].execute(f"SELECT * FROM {table} ORDER BY 1", database=SCHEMA)

    def delivered(self) -> None:
        """Wait until both servers are equal, and compare them from outside."""
        wait_until(lambda: self.rows("old") == self.rows("new"), "the same rows at both servers")

    def assert_kept(self, side: str) -> None:
        """Every acknowledged row is at the server that is open, and no key was given twice."""
        present = {row[0] for row in self.rows(side)}
        written = [row.key for application in self.applications.values() for row in application.rows]
        assert len(written) == len(set(written)), "two servers gave the same number"
        assert set(written) <= present

    def assert_never_both(self) -> list[float]:
        """No server took a write while the other one was open; returns the seconds of each gap between them."""
        events = sorted(
            (row.ended, row.began, side) for side, application in self.applications.items() for row in application.rows
        )
        gaps = []
        for before, after in itertools.pairwise(events):
            if before[2] != after[2]:
                assert after[0] > before[1], "a write began before one at the other server was acknowledged"
                gaps.append(after[0] - before[0])
        return gaps


@contextmanager
def two_servers(folder: Path, name: str, server_id: int) -> Iterator[tuple[MySQLServer, MySQLServer]]:
    """Run an old and a new server that remember over a restart that they are closed."""
    settings: dict[str, Any] = {"options": UNSAFE, "distribution": remembering(folder)}
    with (
        MySQLServer(folder / f"{name}-old", name=f"{name}-old", server_id=server_id, **settings) as old,
        MySQLServer(folder / f"{name}-new", name=f"{name}-new", server_id=server_id + 1, **settings) as new,
    ):
        yield old, new


def remembering(folder: Path) -> Distribution:
    """Return a MySQL that loads at its start what SET PERSIST wrote, which ``--no-defaults`` keeps it from."""
    distribution, empty = find_mysql(), folder / "empty.cnf"
    empty.touch()
    command = tuple(f"--defaults-file={empty}" if word == "--no-defaults" else word for word in distribution.command)
    return replace(distribution, command=command)


def prepare(old: Any, new: Any, *tables: str) -> None:
    """Make an empty schema at the new server, tables at the old one, and the application's login at both."""
    for server in (old, new):
        server.execute(
            f"DROP DATABASE IF EXISTS {SCHEMA}",
            f"CREATE DATABASE {SCHEMA}",
            "DROP USER IF EXISTS 'app'@'%'",
            f"CREATE USER 'app'@'%' IDENTIFIED BY '{PASSWORD}'",
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON {SCHEMA}.* TO 'app'@'%'",
        )
    old.execute(
        "CREATE TABLE orders (id INT AUTO_INCREMENT PRIMARY KEY, site VARCHAR(10) NOT NULL, n INT NOT NULL)",
        "INSERT INTO orders (site, n) VALUES ('before', 1), ('before', 1)",
        *tables,
        database=SCHEMA,
    )
