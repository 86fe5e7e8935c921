"""The ``complete__{pipeline}`` DAG: a run for each time of ``complete:`` in a pipeline file, which tells of the tables
that hold all that was committed before it.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG

from sluice.config.pipeline import PipelineConfig
from sluice.errors import ConfigError
from sluice.orchestration.complete_tables import CompleteOperator, complete_outlet
from sluice.orchestration.dag_runs import complete_id_of
from sluice.orchestration.dags.common import OWNER, START, bulk_share
from sluice.orchestration.dags.forms import build_each
from sluice.orchestration.retry import retries
from sluice.orchestration.timetable import CompleteTimetable

_DOC = """A run for each time (`complete:` in the pipeline file). It is green when the tables hold **every change that was committed before the end of
the run's interval**, by the clock of `{source}`.

- `complete.TARGET` tells of each table as an event of the asset `complete+ADDRESS`, as soon as that is true, also where nothing changes.
- `late.TARGET` tells of tables that were being copied then, or lacked rows (dead letters), until the next run's time.

A task that waits says in its log which position the target has to reach."""  # noqa: E501

_FOR_EVER = 1_000_000


def build_all(folder: Path, *, only: str | None = None) -> dict[str, DAG]:
    """See :func:`sluice.orchestration.dags.forms.build_each`; pipelines that say no ``complete`` have no such DAG."""
    return build_each(folder, complete_id_of, build_complete_dag, only=only)


def build_complete_dag(pipeline: PipelineConfig, path: Path) -> DAG:
    """Build the DAG ``complete.{target} >> late.{target}``. Raises ConfigError without ``complete``."""
    if pipeline.complete is None:
        raise ConfigError("the pipeline file says no `complete`", where=str(path))
    file = str(path.resolve())
    with DAG(
        dag_id=complete_id_of(pipeline.pipeline),
        description=f"Tells when the tables of {pipeline.pipeline} are complete",
        schedule=CompleteTimetable(
            pipeline.complete.cron, pipeline.complete.timezone, partitioned=pipeline.complete.partitions
        ),
        start_date=START,
        catchup=False,
        max_active_runs=8,
        doc_md=_DOC.format(source=pipeline.source.connection),
        tags={"sluice", "complete"},
        default_args={
            "owner": OWNER,
            **bulk_share(pipeline),
            **retries(_FOR_EVER, timedelta(seconds=5), timedelta(minutes=1)),
        },
    ) as dag:
        for target in pipeline.targets:
            outlets = [complete_outlet(pipeline.pipeline, target.name)]
            tasks = [
                CompleteOperator(
                    task_id=f"{name}.{target.name}", pipeline=file, target=target.name, late=late, outlets=outlets
                )
                for name, late in (("complete", False), ("late", True))
            ]
            tasks[0] >> tasks[1]
    return dag
