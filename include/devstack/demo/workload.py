"""Random, seeded, transactional changes to the shop from several connections: inserts, updates, key changes,
deletes.
"""

# ruff: noqa: S311, S608  (random choices and fixed table names; nothing here guards anything)
from __future__ import annotations

import contextlib
import itertools
import random
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pymysql
from pymysql.cursors import Cursor

from devstack.demo.shop import Shop
from sluice.errors import SourceUnavailable

Connect = Callable[[], "pymysql.connections.Connection[Cursor]"]

# Lost races between the connections, and nothing else: duplicate key, row is referenced, no referenced row, deadlock,
# lock wait timeout.
_LOST_RACES = {1062, 1451, 1452, 1213, 1205}


@dataclass
class Tally:
    """The work that a workload has done: row changes (as the log counts them), transactions, races lost."""

    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    transactions: int = 0
    lost_races: int = 0

    @property
    def changes(self) -> int:
        """The row changes of all kinds together."""
        return self.inserts + self.updates + self.deletes

    def add(self, other: Tally) -> None:
        """Add the numbers of another tally to this one."""
        for name in ("inserts", "updates", "deletes", "transactions", "lost_races"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


def seed(
    connect: Connect, schema: str, *, customers: int = 200, products: int = 100, orders: int = 400, number: int = 1
) -> Tally:
    """Fill the empty shop with customers, products, and orders of one to five lines each."""
    tally = Tally()
    with contextlib.closing(connect()) as connection:
        worker = _Worker(connection, schema, random.Random(number), "s", 0)
        for count, step in (
            (customers, worker.add_customer),
            (products, worker.add_product),
            (orders, worker.add_order),
        ):
            for start in range(0, count, 100):
                while not worker.whole(step, min(100, count - start)):
                    pass  # something else writes, too: a channel that sends back what it was sent
        tally.add(worker.tally)
    return tally


@dataclass
class Workload:
    """Changes from ``connections`` connections until one of the limits; bounded always.

    Args:
        connect: opens a connection (autocommit is switched off on it).
        schema: the shop's schema.
        connections: threads, each with a connection of its own.
        changes_per_s: over all connections; None: as fast as it goes.
        seconds, changes: stop after this time, or this number of row changes; at least one is given.
        number: seed of the random choices.
        swaps: False: no row takes over a unique value of another one.
    """

    connect: Connect
    schema: str
    connections: int = 4
    changes_per_s: float | None = None
    seconds: float | None = None
    changes: int | None = None
    number: int = 1
    swaps: bool = True
    tally: Tally = field(default_factory=Tally)
    _stop: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _threads: list[threading.Thread] = field(default_factory=list)
    _errors: list[BaseException] = field(default_factory=list)

    def start(self) -> Workload:
        """Begin in the background."""
        if self.seconds is None and self.changes is None:
            raise ValueError("a workload needs a limit: seconds or changes")
        for index in range(self.connections):
            thread = threading.Thread(target=self._run, args=(index,), name=f"workload-{index}", daemon=True)
            self._threads.append(thread)
            thread.start()
        return self

    def wait(self) -> Tally:
        """Wait for the end. Raises what a connection raised (SourceUnavailable when the server went away)."""
        for thread in self._threads:
            while thread.is_alive():
                thread.join(0.2)  # an interrupt gets through between the joins
        if self._errors:
            raise self._errors[0]
        return self.tally

    def run(self) -> Tally:
        """Start the workload and wait for its end. Raises as :meth:`wait` does."""
        return self.start().wait()

    def stop(self) -> None:
        """Ask all connections to stop after their transaction."""
        self._stop.set()

    @property
    def running(self) -> bool:
        """True while a connection still works."""
        return any(thread.is_alive() for thread in self._threads)

    def _run(self, index: int) -> None:
        begin = time.monotonic()
        run = f"{self.number:x}"
        try:
            with contextlib.closing(self.connect()) as connection:
                chance = random.Random(f"{self.number}/{index}")
                worker = _Worker(connection, self.schema, chance, f"w{run}c{index}", index, swaps=self.swaps)
                while not self._stop.is_set():
                    worker.transaction()
                    with self._lock:
                        self.tally.add(worker.tally)
                        done = self.tally.changes
                    worker.tally = Tally()
                    elapsed = time.monotonic() - begin
                    if self.seconds is not None and elapsed >= self.seconds:
                        return
                    if self.changes is not None and done >= self.changes:
                        self._stop.set()
                    if self.changes_per_s is not None:
                        ahead_s = done / self.changes_per_s - elapsed
                        if ahead_s > 0:
                            self._stop.wait(min(ahead_s, 1.0))
        except pymysql.MySQLError as error:
            failure = SourceUnavailable(f"the workload lost its connection: {error}")
            failure.__cause__ = error
            self._errors.append(failure)
            self._stop.set()
        except BaseException as error:
            self._errors.append(error)
            self._stop.set()


class _Worker:
    """One connection's changes.

    Keeps a sample of the keys that exist; others may delete them meanwhile, which is fine.
    """

    def __init__(
        self, connection: Any, schema: str, chance: random.Random, name: str, index: int, *, swaps: bool = True
    ) -> None:
        self.connection = connection
        self.chance = chance
        self.shop = Shop(chance)
        self.name = name
        self.tally = Tally()
        self._numbers = itertools.count(1)
        connection.select_db(schema)
        connection.autocommit(False)
        self.cursor = connection.cursor()
        self.cursor.execute("SET SESSION innodb_lock_wait_timeout = 5")
        self.cursor.execute("SET SESSION transaction_isolation = 'READ-COMMITTED'")
        self.customers = self._keys("SELECT id FROM customers ORDER BY RAND() LIMIT 2000")
        self.products = self._keys("SELECT id FROM products ORDER BY RAND() LIMIT 2000")
        self.orders = self._keys("SELECT id FROM orders ORDER BY RAND() LIMIT 4000")
        # Product ids span the whole unsigned range, so that both halves of BIGINT UNSIGNED are in the log.
        self._product_base = (1 << 63) * (index % 2) + (zlib.crc32(name.encode()) % 1000 + 1) * 10**12
        self._steps: Sequence[tuple[int, Callable[[], None]]] = (
            (24, self.add_order), (6, self.add_customer), (4, self.add_product), (14, self.change_order),
            (14, self.change_customer), (12, self.change_product), (12, self.change_lines), (3, self.move_product),
            (3, self.swap_emails), (2, self.move_line), (2, self.move_customer), (4, self.drop_order),
            (2, self.drop_customer), (1, self.drop_product), (1, self.swap_skus), (1, self.come_and_go),
        )  # fmt: skip
        if not swaps:
            self._steps = [step for step in self._steps if step[1] not in {self.swap_emails, self.swap_skus}]
        self._weights = [weight for weight, _ in self._steps]

    # -- transactions ----------------------------------------------------------------------------------------------
    def transaction(self) -> None:
        """Commit one to four random steps; roll back (and don't count) when a race is lost."""

        def step() -> None:
            self.chance.choices(self._steps, self._weights)[0][1]()

        if not self._committed(step, self.chance.choice((1, 1, 2, 4))):
            self.tally.lost_races += 1

    def whole(self, step: Callable[[], None], times: int) -> bool:
        """Commit a transaction of one step, repeated ``times``; False, with nothing written, when a race is lost."""
        known = [len(keys) for keys in (self.customers, self.products, self.orders)]
        done = self._committed(step, times)
        if not done:
            for keys, length in zip((self.customers, self.products, self.orders), known, strict=True):
                del keys[length:]
        return done

    def _committed(self, step: Callable[[], None], times: int) -> bool:
        """Commit a transaction; False, rolled back and not counted, when a race is lost."""
        before = Tally(**vars(self.tally))
        try:
            for _ in range(times):
                step()
            self.commit()
        except pymysql.MySQLError as error:
            if error.args[0] not in _LOST_RACES:
                raise
            self.connection.rollback()
            self.tally = before
            return False
        return True

    def commit(self) -> None:
        self.connection.commit()
        self.tally.transactions += 1

    # -- steps -----------------------------------------------------------------------------------------------------
    def add_customer(self) -> None:
        self._insert("customers", self.shop.customer(self._unique()))
        self._remember(self.customers, self.cursor.lastrowid)

    def add_product(self) -> None:
        number = self._product_base + next(self._numbers)
        self._insert("products", self.shop.product(number, self._sku()))
        self._remember(self.products, number)

    def add_order(self) -> None:
        if not self.customers or not self.products:
            return self.add_customer() if not self.customers else self.add_product()
        self._insert("orders", self.shop.order(self.chance.choice(self.customers), self._unique().encode()))
        order = self.cursor.lastrowid
        for line in range(1, self.chance.randint(1, 5) + 1):
            self._insert("order_lines", self.shop.line(order, line, self.chance.choice(self.products)))
        self._remember(self.orders, order)
        return None

    def change_order(self) -> None:
        row = self.shop.order(0, b"")
        self._update("orders", {k: row[k] for k in ("state", "paid_at", "total", "note", "address")}, self.orders)

    def change_customer(self) -> None:
        row = self.shop.customer("")
        columns = self.chance.sample([c for c in row if c != "email"], 4)
        self._update("customers", {k: row[k] for k in columns}, self.customers)

    def change_product(self) -> None:
        row = self.shop.product(0, "")
        columns = self.chance.sample([c for c in row if c not in {"id", "sku"}], 3)
        self._update("products", {k: row[k] for k in columns}, self.products)

    def change_lines(self) -> None:
        if self.orders:
            self._execute(
                "updates",
                "UPDATE order_lines SET quantity = quantity + 1, discount = %s WHERE order_id = %s",
                (self.shop.line(0, 0, 0)["discount"], self.chance.choice(self.orders)),
            )

    def move_product(self) -> None:
        """Change the primary and the unique key of a product that no order line needs."""
        if self.products:
            old, new = self.chance.choice(self.products), self._product_base + next(self._numbers)
            free = "NOT EXISTS (SELECT 1 FROM order_lines WHERE product_id = products.id)"
            self._execute(
                "updates", f"UPDATE products SET id = %s, sku = %s WHERE id = %s AND {free}", (new, self._sku(), old)
            )

    def move_customer(self) -> None:
        """Change the primary key of a customer without orders to one below the range of AUTO_INCREMENT."""
        if self.customers:
            old, new = self.chance.choice(self.customers), self.chance.randint(1, 999_999)
            free = "NOT EXISTS (SELECT 1 FROM orders WHERE customer_id = customers.id)"
            self._execute("updates", f"UPDATE customers SET id = %s WHERE id = %s AND {free}", (new, old))

    def move_line(self) -> None:
        """Change a part of a composite key."""
        if self.orders:
            self._execute(
                "updates",
                "UPDATE order_lines SET line = line + 100 WHERE order_id = %s ORDER BY line DESC LIMIT 2",
                (self.chance.choice(self.orders),),
            )

    def swap_emails(self) -> None:
        """Exchange a unique value between two rows; inside a batch only the end is seen."""
        self._swap("customers", "email", self.customers)

    def swap_skus(self) -> None:
        self._swap("products", "sku", self.products)

    def come_and_go(self) -> None:
        """Insert and delete a row within one transaction, and use its key again."""
        number = self._product_base + next(self._numbers)
        for _ in range(2):
            self._insert("products", self.shop.product(number, self._sku()))
            self._execute("deletes", "DELETE FROM products WHERE id = %s", (number,))

    def drop_order(self) -> None:
        if self.orders:
            order = self.orders.pop(self.chance.randrange(len(self.orders)))
            self._execute("deletes", "DELETE FROM order_lines WHERE order_id = %s", (order,))
            self._execute("deletes", "DELETE FROM orders WHERE id = %s", (order,))

    def drop_customer(self) -> None:
        if self.customers:
            customer = self.chance.choice(self.customers)
            self._execute(
                "deletes",
                "DELETE c FROM customers c WHERE c.id = %s"
                " AND NOT EXISTS (SELECT 1 FROM orders o WHERE o.customer_id = c.id)",
                (customer,),
            )

    def drop_product(self) -> None:
        if self.products:
            product = self.chance.choice(self.products)
            self._execute(
                "deletes",
                "DELETE p FROM products p WHERE p.id = %s"
                " AND NOT EXISTS (SELECT 1 FROM order_lines l WHERE l.product_id = p.id)",
                (product,),
            )

    # -- inside ----------------------------------------------------------------------------------------------------
    def _swap(self, table: str, column: str, keys: list[int]) -> None:
        if len(keys) < 2:
            return
        first, second = sorted(self.chance.sample(keys, 2))
        query = f"SELECT id, {column} FROM {table} WHERE id IN (%s, %s) ORDER BY id FOR UPDATE"
        self.cursor.execute(query, (first, second))
        rows: Sequence[tuple[Any, Any]] = self.cursor.fetchall()
        if len(rows) != 2:
            return
        update = f"UPDATE {table} SET {column} = %s WHERE id = %s"
        free = self._sku() if column == "sku" else self._unique()
        for value, key in ((free, rows[0][0]), (rows[0][1], rows[1][0]), (rows[1][1], rows[0][0])):
            self._execute("updates", update, (value, key))

    def _insert(self, table: str, row: Mapping[str, Any]) -> None:
        columns = ", ".join(f"`{name}`" for name in row)
        marks = ", ".join(["%s"] * len(row))
        self._execute("inserts", f"INSERT INTO {table} ({columns}) VALUES ({marks})", tuple(row.values()))

    def _update(self, table: str, row: Mapping[str, Any], keys: list[int]) -> None:
        if keys:
            sets = ", ".join(f"`{name}` = %s" for name in row)
            query = f"UPDATE {table} SET {sets} WHERE id = %s"
            self._execute("updates", query, (*row.values(), self.chance.choice(keys)))

    def _execute(self, kind: str, query: str, values: tuple[Any, ...]) -> None:
        changed = self.cursor.execute(query, values)
        setattr(self.tally, kind, getattr(self.tally, kind) + changed)

    def _keys(self, query: str) -> list[int]:
        self.cursor.execute(query)
        keys = [int(row[0]) for row in self.cursor.fetchall()]
        self.connection.commit()
        return keys

    def _remember(self, keys: list[int], key: int) -> None:
        if len(keys) >= 4000:
            keys[self.chance.randrange(len(keys))] = key
        else:
            keys.append(key)

    def _unique(self) -> str:
        return f"{self.name}-{next(self._numbers)}"

    def _sku(self) -> str:
        return f"{zlib.crc32(self.name.encode()) % 2**20:05X}{next(self._numbers):X}"[:10]
