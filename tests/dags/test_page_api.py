"""The routes of ``/sluice/api/v1``: logins, roles of Airflow's simple auth manager, plans, and what they call."""

from __future__ import annotations

import html
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.api_fastapi.core_api.security import get_user
from fastapi import FastAPI, Request
from fastapi.testclient import TestClient

from sluice.errors import ConfigError
from sluice.operations.verbs.table import NOTHING_MISSING, VERBS
from sluice.orchestration.last_answers import LISTED_LOOKS
from sluice.orchestration.page.airflow_self import OUTER_APP
from sluice.orchestration.page.words import TONES, in_words, trouble_first
from sluice.segments.store import SegmentStore
from tests.dags.conftest import WritePipeline
from tests.support.servers.airflows import wait_until

STATIC = Path(__file__).resolve().parents[2] / "include" / "sluice" / "orchestration" / "static"
BODIES: dict[str, dict[str, Any]] = {
    "skip": {"target": "reporting", "batch": 7},
    "redeliver": {"target": "reporting"},
    "switch-target": {"target": "reporting"},
    "adopt": {"target": "reporting", "side": "target"},
    "letters-discard": {"ids": ["1f"]},
    "dump-tune": {"chunk_rows": 10},
    "alert-on": {"rule": "stopped"},
    "alert-off": {"rule": "stopped"},
}

AsRole = Callable[[str | None], TestClient]


@pytest.fixture(scope="module")
def shared_app(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, FastAPI]:
    """The application, which takes a second to make, and the link to the folder of pipelines that it reads."""
    from sluice.orchestration.web import create_app, headline

    link = tmp_path_factory.mktemp("page") / "pipelines"
    return link, create_app(link, STATIC, ask=lambda path: {**headline(Path(path)), "state": "idle"})


@pytest.fixture
def app(shared_app: tuple[Path, FastAPI], pipelines: Path, write_pipeline: WritePipeline) -> Iterator[FastAPI]:
    link, made = shared_app
    write_pipeline("shop")
    link.unlink(missing_ok=True)
    link.symlink_to(pipelines)
    yield made
    made.dependency_overrides.clear()


@pytest.fixture
def as_role(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> AsRole:
    """Gives a client that is logged in with a role of Airflow's simple auth manager."""
    from airflow.api_fastapi.core_api import security

    from sluice.orchestration.page import access

    manager = SimpleAuthManager()
    monkeypatch.setattr(security, "get_auth_manager", lambda: manager)
    monkeypatch.setattr(access, "get_auth_manager", lambda: manager)

    def client(role: str | None) -> TestClient:
        app.dependency_overrides[security.get_user] = lambda: SimpleAuthManagerUser(username="anna", role=role)
        return TestClient(app)

    return client


@pytest.fixture
def no_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every action is refused when it opens the pipeline: what comes so far was allowed."""

    def refuse(path: str) -> Any:
        raise ConfigError("there are no servers here")

    monkeypatch.setattr("sluice.orchestration.dags.control.open_to_act", refuse)


def api_routes(app: FastAPI) -> list[tuple[str, str]]:
    """(method, path) of each route of the API, with a pipeline in place of its parameters."""
    found = []
    for route in app.routes:
        path = getattr(route, "path", "")
        if path.startswith("/api/v1"):
            filled = path.replace("{pipeline}", "shop").replace("{", "").replace("}", "")
            found += [(method, filled) for method in route.methods]  # type: ignore[attr-defined]
    return found


def answered(client: TestClient) -> dict[str, Any]:
    """The line of the pipeline, once its servers were asked: the list waits for none."""
    found: list[dict[str, Any]] = []

    def asked() -> bool:
        found[:] = client.get("/api/v1/pipelines").json()["pipelines"]
        return found[0]["state"] != "asked"

    wait_until(asked, "the first answer", 60.0)
    return found[0]


def test_the_list_waits_for_no_pipeline(as_role: AsRole, pipelines: Path, write_pipeline: WritePipeline) -> None:
    """Those that do not answer are in it at once; one that waits for its turn behind them is looked at when a person
    opens it.
    """
    from sluice.orchestration.web import create_app, headline

    mute = [f"mute{number}" for number in range(2 * LISTED_LOOKS)]
    for name in mute:
        write_pipeline(name)
    released = threading.Event()

    def ask(path: str) -> dict[str, Any]:
        if Path(path).stem in mute:
            released.wait(120)
        return {**headline(Path(path)), "state": "idle"}

    as_role("ADMIN")
    app = create_app(pipelines, STATIC, ask=ask)
    app.dependency_overrides[get_user] = lambda: SimpleAuthManagerUser(username="anna", role="ADMIN")
    client = TestClient(app)
    try:
        assert states(client) == dict.fromkeys([*mute, "shop"], "asked")
        assert client.get("/api/v1/pipelines/shop").json()["state"] == "idle"
        assert states(client) == {**dict.fromkeys(mute, "asked"), "shop": "idle"}
    finally:
        released.set()
    wait_until(lambda: states(client) == dict.fromkeys([*mute, "shop"], "idle"), "the answers", 60.0)


def states(client: TestClient) -> dict[str, str]:
    """Pipeline -> its state in the list."""
    return {one["pipeline"]: one["state"] for one in client.get("/api/v1/pipelines").json()["pipelines"]}


def test_every_route_needs_a_login(app: FastAPI) -> None:
    routes = api_routes(app)
    assert len(routes) > 2 * len(VERBS)
    for method, path in routes:
        assert TestClient(app).request(method, path, json={}).status_code == 401, path


@pytest.mark.parametrize("role", [None, "VIEWER", "USER", "OP", "ADMIN"])
def test_roles_of_the_simple_auth_manager(as_role: AsRole, no_servers: None, role: str | None) -> None:
    """A viewer reads, a user acts, as on the DAG itself; nobody without a role sees a pipeline."""
    client = as_role(role)
    listed = client.get("/api/v1/pipelines")
    if role is None:
        assert listed.status_code == 403
    else:
        line = answered(client)
        assert (line["pipeline"], line["text"]) == ("shop", "in step")
        assert line["may"] == {name: role != "VIEWER" or name in {"read", "rows", "verified"} for name in line["may"]}
    expected = {None: 403, "VIEWER": 403}.get(role, 409)
    for name in VERBS:
        for path in (f"/api/v1/pipelines/shop/actions/{name}/plan", f"/api/v1/pipelines/shop/actions/{name}"):
            if name == "retry-now" and not path.endswith("plan") and expected == 409:
                continue  # Airflow does it, and is not here
            body = {**BODIES.get(name, {}), "confirm": "shop"}
            answer = client.post(path, json=body)
            assert answer.status_code == expected, (path, answer.text)


def test_no_action_by_get_and_none_from_another_site(as_role: AsRole, no_servers: None) -> None:
    client = as_role("ADMIN")
    for name in VERBS:
        path = f"/api/v1/pipelines/shop/actions/{name}"
        assert client.get(path).status_code == 405
        assert client.post(path, json={}, headers={"Origin": "https://evil.example"}).status_code == 403
        assert client.post(path, content=b"confirm=shop").status_code == 415


def test_every_answer_forbids_inline_code(as_role: AsRole, app: FastAPI) -> None:
    client = as_role("VIEWER")
    for path in ("/", "/static/sluice.js", "/static/no.js", "/api/v1/pipelines", "/api/v1/pipelines/nix", "/nix"):
        policy = client.get(path).headers["content-security-policy"]
        assert "script-src 'self'" in policy
        assert "unsafe" not in policy
    app.dependency_overrides.clear()
    assert "content-security-policy" in TestClient(app).get("/").headers
    page = (STATIC / "index.html").read_text()
    assert "<script>" not in page
    assert "style=" not in page
    assert " on" not in page.replace(" on ", "")


@pytest.mark.parametrize(("site", "known"), [('https://docs.example/"><b', True), ("javascript:alert(1)", False)])
def test_the_page_knows_where_the_documentation_is(
    as_role: AsRole, monkeypatch: pytest.MonkeyPatch, site: str, known: bool
) -> None:
    monkeypatch.setenv("SLUICE_DOCS", site)
    page = as_role("VIEWER").get("/").text
    assert f'<html data-docs="{html.escape(site) if known else ""}" lang="en">' in page


def test_data_at_stake_needs_the_pipelines_name(as_role: AsRole, monkeypatch: pytest.MonkeyPatch) -> None:
    from sluice.operations import control

    done: list[Any] = []
    runtime = SimpleNamespace(name="shop")
    monkeypatch.setattr("sluice.orchestration.dags.control.open_to_act", lambda path: runtime)
    monkeypatch.setattr(
        control,
        "skip",
        lambda *given, **more: done.append((given, more)) or control.ActionPlan("skip", ("batch 7 is left out",)),
    )
    client, path = as_role("USER"), "/api/v1/pipelines/shop/actions/skip"
    body = {"target": "reporting", "batch": 7, "reason": "it's bad"}
    plan = client.post(f"{path}/plan", json=body).json()
    assert plan["steps"] == ["batch 7 is left out"]
    assert plan["confirm"] is True
    assert "until its dead letter is replayed" in plan["lost"]
    assert plan["command"] == """sluice skip shop --reason 'it'"'"'s bad' reporting 7"""
    assert [more["dry_run"] for _, more in done] == [True]
    for confirm in ("", "shopp"):
        refused = client.post(path, json={**body, "confirm": confirm})
        assert refused.status_code == 409
        assert "repeat the pipeline's name" in refused.json()["detail"]
    assert len(done) == 1
    assert client.post(path, json={**body, "confirm": "shop"}).json()["steps"] == ["batch 7 is left out"]
    given, more = done[1]
    assert given == (runtime, "reporting", 7)
    assert more == {"by": "anna@airflow", "reason": "it's bad", "dry_run": False, "lost": False}


RUNS = [
    {"dag_run_id": "by hand", "state": "success", "logical_date": None, "run_after": "2026-01-01T00:00:00Z"},
    {"dag_run_id": "r1", "state": "success", "logical_date": "2026-01-02", "run_after": "2026-01-02T00:00:00Z"},
    {"dag_run_id": "r2", "state": "running", "logical_date": "2026-01-03", "run_after": "2026-01-03T00:00:00Z"},
]
"""Runs of a DAG. One that a person triggered has no logical date, which PostgreSQL puts first in descending order."""


@pytest.fixture
def in_airflow(app: FastAPI) -> tuple[TestClient, list[Any]]:
    """The page inside a stand-in of Airflow's application, which notes what it is asked, and as whom."""
    outer, asked = FastAPI(), list[Any]()

    @outer.api_route("/api/v2/{path:path}", methods=["GET", "POST"])
    async def airflow(path: str, request: Request) -> Any:
        body = await request.json() if request.method == "POST" else None
        asked.append((request.method, path, body, request.headers.get("cookie")))
        if path.endswith("/dagRuns") and request.method == "POST":
            return {"dag_run_id": "manual__1"}
        if path.endswith("/dagRuns"):
            by = request.query_params["order_by"].removeprefix("-")
            newest_first = sorted(RUNS, key=lambda run: (run[by] is None, run[by] or ""), reverse=True)
            return {"dag_runs": newest_first}
        if path.endswith("/taskInstances"):
            tasks = [("r2", "load.reporting", "up_for_retry"), ("r1", "load.reporting", "failed")]
            return {
                "task_instances": [
                    {"dag_run_id": run, "task_id": task, "state": state, "try_number": 2} for run, task, state in tasks
                ]
            }
        if "/logs/" in path:
            failed = {"error_detail": [{"exc_value": "Data too long"}]}
            retry = {"reason": "starts by itself in 30.0 s", "timestamp": "2026-01-01T00:00:00Z"}
            return {"content": [{"event": "begin"}, failed, retry]}
        return {}

    async def page(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, OUTER_APP: scope.get("app")}, receive, send)

    outer.mount("/sluice", page)
    return TestClient(outer, cookies={"_token": "annas"}), asked


def test_what_is_missing_is_made_by_a_run_and_its_plan_is_the_last_check(
    as_role: AsRole, in_airflow: tuple[TestClient, list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_role("USER")
    client, asked = in_airflow
    store = SegmentStore((tmp_path / "store").as_uri(), "shop")
    runtime = SimpleNamespace(name="shop", store=store)
    monkeypatch.setattr("sluice.orchestration.dags.control.open_to_act", lambda path: runtime)
    path = "/sluice/api/v1/pipelines/shop/actions/make-missing"
    assert "not checked yet" in client.post(f"{path}/plan", json={}).json()["steps"][-1]
    report: dict[str, Any] = {"findings": [], "source_statements": ["CREATE PUBLICATION p"]}
    report["statements"] = [{"target": "reporting", "statement": "ALTER TABLE `s`.`t` ADD `c` INT"}]
    store.write_bytes("check/last.json", json.dumps({"format_version": 1, "report": report, "newer": 1}).encode())
    plan = client.post(f"{path}/plan", json={}).json()
    steps = ["source: CREATE PUBLICATION p", "target reporting: ALTER TABLE `s`.`t` ADD `c` INT"]
    assert (plan["steps"][1:], plan["confirm"], plan["lost"]) == (steps, False, "nothing")
    assert (plan["details"], plan["command"]) == (report, "sluice check shop --apply")
    assert asked == []
    assert client.post(path, json={"reason": "new column"}).json()["run"]["dag_id"] == "sluice_control"
    conf = {"pipeline": "shop", "action": "make-missing", "reason": "new column"}
    assert asked[0][1:3] == ("dags/sluice_control/dagRuns", {"logical_date": None, "conf": conf, "note": "new column"})
    report["source_statements"] = report["statements"] = []
    store.write_bytes("check/last.json", json.dumps({"format_version": 1, "report": report}).encode())
    assert client.post(f"{path}/plan", json={}).json()["steps"][1:] == [NOTHING_MISSING]


def test_copies_and_comparisons_are_runs_that_airflow_opens_as_the_user(
    as_role: AsRole, in_airflow: tuple[TestClient, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    as_role("USER")
    client, asked = in_airflow
    runtime = SimpleNamespace(
        name="shop",
        pipeline=SimpleNamespace(
            targets=(), verify=SimpleNamespace(share=1.0, method="compare"), target=lambda name: None
        ),
    )
    monkeypatch.setattr("sluice.orchestration.dags.control.open_to_act", lambda path: runtime)
    monkeypatch.setattr("sluice.flows.dump.start.tuned", lambda pipeline, **changes: None)
    monkeypatch.setattr(
        "sluice.flows.dump.start.start",
        lambda runtime, **more: SimpleNamespace(tables=[SimpleNamespace(table="shop.t", estimate=5)], note=""),
    )
    base = "/sluice/api/v1/pipelines/shop/actions"
    copied = client.post(f"{base}/dump-start", json={"tables": ["shop.t"], "delay_ms": 0})
    assert copied.json()["run"] == {"dag_id": "backfill__shop", "run_id": "manual__1"}
    repaired = client.post(f"{base}/repair", json={"tables": ["shop.t"], "confirm": "shop"})
    assert repaired.json()["run"]["dag_id"] == "verify__shop"
    assert asked == [
        (
            "POST",
            "dags/backfill__shop/dagRuns",
            {"logical_date": None, "conf": {"tables": ["shop.t"], "delay_ms": 0}, "note": None},
            "_token=annas",
        ),
        (
            "POST",
            "dags/verify__shop/dagRuns",
            {"logical_date": None, "conf": {"tables": ["shop.t"], "repair": True}, "note": None},
            "_token=annas",
        ),
    ]


def test_failed_tasks_of_open_runs_are_named_and_cleared(
    as_role: AsRole, in_airflow: tuple[TestClient, list[Any]]
) -> None:
    as_role("USER")
    client, asked = in_airflow
    (task,) = client.get("/sluice/api/v1/pipelines/shop/failed-tasks").json()["tasks"]
    assert (task["run_id"], task["message"], task["attempt"]) == ("r2", "Data too long", 1)
    assert task["next_at"] == "2026-01-01T00:00:30+00:00"
    done = client.post("/sluice/api/v1/pipelines/shop/actions/retry-now", json={}).json()
    assert done["steps"] == ["cleared in run r2: load.reporting"]
    method, path, body, cookie = asked[-1]
    assert (method, path, cookie) == ("POST", "dags/sync__shop/clearTaskInstances", "_token=annas")
    assert (body["dag_run_id"], body["task_ids"], body["dry_run"]) == ("r2", ["load.reporting"], False)


def test_openapi_describes_each_route(as_role: AsRole, app: FastAPI) -> None:
    described = as_role("VIEWER").get("/api/v1/openapi.json").json()
    for path, methods in described["paths"].items():
        for method, one in methods.items():
            assert one["description"], (method, path)
            assert one["summary"], (method, path)
    assert len(described["paths"]) >= 2 * len(VERBS) + 10
    assert described["components"]["schemas"]["Skip"]["example"]["batch"] == 42


@pytest.mark.parametrize(
    ("status", "tone", "text"),
    [
        ({"state": "idle"}, "good", "in step"),
        ({"state": "idle", "dead_letters": 1200}, "warn", "in step; 1,200 dead letters wait"),
        ({"state": "idle", "dead_letters": 1}, "warn", "in step; 1 dead letter waits"),
        ({"state": "running"}, "busy", "delivering"),
        (
            {"state": "no_answer", "no_answer": [{"part": "target reporting", "since": "2026-01-01T14:02:00Z"}]},
            "bad",
            "waiting for target reporting: no answer since 14:02 UTC",
        ),
        (
            {"state": "failing", "failures": [{"part": "rule.hide_tests", "error": "hide_tests,\n line 12"}]},
            "bad",
            "stopped at rule hide_tests: hide_tests, line 12",
        ),
        ({"state": "paused", "paused": "by anna since noon"}, "warn", "paused by anna since noon"),
        ({"state": "invalid", "errors": ["shop.yaml:3: colour"]}, "bad", "the file is not valid: shop.yaml:3: colour"),
        (
            {"state": "invalid", "errors": ["2 problems in a.yaml:\n  /x/a.yaml:1: source\n  /x/a.yaml:3: colour"]},
            "bad",
            "the file is not valid: 2 problems in a.yaml: a.yaml:1: source; a.yaml:3: colour",
        ),
        (
            {"state": "running", "targets": [{"name": "a", "quarantined": "since noon"}]},
            "bad",
            "delivering; quarantined: a",
        ),
    ],
)
def test_states_in_words(status: dict[str, Any], tone: str, text: str) -> None:
    assert in_words(status) == {"tone": tone, "text": text, "may_retry": True}


@pytest.mark.parametrize(
    ("kinds", "may_retry"),
    [
        (["LogPurged"], False),
        (["LogPurged", "LostPosition"], False),
        (["LogPurged", "TargetUnavailable"], True),
        ([""], True),
    ],
)
def test_a_retry_is_offered_unless_the_source_lacks_the_log(kinds: list[str], may_retry: bool) -> None:
    failures = [{"part": "drain", "error": "it was purged", "kind": kind} for kind in kinds]
    assert in_words({"state": "failing", "failures": failures})["may_retry"] is may_retry


def test_trouble_is_on_top() -> None:
    lines = [
        {"tone": tone, "lag_ms": lag, "pipeline": name}
        for tone, lag, name in (("good", 5, "a"), ("bad", None, "b"), ("busy", 9, "c"), ("busy", 10, "d"))
    ]
    assert [line["pipeline"] for line in sorted(lines, key=trouble_first)] == ["b", "d", "c", "a"]
    assert set(TONES) == {"bad", "warn", "busy", "good", "quiet"}


def test_no_route_that_changes_something_takes_a_request_of_another_site(
    app: FastAPI,
    as_role: AsRole,
    no_servers: None,
) -> None:
    client = as_role("ADMIN")
    routes = [(method, path) for method, path in api_routes(app) if method not in {"GET", "HEAD", "OPTIONS"}]
    assert len(routes) > 10
    for method, path in routes:
        for origin in ("https://evil.example", "null", "http://testserver.evil.example"):
            answer = client.request(method, path, json={}, headers={"Origin": origin})
            assert answer.status_code == 403, (method, path, origin)
        answer = client.request(method, path, content=b"a=b", headers={"Content-Type": "text/plain"})
        assert answer.status_code == 415, (method, path)


def test_every_answer_of_every_route_forbids_inline_code(
    app: FastAPI,
    as_role: AsRole,
    no_servers: None,
) -> None:
    """Those to nobody and those of an error as well."""
    for role in (None, "VIEWER", "ADMIN"):
        as_role(role) if role else app.dependency_overrides.clear()
        client = TestClient(app, raise_server_exceptions=False)
        for method, path in api_routes(app):
            answer = client.request(method, path, json={"confirm": "<script>alert(1)</script>"})
            if answer.status_code == 500:  # Airflow does it, and is not here
                assert answer.headers["content-type"].startswith("text/plain")
                continue
            policy = answer.headers["content-security-policy"]
            assert "script-src 'self'" in policy, (method, path)
            assert "unsafe" not in policy, (method, path)


@pytest.mark.parametrize("name", ["..%2f..%2fetc%2fpasswd", "%2e%2e", "..\\..\\etc", "shop%00", "%E2%80%AEpohs"])
def test_an_address_leads_to_no_file(app: FastAPI, as_role: AsRole, name: str) -> None:
    client = as_role("ADMIN")
    for place in ("/static/{}", "/api/v1/pipelines/{}", "/{}"):
        answer = client.get(place.format(name))
        assert answer.status_code in {200, 404}, answer.text
        assert "root:" not in answer.text
        if answer.status_code == 200:  # the page itself, which asks the API
            assert "<!doctype html>" in answer.text.lower()
