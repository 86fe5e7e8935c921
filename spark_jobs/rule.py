"""Apply a rule with a task of its own: ``spark-submit spark_jobs/rule.py --pipeline FILE --batch N --rule NAME``."""

from sluice.flows.submit import run_stage

run_stage("rule")
