"""The table of targets says what the kinds declare, what their pages say, and what the benches stored; no more."""

from __future__ import annotations

import json

import pytest

from sluice.model.schema_changes import ChangeKind
from sluice.targets.port import Capabilities, Feature, Guarantee, Input, Ordering
from sluice.targets.registry import KINDS
from tests.support.documents import targets_table
from tests.support.documents.targets_table import COMMAND, IN_TESTS_ONLY, NOT_MEASURED, PLACES, ROOT, Page, figures, row


@pytest.mark.parametrize("page", PLACES)
def test_the_table_is_as_it_would_be_written_now(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    if targets_table.renewed(text, page) != text:
        pytest.fail(
            f"the table of targets in {page} is not what kinds, pages and bench results say now: run `{COMMAND}`"
        )


def test_each_kind_has_a_row_with_its_page_and_what_it_is_tested_with() -> None:
    rows = targets_table.table("docs/").splitlines()[2:]
    assert len(rows) == len(KINDS.keys() - IN_TESTS_ONLY)
    for kind in KINDS.keys() - IN_TESTS_ONLY:
        mine = [one for one in rows if f"](docs/{kind}-target.md)" in one]
        assert len(mine) == 1, f"docs/{kind}-target.md is missing: write it, then run `{COMMAND}`"
        assert "see its page" not in mine[0], (
            f'docs/{kind}-target.md does not say what the target is tested with: write "It is tested with NAME VERSION.", then run `{COMMAND}`'
        )


def test_the_command_is_there() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "\ndocs: " in makefile
    assert "tests.support.documents.targets_table" in makefile


NEW = Capabilities(
    inputs=frozenset({Input.CHANGES}),
    guarantee=Guarantee.AT_LEAST_ONCE,
    ordering=frozenset({Ordering.GLOBAL, Ordering.KEY}),
    schema_changes=frozenset({ChangeKind.ADD_COLUMN}),
    features=frozenset({Feature.PARTIAL_ROWS}),
)


def test_a_kind_that_is_new_and_not_measured_has_a_row_that_says_so() -> None:
    page = Page(
        "store-target.md",
        "# A Store and Shop as a target\n\nIt is tested with\nStore 4.0 and Shop 9; older ones are not.\n",
    )
    assert row("store", NEW, page, [], "docs/") == [
        "[Store and Shop](docs/store-target.md)", "every change", "at least once", "key, all tables", "add column",
        "no", "yes", "no",
        "Store 4.0 and Shop 9", NOT_MEASURED, NOT_MEASURED,
    ]  # fmt: skip
    assert row("store", Capabilities(), Page("store-target.md", ""), [], "")[:2] == ["store", "newest row of each key"]


def line(
    measure: str,
    value: float,
    unit: str = "rows/s",
    baseline: str | None = "its loader",
    ratio: float | None = 0.5,
    **more: object,
) -> dict[str, object]:
    return {"measure": measure, "value": value, "unit": unit, "baseline": baseline, "ratio": ratio, **more}


def test_figures_are_those_of_stored_lines_and_their_baselines() -> None:
    lines = [
        line("target_store_end_to_end", 123456, "changes/s", "the same log into MySQL", 1.25),
        line("target_store_new_rows", 20000, variant="1"),
        line("target_store_new_rows", 45678, ratio=0.811, variant="2"),
        line("target_store_merged_rows", 99999),
        line("target_store_tables", 9.1, "s"),
        line("target_store_peer", 7000, "changes/s", "a peer | 3.5", 13.5),
    ]
    assert figures("store", lines) == (
        "45,700 rows/s; from MySQL's log on 123,000 changes/s",
        "0.811 × its loader; 13.5 × a peer / 3.5",
    )
    assert figures("store", lines[:1]) == ("from MySQL's log on 123,000 changes/s", NOT_MEASURED)
    assert figures("store", [line("target_store_new_rows", 7, ratio=None, baseline=None)]) == ("7 rows/s", NOT_MEASURED)
    assert figures("store", [line("target_store_tables", 9.1, "s")]) == (NOT_MEASURED, NOT_MEASURED), (
        "seconds are no rate"
    )
    assert figures(
        "mysql", [line("apply_oltp", 3.4, "s", "a replica", 10.1, changes_per_s=231945), line("apply_parallelism", 9)]
    ) == (
        "from MySQL's log on 232,000 changes/s",
        "10.1 × a replica",
    )


def test_a_page_without_a_place_for_the_table_is_named() -> None:
    with pytest.raises(ValueError, match=r"docs/targets.md has no place"):
        targets_table.renewed("# Targets\n", "docs/targets.md")


def test_stored_results_can_be_read() -> None:
    for kind in KINDS:
        assert json.dumps(targets_table.results(kind))
