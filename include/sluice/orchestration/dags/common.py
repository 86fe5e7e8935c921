"""The arguments that all DAG families share."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from airflow.sdk.configuration import conf

from sluice.config.pipeline import HIGHEST_PRIORITY, PipelineConfig
from sluice.errors import ConfigError

START = datetime(2024, 1, 1, tzinfo=UTC)
"""The start date, before any run; sync DAGs don't catch up, so it says nothing about what is delivered."""

OWNER = "sluice"


def shares(pool: str, priority: int) -> dict[str, Any]:
    """Return arguments for every task of a DAG.

    All have the same priority, so that the scheduler picks the run that has waited longest; see :func:`captures_first`.
    """
    return {"pool": pool, "priority_weight": priority, "weight_rule": "absolute"}


def captures_first(pipeline: PipelineConfig) -> dict[str, Any]:
    """Return the priority of the tasks that wait for changes and capture, above that of every other stage.

    One of them is all that a run needs: it does the stages of tasks that have no worker.
    """
    return {"priority_weight": HIGHEST_PRIORITY + pipeline.workers.priority}


def place_of(pipeline: PipelineConfig, stage: str, subject: str = "") -> dict[str, Any]:
    """Return the queue, pool and executor of a stage's task, as far as the pipeline file sets them
    (``workers.stages``).

    Raises ConfigError for an executor that this Airflow does not have: Airflow itself would leave the whole DAG as it
    was.
    """
    place = pipeline.workers.place(stage, subject)
    if "executor" in place:
        _require_executor(place["executor"], f"{stage}.{subject}" if subject else stage)
    return dict(place)


def bulk_place(pipeline: PipelineConfig, stage: str, subject: str = "") -> dict[str, Any]:
    """Return :func:`place_of` for deferrable work: it runs where the stage runs, but in the pool of such work."""
    return {key: value for key, value in place_of(pipeline, stage, subject).items() if key != "pool"}


def _require_executor(name: str, stage: str) -> None:
    from airflow.exceptions import UnknownExecutorException
    from airflow.executors.executor_loader import ExecutorLoader

    if conf.getboolean("core", "multi_team", fallback=False):
        return  # only Airflow knows the executors of a team
    try:
        ExecutorLoader.lookup_executor_name_by_str(name, validate_teams=False)
    except UnknownExecutorException:
        raise ConfigError(
            f"this Airflow has no executor {name!r}",
            where=f"workers.stages, {stage}",
            hint=f"[core] executor is {conf.get('core', 'executor', fallback='not set')!r}: add the executor there, "
            "or name one of these",
        ) from None


def bulk_share(pipeline: PipelineConfig) -> dict[str, Any]:
    """Return :func:`shares` for deferrable work: copies, verifications, deliveries to quarantined targets."""
    return shares(pipeline.workers.bulk_pool, pipeline.workers.bulk_priority)
