"""Airflow's side of Sluice: timetable, operators, trigger, DAG factory, page. The only package that imports Airflow.

Modules that DAG files import at parse time (factory, operators, triggers, timetable) import nothing heavy: no PyArrow,
no PySpark, no kazoo, no flows. Those are imported when a task runs.
"""
