"""The Airflow DAG ``sluice_control``: a form to pause, resume, restart and roll back pipelines."""

from sluice.orchestration.dags import all_dags

globals().update(all_dags(None, "control"))
