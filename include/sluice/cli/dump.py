"""``sluice dump``: start, watch and steer dumps."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from sluice.cli.console import (
    AsJson,
    Overwrite,
    Pipeline,
    Yes,
    ask,
    err,
    given,
    open_pipeline,
    out,
    print_json,
    print_plan,
)
from sluice.cli.dumptable import describe_dump, listed
from sluice.cli.service import require_reach, service
from sluice.errors import SluiceError
from sluice.operations.plan import ActionPlan

if TYPE_CHECKING:
    from sluice.flows.dump.progress import DumpView
    from sluice.flows.runtime import Runtime

dump_app = typer.Typer(
    no_args_is_help=True, help="Copy tables while the log is read: initial copies, repairs, backfills. No lock, no "
    "pause."
)  # fmt: skip

WAITS_EVERY_S = 1.0
"""How often a command without a terminal looks what a dump waits for."""

DumpId = Annotated[str, typer.Argument(help="Id of a dump; none: the newest that has not ended.")]
ChunkRows = Annotated[int | None, typer.Option("--chunk-rows", help="Rows a chunk, at most.")]
DelayMs = Annotated[int | None, typer.Option("--delay-ms", help="Pause between two chunks of a worker.")]
Parallelism = Annotated[int | None, typer.Option("--parallelism", help="Chunks read at the same time.")]
MaxRate = Annotated[int | None, typer.Option("--max-rows-per-second", help="Over all workers; 0: as fast as it goes.")]
MaxThreads = Annotated[
    int | None, typer.Option("--max-threads-running", help="Wait while the source runs more statements than this; 0: "
    "don't look.")
]  # fmt: skip
MaxLag = Annotated[
    float | None, typer.Option("--max-replica-lag-s", help="Wait while a replica is further behind; 0: don't look.")
]


@dump_app.command()
def start(
    pipeline: Pipeline,
    *,
    table: Annotated[list[str] | None, typer.Option("--table", "-t",
        help="schema.table; several times; none: all captured.")] = None,
    where: Annotated[str | None,
        typer.Option("--where", help="SQL condition on the rows of one table; runs read-only.")] = None,
    first: Annotated[list[str] | None, typer.Option("--from", help="First key; once a key column.")] = None,
    last: Annotated[list[str] | None, typer.Option("--to", help="Last key; once a key column.")] = None,
    key: Annotated[list[str] | None,
        typer.Option("--key", help="A key (columns joined by commas); several times.")] = None,
    since: Annotated[str | None,
        typer.Option("--since", help="Keys that the log changed since this time (ISO 8601).")] = None,
    until: Annotated[str | None, typer.Option("--until", help="… and before this one.")] = None,
    target: Annotated[list[str] | None, typer.Option("--target", help="Only for this target; several times.")] = None,
    index: Annotated[
        str | None, typer.Option("--index", help="Cut one table by this index, not by its primary key; --from and "
        "--to mean it.")
    ] = None,
    replace: Annotated[bool,
        typer.Option("--replace",
            help="Also remove rows from the targets that the source does not have (any more).")] = False,
    overwrite: Overwrite = False,
    chunk_rows: ChunkRows = None,
    delay_ms: DelayMs = None,
    parallelism: Parallelism = None,
    max_rows_per_second: MaxRate = None,
    max_threads_running: MaxThreads = None,
    max_replica_lag_s: MaxLag = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say which tables, and about how many rows.")] = False,
    yes: Yes = False,
    wait: Annotated[bool | None,
        typer.Option("--wait/--detach", help="Read chunks in this process until all are placed, or leave it to others. "
            "Default: --wait; through --api a run of Airflow reads them.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Copy captured tables, or a part of one, to the targets again while the log is read."""
    for option, value in {"--where": where, "--since": since, "--until": until, "--index": index}.items():
        given(option, value)
    for option, values in {"--table": table, "--target": target, "--key": key}.items():
        given(option, *(values or ()))
    if wait:
        require_reach("dump start --wait", "a run of Airflow reads the chunks; `sluice dump show --watch` watches it")
    if max_threads_running is not None or max_replica_lag_s is not None:
        why = "--max-threads-running and --max-replica-lag-s are no fields of the form of its DAG; `sluice dump tune`"
        require_reach("dump start", f"{why} sets them")

    dump_spec = {
        "tables": table or (),
        "where": where or "",
        "lower": first or (),
        "upper": last or (),
        "keys": key or (),
        "since": since or "",
        "until": until or "",
        "targets": target or (),
        "index": index or "",
        "replace": replace,
    }
    tuning = {
        "chunk_rows": chunk_rows,
        "delay_ms": delay_ms,
        "parallelism": parallelism,
        "max_rows_per_second": max_rows_per_second,
        "max_threads_running": max_threads_running,
        "max_replica_lag_s": max_replica_lag_s,
    }
    begin = partial(service().start_dump, pipeline, dump_spec, tuning, overwrite=overwrite)
    if replace and not (yes or dry_run):
        begin(dry_run=True)  # what is refused needs no answer
        tables = ", ".join(table or ()) or "every captured table"
        ask(f"Delete rows of {tables} from {', '.join(target or ()) or 'every target'} that the source does not have?")
    dump = begin(dry_run=dry_run)
    if isinstance(dump, ActionPlan):  # others read its chunks
        print_plan(dump, as_json)
        return
    if dry_run:
        if as_json:
            print_json(dump.to_json())
        else:
            for request in dump.tables:
                words = "would replace" if request.replace else "would read"
                out.print(f"{words} {escape(str(request.table))}: about {request.estimate:,} rows", highlight=False)
            if dump.note:
                out.print(f"[yellow]{escape(dump.note)}[/]", highlight=False)
        return
    if wait is not False:
        _work(open_pipeline(pipeline, mode="local"), dump.id, as_json)
    else:
        _print(service().dump(pipeline, dump.id), as_json)


@dump_app.command()
def work(pipeline: Pipeline, dump: DumpId = "", as_json: AsJson = False) -> None:
    """Read chunks of a dump in this process until all are placed.

    Several processes may; a dead one's chunks are taken over.
    """
    from sluice.flows.dump.progress import newest

    runtime = open_pipeline(pipeline, mode="local")
    with runtime.state() as state:
        name = newest(state, dump)
    _work(runtime, name, as_json)


def _work(runtime: Runtime, dump: str, as_json: bool) -> None:
    from sluice.flows.dump.progress import one_view
    from sluice.flows.dump.worker import work as work_flow
    from sluice.flows.runtime import Runtime

    failed: list[BaseException] = []

    def run() -> None:
        try:
            work_flow(Runtime.build(runtime.pipeline, resolver=runtime.resolver, runner="local"), dump, stop=stop)
        except BaseException as error:
            failed.append(error)
        finally:
            ended.set()

    stop, ended = threading.Event(), threading.Event()
    thread = threading.Thread(target=run, name="dump", daemon=True)
    thread.start()
    try:
        if err.is_terminal and not as_json:
            _bars(runtime, dump, thread)
        else:
            _waits(runtime, dump, ended)
        ended.wait()  # not join(): in Python 3.11 one that is interrupted takes the thread for ended, and the next returns at once  # noqa: E501
    except KeyboardInterrupt:
        stop.set()
        ended.wait()
        err.print(f"stopped; `sluice dump work {runtime.name} {dump}` goes on after the last finished chunk")
        raise
    if failed:
        raise failed[0]
    if as_json:
        print_json(one_view(runtime, dump).to_json())
    else:
        out.print(describe_dump(one_view(runtime, dump), out))


def _waits(runtime: Runtime, dump: str, ended: threading.Event) -> None:
    """Say on standard error what the dump waits for, each reason once, until it has ended."""
    from sluice.flows.dump.progress import one_view

    last_reason = ""
    with suppress(SluiceError), runtime.state():  # the work itself says what is wrong
        while not ended.wait(WAITS_EVERY_S):
            why = one_view(runtime, dump).waiting_for
            if why and why != last_reason:
                err.print(f"dump {escape(dump)} waits: {escape(why)}", highlight=False)
            last_reason = why or last_reason


def _bars(runtime: Runtime, dump: str, thread: threading.Thread) -> None:
    """Show one bar per table until the thread ends."""
    from rich.live import Live

    from sluice.flows.dump.progress import one_view

    with Live(console=err, auto_refresh=False, transient=True) as live, runtime.state():
        while thread.is_alive():
            live.update(describe_dump(one_view(runtime, dump), err, most=max(err.height - 6, 3)), refresh=True)
            thread.join(0.5)


@dump_app.command(name="list")
def list_(pipeline: Pipeline, as_json: AsJson = False) -> None:
    """List all dumps of a pipeline."""
    views = service().dumps(pipeline)
    if as_json:
        print_json([v.to_json() for v in views])
    else:
        out.print(listed(views, out))


@dump_app.command()
def show(
    pipeline: Pipeline,
    dump: DumpId = "",
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh every second until it has ended.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show one dump: a line per table."""
    to = service()
    if not watch or as_json:
        _print(to.dump(pipeline, dump), as_json)
        return
    from rich.live import Live

    with Live(console=out, auto_refresh=False) as live, to.watching(pipeline):
        while True:
            now = to.dump(pipeline, dump)
            live.update(describe_dump(now, out, most=max(out.height - 6, 3)), refresh=True)
            if now.state in {"done", "cancelled"}:
                return
            time.sleep(1)


@dump_app.command()
def pause(pipeline: Pipeline, dump: DumpId = "", as_json: AsJson = False) -> None:
    """Begin no further chunk until resume, whatever dies in between."""
    _print(service().steer_dump(pipeline, "pause", dump, {}), as_json)


@dump_app.command()
def resume(pipeline: Pipeline, dump: DumpId = "", as_json: AsJson = False) -> None:
    """Continue a dump after its last finished chunk."""
    _print(service().steer_dump(pipeline, "resume", dump, {}), as_json)


@dump_app.command()
def cancel(pipeline: Pipeline, dump: DumpId = "", as_json: AsJson = False) -> None:
    """End a dump; what is placed stays."""
    _print(service().steer_dump(pipeline, "cancel", dump, {}), as_json)


@dump_app.command()
def tune(
    pipeline: Pipeline,
    *,
    dump: DumpId = "",
    chunk_rows: ChunkRows = None,
    delay_ms: DelayMs = None,
    parallelism: Parallelism = None,
    max_rows_per_second: MaxRate = None,
    max_threads_running: MaxThreads = None,
    max_replica_lag_s: MaxLag = None,
    as_json: AsJson = False,
) -> None:
    """Change chunk size, delay, parallelism and limits of a dump while it runs."""
    changes = {
        "chunk_rows": chunk_rows,
        "delay_ms": delay_ms,
        "parallelism": parallelism,
        "max_rows_per_second": max_rows_per_second,
        "max_threads_running": max_threads_running,
        "max_replica_lag_s": max_replica_lag_s,
    }
    _print(service().steer_dump(pipeline, "tune", dump, changes), as_json)


def _print(view: DumpView, as_json: bool) -> None:
    if as_json:
        print_json(view.to_json())
    else:
        out.print(describe_dump(view, out))
