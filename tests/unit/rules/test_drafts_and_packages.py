"""Drafts, rules of installed packages, the whole engine in one go, and rules under pytest."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from sluice.cli import all_commands
from sluice.errors import ConfigError, RuleError
from sluice.operations.ruledev.testing import run_rule
from sluice.rules import RuleSet
from tests.support.running.packages import install

REPOSITORY = Path(__file__).parents[3]
SHOUT = "def transform(row, context):\n    return {**row, 'note': row['note'].upper()}\n"
ENGINE = """\
version: 1
rules:
  - {name: shout, path: shout.py}
  - {name: keep, builtin: filter, order: 1, params: {where: "note <> 'NO'"}}
  - {name: later, path: shout.py, enabled: false}
"""
CHANGES = """\
table: shop.notes
key: [id]
changes:
  - insert: {id: 1, note: a}
    expect: {id: 1, note: A}
"""
TOGETHER = CHANGES + "  - insert: {id: 2, note: 'no'}\n    expect: null\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "changes").mkdir()
    (tmp_path / "engine.yaml").write_text(ENGINE)
    (tmp_path / "shout.py").write_text(SHOUT)
    (tmp_path / "changes" / "shout.yaml").write_text(CHANGES)
    (tmp_path / "changes" / "engine.yaml").write_text(TOGETHER)
    monkeypatch.setenv("SLUICE_RULES", str(tmp_path))
    return tmp_path


def test_a_draft_is_listed_and_tried_and_no_batch_sees_it(folder: Path) -> None:
    assert [rule.name for rule in RuleSet.load(folder / "engine.yaml")] == ["shout", "keep"]
    listed = json.loads(CliRunner().invoke(all_commands(), ["rules", "list", "--json"]).output)
    assert {row["name"]: row["enabled"] for row in listed} == {"shout": True, "later": False, "keep": True}
    assert "(draft)" in CliRunner().invoke(all_commands(), ["rules", "list"]).output
    (folder / "changes" / "later.yaml").write_text(CHANGES)
    assert CliRunner().invoke(all_commands(), ["rules", "test", "later"]).exit_code == 0


def test_the_whole_engine_is_tried_in_one_go(folder: Path) -> None:
    done = CliRunner().invoke(all_commands(), ["rules", "test"])
    assert done.exit_code == 0, done.output
    assert re.findall(r"(\w+): (\d) changes, (\d) with expectations, (\d) wrong", done.output) == [
        ("shout", "1", "1", "0"), ("engine", "2", "2", "0"),
    ]  # fmt: skip
    assert "keep: no file of changes" in done.output
    (folder / "shout.py").write_text(SHOUT.replace("upper", "lower"))
    done = CliRunner().invoke(all_commands(), ["rules", "test", "--json"])
    assert done.exit_code == 1
    tried = {row["rule"]: row["tried"] for row in json.loads(done.output)}
    assert [one["right"] for one in tried["shout"]] == [False]
    assert [one["right"] for one in tried["engine"]] == [False, False]


def test_a_package_brings_a_rule_by_its_entry_point(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path_factory.mktemp("site")
    points, code = "[sluice.rules]\nloud = acme_loud\ngone = acme_gone\n", "raise_if_imported = 1\n" + SHOUT
    install(monkeypatch, site, "acme-rules", entry_points=points, modules={"acme_loud": code})
    engine = folder / "engine.yaml"
    engine.write_text("version: 1\nrules:\n  - name: loud\n    package: loud\n")
    [rule] = RuleSet.load(engine)
    assert (rule.path, rule.text) == (str(site / "acme_loud.py"), (site / "acme_loud.py").read_text())
    (folder / "changes" / "loud.yaml").write_text(CHANGES)
    assert CliRunner().invoke(all_commands(), ["rules", "test", "loud"]).exit_code == 0
    engine.write_text("version: 1\nrules:\n  - name: loud\n    package: lound\n")
    with pytest.raises(ConfigError, match=r"no installed package has the rule 'lound'; did you mean 'loud'") as raised:
        RuleSet.load(engine)
    assert raised.value.where == f"{engine}:4"
    engine.write_text("version: 1\nrules:\n  - name: loud\n    package: gone\n")
    with pytest.raises(ConfigError, match="acme_gone, which is no module with a file"):
        RuleSet.load(engine)
    engine.write_text("version: 1\nrules:\n  - {name: loud, package: loud, path: a.py}\n")
    with pytest.raises(ConfigError, match="a rule takes one of path"):
        RuleSet.load(engine)


def test_a_rule_runs_under_pytest(folder: Path) -> None:
    rule = folder / "shout.py"
    assert run_rule(rule, {"insert": {"id": 1, "note": "a"}}) == [{"id": 1, "note": "A"}]
    assert run_rule(rule, {"delete": {"id": 1, "note": "a"}}) == []
    with pytest.raises(RuleError, match="'NoneType' object has no attribute 'upper'"):
        run_rule(rule, {"insert": {"id": 1, "note": None}})


def test_the_test_of_the_page_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    [block] = re.findall(
        r"```python\n(from sluice.operations.ruledev.testing.*?)```",
        (REPOSITORY / "docs/rules.md").read_text(),
        re.DOTALL,
    )
    monkeypatch.chdir(REPOSITORY)
    made: dict[str, object] = {}
    exec(compile(block, "docs/rules.md", "exec"), made)
    made["test_mail_addresses_are_lower_case"]()  # type: ignore[operator]
