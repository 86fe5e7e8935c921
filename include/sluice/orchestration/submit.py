"""``spark: {mode: submit}``: the Spark stages as spark-submit jobs, by Airflow's own operator."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk.exceptions import AirflowException, AirflowSkipException

from sluice.errors import SluiceError
from sluice.flows.stages import StageKind
from sluice.flows.submit import LATER, TERMINAL
from sluice.model.client_packages import shared_folder
from sluice.orchestration.retry import TaskError, boundary
from sluice.orchestration.runtime import open_runtime, owner
from sluice.orchestration.triggers import PermitTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

    from sluice.config.connections import Endpoint
    from sluice.config.pipeline import PipelineConfig
    from sluice.flows.stages import Stage


BATCH = "{{ ti.xcom_pull(task_ids='drain') }}"
"""The number of the batch that this run's drain captured, as a template.

As a template it is shown among a task's rendered fields, and draws no edge from drain to every task in the graph.
"""


class SubmitOperator(SparkSubmitOperator):  # type: ignore[misc]
    """Runs ``spark_jobs/{stage}.py`` with the pipeline file, the target or rule if there is one, and the batch number.

    The job resolves the pipeline's connections from its environment. spark-submit inherits them from this task, and so
    does a driver in client mode. A driver in cluster mode has those that its cluster gives it: ``env_vars`` would write
    them into ``--conf``, which the process list and Spark's UI show. The job's log holds the error, in one message;
    this task only says that it is there.
    """

    def __init__(
        self, *, stage: str, pipeline: str, target: str | None = None, rule: str | None = None, **kwargs: Any
    ) -> None:
        which = ["--target", target] if target else ["--rule", rule] if rule else []
        arguments = ["--pipeline", pipeline, "--batch", BATCH, *which]
        super().__init__(
            application=str(shared_folder("spark_jobs") / f"{stage}.py"),
            application_args=arguments,
            name=f"sluice {stage} {target or rule or ''}".strip(),
            durable=False,  # a stage may be repeated, and its job ends with the task
            **kwargs,
        )
        self.stage = stage
        self.pipeline = pipeline
        self.target = target

    def execute(self, context: Context) -> None:
        """Submit the job, wait for its end, and raise what its exit code means."""
        with boundary():
            connections = _connections(self.pipeline)
        self.env_vars: dict[str, str] = {"SLUICE_OWNER": owner()}  # the job works for this installation
        self._wait_while_paused()
        try:
            with _inherited(connections):
                super().execute(context)
        except AirflowException as error:
            self.log.debug("trace", exc_info=True)
            code = _exit_code(str(error))
            if code == LATER:
                raise AirflowSkipException(
                    f"{self.target} gets this batch later: it is quarantined, and catch_up.{self.target} delivers it "
                    "when it can; or the batch waits to be written with others (commit_every). The job's output says "
                    "which"
                ) from None
            self._wait_while_paused()
            raise TaskError(
                f"spark-submit of {self.stage} failed{f' ({error})' if code is None else f' with code {code}'}; the "
                "cause is in the log above, or in the driver's own log where deploy-mode is cluster",
                kind="SparkSubmit",
                may_pass=code != TERMINAL,
            ) from None

    def woken(self, context: Context, event: Any = None) -> None:
        """Continue, because the pipeline is no longer paused."""
        self.execute(context)

    def _wait_while_paused(self) -> None:
        """Wait in the triggerer while the pipeline is paused, without using up an attempt: before a job is started, and
        after a pause ended one.
        """
        try:
            with open_runtime(self.pipeline).state(connect_timeout_s=5) as state:
                paused = not state.pause_switch.read().open
        except SluiceError as error:  # the job reports it, or has reported something more important
            self.log.debug("cannot ask whether the pipeline is paused: %s", error)
            return
        if paused:
            self.log.info("waiting: the pipeline is paused")
            self.defer(trigger=PermitTrigger(self.pipeline), method_name="woken")


def submit(stage: Stage, *, pipeline: PipelineConfig, path: str, **kwargs: Any) -> SubmitOperator:
    """Return the spark-submit task of a stage: a merge, a rule or a load."""
    return SubmitOperator(
        stage=str(stage.kind),
        pipeline=path,
        target=stage.subject if stage.kind is StageKind.LOAD else None,
        rule=stage.subject if stage.kind is StageKind.RULE else None,
        conn_id=pipeline.spark.connection,
        execution_timeout=timedelta(hours=2),
        **kwargs,
    )


def _exit_code(message: str) -> int | None:
    match = re.search(r"Error code is: (\d+)", message)
    return int(match[1]) if match else None


@contextmanager
def _inherited(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables that processes started in the block inherit."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _connections(path: str) -> dict[str, str]:
    """Return ``AIRFLOW_CONN_*`` for all connections of the pipeline, for a process that has no Airflow."""
    from sluice.config.connections import ENVIRONMENT
    from sluice.config.loading import load_pipeline
    from sluice.config.references import connections
    from sluice.orchestration.connections import from_airflow

    pipeline = load_pipeline(Path(path))
    here = {"spark.connection", "alert_connection"}  # this task uses them, and no job
    ids = {pipeline.coordination.connection, *connections(pipeline, but=here)}
    named = sorted(ids - {ENVIRONMENT})
    return {f"AIRFLOW_CONN_{name.upper()}": _as_json(from_airflow(name)) for name in named}


def _as_json(endpoint: Endpoint) -> str:
    return json.dumps({
        "conn_type": endpoint.kind,
        "host": endpoint.host,
        "port": endpoint.port,
        "login": endpoint.user,
        "password": endpoint.password,
        "schema": endpoint.schema,
        "extra": dict(endpoint.extra),
    })
