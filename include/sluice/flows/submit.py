"""One stage of one batch as a process of its own: the command line of the files in ``spark_jobs/``."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from sluice.config.loading import load_pipeline
from sluice.coordination.bundles import WaitingBatches
from sluice.coordination.quarantine import Quarantined
from sluice.errors import SluiceError
from sluice.flows.load.isolation import deliver
from sluice.flows.runtime import Runtime
from sluice.flows.transform.merge import merge
from sluice.flows.transform.stages import apply_rule

RETRYABLE, TERMINAL, LATER = 75, 65, 69
"""Exit codes (EX_TEMPFAIL, EX_DATAERR, EX_UNAVAILABLE): the same call may succeed later; a person has to fix something;
the target gets the batch later, because it is quarantined or because the batch waits for others (``commit_every``).
"""


def run_stage(stage: Literal["merge", "rule", "load"], arguments: Sequence[str] | None = None) -> None:
    """Parse the command line, do the stage of the batch on a classic Spark session, and print the outcome as JSON.

    A failure is one line on standard error and an exit code, without a trace.
    """
    parser = argparse.ArgumentParser(description=f"Do the stage {stage} of one batch.")
    parser.add_argument("--pipeline", type=Path, required=True, help="the pipeline file")
    parser.add_argument("--batch", type=int, required=True, help="number of the batch")
    if stage == "load":
        parser.add_argument("--target", required=True, help="name of the target in the pipeline file")
    if stage == "rule":
        parser.add_argument("--rule", required=True, help="name of the rule in engine.yaml")
    options = parser.parse_args(arguments)
    outcome: Any
    try:
        pipeline = load_pipeline(options.pipeline)
        runtime = Runtime.build(pipeline, runner="submit", owner=os.environ.get("SLUICE_OWNER"))
        if stage == "merge":
            outcome = merge(runtime, options.batch)
        elif stage == "rule":
            outcome = apply_rule(runtime, options.batch, options.rule)
        else:
            outcome = deliver(runtime, options.target, options.batch)
    except SluiceError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        sys.exit(RETRYABLE if error.retryable else TERMINAL)
    if isinstance(outcome, WaitingBatches):
        sys.stderr.write(f"{outcome}\n")
        sys.exit(LATER)
    if isinstance(outcome, Quarantined):
        sys.stderr.write(f"target {options.target} is quarantined since {outcome.since}: {outcome.error}\n")
        sys.exit(LATER)
    sys.stdout.write(json.dumps(outcome.to_json()) + "\n")
