"""The ``retention`` DAG: what nobody needs any more is removed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, BaseOperator
from airflow.sdk.exceptions import AirflowSkipException

from sluice.errors import ConfigError
from sluice.orchestration.factory import OWNER, START, dag_id_of, invalid_dag_id, pipeline_files
from sluice.orchestration.failures import SluiceRetryPolicy, boundary
from sluice.orchestration.operators import SluiceOperator
from sluice.orchestration.running import open_runtime

API_CONNECTION = "sluice_airflow_api"
KEEP_RUNS = timedelta(days=2)
KEEP_IDLE_RUNS = timedelta(hours=1)

_DOC = f"""Every hour:

- `segments.*` removes the batches of one pipeline that every target has acknowledged and that are older than its
  `capture.segments.retain`.
- `runs` removes runs of sync DAGs from Airflow's own database that ended more than {KEEP_RUNS.days} days ago, and those that found nothing
  to do (a clock starts them) after an hour. It uses
  Airflow's REST API and needs a connection **`{API_CONNECTION}`** (type http: host, port, login and password of a user
  who may delete runs); without one it is skipped, and Airflow keeps all runs."""


class PruneSegmentsOperator(SluiceOperator):
    """Removes acknowledged batches past their retention from one pipeline's store."""

    def execute(self, context: Any) -> dict[str, Any]:
        with boundary():
            from sluice.flows.retention import prune

            outcome = prune(open_runtime(self.pipeline)).to_json()
        self.log.info("pruned %s", outcome)
        return {"removed": len(outcome["removed"]), "kept": outcome["kept"]}


class PruneRunsOperator(BaseOperator):  # type: ignore[misc]
    """Removes ended runs of sync DAGs that are older than ``keep``."""

    def __init__(self, *, keep: timedelta = KEEP_RUNS, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.keep = keep

    def execute(self, context: Any) -> Mapping[str, int]:
        from sluice.orchestration.connections import from_airflow
        from sluice.orchestration.history import AirflowApi, remove_runs, sync_dags

        try:
            endpoint = from_airflow(API_CONNECTION)
        except ConfigError as error:
            raise AirflowSkipException(f"Airflow keeps all runs: {error}") from None
        with boundary():
            api = AirflowApi(endpoint)
            now = datetime.now(UTC)
            before, idle_before = now - self.keep, now - KEEP_IDLE_RUNS
            removed = {d: remove_runs(api, d, before=before, idle_before=idle_before) for d in sync_dags(api)}
        self.log.info("removed runs %s", removed)
        return removed


def build_retention_dag(folder: Path) -> DAG:
    """One ``segments.{file stem}`` a pipeline file, and ``runs``."""
    with DAG(
        dag_id="retention",
        description="Removes acknowledged batches past their retention, and old runs of sync DAGs",
        schedule="17 * * * *",
        start_date=START,
        catchup=False,
        max_active_runs=1,
        doc_md=_DOC,
        tags={"sluice", "upkeep"},
        default_args={
            "owner": OWNER,
            "retries": 3,
            "retry_delay": timedelta(seconds=30),
            "retry_policy": SluiceRetryPolicy(timedelta(seconds=30), timedelta(minutes=5)),
            "execution_timeout": timedelta(minutes=50),
        },
    ) as dag:
        for path in pipeline_files(folder):
            name = invalid_dag_id(path).removeprefix(dag_id_of("")).removesuffix(".invalid")
            PruneSegmentsOperator(task_id=f"segments.{name}", pipeline=os.path.realpath(path))
        PruneRunsOperator(task_id="runs")
    return dag
