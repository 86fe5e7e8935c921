"""The ``retention`` DAG: hourly, removes what is no longer needed."""

import os
from pathlib import Path

from airflow.sdk import DAG

from sluice.orchestration.dags.retention import build_retention_dag

_FOLDER = Path(os.environ.get("SLUICE_PIPELINES") or Path(__file__).resolve().parents[1] / "include" / "pipelines")

dag: DAG = build_retention_dag(_FOLDER)
