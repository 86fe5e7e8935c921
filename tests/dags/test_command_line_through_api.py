"""``sluice --api``: the commands through the page's application, over a socket."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner
from fastapi import FastAPI, HTTPException, Request

from devstack import ports
from sluice.cli import all_commands, service
from sluice.cli.through_api import PageApi
from sluice.errors import ConfigError, CoordinationUnavailable
from sluice.flows.dump.start import start
from sluice.operations.last_check import check_and_keep, last_check
from sluice.operations.plan import ActionPlan
from sluice.orchestration.page.airflow_self import AirflowSelf
from tests.dags.conftest import WritePipeline
from tests.support.servers.pages import api_of, sluice
from tests.support.twins.pipes import Pipe, pipe

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
    monkeypatch.setattr("sluice.orchestration.dags.control.open_to_act", lambda path: runtime)
    write_pipeline("shop")

    def user(request: Request) -> Any:
        if request.headers.get("authorization") != "Bearer right":
            raise HTTPException(401, "Not authenticated")
        return SimpleNamespace(get_name=lambda: "anna")

    page = create_app(pipelines, STATIC, ask=lambda path: {})
    page.dependency_overrides[security.get_user] = user
    with api_of(page, monkeypatch):
        yield found


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


@pytest.fixture
def shop(tmp_path: Path, write_pipeline: WritePipeline, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipe]:
    """A pipeline with a batch, a dead letter and a dump, which only the API's process can open."""
    from airflow.api_fastapi.core_api import security

    from sluice.operations.status import status
    from sluice.orchestration.page import access
    from sluice.orchestration.web import create_app, headline

    manager = SimpleNamespace(is_authorized_view=lambda **_: True, is_authorized_dag=lambda **_: True)
    monkeypatch.setattr(security, "get_auth_manager", lambda: manager)
    monkeypatch.setattr(access, "get_auth_manager", lambda: manager)
    folder = tmp_path / "shop"
    folder.mkdir()
    with contextmanager(pipe)(folder, "copy", on_error="dead_letter") as made:
        made.refuse("not wanted")
        made.commit(("insert", "a", (1, "x")), ("insert", "a", (2, "bad")))
        made.deliver()
        start(made.made.runtime(), tables=[str(made.made.table)], id_="x")
        write_pipeline("shop")
        monkeypatch.setattr("sluice.orchestration.dags.control.open_to_act", lambda path: made.made.runtime())
        monkeypatch.setattr("sluice.orchestration.runtime.runtime_of", lambda _: made.made.runtime())

        def ask(path: str) -> dict[str, Any]:
            return {**status(made.made.runtime()).to_json(), **headline(Path(path)), "state": "running"}

        page = create_app(tmp_path / "pipelines", STATIC, ask=ask)
        page.dependency_overrides[security.get_user] = lambda: SimpleNamespace(get_name=lambda: "anna")
        with api_of(page, monkeypatch):
            yield made


def test_what_is_shown_comes_through_the_api(shop: Pipe) -> None:
    answer = json.loads(sluice("status", "shop", "--json"))
    assert answer["targets"][0]["batch"] == shop.acknowledged()
    assert answer["dead_letters"] == 1
    shown = sluice("status")
    assert "shop" in shown
    assert "1 dead letters wait" in shown
    [dump] = json.loads(sluice("dump", "list", "shop", "--json"))
    assert (dump["id"], dump["state"]) == ("x", "running")
    assert json.loads(sluice("dump", "show", "shop", "--json")) | {"tables": []} == dump | {"tables": []}
    [letter] = json.loads(sluice("dead-letters", "list", "shop", "--json"))
    assert (letter["reason"], letter["targets"]) == ("not wanted", ["copy"])
    assert json.loads(sluice("dead-letters", "show", "shop", letter["id"], "--json"))["row"]["v"] == "bad"
    assert "not verified yet" in sluice("verify", "list", "shop")
    assert json.loads(sluice("channel", "list", "--json")) == []
    assert json.loads(sluice("subscriptions", "list", "shop", "--json")) == []


def test_a_check_waits_for_the_run_that_makes_it(shop: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow is a stand-in that works on the run the second time that it is asked for it."""
    runs: dict[str, tuple[int, str]] = {}

    async def call(self: AirflowSelf, method: str, path: str, body: Any = None) -> Any:
        if method != "POST":
            return {"dag_runs": []}
        assert path == "/dags/sluice_control/dagRuns"
        run = f"run-{len(runs)}"
        runs[run] = (0, body["conf"]["action"])
        return {"dag_run_id": run}

    real = PageApi._call

    def looked(self: PageApi, method: str, path: str, doing: str, body: Any = None, **more: Any) -> Any:
        if not more.get("airflow"):
            return real(self, method, path, doing, body, **more)
        run = path.rpartition("/")[2]
        times, action = runs[run]
        runs[run] = times + 1, action
        if times == 1:
            apply = action == "make-missing"
            check_and_keep(shop.made.runtime(), apply=apply, by="anna@airflow", run=run)
        return {"state": "running"}

    monkeypatch.setattr(AirflowSelf, "call", call)
    monkeypatch.setattr(PageApi, "_call", looked)
    monkeypatch.setattr("sluice.cli.through_api.LOOKS_EVERY_S", 0.01)
    report = json.loads(sluice("check", "shop", "--json"))
    assert report == last_check(shop.made.runtime().store).report  # type: ignore[union-attr]
    assert [action for _, action in runs.values()] == ["check"]


def test_a_dump_is_steered_through_the_api(shop: Pipe) -> None:
    assert json.loads(sluice("dump", "pause", "shop", "--json"))["state"] == "paused"
    assert json.loads(sluice("dump", "tune", "shop", "--chunk-rows", "7", "--json"))["tuning"]["chunk_rows"] == 7
    assert json.loads(sluice("dump", "resume", "shop", "x", "--json"))["state"] == "running"
    assert json.loads(sluice("dump", "cancel", "shop", "--json"))["state"] == "cancelled"
    with shop.made.runtime().state() as state:
        assert state.dumps.require("x").state.value == "cancelled"
    assert [one["by"] for one in json.loads(sluice("audit", "shop", "--json"))][1:] == 4 * ["anna@airflow"]


def test_dead_letters_are_settled_through_the_api(shop: Pipe) -> None:
    shop.commit(("insert", "a", (3, "bad")))
    shop.deliver()
    first, second = json.loads(sluice("dead-letters", "list", "shop", "--json"))
    shop.refuse("")
    would = json.loads(sluice("dead-letters", "replay", "shop", first["id"], "--dry-run", "--json"))
    assert [one["outcome"] for one in would] == ["replayed"]
    assert 2 not in shop.rows()
    assert "replayed" in sluice("dead-letters", "replay", "shop", first["id"], "--yes")
    assert shop.rows()[2] == "bad"
    with pytest.raises(ConfigError, match="nothing was done"):
        sluice("dead-letters", "discard", "shop", second["id"])
    assert "discarded 1" in sluice("dead-letters", "discard", "shop", second["id"], "--yes", "--reason", "test row")
    assert json.loads(sluice("dead-letters", "list", "shop", "--json")) == []


def test_alert_rules_are_switched_by_both_ways(shop: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    def off() -> list[str]:
        return [one["rule"] for one in json.loads(sluice("alerts", "list", "shop", "--json"))["rules"] if not one["on"]]

    assert "alert lag is off" in sluice("alerts", "off", "shop", "lag", "--reason", "a move")
    assert off() == ["lag"]
    monkeypatch.delenv("SLUICE_API")
    assert "alert stopped is off" in shop.sluice("alerts", "off", "shop", "stopped")
    assert "alert lag is on" in shop.sluice("alerts", "on", "shop", "lag")
    assert "off since" in shop.sluice("alerts", "list", "shop")
    with pytest.raises(ConfigError, match="no alert rule 'lagg'"):
        shop.sluice("alerts", "on", "shop", "lagg")
    with shop.made.runtime().state() as state:
        notes = [(one["what"], one["by"], one["reason"]) for one in state.audit.entries() if "alert" in one["what"]]
    assert notes[0] == ("alert off", "anna@airflow", "a move")
    assert [what for what, *_ in notes] == ["alert off", "alert off", "alert on"]


def test_a_copy_and_a_comparison_are_runs_of_airflow(done: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The result of the run is what the command prints and ends with; of a run without one it says so."""
    from sluice.cli import through_api
    from sluice.operations.verify.result import TableResult, VerifyResult

    asked: list[Any] = []

    def call(self: PageApi, method: str, path: str, doing: str, body: Any = None, **_: Any) -> Any:
        asked.append((method, path, body))
        if path.endswith("dagRuns/r1"):
            return {"state": states.pop(0)}
        if "verifications" in path:
            found = VerifyResult(
                id="v1", pipeline="shop", by="airflow:r1", tables=(TableResult(table="a", target="copy", different=1),)
            )
            return {"results": [found.to_json()] if not states else []}
        return {"steps": ["run r1 is open"], "run": {"dag_id": "verify__shop", "run_id": "r1"}}

    monkeypatch.setattr(PageApi, "_call", call)
    monkeypatch.setattr(through_api, "LOOKS_EVERY_S", 0.0)
    states = ["queued", "running"]
    answer = CliRunner().invoke(all_commands(), ["verify", "shop", "--sample", "10%", "--repair", "--yes", "--json"])
    assert (json.loads(answer.stdout)["outcome"], answer.exit_code) == ("different", 3)
    assert asked[0][1] == "/pipelines/shop/actions/repair"
    assert asked[0][2] == {
        "where": "", "values": False, "tables": [], "targets": [], "sample": 10.0, "overwrite": False, "confirm": "shop"
    }  # fmt: skip
    states = ["failed", "running"]
    with pytest.raises(ConfigError, match="ended without a result"):
        sluice("verify", "shop")
    assert "run r1 is open" in sluice("dump", "start", "shop", "--table", "a.b", "--from", "1", "--from", "2")
    assert asked[-1][2]["first_key"] == "1,2"
    for option, why in (("--wait", "reads the chunks"), ("--max-threads-running=3", "no fields of the form")):
        with pytest.raises(ConfigError, match=why):
            sluice("dump", "start", "shop", option)
    with pytest.raises(ConfigError, match="holds a comma"):
        sluice("dump", "start", "shop", "--from", "1,2")


def leaves(command: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    below = getattr(command, "commands", None)
    if not below:
        yield name, command
    for word in below or ():
        yield from leaves(below[word], f"{name} {word}".strip())


def test_every_command_says_whether_it_goes_through_the_api(done: list[Any]) -> None:
    """One that cannot ends with its reason before it does anything."""
    found = dict(leaves(all_commands()))
    assert {name for name in found if not name.startswith("stack")} == {
        name for name in service.reach() if not name.startswith("stack")
    }
    service.choose("http://127.0.0.1:9")
    for name, command in found.items():
        reach = service.reach()[name]
        if reach in {service.HERE, service.THROUGH}:
            continue
        with pytest.raises(ConfigError, match="cannot go through the API") as caught:
            command.callback()
        assert reach in caught.value.message


@pytest.mark.parametrize(
    ("api", "refused"),
    [
        ("http://airflow.example.com", "without encryption"),
        ("http://10.1.2.3:8080/sluice", "without encryption"),
        ("https://airflow.example.com", ""),
        ("http://localhost:8080", ""),
        ("http://[::1]:8080", ""),
        ("https://joe:secret@airflow.example.com", "not the URL"),
        ("ftp://airflow.example.com", "not the URL"),
        ("http://[bad", "not the URL"),
    ],
)
def test_a_token_goes_unencrypted_to_no_other_host(api: str, refused: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not refused:
        assert PageApi.named(api).url.endswith("/sluice/api/v1")
        return
    with pytest.raises(ConfigError, match=refused) as caught:
        PageApi.named(api)
    assert "secret" not in str(caught.value)
    if "encryption" in refused:
        assert "--api-allow-http" in caught.value.hint
        assert PageApi.named(api, allow_http=True).url.startswith("http://")


def test_a_connection_names_the_api_and_holds_its_token(done: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    url = urlsplit(os.environ["SLUICE_API"])
    monkeypatch.delenv("SLUICE_API_TOKEN")
    monkeypatch.setenv("AIRFLOW_CONN_MY_AIRFLOW", f"http://:right@127.0.0.1:{url.port}")
    assert "pause was asked for" in sluice("--api", "my_airflow", "pause", "shop")
    monkeypatch.setenv("AIRFLOW_CONN_MY_AIRFLOW", f"http://:wr0ng@127.0.0.1:{url.port}")
    with pytest.raises(ConfigError) as caught:
        sluice("--api", "my_airflow", "pause", "shop")
    assert "wr0ng" not in str(caught.value) + str(caught.value.__dict__)
    monkeypatch.setenv("AIRFLOW_CONN_MY_AIRFLOW", "http://:right@airflow.example.com")
    with pytest.raises(ConfigError, match="without encryption"):
        sluice("--api", "my_airflow", "pause", "shop")
    assert len(done) == 1


def test_a_connection_with_a_login_gets_its_token_from_airflow(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    airflow = FastAPI()

    @airflow.post("/auth/token", status_code=201)
    async def token(request: Request) -> Any:
        asked.append(await request.json())
        return {"access_token": "fresh"}

    @airflow.get("/sluice/api/v1/pipelines/shop/audit")
    async def audit(request: Request) -> Any:
        asked.append(request.headers["authorization"])
        return {"entries": []}

    with api_of(FastAPI(), monkeypatch) as outer:
        outer.router.routes[:0] = airflow.router.routes
        port = urlsplit(os.environ["SLUICE_API"]).port
        monkeypatch.setenv("AIRFLOW_CONN_MY_AIRFLOW", f"http://joe:pw@127.0.0.1:{port}")
        assert json.loads(sluice("--api", "my_airflow", "audit", "shop", "--json")) == []
    assert asked == [{"username": "joe", "password": "pw"}, "Bearer fresh"]


def test_a_channel_is_paused_by_its_name(done: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Both of its pipelines are, as with ZooKeeper."""
    line = {"channel": "pair", "pipelines": ["shop", "shop"], "main": "shop", "error": None}
    monkeypatch.setattr("sluice.operations.channel.listed", lambda **_: [line])
    assert "pause was asked for" in sluice("pause", "pair")
    assert [name for name, _ in done] == ["pause", "pause"]
    assert json.loads(sluice("channel", "list", "--json")) == [line]
    with pytest.raises(ConfigError, match="no pipeline 'pear'"):
        sluice("pause", "pear")
