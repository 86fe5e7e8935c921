"""Merge one batch into a changeset: ``spark-submit spark_jobs/merge.py --pipeline FILE --batch N``."""

from sluice.flows.submit import run_stage

run_stage("merge")
