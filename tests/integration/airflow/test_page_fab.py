"""The rights of the operator's page with the roles of the FAB auth manager, asked of a real API server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from sluice.operations.verbs.table import VERBS
from tests.support.servers.fab import PASSWORD, fab_airflow

pytestmark = [pytest.mark.full, pytest.mark.slow, pytest.mark.server, pytest.mark.timeout(1800)]

API = "/sluice/api/v1/pipelines"
USERS = {
    "viewer": ["Viewer"],
    "user": ["User"],
    "op": ["Op"],
    "admin": ["Admin"],
    "viewer_of_plugins": ["Viewer", "Plugins"],
    "user_of_plugins": ["User", "Plugins"],
    "shop_only": ["Shop", "Plugins"],
}
ROLES = {
    "Plugins": [("can_read", "Plugins")],
    "Shop": [("can_read", "DAG:sync__shop"), ("can_edit", "DAG:sync__shop")],
}
PIPELINE = """\
version: 1
pipeline: {name}
source: {{connection: no_source}}
capture: {{include: ["shop.*"]}}
targets: [{{name: reporting, type: mysql, connection: no_target}}]
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("fab")
    pipelines = folder / "pipelines"
    pipelines.mkdir()
    for name in ("shop", "stock"):
        (pipelines / f"{name}.yaml").write_text(PIPELINE.format(name=name), encoding="utf-8")
    with fab_airflow(folder, pipelines, USERS, ROLES) as started:
        yield started


def client(url: str, user: str) -> httpx.Client:
    """A client that is logged in."""
    answer = httpx.post(
        f"{url}/auth/token", json={"username": user, "password": PASSWORD}, timeout=120, trust_env=False
    )
    assert answer.status_code == 201, answer.text
    headers = {"Authorization": f"Bearer {answer.json()['access_token']}"}
    return httpx.Client(base_url=url, headers=headers, timeout=120, trust_env=False)


def listed(asked: httpx.Client) -> dict[str, Any]:
    """Pipeline -> what the user may do."""
    return {one["pipeline"]: one["may"] for one in asked.get(API).raise_for_status().json()["pipelines"]}


@pytest.mark.parametrize("user", ["viewer", "user"])
def test_a_role_without_the_right_to_read_plugins_sees_no_page(url: str, user: str) -> None:
    """FAB gives that right to Op and Admin; Airflow shows the others no page of any plugin."""
    with client(url, user) as asked:
        assert [asked.get(path).status_code for path in ("/sluice/", API, f"{API}/shop/tables")] == [403] * 3
        assert asked.post(f"{API}/shop/actions/pause", json={}).status_code == 403


@pytest.mark.parametrize(
    ("user", "acts"), [("viewer_of_plugins", False), ("user_of_plugins", True), ("op", True), ("admin", True)]
)
def test_a_role_of_fab_reads_and_acts_as_on_the_dag(url: str, user: str, acts: bool) -> None:
    with client(url, user) as asked:
        may = listed(asked)
        assert set(may) == {"shop", "stock"}
        assert may["shop"] == {name: acts or name in {"read", "rows", "verified"} for name in may["shop"]}
        for name in ("pause", "dump-start", "verify", "repair", "make-missing"):
            assert name in VERBS
            for path in (f"{API}/shop/actions/{name}/plan", f"{API}/shop/actions/{name}"):
                answer = asked.post(path, json={"confirm": "shop"})
                assert (answer.status_code == 403) is not acts, (path, answer.text)


def test_a_role_for_one_dag_sees_and_steers_one_pipeline(url: str) -> None:
    with client(url, "shop_only") as asked:
        assert set(listed(asked)) == {"shop"}
        assert asked.get(f"{API}/stock").status_code == 404
        assert asked.post(f"{API}/stock/actions/pause", json={}).status_code == 404
        assert asked.post(f"{API}/shop/actions/pause", json={}).status_code != 403
        assert asked.post(f"{API}/shop/actions/verify", json={}).status_code == 403  # another DAG: verify__shop


def test_nothing_without_a_login(url: str) -> None:
    assert httpx.get(f"{url}{API}", timeout=120, trust_env=False).status_code == 401
