"""``sluice run``: the whole job in this process."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from sluice.cli.console import AsJson, MonitorHost, MonitorPort, Pipeline, Verbose, err, log_to_stderr, out, print_json
from sluice.errors import ConfigError, SluiceError

if TYPE_CHECKING:
    from pathlib import Path

    from sluice.config.pipeline import PipelineConfig
    from sluice.flows.run import Step
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
    monitor_port: MonitorPort = None,
    monitor_host: MonitorHost = "127.0.0.1",
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
    from sluice.operations.alert_rules import watches
    from sluice.operations.alert_watch import alerting
    from sluice.operations.alerts import check_lag, warn_without_airflow
    from sluice.operations.status import status

    log_to_stderr(verbose)
    interrupts = _Interrupts()
    for number in (signal.SIGINT, signal.SIGTERM):  # ends in an orderly way: another one may go on at once
        if signal.getsignal(number) != signal.SIG_IGN:  # as of a shell for what runs in the background
            signal.signal(number, interrupts.receive)
    if standby and (until_head or batches is not None):
        raise ConfigError("--standby goes on until it is ended", hint="leave --until-head and --batches out")

    def built(pipeline: PipelineConfig) -> Runtime:
        if readers is not None:
            pipeline = pipeline.model_copy(update={"capture": pipeline.capture.model_copy(update={"readers": readers})})
        return Runtime.build(pipeline, resolver=from_environment, runner=None if spark else "local")

    newest: list[Runtime] = []  # the pipeline as it is worked on, once it is known

    def look() -> None:
        if newest and watches(newest[-1].pipeline):
            seen_runtime = built(newest[-1].pipeline)
            check_lag(seen_runtime, status(seen_runtime))

    started = time.monotonic()
    changes = count = 0
    with (
        _monitored(pipeline, built, monitor_host, monitor_port) as tally,
        alerting(pipeline, look),
        err.status("looking at the source") if err.is_terminal and not as_json else _silence() as spinner,
    ):
        if standby:
            copy = LocalCopy(pipeline, copies_folder())

            def opened() -> Runtime:
                newest[:] = [copy.open(built)]
                return newest[-1]

            steps = stand_by(opened, os.environ.get("SLUICE_INSTALLATION") or owner_label())
        elif until_head or batches is not None:
            newest.append(built(find_pipeline(pipeline, pipelines_folder())))
            warn_without_airflow(newest[-1].pipeline)
            steps = _with_lineage(newest[-1], run_flow(newest[-1], until_head=until_head, batches=batches))
        else:
            steps = _following(pipeline, built, newest)
        for step in steps:
            tally.add(step)
            interrupts.note(step)
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


class _Interrupts:
    """Ctrl-C and SIGTERM: they end the run after the batch under way, a second one ends it at once."""

    def __init__(self) -> None:
        self._is_delivering = self._is_received = False

    def receive(self, *_: object) -> None:
        """Handle the signal. Raises KeyboardInterrupt if no batch is under way, or if it is the second one."""
        if self._is_received or not self._is_delivering:
            raise KeyboardInterrupt
        self._is_received = True
        os.write(2, b"the run ends after this batch; Ctrl-C ends it now\n")

    def note(self, step: Step) -> None:
        """Note where the run is. Raises KeyboardInterrupt at the end of a batch in which a signal came."""
        self._is_delivering = step.phase not in {"draining", "acknowledged", "standing by"}
        if self._is_received and not self._is_delivering:
            raise KeyboardInterrupt


def _following(name: str, build: Callable[[PipelineConfig], Runtime], runtimes: list[Runtime]) -> Iterator[Step]:
    """Run the pipeline as its file says; a file that changed counts from the next batch on, one that is wrong never.

    ``runtimes``: gets each runtime that is worked with.
    """
    import structlog

    from sluice.config.folders import pipelines_folder
    from sluice.config.loading import find_pipeline_file
    from sluice.flows.run import run as run_flow
    from sluice.operations.alerts import warn_without_airflow

    log = structlog.get_logger()
    path, pipeline = find_pipeline_file(name, pipelines_folder())
    while True:
        modified = path.stat().st_mtime_ns
        runtime = build(pipeline)
        runtimes.append(runtime)
        warn_without_airflow(pipeline)
        with closing(_with_lineage(runtime, run_flow(runtime))) as steps:
            for step in steps:
                yield step
                if step.phase != "draining" or modified == (modified := _modified(path)):
                    continue
                try:
                    path, pipeline = find_pipeline_file(name, pipelines_folder())
                except SluiceError as error:
                    log.warning("pipeline_file_invalid", pipeline=runtime.name, error=str(error))
                    continue
                log.info("pipeline_file_reread", pipeline=runtime.name)
                break


def _modified(path: Path) -> int:
    """Return when a file was changed last, in nanoseconds; 0: it is not there, as between two of its versions."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _with_lineage(runtime: Runtime, steps: Iterator[Step]) -> Generator[Step, None, None]:
    """Pass the steps on, and tell OpenLineage of acknowledged batches if its client is configured."""
    from functools import partial

    from sluice.operations.lineage import table_lineage
    from sluice.operations.lineage_events import LineageReporter

    targets = [target.name for target in runtime.pipeline.targets]
    reporter = LineageReporter.configured(runtime.name, targets, partial(table_lineage, runtime))
    if reporter is None:
        yield from steps
        return
    try:
        for step in steps:
            if step.batch is not None:
                reporter.add(step.batch) if step.phase == "acknowledged" else reporter.begin()
            yield step
    except GeneratorExit:
        reporter.close()
        raise
    except BaseException as error:
        reporter.close(error)
        raise
    reporter.close()


class _Tally:
    """The work of this process so far, for its monitoring port: readiness and the seconds of its stages.

    The loop writes it, requests read it.
    """

    def __init__(self) -> None:
        self.steps = 0
        self._stage, self._since = "", 0.0
        self._sums: dict[str, dict[str, float]] = {}

    def add(self, step: Step) -> None:
        """Note that the loop has come to another phase."""
        now, stage = time.monotonic(), _stage_of(step.phase)
        if self._stage:
            sums = self._sums.setdefault(self._stage, {"seconds": 0.0, "batches": 0, "rows": 0})
            sums["seconds"] += now - self._since
            if stage != self._stage:  # two captures one after the other: the first found nothing
                sums["batches"] += 1
                sums["rows"] += step.changes
        self.steps += 1
        self._stage, self._since = stage, now

    def stages(self) -> list[dict[str, Any]]:
        """Return the sums in the form of :func:`sluice.operations.status.stages_claimed`."""
        return [{"stage": stage, **sums} for stage, sums in list(self._sums.items())]


def _stage_of(phase: str) -> str:
    """Return the name of the stage, as Airflow's task has it, that a step announces; "" if it announces none."""
    word, _, subject = phase.partition(" ")
    name = {"draining": "drain", "merging": "merge", "applying": "rule", "loading": "load"}.get(word, "")
    return f"{name}.{subject}" if name and subject else name


@contextmanager
def _monitored(
    pipeline: str, built: Callable[[PipelineConfig], Runtime], host: str, port: int | None
) -> Iterator[_Tally]:
    """Serve the monitoring port inside of the block, if there is one, and send what OpenTelemetry is to get."""
    from sluice import telemetry
    from sluice.telemetry.settings import is_wanted

    tally = _Tally()
    try:
        if port is None and not is_wanted("metrics"):
            yield tally
        else:
            with _watched(pipeline, built, host, port, tally):
                yield tally
    finally:
        telemetry.flush()


@contextmanager
def _watched(
    pipeline: str, built: Callable[[PipelineConfig], Runtime], host: str, port: int | None, tally: _Tally
) -> Iterator[None]:
    """Serve the monitoring port, and send metrics by OpenTelemetry, inside of the block."""
    from sluice.config.folders import pipelines_folder
    from sluice.config.loading import find_pipeline
    from sluice.operations.metrics import Looks, Seen
    from sluice.operations.otel_metrics import sending
    from sluice.serve.monitor import MonitorServer, look

    def seen(name: str) -> Seen:
        return replace(look(built(find_pipeline(name, pipelines_folder()))), stages=tally.stages())

    def not_ready() -> list[str]:
        if not tally.steps:
            return ["it has not begun: ZooKeeper or the source has not answered yet"]
        return [error for one in looks.newest() for error in one.status.errors]

    looks = Looks(lambda: [pipeline], seen)
    server = MonitorServer(host, port, looks, not_ready=not_ready) if port is not None else None
    if server is not None:
        err.print(f"monitoring on {server.address}")
    try:
        with sending(lambda: looks):
            yield
    finally:
        if server is not None:
            server.stop()


@contextmanager
def _silence() -> Iterator[None]:
    yield None
