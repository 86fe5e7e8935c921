"""Customers, of whom a rule or the target does not take some."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sluice.operations.deadletters.replay import replay
from tests.support.pipelines.case import Case, case_of

TABLE = "CREATE TABLE `{db}`.customers (id INT PRIMARY KEY, email VARCHAR(80) UNIQUE, name VARCHAR(80), paid INT)"


def made(
    folder: Path,
    source: Any,
    target: Any,
    zookeeper: Any,
    fresh_schema: Callable[..., str],
    extra: str = "",
    target_extra: str = "",
) -> Any:
    """The pipeline, as a context."""
    settings = {"options": "CHARACTER SET utf8mb4", "extra": extra, "target_extra": target_extra}
    return case_of(folder, source, target, zookeeper, fresh_schema, TABLE, **settings)


def insert(shop: Case, *rows: tuple[int, str, int]) -> None:
    values = ", ".join(f"({i}, 'm{i}@x.org', '{name}', {paid})" for i, name, paid in rows)
    shop.source.execute(f"INSERT INTO `{shop.schema}`.customers VALUES {values}")
    shop.run_until_head()


def source(shop: Case, statement: str) -> None:
    shop.source.execute(statement.format(t=f"`{shop.schema}`.customers"))
    shop.run_until_head()


def target(shop: Case) -> list[tuple[Any, ...]]:
    return list(shop.target.execute(f"SELECT id, name, paid FROM `{shop.schema}`.customers ORDER BY id"))


def log_file(shop: Case) -> str:
    return str(shop.source.execute("SHOW BINARY LOG STATUS")[0][0])


def outcomes(shop: Case, *ids: str) -> list[str]:
    return [done.outcome for done in replay(shop.runtime(), ids, by="test")]


@contextmanager
def loading_pipeline(
    folder: Path, source: Any, target: Any, zookeeper: Any, fresh_schema: Callable[..., str]
) -> Iterator[Case]:
    """A target that refuses long names and keeps them as dead letters."""
    with made(folder, source, target, zookeeper, fresh_schema, target_extra="    on_error: dead_letter") as shop:
        shop.target.execute(f"ALTER TABLE `{shop.schema}`.customers MODIFY name VARCHAR(5)")
        shop.run_until_head()
        yield shop
