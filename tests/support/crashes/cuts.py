"""Connections to a target that are lost at a chosen statement, before the server sees it or after, and batches that
make many statements.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import psycopg
import pymysql

from sluice.errors import TargetUnavailable
from sluice.targets.mysql import session as mysql_session
from sluice.targets.postgresql import session as postgresql_session
from tests.support.tables.batches import Delivery
from tests.support.tables.people import delete, insert, people, update

ROWS = 40


class Budget:
    """Lets ``left`` statements through, then loses every connection at its next one; the first of them runs at the
    server if ``after``.
    """

    def __init__(self) -> None:
        self.left, self.after = 10**9, False
        self._lock = threading.Lock()

    def wrap(self, connect: Any) -> Any:
        """A ``connect`` of a MySQL target whose connections count; none of those that are open already is used any
        more.
        """
        mysql_session.kept.end()

        def opened(endpoint: Any) -> Any:
            connection = connect(endpoint)

            def lose() -> NoReturn:
                connection._force_close()
                raise pymysql.err.OperationalError(2013, "cut by the test")

            for name in ("query", "load"):
                setattr(connection, name, self._counted(getattr(connection, name), lose))
            return connection

        return opened

    def wrap_postgresql(self, connect: Any) -> Any:
        """The same of a PostgreSQL target."""
        postgresql_session.kept.end()

        def opened(*arguments: Any) -> Any:
            connection = connect(*arguments)
            budget, made = self, connection.cursor_factory

            def lose() -> NoReturn:
                connection.pgconn.finish()
                raise psycopg.OperationalError("cut by the test")

            class Counted(made):  # type: ignore[misc, valid-type]
                def execute(self, *args: Any, **named: Any) -> Any:
                    return budget._counted(super().execute, lose)(*args, **named)

                def copy(self, *args: Any, **named: Any) -> Any:
                    budget._counted(lambda: None, lose)()
                    return super().copy(*args, **named)

            connection.cursor_factory = Counted
            return connection

        return opened

    def _counted(self, call: Any, lose: Callable[[], NoReturn]) -> Any:
        def limited(*args: Any, **named: Any) -> Any:
            with self._lock:
                self.left -= 1
                left = self.left
            if left >= 0:
                return call(*args, **named)
            if self.after and left == -1:
                call(*args, **named)
            return lose()

        return limited

    def load(self, pipe: Delivery, changeset: Any, step: int) -> None:
        """Load the pipeline's second batch again and again, cut one statement later each time, until it is there."""
        cuts = 0
        for number in range(0, 1000, step):
            self.left, self.after = number // 2, number % 4 < 2
            try:
                pipe.load(changeset)
            except TargetUnavailable:
                cuts += 1
                self.left = 10**9
                if pipe.held < 2:
                    continue
            break
        self.left = 10**9
        assert cuts * step > 20


def begun(folder: Path, server: Any, db: str, **target: Any) -> tuple[Delivery, Any, Any]:
    """A pipeline to the tables ``people`` (its e-mails are unique) and ``heap`` (no key) of ``db``, and their
    definitions.
    """
    schema, heap = people(db), people(db, "heap")
    heap = type(heap)(heap.table, heap.columns)
    settings = {"parallelism": 2, "options": {"ack_schema": db}, **target}
    return Delivery(folder, server, target=settings), schema, heap


def first(schema: Any, heap: Any) -> dict[Any, Any]:
    return {schema: [insert(i, f"u{i}") for i in range(ROWS)], heap: [insert(i) for i in range(9)]}


def second(schema: Any, heap: Any) -> dict[Any, Any]:
    """Chains and rings of unique values over several units, rows that come and go, a table without a key."""
    chain = [
        update(insert(i, f"u{i}"), email=f"u{i + 1}") for i in range(20, 1, -1)
    ]  # ids in the middle take their neighbour's value
    ring = [update(insert(i, f"u{i}"), email=f"u{i + 1 if i < ROWS - 1 else 25}", points=i) for i in range(25, ROWS)]
    inserted = [insert(ROWS, "u0x"), insert(ROWS + 1, "u21x")]
    rows = [delete(insert(21, "u21")), *chain, *ring, *inserted, delete(insert(0, "u0"))]
    return {schema: rows, heap: [insert(7), insert(7), delete(insert(8))]}


def assert_right(server: Any, db: str) -> None:
    """The tables are as the second batch leaves them."""
    expected = {i: (f"u{i}", None) for i in range(ROWS)}
    expected |= {i: (f"u{i + 1}", None) for i in range(2, 21)}
    expected |= {i: (f"u{i + 1 if i < ROWS - 1 else 25}", i) for i in range(25, ROWS)}
    expected |= {ROWS: ("u0x", None), ROWS + 1: ("u21x", None)}
    del expected[0], expected[21]
    found = server.execute(f"SELECT id, email, points FROM {db}.people")
    assert {i: (email, points) for i, email, points in found} == expected
    counts = dict(server.execute(f"SELECT id, COUNT(*) FROM {db}.heap GROUP BY id"))
    assert counts == {**dict.fromkeys(range(8), 1), 7: 3}
