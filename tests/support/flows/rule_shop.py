"""Customers that rules of a pipeline change on their way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sluice.flows.capture.drain import drain
from sluice.flows.runtime import attempt_id
from tests.support.pipelines.case import Case, case_of

CUSTOMERS = (
    "CREATE TABLE `{db}`.customers (id INT PRIMARY KEY, email VARCHAR(80), paid DECIMAL(10,2), note TEXT, "
    "n BIGINT UNSIGNED, t TIME(6), d DATE)"
)


def rules(made: Case, text: str, **files: str) -> None:
    """engine.yaml, with files by name (``__`` for the dot)."""
    for name, content in files.items():
        (made.folder / "rules" / name.replace("__", ".")).write_text(content, encoding="utf-8")
    (made.folder / "rules/engine.yaml").write_text(f"rules:\n{text}" if text.startswith("  ") else f"rules: {text}\n")


def insert(made: Case, *ids: int, email: str = "Ann@X.org", paid: str = "1.50") -> None:
    values = ", ".join(
        f"({i}, '{email}', {paid}, 'note {i}', {2**64 - 1 - i}, '-30:00:00.000001', '2024-02-29')" for i in ids
    )
    made.source.execute(f"INSERT INTO `{made.schema}`.customers VALUES {values}")


def target(made: Case, query: str) -> list[tuple]:
    return list(made.target.execute(query.format(db=f"`{made.schema}`")))


def next_batch(made: Case) -> int:
    outcome = drain(made.runtime(), claim=attempt_id(), idle_wait_s=5)
    assert outcome.batch is not None
    return outcome.batch


@contextmanager
def rule_shop(
    folder: Path, source: Any, target: Any, zookeeper: Any, fresh_schema: Callable[..., str]
) -> Iterator[Case]:
    """Customers on both sides, and no rule yet."""
    settings = {"options": "CHARACTER SET utf8mb4", "extra": "rules: engine.yaml", "session_s": 20}
    with case_of(folder, source, target, zookeeper, fresh_schema, CUSTOMERS, **settings) as made:
        rules(made, "[]")
        made.run_until_head()
        yield made
