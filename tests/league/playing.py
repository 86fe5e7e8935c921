"""A case with a tool: its steps at the server, the tool beside them, and what came of it."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.league.cases import Case, Step
from tests.league.judging import Outcome, filled, judge, replay
from tests.league.tools.port import PATIENCE_S, Stage, Stopped, Tool, at_work

_numbers = itertools.count(1)


class BadCase(Exception):
    """The server did not do what the case says."""


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a case. ``said``: the difference, or the tool's words."""

    outcome: Outcome
    seconds: float
    said: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return it as it is stored."""
        return {**asdict(self), "outcome": str(self.outcome)}


def play(case: Case, tool: type[Tool], ends: Any, folder: Path, patience_s: float = PATIENCE_S) -> Result:
    """Play a case. Raises BadCase where the server refuses a step."""
    if case.server not in tool.servers or case.needs - (tool.offers - tool.lacks(case.server)):
        return Result(Outcome.NOT_OFFERED, 0.0)
    began = time.monotonic()
    schema = f"lg_{os.getpid()}_{next(_numbers)}"
    stage = Stage(ends, schema, case, folder / schema, patience_s)
    stage.folder.mkdir(parents=True)
    try:
        with ends.settings(case.settings):
            try:
                given = tool.writes and not tool.makes_tables(case.server)
                ends.make(schema, case.tables, target=given)
                ends.fill(schema, case.rows, target=given and not case.copy)
            except Exception as error:
                raise BadCase(f"{case.id}: {error}") from error
            before = {} if case.copy or tool.writes else ends.answer(schema)
            with at_work(tool, stage) as at:
                outcome, said = _play(_Steps(stage, at), before)
    finally:
        ends.drop(schema)
        shutil.rmtree(stage.folder, ignore_errors=True)
    return Result(outcome, round(time.monotonic() - began, 2), _clean(said, stage))


def _clean(said: str, stage: Stage) -> str:
    """Take the names of the run out of the words, and the stacks of a program."""
    text = re.sub(
        r"\(?127\.0\.0\.1:\d+\)?",
        "the server",
        said.replace(str(stage.folder), "FOLDER").replace(stage.schema, "league"),
    )
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+ UTC \[\d+\] ", "", text)
    return re.sub(r"/\S*/(?=[\w.-]+)", "", text)[:1200]


def _play(steps: _Steps, before: Any) -> tuple[Outcome, str]:
    stage, tool = steps.stage, steps.tool
    try:
        tool.start()
        steps.all()
        steps.catch_up()
    except Stopped as stopped:
        words = str(stopped)
        return (Outcome.NAMED if is_named(stage.case, words, stage.schema) else Outcome.UNNAMED), words.strip()
    finally:
        steps.close()
    outcome, said = _beside(steps, before)
    end = time.monotonic() + (stage.patience_s if stage.case.copy else 0)
    while outcome is not Outcome.RIGHT and time.monotonic() < end:  # a copy may end after the log was caught up with
        time.sleep(0.5)
        outcome, said = _beside(steps, before)
    if stage.case.lost and outcome is Outcome.RIGHT:
        raise BadCase(f"{stage.case.id}: nothing was lost")
    return outcome, said


def is_named(case: Case, words: str, schema: str) -> bool:
    """Return True if a message names the reason, the table or the statement."""
    statements = "|".join(
        re.escape(" ".join(step.sql.split()[:2]))
        for step in case.steps
        if step.sql.count(" ") > 1 and step.sql[:6] != "INSERT"
    )
    names = [
        rf"\b{schema}\b",
        r"\.t\b",
        "`t`",
        r"\b(in|from|table|into|of) [`\"]?t\b",
        *filter(None, (case.named, statements)),
    ]
    return re.search("|".join(names), words, re.IGNORECASE) is not None


def _beside(steps: _Steps, before: Any) -> tuple[Outcome, str]:
    stage, tool, ends = steps.stage, steps.tool, steps.stage.ends
    truth = ends.answer(stage.schema)
    if tool.writes:
        there, parts = ends.answer(stage.schema, target=True).items(), ends.parts(stage.schema)
        own = tuple(filter(None, (tool.own,)))
        delivered = {name: table.rows for name, table in there if name not in parts and not name.startswith(own)}
    else:
        delivered = replay(truth, before, tool.changes())
        if "ddl" in stage.case.needs:
            delivered = filled(truth, delivered)
    return judge(truth, delivered)


class _Steps:
    """The steps of a case: statements in named sessions, and what happens to the tool and the server."""

    def __init__(self, stage: Stage, tool: Tool) -> None:
        self.stage, self.tool = stage, tool
        self.sessions: dict[str, Any] = {}
        self.marks = itertools.count(1)

    def all(self) -> None:
        for step in self.stage.case.steps:
            for number in range(step.times if step.sql else 0):
                self._run(step, step.sql.replace("{i}", str(number)))
            if not step.sql:
                self._happen(step.verb)

    def catch_up(self) -> None:
        mark = next(self.marks)
        self.stage.ends.mark(self.stage.schema, mark)
        self.tool.catch_up(mark)

    def close(self) -> None:
        for session in self.sessions.values():
            with contextlib.suppress(Exception):
                session.close()

    def _run(self, step: Step, statement: str) -> None:
        try:
            with self._session(step.session).cursor() as cursor:
                cursor.execute(statement.replace("{db}", self.stage.schema))
        except Exception as error:
            if step.verb != "fails":
                raise BadCase(f"{self.stage.case.id}: {error}, at: {statement[:300]}") from error
            return
        if step.verb == "fails":
            raise BadCase(f"{self.stage.case.id}: the server did not refuse: {statement}")

    def _session(self, name: str) -> Any:
        if name not in self.sessions:
            self.sessions[name] = self.stage.ends.session(self.stage.schema)
        return self.sessions[name]

    def _happen(self, verb: str) -> None:
        ends, tool = self.stage.ends, self.tool
        match verb:
            case "wait":
                self.catch_up()
            case "pause":
                time.sleep(0.5)
            case "stop" | "kill" | "restart":
                tool.stop(kill=verb == "kill")
                if verb != "stop":
                    tool.start()
            case "start":
                tool.start()
            case "purge":
                ends.purge(self.stage.schema)
            case "reset":
                ends.reset()
            case "drop-slot":
                ends.drop_slots(self.stage.schema)
            case "server-kill":
                self.close()
                self.sessions.clear()
                ends.source.kill()
                ends.source.start()
