"""``sluice run``: the whole job in this process."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.markup import escape

from sluice.cli.console import AsJson, Pipeline, Verbose, err, log_to_stderr, open_pipeline, out, print_json


def run(
    pipeline: Pipeline,
    until_head: Annotated[
        bool, typer.Option("--until-head", help="Stop when the log's end, as of now, is acknowledged.")
    ] = False,
    batches: Annotated[int | None, typer.Option(min=1, help="Stop after this number of batches.")] = None,
    spark: Annotated[
        bool, typer.Option("--spark", help="Do the work on Spark as the pipeline says, not in this process.")
    ] = False,
    readers: Annotated[
        int | None,
        typer.Option(min=1, max=64, help="Connections that read closed log files side by side (capture.readers)."),
    ] = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Drain, merge, load and acknowledge in this process, without Airflow, through the same flows."""
    from sluice.flows.run import run as run_flow

    log_to_stderr(verbose)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends in an orderly way: another one may go on at once
    runtime = open_pipeline(pipeline, mode=None if spark else "local")
    if readers is not None:
        capture = runtime.pipeline.capture.model_copy(update={"readers": readers})
        runtime.pipeline = runtime.pipeline.model_copy(update={"capture": capture})
    started = time.monotonic()
    changes = count = 0
    with err.status("looking at the source") if err.is_terminal and not as_json else _silence() as spinner:
        for step in run_flow(runtime, until_head=until_head, batches=batches):
            if step.phase == "acknowledged":
                count += 1
                changes += step.changes
                if as_json:
                    print_json(step.to_json())
                else:
                    out.print(
                        f"batch {step.batch}  {step.changes} changes  to {escape(str(step.position))}  {step.seconds:.2f} s",
                        highlight=False,
                    )
            elif spinner is not None:
                spinner.update(f"batch {step.batch or ''} {step.phase}  {escape(str(step.position or ''))}")
    if not as_json:
        out.print(f"done: {count} batches, {changes} changes in {time.monotonic() - started:.1f} s", highlight=False)


@contextmanager
def _silence() -> Iterator[None]:
    yield None
