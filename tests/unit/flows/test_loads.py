"""Loads without a server: what concerns a batch of other targets, and what a dump asks its source."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluice.errors import ConfigError
from sluice.flows.dump.progress import cancel
from sluice.flows.dump.start import start
from sluice.flows.load.load import load
from sluice.sources.memory.source import MemorySession
from sluice.targets.memory.store import forget_store
from tests.support.twins.serverless import Serverless, serverless


@pytest.fixture
def two_targets(tmp_path: Path):
    targets = [
        {"name": name, "type": "memory", "connection": "test", "options": {"store": f"{tmp_path}{name}"}}
        for name in ("one", "two")
    ]
    with serverless(tmp_path, targets=targets, rules="engine.yaml") as made:
        (tmp_path / "rules").mkdir()
        made.begin()
        yield made
    for target in targets:
        forget_store(target["options"]["store"])


def test_a_batch_for_other_targets_is_passed_and_not_merged(two_targets: Serverless, tmp_path: Path) -> None:
    """Its rules are broken: a merge of it would fail, and does for the target that it is for."""
    made = two_targets
    (tmp_path / "rules/engine.yaml").write_text("rules: [{name: r, path: gone.py, type: row}]")
    made.case.commit(("insert", "a", (1, "x")))
    made.drain(deliver=False)
    with made.runtime().state() as state:
        path = state.layout.batch(1)
        node, owner = made.tree.nodes[path]
        stored = json.loads(node.data) | {"targets": ["two"]}
        made.tree.nodes[path] = (replace(node, data=json.dumps(stored).encode()), owner)
        assert not state.batches.require(1).is_for("one")
    outcome = load(made.runtime(), "one", 1)
    assert (outcome.batches, outcome.upserts) == (1, 0)
    with made.runtime().state() as state:
        assert not state.batches.require(1).changeset
    with pytest.raises(ConfigError, match=r"gone\.py"):
        load(made.runtime(), "two", 1)


def test_a_dump_asks_the_source_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: Counter[str] = Counter()
    inside: list[str] = []

    def counted(name: str) -> None:
        own = getattr(MemorySession, name)

        def call(self: MemorySession, *given: Any) -> Any:
            if not inside and given != ([],):  # a question of its own, about some table
                asked[name] += 1
            inside.append(name)
            try:
                return own(self, *given)
            finally:
                inside.pop()

        monkeypatch.setattr(MemorySession, name, call)

    with serverless(tmp_path) as made:
        made.begin()
        made.case.create("b")
        made.case.commit(("insert", "a", (1, "x")), ("insert", "b", (2, "y")))
        for name in ("table_rows", "keyless", "estimates", "tables"):
            counted(name)
        dump = start(made.runtime())
    assert [str(request.table).partition(".")[2] for request in dump.tables] == ["a", "b"]
    assert asked == {"table_rows": 1, "keyless": 1, "estimates": 1}


@pytest.mark.parametrize("name", ["../../x", "", "a/b", "nosuch", "\x1b[2J"])
def test_a_dump_that_is_not_there_cannot_be_cancelled(tmp_path: Path, name: str) -> None:
    with serverless(tmp_path) as made:
        made.begin()
        nodes = set(made.tree.nodes)
        with pytest.raises(ConfigError) as caught:
            cancel(made.runtime(), name, by="test")
        assert "\x1b" not in str(caught.value)
        assert set(made.tree.nodes) == nodes
