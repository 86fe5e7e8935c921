"""Calls of the page to Airflow's own API, whose database may be locked for a moment."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fastapi import FastAPI, HTTPException, Request

from sluice.orchestration.page import airflow_self
from sluice.orchestration.page.airflow_self import OUTER_APP, AirflowSelf

LOCKED = {"reason": "Database error", "statement": "hidden", "orig_error": "hidden", "message": "Serious error"}


def airflow(failures: list[Any]) -> tuple[FastAPI, list[dict[str, Any]]]:
    """Return an Airflow that answers 500 with each of ``failures`` first, and the runs that it opened."""
    app, opened = FastAPI(), []

    @app.post("/api/v2/dags/{dag}/dagRuns")
    async def trigger(dag: str, request: Request) -> dict[str, Any]:
        if failures:
            raise HTTPException(500, failures.pop(0))
        opened.append({"dag": dag, **await request.json()})
        return {"dag_run_id": "first"}

    return app, opened


def trigger(app: FastAPI) -> Any:
    scope = {"type": "http", "scheme": "http", "headers": [], "server": ("airflow", 80), "path": "/", OUTER_APP: app}
    return asyncio.run(AirflowSelf(Request(scope)).call("POST", "/dags/backfill__shop/dagRuns", {"conf": {}}))


def test_an_error_of_its_database_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(airflow_self, "_AGAIN_S", 0.01)
    app, opened = airflow([LOCKED, LOCKED])
    assert trigger(app) == {"dag_run_id": "first"}
    assert opened == [{"dag": "backfill__shop", "conf": {}}]


def test_every_other_error_is_shown_at_once() -> None:
    app, opened = airflow(["the DAG is broken"] * 2)
    with pytest.raises(HTTPException, match="the DAG is broken"):
        trigger(app)
    assert opened == []


def test_a_database_that_stays_locked_is_no_endless_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(airflow_self, "LIMIT_S", 0.2)
    monkeypatch.setattr(airflow_self, "_AGAIN_S", 0.01)
    with pytest.raises(HTTPException, match="does not answer POST"):
        trigger(airflow([LOCKED] * 1000)[0])
