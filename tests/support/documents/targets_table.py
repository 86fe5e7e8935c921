"""The table of targets in README.md and docs/targets.md: made of what each kind declares, its page, and the results of
the benches.

``python -m tests.support.documents.targets_table`` (``make docs``) writes it again. A kind that is added to the
registry gets a row by itself: its name is the title of ``docs/KIND-target.md``, what it is tested with is what this
page says after "tested with", and its figures are those of ``tests/bench/results/target_KIND.json``.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sluice.model.schema_changes import ChangeKind
from sluice.targets.port import Capabilities, Feature, Guarantee, Input, Ordering
from sluice.targets.registry import KINDS, kind_of

ROOT = Path(__file__).parents[3]
COMMAND = "make docs"
BEGIN = f"<!-- The next table is written by `{COMMAND}`. -->"
END = "<!-- end of the table -->"
PLACES = {"README.md": "docs/", "docs/targets.md": ""}
"""Pages with the table, and how a link from there to a page of docs/ begins."""

IN_TESTS_ONLY = {"memory"}
NOT_MEASURED = "not measured"

README = "README.md"
_SHORT = ("Target", "Guarantee", "Deletes and verify", "Tested with")
"""The columns of README.md: more are wider than a page."""
_HEADINGS = (
    "Target", "Inputs", "Guarantee", "Order that is kept", "DDL that is followed", "Deletes", "Partial rows", "Verify",
    "Tested with", "Measured here", "Beside it",
)  # fmt: skip
_INPUTS = {Input.MERGED: "newest row of each key", Input.CHANGES: "every change"}
_GUARANTEES = {
    Guarantee.TRANSACTIONAL: "exactly once: rows and checkpoint commit together",
    Guarantee.IDEMPOTENT: "exactly once in effect: a batch that is tried again ends in the same state",
    Guarantee.AT_LEAST_ONCE: "at least once",
}
_ORDERS = {Ordering.KEY: "key", Ordering.TABLE: "table", Ordering.GLOBAL: "all tables"}
_NOT_OF_A_TABLE = {
    ChangeKind.UNKNOWN,
    ChangeKind.NOTHING,
    ChangeKind.ROWS_REMOVED,
    ChangeKind.ROWS_REPLACED,
    ChangeKind.CREATE_DATABASE,
    ChangeKind.ALTER_DATABASE,
    ChangeKind.DROP_DATABASE,
}
_TESTED = re.compile(r"tested with\s+(.+?)(?=[;:]|\.\s|\.$|, with tables)", re.DOTALL)

Line = dict[str, Any]


@dataclass(frozen=True)
class Page:
    """The page of a kind. ``path``: below docs/; ``text``: empty where there is no page."""

    path: str
    text: str

    @property
    def title(self) -> str:
        """The name of the store, or "" if the page has no title."""
        found = re.match(r"# (?:An? )?(.+?) as a target\n", self.text)
        return found[1][0].upper() + found[1][1:] if found else ""

    @property
    def tested(self) -> str:
        """What the page says that the target is tested with."""
        found = _TESTED.search(self.text)
        return " ".join(found[1].split()) if found else "see its page"


def table(links_to: str) -> str:
    """Return the table, with a row for each built-in kind."""
    found: list[list[str]] = []
    for kind in KINDS:
        if kind not in IN_TESTS_ONLY:
            path = f"{kind}-target.md"
            page = ROOT / "docs" / path
            text = page.read_text(encoding="utf-8") if page.exists() else ""
            found.append(row(kind, kind_of(kind).load().CAPABILITIES, Page(path, text), results(kind), links_to))
    found.sort(key=lambda cells: cells[0].lower())
    if links_to == PLACES[README]:
        headings, found = _SHORT, list(map(_short, found))
    else:
        headings = _HEADINGS
    rows: list[Sequence[str]] = [headings, ["---"] * len(headings), *found]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def _short(cells: Sequence[str]) -> list[str]:
    """Return the cells of README.md of a whole row."""
    of = dict(zip(_HEADINGS, cells, strict=True))
    effect = of["Guarantee"].partition(":")[0]
    deletes = "deletes" if of["Deletes"] == "yes" else "no deletes"
    verify = {"yes": "verify", "no": "no verify"}.get(of["Verify"], "verify, also without a key")
    return [of["Target"], effect, f"{deletes}, {verify}", of["Tested with"]]


def row(kind: str, offered: Capabilities, page: Page, lines: Sequence[Line], links_to: str) -> list[str]:
    """Return the cells of one kind."""
    name = f"[{page.title or kind}]({links_to}{page.path})" if page.text else kind
    has = {
        feature: "yes" if feature in offered.features else "no" for feature in (Feature.DELETE, Feature.PARTIAL_ROWS)
    }
    measured, beside = figures(kind, lines)
    if measured != NOT_MEASURED:
        measured = f"[{measured}]({'' if links_to else '../'}{_results_file(kind)})"
        if "not run" in page.tested or "never run" in page.tested:  # the figure is that of the server that stands in
            measured += f" with {page.tested.split(',')[0]}"
    verified = "yes, also rows without a key" if offered.counts_rows else "yes" if offered.compares else "no"
    return [
        name,
        _listed(_INPUTS, offered.inputs),
        _GUARANTEES[offered.guarantee],
        _listed(_ORDERS, offered.ordering) or "batches",
        _followed(offered.schema_changes),
        has[Feature.DELETE],
        has[Feature.PARTIAL_ROWS],
        verified,
        page.tested,
        measured,
        beside,
    ]


def _listed(words: dict[Any, str], offered: Iterable[Any]) -> str:
    mine = set(offered)
    return ", ".join(word for one, word in words.items() if one in mine)


def _followed(changes: frozenset[ChangeKind]) -> str:
    of_tables = [kind for kind in ChangeKind if kind not in _NOT_OF_A_TABLE]
    missing = [kind.value for kind in of_tables if kind not in changes]
    if not missing:
        return "all of tables and columns"
    if len(missing) == len(of_tables):
        return "none"
    if len(missing) <= len(of_tables) // 2:
        return f"all but {', '.join(missing)}"
    return ", ".join(kind.value for kind in of_tables if kind in changes)


def results(kind: str) -> list[Line]:
    """Return the stored lines of a kind's bench; those of MySQL are the bench of the whole job's, against a native
    replica.
    """
    path = ROOT / _results_file(kind)
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []


def _results_file(kind: str) -> str:
    return f"tests/bench/results/{'apply' if kind == 'mysql' else f'target_{kind}'}.json"


def figures(kind: str, lines: Sequence[Line]) -> tuple[str, str]:
    """Return what was measured, and what was measured beside it in the same run.

    Nothing that is not in a stored line is said.

    A kind's first measure of rows a second counts, by the fastest of its variants, then the whole way from MySQL's log,
    and then other programs.
    """
    rates = [line if str(line["unit"]).endswith("/s") else _as_rate(line) for line in lines]
    known = [line for line in rates if line is not None]
    whole, peer = ("apply_oltp" if kind == "mysql" else f"target_{kind}_end_to_end"), f"target_{kind}_peer"
    own = [line for line in known if line["measure"].startswith("target_") and line["measure"] not in {whole, peer}]
    said: list[str] = []
    beside: list[str] = []
    if own:
        best = max((line for line in own if line["measure"] == own[0]["measure"]), key=_value)
        said.append(_rate(best))
        beside += _compared(best)
    if ways := [line for line in known if line["measure"] == whole]:
        best = max(ways, key=_value)
        said.append(f"from MySQL's log on {_rate(best)}")
        beside += _compared(best) if kind == "mysql" else []  # other kinds' lines stand beside those of MySQL
    for line in known:
        if line["measure"] == peer:
            beside += _compared(line)
    return "; ".join(said) or NOT_MEASURED, "; ".join(beside) or NOT_MEASURED


def _as_rate(line: Line) -> Line | None:
    """Return a line in seconds that says how many changes a second that was; None if it does not."""
    return {**line, "value": line["changes_per_s"], "unit": "changes/s"} if line.get("changes_per_s") else None


def _value(line: Line) -> float:
    return float(line["value"])


def _rate(line: Line) -> str:
    digits = len(str(int(line["value"])))
    return f"{round(line['value'], 3 - digits):,.0f} {line['unit']}"


def _compared(line: Line) -> list[str]:
    return [f"{line['ratio']:.3g} × {str(line['baseline']).replace('|', '/')}"] if line.get("ratio") else []


def renewed(text: str, page: str) -> str:
    """Return the text of a page with the table as it is now. Raises ValueError if the page has no place for it."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} has no place for the table of targets: {BEGIN} … {END}")
    return f"{before}{BEGIN}\n\n{table(PLACES[page])}\n\n{END}{after}"


def main() -> int:
    """Write the table again where it stands."""
    for page in PLACES:
        path = ROOT / page
        old = path.read_text(encoding="utf-8")
        new = renewed(old, page)
        if new != old:
            path.write_text(new, encoding="utf-8")
            print(f"{page}: the table of targets is new")
    return 0


if __name__ == "__main__":
    sys.exit(main())
