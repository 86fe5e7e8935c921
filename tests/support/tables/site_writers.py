"""Applications of a site: threads that write rows of the site's own, of which every change is counted, or rows that
other sites write, too.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pymysql

from tests.support.running.waiting import ended

ITEMS = (
    "CREATE TABLE items (id INT PRIMARY KEY, uid INT NOT NULL, site VARCHAR(10) NOT NULL, n INT NOT NULL, code "
    "VARCHAR(40) {unique}, note TEXT, KEY (uid))"
)
JOURNAL = "CREATE TABLE journal (site VARCHAR(10) NOT NULL, uid INT NOT NULL, n INT NOT NULL{key})"
"""A row for each change of a row of items, in its transaction.

Without a key a change that was loaded twice is there twice.
"""
SHARED = (
    "CREATE TABLE shared (id INT PRIMARY KEY, site VARCHAR(10) NOT NULL, n INT NOT NULL DEFAULT 0, code "
    "VARCHAR(40) {unique}, note TEXT)"
)
SHARED_KEYS = 60

_MOVED = 100_000_000
_LOST_RACES = {1062, 1213, 1205}
_SERVER_GONE = {0, 1053, 2003, 2006, 2013}
_AGAIN_S = 0.2


def committed(connection: Any, *statements: str) -> None:
    """One transaction, again after a race that it lost against a load."""
    while True:
        connection.begin()
        try:
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
            connection.commit()
            return
        except pymysql.MySQLError as error:
            if error.args[0] not in _LOST_RACES:
                raise
            connection.rollback()


class Writer:
    """One application, until :meth:`stop`.

    ``step``: a transaction, given a cursor; the writer commits it, or takes it back where it lost a race.

    It outlives its server: once there is one again, ``step.ask`` (if there is one), given a cursor, learns what was
    committed, and it goes on.
    """

    def __init__(self, server: Any, schema: str, step: Callable[[Any], None], pause_s: float = 0.01) -> None:
        self._server, self._schema, self._step, self._pause_s = server, schema, step, pause_s
        self._stop = threading.Event()
        self._failed: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, name=f"writer of {server.name}")
        self._thread.start()

    def stop(self) -> None:
        """The last transaction is committed. Raises what the writer raised."""
        self._stop.set()
        ended(self._thread)
        if self._failed:
            raise self._failed[0]

    def _run(self) -> None:
        lost = False
        try:
            while lost or not self._stop.wait(self._pause_s):
                try:
                    self._connected(ask=lost)
                    lost = False
                except (pymysql.MySQLError, OSError) as error:
                    if isinstance(error, pymysql.MySQLError) and error.args[0] not in _SERVER_GONE:
                        raise
                    lost = True
                    time.sleep(_AGAIN_S)
        except BaseException as error:
            self._failed.append(error)

    def _connected(self, *, ask: bool) -> None:
        """Until the stop, or until the server is gone."""
        with self._server.connect(self._schema, autocommit=False) as connection, connection.cursor() as cursor:
            if ask and hasattr(self._step, "ask"):
                self._step.ask(cursor)
                connection.rollback()
            while not self._stop.wait(self._pause_s):
                try:
                    self._step(cursor)
                    connection.commit()
                except pymysql.MySQLError as error:
                    if error.args[0] not in _LOST_RACES:
                        raise
                    connection.rollback()


class OwnRows:
    """Steps of a writer of rows that only this site writes: inserts, updates, new keys, values that rows swap, rows
    that go and come again.

    Attributes:
        changes: uid -> how often the row was changed. gone: uids of rows that were deleted.
    """

    def __init__(self, site: str, first: int, seed: int) -> None:
        """``first``: the site's own uids begin here."""
        self.site, self._next = site, first
        self.changes: dict[int, int] = {}
        self.gone: set[int] = set()
        self._kept = range(0)
        """Those of :meth:`large`."""
        self._choose = random.Random(seed)

    def __call__(self, cursor: Any) -> None:
        """Nobody else writes these rows: no race is lost, so what is counted was committed."""
        there = [uid for uid in self.changes if uid not in self.gone]
        steps = [
            (self._insert, 3),
            (self._update, 4),
            (self._move, 1),
            (self._swap, 1),
            (self._again, 1),
            (self._delete, 1),
        ]
        [step] = self._choose.choices([step for step, _ in steps], [weight for _, weight in steps])
        if len(there) < 10:
            step = self._insert
        step(cursor, there)

    def ask(self, cursor: Any) -> None:
        """The server was gone in the middle of a transaction: whether it was committed, its journal says."""
        cursor.execute("SELECT uid, MAX(n) FROM journal WHERE site = %s GROUP BY uid", (self.site,))
        self.changes = dict(cursor.fetchall())
        cursor.execute("SELECT uid FROM items WHERE site = %s", (self.site,))
        self.gone = self.changes.keys() - {uid for (uid,) in cursor.fetchall()}

    def large(self, cursor: Any, rows: int) -> None:
        """One transaction of so many row changes: rows are inserted, all of them are changed, and each change is in the
        journal.
        """
        first = self._next = self._next + 1
        last = self._next = first + rows // 4 - 1
        cursor.execute("SET SESSION cte_max_recursion_depth = 10000000")
        cursor.execute(
            "INSERT INTO items (id, uid, site, n, code) WITH RECURSIVE s (i) AS (SELECT %s UNION ALL SELECT i + 1 "
            "FROM s WHERE i < %s) SELECT i, i, %s, 1, CONCAT(%s, i) FROM s",
            (first, last, self.site, self.site),
        )
        mine = "WHERE uid BETWEEN %s AND %s"
        for n in (1, 2):
            cursor.execute(f"UPDATE items SET n = %s {mine}", (n, first, last))
            cursor.execute(f"INSERT INTO journal SELECT site, uid, n FROM items {mine}", (first, last))
        self.changes.update(dict.fromkeys(range(first, last + 1), 2))
        self.gone.update(range(first, last + 1))  # the other steps leave them alone
        self._kept = range(first, last + 1)

    @property
    def expected(self) -> dict[int, int]:
        """uid -> n of the rows that are there."""
        return {uid: n for uid, n in self.changes.items() if uid not in self.gone or uid in self._kept}

    def _insert(self, cursor: Any, there: list[int]) -> None:
        for _ in range(self._choose.choice((1, 1, 3, 40))):
            uid = self._next = self._next + 1
            cursor.execute(
                "INSERT INTO items (id, uid, site, n, code) VALUES (%s, %s, %s, 1, %s)",
                (uid, uid, self.site, f"{self.site}{uid}"),
            )
            self._count(cursor, uid)

    def _update(self, cursor: Any, there: list[int]) -> None:
        for uid in sorted(self._choose.sample(there, min(len(there), self._choose.choice((1, 2, 30))))):
            cursor.execute(
                "UPDATE items SET n = n + 1, note = %s WHERE uid = %s", ("x" * self._choose.randrange(200), uid)
            )
            self._count(cursor, uid)

    def _move(self, cursor: Any, there: list[int]) -> None:
        uid = self._choose.choice(there)
        cursor.execute("UPDATE items SET id = (id + %s) %% %s, n = n + 1 WHERE uid = %s", (_MOVED, 2 * _MOVED, uid))
        self._count(cursor, uid)

    def _swap(self, cursor: Any, there: list[int]) -> None:
        one, other = self._choose.sample(there, 2)
        cursor.execute("SELECT uid, code FROM items WHERE uid IN (%s, %s)", (one, other))
        codes = dict(cursor.fetchall())
        cursor.execute("UPDATE items SET code = NULL WHERE uid = %s", (one,))
        for uid, code in ((other, codes[one]), (one, codes[other])):
            cursor.execute("UPDATE items SET code = %s, n = n + 1 WHERE uid = %s", (code, uid))
            self._count(cursor, uid)

    def _again(self, cursor: Any, there: list[int]) -> None:
        """Deleted, and inserted again with the same key."""
        uid = self._choose.choice(there)
        cursor.execute("SELECT id, n, code FROM items WHERE uid = %s", (uid,))
        key, n, code = cursor.fetchone()
        cursor.execute("DELETE FROM items WHERE uid = %s", (uid,))
        cursor.execute(
            "INSERT INTO items (id, uid, site, n, code) VALUES (%s, %s, %s, %s, %s)", (key, uid, self.site, n + 1, code)
        )
        self._count(cursor, uid)

    def _delete(self, cursor: Any, there: list[int]) -> None:
        uid = self._choose.choice(there)
        cursor.execute("DELETE FROM items WHERE uid = %s", (uid,))
        self.gone.add(uid)

    def _count(self, cursor: Any, uid: int) -> None:
        self.changes[uid] = self.changes.get(uid, 0) + 1
        cursor.execute("INSERT INTO journal VALUES (%s, %s, %s)", (self.site, uid, self.changes[uid]))


class SharedRows:
    """Steps of a writer of rows that other sites write at the same time: whatever happens to a row can happen."""

    def __init__(self, site: str, seed: int) -> None:
        self.site, self._choose, self._count = site, random.Random(seed), 0

    def __call__(self, cursor: Any) -> None:
        steps = [(self._put, 4), (self._update, 4), (self._delete, 2), (self._move, 1), (self._swap, 1)]
        self._count += 1
        for _ in range(self._choose.choice((1, 1, 2, 5))):
            [step] = self._choose.choices([step for step, _ in steps], [weight for _, weight in steps])
            step(cursor, self._choose.randrange(SHARED_KEYS))

    def _put(self, cursor: Any, key: int) -> None:
        cursor.execute(
            "REPLACE INTO shared (id, site, n, code) VALUES (%s, %s, %s, %s)",
            (key, self.site, self._count, f"{self.site}{key}-{self._count}"),
        )

    def _update(self, cursor: Any, key: int) -> None:
        cursor.execute(
            "UPDATE shared SET site = %s, n = %s, note = %s WHERE id = %s",
            (self.site, self._count, "y" * self._choose.randrange(50), key),
        )

    def _delete(self, cursor: Any, key: int) -> None:
        cursor.execute("DELETE FROM shared WHERE id = %s", (key,))

    def _move(self, cursor: Any, key: int) -> None:
        cursor.execute(
            "UPDATE IGNORE shared SET id = %s, site = %s WHERE id = %s",
            (self._choose.randrange(SHARED_KEYS), self.site, key),
        )

    def _swap(self, cursor: Any, key: int) -> None:
        other = self._choose.randrange(SHARED_KEYS)
        cursor.execute("SELECT id, code FROM shared WHERE id IN (%s, %s) ORDER BY id FOR UPDATE", (key, other))
        rows = cursor.fetchall()
        if len(rows) == 2:
            (first, code), (second, its) = rows
            cursor.execute("UPDATE shared SET code = NULL WHERE id = %s", (first,))
            cursor.execute("UPDATE shared SET code = %s WHERE id = %s", (code, second))
            cursor.execute("UPDATE shared SET code = %s WHERE id = %s", (its, first))
