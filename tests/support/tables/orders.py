"""Two tables, one without a key, that an Airflow delivers; and what can be seen of it from outside."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.pipelines.case import Case, case
from tests.support.running.waiting import beside


@contextmanager
def orders_case(
    folder: Path,
    source: Any,
    target: Any,
    zookeeper: Any,
    *,
    name: str,
    target_name: str = "copy",
    retry: str = "{delay: 1s, max_delay: 3s}",
    run: str = "{max_time: 2s}",
    hidden: bool = False,
) -> Iterator[Case]:
    """A pipeline of this name, with a schema of its own, that has its first position."""
    schema = f"airflow_{name}"
    for server in (source, target):
        server.execute(
            f"CREATE DATABASE {schema}",
            f"CREATE TABLE {schema}.orders (id INT PRIMARY KEY, note VARCHAR(200))",
            f"CREATE TABLE {schema}.journal (what VARCHAR(40) NOT NULL)",
        )
    try:
        with case(
            folder, source, target, zookeeper, schema, extra=f"retry: {retry}\nrun: {run}", name=name, hidden=hidden
        ) as made:
            made.path.write_text(made.path.read_text().replace("name: copy", f"name: {target_name}"))
            made.run_until_head()
            yield made
    finally:
        for server in (source, target):
            server.execute(f"DROP DATABASE {schema}")


def change(made: Case) -> None:
    """Write a row to each table, and change the newest five orders.

    The number is the next one, whatever other tests wrote.
    """
    [(number,)] = made.source.execute(f"SELECT COALESCE(MAX(id), 0) + 1 FROM {made.schema}.orders")
    made.source.execute(
        f"INSERT INTO {made.schema}.orders VALUES ({number}, 'n')",
        f"INSERT INTO {made.schema}.journal VALUES ('n{number}')",
        f"UPDATE {made.schema}.orders SET note = CONCAT(LEFT(note, 150), '+') WHERE id > {number - 5}",
    )


@contextmanager
def written(made: Case, every_s: float = 0.1) -> Iterator[None]:
    """Changes all the time, in a thread."""

    def write(over: threading.Event) -> None:
        while not over.wait(every_s):
            change(made)

    with beside(write):
        yield


class History:
    """Every move of the batch that the target says it holds, by a trigger on its checkpoint."""

    def __init__(self, made: Case) -> None:
        self._made = made
        schema = made.schema
        if not made.target.execute(f"SHOW TABLES FROM {schema} LIKE '%history'"):
            made.target.execute(
                f"CREATE TABLE {schema}._history (id INT AUTO_INCREMENT PRIMARY KEY, old BIGINT, new BIGINT)",
                f"CREATE TRIGGER {schema}._watch AFTER UPDATE ON {schema}._sluice_ack FOR EACH ROW BEGIN "
                "IF NEW.scope = '' AND NEW.batch <> OLD.batch THEN "
                f"INSERT INTO {schema}._history (old, new) VALUES (OLD.batch, NEW.batch); END IF; END",
            )

    def assert_in_order(self) -> None:
        """Each batch once, one after the other; at least the three that every test waits for, whichever tests of its
        file ran before it.
        """
        moves = self._made.target.execute(f"SELECT old, new FROM {self._made.schema}._history ORDER BY id")
        assert len(moves) >= 3, moves
        assert all(new == old + 1 for old, new in moves)
        assert [old for old, _ in moves[1:]] == [new for _, new in moves[:-1]]


def batches_of(made: Case, claim: str) -> list[int]:
    """The batches of a run."""
    with made.runtime().state() as state:
        return [int(batch.number) for batch in state.batches.claimed_all(claim)]


def delivered(made: Case) -> bool:
    """Both sides hold the same rows, the table without a key among them."""
    rows = []
    for server in (made.source, made.target):
        rows.append([
            server.execute(f"SELECT * FROM {made.schema}.orders ORDER BY id"),
            server.execute(f"SELECT what, COUNT(*) FROM {made.schema}.journal GROUP BY what ORDER BY what"),
        ])
    return bool(rows[0] == rows[1])


def acknowledged(made: Case) -> int:
    with made.runtime().state() as state:
        process = state.acks.get("copy")
    return process.batch if process else 0


def settled(made: Case) -> bool:
    with made.runtime().state() as state:
        return delivered(made) and not state.undelivered()


def pause_state(made: Case) -> Any:
    with made.runtime().state() as state:
        return state.pause_switch.read()


def owner(made: Case) -> str | None:
    with made.runtime().state() as state:
        return state.election.leader_name()
