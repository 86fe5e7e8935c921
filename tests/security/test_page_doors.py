"""Another site, and a name that is more than a name, as the attackers: every route of the page's API."""

# ruff: noqa: F811 - a fixture that is imported is an argument as well

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from sluice.config.loading import load_pipeline
from sluice.errors import ConfigError
from tests.dags.conftest import PIPELINE, pipelines, write_pipeline  # noqa: F401 - fixtures
from tests.dags.test_page_api import AsRole, api_routes, app, as_role, no_servers, shared_app  # noqa: F401 - fixtures

READS = {"GET", "HEAD", "OPTIONS"}


def test_no_route_that_changes_something_takes_a_request_of_another_site(
    app: FastAPI,
    as_role: AsRole,
    no_servers: None,
) -> None:
    client = as_role("ADMIN")
    routes = [(method, path) for method, path in api_routes(app) if method not in READS]
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


@pytest.mark.parametrize(
    "name",
    [
        "../etc",
        "a/b",
        "..",
        "",
        "a b",
        "\\u202egnp",
        "\\u2066a\\u2069",
        "a\\u0000",
        "a\\x1b[2J",
        "a%2e%2e",
        "a'b",
        "a<b>",
    ],
)
def test_a_name_is_a_name(tmp_path: Path, name: str) -> None:
    """A pipeline's and a target's name become DAG ids, folders, znodes and addresses."""
    path = tmp_path / "shop.yaml"
    for place in ("pipeline: shop", "name: reporting"):
        text = PIPELINE.format(name="shop", schedule="continuous", mode="connect")
        assert place in text
        path.write_text(text.replace(place, f'{place.split(":")[0]}: "{name}"', 1))
        with pytest.raises(ConfigError, match=r"shop\.yaml"):
            load_pipeline(path)


@pytest.mark.parametrize("name", ["..%2f..%2fetc%2fpasswd", "%2e%2e", "..\\..\\etc", "shop%00", "%E2%80%AEpohs"])
def test_an_address_leads_to_no_file(app: FastAPI, as_role: AsRole, name: str) -> None:
    client = as_role("ADMIN")
    for place in ("/static/{}", "/api/v1/pipelines/{}", "/{}"):
        answer = client.get(place.format(name))
        assert answer.status_code in {200, 404}, answer.text
        assert "root:" not in answer.text
        if answer.status_code == 200:  # the page itself, which asks the API
            assert "<!doctype html>" in answer.text.lower()
