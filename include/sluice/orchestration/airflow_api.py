"""Remove old runs of sync DAGs from Airflow's database, through its public REST API.

A busy pipeline opens a run every second or two: some 50,000 a day, each with a handful of task rows. A task has no
access to Airflow's database (since Airflow 3, by design) and ``airflow db clean`` needs it, so runs are removed in bulk
by the API, with a login that the operator configures as a connection.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlencode

import httpx

from sluice.config.connections import Endpoint, httpx_tls
from sluice.errors import ConfigError, RetryableError

_AT_ONCE = 100
"""Runs per request; the API's own limit for a page."""


@dataclass
class AirflowApi:
    """A client for the part of Airflow's REST API that removing runs needs.

    ``endpoint``: host, port, login, password, schema (http).
    """

    endpoint: Endpoint
    timeout_s: float = 60.0
    _token: str = field(default="", repr=False)

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return the JSON answer. Raises ConfigError for a refused login, RetryableError for every other failure."""
        has_token = bool(self._token)
        if not has_token:
            self._login()
        try:
            return self._send(method, f"/api/v2{path}", body)
        except ConfigError:  # the token may have expired
            if not has_token:
                raise
            self._login()
            return self._send(method, f"/api/v2{path}", body)

    def _login(self) -> None:
        self._token = ""
        login = {"username": self.endpoint.user, "password": self.endpoint.password}
        self._token = self._send("POST", "/auth/token", login)["access_token"]

    def _send(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        host = (
            self.endpoint.host
            if "://" in self.endpoint.host
            else f"{self.endpoint.schema or 'http'}://{self.endpoint.host}"
        )
        url = f"{host}:{self.endpoint.port}{path}" if self.endpoint.port else f"{host}{path}"
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        try:
            answer = httpx.request(method, url, json=body, headers=headers, timeout=self.timeout_s, verify=httpx_tls())
            if answer.status_code in {401, 403}:
                raise ConfigError(
                    f"Airflow's API refused the login of connection {self.endpoint.connection_id!r} "
                    f"({answer.status_code})",
                    where=self.endpoint.address,
                    hint="the connection needs a user who may delete DAG runs",
                )
            if answer.is_error:
                raise RetryableError(f"Airflow's API answered {answer.status_code} to {method} {path}")
            return answer.json()
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise RetryableError(f"Airflow's API does not answer: {error}", where=self.endpoint.address) from None


def tagged_dags(api: AirflowApi, tag: str) -> list[str]:
    """Return the ids of all of Sluice's DAGs with this tag, however many there are."""
    dag_ids: list[str] = []
    while True:
        page_of = [("limit", _AT_ONCE), ("offset", len(dag_ids)), ("order_by", "dag_id")]
        query = urlencode([("tags", "sluice"), ("tags", tag), ("tags_match_mode", "all"), *page_of])
        page = [dag["dag_id"] for dag in api.call("GET", f"/dags?{query}")["dags"]]
        dag_ids += page
        if len(page) < _AT_ONCE:
            return dag_ids


def remove_runs(
    api: AirflowApi,
    dag_id: str,
    *,
    before: datetime,
    idle_before: datetime | None = None,
    seconds: float = 600.0,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Remove the ended runs of ``dag_id`` that ended before that time; returns how many.

    Runs that found nothing (their drain was skipped: a clock starts them) go when they ended before ``idle_before``.
    Open runs stay, whatever their age. Stops after ``seconds``; the next call goes on.
    """
    until, removed = clock() + seconds, 0
    for pages in (_idle(api, dag_id, idle_before) if idle_before else iter(()), _ended(api, dag_id, before)):
        for ids in pages:
            action = {"action": "delete", "entities": ids, "action_on_non_existence": "skip"}
            answer = api.call("PATCH", f"/dags/{quote(dag_id, safe='')}/dagRuns", {"actions": [action]})
            deleted = len((answer.get("delete") or {}).get("success", []))
            removed += deleted
            if clock() > until:
                return removed
            if deleted < len(ids):
                break
    return removed


def count_runs(api: AirflowApi, dag_id: str, *, before: datetime, idle_before: datetime) -> int:
    """Return how many runs :func:`remove_runs` would remove, given the time.

    An old run that found nothing counts once.
    """
    ended, idle, both = (
        int(api.call("GET", path)["total_entries"])
        for path in (_ended_path(dag_id, before), _idle_path(dag_id, idle_before), _idle_path(dag_id, before))
    )
    return ended + idle - both


def _idle_path(dag_id: str, before: datetime) -> str:
    query = urlencode([
        ("task_id", "drain"),
        ("state", "skipped"),
        ("end_date_lte", before.isoformat()),
        ("order_by", "id"),
        ("limit", _AT_ONCE),
    ])
    return f"/dags/{quote(dag_id, safe='')}/dagRuns/~/taskInstances?{query}"


def _idle(api: AirflowApi, dag_id: str, before: datetime) -> Iterator[list[str]]:
    """Yield pages of ids of runs whose drain found nothing; a page is requested after the earlier ones are removed."""
    path = _idle_path(dag_id, before)
    while True:
        runs = [task["dag_run_id"] for task in api.call("GET", path)["task_instances"]]
        if not runs:
            return
        yield runs


def _ended_path(dag_id: str, before: datetime) -> str:
    query = urlencode([
        ("state", "success"),
        ("state", "failed"),
        ("end_date_lte", before.isoformat()),
        ("order_by", "id"),
        ("limit", _AT_ONCE),
    ])
    return f"/dags/{quote(dag_id, safe='')}/dagRuns?{query}"


def _ended(api: AirflowApi, dag_id: str, before: datetime) -> Iterator[list[str]]:
    """Yield pages of run ids; a page is requested after the earlier ones are removed."""
    path = _ended_path(dag_id, before)
    while True:
        runs = api.call("GET", path)["dag_runs"]
        if not runs:
            return
        yield [run["dag_run_id"] for run in runs]
