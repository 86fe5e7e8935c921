"""``sluice run``: the whole job in this process."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from sluice.cli.console import AsJson, Pipeline, Verbose, err, log_to_stderr, out, print_json
from sluice.errors import ConfigError

if TYPE_CHECKING:
    from sluice.config.pipeline import PipelineConfig
    from sluice.flows.runtime import Runtime


def run(
    pipeline: Pipeline,
    *,
    until_head: Annotated[
        bool, typer.Option("--until-head", help="Stop when the log's end, as of now, is acknowledged.")
    ] = False,
    batches: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Stop after this number of batches; what waits because of commit_every goes on waiting, `sluice "
            "targets commit` writes it.",
        ),
    ] = None,
    spark: Annotated[
        bool, typer.Option("--spark", help="Do the work on Spark as the pipeline says, not in this process.")
    ] = False,
    readers: Annotated[
        int | None,
        typer.Option(min=1, max=64, help="Connections that read closed log files side by side (capture.readers)."),
    ] = None,
    standby: Annotated[
        bool,
        typer.Option(
            "--standby", help="Work only while no Airflow is heard of, and hand back when one is. Never ends."
        ),
    ] = False,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Drain, merge, load and acknowledge in this process, without Airflow, through the same flows."""
    from sluice.config.connections import from_environment
    from sluice.config.folders import pipelines_folder
    from sluice.config.loading import find_pipeline
    from sluice.coordination.leases import owner_label
    from sluice.flows.run import run as run_flow
    from sluice.flows.runtime import Runtime
    from sluice.flows.standby import LocalCopy, copies_folder, stand_by

    log_to_stderr(verbose)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends in an orderly way: another one may go on at once
    if standby and (until_head or batches is not None):
        raise ConfigError("--standby goes on until it is ended", hint="leave --until-head and --batches out")

    def built(found: PipelineConfig) -> Runtime:
        if readers is not None:
            found = found.model_copy(update={"capture": found.capture.model_copy(update={"readers": readers})})
        return Runtime.build(found, resolver=from_environment, runner=None if spark else "local")

    started = time.monotonic()
    changes = count = 0
    with err.status("looking at the source") if err.is_terminal and not as_json else _silence() as spinner:
        if standby:
            copy = LocalCopy(pipeline, copies_folder())
            steps = stand_by(lambda: copy.open(built), os.environ.get("SLUICE_INSTALLATION") or owner_label())
        else:
            runtime = built(find_pipeline(pipeline, pipelines_folder()))
            steps = run_flow(runtime, until_head=until_head, batches=batches)
        for step in steps:
            if step.phase == "acknowledged":
                count += 1
                changes += step.changes
                if as_json:
                    print_json(step.to_json())
                else:
                    out.print(
                        f"batch {step.batch}  {step.changes} changes  to {escape(str(step.position))}  "
                        f"{step.seconds:.2f} s",
                        highlight=False,
                    )
            elif spinner is not None:
                spinner.update(f"batch {step.batch or ''} {step.phase}  {escape(str(step.position or ''))}")
    if not as_json:
        out.print(f"done: {count} batches, {changes} changes in {time.monotonic() - started:.1f} s", highlight=False)


@contextmanager
def _silence() -> Iterator[None]:
    yield None
