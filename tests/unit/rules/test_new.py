"""`sluice rules new`: starters that work, in an engine.yaml whose comments stay."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sluice.config.engine import EngineConfig, RuleKind
from sluice.config.loading import load_model
from sluice.errors import ConfigError
from sluice.operations.ruledev.scaffold import changes_file, new_rule
from sluice.operations.ruledev.tryout import find_rule, handwritten, try_rule
from sluice.rules import builtin

SAMPLE = Path(__file__).parents[3] / "include/rules"
IN_PROCESS = [
    kind for kind in RuleKind if kind is not RuleKind.SPARK
]  # tests/integration/flows/test_rules_end_to_end.py has the other


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(SAMPLE, tmp_path / "rules")
    return tmp_path / "rules"


@pytest.mark.parametrize("kind", [*IN_PROCESS, *builtin.names()])
def test_a_starter_works_at_once(folder: Path, kind: str) -> None:
    made = new_rule(kind, "mine", folder, table="shop.customers")
    tried = list(try_rule(find_rule("mine", folder), handwritten(changes_file(folder, "mine"))))
    assert [t.op for t in tried] == ["insert", "update", "delete"]
    assert all(t.right and t.out for t in tried)
    if kind in list(RuleKind):
        assert all(out.row == t.row for t in tried for out in t.out)
        assert len(made.files) == 2


@pytest.mark.parametrize("kind", [RuleKind.ROW, RuleKind.ARROW, RuleKind.PANDAS, RuleKind.SQL])
def test_the_parameter_of_a_starter_works(folder: Path, kind: str) -> None:
    new_rule(kind, "mine", folder, table="shop.customers")
    engine = folder / "engine.yaml"
    engine.write_text(
        engine.read_text() + ("    params: {keep: false}\n" if kind == "sql" else "    params: {shout: true}\n")
    )
    tried = list(try_rule(find_rule("mine", folder), handwritten(changes_file(folder, "mine"))))
    assert [t.out and t.out[0].row["email"] for t in tried] == (
        [[], [], []] if kind == "sql" else ["ANN@EXAMPLE.ORG", "BOB@EXAMPLE.ORG", "EVE@EXAMPLE.ORG"]
    )


def test_comments_and_order_stay(folder: Path) -> None:
    engine = folder / "engine.yaml"
    before = engine.read_text()
    new_rule("sql", "second", folder, table="shop.orders")
    assert engine.read_text().startswith(before.rstrip("\n"))
    rules = load_model(engine, EngineConfig).rules
    assert [(r.name, r.order, r.match.table) for r in rules] == [
        ("tidy_email", 10, "customers"),
        ("second", 20, "orders"),
    ]


def test_a_folder_without_engine_yaml_gets_one(tmp_path: Path) -> None:
    new_rule("row", "first", tmp_path / "fresh", table="a.b")
    assert [r.name for r in load_model(tmp_path / "fresh/engine.yaml", EngineConfig).rules] == ["first"]


@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [
        ("rwo", "x", "not a kind of rule"),
        ("row", "1x", "cannot be the name of a rule"),
        ("row", "tidy_email", "a rule 'tidy_email' already"),
    ],
)
def test_mistakes_write_nothing(folder: Path, kind: str, name: str, words: str) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match=words):
        new_rule(kind, name, folder, table="a.b")
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_files_that_are_there_are_not_overwritten(folder: Path) -> None:
    (folder / "mine.py").write_text("precious")
    with pytest.raises(ConfigError, match=r"a file mine\.py already"):
        new_rule("row", "mine", folder, table="a.b")
    assert (folder / "mine.py").read_text() == "precious"


@pytest.mark.parametrize(
    ("text", "words", "line"),
    [
        ("table: x\nchanges: []", "needs table", 1),
        ("table: a.b\nchanges:\n  - {insret: {id: 1}}", "one of insert, update or delete", 3),
        ("table: a.b\nchanges:\n  - {update: {id: 1}}", "before goes with update", 3),
        ("table: a.b\nkye: [id]\nchanges:\n  - {insert: {id: 1}}", "kye: there is no such key", 2),
        (
            "table: a.b\ncolumns: {id: 'decimal(1)'}\nchanges:\n  - {insert: {id: 'x'}}",
            "column 'id': .*does not fit",
            1,
        ),
        ("table: [a\nchanges:", "not valid YAML", 2),
    ],
)
def test_a_wrong_file_of_changes_names_the_line(tmp_path: Path, text: str, words: str, line: int) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words) as caught:
        handwritten(path)
    assert str(caught.value.where).endswith(f"c.yaml:{line}")


def test_a_rule_that_raises_shows_its_line_and_the_others_go_on(folder: Path) -> None:
    new_rule("row", "mine", folder, table="shop.customers")
    (folder / "mine.py").write_text("def transform(row, context):\n    return row if row['id'] != 2 else row['nope']\n")
    tried = list(try_rule(find_rule("mine", folder), handwritten(changes_file(folder, "mine"))))
    assert [t.error is None for t in tried] == [True, False, True]
    assert "KeyError: 'nope'" in str(tried[1].error)
    assert "mine.py:2" in str(tried[1].error)


def test_a_file_that_engine_yaml_does_not_name(tmp_path: Path) -> None:
    (tmp_path / "loose.sql").write_text("SELECT * FROM rows WHERE id > 1")
    rules = find_rule(str(tmp_path / "loose.sql"), tmp_path)
    assert rules.rules[0].kind is RuleKind.SQL
    with pytest.raises(ConfigError, match="there is no rule 'nobody'"):
        find_rule("nobody", tmp_path)


@pytest.mark.parametrize(
    ("kind", "own", "is_own"),
    [("row", False, False), ("row", True, True), ("mask", True, True), ("spark", False, True)],
)
def test_a_rule_with_a_task_of_its_own_says_what_that_means(folder: Path, kind: str, own: bool, is_own: bool) -> None:
    made = new_rule(kind, "mine", folder, table="shop.customers", own=own)
    written = {rule.name: rule for rule in load_model(folder / "engine.yaml", EngineConfig).rules}["mine"]
    assert (written.owns_task, written.task) == (is_own, "own" if own else "fused")
    assert made.task.startswith("own: " if is_own else "fused: ")
    assert "rule.mine" in made.task
    assert "task: own" in made.task
    assert "\n" not in made.task
