"""One Airflow DAG for every pipeline file: ``sync__{pipeline}``."""

from sluice.orchestration.dags import all_dags

globals().update(all_dags(None, "sync"))
