"""Open a pipeline's runtime inside an Airflow process."""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sluice.config.pipeline import PipelineConfig
    from sluice.flows.runtime import Runtime


def open_runtime(path: str) -> Runtime:
    """Open the runtime of the pipeline file at ``path``, read now. Raises ConfigError."""
    from sluice.config.loading import load_pipeline

    return runtime_of(load_pipeline(Path(path)))


def runtime_of(pipeline: PipelineConfig) -> Runtime:
    """Open the runtime of a pipeline.

    Airflow resolves its connections, each once: in the triggerer a question to Airflow's database takes a second, and a
    trigger asks for its source several times a second.
    """
    from sluice.flows.runtime import Runtime
    from sluice.orchestration.connections import from_airflow
    from sluice.orchestration.liveness import scheduler_lives

    runtime = Runtime.build(pipeline, resolver=cache(from_airflow), owner=owner())
    runtime.lives = scheduler_lives
    return runtime


def installation() -> str:
    """Return a name of this Airflow: the same in all of its processes, different from any other that shares the
    ZooKeeper.

    It is ``SLUICE_INSTALLATION`` if set, else a digest of the address and the Fernet key of this Airflow.
    """
    given_installation = os.environ.get("SLUICE_INSTALLATION")
    if given_installation:
        return given_installation
    from airflow.sdk.configuration import conf

    marks = [conf.get("api", "base_url", fallback=""), conf.get("core", "fernet_key", fallback="")]
    return hashlib.sha256("\n".join(marks).encode()).hexdigest()[:12]


def owner() -> str:
    """Return the name under which this Airflow leads pipelines."""
    return f"airflow:{installation()}"


def claim(dag_id: str, run_id: str) -> str:
    """Return the claim of a run on its batches: a retry or a Clear of the same run has the same claim and gets the same
    batch again.
    """
    return f"{owner()}:{dag_id}:{run_id}"


def run_of(claim: str) -> tuple[str, str] | None:
    """Return (DAG, run) of a claim of this Airflow; None for others."""
    prefix = f"{owner()}:"
    dag_id, separator, run_id = claim.removeprefix(prefix).partition(":")
    return (dag_id, run_id) if claim.startswith(prefix) and separator else None
