"""The page's application: login, permissions, and one question a second."""

from __future__ import annotations

import asyncio
import json
import random
import re
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from tests.dags.conftest import WritePipeline
from tests.support.grammar.mutations import COUNT, SEED, mutated

STATIC = Path(__file__).resolve().parents[2] / "include" / "sluice" / "orchestration" / "static"
ROUTES = ["/", "/api/status", "/api/status/shop", "/static/sluice.js", "/static/sluice.css", "/static/icon.svg"]


@pytest.fixture(scope="module")
def shared_app(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The application, which takes a second to make, and the link to the folder of pipelines that it reads."""
    from sluice.orchestration.web import create_app

    link = tmp_path_factory.mktemp("page") / "pipelines"
    return link, create_app(
        link, STATIC, ask=lambda path: {"pipeline": Path(path).stem, "dag_id": f"sync__{Path(path).stem}"}
    )


@pytest.fixture
def app(shared_app: tuple[Path, Any], pipelines: Path) -> Iterator[Any]:
    link, made = shared_app
    link.unlink(missing_ok=True)
    link.symlink_to(pipelines)
    yield made
    made.dependency_overrides.clear()


@pytest.fixture
def logged_in(app: Any, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    """A user who may see plugins and the DAG of ``shop`` only."""
    from airflow.api_fastapi.core_api import security

    from sluice.orchestration.page import access

    manager = SimpleNamespace(
        is_authorized_view=lambda **_: True,
        is_authorized_dag=lambda *, method, details, user: method == "GET" and details.id == "sync__shop",
    )
    monkeypatch.setattr(security, "get_auth_manager", lambda: manager)
    monkeypatch.setattr(access, "get_auth_manager", lambda: manager)
    app.dependency_overrides[security.get_user] = lambda: SimpleNamespace(get_name=lambda: "reader")
    return TestClient(app)


@pytest.mark.parametrize("route", ROUTES)
def test_nothing_without_a_login(app: Any, write_pipeline: WritePipeline, route: str) -> None:
    write_pipeline("shop")
    assert TestClient(app).get(route).status_code == 401


@pytest.mark.parametrize("route", ROUTES)
def test_everything_with_one(logged_in: TestClient, write_pipeline: WritePipeline, route: str) -> None:
    write_pipeline("shop")
    answer = logged_in.get(route)
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"


def test_a_pipeline_is_shown_to_those_who_may_read_its_dag(
    logged_in: TestClient, write_pipeline: WritePipeline
) -> None:
    write_pipeline("shop")
    write_pipeline("secret")
    assert [p["pipeline"] for p in logged_in.get("/api/status").json()["pipelines"]] == ["shop"]
    assert logged_in.get("/api/status/sync__shop").json()["pipeline"] == "shop"
    assert logged_in.get("/api/status/secret").status_code == 404


def test_batches_of_a_run(
    logged_in: TestClient, write_pipeline: WritePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_pipeline("shop")
    write_pipeline("secret")
    asked: list[str] = []

    def claimed(runtime: Any, claim: str) -> list[dict[str, Any]]:
        asked.append(claim)
        return [{"number": 7}]

    monkeypatch.setattr("sluice.operations.status.batches_claimed", claimed)
    monkeypatch.setattr("sluice.operations.status.stages_claimed", lambda runtime, claim: [{"stage": "merge"}])
    monkeypatch.setenv("AIRFLOW_CONN_ZOOKEEPER_DEFAULT", "zookeeper://127.0.0.1:2181")
    run = "scheduled__2026-01-02T03:04:05.678+00:00"
    answer = logged_in.get("/api/runs/shop", params={"run": run})
    assert answer.json() == {"batches": [{"number": 7}], "stages": [{"stage": "merge"}]}
    assert asked[0].endswith(f":sync__shop:{run}")
    assert logged_in.get("/api/runs/secret", params={"run": run}).status_code == 404
    assert logged_in.get("/api/runs/shop").status_code == 422
    assert len(asked) == 1


def test_results_of_verifications(
    app: Any, logged_in: TestClient, write_pipeline: WritePipeline, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from sluice.operations.verify.result import Difference, TableResult, VerifyResult, keep
    from sluice.orchestration.page import access
    from sluice.segments.store import SegmentStore

    write_pipeline("shop")
    store = SegmentStore(f"file://{tmp_path}/store", "shop")
    monkeypatch.setattr(
        "sluice.orchestration.runtime.runtime_of", lambda _: SimpleNamespace(store=store, store_uri=store.uri)
    )
    assert logged_in.get("/api/verify/shop/latest").status_code == 404  # the DAG verify__shop may not be read
    manager = SimpleNamespace(
        is_authorized_view=lambda **_: True,
        is_authorized_dag=lambda *, method, details, user: method == "GET" and details.id == "verify__shop",
    )
    monkeypatch.setattr(access, "get_auth_manager", lambda: manager)
    assert "not verified yet" in logged_in.get("/api/verify/shop/latest").json()["detail"]
    odd = Difference(key=("7",), kind="different", columns=("v",), values=(("a", None),))
    for number in (1, 2):
        table = TableResult(table="s.t", target="copy", way="rows", rows=9, different=number, differences=(odd,))
        keep(store, VerifyResult(id=f"id-{number}", pipeline="shop", tables=(table,)))
    listed = logged_in.get("/api/verify/shop").json()["results"]
    assert [(one["id"], one["count"], one["tables"]) for one in listed] == [("id-2", 1, []), ("id-1", 1, [])]
    assert logged_in.get("/api/verify/shop/latest").json()["id"] == "id-2"
    one = logged_in.get("/api/verify/shop/id-1").json()
    assert one["tables"][0]["differences"][0]["values"] == [["a", None]]
    assert logged_in.get("/api/verify/shop/no").status_code == 404
    assert logged_in.get("/api/verify/nix/latest").status_code == 404
    del app.dependency_overrides[next(iter(app.dependency_overrides))]
    assert TestClient(app).get("/api/verify/shop/latest").status_code == 401


def test_one_who_may_only_read_changes_nothing(
    logged_in: TestClient, write_pipeline: WritePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sluice.orchestration import web

    acted: list[Any] = []
    monkeypatch.setattr(web, "act", lambda *given, **more: acted.append(given))
    write_pipeline("shop")
    write_pipeline("secret")
    assert logged_in.post("/api/pipelines/shop/pause", json={}).status_code == 403
    assert logged_in.post("/api/pipelines/secret/pause", json={}).status_code == 404
    assert acted == []


@pytest.fixture
def acting(
    logged_in: TestClient, write_pipeline: WritePipeline, monkeypatch: pytest.MonkeyPatch
) -> tuple[TestClient, list[Any]]:
    """The same user, who may also change ``shop``, and what reaches the flows."""
    from sluice.operations.plan import ActionPlan
    from sluice.orchestration import web
    from sluice.orchestration.page import access

    acted: list[Any] = []
    manager = SimpleNamespace(is_authorized_view=lambda **_: True, is_authorized_dag=lambda **_: True)
    monkeypatch.setattr(access, "get_auth_manager", lambda: manager)
    monkeypatch.setattr(web, "act", lambda runtime, action, **more: acted.append(more) or ActionPlan(action, ()))
    write_pipeline("shop")
    return logged_in, acted


@pytest.mark.parametrize(
    ("headers", "body", "code"),
    [
        ({}, b"{}", 200),
        ({"Content-Type": "application/json; charset=utf-8"}, b"{}", 200),
        ({"Origin": "http://testserver"}, b"{}", 200),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "http://testserver"}, b"{}", 200),
        ({"Sec-Fetch-Site": "none"}, b"{}", 200),
        ({"Origin": "https://evil.example"}, b"{}", 403),
        ({"Origin": "http://testserver.evil.example"}, b"{}", 403),
        ({"Origin": "http://testserver:8080"}, b"{}", 403),
        ({"Origin": "https://testserver"}, b"{}", 403),
        ({"Origin": "null"}, b"{}", 403),
        ({"Origin": ""}, b"{}", 403),
        ({"Origin": "http://["}, b"{}", 403),
        ({"Sec-Fetch-Site": "same-site"}, b"{}", 403),
        ({"Sec-Fetch-Site": "cross-site"}, b"{}", 403),
        ({"Content-Type": "text/plain"}, b"{}", 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, b"a=b", 415),
        ({"Content-Type": "multipart/form-data; boundary=x"}, b"", 415),
        ({"Content-Type": ""}, b"", 415),
        ({"Content-Type": "text/plain; application/json"}, b"{}", 415),
        ({}, b"", 422),
        ({}, b"null", 422),
        ({}, b"[]", 422),
        ({}, b"{", 422),
        ({}, b"\xff", 400),
        ({}, b"[" * 100_000, 400),
        ({}, b'{"grace_s": NaN}', 422),
        ({}, b'{"grace_s": Infinity}', 422),
        ({}, b'{"grace_s": 1e308}', 422),
        ({}, b'{"grace_s": -1}', 422),
        ({}, b'{"grace_s": "5"}', 422),
        ({}, b'{"grace_s": true}', 422),
        ({}, b'{"dry_run": 1}', 422),
        ({}, b'{"dry_run": NaN}', 422),
        ({}, b'{"reason": "\\ud800"}', 422),
        ({}, b'{"\\ud800": 1}', 422),
        ({}, b'{"reasn": "x"}', 422),
    ],
)
def test_only_json_from_this_site_changes_something(
    acting: Any, headers: dict[str, str], body: bytes, code: int
) -> None:
    client, acted = acting
    for action in ("rollback", "pause", "resume", "restart"):
        answer = client.post(
            f"/api/pipelines/shop/{action}", content=body, headers={"Content-Type": "application/json", **headers}
        )
        assert answer.status_code == code, answer.text
        answer.json()
    assert len(acted) == (4 if code == 200 else 0)


BODIES = (
    "{}",
    '{"reason": "for the night", "grace_s": 90.5, "dry_run": false}',
    '{"dry_run": true, "grace_s": null, "reason": ""}',
    '{"grace_s": 604800}',
)
VALUES = (
    "true", "false", "null", "0", "-0", "1", "-1", "604800.0001", "1e5", "1e308", "1e309", "NaN", "-Infinity", '"5"',
    '"true"', "[]", "{}", "[1]",
    '{"a": 1}', '"\\ud800"', '"\\u0000"', '"' + "x" * 3000 + '"', "9" * 400, "1" * 5000, '"reason"', '"grace_s"',
)  # fmt: skip


@pytest.mark.timeout(0 if COUNT > 1000 else 120)
def test_mutated_bodies_are_refused_or_mean_what_they_say(acting: Any) -> None:
    """Never a traceback, and what reaches the flows is within its bounds and was in the body."""
    client, acted = acting
    choose = random.Random(f"{SEED}bodies")
    taken = 0
    for _ in range(COUNT):
        text = choose.choice(BODIES)
        if choose.random() < 0.4:
            name = choose.choice(["reason", "grace_s", "dry_run", "Reason", "by", "action"])
            text = (
                f'{{"{name}": {choose.choice(VALUES)}}}'
                if text == "{}"
                else f'{text[:-1]}, "{name}": {choose.choice(VALUES)}}}'
            )
        body = mutated(choose, text) if choose.random() < 0.7 else text.encode()
        acted.clear()
        answer = client.post(
            f"/api/pipelines/shop/{choose.choice(['rollback', 'pause', 'resume', 'restart'])}",
            content=body,
            headers={"Content-Type": "application/json"},
        )
        answer.json()
        assert answer.status_code in {200, 400, 422}, (body, answer.text)
        assert len(acted) == (answer.status_code == 200), body
        for order in acted:
            taken += 1
            said = json.loads(body)
            assert set(said) <= {"reason", "grace_s", "dry_run"}, body
            assert {name: order[name] for name in said} == said, body
            assert isinstance(order["dry_run"], bool), body
            assert order["grace_s"] is None or 0 <= order["grace_s"] <= 7 * 86400, body
            assert len(order["reason"].encode()) <= 4 * 2000, body
    assert COUNT // 20 < taken < COUNT


def test_no_route_changes_something_without_that_check(app: Any) -> None:
    from sluice.orchestration.web import own_page

    for route in app.routes:
        if set(getattr(route, "methods", ())) - {"GET", "HEAD"}:
            assert own_page in [dependency.call for dependency in route.dependant.dependencies]


def test_a_browser_keeps_the_files_of_this_release_and_no_other(logged_in: TestClient) -> None:
    page = logged_in.get("/")
    assert page.headers["cache-control"] == "no-store"
    named = re.findall(r'(?:src|href)="(static/[^"]+)"', page.text)
    assert len(named) > 5
    for path in named:
        answer = logged_in.get(f"/{path}")
        assert (answer.status_code, "immutable" in answer.headers["cache-control"]) == (200, True)
        other = logged_in.get(f"/{re.sub('/[0-9a-f]{16}/', '/0123456789abcdef/', path)}")
        assert (other.text, other.headers["cache-control"]) == (answer.text, "no-store")


@pytest.mark.parametrize("route", ["/static/../sluice_plugin.py", "/static/index.html", "/docs", "/openapi.json"])
def test_nothing_else_is_served(logged_in: TestClient, route: str) -> None:
    assert logged_in.get(route).status_code == 404


def test_a_wrong_file_and_a_missing_connection_are_answers(write_pipeline: WritePipeline, pipelines: Path) -> None:
    from sluice.orchestration.web import ask_status

    (pipelines / "bad.yaml").write_text("version: 1\npipeline: bad\ncolour: red\n")
    assert ask_status(str(pipelines / "bad.yaml"))["state"] == "invalid"
    missing = ask_status(str(write_pipeline("shop")))
    assert missing["state"] == "not_configured"
    assert missing["errors"]


@pytest.fixture
def silent(
    pipelines: Path, write_pipeline: WritePipeline, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SimpleNamespace]:
    """A page beside a plain route of Airflow's, in one application; the servers of ``mute`` do not answer before
    ``lets_go``.
    """
    from airflow.api_fastapi.core_api import security

    from sluice.orchestration import web
    from sluice.orchestration.page import access

    lets_go, asked = threading.Event(), Counter[str]()

    def ask(path: str) -> dict[str, Any]:
        name = Path(path).stem
        asked[name] += 1
        if name == "mute":
            assert lets_go.wait(300)
        return {**web.headline(Path(path)), "state": "idle", "asked_ms": asked[name]}

    manager = SimpleNamespace(is_authorized_view=lambda **_: True, is_authorized_dag=lambda **_: True)
    monkeypatch.setattr(security, "get_auth_manager", lambda: manager)
    monkeypatch.setattr(access, "get_auth_manager", lambda: manager)
    for name in ("mute", "shop"):
        write_pipeline(name)
    page = web.create_app(pipelines, STATIC, ask=ask)
    page.dependency_overrides[security.get_user] = lambda: SimpleNamespace(get_name=lambda: "reader")
    airflow = FastAPI()
    airflow.mount("/sluice", page)
    airflow.get("/monitor/health")(lambda: "healthy")  # a plain function: it takes one of Airflow's threads
    yield SimpleNamespace(app=airflow, asked=asked, lets_go=lets_go, monkeypatch=monkeypatch)
    lets_go.set()


def test_two_hundred_requests_beside_a_mute_server_leave_airflow_its_threads(silent: SimpleNamespace) -> None:
    silent.monkeypatch.setattr("sluice.orchestration.last_answers.FIRST_S", 600.0)  # they wait until the server speaks
    routes = [
        "/sluice/api/status",
        "/sluice/api/status/mute",
        "/sluice/api/status/sync__mute",
        "/sluice/api/status/shop",
    ]

    async def all_of_it() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(silent.app), base_url="http://airflow") as client:
            asking = [asyncio.create_task(client.get(routes[i % 4])) for i in range(200)]
            for _ in range(3):  # those of the other pipeline are answered, and so is Airflow
                assert (await client.get("/sluice/api/status/shop")).json()["state"] == "idle"
                assert (await client.get("/monitor/health")).json() == "healthy"
                assert (await client.get("/sluice/static/sluice.js")).status_code == 200
            _, waiting = await asyncio.wait(asking[3::4])
            assert not waiting
            assert not any(task.done() for task in asking[1::4])
            assert silent.asked["mute"] == 1
            silent.lets_go.set()
            assert {answer.status_code for answer in await asyncio.gather(*asking)} == {200}
            assert silent.asked["mute"] == 1

    asyncio.run(all_of_it())


def test_a_mute_server_delays_no_other_card_and_leaves_the_last_answer(silent: SimpleNamespace) -> None:
    async def all_of_it() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(silent.app), base_url="http://airflow") as client:

            async def cards() -> dict[str, Any]:
                return {one["pipeline"]: one for one in (await client.get("/sluice/api/status")).json()["pipelines"]}

            first = await cards()
            assert (first["mute"]["state"], first["mute"]["source"]) == ("asked", "shop_mysql")
            assert first["shop"]["state"] == "idle"
            silent.lets_go.set()
            while (await cards())["mute"]["state"] != "idle":
                pass
            silent.lets_go.clear()
            while silent.asked["mute"] < 2:
                await cards()
            before = silent.asked["shop"]
            while silent.asked["shop"] < before + 2:  # looks at the other pipeline go on
                assert (await cards())["mute"]["asked_ms"] == 1
            silent.monkeypatch.setattr("sluice.orchestration.last_answers.OVERDUE_S", 0.0)
            late = (await cards())["mute"]
            assert late["state"] == "no_answer"
            assert [one["part"] for one in late["no_answer"]] == ["status"]
            assert silent.asked["mute"] == 2

    asyncio.run(all_of_it())


def test_the_page_asks_no_other_host() -> None:
    for file in STATIC.rglob("*.*"):
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")
        if file.parent == STATIC:  # comments of a library name its pages
            assert "http:" not in text
            assert "https:" not in text
        assert not re.search(r"innerHTML|insertAdjacentHTML|outerHTML|document\.write|\beval\(|fetch\(.http", text)
