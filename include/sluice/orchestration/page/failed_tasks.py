"""The failed tasks of a pipeline's open runs, with the message of their log and the links that help."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote, urlencode

from fastapi import HTTPException

from sluice.orchestration.page.airflow_self import AirflowSelf, runs_path

MOST = 5
"""Failed tasks that are shown."""

_STATES = ("failed", "up_for_retry", "upstream_failed")
_SHOWN = ("failed", "up_for_retry")
_STARTS_IN = re.compile(r"starts by itself in ([\d.]+) s")

_messages: dict[tuple[str, str, str, int], tuple[str, str | None]] = {}
"""(DAG, run, task, attempt) -> (message, when the next attempt starts); an attempt that ended says the same forever."""

_KEPT_MESSAGES = 500


async def failed_tasks(airflow: AirflowSelf, dag_id: str, window: int) -> list[dict[str, Any]]:
    """Return the failed tasks of the open runs, oldest run first, at most :data:`MOST`.

    A run is open until a later one succeeded. ``window``: runs that are open at a time.
    """
    tasks = [task for task in await _tasks(airflow, dag_id, window) if task["state"] in _SHOWN]
    return list(await asyncio.gather(*(_described(airflow, dag_id, task) for task in tasks[:MOST])))


async def clear_failed(airflow: AirflowSelf, dag_id: str, window: int) -> list[str]:
    """Clear the failed tasks of the open runs, and the tasks after them; returns a sentence for each run."""
    by_run: dict[str, list[str]] = {}
    for task in await _tasks(airflow, dag_id, window):
        by_run.setdefault(task["dag_run_id"], []).append(task["task_id"])
    steps = []
    for run, names in by_run.items():
        body = {
            "dry_run": False,
            "dag_run_id": run,
            "task_ids": names,
            "include_downstream": True,
            "only_failed": False,
            "reset_dag_runs": True,
        }
        await airflow.call("POST", f"/dags/{quote(dag_id, safe='')}/clearTaskInstances", body)
        steps.append(f"cleared in run {run}: {', '.join(names)}")
    return steps or ["no task of an open run has failed"]


async def _tasks(airflow: AirflowSelf, dag_id: str, window: int) -> Sequence[Mapping[str, Any]]:
    """Return the failed task instances of the open runs, oldest run first.

    A run by hand has no logical date, so that the time after which a run may start tells their order.
    """
    query = urlencode({"order_by": "-run_after", "limit": window + 5})
    runs = (await airflow.call("GET", f"{runs_path(dag_id)}?{query}"))["dag_runs"]
    open_count = next((i for i, run in enumerate(runs) if run["state"] == "success"), len(runs))
    order = [run["dag_run_id"] for run in reversed(runs[:open_count])]
    if not order:
        return []
    task_query = urlencode([*(("state", state) for state in _STATES), ("limit", 100)])
    instances = (await airflow.call("GET", f"{runs_path(dag_id, '~')}/taskInstances?{task_query}"))["task_instances"]
    of_open_runs = [instance for instance in instances if instance["dag_run_id"] in order]
    return sorted(of_open_runs, key=lambda instance: order.index(instance["dag_run_id"]))


async def _described(airflow: AirflowSelf, dag_id: str, task: Mapping[str, Any]) -> dict[str, Any]:
    attempt = max(task["try_number"] - (task["state"] == "up_for_retry"), 1)
    key = dag_id, task["dag_run_id"], task["task_id"], attempt
    if key not in _messages:
        if len(_messages) >= _KEPT_MESSAGES:
            _messages.clear()
        _messages[key] = await _message(airflow, *key)
    message, next_at = _messages[key]
    return {
        "dag_id": dag_id,
        "run_id": task["dag_run_id"],
        "task_id": task["task_id"],
        "state": task["state"],
        "attempt": attempt,
        "host": task.get("hostname") or "",
        "message": message,
        "next_at": next_at if task["state"] == "up_for_retry" else None,
    }


async def _message(airflow: AirflowSelf, dag_id: str, run: str, task: str, attempt: int) -> tuple[str, str | None]:
    """Return the error of an attempt and when the next one starts, from its log; ("", None) if that cannot be read."""
    path = f"{runs_path(dag_id, run)}/taskInstances/{quote(task, safe='')}/logs/{attempt}?full_content=true"
    try:
        content = (await airflow.call("GET", path))["content"]
    except (HTTPException, KeyError, TypeError):
        return "", None
    lines = [line for line in reversed(content) if isinstance(line, dict)] if isinstance(content, list) else []
    failed = next((line for line in lines if line.get("error_detail")), None)
    message = str(failed["error_detail"][0].get("exc_value", "")) if failed else ""
    for line in lines:
        match = _STARTS_IN.search(str(line.get("reason") or ""))
        if match and line.get("timestamp"):
            logged_at = datetime.fromisoformat(str(line["timestamp"]).replace("Z", "+00:00"))
            return message, (logged_at + timedelta(seconds=float(match[1]))).isoformat()
    return message, None
