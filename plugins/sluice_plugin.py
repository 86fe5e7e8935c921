"""What Sluice adds to Airflow."""

from airflow.plugins_manager import AirflowPlugin

from sluice.orchestration.timetable import SluiceTimetable


class SluicePlugin(AirflowPlugin):
    """The timetable of sync DAGs."""

    name = "sluice"
    timetables = [SluiceTimetable]
