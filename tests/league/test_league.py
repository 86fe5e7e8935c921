"""Sluice's column of the league: every case comes out as the stored results have it, or better."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.league import page
from tests.league.cases import VERBS, Case, all_cases
from tests.league.playing import play
from tests.league.servers import ends
from tests.league.tools.sluice import Sluice

SEED, SAMPLE = 59, {"mysql": 10, "postgresql": 3}
"""``make test`` plays so many cases of a kind of server, chosen by the seed; ``make test-all`` plays all."""

_PATIENCE_S = 300.0
"""More than the league grants a tool: a busy machine is no fault of Sluice."""


@cache
def stored(server: str) -> dict[str, Any]:
    """Return the outcome of each case as the results were written."""
    file = page.RESULTS / f"sluice-{server}.json"
    return dict(json.loads(file.read_text(encoding="utf-8"))["cases"])


def cases() -> Iterator[Any]:
    """Every case, those beyond the sample for ``make test-all`` alone."""
    chance, sample = random.Random(SEED), set[str]()
    for server, wanted in SAMPLE.items():
        quick = [
            case.id
            for case in all_cases()
            if case.server == server and not (case.copy or case.settings or case.does(*VERBS))
        ]
        sample.update(chance.sample(quick, wanted))
    for case in all_cases():
        yield pytest.param(case, id=case.id, marks=() if case.id in sample else pytest.mark.full)


@pytest.fixture(scope="module")
def both_ends(server_folder: Path) -> Iterator[Callable[[str], Any]]:
    """Start the servers of a kind when a case first asks, and keep them for the next cases."""
    started: dict[str, Any] = {}
    with ExitStack() as stack:

        def start(kind: str) -> Any:
            if kind not in started:
                started[kind] = stack.enter_context(ends(kind, server_folder / f"league-{kind}"))
            return started[kind]

        yield start


@pytest.mark.server
@pytest.mark.parametrize("case", list(cases()))
def test_what_arrives_is_what_the_server_answers(case: Case, both_ends: Callable[[str], Any], tmp_path: Path) -> None:
    result = play(case, Sluice, both_ends(case.server), tmp_path, _PATIENCE_S)
    assert page.is_good(case, result.outcome) or result.outcome == stored(case.server)[case.id]["outcome"], result


def test_the_pages_are_made_of_the_cases_and_the_stored_results() -> None:
    for name, text in page.pages().items():
        assert (page.DOCS / name).read_text(encoding="utf-8") == text, "make league-page"
    readme = (page.DOCS.parent / "README.md").read_text(encoding="utf-8")
    assert f"[{page.count()} hard cases](docs/league.md)" in readme


def test_every_case_says_why_in_one_sentence_and_names_no_tool() -> None:
    for case in all_cases():
        assert case.why.endswith("."), case.id
        assert ". " not in case.why, case.id
        assert not any(tool.lower() in case.why.lower() for tool in (*page.SHORT, "canal", "Debezium", "Maxwell")), (
            case.id
        )


def test_sluice_played_every_case() -> None:
    for case in all_cases():
        assert case.id in stored(case.server), f"make league TOOL=sluice CASE={case.id}"
