"""The verbs that a worker does: the run of another DAG that each opens, by Airflow's own API."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from sluice.operations.verbs import orders
from sluice.orchestration.dag_runs import CONTROL_ID, backfill_id_of, verify_id_of

Run = tuple[str, dict[str, Any]]
"""The id of a DAG, and the fields of its form."""


def _check(action: str, pipeline: str, order: orders.Order) -> Run:
    reason = {"reason": order.reason} if order.reason else {}
    return CONTROL_ID, {"pipeline": pipeline, "action": action} | reason


def _verify(pipeline: str, order: orders.Verify) -> Run:
    repair = {"repair": True} if isinstance(order, orders.Repair) else {}
    return verify_id_of(pipeline), _filled(order) | repair


def _filled(order: orders.Order) -> dict[str, Any]:
    """Return the fields of a form that are filled in."""
    fields = order.model_dump(exclude={"reason", "confirm"}, exclude_none=True)
    return {name: value for name, value in fields.items() if value is not False and value != "" and value != []}


OPENS: dict[str, Callable[[str, Any], Run]] = {
    "check": partial(_check, "check"),
    "make-missing": partial(_check, "make-missing"),
    "dump-start": lambda pipeline, order: (backfill_id_of(pipeline), _filled(order)),
    "verify": _verify,
    "repair": _verify,
}
"""Verb -> (pipeline, order) -> the run."""


__all__ = ["OPENS"]
