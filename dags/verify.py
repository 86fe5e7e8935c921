"""One Airflow DAG for every pipeline file: ``verify__{pipeline}``."""

from sluice.orchestration.dags import all_dags

globals().update(all_dags(None, "verify"))
