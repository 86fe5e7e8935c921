"""Load a batch into a target: ``spark-submit spark_jobs/load.py --pipeline FILE --batch N --target NAME``."""

from sluice.flows.submit import run_stage

run_stage("load")
