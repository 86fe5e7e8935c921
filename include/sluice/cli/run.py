"""``sluice run``: the whole job in this process."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from sluice.cli.console import (
    AsJson,
    MonitorHost,
    MonitorPort,
    Verbose,
    err,
    log_to_stderr,
    out,
    print_error,
    print_json,
)
from sluice.errors import ConfigError, SluiceError

if TYPE_CHECKING:
    from pathlib import Path

    from rich.status import Status

    from sluice.config.pipeline import PipelineConfig
    from sluice.flows.run import Step
    from sluice.flows.runtime import Runtime

_RETRY, _RETRY_MOST = timedelta(seconds=5), timedelta(minutes=5)
"""The first pause and the longest one between two attempts at a pipeline that failed beside others."""


def run(
    pipelines: Annotated[
        list[str], typer.Argument(help="Names of pipelines, or paths of their files; several work side by side.")
    ],
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
    from sluice.flows.job import side_by_side
    from sluice.flows.runtime import Runtime

    log_to_stderr(verbose)
    if standby and (until_head or batches is not None):
        raise ConfigError("--standby goes on until it is ended", hint="leave --until-head and --batches out")
    if standby and len(pipelines) > 1:
        raise ConfigError("--standby works on one pipeline", hint="have a process for each")

    def built(pipeline: PipelineConfig) -> Runtime:
        if readers is not None:
            pipeline = pipeline.model_copy(update={"capture": pipeline.capture.model_copy(update={"readers": readers})})
        return Runtime.build(pipeline, resolver=from_environment, runner=None if spark else "local")

    interrupts = _Interrupts()
    tallies = {name: _Tally() for name in dict.fromkeys(pipelines)}
    loops = [
        _Loop(name, built, tally, interrupts.of(name), until_head=until_head, batches=batches, standby=standby)
        for name, tally in tallies.items()
    ]
    for number in (signal.SIGINT, signal.SIGTERM):  # ends in an orderly way: another one may go on at once
        if signal.getsignal(number) != signal.SIG_IGN:  # as of a shell for what runs in the background
            signal.signal(number, interrupts.receive)
    started = time.monotonic()
    with _monitored(tallies, built, monitor_host, monitor_port):
        if len(loops) == 1:
            with err.status("looking at the source") if err.is_terminal and not as_json else _silence() as spinner:
                loops[0].run(partial(_show, as_json=as_json, spinner=spinner))
        else:
            side_by_side([partial(loop.run_beside_others, partial(_show, as_json=as_json)) for loop in loops])
            interrupts.require_none()
    if not as_json:
        count, changes = (sum(getattr(loop, name) for loop in loops) for name in ("count", "changes"))
        out.print(f"done: {count} batches, {changes} changes in {time.monotonic() - started:.1f} s", highlight=False)


def _show(step: Step, pipeline: str = "", *, as_json: bool, spinner: Status | None = None) -> None:
    """Show a step of a pipeline; "": it is the only one."""
    if step.phase == "acknowledged" and as_json:
        print_json({"pipeline": pipeline, **step.to_json()} if pipeline else step.to_json())
    elif step.phase == "acknowledged":
        name = f"{pipeline}  " if pipeline else ""
        out.print(
            f"{escape(name)}batch {step.batch}  {step.changes} changes  to {escape(str(step.position))}  "
            f"{step.seconds:.2f} s",
            highlight=False,
        )
    elif spinner is not None:
        spinner.update(f"batch {step.batch or ''} {step.phase}  {escape(str(step.position or ''))}")


class _Loop:
    """The work on one pipeline: ``count`` batches with so many ``changes`` until now."""

    def __init__(
        self,
        name: str,
        build: Callable[[PipelineConfig], Runtime],
        tally: _Tally,
        interrupt: _Interrupt,
        *,
        until_head: bool,
        batches: int | None,
        standby: bool,
    ) -> None:
        self.name = name
        self.count = self.changes = 0
        self.has_end = until_head or batches is not None
        self._build, self._tally, self._interrupt = build, tally, interrupt
        self._until_head, self._batches, self._standby = until_head, batches, standby
        self._runtimes: list[Runtime] = []  # the last one is the pipeline as it is worked on, once it is known

    def run(self, show: Callable[[Step], None]) -> None:
        """Work until the end, or for ever. Raises KeyboardInterrupt when a signal ends it, and what the flows raise."""
        from sluice.operations.alert_watch import alerting

        with alerting(self.name, self._look):
            for step in self._steps():
                self._tally.add(step)
                self._interrupt.note(step)
                if step.phase == "acknowledged":
                    self.count += 1
                    self.changes += step.changes
                show(step)

    def run_beside_others(self, show: Callable[[Step, str], None]) -> None:
        """Work as :meth:`run`; a run that has no end is begun anew after an error, so that no other has to end."""
        from sluice.model.backoff import wait_after

        failures = 0
        while True:
            count = self.count
            try:
                self.run(lambda step: show(step, self.name))
            except KeyboardInterrupt:
                return
            except SluiceError as error:
                if self.has_end:
                    raise
                error.name_pipeline(self.name)
                print_error(error)
            else:
                return
            failures = 1 if self.count > count else failures + 1
            if self._interrupt.wait(wait_after(failures, _RETRY, _RETRY_MOST).total_seconds()):
                return

    def _steps(self) -> Iterator[Step]:
        from sluice.coordination.leases import owner_label
        from sluice.flows.standby import LocalCopy, copies_folder, stand_by

        if not self._standby:
            return self._work()
        copy = LocalCopy(self.name, copies_folder())

        def opened() -> Runtime:
            self._runtimes[:] = [copy.open(self._build)]
            return self._runtimes[-1]

        return stand_by(opened, os.environ.get("SLUICE_INSTALLATION") or owner_label())

    def _work(self) -> Iterator[Step]:
        """Run the pipeline as its file says. Without an end, a file that changed counts from the next batch on, and one
        that is wrong never.
        """
        import structlog

        from sluice.config.folders import pipelines_folder
        from sluice.config.loading import find_pipeline_file
        from sluice.flows.run import run as run_flow
        from sluice.operations.alerts import warn_without_airflow

        log = structlog.get_logger()
        path, pipeline = find_pipeline_file(self.name, pipelines_folder())
        _begin_to_load_kernels(pipeline.source.type)
        modified, is_changed = _modified(path), True
        while is_changed:
            is_changed = False
            runtime = self._build(pipeline)
            self._runtimes.append(runtime)
            warn_without_airflow(pipeline)
            flow = run_flow(runtime, until_head=self._until_head, batches=self._batches)
            with closing(_with_lineage(runtime, flow)) as steps:
                for step in steps:
                    yield step
                    if self.has_end or step.phase != "draining" or modified == (modified := _modified(path)):
                        continue
                    try:
                        path, pipeline = find_pipeline_file(self.name, pipelines_folder())
                    except SluiceError as error:
                        log.warning("pipeline_file_invalid", pipeline=runtime.name, error=str(error))
                        continue
                    log.info("pipeline_file_reread", pipeline=runtime.name)
                    is_changed = True
                    break

    def _look(self) -> None:
        from sluice.operations.alert_rules import watches
        from sluice.operations.alerts import check_lag
        from sluice.operations.status import status

        if self._runtimes and watches(self._runtimes[-1].pipeline):
            runtime = self._build(self._runtimes[-1].pipeline)
            check_lag(runtime, status(runtime))


@cache
def _begin_to_load_kernels(kind: str) -> None:
    """Load the kernels of a kind of source beside all else; a batch waits for those alone that it needs."""
    threading.Thread(target=_load_kernels, args=(kind,), daemon=True).start()


def _load_kernels(kind: str) -> None:
    """Load kernels. Two lines say that they are compiled, as they are not on disk, and how long it took."""
    from sluice.kernels import before_first_compilation
    from sluice.sources import compile_kernels

    began: list[float] = []

    def begin() -> None:
        began.append(time.monotonic())
        err.print(f"compiling the kernels of {kind} sources, once on this machine", highlight=False)

    before_first_compilation(begin)
    compile_kernels(kind)
    if began:
        err.print(f"compiled the kernels in {time.monotonic() - began[0]:.0f} s", highlight=False)


class _Interrupt:
    """The view that the work on one pipeline has of signals."""

    def __init__(self, received: threading.Event) -> None:
        self._received = received
        self.is_delivering = False

    def note(self, step: Step) -> None:
        """Note where the work is. Raises KeyboardInterrupt at the end of a batch in which a signal came."""
        self.is_delivering = step.phase not in {"draining", "acknowledged", "standing by"}
        if self._received.is_set() and not self.is_delivering:
            raise KeyboardInterrupt

    def wait(self, seconds: float) -> bool:
        """Wait, and return whether a signal came."""
        return self._received.wait(seconds)


class _Interrupts:
    """Ctrl-C and SIGTERM: they end the run after the batches under way, a second one ends it at once."""

    def __init__(self) -> None:
        self._received = threading.Event()
        self._of: dict[str, _Interrupt] = {}

    def of(self, pipeline: str) -> _Interrupt:
        """Return what asks for the work on one pipeline."""
        return self._of.setdefault(pipeline, _Interrupt(self._received))

    def require_none(self) -> None:
        """Raise KeyboardInterrupt if a signal came."""
        if self._received.is_set():
            raise KeyboardInterrupt

    def receive(self, *_: object) -> None:
        """Handle a signal. Raises KeyboardInterrupt the second time, or if the one pipeline has no batch under way."""
        self.require_none()
        if len(self._of) == 1 and not any(interrupt.is_delivering for interrupt in self._of.values()):
            raise KeyboardInterrupt
        self._received.set()
        os.write(2, b"the run ends after this batch; Ctrl-C ends it now\n")


def _modified(path: Path) -> int:
    """Return when a file was changed last, in nanoseconds; 0: it is not there, as between two of its versions."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _with_lineage(runtime: Runtime, steps: Iterator[Step]) -> Generator[Step, None, None]:
    """Pass the steps on, and tell OpenLineage of acknowledged batches if its client is configured."""
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
    tallies: Mapping[str, _Tally], built: Callable[[PipelineConfig], Runtime], host: str, port: int | None
) -> Iterator[None]:
    """Serve the monitoring port inside of the block, if there is one, and send what OpenTelemetry is to get."""
    from sluice import telemetry
    from sluice.telemetry.settings import is_wanted

    try:
        if port is None and not is_wanted("metrics"):
            yield
        else:
            with _watched(tallies, built, host, port):
                yield
    finally:
        telemetry.flush()


@contextmanager
def _watched(
    tallies: Mapping[str, _Tally], built: Callable[[PipelineConfig], Runtime], host: str, port: int | None
) -> Iterator[None]:
    """Serve the monitoring port, and send metrics by OpenTelemetry, inside of the block."""
    from sluice.config.folders import pipelines_folder
    from sluice.config.loading import find_pipeline
    from sluice.operations.metrics import Looks, Seen
    from sluice.operations.otel_metrics import sending
    from sluice.serve.monitor import MonitorServer, look

    def seen(name: str) -> Seen:
        return replace(look(built(find_pipeline(name, pipelines_folder()))), stages=tallies[name].stages())

    def not_ready() -> list[str]:
        if not all(tally.steps for tally in tallies.values()):
            return ["it has not begun: the store of positions or the source has not answered yet"]
        return [error for pipeline in looks.newest() for error in pipeline.status.errors]

    looks = Looks(lambda: list(tallies), seen)
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
