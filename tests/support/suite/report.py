"""What a run says at its end: counts, reasons of skipped tests, seconds of each room, the ten longest tests; and the
page of a full run.
"""

from __future__ import annotations

import datetime as dt
import os
import platform
import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

from tests.support.suite import balance

LAST_FULL_RUN = Path(__file__).resolve().parents[2] / "last-full-run.md"


def room_of(nodeid: str) -> str:
    """``unit/flows``, ``integration/lake``, ``dags``: the folder below ``tests``."""
    return "/".join(balance.file_of(nodeid).split("/")[1:-1]) or "tests"


class Report:
    """Counts and seconds of one run, from the reports of its tests."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()
        self.failed: set[str] = set()
        self.tests: dict[str, float] = {}
        self.files: dict[str, float] = {}
        self.rooms: dict[str, float] = {}
        self.began = dt.datetime.now(dt.UTC)
        self._times = psutil.cpu_times()

    def add(self, report: Any) -> None:
        """Take one phase of one test."""
        seconds = float(report.duration)
        for table, key in (
            (self.tests, report.nodeid),
            (self.files, balance.file_of(report.nodeid)),
            (self.rooms, room_of(report.nodeid)),
        ):
            table[key] = table.get(key, 0.0) + seconds
        if report.outcome == "skipped":
            self.outcomes["skipped"] += 1
            self.skipped[_reason(report)] += 1
        elif report.when == "call" or report.outcome == "failed":
            self.outcomes[report.outcome] += 1
        if report.outcome == "failed":
            self.failed.add(report.nodeid)

    def lines(self) -> list[str]:
        """What the terminal shows."""
        found = [f"{self._counts()} in {self.minutes()}, {self._busy()}"]
        found += [f"  skipped {number}: {reason}" for reason, number in self.skipped.most_common()]
        found += ["seconds of each room (of both workers together):"]
        found += [f"  {seconds:7.1f}  {room}" for room, seconds in _longest(self.rooms)]
        found += ["the ten longest tests:"]
        found += [f"  {seconds:7.1f}  {test}" for test, seconds in _longest(self.tests)[:10]]
        return found

    def minutes(self) -> str:
        """How long the run took until now."""
        seconds = int((dt.datetime.now(dt.UTC) - self.began).total_seconds())
        return f"{seconds // 60} min {seconds % 60} s"

    def _busy(self) -> str:
        """How busy all processes together kept the processors since the beginning.

        Tests that wait for something else than a processor make it less than 100 %.
        """
        now = psutil.cpu_times()
        spent = {name: getattr(now, name) - getattr(self._times, name) for name in now._fields if "guest" not in name}
        idle = sum(spent.get(name, 0.0) for name in ("idle", "iowait"))
        busy = 100 * (1 - idle / max(sum(spent.values()), 0.001))
        return f"{os.cpu_count()} processors {busy:.0f} % busy, load {os.getloadavg()[2]:.1f}"

    def page(self) -> str:
        """The page of a full run."""
        memory = psutil.virtual_memory().total >> 30
        system = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
        head = [
            "# The last full run",
            "",
            f"- {self._when()}",
            f"- {os.cpu_count()} cores, {memory} GB, {system}, load {os.getloadavg()[2]:.1f} over the last quarter of "
            "an hour",
        ]
        failed = ["", "## Failed", *self._failed(), ""] if self.failed else [""]
        return "\n".join([*head, "", "```", *self.lines(), "```", *failed])

    def again(self) -> str:
        """The section of a run of the tests that failed in the last full run: what is still failing is a list again."""
        return "\n".join(["## Run again", "", f"{self._when()}: {self._counts()}.", *self._failed(), ""])

    def _counts(self) -> str:
        return ", ".join(f"{number} {outcome}" for outcome, number in sorted(self.outcomes.items())) or "no tests"

    def _failed(self) -> list[str]:
        return ["", *(f"- `{test}`" for test in sorted(self.failed))] if self.failed else []

    def _when(self) -> str:
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
        return f"{self.began:%Y-%m-%d %H:%M} UTC, commit {commit.stdout.strip() or 'unknown'}"


def failed_in(page: str) -> frozenset[str]:
    """The tests that a full run left failing: those of its last list."""
    _, _, newest = page.rpartition("\n## ")
    return frozenset(re.findall(r"^- `(tests/.+)`$", newest, re.M))


def _longest(seconds: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(seconds.items(), key=lambda one: -one[1])


def _reason(report: Any) -> str:
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    return str(report.longrepr)
