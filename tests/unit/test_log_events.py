"""Log events: the page ``docs/logs.md`` has each one that the code emits, with its level and keys, and no other."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
LEVELS = {"debug", "info", "warning", "error", "exception"}
LOGGERS = {"_log", "log", "structlog.get_logger()"}
Call = tuple[str, str, ast.expr, list[ast.keyword]]
NAME = re.compile(r"[a-z]+(_[a-z]+)+")
MIXED = {"because", "why", "consumer", "warning", "exception"}
"""Keys that would be a second spelling of ``reason``, ``error`` or ``target``."""


@dataclass
class Event:
    """The levels and keys of an event; ``more``: it has keys that its call does not name."""

    levels: set[str] = field(default_factory=set)
    keys: set[str] = field(default_factory=set)
    more: bool = False


@cache
def calls(folder: Path) -> list[Call]:
    """Return (file:line, level, name, keywords) of each event that code below a folder logs."""
    found: list[Call] = []
    for path in sorted(folder.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "get_logger" not in text:
            continue
        tree, methods = ast.parse(text), set[ast.expr]()
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            function, where = node.func, f"{path.relative_to(ROOT)}:{node.lineno}"
            methods.add(function)
            if isinstance(function, ast.Attribute):
                if function.attr in LEVELS and ast.unparse(function.value) in LOGGERS:
                    found.append((where, function.attr, node.args[0], node.keywords))
            elif isinstance(function, ast.Name) and function.id == "log_batch":
                found.append((where, "info", node.args[1], node.keywords))
        for node in ast.walk(tree):  # an event that is not seen above
            if isinstance(node, ast.Attribute) and node.attr in LEVELS and node not in methods:
                assert ast.unparse(node.value) not in LOGGERS, (
                    f"{path}:{node.lineno}: call {ast.unparse(node)} directly"
                )
    return found


def emitted() -> dict[str, Event]:
    found: dict[str, Event] = defaultdict(Event)
    for where, level, name, keywords in calls(ROOT / "include" / "sluice"):
        assert isinstance(name, ast.Constant), f"{where}: write the event's name where it is logged"
        event = found[str(name.value)]
        event.levels.add(level)
        event.keys |= {one.arg for one in keywords if one.arg and one.arg != "exc_info"}
        event.more |= any(one.arg is None for one in keywords)
    return found


def described() -> dict[str, Event]:
    found: dict[str, Event] = {}
    for line in (ROOT / "docs" / "logs.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and cells[0].startswith("`"):
            name = cells[0].strip("`")
            assert name not in found, f"docs/logs.md has {name} twice"
            found[name] = Event({one.strip() for one in cells[1].split(",")}, set(re.findall(r"`([a-z_]+)`", cells[3])))
    return found


def test_the_page_has_every_event_with_its_level_and_keys() -> None:
    code, page = emitted(), described()
    assert sorted(set(code) - set(page)) == [], "events that docs/logs.md does not have"
    assert sorted(set(page) - set(code)) == [], "events in docs/logs.md that no code logs"
    for name, event in code.items():
        assert page[name].levels == event.levels, name
        assert event.keys <= page[name].keys, name
        assert event.more or page[name].keys == event.keys, name


def test_names_say_what_happened_and_keys_have_one_spelling() -> None:
    for folder in ("include/sluice", "include/devstack"):
        for where, _, name, keywords in calls(ROOT / folder):
            assert isinstance(name, ast.Constant), where
            assert NAME.fullmatch(str(name.value)), f"{where}: {name.value!r}"
            assert not MIXED & {one.arg for one in keywords}, f"{where}: {name.value!r}"
