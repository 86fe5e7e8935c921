"""Each room of the package has a budget of lines, so that growth is a decision and not an accident.

A commit that raises a number says in its message what the lines are for; one that makes a room smaller lowers it.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "include" / "sluice"
BUDGETS: dict[str, int] = yaml.safe_load((ROOT / "tests" / "budgets.yaml").read_text(encoding="utf-8"))
SPARE = 200
"""Lines by which a budget may exceed its room; more is taken away, so that nobody spends it unseen."""


def room_of(path: Path) -> str:
    """The room of a module: its folder, for sources and targets that of the kind, or ``package`` for single modules."""
    folders = path.relative_to(PACKAGE).parts[:-1]
    depth = 2 if folders[:1] in {("sources",), ("targets",)} else 1
    return "/".join(folders[:depth]) or "package"


@pytest.fixture(scope="module")
def lines() -> Counter[str]:
    """Lines of Python by room."""
    count: Counter[str] = Counter()
    for path in PACKAGE.rglob("*.py"):
        count[room_of(path)] += path.read_text(encoding="utf-8").count("\n")
    return count


def test_every_room_has_a_budget_and_keeps_it(lines: Counter[str]) -> None:
    assert lines.keys() == BUDGETS.keys(), "tests/budgets.yaml names other rooms than include/sluice has"
    over = {room: f"{lines[room]} lines, {BUDGETS[room]} allowed" for room in lines if lines[room] > BUDGETS[room]}
    assert not over, "make the rooms smaller, or raise tests/budgets.yaml and say why in the commit"


def test_no_budget_is_far_above_its_room(lines: Counter[str]) -> None:
    loose = {room: f"{lines[room]} of {BUDGETS[room]}" for room in lines if BUDGETS[room] > lines[room] + SPARE}
    assert not loose, "lower tests/budgets.yaml to what the rooms need"
