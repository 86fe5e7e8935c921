"""``sluice --api``: the commands through the page's application, over a socket."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from click.testing import CliRunner
from fastapi import FastAPI, HTTPException, Request

from devstack import ports
from sluice.cli import all_commands
from sluice.errors import ConfigError, CoordinationUnavailable
from sluice.operations.control import ActionPlan
from tests.dags.conftest import WritePipeline
from tests.support.servers.airflows import wait_until

STATIC = Path(__file__).resolve().parents[2] / "include" / "sluice" / "orchestration" / "static"
COMMANDS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "pause": (["--reason", "a look"], {"reason": "a look"}),
    "resume": ([], {}),
    "restart": (["--grace", "90"], {"grace_s": 90.0}),
    "rollback": (["--yes"], {}),
    "skip": (["reporting", "7", "--lost", "--yes"], {"lost": True}),
    "redeliver": (["reporting", "--from-batch", "3", "--yes"], {"from_batch": 3}),
    "seek": (["latest", "--drop-undelivered", "--yes"], {"drop": True}),
}


@pytest.fixture
def done(
    pipelines: Path, write_pipeline: WritePipeline, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """The calls that reach the flows of the application that ``SLUICE_API`` names."""
    from airflow.api_fastapi.core_api import security

    from sluice.operations import control
    from sluice.orchestration.page import access
    from sluice.orchestration.web import create_app

    found: list[tuple[str, dict[str, Any]]] = []

    def recorded(name: str) -> Any:
        def flow(runtime: Any, *_: Any, **given: Any) -> ActionPlan:
            if not given.get("dry_run"):
                found.append((name, given))
            return ActionPlan(name, (f"{name} was asked for",))

        return flow

    for name in COMMANDS:
        monkeypatch.setattr(control, name, recorded(name))
    manager = SimpleNamespace(is_authorized_view=lambda **_: True, is_authorized_dag=lambda **_: True)
    monkeypatch.setattr(security, "get_auth_manager", lambda: manager)
    monkeypatch.setattr(access, "get_auth_manager", lambda: manager)
    runtime = SimpleNamespace(name="shop")
    monkeypatch.setattr("sluice.orchestration.page.routes.open_to_act", lambda path: runtime)
    write_pipeline("shop")

    def user(request: Request) -> Any:
        if request.headers.get("authorization") != "Bearer right":
            raise HTTPException(401, "Not authenticated")
        return SimpleNamespace(get_name=lambda: "anna")

    page = create_app(pipelines, STATIC, ask=lambda path: {})
    page.dependency_overrides[security.get_user] = user
    airflow = FastAPI()
    airflow.mount("/sluice", page)
    port = ports.free_port()
    server = uvicorn.Server(uvicorn.Config(airflow, host="127.0.0.1", port=port, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started, "the server", 60.0)
        monkeypatch.setenv("SLUICE_API", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("SLUICE_API_TOKEN", "right")
        yield found
    finally:
        server.should_exit = True
        thread.join(60)
        from sluice.cli import through_api

        through_api.choose("", "")


def sluice(*words: str) -> str:
    """Run a command; return what it printed. Raises what it raised."""
    result = CliRunner().invoke(all_commands(), list(words))
    if result.exception is not None:
        raise result.exception
    return str(result.stdout)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_reaches_the_flow_in_the_name_of_the_token(done: list[Any], command: str) -> None:
    words, given = COMMANDS[command]
    answer = json.loads(sluice(command, "shop", *words, "--json"))
    assert answer == {"what": command, "steps": [f"{command} was asked for"]}
    [(name, arguments)] = done
    assert (name, arguments["by"]) == (command, "anna@airflow")
    assert given.items() <= arguments.items()


def test_a_dry_run_changes_nothing(done: list[Any]) -> None:
    assert "skip was asked for" in sluice("skip", "shop", "reporting", "7", "--dry-run")
    assert done == []


def test_nothing_is_done_without_a_yes(done: list[Any]) -> None:
    with pytest.raises(ConfigError, match="nothing was done"):
        sluice("seek", "shop", "latest")
    assert done == []


def test_the_audit_is_read_oldest_first(done: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [{"at": f"2026-01-0{day}", "by": "anna", "what": "pause"} for day in (2, 1)]
    monkeypatch.setattr("sluice.orchestration.page.reads.asked", lambda *_: entries)
    assert json.loads(sluice("audit", "shop", "--json")) == entries[::-1]


def test_what_the_flow_refuses_is_the_error_of_the_command(done: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise ConfigError("batch 7 is not the next one")

    monkeypatch.setattr("sluice.operations.control.skip", refuse)
    with pytest.raises(ConfigError, match="batch 7 is not the next one"):
        sluice("skip", "shop", "reporting", "7", "--yes")


def test_a_wrong_token_says_where_a_right_one_comes_from(done: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_API_TOKEN", "wrong-secret")
    with pytest.raises(ConfigError) as caught:
        sluice("pause", "shop")
    assert "SLUICE_API_TOKEN" in caught.value.hint
    assert "wrong-secret" not in str(caught.value)
    monkeypatch.delenv("SLUICE_API_TOKEN")
    with pytest.raises(ConfigError, match="SLUICE_API_TOKEN is not set"):
        sluice("pause", "shop")
    assert done == []


def test_other_commands_say_that_they_cannot(done: list[Any]) -> None:
    with pytest.raises(ConfigError, match="`sluice recover` cannot go through the API") as caught:
        sluice("recover", "shop")
    assert "without --api" in caught.value.hint


def test_an_api_that_is_not_there_is_worth_another_try(done: list[Any]) -> None:
    with pytest.raises(CoordinationUnavailable, match="the API does not answer") as caught:
        sluice("--api", f"http://127.0.0.1:{ports.free_port()}", "pause", "shop")
    assert caught.value.retryable
