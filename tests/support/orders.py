"""Two tables, one without a key, that an Airflow delivers; and what can be seen of it from outside."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.pipelines import Case, case


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
        with case(folder, source, target, zookeeper, schema, extra=f"retry: {retry}", name=name) as made:
            made.path.write_text(made.path.read_text().replace("name: copy", f"name: {target_name}"))
            made.run_until_head()
            yield made
    finally:
        for server in (source, target):
            server.execute(f"DROP DATABASE {schema}")


def change(made: Case, number: int) -> None:
    made.source.execute(
        f"INSERT INTO {made.schema}.orders VALUES ({number}, 'n')",
        f"INSERT INTO {made.schema}.journal VALUES ('n{number}')",
        f"UPDATE {made.schema}.orders SET note = CONCAT(LEFT(note, 150), '+') WHERE id > {number - 5}",
    )


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
        process = state.process("copy")
    return process.batch if process else 0


def settled(made: Case) -> bool:
    with made.runtime().state() as state:
        return delivered(made) and not state.undelivered()


def permit(made: Case) -> Any:
    with made.runtime().state() as state:
        return state.permit()


def owner(made: Case) -> str | None:
    with made.runtime().state() as state:
        return state.turns.owner()
