"""What ``sluice run`` asks of ZooKeeper, and how often it connects to the source."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from sluice.coordination.memory import MemoryZnodes
from sluice.errors import SourceUnavailable
from sluice.sources.memory.source import MemorySession, MemorySource
from tests.support.twins.pipes import Pipe


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


def small_batches(made: Pipe) -> None:
    """Each change is a batch."""
    config = made.made.case.config
    data = config.model_dump(mode="json", by_alias=True, exclude_unset=True)
    data["capture"]["batch"] = {"max_changes": 1}
    made.made.case.config = type(config).model_validate(data)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """An entry for each session that reads the log."""
    found: list[str] = []
    own = MemorySource.open

    def opening(self: MemorySource, *, to_stream: bool = False) -> Any:
        if to_stream:
            found.append("open")
        return own(self, to_stream=to_stream)

    monkeypatch.setattr(MemorySource, "open", opening)
    return found


def test_the_batches_of_a_run_are_read_over_one_connection(one: Pipe, opened: list[str]) -> None:
    small_batches(one)
    for number in range(1, 5):
        one.commit(("insert", "a", (number, "v")))
    assert one.deliver().count("acknowledged") == 4
    assert opened == ["open"]


@pytest.mark.parametrize("answers", [True, False])
def test_a_connection_that_broke_between_two_batches_is_opened_again(
    one: Pipe, opened: list[str], monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    """A server that does not answer the second time is away, which the run says."""
    small_batches(one)
    for number in range(1, 5):
        one.commit(("insert", "a", (number, "v")))
    own, broken = MemorySession.stream, [False, False, True, not answers, False, False]

    def stream(self: MemorySession, *given: Any, **named: Any) -> Any:
        if broken.pop(0):
            raise SourceUnavailable("the connection was lost")
        return own(self, *given, **named)

    monkeypatch.setattr(MemorySession, "stream", stream)
    if answers:
        assert one.deliver().count("acknowledged") == 4
    else:
        with pytest.raises(SourceUnavailable):
            one.deliver()
        monkeypatch.setattr(MemorySession, "stream", own)
        one.deliver()
    assert opened[:2] == ["open", "open"]
    assert sorted(one.rows()) == [1, 2, 3, 4]
