"""The cases of the league: what is done at a server, and why it is hard. They are data, in ``cases/CLASS.yaml``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).with_name("cases")
SERVERS = ("mysql", "mariadb", "postgresql")
CLASSES = ("values", "definitions", "transactions", "keys", "copies", "restarts", "purged")
VERBS = {
    "wait": "wait until the tool has everything", "pause": "wait half a second",
    "stop": "stop the tool in order", "start": "start the tool", "restart": "stop the tool in order, and start it",
    "kill": "kill -9 the tool, and start it", "server-kill": "kill -9 the server, and start it",
    "purge": "remove every file of the log but a new one", "reset": "begin the log anew", "drop-slot": "drop the tool's slot",
}  # fmt: skip
"""The steps that are no statements, and what each does."""
NEEDS = {"table", "ddl", "copy", "truncate"}
"""The demands of a case beyond changes of rows: a table at its other end, statements that change definitions, rows
that were there before, an emptied table."""
_KEYS = {"case", "why", "tables", "rows", "steps", "global", "copy", "needs", "named", "lost", "failed"}


@dataclass(frozen=True, slots=True)
class Step:
    """A statement in a session, so many times with ``{i}`` from 0 on, or (``verb``) what happens to tool and server.

    ``verb`` may also be ``fails``: the server refuses the statement.
    """

    sql: str = ""
    session: str = "a"
    times: int = 1
    verb: str = ""


@dataclass(frozen=True, slots=True)
class Case:
    """One case at one kind of server.

    ``tables`` make what is there before, ``rows`` what it holds; a tool that copies finds only the tables at its other
    end. ``lost``: what the server did cannot be followed, so that right is to stop and to name it. ``named``: a regular
    expression for what a message must name. ``failed``: when Sluice failed in this case first, and where that is told.
    """

    name: str
    subject: str
    server: str
    why: str
    steps: tuple[Step, ...]
    tables: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    settings: tuple[tuple[str, Any], ...] = ()
    copy: bool = False
    needs: frozenset[str] = frozenset()
    named: str = ""
    lost: bool = False
    failed: str = ""

    @property
    def id(self) -> str:
        """Return the name with its server's, as results and ``CASE=`` have it."""
        return f"{self.server}/{self.name}"

    def does(self, *verbs: str) -> bool:
        """Return True if a step is one of these."""
        return any(step.verb in verbs for step in self.steps)


@cache
def all_cases() -> tuple[Case, ...]:
    """Return every case for every server that it is for. Raises ValueError for one that is not well formed."""
    cases = [
        case
        for subject in CLASSES
        for entry in yaml.safe_load((FOLDER / f"{subject}.yaml").read_text(encoding="utf-8"))
        for case in _read(subject, entry)
    ]
    ids = [case.id for case in cases]
    if doubled := {name for name in ids if ids.count(name) > 1}:
        raise ValueError(f"cases of one name: {sorted(doubled)}")
    return tuple(cases)


def chosen(server: str = "", pattern: str = "") -> list[Case]:
    """Return the cases of a server whose id has ``pattern``, a regular expression."""
    return [case for case in all_cases() if server in {"", case.server} and re.search(pattern, case.id)]


def _read(subject: str, entry: dict[str, Any]) -> list[Case]:
    name, _, servers = entry["case"].partition(", ")
    needs = frozenset(entry.get("needs", "").split()) | ({"copy"} if entry.get("copy") else set())
    if unknown := (entry.keys() - _KEYS) | (needs - NEEDS) | (set(servers.split()) - set(SERVERS)):
        raise ValueError(f"{subject}.yaml, {name}: unknown {sorted(unknown)}")
    tables, rows, steps = (tuple(_statements(entry.get(key, ""))) for key in ("tables", "rows", "steps"))
    return [
        Case(
            name, subject, server, entry["why"], tuple(map(_step, steps)), tables, rows, tuple(entry.get("global", {}).items()),
            bool(entry.get("copy")), needs, entry.get("named", ""), bool(entry.get("lost")), entry.get("failed", ""),
        )
        for server in servers.split()
    ]  # fmt: skip


def _statements(given: str | list[str]) -> list[str]:
    """Cut a text at each ; that ends a word outside of quotes. What has such a ; within it is given as a list."""
    if not isinstance(given, str):
        return given
    found, quote = [""], ""
    for at, letter in enumerate(given):
        if quote and letter == quote and (letter == "`" or given[at - 1] != "\\" or given[at - 2] == "\\"):
            quote = ""
        elif not quote and letter in "'\"`":
            quote = letter
        if letter == ";" and not quote and given[at + 1 : at + 2] in {"", " "}:
            found.append("")
        elif letter != " " or found[-1]:
            found[-1] += letter
    return list(filter(None, found))


def _step(text: str) -> Step:
    if text.startswith("@"):
        if text[1:] not in VERBS:
            raise ValueError(f"unknown step {text}")
        return Step(verb=text[1:])
    found = re.match(r"(?:(fails)|([b-z])|(\d+)x): ", text)
    if found is None:
        return Step(text)
    fails, session, times = found.groups()
    return Step(text[found.end() :], session or "a", int(times or 1), fails or "")
