"""Two sites that write the same rows, and a channel that loops back: whatever happens in whatever order, both end with
the same rows.

A model: sites, logs and batches are lists here. What a drain leaves out is asked of the channel itself.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from sluice.config.channel import Channels
from sluice.config.loading import parse_model
from sluice.config.pipeline import PipelineConfig
from sluice.model.load_marks import MarkRules

KEYS, VALUES = st.integers(0, 3), st.none() | st.tuples(st.integers(0, 3), st.integers(0, 3))
Row = tuple[int, int] | None
"""Two columns; None: there is no such row."""


@dataclass(frozen=True)
class Change:
    """``token``: of the load that made it, "" for an application's."""

    key: int
    before: Row
    row: Row
    token: str


@dataclass
class Site:
    rows: dict[int, Row] = field(default_factory=dict)
    log: list[Change] = field(default_factory=list)

    def set(self, key: int, row: Row, token: str = "") -> None:
        """As a server: what changes nothing is not logged."""
        before = self.rows.get(key)
        if before != row:
            self.rows[key] = row
            self.log.append(Change(key, before, row, token))

    @property
    def content(self) -> dict[int, Row]:
        return {key: row for key, row in self.rows.items() if row is not None}


@dataclass
class Pipe:
    source: Site
    target: Site
    token: str
    rules: MarkRules
    changed_columns: bool = False
    at: int = 0

    def batch(self, changes: int, *, read_back: bool = False) -> int:
        """The next changes of the log, merged to one a key and loaded; how many there were.

        ``read_back``: each row as it is now.
        """
        taken = self.source.log[self.at : self.at + changes]
        self.at += len(taken)
        merged: dict[int, Change] = {}
        for one in taken:
            token = self.rules.read(one.token) if one.token else None
            if token is not None and self.rules.drops(token):
                continue
            first = merged.pop(one.key, one)
            merged[one.key] = Change(one.key, first.before, one.row, one.token)
        for one in merged.values():
            self.load(replace(one, row=self.source.rows.get(one.key)) if read_back else one)
        return len(merged)

    def load(self, change: Change) -> None:
        row, there = change.row, self.target.rows.get(change.key)
        if self.changed_columns and row is not None and change.before is not None:
            if there is None:
                return  # an update finds no row
            row = tuple(new if new != old else kept for new, old, kept in zip(row, change.before, there, strict=True))
        self.target.set(change.key, row, self.token)


def channel(consistency: str) -> tuple[list[str], list[MarkRules]]:
    with tempfile.TemporaryDirectory() as folder:
        text = f"channel: a_b\npipelines: [a_to_b, b_to_a]\nmain: a\nconsistency: {consistency}\n"
        (Path(folder) / "a_b.yaml").write_text(text)
        found = Channels(Path(folder))
        tokens, rules = [], []
        for name in ("a_to_b", "b_to_a"):
            ends = f"source: {{connection: {name[0]}}}\ntargets: [{{name: t, type: mysql, connection: {name[-1]}}}]\n"
            pipeline = parse_model(f"pipeline: {name}\n{ends}", name, PipelineConfig)
            mark, said = found.mark(pipeline), found.rules(pipeline)
            assert mark is not None
            assert said is not None
            tokens.append(mark.token("1"))
            rules.append(said)
        return tokens, rules


class LoopBack(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = Site(), Site()
        [there, back], [of_a, of_b] = channel("loop_back")
        self.there = Pipe(self.a, self.b, there, of_a)
        self.back = Pipe(self.b, self.a, back, of_b)

    @rule(main=st.booleans(), key=KEYS, row=VALUES)
    def write(self, main: bool, key: int, row: Row) -> None:
        (self.a if main else self.b).set(key, row)

    @rule(changes=st.integers(1, 5), read_back=st.booleans())
    def deliver_there(self, changes: int, read_back: bool) -> None:
        self.there.batch(changes, read_back=read_back)

    @rule(changes=st.integers(1, 5), read_back=st.booleans())
    def deliver_back(self, changes: int, read_back: bool) -> None:
        self.back.batch(changes, read_back=read_back)

    @invariant()
    def equal_after_a_batch_of_each_direction(self) -> None:
        a, b = Site(dict(self.a.rows), list(self.a.log)), Site(dict(self.b.rows), list(self.b.log))
        there = Pipe(a, b, self.there.token, self.there.rules, at=self.there.at)
        back = Pipe(b, a, self.back.token, self.back.rules, at=self.back.at)
        there.batch(10**6)
        back.batch(10**6)
        assert a.content == b.content
        assert [there.batch(10**6), back.batch(10**6)] == [0, 0]


LoopBack.TestCase.settings = settings()
TestLoopBack = LoopBack.TestCase


def test_without_it_they_differ() -> None:
    """What the model would find if nothing came back."""
    a, b = Site(), Site()
    [there, back], [of_a, of_b] = channel("none")
    a.set(1, (1, 1))
    b.set(1, (2, 2))
    Pipe(a, b, there, of_a).batch(10)
    Pipe(b, a, back, of_b).batch(10)
    assert (a.content, b.content) == ({1: (2, 2)}, {1: (1, 1)})


def test_with_changed_columns_they_may_differ() -> None:
    """Why both pipelines send whole rows: a column that was changed back within a batch would not be sent."""
    a, b = Site(), Site()
    [there, back], [of_a, of_b] = channel("loop_back")
    to_b, to_a = Pipe(a, b, there, of_a), Pipe(b, a, back, of_b, changed_columns=True)
    b.set(1, (1, 1))
    to_a.batch(9)
    to_b.batch(9)
    b.set(1, (2, 1))
    a.set(1, (3, 1))
    to_b.batch(9)
    b.set(1, (1, 1))
    to_a.batch(9)
    assert (a.content, b.content) == ({1: (3, 1)}, {1: (1, 1)})
