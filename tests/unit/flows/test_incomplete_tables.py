"""A table or a column that a target lacked is made by hand: the pipeline goes on, and says so until the rows from
before were copied or verified.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.coordination.incomplete import IncompleteTable
from sluice.errors import MappingError
from sluice.operations.check import check, make_missing
from sluice.operations.status import status
from sluice.operations.verify.verify import VerifySpec, verify
from tests.support.twins.pipes import Pipe, delivering, pipe


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Pipe]:
    for found in pipe(tmp_path, "copy"):
        found.commit(("insert", "a", (1, "x")), ("insert", "a", (2, "y")))
        found.deliver()
        yield found


def lose_column(one: Pipe) -> None:
    table = one.stores["copy"].tables[one.made.table]
    table.columns.remove("v")
    for row in table.all():
        del row["v"]


def said(one: Pipe) -> list[str]:
    return status(one.made.runtime()).incomplete


def held(one: Pipe) -> tuple[IncompleteTable, ...]:
    with one.made.runtime().state() as state:
        return state.incomplete.all()


def stops(one: Pipe) -> str:
    """What the error says to do."""
    with pytest.raises(MappingError) as raised:
        one.deliver()
    assert raised.value.hint
    return raised.value.hint


def follow(one: Pipe, hint: str) -> None:
    """The statement in it, at the target."""
    schema = one.made.runtime().open_target("copy").schema()
    assert schema is not None
    statement = re.search(r"\{.*?\}", hint)
    assert statement
    schema.apply(statement[0])


def test_a_column_that_was_made_by_hand_is_named_until_its_table_is_copied(one: Pipe) -> None:
    lose_column(one)
    one.commit(("insert", "a", (3, "z")))
    hint = stops(one)
    assert f"`sluice dump start {one.made.case.config.pipeline} --table {one.made.table} --target copy`" in hint
    follow(one, hint)
    one.deliver()
    assert one.rows() == {1: None, 2: None, 3: "z"}
    [line] = said(one)
    assert "columns v of it were made there by hand" in line
    assert any("may lack" in finding.why for finding in check(one.made.runtime()).findings)
    one.dump()
    assert one.rows() == one.made.rows()
    assert said(one) == []


def test_a_part_of_the_table_is_not_the_copy(one: Pipe) -> None:
    lose_column(one)
    one.commit(("insert", "a", (3, "z")))
    follow(one, stops(one))
    one.deliver()
    one.dump(lower=("2",))
    assert said(one)


def test_an_equal_verification_ends_it_and_one_that_finds_differences_does_not(one: Pipe) -> None:
    lose_column(one)
    one.commit(("insert", "a", (3, "z")))
    follow(one, stops(one))
    one.deliver()
    with delivering(one):
        assert verify(one.made.runtime(), VerifySpec()).outcome == "different"
        assert said(one)
        assert verify(one.made.runtime(), VerifySpec(repair=True)).outcome == "equal"
    assert one.rows() == one.made.rows()
    assert said(one) == []


def test_a_table_that_was_made_by_hand_may_lack_rows(one: Pipe) -> None:
    del one.stores["copy"].tables[one.made.table]
    one.commit(("insert", "a", (3, "z")))
    follow(one, stops(one))
    one.deliver()
    assert one.rows() == {3: "z"}
    assert "may lack rows" in said(one)[0]
    one.dump()
    assert one.rows() == one.made.rows()
    assert said(one) == []


def test_check_that_makes_what_is_missing_says_the_second_step(one: Pipe) -> None:
    lose_column(one)
    report = check(one.made.runtime())
    assert any("sluice dump start" in finding.fix for finding in report.findings)
    make_missing(one.made.runtime(), report)
    after = check(one.made.runtime())
    assert not after.failed
    assert any("may lack values" in finding.why for finding in after.findings)
    one.dump()
    assert not any("may lack" in finding.why for finding in check(one.made.runtime()).findings)


def test_a_target_that_has_not_begun_has_no_rows_to_lose(tmp_path: Path) -> None:
    for found in pipe(tmp_path, "copy"):
        with found.made.runtime().state() as state:
            state.acks.forget("copy")
        del found.stores["copy"].tables[found.made.table]
        make_missing(found.made.runtime(), check(found.made.runtime()))
        assert held(found) == ()


def test_a_column_that_is_lost_again_after_the_copy_is_noted_again(one: Pipe) -> None:
    for number in (3, 4):
        lose_column(one)
        one.commit(("insert", "a", (number, "z")))
        follow(one, stops(one))
        one.deliver()
        assert said(one)
        one.dump()
        assert said(one) == []


def test_another_column_and_then_the_table_make_it_newer(one: Pipe) -> None:
    with one.made.runtime().state() as state:
        held = state.incomplete
        held.add("copy", [(one.made.table, ("v",))])
        [first] = held.all()
        held.add("copy", [(one.made.table, ("v",))])
        assert held.all() == (first,)
        held.add("copy", [(one.made.table, ("w",))])
        assert [entry.columns for entry in held.all()] == [("v", "w")]
        held.add("copy", [(one.made.table, ())])
        held.add("copy", [(one.made.table, ("v",))])
        assert [entry.columns for entry in held.all()] == [()]
        held.add("other", [(one.made.table, ("v",))])
        assert [entry.target for entry in held.all()] == ["copy", "other"]
