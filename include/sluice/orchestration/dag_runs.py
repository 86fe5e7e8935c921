"""The ids of the DAGs, and runs of other DAGs, opened from inside a task."""

from __future__ import annotations

from pathlib import Path


def dag_id_of(pipeline: str) -> str:
    """Return the id ``sync__{pipeline}``."""
    return f"sync__{pipeline}"


def catchup_id_of(pipeline: str) -> str:
    """Return the id ``catchup__{pipeline}``."""
    return f"catchup__{pipeline}"


def backfill_id_of(pipeline: str) -> str:
    """Return the id ``backfill__{pipeline}``."""
    return f"backfill__{pipeline}"


def verify_id_of(pipeline: str) -> str:
    """Return the id ``verify__{pipeline}``."""
    return f"verify__{pipeline}"


def complete_id_of(pipeline: str) -> str:
    """Return the id ``complete__{pipeline}``."""
    return f"complete__{pipeline}"


FAMILIES = (dag_id_of, catchup_id_of, backfill_id_of, verify_id_of, complete_id_of)
"""The DAGs of a pipeline, by the functions that make their ids."""

SENSE = "sense"
"""The name of the first task of a run whose tasks work in parallel; no other run has a task of this name."""

CONTROL_ID = "sluice_control"
RETENTION_ID = "retention"


def open_run(pipeline: str, dump: str) -> str:
    """Open a run that works on a recorded dump, from inside a task. One that was opened before stays as it is.

    Return why the run does not begin, "" if nothing hinders it.
    """
    from airflow.sdk.execution_time.comms import TriggerDagRun
    from airflow.sdk.execution_time.task_runner import SUPERVISOR_COMMS

    from sluice.config.loading import load_pipeline
    from sluice.model.dumps import UNPAUSE

    dag_id = backfill_id_of(load_pipeline(Path(pipeline)).pipeline)
    SUPERVISOR_COMMS.send(
        TriggerDagRun(dag_id=dag_id, run_id=f"dump__{dump}", conf={"dump": dump}, reset_dag_run=False)
    )
    return f"DAG {dag_id} {UNPAUSE}" if is_paused(dag_id) else ""


def is_paused(dag_id: str) -> bool:
    """Return True if a DAG is paused in Airflow, asked from inside a task; False if that is not known."""
    from airflow.sdk.exceptions import AirflowRuntimeError

    try:
        from airflow.sdk.execution_time.comms import DagResult, GetDag
        from airflow.sdk.execution_time.task_runner import SUPERVISOR_COMMS

        answer = SUPERVISOR_COMMS.send(GetDag(dag_id=dag_id))
    except (ImportError, AirflowRuntimeError):  # this Airflow does not say
        return False
    return isinstance(answer, DagResult) and answer.is_paused
