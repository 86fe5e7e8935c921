"""sluice check: what goes where, what is lost on the way, what is missing and the DDL that makes it;."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.flows.checks import HEAP, PEOPLE, lines, people_and_heap, report
from tests.support.pipelines.case import Case


@pytest.fixture
def shop(tmp_path: Path, twin_source: Any, twin_target: Any, twin_zookeeper: Any, fresh_schema: Any) -> Any:
    with people_and_heap(tmp_path, twin_source, twin_target, twin_zookeeper, fresh_schema) as made:
        yield made


@pytest.mark.promise("B21", "B22")
def test_missing_columns_renamed_and_left_out_ones(shop: Case) -> None:
    mapping = (
        f"mapping:\n  - {{from: {shop.schema}.people, to: {shop.schema}.persons, columns: {{exclude: [name], rename: "
        f"{{email: mail}}}}}}\n  - {{from: {shop.schema}.heap, to: {shop.schema}.heap}}\n"
    )
    shop.path.write_text(shop.yaml + mapping, encoding="utf-8")
    shop.target.execute(
        f"CREATE TABLE {shop.schema}.persons (id INT UNSIGNED PRIMARY KEY)", HEAP.format(db=shop.schema)
    )
    said = report(shop, code=1)
    persons = next(t for t in said["tables"] if t["target_table"].endswith(".persons"))
    assert persons["left_out"] == ["name"]
    assert persons["renamed"] == {"email": "mail"}
    assert {r["column"] for r in persons["remarks"] if r["severity"] == "error"} == {"mail", "born", "balance"}
    assert lines(report(shop, "--apply", "--yes"), "error") == []
    shop.run_until_head()
    shop.source.execute(f"INSERT INTO {shop.schema}.people (email, name) VALUES ('a', 'x')")
    shop.run_until_head()
    assert [
        tuple(map(str, r)) for r in shop.target.execute(f"SELECT id, mail, balance FROM {shop.schema}.persons")
    ] == [("1", "a", "7.0000")]


def test_what_a_zone_loses_waits_for_the_printed_line(shop: Case) -> None:
    zone = "columns: {exclude: [twice], convert: {born: {time_zone: Europe/Berlin}}}"
    text = shop.yaml + f"mapping: [{{from: {shop.schema}.people, to: {shop.schema}.people, {zone}}}]\n"
    shop.path.write_text(text, encoding="utf-8")
    [(place, why, fix)] = lines(report(shop, "--apply", "--yes", code=1), "error")
    assert place.endswith("people, column born")
    assert "values would be lost" in why
    assert "lives twice" in why
    line = re.search(r"write under target copy: (accept_loss: \[.*?\]);", fix)
    assert line
    shop.path.write_text(text.replace("  - name: copy\n", f"  - name: copy\n    {line[1]}\n"), encoding="utf-8")
    [(_, why, _)] = [one for one in lines(report(shop), "warning") if "lives twice" in one[1]]
    assert "would be lost" not in why


MISSPELT = """\
mapping:
  - from: {schema}.people
    to: {schema}.people
    columns: {{exclude: [emial], rename: {{brn: x}}, convert: {{balanse: {{type: text}}}}}}
    column_groups: [[nam, email]]
  - {{from: {schema}.heap, to: {schema}.heap, key: [aa]}}
  - {{from: {schema}.peple, to: {schema}.x}}
rules: engine.yaml
"""
RULES = """\
rules:
  - {{name: hide, builtin: mask, params: {{columns: [emial]}}, match: {{schema: {schema}, table: people}}}}
  - {{name: salted, builtin: hash, params: {{columns: [b], salt_env: SLUICE_NO_SUCH_SALT}}, match: {{schema: {schema}, table: heap}}}}
"""


def test_names_that_nothing_has_are_errors_with_the_nearest(shop: Case) -> None:
    """A column that is misspelt in exclude would go over, one in a rule would be found at the first row."""
    for table in (PEOPLE, HEAP):
        shop.target.execute(table.format(db=shop.schema))
    shop.path.write_text(shop.yaml + MISSPELT.format(schema=shop.schema), encoding="utf-8")
    (shop.folder / "rules" / "engine.yaml").write_text(RULES.format(schema=shop.schema))
    said = report(shop, code=1)
    found = {(f["severity"], f["value"]): f["why"] for f in said["findings"] if f["part"] == "mapping"}
    assert "did you mean 'email'" in found["error", "emial"]
    assert "did you mean 'born'" in found["error", "brn"]
    assert "did you mean 'balance'" in found["error", "balanse"]
    assert "did you mean 'name'" in found["error", "nam"]
    assert ("error", "aa") in found
    assert "did you mean" in found["warning", "no table"]
    rules = {f["setting"]: f["why"] for f in said["findings"] if f["part"] == "rules" and f["severity"] == "error"}
    assert "did you mean 'email'" in rules[f"hide on {shop.schema}.people"]
    assert "SLUICE_NO_SUCH_SALT" in rules[f"salted on {shop.schema}.heap"]
