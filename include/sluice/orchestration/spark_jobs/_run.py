"""What both entry points share: arguments, and one line for an error instead of a trace."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sluice.config.loading import load_pipeline
from sluice.coordination.bundles import WaitingBatches
from sluice.coordination.quarantine import Quarantined
from sluice.errors import SluiceError
from sluice.flows.runtime import Runtime

RETRYABLE, TERMINAL, HELD = 75, 65, 69
"""Exit codes (EX_TEMPFAIL, EX_DATAERR, EX_UNAVAILABLE): the same call may succeed later; a person has to fix something;
the target is held and the others go on without it, or it gets the batch later with others."""


def run(
    description: str, work: Callable[[Runtime, argparse.Namespace], Any], *, target: bool = False, rule: bool = False
) -> None:
    """Parse the command line, run ``work`` on a classic Spark session, print its outcome as JSON."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--pipeline", type=Path, required=True, help="the pipeline file")
    parser.add_argument("--batch", type=int, required=True, help="number of the batch")
    if target:
        parser.add_argument("--target", required=True, help="name of the target within the pipeline")
    if rule:
        parser.add_argument("--rule", required=True, help="name of the rule in engine.yaml")
    arguments = parser.parse_args()
    try:
        runtime = Runtime.build(
            load_pipeline(arguments.pipeline), runner="submit", owner=os.environ.get("SLUICE_OWNER")
        )
        outcome = work(runtime, arguments)
    except SluiceError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        sys.exit(RETRYABLE if error.retryable else TERMINAL)
    if isinstance(outcome, WaitingBatches):
        sys.stderr.write(f"{outcome}\n")
        sys.exit(HELD)
    if isinstance(outcome, Quarantined):
        sys.stderr.write(f"the target is held since {outcome.since}: {outcome.error}\n")
        sys.exit(HELD)
    sys.stdout.write(json.dumps(outcome.to_json()) + "\n")
