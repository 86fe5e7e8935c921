"""A task that runs a loop with every batch on Spark, as a process of its own:
``python -m tests.faults.loop_process PIPELINE.yaml CLAIM``.
"""

from __future__ import annotations

import sys
from pathlib import Path

from sluice.config.loading import load_pipeline
from sluice.flows.job import run_microbatches
from sluice.flows.runtime import Runtime

if __name__ == "__main__":
    runtime = Runtime.build(load_pipeline(Path(sys.argv[1])), runner="connect")
    print(run_microbatches(runtime, claim=sys.argv[2], idle_wait_s=60).ended_by)
