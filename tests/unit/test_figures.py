"""A figure in a text that links to a bench's results is the figure of the line that it names."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = [*REPOSITORY.glob("*.md"), *REPOSITORY.joinpath("docs").rglob("*.md")]
LINK = re.compile(r'\[([^\]]+)\]\(((?:\.\./)?tests/bench/results/\w+\.json)(?: "([^"]+)")?\)')
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


def links() -> Iterator[tuple[str, str, Path, str]]:
    """(page, text, results, title) of each link to a file of results."""
    for page in PAGES:
        for text, path, title in LINK.findall(page.read_text(encoding="utf-8")):
            yield page.name, text, (page.parent / path).resolve(), title


def line_of(lines: list[dict[str, Any]], title: str) -> dict[str, Any]:
    """The one line that a title names: its measure, and behind a comma its variant or workload if that is needed."""
    found = [
        line
        for line in lines
        if title == line["measure"]
        or title in {f"{line['measure']}, {line.get(more)}" for more in ("variant", "workload")}
    ]
    assert len(found) == 1, f"{title} names {len(found)} lines"
    return found[0]


def agrees(said: str, line: dict[str, Any]) -> bool:
    """True if a number is one of the line's, in as many digits as the text gives."""
    number = float(said.replace(",", ""))
    digits = len(said.replace(",", "").replace(".", "").strip("0")) or 1
    return any(
        float(f"{known:.{digits}g}") == number for known in line.values() if isinstance(known, int | float) and known
    )


def test_figures_that_link_to_results_are_those_of_the_line() -> None:
    checked = 0
    for page, text, path, title in links():
        lines = json.loads(path.read_text(encoding="utf-8"))
        if not title:
            continue  # a row of the table of targets, which is made from the file
        line = line_of(lines, title)
        numbers = NUMBER.findall(text)
        assert numbers, (page, text)
        for number in numbers:
            assert agrees(number, line), f"{page} says {text}; {path.name}, {title}: {line['value']} {line['unit']}"
        checked += 1
    assert checked >= 2


@pytest.mark.parametrize(
    ("said", "right"), [("1,650,000", True), ("1,660,000", False), ("0.34", True), ("0.35", False)]
)
def test_a_figure_is_compared_in_the_digits_that_are_said(said: str, right: bool) -> None:
    assert agrees(said, {"value": 1646783, "ratio": 0.34, "unit": "rows/s", "load": 2.1}) is right
