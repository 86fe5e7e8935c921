"""Calls to this Airflow's own REST API, inside the process, with the rights of the user who asked.

A request passes through Airflow's own routes: its login, its rights, its audit log. No connection is opened and no
password is needed, and nothing but Airflow writes to Airflow's database.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import httpx
from fastapi import HTTPException, Request

from sluice.config.problems import shown

OUTER_APP = "sluice.airflow"
"""The key of the ASGI scope under which the plugin leaves Airflow's application."""

LIMIT_S = 15.0
"""Seconds that a request waits for Airflow's own answer."""
_AGAIN_S = 0.5
_UNDONE = "Database error"
"""The reason in an answer 500 of Airflow whose transaction was rolled back, as where SQLite was locked."""

_CARRIED = ("authorization", "cookie", "origin", "sec-fetch-site")


class AirflowSelf:
    """This Airflow's REST API as the user of ``request``."""

    def __init__(self, request: Request) -> None:
        self._app = request.scope.get(OUTER_APP)
        self._base = f"{request.url.scheme}://{request.headers.get('host') or 'airflow'}"
        self._headers = {name: request.headers[name] for name in _CARRIED if name in request.headers}

    async def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return the JSON answer to a request below ``/api/v2``, which is sent again after an error of its database.

        Raises an HTTP answer with Airflow's own words if it refuses, and 503 if it does not answer in time.
        """
        if self._app is None:
            raise HTTPException(503, "this page does not run inside Airflow's API server")
        transport = httpx.ASGITransport(app=self._app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url=self._base, headers=self._headers) as client:
            try:
                async with asyncio.timeout(LIMIT_S):
                    while True:
                        answer = await client.request(method, f"/api/v2{path}", json=body)
                        if answer.status_code != 500 or _UNDONE not in answer.text:
                            break
                        await asyncio.sleep(_AGAIN_S)
            except TimeoutError:
                raise HTTPException(503, f"Airflow does not answer {method} {path} in {LIMIT_S:.0f} s") from None
        if answer.is_error:
            raise HTTPException(answer.status_code, f"Airflow refuses {method} {path}: {_said(answer)}")
        return answer.json() if answer.content else None


def _said(answer: httpx.Response) -> str:
    try:
        detail = answer.json().get("detail", "")
    except (ValueError, AttributeError):
        detail = answer.text
    return shown(detail if isinstance(detail, str) else str(detail))[:500] or str(answer.status_code)


def runs_path(dag_id: str, run_id: str = "") -> str:
    """Return the path of a DAG's runs, or of one of them."""
    path = f"/dags/{quote(dag_id, safe='')}/dagRuns"
    return f"{path}/{quote(run_id, safe='~')}" if run_id else path
