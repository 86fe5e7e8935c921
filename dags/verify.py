"""One DAG for every pipeline file: ``verify__{pipeline}``."""

import os
from pathlib import Path

from airflow.sdk import get_parsing_context

from sluice.orchestration.dags.verify import build_all

_FOLDER = Path(os.environ.get("SLUICE_PIPELINES") or Path(__file__).resolve().parents[1] / "include" / "pipelines")

globals().update(build_all(_FOLDER, only=get_parsing_context().dag_id))
