"""The page of a full run: what failed is a list, from which those tests are run again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.support.suite.report import Report, failed_in


def ended(**outcomes: str) -> Report:
    found = Report()
    for name, outcome in outcomes.items():
        one: Any = SimpleNamespace(
            nodeid=f"tests/unit/test_a.py::{name}[x - y]", duration=1.0, outcome=outcome, when="call"
        )
        found.add(one)
    return found


def test_what_failed_is_run_again_until_nothing_is_left() -> None:
    page = ended(test_a="passed", test_b="failed", test_c="failed").page()
    assert failed_in(page) == {"tests/unit/test_a.py::test_b[x - y]", "tests/unit/test_a.py::test_c[x - y]"}
    page += "\n" + ended(test_b="passed", test_c="failed").again()
    assert failed_in(page) == {"tests/unit/test_a.py::test_c[x - y]"}
    page += "\n" + ended(test_c="passed").again()
    assert failed_in(page) == frozenset()
    assert failed_in(ended(test_a="passed").page()) == frozenset()
