"""The DAGs of all pipeline files.

A file of two lines in Airflow's DAG folder has them all::

    from sluice.orchestration.dags import all_dags  # Airflow reads files with the words airflow and dag
    globals().update(all_dags())
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.config.folders import pipelines_folder
from sluice.errors import ConfigError
from sluice.orchestration.dag_runs import CONTROL_ID, RETENTION_ID

if TYPE_CHECKING:
    from airflow.sdk import DAG

FAMILIES: Mapping[str, tuple[str, ...]] = {
    "sync": ("sync__", "catchup__"),
    "backfill": ("backfill__",),
    "verify": ("verify__",),
    "complete": ("complete__",),
    "control": (CONTROL_ID,),
    "retention": (RETENTION_ID,),
}
"""The kinds of DAGs, with the beginnings of their ids. Each has a module of the same name."""


def all_dags(folder: str | Path | None = None, *families: str) -> dict[str, DAG]:
    """Build the DAGs of the pipeline files in a folder, by DAG id.

    A task's process needs one DAG only, so that it gets no other if that one is found.

    Args:
        folder: the pipeline files; None: the folder of :func:`sluice.config.folders.pipelines_folder`.
        families: names of :data:`FAMILIES`; none: all. With thousands of pipelines, a DAG file for each family lets the
            DAG processor parse them side by side.

    Raises:
        ConfigError: a family does not exist.
    """
    from airflow.sdk import get_parsing_context

    unknown = sorted(set(families) - FAMILIES.keys())
    if unknown:
        raise ConfigError(
            f"there is no family of DAGs {unknown[0]!r}", hint=f"write some of {', '.join(FAMILIES)}, or none for all"
        )
    where = (Path(folder) if folder is not None else pipelines_folder()).resolve()
    wanted_families = families or tuple(FAMILIES)
    only: str | None = get_parsing_context().dag_id
    for family in wanted_families:
        if only is not None and only.startswith(FAMILIES[family]):
            built = _build(family, where, only)
            if only in built:
                return built
    return {dag_id: dag for family in wanted_families for dag_id, dag in _build(family, where, None).items()}


def _build(family: str, folder: Path, only: str | None) -> dict[str, DAG]:
    module: Any = importlib.import_module(f"{__name__}.{family}")
    if family in {"control", "retention"}:
        dag: DAG = getattr(module, f"build_{family}_dag")(folder)
        return {dag.dag_id: dag}
    dags: dict[str, DAG] = module.build_all(folder, only=only)
    return dags
