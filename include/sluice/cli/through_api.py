"""Act through the API of the operator's page (option ``--api``), where ZooKeeper cannot be reached from here."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from sluice.errors import ConfigError, CoordinationUnavailable

if TYPE_CHECKING:
    import httpx

    from sluice.operations.control import ActionPlan

TOKEN_VARIABLE = "SLUICE_API_TOKEN"  # noqa: S105 - the name of the variable
"""The environment variable with the token: an argument would be seen in the list of processes."""

REACHED = frozenset({"pause", "resume", "restart", "rollback", "skip", "redeliver", "seek", "audit"})
"""Commands that can go through the API."""

LOCAL = frozenset({"rules", "schema", "stack", "targets"})
"""Commands that need no ZooKeeper, and so run here as always."""

_CONNECT_S, _ANSWER_S = 10.0, 90.0
"""Seconds for a connection and for an answer; the API itself gives up an action after 60."""

_chosen = ""


def choose(url: str, command: str) -> None:
    """Send the command to the API at ``url``; "" sends it to ZooKeeper. Raises ConfigError if it cannot go there."""
    global _chosen
    _chosen = url
    if not url or command in LOCAL:
        return
    if command not in REACHED:
        raise ConfigError(
            f"`sluice {command}` cannot go through the API of the page",
            where=url,
            hint="run it without --api and SLUICE_API where ZooKeeper can be reached, or use the page; through the API "
            f"go {', '.join(sorted(REACHED))}",
        )
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.username or parts.query:
        raise ConfigError(
            "--api is not the URL of an Airflow API server",
            hint="for example https://airflow.example.com, without a login; the token goes into SLUICE_API_TOKEN",
        )


def page_api() -> PageApi | None:
    """Return the API that this command goes through, None if it asks ZooKeeper. Raises ConfigError without a token."""
    if not _chosen:
        return None
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if not token:
        raise ConfigError(
            f"there is no token for the API: {TOKEN_VARIABLE} is not set",
            where=_chosen,
            hint="`POST /auth/token` of Airflow gives one",
        )
    return PageApi(_chosen, token)


class PageApi:
    """The API of the operator's page of one Airflow."""

    def __init__(self, url: str, token: str) -> None:
        """Connect to nothing yet. ``url``: of Airflow, of the page or of its API."""
        base = url.rstrip("/").removesuffix("/api/v1").removesuffix("/sluice")
        self._url = f"{base}/sluice/api/v1"
        self._token = token

    def act(self, pipeline: str, action: str, order: dict[str, Any], *, dry_run: bool = False) -> ActionPlan:
        """Carry an action out, or return its plan. It is confirmed by the pipeline's name, as on the page.

        Raises SluiceError.
        """
        from sluice.operations.control import ActionPlan

        body = {name: value for name, value in order.items() if value is not None}
        path = f"{self._pipeline(pipeline)}/actions/{action}"
        if dry_run:
            found = self._call("POST", f"{path}/plan", f"asking for the plan of {action}", body)
        else:
            found = self._call("POST", path, f"{action} of {pipeline}", {**body, "confirm": pipeline})
        return ActionPlan(action, tuple(found["steps"]))

    def audit(self, pipeline: str) -> list[dict[str, Any]]:
        """Return what people did to a pipeline, oldest first. Raises SluiceError."""
        found = self._call("GET", f"{self._pipeline(pipeline)}/audit?most=500", f"reading the audit of {pipeline}")
        return list(found["entries"])[::-1]

    def _pipeline(self, name: str) -> str:
        return f"/pipelines/{quote(name, safe='')}"

    def _call(self, method: str, path: str, doing: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        import httpx

        try:
            answer = httpx.request(
                method,
                self._url + path,
                json=body,
                headers={"Authorization": f"Bearer {self._token}"},
                timeout=httpx.Timeout(_ANSWER_S, connect=_CONNECT_S),
            )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            maybe = "" if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout) else "; it may still be done"
            raise CoordinationUnavailable(
                f"{doing}: the API does not answer ({type(error).__name__}){maybe}",
                where=self._url,
                hint="is Airflow's API server running there? `sluice audit PIPELINE` tells what was done",
            ) from None
        return self._read(answer, doing)

    def _read(self, answer: httpx.Response, doing: str) -> dict[str, Any]:
        """Return the JSON object of a good answer. Raises SluiceError for any other."""
        try:
            found = answer.json()
        except ValueError:
            found = None
        if answer.status_code == 200 and isinstance(found, dict):
            return found
        said = found.get("detail") if isinstance(found, dict) else None
        why = said if isinstance(said, str) else f"HTTP {answer.status_code}" + (f" {said}" if said else "")
        if answer.status_code in {502, 503, 504}:
            raise CoordinationUnavailable(f"{doing}: {why}", where=self._url, hint="try it again")
        hints = {
            401: f"the token in {TOKEN_VARIABLE} is wrong or has expired: `POST /auth/token` of Airflow gives one",
            403: "the token's user lacks the right in Airflow to change the pipeline's DAG",
            404: "is it the URL of an Airflow with Sluice's page, and may the token's user see the pipeline?",
        }
        raise ConfigError(
            f"{doing}: {why}", where=self._url, hint=hints.get(answer.status_code, "see docs/page.md, API")
        )


__all__ = ["LOCAL", "REACHED", "TOKEN_VARIABLE", "PageApi", "choose", "page_api"]
