"""One request, or one command through it, moves all pipelines of a group: who may, and what it says of each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from fastapi import FastAPI
from fastapi.testclient import TestClient

from tests.support.servers.pages import api_of, sluice
from tests.support.twins.source_group import Member, replicated_group, write_files

STATIC = Path(__file__).resolve().parents[2] / "include" / "sluice" / "orchestration" / "static"
MOVE = "/api/v1/groups/source/shop/move"


class Grants:
    """Stand-in of an auth manager: pipelines that may be read, and those that may be changed."""

    def __init__(self) -> None:
        self.read, self.act = {"one", "two", "new"}, {"one", "two", "new"}

    def is_authorized_view(self, **_: Any) -> bool:
        return True

    def is_authorized_dag(self, *, method: str, details: Any, **_: Any) -> bool:
        return details.id.split("__")[-1] in (self.read if method == "GET" else self.act)


@pytest.fixture
def grants() -> Grants:
    return Grants()


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Member]]:
    with replicated_group(tmp_path / "state") as found:
        runtimes = {one.case.config.pipeline: one.runtime for one in found}
        opened = "sluice.orchestration.page.groups.runtime_to_act"
        monkeypatch.setattr(opened, lambda path: runtimes[Path(path).stem]())
        yield found


@pytest.fixture
def app(tmp_path: Path, group: list[Member], grants: Grants, monkeypatch: pytest.MonkeyPatch) -> FastAPI:
    from airflow.api_fastapi.core_api import security

    from sluice.orchestration.page import access
    from sluice.orchestration.web import create_app, headline

    for module in (security, access):
        monkeypatch.setattr(module, "get_auth_manager", lambda: grants)
    monkeypatch.setattr("sluice.orchestration.web.may_read", lambda dag, user: dag.split("__")[-1] in grants.read)
    folder = write_files(group, tmp_path / "pipelines")

    def ask(path: str) -> dict[str, Any]:
        servers = {"server": "db1", "targets": [{"name": "reporting", "type": "memory", "server": "wh1", "lag_ms": 0}]}
        return {**headline(Path(path)), "state": "idle", **servers}

    made = create_app(folder, STATIC, ask=ask)
    made.dependency_overrides[security.get_user] = lambda: SimpleAuthManagerUser(username="anna", role="ADMIN")
    return made


def reads(group: list[Member]) -> list[str]:
    return [one.reads() for one in group]


@pytest.mark.promise("B48")
def test_one_request_moves_all_pipelines_of_a_group(app: FastAPI, group: list[Member]) -> None:
    client = TestClient(app)
    plan = client.post(f"{MOVE}/plan", json={"reason": "db1 goes"}).json()
    assert plan["confirm"] is True
    assert plan["command"] == "sluice failover --group shop --reason 'db1 goes'"
    assert plan["steps"][0].startswith("new is REFUSED, and stays where it is: ")
    assert [one["pipeline"] for one in plan["details"]["moves"] if one["error"]] == ["new"]
    for confirm in ("", "one"):
        assert client.post(MOVE, json={"confirm": confirm}).status_code == 409
    assert reads(group) == ["db1", "db1", "db1"]
    done = client.post(MOVE, json={"confirm": "shop", "reason": "db1 goes"}).json()
    assert reads(group) == ["db2", "db2", "db1"]
    assert [bool(one["error"]) for one in done["details"]["moves"]] == [True, False, False]
    with group[0].runtime().state() as state:
        assert state.audit.entries()[-1].items() >= {"by": "anna@airflow", "reason": "db1 goes"}.items()


def test_who_may_not_change_every_pipeline_does_not_move_the_group(
    app: FastAPI, group: list[Member], grants: Grants
) -> None:
    """A pipeline that may not be seen is not named, but counts; those that may be changed can be moved by name."""
    client = TestClient(app)
    grants.act, grants.read = {"one"}, {"one", "two"}
    for path in (MOVE, f"{MOVE}/plan"):
        refused = client.post(path, json={"confirm": "shop"})
        assert refused.status_code == 403
        assert "2 of the 3 pipelines of the group shop: two;" in refused.json()["detail"]
        assert "new" not in refused.json()["detail"]
    assert client.post(MOVE, json={"confirm": "shop", "pipelines": ["new"]}).status_code == 404
    assert client.post(MOVE, json={"confirm": "shop", "pipelines": ["one"]}).status_code == 200
    assert reads(group) == ["db2", "db1", "db1"]
    found = client.get("/api/v1/groups").json()["groups"]
    assert [(one["kind"], one["name"], one["hidden"], one["may"]["act"]) for one in found] == [
        ("source", "shop", 1, False),
        ("target", "warehouse", 1, False),
    ]
    grants.read = set()
    assert client.get("/api/v1/groups").json() == {"groups": []}
    for name in ("shop", "shpo"):
        answer = client.post(MOVE.replace("shop", name), json={"confirm": name})
        assert answer.status_code == 404
        assert "one" not in answer.json()["detail"].split()


def test_a_group_is_shown_with_the_server_of_each_pipeline(app: FastAPI) -> None:
    client = TestClient(app)
    source, target = client.get("/api/v1/groups").json()["groups"]
    assert (source["kind"], target["kind"]) == ("source", "target")
    assert [one["servers"] for one in source["pipelines"]] == [["db1", "db2"]] * 3
    assert {one["target"] for one in target["pipelines"]} == {"reporting"}
    assert {one["server"] for one in target["pipelines"]} <= {None, "wh1"}
    assert source["may"] == {"act": True}


@pytest.mark.promise("B48")
def test_the_command_moves_a_group_through_the_api(
    app: FastAPI, group: list[Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    with api_of(app, monkeypatch):
        with pytest.raises(SystemExit):
            sluice("failover", "--group", "shop", "--dry-run", "--json")
        assert reads(group) == ["db1", "db1", "db1"]
        with pytest.raises(SystemExit) as ended:
            sluice("failover", "--group", "shop", "--yes")
        assert ended.value.code == 1, "one was refused"
    assert reads(group) == ["db2", "db2", "db1"]
