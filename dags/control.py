"""The ``sluice_control`` DAG: a form to pause, resume, restart and roll back pipelines."""

import os
from pathlib import Path

from airflow.sdk import DAG

from sluice.orchestration.dags.control import build_control_dag

_FOLDER = Path(os.environ.get("SLUICE_PIPELINES") or Path(__file__).resolve().parents[1] / "include" / "pipelines")

dag: DAG = build_control_dag(_FOLDER)
