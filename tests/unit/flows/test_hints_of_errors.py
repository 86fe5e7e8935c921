"""What an error says to do next is done, word for word, until the pipeline goes on: commands by the command line, SQL
by the server that is meant.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from sluice.cli import all_commands
from sluice.errors import SluiceError
from sluice.operations import control
from tests.support.flows.hints import at_source, commands, does, orders_to_hint_at, stops
from tests.support.pipelines.case import Case

pytestmark = pytest.mark.slow


@pytest.fixture
def shop(
    tmp_path: Any, twin_source: Any, twin_target: Any, twin_zookeeper: Any, fresh_schema: Any, monkeypatch: Any
) -> Iterator[Case]:
    with orders_to_hint_at(tmp_path, twin_source, twin_target, twin_zookeeper, fresh_schema, monkeypatch) as made:
        yield made


def same(made: Case, table: str = "orders") -> bool:
    """Rows, and the order of the columns."""
    rows = [
        server.execute(f"SELECT * FROM `{made.schema}`.{table} ORDER BY 1, 2") for server in (made.source, made.target)
    ]
    return bool(rows[0] == rows[1])


def test_a_paused_pipeline(shop: Case) -> None:
    control.pause(shop.runtime(), by="a test", reason="tea")
    at_source(shop, "INSERT INTO orders VALUES (1, 'a', 1)")
    [resume] = commands(shop, stops(shop, "was paused by a test"))
    does(shop, resume)
    shop.run_until_head()
    assert same(shop)


def test_a_rule_that_fails(shop: Case) -> None:
    (shop.folder / "rules/engine.yaml").write_text("rules: [{name: up, path: up.py}]\n")
    rule = shop.folder / "rules/up.py"
    rule.write_text("def transform(row, context):\n    return {**row, 'note': row['noet'].upper()}\n")
    shop.path.write_text(shop.yaml + "rules: engine.yaml\n")
    at_source(shop, "INSERT INTO orders VALUES (1, 'a', 1)")
    error = stops(shop, "rule 'up'")
    assert "fix the rule; the batch is retried" in str(error.hint)
    rule.write_text(rule.read_text().replace("noet", "note"))
    shop.run_until_head()
    assert shop.target.execute(f"SELECT note FROM `{shop.schema}`.orders") == [("A",)]


def test_a_position_behind_undelivered_batches(shop: Case) -> None:
    shop.target.execute(f"RENAME TABLE `{shop.schema}`.orders TO `{shop.schema}`.away")
    at_source(shop, "INSERT INTO orders VALUES (1, 'a', 1)")
    stops(shop, "has no table")
    done = CliRunner().invoke(all_commands(), ["seek", "case", "latest", "--yes"], env=dict(os.environ))
    assert isinstance(done.exception, SluiceError)
    assert "wait until they are delivered" in str(done.exception.hint)
    shop.target.execute(f"RENAME TABLE `{shop.schema}`.away TO `{shop.schema}`.orders")
    shop.run_until_head()
    does(shop, ["seek", "case", "latest"])
    at_source(shop, "INSERT INTO orders VALUES (2, 'b', 2)")
    shop.run_until_head()
    assert same(shop)


def test_every_command_in_a_hint_exists() -> None:
    """Names of commands and options, in all hints of the product."""
    import ast
    from pathlib import Path

    root: Any = all_commands()
    checked = 0
    for path in Path(__file__).parents[3].joinpath("include/sluice").rglob("*.py"):
        source = path.read_text()
        for node in ast.walk(ast.parse(source)) if "`sluice " in source else ():
            text = (
                ast.unparse(node)
                if isinstance(node, ast.JoinedStr)
                else node.value
                if isinstance(node, ast.Constant)
                else ""
            )
            for said in re.findall(r"`sluice ([^`]+)`", str(text)):
                words, command = said.split(), root
                while hasattr(command, "commands") and words and re.fullmatch(r"[a-z-]+(\|[a-z-]+)*", words[0]):
                    found = [command.commands.get(name) for name in words.pop(0).split("|")]
                    assert all(found), (path.name, said)
                    command = found[0]
                if hasattr(command, "by_default"):
                    command = command.commands[command.by_default]
                known = {option for one in command.params for option in (*one.opts, *one.secondary_opts)} | {"--help"}
                for option in re.findall(r"(?<!\S)--[a-z-]+", " ".join(words)):
                    assert option in known, (path.name, said, option)
                checked += 1
    assert checked > 40


def test_a_hint_that_leaves_changes_out_says_what_makes_both_sides_equal() -> None:
    """``seek`` to another place of the log, ``skip``, and ``adopt --reset``, in all hints of the product."""
    import ast
    from pathlib import Path

    checked = 0
    for path in Path(__file__).parents[3].joinpath("include/sluice").rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        if "`sluice " not in source:
            continue
        tree = ast.parse(source)
        parts = {id(value) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for value in node.values}
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                said = (value.value for value in node.values if isinstance(value, ast.Constant))
                if not any("`sluice " in part for part in said):
                    continue
                text = ast.unparse(node)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
                text = node.value
            else:
                continue
            leaves = re.findall(r"`sluice (?:seek(?! [^`]*--drop-undelivered)|skip(?! [^`]*--lost))[^`]*`", text)
            if leaves:
                checked += 1
                ways = (
                    "_THEN_REPAIR",
                    "AROUND",
                    "`sluice dump start",
                    "`sluice verify",
                    "`sluice seek {runtime.name} --drop",
                    "dead-letters replay",
                )
                assert any(way in text for way in ways), (path.name, node.lineno, text)
    assert checked > 8
