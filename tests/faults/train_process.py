"""A task that carries a train with every batch on Spark, as a process of its own: ``python -m tests.faults.train_process PIPELINE.yaml CLAIM``."""

from __future__ import annotations

import sys
from pathlib import Path

from sluice.config.loading import load_pipeline
from sluice.flows.runtime import Runtime
from sluice.flows.train import train

if __name__ == "__main__":
    runtime = Runtime.build(load_pipeline(Path(sys.argv[1])), runner="connect")
    print(train(runtime, claim=sys.argv[2], idle_wait_s=60).ended_by)
