"""Reports of ``sluice check`` about tables that the target lacks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.pipelines.case import Case, case

PEOPLE = """CREATE TABLE `{db}`.people (id INT UNSIGNED AUTO_INCREMENT PRIMARY KEY, email VARCHAR(120) NOT NULL, born DATETIME(6),
  balance DECIMAL(14,4) NOT NULL DEFAULT 7, name VARCHAR(40) COLLATE utf8mb4_bin, twice INT AS (balance * 2) STORED, UNIQUE KEY (email))"""

HEAP = "CREATE TABLE `{db}`.heap (a INT, b TEXT)"


def report(made: Case, *arguments: str, code: int = 0) -> Any:
    done = made.cli("check", str(made.path), "--json", *arguments)
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout)


def lines(said: Any, severity: str) -> list[tuple[str, str, str]]:
    return [
        (f["value"], f["why"], f["fix"])
        for f in said["findings"]
        if f["severity"] == severity and f["setting"] == "table"
    ]


@contextmanager
def people_and_heap(
    folder: Path, source: Any, target: Any, zookeeper: Any, fresh_schema: Callable[..., str]
) -> Iterator[Case]:
    """Both tables at the source alone."""
    schema = fresh_schema(source, target, options="CHARACTER SET utf8mb4")
    source.execute(PEOPLE.format(db=schema), HEAP.format(db=schema))
    with case(folder, source, target, zookeeper, schema) as made:
        yield made
