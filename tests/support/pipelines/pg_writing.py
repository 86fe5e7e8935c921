"""Writers of a table that is copied from a PostgreSQL, and a watcher of its copy."""

from __future__ import annotations

import random
import threading
import time

from tests.support.pipelines.pg_source import COPY, PgCase
from tests.support.running.waiting import ended

TABLE = "CREATE TABLE t (id text PRIMARY KEY, version bigint)"
KEYS = 400


class Writers:
    """Random changes of the rows that are copied; the version of a row only grows, over deletes too."""

    def __init__(self, made: PgCase, count: int = 2) -> None:
        self.made, self.count = made, count
        self.stop = threading.Event()
        self.errors: list[BaseException] = []
        self.changes = 0

    def __enter__(self) -> Writers:
        self.threads = [threading.Thread(target=self._run, args=(i,), daemon=True) for i in range(self.count)]
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for thread in self.threads:
            ended(thread)
        if self.errors:
            raise self.errors[0]

    def _run(self, mine: int) -> None:
        dice, version = random.Random(mine), 0
        try:
            with self.made.source.connect(options=f"-c search_path={self.made.schema}", autocommit=False) as connection:
                while not self.stop.is_set():
                    for _ in range(dice.choice((1, 1, 5))):
                        key = f"k{dice.randrange(KEYS) * self.count + mine:05d}"
                        version += 1
                        act = dice.random()
                        if act < 0.5:
                            connection.execute("UPDATE t SET version = %s WHERE id = %s", (version, key))
                        elif act < 0.75:
                            connection.execute("DELETE FROM t WHERE id = %s", (key,))
                        else:
                            sql = "INSERT INTO t VALUES (%s, %s) ON CONFLICT (id) DO UPDATE SET version = excluded.version"
                            connection.execute(sql, (key, version))
                        self.changes += 1
                    connection.commit()
                    if dice.random() < 0.5:
                        time.sleep(0.002)
        except BaseException as error:
            self.errors.append(error)


class Watcher:
    """Polls the target: the version of a row must never be lower than one seen before."""

    def __init__(self, made: PgCase) -> None:
        self.made, self.stop = made, threading.Event()
        self.seen: dict[str, int] = {}
        self.back: list[str] = []
        self.thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watcher:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        ended(self.thread)

    def _run(self) -> None:
        with self.made.target.connect(COPY) as connection:
            while not self.stop.wait(0.01):
                for key, version in connection.execute(f"SELECT id, version FROM {self.made.schema}.t".encode()):
                    if version < self.seen.get(key, 0):
                        self.back.append(f"row {key} went from version {self.seen[key]} to {version}")
                    self.seen[key] = max(version, self.seen.get(key, 0))


def rows() -> str:
    """The statement that fills the table, for two writers."""
    return f"INSERT INTO t SELECT 'k' || lpad(g::text, 5, '0'), 0 FROM generate_series(0, {2 * KEYS - 1}) g"


__all__ = ["KEYS", "TABLE", "Watcher", "Writers", "rows"]
