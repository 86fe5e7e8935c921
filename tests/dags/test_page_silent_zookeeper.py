"""The page while ZooKeeper stands still (SIGSTOP): it accepts connections and answers nothing."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from devstack.zookeeper import ZooKeeperServer
from sluice.orchestration.page import reads
from tests.dags.conftest import WritePipeline

pytestmark = pytest.mark.full

STATIC = Path(__file__).resolve().parents[2] / "include" / "sluice" / "orchestration" / "static"
LIMIT_S = 60.0
"""Longer than the deadline of any read; shorter than that of an action, which may still be done."""

READS = ("", "/alerts", "/audit", "/dumps", "/dumps/latest", "/batches?run=r1", "/tables")


@pytest.fixture
def standing(tmp_path: Path, write_pipeline: WritePipeline, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """(new application, the server): two applications are two workers of an API server."""
    from airflow.api_fastapi.core_api import security

    from sluice.orchestration.page import access
    from sluice.orchestration.web import create_app

    manager = SimpleNamespace(is_authorized_view=lambda **_: True, is_authorized_dag=lambda **_: True)
    monkeypatch.setattr(security, "get_auth_manager", lambda: manager)
    monkeypatch.setattr(access, "get_auth_manager", lambda: manager)
    path = write_pipeline("shop")
    uri = (tmp_path / "store").as_uri()
    path.write_text(path.read_text().replace("capture: {", f"capture: {{segments: {{uri: '{uri}'}}, "))
    for name in ("shop_mysql", "reporting_mysql", "archive_mysql"):
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", "mysql://u:p@127.0.0.1:9/")
    with ZooKeeperServer(tmp_path / "zookeeper") as server:
        monkeypatch.setenv("AIRFLOW_CONN_ZOOKEEPER_DEFAULT", server.connection_json())

        def client() -> TestClient:
            page = create_app(tmp_path / "pipelines", STATIC)
            page.dependency_overrides[security.get_user] = lambda: SimpleNamespace(get_name=lambda: "anna")
            return TestClient(page)

        try:
            yield client, server
        finally:
            reads.looks().close()


def test_every_read_answers_and_names_what_is_silent(standing: Any) -> None:
    new_client, server = standing
    clients = new_client(), new_client()
    base = "/api/v1/pipelines/shop"
    for client in clients:
        assert client.get(f"{base}/alerts").status_code == 200
    os.kill(server.handle.pid, signal.SIGSTOP)
    try:

        def ask(number: int, path: str) -> tuple[str, Any, float]:
            began = time.monotonic()
            answer = clients[number].get(base + path)
            return path, answer, time.monotonic() - began

        asked = [(number, path) for number in (0, 1) for path in READS]
        with ThreadPoolExecutor(len(asked)) as pool:
            answers = list(pool.map(lambda one: ask(*one), asked))
        listed = clients[0].get("/api/v1/pipelines")
    finally:
        os.kill(server.handle.pid, signal.SIGCONT)
    assert listed.status_code == 200
    for path, answer, seconds in answers:
        assert seconds < LIMIT_S, (path, seconds)
        if answer.status_code == 200:  # what was kept, or a status that says it
            continue
        assert answer.status_code == 503, (path, answer.text)
        assert "shop" in answer.text or "ZooKeeper" in answer.text, (path, answer.text)
    assert any(answer.status_code == 503 for _, answer, _ in answers), [(p, a.status_code) for p, a, _ in answers]
    assert clients[0].get(f"{base}/alerts").status_code in {200, 503}
