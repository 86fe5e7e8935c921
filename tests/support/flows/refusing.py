"""A target that refuses rows until it is mended, and the replay of their letters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sluice.operations.deadletters.replay import replay
from tests.support.pipelines.case import Case, case

PICKY = "def transform(row, context):\n    if row['name'] == 'bad':\n        raise ValueError('bad')\n    return row\n"


def at_source(made: Case, *statements: str) -> None:
    """Each in a batch of its own."""
    for statement in statements:
        made.source.execute(statement, database=made.schema)
        made.run_until_head()


def mended(made: Case) -> list[str]:
    """Outcomes of a replay of all letters, when the target takes every text."""
    for table in ("t", "heap", "named", "loose", "strict", "padded"):
        if made.target.execute(f"SHOW TABLES LIKE '{table}'", database=made.schema):
            made.target.execute(f"ALTER TABLE {table} MODIFY name VARCHAR(40)", database=made.schema)
    return [done.outcome for done in replay(made.runtime(), [], by="test")]


@contextmanager
def refusing_pipeline(
    folder: Path, source: Any, target: Any, zookeeper: Any, fresh_schema: Callable[..., str]
) -> Iterator[Case]:
    """A target that refuses texts of more than five characters, until :func:`mended`."""
    schema = fresh_schema(source, target)
    extra = f"rules: engine.yaml\nmapping: [{{from: {schema}.named, to: {schema}.named, key: [code]}}]"
    with case(
        folder,
        source,
        target,
        zookeeper,
        schema,
        extra=extra,
        target_extra="    on_error: dead_letter",
    ) as made:
        (folder / "rules/engine.yaml").write_text(
            "rules: [{name: picky, path: picky.py, on_error: dead_letter, match: {table: named}}]\n"
        )
        (folder / "rules/picky.py").write_text(PICKY)
        for server, size in ((source, 40), (target, 5)):
            server.execute(
                f"CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR({size}))",
                f"CREATE TABLE heap (n INT, name VARCHAR({size}))",
                f"CREATE TABLE named (code INT NOT NULL, name VARCHAR({size}), UNIQUE KEY (code))",
                f"CREATE TABLE loose (word VARCHAR(20) COLLATE utf8mb4_general_ci PRIMARY KEY, name VARCHAR({size}))",
                f"CREATE TABLE strict (word VARCHAR(20) COLLATE utf8mb4_0900_ai_ci PRIMARY KEY, name VARCHAR({size}))",
                f"CREATE TABLE padded (word VARCHAR(20) COLLATE utf8mb4_bin PRIMARY KEY, name VARCHAR({size}))",
                database=schema,
            )
        made.run_until_head()
        yield made
