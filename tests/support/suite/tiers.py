"""Which tests ``make test-fast`` and ``make test`` leave out (``tests/tiers.yaml``) and which promise each test keeps
(``tests/promises.yaml``).
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.support.suite import balance

TESTS = Path(__file__).resolve().parents[2]
"""The folder of all tests."""


@dataclass(frozen=True)
class Rule:
    """One entry of ``tests/tiers.yaml``: tests that only ``make test-all`` runs (mark ``full``) or that
    ``make test-fast`` leaves out (``slow``).

    id: a folder, a file, a function or a case. having: only cases whose parameters have all of these words. kept:
    files, functions or cases of ``id`` that ``make test`` runs all the same.
    """

    id: str
    reason: str
    having: str = ""
    kept: tuple[str, ...] = ()
    mark: str = "full"

    def takes(self, nodeid: str) -> bool:
        """True if the rule marks the test."""
        if not _begins(nodeid, self.id) or any(_begins(nodeid, f"{self.id}{kept}") for kept in self.kept):
            return False
        return words(nodeid).issuperset(self.having.split())

    def takes_function(self, nodeid: str) -> bool:
        """True if the rule marks every case of the function."""
        some = self.having or "[" in self.id or any(f"{self.id}{kept}".startswith(f"{nodeid}[") for kept in self.kept)
        return not some and self.takes(nodeid)


def words(nodeid: str) -> frozenset[str]:
    """The words of a test's parameters: ``test_a[mysql-FULL]`` has ``mysql`` and ``FULL``."""
    return frozenset(nodeid.partition("[")[2].rstrip("]").split("-"))


def _begins(nodeid: str, prefix: str) -> bool:
    rest = nodeid[len(prefix) :]
    return nodeid.startswith(prefix) and (prefix.endswith("/") or not rest or rest[0] in "/:[")


@cache
def rules(path: Path = TESTS / "tiers.yaml") -> tuple[Rule, ...]:
    """Every entry of the file."""
    return tuple(
        Rule(
            str(one),
            entry["reason"],
            str(entry.get("having", "")),
            tuple(entry.get("kept", ())),
            entry.get("mark", "full"),
        )
        for entry in yaml.safe_load(path.read_text(encoding="utf-8"))
        for one in entry["ids"]
    )


@cache
def _rules_about(file: str) -> tuple[Rule, ...]:
    """Those that may take a test of the file: thousands of tests are held against hundreds of rules."""
    return tuple(rule for rule in rules() if rule.id.startswith(file) or _begins(file, rule.id))


def only_in_full(nodeid: str, all_ids: frozenset[str]) -> bool:
    """True if ``make test`` leaves the test out. A case goes for its dialect only where MySQL has the same case."""
    for rule in _rules_about(balance.file_of(nodeid)):
        if rule.mark == "full" and rule.takes(nodeid):
            twins = {nodeid.replace("mariadb", name) for name in ("mysql", "mysql_source", "mysql_target")}
            if rule.having != "mariadb" or twins & all_ids:
                return True
    return False


def is_slow(nodeid: str) -> bool:
    """True if ``make test-fast`` leaves the test out."""
    return any(rule.mark == "slow" and rule.takes(nodeid) for rule in _rules_about(balance.file_of(nodeid)))


def file_only_in_full(file: str) -> bool:
    """True if ``make test`` leaves the whole file out."""
    return any(
        rule.mark == "full"
        and not rule.having
        and "::" not in rule.id
        and rule.takes(file)
        and not any(f"{rule.id}{kept}".startswith(file) for kept in rule.kept)
        for rule in _rules_about(file)
    )


@cache
def promises(path: Path = TESTS / "promises.yaml") -> dict[str, dict[str, Any]]:
    """``{number: {says, open}}``; ``open`` is why nothing keeps the promise yet."""
    found: dict[str, dict[str, Any]] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return found


@dataclass(frozen=True)
class Function:
    """A test function as its file has it: id without parameters, numbers of its promises, and whether its marks say
    ``full``.
    """

    nodeid: str
    promises: tuple[str, ...]
    marked_full: bool

    @property
    def only_in_full(self) -> bool:
        return self.marked_full or any(rule.mark == "full" and rule.takes_function(self.nodeid) for rule in rules())


def functions(root: Path = TESTS) -> Iterator[Function]:
    """Every test function below ``root``, read from the files without importing them."""
    for path in sorted(root.rglob("test_*.py")):
        module = ast.parse(path.read_text(encoding="utf-8"))
        whole = [node.value for node in module.body if isinstance(node, ast.Assign) and _names(node) == ["pytestmark"]]
        marks = [mark for value in whole for mark in (value.elts if isinstance(value, ast.List) else [value])]
        for node, more in _tests(module.body):
            numbers, full = _read([*marks, *more, *node.decorator_list])
            yield Function(f"{path.relative_to(root.parent)}::{node.name}", numbers, full)


def _tests(body: Iterable[ast.stmt]) -> Iterator[tuple[ast.FunctionDef, list[ast.expr]]]:
    for node in body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield node, []
        elif isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            for inner, marks in _tests(node.body):
                yield inner, [*node.decorator_list, *marks]


def _names(node: ast.Assign) -> list[str]:
    return [target.id for target in node.targets if isinstance(target, ast.Name)]


def _read(marks: Iterable[ast.expr]) -> tuple[tuple[str, ...], bool]:
    numbers: list[str] = []
    full = False
    for mark in marks:
        text = ast.unparse(mark)
        if text.startswith("pytest.mark.promise(") and isinstance(mark, ast.Call):
            numbers += [ast.literal_eval(argument) for argument in mark.args]
        full |= text == "pytest.mark.full"
    return tuple(numbers), full
