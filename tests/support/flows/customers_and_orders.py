"""A pipeline with customers and their orders."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.pipelines.case import Case, case_of

TABLES = (
    """CREATE TABLE `{db}`.customers (
        id INT UNSIGNED AUTO_INCREMENT PRIMARY KEY, email VARCHAR(120) NOT NULL UNIQUE, name VARCHAR(80) NOT NULL,
        born DATE, balance DECIMAL(14,4) NOT NULL DEFAULT 0, settings JSON, created TIMESTAMP(6) DEFAULT CURRENT_TIMESTAMP(6),
        level ENUM('new','silver','gold') NOT NULL DEFAULT 'new', flags SET('a','b','c'), seen TIME(3), photo BLOB)""",
    """CREATE TABLE `{db}`.orders (
        customer INT UNSIGNED NOT NULL, number INT NOT NULL, total DECIMAL(10,2), note TEXT, active BIT(1), year YEAR,
        PRIMARY KEY (customer, number), FOREIGN KEY (customer) REFERENCES customers (id) ON UPDATE CASCADE ON DELETE CASCADE)""",
)


def begin(made: Case) -> None:
    """Write the first position, so that what follows is captured."""
    made.run_until_head()


@contextmanager
def customers_and_orders(
    folder: Path, source: Any, target: Any, zookeeper: Any, fresh_schema: Callable[..., str]
) -> Iterator[Case]:
    """Both tables on both sides, empty."""
    servers = (source, target, zookeeper)
    with case_of(folder, *servers, fresh_schema, *TABLES, options="CHARACTER SET utf8mb4") as made:
        yield made
