"""Clients of the subscription service that make tables of what they get, and the history that they must agree with
after each batch.

Every transaction of the workload counts ``clock.n`` up by one. So a client knows of which transaction its tables are,
and the history has what the tables were after it: a client that begins in the middle takes the tables that it did not
see from there, as of the first ``clock.n`` that it sees changed; and after every batch its tables are compared with
what they were at the source after that transaction.
"""

from __future__ import annotations

import datetime as dt
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from pyarrow import flight

from sluice.client import StoredBatch, Subscription, subscribe
from tests.support.running.waiting import ended

Row = dict[str, Any]
Tables = dict[str, dict[tuple[Any, ...], Row]]
"""By table and primary key."""

KEYS = {"orders": ("id",), "items": ("order_id", "line"), "clock": ("id",)}
COLUMNS = {"orders": ("id", "v", "note", "extra"), "items": ("order_id", "line", "amount"), "clock": ("id", "n")}
CREATE = (
    "CREATE TABLE orders (id INT PRIMARY KEY, v BIGINT, note VARCHAR(60))",
    "CREATE TABLE items (order_id INT, line INT, amount DECIMAL(12, 2) NOT NULL, PRIMARY KEY (order_id, line))",
    "CREATE TABLE clock (id INT PRIMARY KEY, n INT NOT NULL)",
)


def key_of(table: str, row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[column] for column in KEYS[table])


def image(table: str, row: Mapping[str, Any]) -> Row:
    """The table's own columns; one that is not there yet is null."""
    return {column: row.get(column) for column in COLUMNS[table]}


def selected(server: Any, schema: str) -> Tables:
    """What the tables are at a server."""
    found: Tables = {}
    for table in KEYS:
        names = [row[0] for row in server.execute(f"SHOW COLUMNS FROM {table}", database=schema)]
        rows = [dict(zip(names, row, strict=True)) for row in server.execute(f"SELECT * FROM {table}", database=schema)]
        found[table] = {key_of(table, row): image(table, row) for row in rows}
    return found


class Workload(threading.Thread):
    """Transactions at the source, one after the other, until :meth:`finish`.

    ``history[n]``: the tables after transaction n.
    """

    def __init__(self, server: Any, schema: str, seed: int) -> None:
        super().__init__(name="workload", daemon=True)
        self._server, self._schema = server, schema
        self._choose = random.Random(f"{seed}/workload")
        self._over = threading.Event()
        self.error: BaseException | None = None
        self.widened = threading.Event()
        """Set: the next transaction is preceded by a new column of orders."""
        self.history: list[Tables] = [{"orders": {}, "items": {}, "clock": {(1,): {"id": 1, "n": 0}}}]
        self._wide = False
        self.last: int | None = None
        """The number of the last transaction, known before that begins."""

    @property
    def done(self) -> int:
        """Transactions so far; the last one may not be committed yet."""
        return len(self.history) - 1

    def end(self) -> None:
        self._over.set()
        ended(self)

    def finish(self) -> int:
        """The number of the last transaction."""
        self.end()
        assert self.error is None, self.error
        return self.done

    def run(self) -> None:
        try:
            with closing(self._server.connect()) as connection, connection.cursor() as cursor:
                cursor.execute(f"USE {self._schema}")
                while not self._over.is_set():
                    if self.widened.is_set() and not self._wide:
                        cursor.execute("ALTER TABLE orders ADD COLUMN extra INT")
                        self._wide = True
                    self._transact(connection, cursor)
                    self._over.wait(self._choose.uniform(0.005, 0.06))
                self.last = len(self.history)
                self._transact(connection, cursor)
        except BaseException as error:
            self.error = error

    def _transact(self, connection: Any, cursor: Any) -> None:
        tables = {table: dict(rows) for table, rows in self.history[-1].items()}
        number = len(self.history)
        tables["clock"] = {(1,): {"id": 1, "n": number}}
        connection.begin()
        for _ in range(self._choose.choice((1, 1, 2, 4))):
            for statement in self._choose.choice(_CHANGES)(self._choose, tables, self._wide):
                cursor.execute(statement)
        cursor.execute(f"UPDATE clock SET n = {number}")
        self.history.append(tables)  # before anyone can see it
        connection.commit()


def _literal(value: Any) -> str:
    return "NULL" if value is None else f"'{value}'" if isinstance(value, str) else str(value)


def _some(choose: random.Random, tables: Tables, table: str) -> tuple[Any, ...] | None:
    return choose.choice(sorted(tables[table])) if tables[table] else None


def _insert(choose: random.Random, tables: Tables, wide: bool) -> list[str]:
    made = []
    for _ in range(choose.choice((1, 1, 5))):
        id_ = choose.randrange(1, 200)
        if (id_,) in tables["orders"]:
            continue
        row = {"id": id_, "v": choose.choice((None, choose.randrange(-(2**62), 2**62))),
            "note": choose.choice((None, "", "é€😀", f"note {id_}")),
               "extra": choose.choice((None, id_)) if wide else None}  # fmt: skip
        tables["orders"][(id_,)] = row
        columns = [column for column in row if wide or column != "extra"]
        made.append(
            f"INSERT INTO orders ({', '.join(columns)}) VALUES "
            f"({', '.join(_literal(row[column]) for column in columns)})"
        )
        for line in range(1, choose.randrange(1, 4)):
            amount = Decimal(choose.randrange(-(10**6), 10**6)).scaleb(-2)
            if (id_, line) not in tables["items"]:
                tables["items"][id_, line] = {"order_id": id_, "line": line, "amount": amount}
                made.append(f"INSERT INTO items VALUES ({id_}, {line}, {amount})")
    return made


def _update(choose: random.Random, tables: Tables, wide: bool) -> list[str]:
    rest, value = choose.randrange(5), choose.randrange(10**6)
    for key, row in tables["orders"].items():
        if key[0] % 5 == rest:
            tables["orders"][key] = {**row, "v": value}
    return [f"UPDATE orders SET v = {value} WHERE id % 5 = {rest}"]


def _update_item(choose: random.Random, tables: Tables, wide: bool) -> list[str]:
    key = _some(choose, tables, "items")
    if key is None:
        return []
    row = tables["items"][key]
    tables["items"][key] = {**row, "amount": row["amount"] + 1}
    return [f"UPDATE items SET amount = amount + 1 WHERE order_id = {key[0]} AND line = {key[1]}"]


def _delete(choose: random.Random, tables: Tables, wide: bool) -> list[str]:
    key = _some(choose, tables, "orders")
    if key is None:
        return []
    del tables["orders"][key]
    for item in [item for item in tables["items"] if item[0] == key[0]]:
        del tables["items"][item]
    return [f"DELETE FROM items WHERE order_id = {key[0]}", f"DELETE FROM orders WHERE id = {key[0]}"]


def _move(choose: random.Random, tables: Tables, wide: bool) -> list[str]:
    """The key of an order, and those of its items with it."""
    key, to = _some(choose, tables, "orders"), choose.randrange(1, 200)
    if key is None or (to,) in tables["orders"] or any(item[0] == to for item in tables["items"]):
        return []
    tables["orders"][(to,)] = {**tables["orders"].pop(key), "id": to}
    for item in [item for item in tables["items"] if item[0] == key[0]]:
        tables["items"][to, item[1]] = {**tables["items"].pop(item), "order_id": to}
    return [
        f"UPDATE orders SET id = {to} WHERE id = {key[0]}",
        f"UPDATE items SET order_id = {to} WHERE order_id = {key[0]}",
    ]


def _swap(choose: random.Random, tables: Tables, wide: bool) -> list[str]:
    """Two orders take each other's key."""
    one, other = _some(choose, tables, "orders"), _some(choose, tables, "orders")
    if one is None or other is None or one == other:
        return []
    orders = tables["orders"]
    orders[one], orders[other] = {**orders[other], "id": one[0]}, {**orders[one], "id": other[0]}
    return [
        f"UPDATE orders SET id = -1 WHERE id = {one[0]}",
        f"UPDATE orders SET id = {one[0]} WHERE id = {other[0]}",
        f"UPDATE orders SET id = {other[0]} WHERE id = -1",
    ]


def _again(choose: random.Random, tables: Tables, wide: bool) -> list[str]:
    """Deleted and inserted under the same key."""
    key = _some(choose, tables, "orders")
    if key is None:
        return []
    tables["orders"][key] = {"id": key[0], "v": 1, "note": "again", "extra": None}
    return [
        f"DELETE FROM orders WHERE id = {key[0]}",
        f"INSERT INTO orders (id, v, note) VALUES ({key[0]}, 1, 'again')",
    ]


_CHANGES: tuple[Callable[[random.Random, Tables, bool], list[str]], ...] = (
    _insert, _insert, _insert, _update, _update_item, _update_item, _delete, _move, _swap, _again,
)  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """What a client asks for, and how it behaves.

    Attributes:
        start: what makes ``from`` when it begins; it gets the number of the newest batch. tables: those that it reads,
            the clock among them.
        waits_for: it begins when this is set. ack_every, crash: of a named one: it acknowledges every so many batches,
            and is started again after a batch with that probability, with what it made of batches that it did not
            acknowledge (``keeps``) or without. An unnamed one goes on after the last batch whose number it noted.
    """

    who: str
    start: Callable[[random.Random, int], Any]
    form: str = "changes"
    named: bool = False
    tables: tuple[str, ...] = tuple(KEYS)
    waits_for: str = "begin"
    window: int = 8
    ack_every: int = 1
    crash: float = 0.0
    keeps: bool = True
    hangs: bool = False
    slow_s: float = 0.0


@dataclass
class State:
    """What a client has made.

    ``number``: of the last batch in it, 0 before the first; ``tables`` None: it saw no change of the clock yet.
    """

    tables: Tables | None = None
    number: int = 0


class Disagreement(AssertionError):
    """A client has other tables than the source had."""


@dataclass
class Client:
    """See :meth:`run`."""

    plan: Plan
    address: str
    schema: str
    seed: int
    workload: Workload
    gates: Mapping[str, threading.Event]
    newest: Callable[[], int]
    state: State = field(default_factory=State)
    batches: int = 0
    resets: int = 0
    starts: int = 0
    last: int | None = None
    error: BaseException | None = None
    left: list[Any] = field(default_factory=list)

    def begin(self) -> Client:
        self.thread = threading.Thread(target=self._run, name=self.plan.who, daemon=True)
        self.thread.start()
        return self

    def _run(self) -> None:
        try:
            self.run()
        except BaseException as error:
            self.error = error

    def run(self) -> None:
        """Read until the tables are of the last transaction."""
        choose = random.Random(f"{self.seed}/{self.plan.who}")
        assert self.gates[self.plan.waits_for].wait(600)
        start: Any = self.plan.start(choose, self.newest())
        safe = State()
        while not self._is_done():
            self.starts += 1
            if self.plan.named:
                self.state = self.state if self.plan.keeps else copied(safe)
                safe = self._named(start, choose, safe)
            else:
                self._unnamed(start if not self.state.number else {"batch": self.state.number + 1}, choose)

    def _named(self, start: Any, choose: random.Random, safe: State) -> State:
        """One process of a named subscription; what is safe when it ends."""
        plan, open_ = self.plan, 0
        given = self._subscribe(start, name=plan.who, window=plan.window)
        assert isinstance(given, Subscription)
        for batch in given:
            self._take(batch)
            time.sleep(plan.slow_s)
            open_ += 1
            if open_ >= plan.ack_every or self._is_done():
                batch.ack()
                safe, open_ = copied(self.state), 0
            if self._is_done() or choose.random() < plan.crash:
                break
        if plan.hangs:
            self.left.append(given)  # a process that stands still: its side is never closed
        else:
            given.close()
        return safe

    def _unnamed(self, start: Any, choose: random.Random) -> None:
        given = self._subscribe(start)
        try:
            for batch in given:
                self._take(batch)
                time.sleep(self.plan.slow_s)
                if self._is_done() or choose.random() < self.plan.crash:
                    break
        except flight.FlightUnavailableError:
            if start != "latest":
                raise  # with `latest`, a stream that breaks off before its first batch does not know where it was
        finally:
            given.close()

    def _subscribe(self, start: Any, **more: Any) -> Any:
        tables = [f"{self.schema}.{table}" for table in self.plan.tables]
        return subscribe(self.address, "case", tables=tables, start=start, form=self.plan.form, patience_s=300, **more)

    def _take(self, batch: StoredBatch) -> None:
        self.batches += 1
        self.resets += batch.replaces_all
        rows = batch.rows.to_pylist()
        if batch.replaces_all:
            self.state.tables = {table: {} for table in self.plan.tables}
        elif not self.plan.named and batch.number <= self.state.number:
            raise Disagreement(f"batch {batch.number} after {self.state.number}")
        if self.state.tables is None:
            ticks = [row for row in rows if row["_table"].endswith(".clock")]
            if not ticks:  # of no transaction of the workload
                assert not rows, rows
                return
            first = min(ticks, key=lambda row: row["n"])
            held = self.workload.history[first["_before"]["n"]] if first["_before"] else {table: {} for table in KEYS}
            self.state.tables = {table: dict(held[table]) for table in self.plan.tables}
        for row in rows:
            self._apply(self.state.tables, row)
        comes_again = batch.number < self.state.number and not batch.replaces_all
        if not comes_again:  # else its tables are of the later ones, with rows of this one until those came again, too
            self.state.number = batch.number
            self._compare(batch.number)

    def _apply(self, tables: Tables, row: Row) -> None:
        name = row["_table"].partition(".")[2]
        table = tables[name]
        if self.plan.form == "changes" and row["_op"] == "u":
            table.pop(key_of(name, row["_before"]), None)
        if row["_op"] == "d":
            table.pop(key_of(name, row), None)
        else:
            table[key_of(name, row)] = image(name, row)

    def _compare(self, number: int) -> None:
        """With the source after the transaction that the clock says."""
        assert self.state.tables is not None
        if not self.state.tables["clock"]:
            raise Disagreement(f"batch {number}: no clock")
        self.last = self.state.tables["clock"][(1,)]["n"]
        wanted = self.workload.history[self.last]
        for table in self.plan.tables:
            difference(
                f"after batch {number}, transaction {self.last}: {table}", self.state.tables[table], wanted[table]
            )

    def _is_done(self) -> bool:
        return self.last is not None and self.last == self.workload.last

    def describe(self) -> str:
        return (
            f"{self.plan.who}: {self.batches} batches, {self.resets} snapshots, {self.starts} starts, at "
            f"transaction {self.last}"
        )


def copied(state: State) -> State:
    tables = None if state.tables is None else {table: dict(rows) for table, rows in state.tables.items()}
    return replace(state, tables=tables)


def difference(what: str, found: Mapping[Any, Row], wanted: Mapping[Any, Row]) -> None:
    """Raises Disagreement with what differs."""
    if found == wanted:
        return
    missing = {key: row for key, row in wanted.items() if key not in found}
    extra = {key: row for key, row in found.items() if key not in wanted}
    other = {key: (found[key], row) for key, row in wanted.items() if key in found and found[key] != row}
    parts = [
        f"{name} {dict(list(rows.items())[:3])}"
        for name, rows in (("missing", missing), ("extra", extra), ("other", other))
        if rows
    ]
    raise Disagreement(f"{what}: {'; '.join(parts)}")


def earliest(choose: random.Random, newest: int) -> Any:
    return "earliest"


def latest(choose: random.Random, newest: int) -> Any:
    return "latest"


def snapshot(choose: random.Random, newest: int) -> Any:
    return "snapshot"


def some_batch(choose: random.Random, newest: int) -> Any:
    return {"batch": choose.randrange(1, newest + 1)}


def first_batch(choose: random.Random, newest: int) -> Any:
    return {"batch": 1}


def some_time(choose: random.Random, newest: int) -> Any:
    at = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=choose.uniform(0, 8))
    return {"timestamp": at.isoformat()}


def closed(clients: list[Client]) -> None:
    """What stood still ends."""
    for client in clients:
        for one in client.left:
            with suppress(Exception):
                one.close()


def plans(choose: random.Random) -> Iterator[Plan]:
    """Twenty of them."""
    form: Callable[[], str] = lambda: choose.choice(("changes", "merged"))  # noqa: E731
    yield Plan("reads all", earliest)
    yield Plan("reads all, merged", earliest, "merged")
    yield Plan("reads all and is restarted", earliest, form(), crash=0.2)
    yield Plan("reads two tables", earliest, form(), tables=("orders", "clock"))
    yield Plan("latest", latest, form(), waits_for="early")
    yield Plan("latest, late", latest, form(), waits_for="late", crash=0.1)
    yield Plan("batch, early", some_batch, form(), waits_for="early")
    yield Plan("batch, late", some_batch, form(), waits_for="late", crash=0.2)
    yield Plan("timestamp", some_time, form(), waits_for="early")
    yield Plan("snapshot, early", snapshot, form(), waits_for="early", crash=0.1)
    yield Plan("snapshot, late", snapshot, form(), waits_for="late")
    yield Plan("first batch, removed", first_batch, form(), waits_for="late")
    yield Plan("named", earliest, named=True)
    yield Plan("named_merged", earliest, "merged", named=True, window=3)
    yield Plan("named_restarted", some_batch, form(), named=True, waits_for="early", crash=0.25, ack_every=3)
    yield Plan("named_forgets", earliest, form(), named=True, crash=0.25, ack_every=4, keeps=False)
    yield Plan("named_latest", latest, form(), named=True, waits_for="early", crash=0.1, ack_every=2, keeps=False)
    yield Plan("named_snapshot", snapshot, form(), named=True, waits_for="early", crash=0.2, ack_every=2, keeps=False)
    yield Plan("named_hangs", earliest, form(), named=True, crash=0.15, ack_every=2, hangs=True)
    yield Plan("named_slow", earliest, form(), named=True, window=2, ack_every=2, slow_s=1.5)
