"""What tests of dumps share: a pipeline that delivers in a thread, writers of the rows being dumped, and a watcher of
the target.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sluice.errors import RetryableError
from sluice.flows.capture.drain import drain
from sluice.flows.dump.start import start
from sluice.flows.dump.worker import work
from sluice.flows.load.ack import ack
from sluice.flows.load.load import load
from sluice.flows.transform.merge import merge
from tests.support.pipelines.case import Case
from tests.support.running.waiting import beside, ended


def both(made: Case, sql: str) -> None:
    for server in (made.source, made.target):
        server.execute(f"USE `{made.schema}`", sql)


@contextmanager
def delivering(made: Case, mode: str = "local") -> Iterator[None]:
    """The pipeline runs in a thread, one batch after the other.

    A passing error is tried again, with the batch it hit, as a real run does.

    ``mode``: of Spark, the same as that of whatever else uses it in this process.
    """

    def deliver(over: threading.Event) -> None:
        failures, mine = 0, claim(made)
        while not over.is_set():
            try:
                runtime = made.runtime(mode)
                with runtime.state():
                    while not over.is_set():
                        step(made, runtime, claimed=mine)
                        failures, mine = 0, claim(made)
            except RetryableError as error:
                failures += 1
                if failures > PASSING:
                    raise
                print(f"tried again: {error}")
                over.wait(0.5)

    with beside(deliver):
        yield


PASSING = 10
"""Attempts of a batch in a row that may fail."""


def claim(made: Case) -> str:
    """As a new run of Airflow has it."""
    return f"test:{made.schema}:{time.time_ns()}"


def step(made: Case, runtime: Any, idle_wait_s: float = 0.05, claimed: str = "") -> bool:
    """One batch, if there is one."""
    outcome = drain(runtime, claim=claimed or claim(made), idle_wait_s=idle_wait_s)
    if outcome.batch is None:
        return False
    merge(runtime, outcome.batch)
    for target in runtime.pipeline.targets:
        load(runtime, target.name, outcome.batch)
        ack(runtime, target.name, outcome.batch)
    return True


def begin(made: Case) -> None:
    """The position of record is now."""
    runtime = made.runtime()
    with runtime.state():
        step(made, runtime)


def fill(made: Case, table: str, rows: int) -> None:
    with made.source.connect(made.schema) as connection, connection.cursor() as cursor:
        cursor.executemany(
            f"INSERT INTO `{table}` (id, version, note) VALUES (%s, 0, %s)", [(i, f"n{i}") for i in range(rows)]
        )


class Writers:
    """Random changes of the rows being dumped; the version of a row only grows, over deletes too."""

    def __init__(self, made: Case, table: str, keys: int, seed: int, count: int = 2) -> None:
        self.made, self.table, self.keys = made, table, keys
        self.stop = threading.Event()
        self.errors: list[BaseException] = []
        self.changes = 0
        self.threads = [
            threading.Thread(target=self._run, args=(seed + i, i, count), daemon=True) for i in range(count)
        ]

    def __enter__(self) -> Writers:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for thread in self.threads:
            ended(thread)
        if self.errors:
            raise self.errors[0]

    def _run(self, seed: int, mine: int, of: int) -> None:
        dice = random.Random(seed)
        version = 0
        try:
            with self.made.source.connect(self.made.schema) as connection, connection.cursor() as cursor:
                while not self.stop.is_set():
                    key = dice.randrange(self.keys) * of + mine
                    version += 1
                    act = dice.random()
                    if act < 0.5:
                        cursor.execute(f"UPDATE `{self.table}` SET version = %s WHERE id = %s", (version, key))
                    elif act < 0.75:
                        cursor.execute(f"DELETE FROM `{self.table}` WHERE id = %s", (key,))
                    else:
                        cursor.execute(f"REPLACE INTO `{self.table}` VALUES (%s, %s, 'w')", (key, version))
                    self.changes += 1
                    if dice.random() < 0.2:
                        time.sleep(0.002)
        except BaseException as error:
            self.errors.append(error)


class Watcher:
    """Polls the target: the version of a row must never be lower than one seen before."""

    def __init__(self, made: Case, table: str) -> None:
        self.made, self.table = made, table
        self.stop = threading.Event()
        self.seen: dict[int, int] = {}
        self.back: list[str] = []
        self.polls = 0
        self.thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watcher:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        ended(self.thread)

    def _run(self) -> None:
        with self.made.target.connect(self.made.schema) as connection, connection.cursor() as cursor:
            while not self.stop.is_set():
                cursor.execute(f"SELECT id, version FROM `{self.table}`")
                for key, version in cursor.fetchall():
                    if version < self.seen.get(key, 0):
                        self.back.append(f"row {key} went from version {self.seen.get(key, 0)} to {version}")
                    self.seen[key] = max(version, self.seen.get(key, 0))
                self.polls += 1
                time.sleep(0.005)


def dumped(made: Case, **asked: Any) -> Any:
    """Start a dump, work on it while batches are delivered, and say how it ended."""
    from sluice.flows.dump.progress import one_view

    with delivering(made):
        dump = start(made.runtime(), **asked)
        work(made.runtime(), dump.id)
    return one_view(made.runtime(), dump.id)


KEYS = {
    "composite": ("a INT, b VARCHAR(20), c DATE, PRIMARY KEY (b, a, c)", "({i} % 7, CONCAT('k', {i} % 31), "
    "'2024-01-01' + INTERVAL {i} DAY, {i})"),
    "text": ("a VARCHAR(30) COLLATE utf8mb4_0900_ai_ci PRIMARY KEY", "(CONCAT(ELT(1 + {i} % 3, 'É', 'e', 'z '), {i}), "
    "{i})"),
    "latin1": ("a CHAR(20) CHARACTER SET latin1 PRIMARY KEY", "(CONCAT('ä', {i}), {i})"),
    "binary": ("a VARBINARY(16) PRIMARY KEY", "(UNHEX(LEFT(SHA2({i}, 256), 32)), {i})"),
    "decimal": ("a DECIMAL(30,10) PRIMARY KEY", "({i} / 3 - 50, {i})"),
    "double": ("a DOUBLE PRIMARY KEY", "({i} / 7, {i})"),
    "float": ("a FLOAT PRIMARY KEY", "({i} / 7, {i})"),
    "unsigned": ("a BIGINT UNSIGNED PRIMARY KEY", "(18446744073709551615 - {i} * 1000003, {i})"),
    "moment": ("a DATETIME(6) PRIMARY KEY", "('2024-01-01' + INTERVAL {i} * 1234567 MICROSECOND, {i})"),
    "clock": ("a TIME(3) PRIMARY KEY", "(SEC_TO_TIME({i} * 7.125 - 900), {i})"),
    "bits": ("a BIT(20) PRIMARY KEY", "({i} * 4001 % 1048576, {i})"),
    "enum": ("a ENUM('z','y','x') , b INT, PRIMARY KEY (a, b)", "(1 + {i} % 3, {i}, {i})"),
    "set": ("a SET('p','q','r'), b INT, PRIMARY KEY (a, b)", "({i} % 8, {i}, {i})"),
}  # fmt: skip
"""Definitions and values (of row ``i``) of a table for each type of a key."""
