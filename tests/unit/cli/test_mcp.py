"""``sluice mcp``: what a client of the Model Context Protocol sees, and that nothing is done without a person."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters

from sluice.cli.direct import Direct
from sluice.cli.mcp import QUESTIONS, server_of
from sluice.operations.verbs.table import VERBS
from tests.support.pipelines.case import Case, case_of


@pytest.fixture
def shop(
    tmp_path: Path,
    twin_source: Any,
    twin_target: Any,
    twin_zookeeper: Any,
    fresh_schema: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Case]:
    orders = "CREATE TABLE `{db}`.orders (id INT PRIMARY KEY)"
    with case_of(tmp_path, twin_source, twin_target, twin_zookeeper, fresh_schema, orders) as made:
        for name, value in {**made.environment, "XDG_STATE_HOME": str(tmp_path / "state")}.items():
            monkeypatch.setenv(name, value)
        made.run_until_head()
        yield made


def asked(tool: str, *, write: bool = False, **arguments: Any) -> Any:
    """Return what a tool answers, or the text of its error."""

    async def call() -> Any:
        async with Client(server_of(Direct(), write=write)) as client:
            answer = await client.call_tool(tool, arguments)
            text = answer.content[0].text
            return text if answer.is_error else json.loads(text)

    return anyio.run(call)


def confirm(made: Case, code: str, word: str = "y") -> int:
    """Let a person at a terminal answer the question of ``sluice mcp --confirm``."""
    ours, theirs = os.openpty()
    try:
        os.write(ours, f"{word}\n".encode())
        command = made.command("mcp", "--confirm", code)
        return subprocess.run(command, stdin=theirs, stderr=theirs, timeout=120, check=False).returncode
    finally:
        os.close(ours)
        os.close(theirs)


def paused(made: Case) -> bool:
    with made.runtime().state() as state:
        return not state.pause_switch.read().open


def test_questions_are_answered_and_change_nothing(shop: Case) -> None:
    assert [status["pipeline"] for status in asked("pipelines")] == ["case"]
    answers = {name: asked(name, pipeline="case") for name in QUESTIONS}
    assert answers["status"][0]["targets"][0]["name"] == "copy"
    assert answers["check"]["findings"]
    assert asked("explain", name="sluice-log-purged")["To do"].startswith("``sluice recover PIPELINE``")


def test_there_is_a_tool_for_each_verb_that_a_process_does(shop: Case) -> None:
    async def names() -> dict[str, bool]:
        async with Client(server_of(Direct(), write=True)) as client:
            return {tool.name: tool.annotations.read_only_hint for tool in (await client.list_tools()).tools}

    tools = anyio.run(names)
    assert {name for name, reads in tools.items() if not reads} == {verb.name for verb in VERBS.values() if verb.do}
    assert tools.keys() > QUESTIONS.keys()


def test_without_write_a_verb_is_only_planned(shop: Case) -> None:
    plan = asked("pause", pipeline="case")
    assert plan["command"] == "sluice pause case"
    assert "code" not in plan
    asked("pause", pipeline="case", confirmation="0123456789abcdef")
    assert not paused(shop)


def test_a_verb_is_done_once_after_a_person_confirmed_its_plan(shop: Case) -> None:
    code = asked("pause", write=True, pipeline="case", reason="upgrade")["code"]
    assert "is not confirmed" in asked("pause", write=True, pipeline="case", reason="upgrade", confirmation=code)
    assert confirm(shop, code, "n") != 0
    assert "is not confirmed" in asked("pause", write=True, pipeline="case", reason="upgrade", confirmation=code)
    assert confirm(shop, code) == 0
    assert "is not confirmed" in asked("pause", write=True, pipeline="case", reason="other", confirmation=code)
    assert not paused(shop)
    assert asked("pause", write=True, pipeline="case", reason="upgrade", confirmation=code)["what"] == "pause"
    assert paused(shop)
    asked("resume", write=True, pipeline="case")
    assert "is not confirmed" in asked("pause", write=True, pipeline="case", reason="upgrade", confirmation=code)


def test_a_code_that_two_plans_share_does_only_the_one_that_was_shown(shop: Case, tmp_path: Path) -> None:
    code = asked("pause", write=True, pipeline="case")["code"]
    shown = tmp_path / f"state/sluice/mcp/{code}.json"
    shown.write_text(shown.read_text().replace('"pause"', '"resume"'))
    assert confirm(shop, code) == 0
    assert "is not confirmed" in asked("pause", write=True, pipeline="case", confirmation=code)


def test_who_has_no_terminal_confirms_nothing(shop: Case) -> None:
    code = asked("pause", write=True, pipeline="case")["code"]
    ended = shop.cli("mcp", "--confirm", code)
    assert ended.returncode == 1
    assert "no terminal to ask on" in ended.stderr
    assert "is not confirmed" in asked("pause", write=True, pipeline="case", confirmation=code)


@pytest.mark.parametrize("name", ["{folder}/case.yaml", "../case.yml"])
def test_a_file_is_no_pipeline(shop: Case, name: str) -> None:
    assert "needs the name of a pipeline" in asked("status", pipeline=name.format(folder=shop.folder))


def test_a_wrong_field_is_named(shop: Case) -> None:
    assert "batch" in asked("skip", pipeline="case", target="copy", batch="many")


def test_the_command_speaks_on_standard_output(tmp_path: Path) -> None:
    async def names() -> list[str]:
        environment = {**os.environ, "SLUICE_PIPELINES": str(tmp_path)}
        server = StdioServerParameters(command=sys.executable, args=["-m", "sluice.cli", "mcp"], env=environment)
        async with Client(server) as client:
            assert (await client.call_tool("pipelines", {})).content[0].text == "[]"
            return [tool.name for tool in (await client.list_tools()).tools]

    assert "status" in anyio.run(names)
