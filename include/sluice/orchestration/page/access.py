"""Who may see and do what: each question is put to Airflow's auth manager, for the DAG that stands for the matter."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.base_auth_manager import ResourceMethod
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from fastapi import HTTPException

from sluice.config.loading import load_pipeline, yaml_files
from sluice.config.problems import shown
from sluice.errors import SluiceError
from sluice.operations.verbs.verb import Right
from sluice.orchestration.dag_runs import CONTROL_ID, backfill_id_of, dag_id_of, verify_id_of


def may(user: BaseUser, dag_id: str, method: ResourceMethod, entity: DagAccessEntity | None = None) -> bool:
    """Return what the auth manager says. ``entity``: of the DAG; None: the DAG itself."""
    more: dict[str, Any] = {"access_entity": entity} if entity is not None else {}
    details = DagDetails(id=dag_id)
    return bool(get_auth_manager().is_authorized_dag(method=method, details=details, user=user, **more))


def may_read(dag_id: str, user: BaseUser) -> bool:
    """Return True if ``user`` may see the DAG."""
    return may(user, dag_id, "GET")


def has(user: BaseUser, pipeline: str, right: Right) -> bool:
    """Return True if ``user`` has the right."""
    if right is Right.READ:
        return may_read(dag_id_of(pipeline), user)
    if right is Right.ROWS:
        return may(user, dag_id_of(pipeline), "GET", DagAccessEntity.TASK_LOGS)
    if right is Right.ACT:
        return may(user, dag_id_of(pipeline), "PUT")
    if right is Right.CHECK:
        return has(user, pipeline, Right.ACT) and may(user, CONTROL_ID, "POST", DagAccessEntity.RUN)
    if right is Right.VERIFIED:
        return may_read(verify_id_of(pipeline), user)
    dag_id = backfill_id_of(pipeline) if right is Right.DUMP else verify_id_of(pipeline)
    return may(user, dag_id, "POST", DagAccessEntity.RUN)


def rights(user: BaseUser, pipeline: str) -> dict[str, bool]:
    """Return all rights of ``user``, by name, so that a page offers only what may be done."""
    return {right.value: has(user, pipeline, right) for right in Right}


def file_of(folder: Path, pipeline: str) -> Path | None:
    """Return the file of a pipeline; None: there is none."""
    for path in yaml_files(folder):
        with suppress(SluiceError):
            if load_pipeline(path).pipeline == pipeline:
                return path
    return None


def file_for(folder: Path, pipeline: str, user: BaseUser, right: Right = Right.READ) -> Path:
    """Return the file of a pipeline for a user who has ``right``.

    Raises a 404 answer if there is none that the user may see, 403 if the right is missing.
    """
    path = file_of(folder, pipeline)
    if path is None or not has(user, pipeline, Right.READ):
        raise HTTPException(404, f"there is no pipeline {shown(pipeline)!r} that you may see")
    if not has(user, pipeline, right):
        raise HTTPException(403, f"you may see {pipeline}, but {_LACKS[right]}")
    return path


def verified_file(folder: Path, pipeline: str, user: BaseUser) -> Path:
    """Return the file of a pipeline whose verifications ``user`` may see, else raise 404.

    As results may hold values of rows, the user has to be allowed to read the DAG that makes them.
    """
    path = file_of(folder, pipeline)
    if path is None or not has(user, pipeline, Right.VERIFIED):
        raise HTTPException(404, f"there is no pipeline {shown(pipeline)!r} whose verifications you may see")
    return path


_LACKS = {
    Right.READ: "not read its DAG",
    Right.ROWS: "not the values of its rows: that needs the right to read the DAG's task logs",
    Right.ACT: "not change it: that needs the right to edit its DAG",
    Right.CHECK: f"not check it: that needs the rights to edit its DAG and to trigger {CONTROL_ID}",
    Right.DUMP: "not copy its tables: that needs the right to trigger its backfill DAG",
    Right.VERIFY: "not compare its tables: that needs the right to trigger its verify DAG",
    Right.VERIFIED: "not its verifications: that needs the right to read its verify DAG",
}
