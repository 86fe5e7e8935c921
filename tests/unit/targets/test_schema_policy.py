"""The policy to stop, for every kind of change: what a target shows, what it lacks, and what nobody can see."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from sluice.errors import LoadError
from sluice.model.schema_changes import ChangeKind
from sluice.model.tables import TableId
from sluice.targets.lake.follower import FOLLOWED_MERGED
from sluice.targets.port import Capabilities, SchemaChange
from sluice.targets.schema.policy import Answer, OnlyColumns, has, require_held, require_whole
from tests.support.tables.planned_changes import planned_changes

TABLE = "CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT, s VARCHAR(9))"
WAS = {"id", "a", "b", "s"}


class Target(OnlyColumns):
    """A target with these columns; ``done``: and with all that a definition shows beside them."""

    def __init__(self, change: SchemaChange, columns: Collection[str] | None, *, done: bool = False) -> None:
        super().__init__(change)
        self.there, self.done = columns, done

    def columns(self, table: TableId) -> Mapping[str, str] | None:
        return {name.casefold(): name for name in self.there} if self.there is not None else None

    def type(self, *given: Any) -> Answer:
        return has(self.done)

    def nullable(self, *given: Any) -> bool | None:
        return None

    def _answer(self, *given: Any, **more: Any) -> Answer:
        return has(self.done)

    attributes = order = key = index = options = _answer


def planned(sql: str, policy: Any = "stop") -> SchemaChange:
    """The change that a statement is, after TABLE."""
    [change] = plans(sql, policy)
    return change


def plans(
    sql: str,
    policy: Any = "stop",
    *,
    before: Sequence[str] = (),
    kinds: frozenset[ChangeKind] = frozenset(ChangeKind),
) -> tuple[SchemaChange, ...]:
    """The changes that a target which follows ``kinds`` has to make for a statement, after TABLE and ``before``."""
    return planned_changes(TABLE, *before, sql, policy=policy, offered=Capabilities(schema_changes=kinds))


def stops(change: SchemaChange, columns: Collection[str] | None, *, done: bool = False) -> str:
    """What the error's hint says, "" if there is none."""
    found = ""
    with suppress_load_error() as caught:
        require_held(change, Target(change, columns, done=done))
    for error in caught:
        assert "the policy of target copy is to stop" in error.message
        found = error.hint or ""
    return found


@contextmanager
def suppress_load_error() -> Iterator[list[LoadError]]:
    """Give the errors that were raised inside."""
    errors: list[LoadError] = []
    try:
        yield errors
    except LoadError as error:
        errors.append(error)


SEEN = {
    "ADD c INT": {*WAS, "c"},
    "DROP COLUMN a": WAS - {"a"},
    "RENAME COLUMN a TO c": {"id", "c", "b", "s"},
    "CHANGE a c INT": {"id", "c", "b", "s"},
    "ADD KEY (a)": WAS,
    "ADD UNIQUE KEY (b)": WAS,
    "DROP PRIMARY KEY, ADD PRIMARY KEY (id, b)": WAS,
    "MODIFY a BIGINT": WAS,
    "MODIFY s VARCHAR(20)": WAS,
    "MODIFY a INT NOT NULL DEFAULT 5": WAS,
    "ALTER a SET DEFAULT 7": WAS,
    "COMMENT 'x'": WAS,
    "MODIFY a INT AFTER b": WAS,
}
UNSEEN = (
    "RENAME COLUMN a TO b, RENAME COLUMN b TO a", "CHANGE a b INT, CHANGE b a INT", "DROP COLUMN a, ADD COLUMN a INT "
    "DEFAULT 5",
    "DROP COLUMN a, RENAME COLUMN b TO a", "RENAME COLUMN a TO c, ADD COLUMN a INT", "RENAME COLUMN a TO b, RENAME "
    "COLUMN b TO a, ADD c INT",
    "RENAME COLUMN a TO b, RENAME COLUMN b TO c",
)  # fmt: skip


@pytest.mark.parametrize("alter", SEEN)
def test_it_stops_until_the_target_has_the_change(alter: str) -> None:
    change = planned(f"ALTER TABLE t {alter}")
    assert "the load goes on once it is there" in stops(change, WAS)
    assert stops(change, None)
    assert not stops(change, SEEN[alter], done=True)


@pytest.mark.parametrize("alter", UNSEEN)
def test_what_no_definition_shows_stops_until_it_is_ignored(alter: str) -> None:
    change = planned(f"ALTER TABLE t {alter}")
    [one] = change.tables
    assert one.after is not None
    names = {column.name for column in one.after.columns}
    assert "then set " in stops(change, names, done=True)


def test_rows_that_went_are_not_seen() -> None:
    assert "then set truncate_table to ignore" in stops(planned("TRUNCATE TABLE t"), WAS, done=True)


def test_a_dropped_table_is_seen() -> None:
    assert stops(planned("DROP TABLE t"), WAS)
    assert not stops(planned("DROP TABLE t"), None)


def test_a_statement_with_several_policies_stops_as_a_whole() -> None:
    """Each part is there, or ignored: none is left out."""
    change = planned("ALTER TABLE t MODIFY b BIGINT, ADD KEY (a)", {"indexes": "stop"})
    assert change.check_only
    for wanted in (ChangeKind.WIDEN_COLUMN, ChangeKind.INDEXES):
        assert wanted in change.wanted
    assert stops(change, WAS)
    assert not stops(change, WAS, done=True)
    change = planned("ALTER TABLE t MODIFY b BIGINT, ADD KEY (a)", {"indexes": "stop", "change_column": "ignore"})
    assert change.wanted == {ChangeKind.INDEXES}
    assert stops(change, WAS)


NOTHING_THERE = {
    "DROP DATABASE IF EXISTS nowhere": (),
    "DROP SCHEMA IF EXISTS `s`": ("DROP TABLE t",),
    "DROP DATABASE views": ("CREATE DATABASE views",),
    "DROP DATABASE other": ("CREATE DATABASE other", "CREATE TABLE other.x (id INT)"),
    "DROP TABLE IF EXISTS never": (),
    "DROP TABLE IF EXISTS `never`, s.nor, t": ("DROP TABLE t",),
    "CREATE DATABASE more": (),
    "ALTER DATABASE s CHARACTER SET utf8mb4": (),
}
"""Statements that take nothing away that is captured, with what was there before."""


@pytest.mark.parametrize("sql", NOTHING_THERE)
def test_what_takes_away_nothing_captured_stops_no_target(sql: str) -> None:
    """At the snapshot and at lakes with merged rows, which follow no dropped table."""
    before = NOTHING_THERE[sql]
    if "other" in sql:
        [change] = plans(sql, "apply", before=before)
        assert {one.table for one in change.tables} <= change.not_captured
        return
    assert plans(sql, "apply", before=before, kinds=FOLLOWED_MERGED) == ()


@pytest.mark.parametrize(
    ("sql", "before"),
    [
        ("DROP TABLE IF EXISTS never, t", ()),
        ("DROP DATABASE IF EXISTS s", ()),
        ("DROP TABLE unheard", ()),
        ("DROP TABLE IF EXISTS t", ("ALTER TABLE t ADD COLUMN p GEOMETRYCOLLECTIONS",)),
    ],
)
def test_what_takes_away_a_captured_table_stops_them(sql: str, before: Sequence[str]) -> None:
    with pytest.raises(LoadError, match="cannot follow drop table"):
        plans(sql, "apply", before=before, kinds=FOLLOWED_MERGED)


@pytest.mark.parametrize(
    ("alter", "columns", "lacks"),
    [
        ("ADD c INT, MODIFY a BIGINT, ADD KEY (b)", {*WAS, "c"}, "it lacks bigint of column a, index b"),
        ("ADD c INT, MODIFY a BIGINT", WAS, "it lacks bigint of column a, column c"),
        ("MODIFY a BIGINT", WAS, ""),
    ],
)
def test_names_as_after_a_change_do_not_stand_for_the_rest(alter: str, columns: Collection[str], lacks: str) -> None:
    """A target with such names does nothing there; one that has all goes on."""
    change = planned(f"ALTER TABLE t {alter}", "apply")
    require_whole(change, Target(change, None))
    require_whole(change, Target(change, {*WAS, "c"}, done=True))
    with suppress_load_error() as caught:
        require_whole(change, Target(change, columns))
    missing = set(lacks.removeprefix("it lacks ").split(", ")) if lacks else set()
    assert len(caught) == bool(lacks)
    for error in caught:
        assert "its columns have the new names already" in error.message
        assert all(one in error.message for one in missing)


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("stop", "(or set add_column, change_column to apply)"),
        ({"add_column": "stop", "change_column": "apply"}, "(or set add_column to apply)"),
        ({"add_column": "apply", "change_column": "stop"}, "(or set change_column to apply)"),
    ],
)
def test_the_hint_names_the_kinds_that_stop(policy: Any, said: str) -> None:
    """The file may have some kinds of a statement at apply already."""
    change = planned("ALTER TABLE t ADD c INT, MODIFY a VARCHAR(9)", policy)
    assert said in stops(change, WAS)
