"""``python -m tests.league [--tool NAME] [--case REGEX]``: play cases with tools, store what came of it, write the page."""

from __future__ import annotations

import argparse
import datetime as dt
import json
import logging
import shutil
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path

import structlog

from devstack import processes
from tests.league import page
from tests.league.cases import SERVERS, chosen
from tests.league.playing import BadCase, play
from tests.league.servers import ends
from tests.league.tools.port import Tool

RESULTS = Path(__file__).with_name("results")
TOOLS = {
    "sluice": "Sluice",
    "native": "Native",
    "mysql_replication": "MySQLReplication",
    "go_mysql": "GoMySQL",
    "debezium_engine": "Debezium",
}
"""Module of ``tools`` -> its class."""


def tool_of(name: str) -> type[Tool]:
    """Return the adapter of a tool."""
    adapter: type[Tool] = getattr(import_module(f"tests.league.tools.{name}"), TOOLS[name])
    return adapter


def run(name: str, server: str, pattern: str, folder: Path) -> int:
    """Play the cases of one kind of server with one tool. Return how many were not well formed."""
    tool, bad = tool_of(name), 0
    cases = chosen(server, pattern)
    if server not in tool.servers or not cases:
        return 0
    with ends(server, folder / server) as both:
        head = {"tool": tool.name, "version": tool.version(), "server": both.version}
        for case in cases:
            try:
                result = play(case, tool, both, folder)
            except BadCase as error:
                bad += 1
                print(f"BAD {error}", flush=True)
                continue
            store(name, server, head, {case.id: result.as_dict()})
            print(
                f"{name:16} {case.id:50} {result.outcome:18} {result.seconds:6.2f} s  {result.said[:300]!r}", flush=True
            )
    return bad


def store(name: str, server: str, head: dict[str, str], cases: dict[str, dict[str, object]]) -> None:
    """Keep what came of it; cases that were not played stay as they were."""
    file = RESULTS / f"{name}-{server}.json"
    before = json.loads(file.read_text(encoding="utf-8"))["cases"] if file.exists() else {}
    known = {case.id for case in chosen(server)}
    merged = {key: value for key, value in sorted({**before, **cases}.items()) if key in known}
    text = json.dumps({**head, "date": dt.date.today().isoformat(), "cases": merged}, indent=1, ensure_ascii=False)
    file.write_text(text + "\n", encoding="utf-8")


def main() -> int:
    """Play the kinds of servers side by side, each in a process of its own."""
    parser = argparse.ArgumentParser(prog="make league")
    parser.add_argument("--tool", default="", choices=["", *TOOLS])
    parser.add_argument("--case", default="", help="a regular expression on SERVER/NAME")
    parser.add_argument("--server", default="", choices=["", *SERVERS])
    asked = parser.parse_args()
    tools = [asked.tool] if asked.tool else list(TOOLS)
    if asked.server:
        processes.tether()
        folder = Path(tempfile.mkdtemp(prefix="sluice-league-"))
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
        try:
            return sum(run(name, asked.server, asked.case, folder / name) for name in tools)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    started = [
        subprocess.Popen([
            sys.executable,
            "-m",
            "tests.league",
            "--tool",
            asked.tool,
            "--case",
            asked.case,
            "--server",
            server,
        ])
        for server in SERVERS
    ]
    bad = sum(process.wait() for process in started)
    page.write()
    return bad


if __name__ == "__main__":
    sys.exit(main())
