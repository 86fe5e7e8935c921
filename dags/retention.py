"""The Airflow DAG ``retention``: hourly, removes what is no longer needed."""

from sluice.orchestration.dags import all_dags

globals().update(all_dags(None, "retention"))
