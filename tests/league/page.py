"""The pages of the league, made of the cases and the stored results: ``docs/league.md``, and a page a class."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.league.cases import CLASSES, SERVERS, VERBS, Case, Step, all_cases
from tests.league.judging import Outcome

RESULTS = Path(__file__).with_name("results")
DOCS = Path(__file__).resolve().parents[2] / "docs"
NOTES = Path(__file__).with_name("notes.yaml")
MARKS = {
    Outcome.RIGHT: "✓", Outcome.WRONG: "✗", Outcome.LOST: "−", Outcome.DOUBLED: "+", Outcome.NAMED: "■", Outcome.UNNAMED: "□",
    Outcome.NOT_OFFERED: "·", Outcome.DOCUMENTED: "≈",
}  # fmt: skip
MEANINGS = {
    Outcome.RIGHT: "the rows at the other end, or those that its changes make, are the server's; where the log lost rows, a named stop counts as right",
    Outcome.WRONG: "a row differs or should not be there, and the tool says nothing",
    Outcome.LOST: "a row is missing, and the tool says nothing",
    Outcome.DOUBLED: "a row is there twice, and the tool says nothing",
    Outcome.NAMED: "the tool stops, and its message names the reason, the table or the setting",
    Outcome.UNNAMED: "the tool stops or stands still, and its message does not tell what to look at",
    Outcome.DOCUMENTED: "what was delivered differs, and the tool's documentation or interface says so",
    Outcome.NOT_OFFERED: "the tool does not claim to do this: copies, definitions, or another kind of server",
}
SHORT = {
    "Sluice": "Sluice",
    "Native replication": "Native",
    "mysql-replication": "PyMR",
    "go-mysql canal": "canal",
    "Debezium engine": "Debezium",
}
TITLES = {
    "values": "values", "definitions": "definitions of tables", "transactions": "transactions", "keys": "keys", "copies": "copies beside writes",
    "restarts": "restarts", "purged": "purged logs",
}  # fmt: skip
_NAMES = {"mysql": "MySQL", "mariadb": "MariaDB", "postgresql": "PostgreSQL"}


@dataclass(frozen=True, slots=True)
class Column:
    """A tool, its version, and what came of each case."""

    tool: str
    version: str
    servers: dict[str, tuple[str, str]]
    cases: dict[str, dict[str, Any]]


def columns() -> list[Column]:
    """Read the stored results, with the notes on them; in the order of SHORT."""
    notes = yaml.safe_load(NOTES.read_text(encoding="utf-8"))
    found: dict[str, Column] = {}
    for file in sorted(RESULTS.glob("*.json")):
        stored = json.loads(file.read_text(encoding="utf-8"))
        column = found.setdefault(stored["tool"], Column(stored["tool"], stored["version"], {}, {}))
        column.servers[file.stem.rpartition("-")[2]] = (stored["server"], stored["date"])
        for key, result in stored["cases"].items():
            own = _note(notes.get(stored["tool"], []), key, result["outcome"])
            column.cases[key] = {**result, **own}
    return sorted(found.values(), key=lambda column: list(SHORT).index(column.tool))


def _note(notes: list[dict[str, Any]], key: str, outcome: str) -> dict[str, str]:
    """Return the word on an outcome, and the outcome that is shown."""
    for note in notes:
        if outcome != Outcome.RIGHT and {key, key.partition("/")[2]} & set(note["cases"]):
            shown = Outcome.DOCUMENTED if outcome in note.get("instead_of", ()) else outcome
            return (
                {"outcome": str(shown), "note": note["note"]}
                if shown is Outcome.DOCUMENTED or "instead_of" not in note
                else {"note": ""}
            )
    return {"note": ""}


def is_good(case: Case, outcome: str) -> bool:
    """Return True if nothing better can come of the case: right, or a named stop where the log has lost rows."""
    return outcome == Outcome.RIGHT or (case.lost and outcome == Outcome.NAMED)


def write() -> None:
    """Write all pages again."""
    (DOCS / "league").mkdir(exist_ok=True)
    for name, text in pages().items():
        (DOCS / name).write_text(text, encoding="utf-8")


def pages() -> dict[str, str]:
    """Return the text of each page by its name below ``docs/``."""
    table = columns()
    return {"league.md": _front(table)} | {f"league/{subject}.md": _class(subject, table) for subject in CLASSES}


def count() -> int:
    """Return the number of cases, each once whatever its kinds of servers are."""
    return len({case.name for case in all_cases()})


def _front(table: list[Column]) -> str:
    return _wrapped([
        "# The CDC league", "",
        "<!-- This page and those in league/ are written by `make league-page` from the cases and the stored results. -->", "",
        f"{count()} hard cases for tools that read the logs of MySQL, MariaDB and PostgreSQL, {len(all_cases())} with their kinds of servers. "
        "The truth of each is what the server answers to a SELECT afterwards. Anyone can run them: `make league` plays all of "
        "them on real servers that it starts, `make league TOOL=native CASE=xa` some.", "",
        *_totals(table), "", *_legend(), "",
        "## The cases", "",
        *(f"- [{TITLES[subject].capitalize()}](league/{subject}.md): {len({c.name for c in all_cases() if c.subject == subject})} cases" for subject in CLASSES), "",
        "## Where Sluice is not right", "", *_not_right(table), "",
        "## What Sluice failed first", "",
        "These cases were wrong in an earlier Sluice, or stopped without a way on. The date is that of the commit that "
        "corrected it, with its title.", "",
        *(f"- [{case.name}]({_link(case)}), {case.failed}" for case in _once() if case.failed), "",
        "## How it is played", "",
        "- A case starts with its tables and rows, and the tool at the end of the log. Then come its statements, pauses, stops "
        "and kills. At the end a mark is written, and a tool that has the mark has everything before it.",
        "- A tool that writes tables is judged by a SELECT at the other end. A tool that hands changes over is judged by the "
        "rows that its changes make of the rows before; it need not follow what a statement does to rows without an event.",
        "- Values are compared by what they mean: `1.50` and `1.5` are one decimal, a document's keys may have any order.",
        "- Each tool has the settings that its documentation advises for correctness. They stand in its adapter in "
        "`tests/league/tools/`; an adapter is one class of about sixty lines.",
        "- A result counts as wrong only where the tool's documentation promises otherwise, or nothing. "
        "`tests/league/notes.yaml` has the exceptions, which the table shows with ≈.",
        "- A tool that must start, see and stop within 25 seconds a case stands still after that. Each case was played once.", "",
        "Debezium's connector for MariaDB could not be had whole, so Debezium has no MariaDB. Maxwell, alibaba's canal, pgstream, "
        "go-pq-cdc and pgcopydb have no adapter yet.", "",
    ])  # fmt: skip


def _wrapped(lines: Iterable[str]) -> str:
    """Break paragraphs and points at 120 columns."""
    return "\n".join(
        line if line.startswith(("|", "#", "<")) or not line
        else textwrap.fill(line, 120, subsequent_indent="  " * line.startswith("- "), break_long_words=False, break_on_hyphens=False)
        for line in lines
    )  # fmt: skip


def _totals(table: list[Column]) -> Iterator[str]:
    yield "| Tool | Server | " + " | ".join(MARKS[outcome] for outcome in MARKS) + " |"
    yield "|---|---|" + "--:|" * len(MARKS)
    for column in table:
        for server in SERVERS:
            if server in column.servers:
                counted = Counter[str](
                    Outcome.RIGHT if is_good(case, outcome := column.cases[case.id]["outcome"]) else outcome
                    for case in all_cases()
                    if case.server == server and case.id in column.cases
                )
                version, date = column.servers[server]
                yield (
                    f"| {column.tool} {column.version} | {_NAMES[server]} {version.split('-')[0].split()[0]}, {date} | "
                    + " | ".join(str(counted[outcome] or "") for outcome in MARKS) + " |"
                )  # fmt: skip


def _legend() -> Iterator[str]:
    yield "| | |"
    yield "|---|---|"
    yield from (f"| {MARKS[outcome]} | {outcome}: {meaning} |" for outcome, meaning in MEANINGS.items())


def _once() -> list[Case]:
    return list({case.name: case for case in reversed(all_cases())}.values())[::-1]


def _link(case: Case) -> str:
    return f"league/{case.subject}.md#{case.name}"


def _not_right(table: list[Column]) -> Iterator[str]:
    [own] = [column for column in table if column.tool == "Sluice"]
    for case in all_cases():
        result = own.cases.get(case.id)
        if result and not is_good(case, result["outcome"]):
            note = f": {result['note']}" if result["note"] else ""
            yield f"- [{case.name}]({_link(case)}) on {_NAMES[case.server]}: {result['outcome']}{note}"


def _class(subject: str, table: list[Column]) -> str:
    cases = [case for case in all_cases() if case.subject == subject]
    lines = [f"# The CDC league: {TITLES[subject]}", "", f"{' '.join(f'{mark} {outcome}' for outcome, mark in MARKS.items())}. Each case links to its "
             "section. [The front page](../league.md) says how it is played.", ""]  # fmt: skip
    for server in SERVERS:
        own = [case for case in cases if case.server == server]
        there = [column for column in table if server in column.servers]
        if own and there:
            lines += [
                f"| {_NAMES[server]} | " + " | ".join(SHORT[column.tool] for column in there) + " |",
                "|---|" + ":-:|" * len(there),
            ]
            lines += [
                f"| [{case.name}](#{case.name}) | " + " | ".join(_mark(column, case) for column in there) + " |" for case in own
            ] + [""]  # fmt: skip
    for name in dict.fromkeys(case.name for case in cases):
        lines += _section([case for case in cases if case.name == name], table)
    return "\n".join(lines).rstrip() + "\n"


def _mark(column: Column, case: Case) -> str:
    result = column.cases.get(case.id)
    return MARKS[Outcome(result["outcome"])] if result else ""


def _section(cases: list[Case], table: list[Column]) -> Iterator[str]:
    case = cases[0]
    yield f"## {case.name}"
    yield ""
    lost = " What was not read is lost, so that right is to stop and to name it, or to copy it." if case.lost else ""
    yield _wrapped([f"{case.why}{lost} Servers: {', '.join(_NAMES[one.server] for one in cases)}."])
    yield ""
    yield "```sql"
    settings = "SET GLOBAL {} = {}" if case.server != "postgresql" else "ALTER SYSTEM SET {} = {}"
    yield from (f"{settings.format(*setting)};" for setting in case.settings)
    for statement in (*case.tables, *case.rows):
        yield f"{_shown(statement)};"
    yield "-- the tool begins to copy" if case.copy else "-- the tool begins at the end of the log"
    for step in case.steps:
        yield _step(step)
    yield "```"
    yield ""
    told = [line for column in table for one in cases for line in _told(column, one)]
    yield from told or ["Every tool that offers it was right."]
    yield ""


def _told(column: Column, case: Case) -> Iterator[str]:
    """Yield what came of a case where that is not what the server answers."""
    result = column.cases.get(case.id)
    if result and result["outcome"] not in {Outcome.RIGHT, Outcome.NOT_OFFERED}:
        said = result["note"] or (f"`{_short(result['said'])}`" if result["said"] else "")
        yield f"- {column.tool}, {_NAMES[case.server]}: {result['outcome']}{': ' if said else ''}{said}"


def _step(step: Step) -> str:
    if not step.sql:
        return f"-- {VERBS[step.verb]}"
    told = [f" in session {step.session}"] if step.session != "a" else []
    told += (
        [f" for i from 0 to {step.times - 1}"] if step.times > 1 else [" the server refuses it"] if step.verb else []
    )
    return f"{_shown(step.sql)};{' --' if told else ''}{','.join(told)}"


def _shown(statement: str) -> str:
    return " ".join(statement.replace("{db}", "league").split("\n"))


def _short(said: str) -> str:
    text = " ".join(said.replace("`", "'").split())
    return text if len(text) <= 240 else text[:240] + "…"


if __name__ == "__main__":
    write()
