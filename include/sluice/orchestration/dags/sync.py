"""Build DAGs from pipeline files."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, BaseOperator, CronTriggerTimetable, DeltaTriggerTimetable, TriggerRule
from airflow.sdk.configuration import conf

from sluice.config.engine import RuleConfig
from sluice.config.folders import rules_folder
from sluice.config.loading import load_pipeline, yaml_files
from sluice.config.pipeline import PipelineConfig, parse_span
from sluice.config.problems import shown
from sluice.errors import ConfigError, SluiceError
from sluice.flows.stages import Stage, StageKind, display_name, pipeline_stages, rules_of
from sluice.orchestration import dag_docs
from sluice.orchestration.assets import outlet
from sluice.orchestration.dag_runs import SENSE, catchup_id_of, dag_id_of
from sluice.orchestration.dags import catchup
from sluice.orchestration.dags.common import (
    OWNER,
    START,
    bulk_place,
    bulk_share,
    captures_first,
    place_of,
    shares,
)
from sluice.orchestration.operators import (
    CaptureOperator,
    SenseOperator,
    StageOperator,
)
from sluice.orchestration.retry import TaskError, log_used_up_attempts, retries
from sluice.orchestration.timetable import SluiceTimetable

_FOR_EVER = 1_000_000
"""Retries of a task that waits for months: each killed worker uses one up, and so does a wake-up that Airflow loses
track of.
"""


def build_all(folder: Path, *, only: str | None = None) -> dict[str, DAG]:
    """Build the DAGs of every pipeline file in ``folder``, by DAG id.

    An invalid file gives a DAG ``sync__{file stem}.invalid`` and hides nothing else. It does not take the id of the
    pipeline's own DAG: runs that are open there must find their tasks again once the file is fixed.

    Args:
        only: build just this DAG if it can be found by its file's name (a task's process needs no other).
    """
    files = yaml_files(folder)
    if only is not None:
        likely = [path for path in files if only in {dag_id_of(path.stem), catchup_id_of(path.stem)}]
        built = _build(likely)
        if only in built:
            return {only: built[only]}
    return _build(files)


def _build(files: list[Path]) -> dict[str, DAG]:
    dags: dict[str, DAG] = {}
    first: dict[str, Path] = {}
    for path in files:
        try:
            pipeline = load_pipeline(path)
            if pipeline.pipeline in first:
                raise ConfigError(
                    f"two files are the pipeline {pipeline.pipeline!r}: {first[pipeline.pipeline].name} and "
                    f"{path.name}",
                    where=f"{path}:1",
                    hint="give one of them another name; two pipelines of one name would share one position",
                )
            file_dags = [build_sync_dag(pipeline, path)]
            if len(pipeline.targets) > 1:
                file_dags.append(build_catchup_dag(pipeline, path))
            first[pipeline.pipeline] = path
        except SluiceError as error:
            file_dags = [build_invalid_dag(path, error)]
        except Exception as error:  # an error of one file must not prevent the other DAGs
            file_dags = [build_invalid_dag(path, unexpected(error, path))]
        dags |= {dag.dag_id: dag for dag in file_dags}
    return dags


def build_sync_dag(pipeline: PipelineConfig, path: Path) -> DAG:
    """Build the DAG with a task per stage, in the order of :func:`~sluice.flows.stages.pipeline_stages`.

    With a task per stage it has one run at a time, which carries many batches. Otherwise it has as many runs as the
    pipeline's window. drain, load and ack depend on their own past, merge does not: batches are captured and delivered
    in order, and merged in parallel.
    """
    file = str(path.resolve())
    rules = rules_of(pipeline, rules_folder())
    stages = pipeline_stages(pipeline, rules)
    dag = DAG(
        dag_id=dag_id_of(pipeline.pipeline),
        description=pipeline.description
        or f"{pipeline.source.connection} to {', '.join(t.name for t in pipeline.targets)}",
        schedule=schedule_of(pipeline.schedule),
        start_date=START,
        catchup=False,
        max_active_runs=1 if pipeline.has_own_tasks else pipeline.window,
        max_active_tasks=workers_of(pipeline, stages),
        doc_md=dag_docs.pipeline_doc(pipeline, file, stages),
        tags={"sluice", "sync", *(f"to:{t.type}" for t in pipeline.targets)},
        owner_links=_owner_links(),
        default_args=_default_args(pipeline),
    )
    if pipeline.has_own_tasks:
        _side_by_side(dag, pipeline, file, stages, rules)
        return dag
    with dag:
        tasks: dict[str, BaseOperator] = {}
        for stage in stages:
            tasks[stage.name] = _task(pipeline, file, stage, rules)
            for name in stage.needs:
                tasks[name] >> tasks[stage.name]
    return dag


def _side_by_side(
    dag: DAG, pipeline: PipelineConfig, file: str, stages: Sequence[Stage], rules: Sequence[RuleConfig]
) -> None:
    """Add a task per stage that all start when ``sense`` has the run's first batch; the graph keeps the chain of the
    stages.

    ``sense`` waits until the run before it is over: one run at a time captures, and its stages work on several batches
    at a time.
    """
    with dag:
        sense = SenseOperator(
            task_id=SENSE,
            pipeline=file,
            depends_on_past=True,
            wait_for_downstream=True,
            doc_md=dag_docs.SENSE,
            **place_of(pipeline, StageKind.CAPTURE),
            **captures_first(pipeline),
        )
        tasks: dict[str, BaseOperator] = {}
        for stage in stages:
            params: dict[str, Any] = {
                "task_id": stage.name,
                "task_display_name": display_name(stage, rules),
                "pipeline": file,
                "doc_md": dag_docs.own_task_doc(stage, rules),
                **place_of(pipeline, stage.kind, stage.subject),
            }
            if stage.kind is StageKind.CAPTURE:
                task: BaseOperator = CaptureOperator(
                    execution_timeout=pipeline.run.max_time + pipeline.run.grace, **params, **captures_first(pipeline)
                )
            else:
                task = StageOperator(
                    stage=stage.name,
                    color=stage.type.color,
                    begins_in_triggerer=True,
                    trigger_rule=TriggerRule.ONE_SUCCESS,
                    execution_timeout=pipeline.run.max_time + timedelta(hours=2),
                    **params,
                    **_outlets(pipeline, stage),
                )
            [sense, *(tasks[name] for name in stage.needs)] >> task
            tasks[stage.name] = task


def build_catchup_dag(pipeline: PipelineConfig, path: Path) -> DAG:
    """Build the DAG with ``catch_up.{target}`` for each target: one run that stays open, and waits in the triggerer
    while none is quarantined.
    """
    file = str(path.resolve())
    retry = pipeline.retry
    with DAG(
        dag_id=catchup_id_of(pipeline.pipeline),
        description=f"Delivers to quarantined targets of {pipeline.pipeline} what the others already have",
        schedule="@continuous",
        start_date=START,
        catchup=False,
        max_active_runs=1,
        doc_md=catchup.DOC,
        tags={"sluice", "catchup"},
        owner_links=_owner_links(),
        default_args={
            **_default_args(pipeline),
            **bulk_share(pipeline),
            "on_failure_callback": None,
            "retries": _FOR_EVER,
        },
    ) as dag:
        for target in pipeline.targets:
            catchup.CatchUpOperator(
                task_id=f"catch_up.{target.name}",
                pipeline=file,
                target=target.name,
                delay=retry.delay,
                max_delay=retry.max_delay,
                **bulk_place(pipeline, StageKind.LOAD, target.name),
            )
    return dag


def invalid_dag_id(path: Path) -> str:
    """Return the id ``sync__{file stem}.invalid``; a stem that is too long or no valid id is made distinct by a
    digest.
    """
    plain = re.sub(r"[^A-Za-z0-9_.-]", "_", path.stem)[:100]
    if plain != path.stem:
        plain += f"-{hashlib.sha256(os.fsencode(path.stem)).hexdigest()[:8]}"
    return f"{dag_id_of(plain)}.invalid"


def unexpected(error: Exception, path: Path) -> ConfigError:
    """Wrap an unforeseen exception as an error of that file."""
    return ConfigError(
        f"no DAG can be made of it: {type(error).__name__}: {shown(str(error))[:500]}", where=f"{shown(str(path))}:1"
    )


def build_invalid_dag(path: Path, error: SluiceError) -> DAG:
    """Build a DAG that shows what is wrong with a pipeline file: in its documentation, and in its one task, which fails
    with it.
    """
    text, name = shown(str(error)), shown(path.name)
    with DAG(
        dag_id=invalid_dag_id(path),
        description=f"{name} is not a valid pipeline file",
        schedule="@once",
        start_date=START,
        catchup=False,
        doc_md=f"**`{shown(str(path))}` is not a valid pipeline file.** Nothing of it runs until it is "
        f"corrected.\n\n```\n{text}\n```",
        tags={"sluice", "invalid"},
        owner_links=_owner_links(),
        default_args={"owner": OWNER},
    ) as dag:
        InvalidPipelineOperator(task_id="read_pipeline_file", pipeline=str(path), retries=0)
    return dag


class InvalidPipelineOperator(BaseOperator):  # type: ignore[misc]
    """Fails with the current error of the pipeline file."""

    ui_color = "#fadbd8"

    def __init__(self, *, pipeline: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pipeline = pipeline

    def execute(self, context: Any) -> None:
        """Fail with the file's error, unless it is valid by now."""
        try:
            load_pipeline(Path(self.pipeline))
        except SluiceError as error:
            raise TaskError.of(error) from None
        self.log.info("the file is valid now; its DAG takes over when the DAG processor next reads it")
        return


def schedule_of(text: str) -> Any:
    """Convert ``continuous``, a cron expression or an interval (``30s``) to a timetable. Cron runs in UTC."""
    if text == "continuous":
        return SluiceTimetable()
    if len(text.split()) == 5:
        return CronTriggerTimetable(text, timezone="UTC")
    return DeltaTriggerTimetable(parse_span(text))


def _task(pipeline: PipelineConfig, file: str, stage: Stage, rules: Sequence[RuleConfig]) -> BaseOperator:
    """Build the task of a stage, as the pipeline configures it."""
    given: dict[str, Any] = {
        "task_id": stage.name,
        "task_display_name": display_name(stage, rules),
        "doc_md": dag_docs.stage_doc(stage, pipeline, rules),
        "depends_on_past": stage.type.is_serial,
        **place_of(pipeline, stage.kind, stage.subject),
    }
    match stage.kind:
        case StageKind.CAPTURE:
            longest = pipeline.run.max_time + pipeline.run.grace
            given |= {"waits": pipeline.schedule == "continuous", **captures_first(pipeline)}
            return SenseOperator(pipeline=file, delivers=True, execution_timeout=longest, **given)
        case StageKind.ACKNOWLEDGE:
            given |= {"keeps_open": True, "trigger_rule": TriggerRule.NONE_SKIPPED, **_outlets(pipeline, stage)}
        case _ if pipeline.spark.mode == "submit":
            from sluice.orchestration.submit import submit

            return submit(stage, pipeline=pipeline, path=file, **given)
    longest = timedelta(hours=2)
    return StageOperator(pipeline=file, stage=stage.name, color=stage.type.color, execution_timeout=longest, **given)


def _outlets(pipeline: PipelineConfig, stage: Stage) -> dict[str, Any]:
    """Return the outlet of the task that acknowledges a target: the assets of the target's tables."""
    if not pipeline.assets or stage.kind is not StageKind.ACKNOWLEDGE:
        return {}
    return {"outlets": [outlet(pipeline.pipeline, stage.subject)]}


def _default_args(pipeline: PipelineConfig) -> dict[str, Any]:
    retry = pipeline.retry
    return {
        "owner": OWNER,
        **retries(retry.attempts, retry.delay, retry.max_delay),
        "on_failure_callback": log_used_up_attempts,
        **shares(pipeline.workers.pool, pipeline.workers.priority),
    }


def workers_of(pipeline: PipelineConfig, stages: Sequence[Stage]) -> int:
    """Return how many tasks of the sync DAG may run at the same time.

    With a backlog that is one per run of the window and a load per target; with a task per stage all of a run.
    """
    at_most = pipeline.workers.at_most
    if at_most != "auto":
        return at_most
    return len(stages) + 1 if pipeline.has_own_tasks else pipeline.window + len(pipeline.targets)


def _owner_links() -> dict[str, str]:
    base = conf.get("api", "base_url", fallback="").rstrip("/")
    return {OWNER: f"{base}/plugin/sluice"} if base.startswith("http") else {}
