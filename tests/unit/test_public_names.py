"""Check that the names which other programs, rules and kinds use are still there (tests/public_names.yaml)."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

PACKAGE = Path(__file__).parents[2] / "include/sluice"
NAMES: dict[str, list[str]] = YAML(typ="safe").load(Path(__file__).parents[1] / "public_names.yaml")


def has(value: Any, name: str) -> bool:
    """Return True if ``value``, a module or a class, has the name: as an attribute, or as a field without a default."""
    return hasattr(value, name) or name in {
        field for kind in getattr(value, "__mro__", ()) for field in vars(kind).get("__annotations__", {})
    }


@pytest.mark.parametrize("module", NAMES)
def test_public_names_are_there(module: str) -> None:
    found = importlib.import_module(module)
    missing = []
    for name in NAMES[module]:
        outer, _, inner = name.partition(".")
        if not has(found, outer) or (inner and not has(getattr(found, outer), inner)):
            missing.append(name)
    assert missing == [], "removed or renamed: a breaking change, see CONTRIBUTING.md"


def test_a_name_that_is_gone_is_noticed() -> None:
    client = importlib.import_module("sluice.client")
    assert has(client, "subscribe")
    assert has(client.StoredBatch, "number")
    assert not has(client, "unsubscribe")
    assert not has(client.StoredBatch, "numbers")


@pytest.mark.parametrize("module", ["sluice.client", "sluice.targets.port"])
def test_a_name_that_is_exported_is_a_promise(module: str) -> None:
    found = importlib.import_module(module)
    assert sorted(found.__all__) == sorted(name for name in NAMES[module] if "." not in name)


@pytest.mark.parametrize(
    ("module", "name"), [("sluice.rules.context", "RuleContext"), ("sluice.client", "StoredBatch")]
)
def test_a_value_has_no_other_names(module: str, name: str) -> None:
    there = getattr(importlib.import_module(module), name)
    names = {*there.__annotations__, *vars(there)}
    listed = {inner for outer, _, inner in (one.partition(".") for one in NAMES[module]) if outer == name and inner}
    assert {one for one in names if not one.startswith("_")} == listed


def test_what_a_module_of_the_port_defines_is_exported() -> None:
    defined = {
        node.name
        for path in (PACKAGE / "targets/port").glob("*.py")
        if path.name != "record.py"  # what the kinds of this repository share; no promise to others
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_")
    }
    assert defined - set(NAMES["sluice.targets.port"]) == set()


@pytest.mark.parametrize(
    ("former", "now"),
    [
        ("sluice.targets.contract", "sluice.testing.targets"),
        ("sluice.coordination.contract", "sluice.testing.position_stores"),
    ],
)
def test_the_former_name_of_a_suite_gives_the_same_and_warns(former: str, now: str) -> None:
    suite, old = importlib.import_module(now), importlib.import_module(former)
    with pytest.warns(DeprecationWarning, match=f"{former} is {now} now"):
        assert old.CHECKS is suite.CHECKS


@pytest.mark.parametrize("room", ["sluice.targets", "sluice.sources"])
def test_the_former_name_of_the_port_still_exports_all_of_it(room: str) -> None:
    """A file of a user's own kind imports it; the package itself does not."""
    port, former = (importlib.import_module(f"{room}.{name}") for name in ("port", "base"))
    assert sorted(former.__all__) == sorted(port.__all__)
    assert all(getattr(former, name) is getattr(port, name) for name in port.__all__)
    importing = [
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module == f"{room}.base"
    ]
    assert importing == []
