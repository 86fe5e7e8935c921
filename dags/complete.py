"""One Airflow DAG for every pipeline file that says ``complete``: ``complete__{pipeline}``."""

from sluice.orchestration.dags import all_dags

globals().update(all_dags(None, "complete"))
