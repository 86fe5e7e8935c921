"""A column that the mapping misspells stops the pipeline before a row goes over, with the name that was probably
meant.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sluice.config.pipeline import TableMapping
from sluice.errors import MappingError, SluiceError
from sluice.mapping.names import KnownTable, wrong_names
from sluice.model.findings import Finding
from sluice.model.nearest import meant_table
from sluice.model.tables import TableId
from sluice.operations.check import check
from tests.support.twins.pipes import Pipe, pipe


def mapped(one: Pipe, **line: Any) -> None:
    """The mapping's only line from now on, as if the file was edited."""
    name = str(one.made.table)
    data = one.made.case.config.model_dump(mode="json", by_alias=True, exclude_unset=True)
    data["mapping"] = [{"from": name, "to": name, **line}]
    one.made.case.config = type(one.made.case.config).model_validate(data)


def findings(one: Pipe) -> list[Finding]:
    return [finding for finding in check(one.made.runtime()).findings if finding.part == "mapping"]


@pytest.mark.parametrize(
    "line",
    [
        {"columns": {"exclude": ["V"]}},
        {"columns": {"rename": {"V": "w"}}},
        {"columns": {"include": ["id", "V"]}},
        {"columns": {"convert": {"V": {"type": "varchar(10)"}}}},
        {"send": "changed_columns", "column_groups": [["V", "id"]]},
    ],
)
def test_check_and_run_say_the_same(tmp_path: Path, line: dict[str, Any]) -> None:
    for one in pipe(tmp_path, "copy"):
        mapped(one, **line)
        one.commit(("insert", "a", (1, "secret")))
        assert [(found.severity, found.value) for found in findings(one)] == [("error", "V")]
        for _ in range(2):
            with pytest.raises(MappingError, match="there is no column 'V'") as raised:
                one.deliver()
            assert "correct the pipeline file" in str(raised.value.hint)
        assert one.stores["copy"].tables[one.made.table].all() == []
        mapped(one)
        one.deliver()
        assert one.rows() == {1: "secret"}


def test_the_name_that_was_meant() -> None:
    line = TableMapping.model_validate({"from": "s.users", "to": "s.users", "columns": {"exclude": ["pasword"]}})
    [wrong] = wrong_names([line], {TableId("s", "users"): KnownTable(frozenset({"id", "password"}), frozenset({"id"}))})
    assert wrong.why == "there is no column 'pasword'; did you mean 'password'?"


def test_a_key_that_is_excluded_fails_both(tmp_path: Path) -> None:
    for one in pipe(tmp_path, "copy"):
        mapped(one, columns={"exclude": ["id"]})
        one.commit(("insert", "a", (1, "x")))
        assert [(found.severity, found.value) for found in findings(one)] == [("error", "id")]
        with pytest.raises(MappingError, match="primary key"):
            one.deliver()


def test_one_table_of_a_pattern_is_enough_and_none_says_nothing() -> None:
    lines = [
        TableMapping.model_validate({"from": "s.*", "to": "d.*", "columns": {"exclude": ["a", "b", "c"]}}),
        TableMapping.model_validate({"from": "t.later", "to": "d.later", "columns": {"exclude": ["anything"]}}),
    ]
    known = {TableId("s", "one"): KnownTable(frozenset({"a"})), TableId("s", "two"): KnownTable(frozenset({"b"}))}
    assert [wrong.name.column for wrong in wrong_names(lines, known)] == ["c"]


def test_a_column_that_was_there_may_go(tmp_path: Path) -> None:
    for one in pipe(tmp_path, "copy"):
        mapped(one, columns={"exclude": ["v"]})
        one.commit(("insert", "a", (1, "x")))
        one.deliver()
        with one.made.runtime().state() as state:
            assert any(name.endswith("columns.exclude v") for name in state.mapped_names.read())
        gone = {one.made.table: KnownTable(frozenset({"id"}), frozenset({"id"}))}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sluice.operations.check.known_tables", lambda _, gone=gone: gone)
            patch.setattr("sluice.flows.mapped_names.known_tables", lambda _, gone=gone: dict(gone))
            assert [(found.severity, found.value) for found in findings(one)] == [("warning", "v")]
            one.commit(("insert", "a", (2, "y")))
            one.deliver()
        assert set(one.stores["copy"].tables[one.made.table].rows) == {(1,), (2,)}


def test_a_name_that_is_new_in_the_file_is_looked_up(tmp_path: Path) -> None:
    for one in pipe(tmp_path, "copy"):
        mapped(one, columns={"exclude": ["v"]})
        one.commit(("insert", "a", (1, "x")))
        one.deliver()
        mapped(one, columns={"exclude": ["v", "w"]})
        one.commit(("insert", "a", (2, "y")))
        with pytest.raises(MappingError, match="'w'"):
            one.deliver()


@pytest.mark.parametrize(
    "rule",
    [
        "{name: hide, builtin: mask, params: {columns: [V]}}",
        "{name: out, builtin: drop_column, params: {columns: [V]}}",
    ],
)
def test_a_rule_that_names_a_column_that_there_is_not(tmp_path: Path, rule: str) -> None:
    for one in pipe(tmp_path, "copy", rules="engine.yaml"):
        (tmp_path / "rules/engine.yaml").write_text(f"rules: [{rule}]\n")
        one.commit(("insert", "a", (1, "secret")))
        assert check(one.made.runtime()).failed
        with pytest.raises(SluiceError, match="'V'"):
            one.deliver()
        assert one.stores["copy"].tables[one.made.table].all() == []


def renamed_line(one: Pipe, from_: str, **line: Any) -> None:
    data = one.made.case.config.model_dump(mode="json", by_alias=True, exclude_unset=True)
    data["mapping"] = [{"from": from_, "to": str(one.made.table), **line}]
    one.made.case.config = type(one.made.case.config).model_validate(data)


def test_a_table_that_is_misspelt_keeps_its_secret(tmp_path: Path) -> None:
    """The line would keep a column back, and its table would go over by its own name, with all columns."""
    for one in pipe(tmp_path, "copy"):
        name = str(one.made.table)
        renamed_line(one, name.upper(), columns={"exclude": ["v"]})
        one.commit(("insert", "a", (1, "secret")))
        [found] = findings(one)
        assert (found.severity, found.value) == ("error", "no table")
        assert f"did you mean {name!r}" in found.why
        for _ in range(2):
            with pytest.raises(MappingError, match="did you mean"):
                one.deliver()
        assert one.stores["copy"].tables[one.made.table].all() == []
        mapped(one, columns={"exclude": ["v"]})
        one.deliver()
        assert one.rows() == {1: None} or "v" not in one.stores["copy"].tables[one.made.table].all()[0]


def test_a_table_that_is_still_to_come_stops_nothing(tmp_path: Path) -> None:
    for one in pipe(tmp_path, "copy"):
        renamed_line(one, f"{one.made.table.schema}.something_else", columns={"exclude": ["v"]})
        assert [found.severity for found in findings(one)] == ["warning"]
        one.commit(("insert", "a", (1, "x")))
        one.deliver()
        assert one.rows() == {1: "x"}


def test_a_column_in_unique_that_does_not_go_over(tmp_path: Path) -> None:
    for one in pipe(tmp_path, "copy"):
        mapped(one, columns={"rename": {"v": "note"}}, unique=[["note"], ["notes", "v"]])
        assert [(f.severity, f.value) for f in findings(one)] == [("error", "notes"), ("error", "v")]
        assert "did you mean 'note'" in findings(one)[0].why


@pytest.mark.parametrize(
    ("word", "known", "likely"),
    [
        ("s.peple", ["s.people", "s.places"], "s.people"),
        ("s.Users", ["s.users"], "s.users"),
        ("shpo.users", ["shop.users", "shop.orders"], "shop.users"),
        ("s.orders_2027", ["s.orders_2026"], ""),
        ("shard_3.orders", ["shard_2.orders"], ""),
        ("a_long_schema_name.cat", ["a_long_schema_name.dog"], ""),
        ("s.users", ["t.orders"], ""),
    ],
)
def test_which_table_was_meant(word: str, known: list[str], likely: str) -> None:
    assert meant_table(word, known) == likely
