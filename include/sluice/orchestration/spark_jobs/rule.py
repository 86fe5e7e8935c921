"""spark-submit spark_jobs/rule.py --pipeline FILE --batch N --rule NAME: a batch goes through a rule with a task of its
own.
"""

from __future__ import annotations

from sluice.flows.transform.stages import apply_rule
from sluice.orchestration.spark_jobs._run import run

if __name__ == "__main__":
    run(
        "Take one batch through one rule.",
        lambda runtime, arguments: apply_rule(runtime, arguments.batch, arguments.rule),
        rule=True,
    )
