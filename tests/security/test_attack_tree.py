"""The attack tree names tests that exist, and every file of this folder."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
NAMED = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", (HERE / "attack-tree.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("file", "function"), sorted(set(NAMED)), ids=lambda part: part)
def test_a_named_test_exists(file: str, function: str) -> None:
    functions = {
        node.name
        for node in ast.parse((ROOT / file).read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
    }
    assert function in functions or (not function and any(name.startswith("test_") for name in functions))


def test_every_file_of_this_folder_is_named() -> None:
    here = {path.relative_to(ROOT).as_posix() for path in HERE.glob("test_*.py")} - {
        "tests/security/test_attack_tree.py"
    }
    assert here <= {file for file, _ in NAMED}
