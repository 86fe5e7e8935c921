"""The questions that ``sluice run`` asks of ZooKeeper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.coordination.memory import MemoryZnodes
from tests.support.twins.pipes import Pipe, pipe


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Pipe]:
    yield from pipe(tmp_path, "copy")


def test_a_batch_of_a_run_asks_for_nothing_that_has_not_changed(one: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer is kept with its watch; over a link of 30 ms each further question would be as much time."""
    asked: Counter[str] = Counter()

    def counting(name: str) -> None:
        own = getattr(MemoryZnodes, name)

        def call(self: MemoryZnodes, path: str, *rest: Any) -> Any:
            asked[f"{name} {path}"] += 1
            return own(self, path, *rest)

        monkeypatch.setattr(MemoryZnodes, name, call)

    for name in ("get", "children", "ensure"):
        counting(name)
    for number in range(1, 4):
        one.commit(("insert", "a", (number, "v")))
    one.deliver()
    kept = [
        path
        for path in asked
        if path.startswith("get ") and path.endswith(("copy/process", "/holds", "batches/0000000001", "/permit"))
    ]
    assert len(kept) == 4
    assert max(asked[path] for path in kept) <= 3, asked.most_common(10)
