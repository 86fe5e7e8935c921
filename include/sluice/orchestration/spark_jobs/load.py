"""spark-submit spark_jobs/load.py --pipeline FILE --batch N --target T: a changeset goes to a target."""

from __future__ import annotations

from sluice.flows.load.isolation import deliver
from sluice.orchestration.spark_jobs._run import run

if __name__ == "__main__":
    run(
        "Load one batch into one target.",
        lambda runtime, arguments: deliver(runtime, arguments.target, arguments.batch),
        target=True,
    )
