"""Crews of workers that may be killed: what starts them, and what they say of themselves."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil

from tests.faults.clock import Clock
from tests.support.pipelines.case import REPOSITORY

_LATELY_BYTES = 1 << 16


class Nursery:
    """The process that forks crews; see :mod:`tests.faults.nursery`."""

    def __init__(
        self, folder: Path, environment: Mapping[str, str], inside: Callable[[list[str]], list[str]] = list
    ) -> None:
        """``environment``: of the crews; ``inside``: makes a command one that sees the store, where not every process
        does.
        """
        log = (folder / "nursery.log").open("ab")
        self._process = subprocess.Popen(
            inside([sys.executable, "-m", "tests.faults.nursery"]),
            env={**environment, "PYTHONPATH": os.pathsep.join([str(REPOSITORY / "include"), str(REPOSITORY)])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
        log.close()

    def bear(self, log: Path, arguments: list[str]) -> psutil.Process:
        """A new crew's process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"log": str(log), "arguments": arguments}) + "\n")
        self._process.stdin.flush()
        return psutil.Process(int(self._process.stdout.readline()))

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


class Crew:
    """One installation of a pipeline: a scheduler process and the tasks it forks.

    It is started again when it dies, as by an init system.
    """

    def __init__(self, name: str, pipeline: Path, folder: Path, nursery: Nursery, lanes: int) -> None:
        """``pipeline``: its file; ``folder``: where logs and events go; ``lanes``: runs at a time."""
        self.name, self.lanes = name, lanes
        self.clock = Clock(folder / f"clock-{name}")
        self.events = folder / f"events-{name}.jsonl"
        self._pipeline, self._log, self._nursery = pipeline, folder / f"crew-{name}.log", nursery
        self._life = 0
        self.start()

    def start(self) -> None:
        self._life += 1
        name = f"{self.name}{self._life}"
        files = [str(self._pipeline), name, str(self.lanes), str(self.events), str(self.clock.file)]
        self._process = self._nursery.bear(self._log, files)

    def revive(self) -> None:
        if not self._process.is_running():
            self.start()

    def processes(self) -> list[psutil.Process]:
        """The scheduler first, then its tasks."""
        with contextlib.suppress(psutil.Error):
            return [self._process, *self._process.children(recursive=True)]
        return []

    def tasks(self, kind: str) -> list[psutil.Process]:
        """Processes that are doing a task of this kind now."""
        doing: dict[int, str] = {}
        for event in self.history():
            if event["what"] == "start":
                doing[event["pid"]] = event["task"]
            elif event["what"] == "end":
                doing.pop(event["pid"], None)
        mine = {process.pid: process for process in self.processes()[1:]}
        return [mine[pid] for pid, task in doing.items() if task == kind and pid in mine]

    def history(self) -> list[dict[str, Any]]:
        """What its tasks did lately, oldest first."""
        try:
            with self.events.open("rb") as file:
                file.seek(max(self.events.stat().st_size - _LATELY_BYTES, 0))
                lines = file.read().decode("utf-8", "replace").splitlines()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def check_errors(self) -> None:
        """Whatever strikes them, tasks end with one of Sluice's own errors."""
        others = [event["text"] for event in self.history() if event["what"] == "crash"]
        assert not others, f"a task of crew {self.name} ended with an error that says nothing to a user:\n{others[-1]}"

    def signal(self, number: int) -> None:
        """To the scheduler and all its tasks."""
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.send_signal(number)

    def end(self) -> None:
        members = self.processes()
        for process in members:
            with contextlib.suppress(psutil.Error):
                process.kill()
        with contextlib.suppress(psutil.Error):
            self._process.wait(timeout=60)
