"""Names that say nothing alone may only become fewer: each room has its number of them in tests/vague_names.yaml.

What counts: each name in `WORDS` where a value is bound to it, found by `ast`: assignments (plain, annotated, augmented, ``:=``), targets of
``for``, ``with`` and comprehensions, and parameters of functions and lambdas. Attributes, keyword arguments and names that are only read do not count.
"""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "include" / "sluice"
ALLOWED: dict[str, int] = yaml.safe_load((ROOT / "tests" / "vague_names.yaml").read_text(encoding="utf-8"))
WORDS = frozenset([
    "asked", "done", "found", "given", "gone", "held", "kept", "known", "left", "made", "meant", "mine", "one",
    "other", "ours", "said", "seen", "shown", "taken", "theirs", "there", "these", "those", "told", "wanted", "whole",
])  # fmt: skip
SPARE = 10
"""Names by which a number may exceed its room's count; a number that exceeds it by more has to be lowered."""


def bound_names(code: str) -> list[str]:
    """The names that `code` binds to a value, in no particular order, with repetitions."""
    nodes = list(ast.walk(ast.parse(code)))
    stored = [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    return stored + [node.arg for node in nodes if isinstance(node, ast.arg)]


@pytest.fixture(scope="module")
def counts() -> Counter[str]:
    """Bindings of vague names by room: the folder or the module directly below the package."""
    count: Counter[str] = Counter()
    for path in PACKAGE.rglob("*.py"):
        room = path.relative_to(PACKAGE).parts[0]
        count[room] += sum(name in WORDS for name in bound_names(path.read_text(encoding="utf-8")))
    return count


def test_no_room_binds_more_vague_names_than_allowed(counts: Counter[str]) -> None:
    over = {
        room: f"{counts[room]}, {ALLOWED.get(room, 0)} allowed"
        for room in counts
        if counts[room] > ALLOWED.get(room, 0)
    }
    assert not over, f"name the values by what they are, not by one of: {', '.join(sorted(WORDS))}"


def test_no_allowance_is_far_above_its_room(counts: Counter[str]) -> None:
    loose = {
        room: f"{counts[room]} of {allowed}" for room, allowed in ALLOWED.items() if allowed > counts[room] + SPARE
    }
    assert not loose, "lower tests/vague_names.yaml to what the rooms have"


def test_every_kind_of_binding_counts() -> None:
    code = """
made = 1
given: int = 2
held += 3
for kept in (): pass
with open(gone) as told: pass
x = [one for one in () if (seen := one)]
def f(asked, *said, wanted=None, **shown): return lambda known: found.whole(taken=left)
"""
    expected = ["asked", "given", "held", "kept", "known", "made", "one", "said", "seen", "shown", "told", "wanted"]
    assert sorted(WORDS.intersection(bound_names(code))) == expected
