"""spark-submit spark_jobs/merge.py --pipeline FILE --batch N: a batch becomes a changeset."""

from __future__ import annotations

from sluice.flows.transform.merge import merge
from sluice.orchestration.spark_jobs._run import run

if __name__ == "__main__":
    run("Merge one batch.", lambda runtime, arguments: merge(runtime, arguments.batch))
