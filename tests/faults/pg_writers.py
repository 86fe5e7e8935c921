"""Seeded random writers to a PostgreSQL that may be killed under them: key changes, deletes, values out of line, large
transactions, savepoints, and rows that are equal.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable
from typing import Any

import psycopg

ACCOUNTS, LINES, JOURNAL = "accounts", "lines", "journal"
TABLES = (
    f"CREATE TABLE {ACCOUNTS} (id bigint PRIMARY KEY, name text NOT NULL, balance numeric(14,4) NOT NULL DEFAULT 0, "
    "version int NOT NULL DEFAULT 0, note text)",
    f"ALTER TABLE {ACCOUNTS} ALTER COLUMN note SET STORAGE EXTERNAL",
    f"CREATE TABLE {LINES} (a int, b int, v text, PRIMARY KEY (a, b))",
    f"CREATE TABLE {JOURNAL} (what text NOT NULL, n int NOT NULL)",
    f"ALTER TABLE {JOURNAL} REPLICA IDENTITY FULL",
)
KEYS = 400
LARGE_ROWS = 1500
_LARGE = 40_000
"""Characters of a value that is stored out of line."""

Server = Callable[[], Any]
"""Returns the server that is written to now."""


class Writers:
    """Threads with a connection each until :meth:`rest`. One whose server is gone connects again."""

    def __init__(self, server: Server, schema: str, number: str, *, threads: int = 2) -> None:
        """``number``: the seed."""
        self._server, self._schema = server, schema
        self._over = threading.Event()
        self.commits = 0
        self.unexpected: list[psycopg.Error] = []
        self._threads = [
            threading.Thread(target=self._run, args=(random.Random(f"{number}/{i}"),), daemon=True)
            for i in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def rest(self) -> None:
        """Write no more; raises the first error that no fault explains."""
        self._over.set()
        for thread in self._threads:
            thread.join(120)
            assert not thread.is_alive(), "a writer hangs"
        if self.unexpected:
            raise self.unexpected[0]

    def _run(self, dice: random.Random) -> None:
        while not self._over.is_set():
            with contextlib.suppress(psycopg.OperationalError), self._connected() as connection:
                while not self._over.wait(0.03):
                    try:
                        with connection.transaction():
                            self._transaction(connection, dice)
                        self.commits += 1
                    except (psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected):
                        pass  # lost races between the writers
                    except psycopg.OperationalError:
                        raise  # the server is gone, or was: its last transaction may be, too
                    except psycopg.Error as error:
                        self.unexpected.append(error)
                        return
            self._over.wait(0.2)

    def _connected(self) -> psycopg.Connection[tuple[Any, ...]]:
        made: psycopg.Connection[tuple[Any, ...]] = self._server().connect(
            options=f"-c search_path={self._schema} -c statement_timeout=60s"
        )
        return made

    def _transaction(self, connection: psycopg.Connection[tuple[Any, ...]], dice: random.Random) -> None:
        if dice.random() < 0.004:
            large_transaction(connection, dice)
            return
        for _ in range(dice.choice((1, 1, 2, 5))):
            if dice.random() < 0.1:  # is rolled back, and the rest of its transaction is not
                with connection.transaction(force_rollback=True):
                    _step(connection, dice)
            _step(connection, dice)


def _step(connection: psycopg.Connection[tuple[Any, ...]], dice: random.Random) -> None:
    key, other, act = dice.randrange(KEYS), dice.randrange(KEYS), dice.random()
    if act < 0.3:
        connection.execute(
            "INSERT INTO accounts (id, name, note) VALUES (%s, %s, %s) ON CONFLICT (id) DO UPDATE SET "
            "version = accounts.version + 1, balance = accounts.balance + 1.5",
            (key, f"n{key}", f"{key} " * (_LARGE // 4) if dice.random() < 0.2 else None),
        )
    elif act < 0.45:  # of some rows with a value out of line, which the log leaves out
        connection.execute("UPDATE accounts SET version = version + 1 WHERE id %% 50 = %s", (key % 50,))
    elif act < 0.55:
        connection.execute(
            "UPDATE accounts SET id = %s, version = version + 1 WHERE id = %s AND NOT EXISTS "
            "(SELECT FROM accounts WHERE id = %s)",
            (other, key, other),
        )
    elif act < 0.63:
        connection.execute("DELETE FROM accounts WHERE id = %s", (key,))
    elif act < 0.75:
        connection.execute(
            "INSERT INTO lines VALUES (%s, %s, %s) ON CONFLICT (a, b) DO UPDATE SET v = lines.v || '!'",
            (key % 20, other % 20, f"{act:.3f}"),
        )
    elif act < 0.8:
        connection.execute("UPDATE lines SET b = b + 100 WHERE a = %s AND b = %s", (key % 20, other % 20))
    elif act < 0.84:
        connection.execute("DELETE FROM lines WHERE a = %s", (key % 20,))
    elif act < 0.96:  # doubles are wanted
        connection.execute("INSERT INTO journal VALUES (%s, %s), (%s, %s)", ("j", key % 10, "j", key % 10))
    else:
        connection.execute(
            "DELETE FROM journal WHERE ctid = (SELECT ctid FROM journal WHERE n = %s LIMIT 1)", (key % 10,)
        )


def large_transaction(
    connection: psycopg.Connection[tuple[Any, ...]], dice: random.Random, rows: int = LARGE_ROWS
) -> None:
    """Insert, change and partly delete many rows; the server keeps more of them than fits its memory."""
    first = KEYS + dice.randrange(100) * rows
    numbers = (first, first + rows - 1)
    connection.execute(
        "INSERT INTO accounts (id, name) SELECT i, repeat('large ', 10) FROM generate_series(%s::bigint, %s) i "
        "ON CONFLICT (id) DO UPDATE SET version = accounts.version + 1",
        numbers,
    )
    connection.execute("UPDATE accounts SET id = -id WHERE id BETWEEN %s AND %s AND id %% 3 = 0", numbers)
    connection.execute("DELETE FROM accounts WHERE abs(id) BETWEEN %s AND %s AND abs(id) %% 10 <> 1", numbers)
