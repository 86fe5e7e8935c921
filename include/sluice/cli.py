"""The ``sluice`` command: the flows, for people and for scripts (``--json``)."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import structlog
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sluice.cli_dump import dump_app
from sluice.cli_letters import letters_app
from sluice.cli_rules import rules_app
from sluice.config.connections import from_environment
from sluice.config.loading import find_pipeline, pipeline_json_schema
from sluice.errors import ConfigError, SluiceError
from sluice.flows.runtime import Runtime, pipelines_folder

if TYPE_CHECKING:
    from sluice.flows.admin import Plan
    from sluice.flows.status import Status

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
stack_app = typer.Typer(
    no_args_is_help=True, help="The local development stack: MySQL x2, ZooKeeper, Spark Connect, Airflow."
)
app.add_typer(stack_app, name="stack")
app.add_typer(rules_app, name="rules")
app.add_typer(dump_app, name="dump")
app.add_typer(letters_app, name="dead-letters")

Pipeline = Annotated[str, typer.Argument(help="Name of a pipeline, or the path of its YAML file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log every step to standard error.")]

out = Console() if sys.stdout.isatty() else Console(width=200)
err = Console(stderr=True)


def main() -> None:
    """Entry point; every SluiceError becomes one clear message and exit code 1 (retryable: 75)."""
    if "AIRFLOW_CONN_ZOOKEEPER_DEFAULT" not in os.environ:
        _adopt_stack_environment()
    _log_to_stderr(False)
    try:
        app()
    except SluiceError as error:
        _print_error(error)
        sys.exit(75 if error.retryable else 1)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except KeyboardInterrupt:
        err.print("stopped")
        sys.exit(130)


def _adopt_stack_environment() -> None:
    """With a development stack running, its connections are at hand in any shell of the repository."""
    from sluice.stack.commands import stack_environment

    for name, value in stack_environment().items():
        os.environ.setdefault(name, value)


def _print_error(error: SluiceError) -> None:
    err.print(f"[bold red]error[/] {escape(error.message)}", highlight=False)
    if error.where:
        err.print(f"  [dim]at[/] {escape(error.where)}", highlight=False)
    if error.hint:
        err.print(f"  [dim]next[/] {escape(error.hint)}", highlight=False)


def _log_to_stderr(verbose: bool) -> None:
    import logging

    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S.%f", utc=False),
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO if verbose else logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def _runtime(pipeline: str, *, mode: str | None = None) -> Runtime:
    return Runtime.build(find_pipeline(pipeline, pipelines_folder()), resolver=from_environment, runner=mode)


def _json(data: Any) -> None:
    print(json.dumps(data, ensure_ascii=False, default=str))


# -- check -----------------------------------------------------------------------------------------------------------------


@app.command()
def check(
    pipeline: Pipeline,
    apply: Annotated[
        bool, typer.Option("--apply", help="Make missing tables and columns at the targets, after a question.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Look at a pipeline file, its source and its targets: what goes where, and what would go wrong."""
    from sluice.flows.check import apply_missing
    from sluice.flows.check import check as run_check

    _log_to_stderr(False)
    runtime = _runtime(pipeline)
    report = run_check(runtime)
    if apply and report.statements:
        for target, statement in report.statements:
            err.print(f"[dim]{escape(target)}[/] {escape(statement)};", highlight=False)
        if not yes and not typer.confirm(f"Run these {len(report.statements)} statements?", err=True):
            raise typer.Exit(1)
        apply_missing(runtime, report.statements)
        report = run_check(runtime)
    if as_json:
        _json(report.to_json())
    else:
        table = Table(title=f"check {pipeline}", title_justify="left", box=None, pad_edge=False)
        for heading in ("", "part", "what", "value", "why / what to do"):
            table.add_column(heading, overflow="fold")
        colour = {"ok": "green", "warning": "yellow", "error": "bold red"}
        for f in report.findings:
            why = escape(f.why) + (f"\n[cyan]{escape(f.fix)}[/]" if f.fix else "")
            table.add_row(f"[{colour[f.severity]}]{f.severity}[/]", f.part, escape(f.setting), escape(f.value), why)
        out.print(table)
        if report.statements:
            out.print(
                f"`sluice check {pipeline} --apply` runs the {len(report.statements)} statements that make what is missing"
            )
    if report.failed:
        raise typer.Exit(1)


# -- run -------------------------------------------------------------------------------------------------------------------


@app.command()
def run(
    pipeline: Pipeline,
    until_head: Annotated[
        bool, typer.Option("--until-head", help="Stop when the log's end, as of now, is acknowledged.")
    ] = False,
    batches: Annotated[int | None, typer.Option(min=1, help="Stop after so many batches.")] = None,
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

    _log_to_stderr(verbose)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends in an orderly way: another one may go on at once
    runtime = _runtime(pipeline, mode=None if spark else "local")
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
                    _json(step.to_json())
                else:
                    out.print(
                        f"batch {step.batch}  {step.changes} changes  to {step.position}  {step.seconds:.2f} s",
                        highlight=False,
                    )
            elif spinner is not None:
                spinner.update(f"batch {step.batch or ''} {step.phase}  {escape(str(step.position or ''))}")
    if not as_json:
        out.print(f"done: {count} batches, {changes} changes in {time.monotonic() - started:.1f} s", highlight=False)


@contextmanager
def _silence() -> Iterator[None]:
    yield None


# -- status ----------------------------------------------------------------------------------------------------------------


@app.command()
def status(
    pipeline: Annotated[str | None, typer.Argument(help="Name of a pipeline; none: all.")] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh every second.")] = False,
    as_json: AsJson = False,
) -> None:
    """Positions, batches in flight and lag, of one pipeline or all."""
    from sluice.flows.status import status as read_status

    _log_to_stderr(False)
    runtimes = [_runtime(pipeline)] if pipeline else _all_runtimes()
    if as_json:
        results = [read_status(r).to_json() for r in runtimes]
        _json(results[0] if pipeline else results)
        return
    if not watch:
        out.print(_status_table([read_status(r) for r in runtimes]))
        return
    from rich.live import Live

    with Live(console=out, auto_refresh=False, screen=False) as live:
        while True:
            live.update(_status_table([read_status(r) for r in runtimes]), refresh=True)
            time.sleep(1)


def _all_runtimes() -> list[Runtime]:
    found = []
    for path in sorted(pipelines_folder().glob("*.y*ml")):
        try:
            found.append(_runtime(str(path)))
        except ConfigError as error:
            _print_error(error)
    return found


def _status_table(statuses: list[Status]) -> Table:
    from sluice.flows.rulestatus import in_words

    table = Table(box=None, pad_edge=False)
    for heading in (
        "pipeline",
        "state",
        "target",
        "captured",
        "enqueued",
        "delivered",
        "batch",
        "in flight",
        "lag",
        "behind",
    ):
        table.add_column(heading, overflow="fold")
    colour = {
        "idle": "green",
        "running": "cyan",
        "behind": "yellow",
        "paused": "yellow",
        "new": "dim",
        "unreachable": "bold red",
    }
    for s in statuses:
        state = f"[{colour[s.state]}]{s.state}[/]"
        if not s.targets:
            table.add_row(s.pipeline, state, "", str(s.captured or ""), "", "", "", "", "", "")
        for t in s.targets:
            waiting = (t.enqueued_batch or 0) - (t.batch or 0)
            lag = "?" if t.lag_ms is None else f"{t.lag_ms / 1000:.1f} s"
            behind = "?" if t.lag_bytes is None else _bytes(t.lag_bytes)
            table.add_row(
                s.pipeline,
                state,
                t.name,
                str(s.captured or ""),
                str(t.enqueued or ""),
                str(t.position or ""),
                str(t.batch or 0),
                str(waiting),
                lag,
                behind,
            )
            if t.alert_since:
                table.add_row("", "", "", f"[red]{t.name} has lagged too far behind since {t.alert_since}[/]")
        if s.paused:
            table.add_row("", "", "", f"[yellow]paused {escape(s.paused)}[/]")
        if s.rules and in_words(s.rules):
            table.add_row("", "", "", f"[dim]rules, batch {s.rules_batch}: {escape(in_words(s.rules))}[/]")
        if s.dead_letters:
            table.add_row(
                "", "", "", f"[yellow]{s.dead_letters} dead letters wait: sluice dead-letters list {s.pipeline}[/]"
            )
        if s.reread_from and s.reread_from != s.captured:
            table.add_row("", "", "", f"[dim]if the segments were lost: read again from {s.reread_from}[/]")
        for message in s.warnings:
            table.add_row("", "", "", f"[yellow]{escape(message)}[/]")
        for message in s.errors:
            table.add_row("", "", "", f"[red]{escape(message)}[/]")
    return table


def _bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


# -- segments and tail -------------------------------------------------------------------------------------------------------


@app.command()
def segments(
    pipeline: Pipeline,
    batch: Annotated[int | None, typer.Option(help="Show the files of one batch.")] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Read everything and compare checksums.")] = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove what every target has and retention no longer keeps.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With --prune: only say what would go.")] = False,
    as_json: AsJson = False,
) -> None:
    """List, verify or prune the stored batches."""
    from sluice.flows import inspect, retention

    _log_to_stderr(False)
    runtime = _runtime(pipeline)
    if prune:
        outcome = retention.prune(runtime, dry_run=dry_run)
        if as_json:
            _json(outcome.to_json())
        else:
            word = "would remove" if dry_run else "removed"
            out.print(f"{word} {len(outcome.removed)} batches, kept {outcome.kept}", highlight=False)
        return
    rows = inspect.segments(runtime, batch=batch, verify=verify)
    if as_json:
        _json(rows)
        return
    table = Table(box=None, pad_edge=False)
    for key in rows[0] if rows else ("batch",):
        table.add_column(key, overflow="fold")
    for row in rows:
        table.add_row(*(escape(str(v)) for v in row.values()))
    out.print(table)
    if verify:
        out.print(f"[green]{len(rows)} verified, no damage[/]")


@app.command()
def tail(
    pipeline: Pipeline,
    fmt: Annotated[str, typer.Option("--format", help="debezium-json, maxwell-json or canal-json.")] = "debezium-json",
    from_batch: Annotated[
        int | None, typer.Option("--from-batch", help="First batch to print; default: only new ones.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", "-f", help="Wait for further batches.")] = True,
) -> None:
    """Print captured changes as JSON lines, in the format of a system you know."""
    from sluice.flows.inspect import tail as tail_flow

    _log_to_stderr(False)
    for line in tail_flow(_runtime(pipeline), fmt=fmt, from_batch=from_batch, follow=follow):
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


# -- what people do to a pipeline ----------------------------------------------------------------------------------------------

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]
Reason = Annotated[str, typer.Option("--reason", help="Why; goes into the audit.")]


@app.command()
def pause(pipeline: Pipeline, reason: Reason = "", as_json: AsJson = False) -> None:
    """Stop all work of a pipeline within seconds, without losing anything."""
    from sluice.flows import admin

    _print_plan(admin.pause(_runtime(pipeline), by=admin.who(), reason=reason), as_json)


@app.command()
def resume(pipeline: Pipeline, as_json: AsJson = False) -> None:
    """Let a paused pipeline go on."""
    from sluice.flows import admin

    _print_plan(admin.resume(_runtime(pipeline), by=admin.who()), as_json)


@app.command()
def restart(
    pipeline: Pipeline,
    reason: Reason = "",
    grace: Annotated[
        float | None, typer.Option(help="Seconds for which no other installation takes over; default: as configured.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Begin all work under way again from the same batches; leave time to restart workers or the scheduler."""
    from sluice.flows import admin

    _print_plan(admin.restart(_runtime(pipeline), by=admin.who(), reason=reason, grace_s=grace), as_json)


@app.command()
def rollback(pipeline: Pipeline, dry_run: DryRun = False, yes: Yes = False, as_json: AsJson = False) -> None:
    """Make the undelivered batches anew from their segments."""
    from sluice.flows import admin

    _planned(lambda dry: admin.rollback(_runtime(pipeline), by=admin.who(), dry_run=dry), dry_run, yes, as_json)


@app.command()
def skip(
    pipeline: Pipeline,
    target: Annotated[str, typer.Argument(help="Name of the target.")],
    batch: Annotated[int, typer.Argument(help="Number of its next batch.")],
    reason: Reason = "",
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Let a target do without a batch; its changes are kept in the dead-letter store."""
    from sluice.flows import admin

    runtime = _runtime(pipeline)
    _planned(
        lambda dry: admin.skip(runtime, target, batch, by=admin.who(), reason=reason, dry_run=dry),
        dry_run,
        yes,
        as_json,
    )


@app.command()
def redeliver(
    pipeline: Pipeline,
    target: Annotated[str, typer.Argument(help="Name of the target.")],
    from_batch: Annotated[
        int | None, typer.Option("--from-batch", help="Default: behind what the target says it holds.")
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Load acknowledged batches again, after a target was restored or replaced."""
    from sluice.flows import admin

    runtime = _runtime(pipeline)
    _planned(
        lambda dry: admin.redeliver(runtime, target, by=admin.who(), dry_run=dry, from_batch=from_batch),
        dry_run,
        yes,
        as_json,
    )


@app.command()
def seek(
    pipeline: Pipeline,
    to: Annotated[
        str, typer.Argument(help="latest, earliest, binlog.000042:1234, a GTID set, or 2026-01-31T12:00:00Z.")
    ],
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Move the captured position of a pipeline."""
    from sluice.flows import admin

    _planned(lambda dry: admin.seek(_runtime(pipeline), to, by=admin.who(), dry_run=dry), dry_run, yes, as_json)


@app.command()
def audit(pipeline: Pipeline, as_json: AsJson = False) -> None:
    """What people did to a pipeline."""
    with _runtime(pipeline).state() as state:
        entries = state.audit_log()
    if as_json:
        _json(entries)
        return
    for entry in entries:
        rest = {k: v for k, v in entry.items() if k not in {"at", "by", "what"} and v not in {"", None}}
        out.print(
            f"{entry['at']}  {entry['by']}  {entry['what']}  {escape(str(rest)) if rest else ''}", highlight=False
        )


def _planned(act: Callable[[bool], Plan], dry_run: bool, yes: bool, as_json: bool) -> None:
    """Show the plan, ask, do it."""
    plan = act(True)
    if not as_json or dry_run:
        _print_plan(plan, as_json)
    if dry_run:
        return
    if not yes:
        typer.confirm("Do it?", abort=True, err=True)
    plan = act(False)
    if as_json:
        _print_plan(plan, True)
    else:
        out.print("[green]done[/]")


def _print_plan(plan: Plan, as_json: bool) -> None:
    if as_json:
        _json(plan.to_json())
        return
    for step in plan.steps:
        out.print(f"{plan.what}: {escape(step)}", highlight=False)


schema_app = typer.Typer(
    help="The schema history: definitions as of the captured position. Without a command: the JSON Schema of the pipeline file."
)
app.add_typer(schema_app, name="schema")


@schema_app.callback(invoke_without_command=True)
def schema_command(
    context: typer.Context,
    write: Annotated[bool, typer.Option("--write", help="Write include/pipelines/schema.json.")] = False,
) -> None:
    """Print the JSON Schema of the pipeline file, or work with a pipeline's schema history."""
    if context.invoked_subcommand is not None:
        return
    text = pipeline_json_schema()
    if write:
        (pipelines_folder() / "schema.json").write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)


@schema_app.command(name="show")
def schema_show(
    pipeline: Pipeline,
    table: Annotated[str | None, typer.Argument(help="schema.table; none: all tables.")] = None,
    as_json: AsJson = False,
) -> None:
    """The definitions with which the log is read, as of the captured position."""
    from sluice.flows import schema_admin

    _log_to_stderr(False)
    found = schema_admin.show(_runtime(pipeline), table)
    if as_json:
        _json(found)
        return
    out.print(f"as of {found['position']}", highlight=False)
    rows = Table(box=None, pad_edge=False)
    if table is not None and found["table"]:
        for heading in ("column", "type", "null", "charset", "default"):
            rows.add_column(heading, overflow="fold")
        for column in found["table"]["columns"]:
            null = "" if column.get("nullable", True) else "not null"
            rows.add_row(
                escape(column["name"]),
                escape(column["type"]),
                null,
                column.get("collation") or "",
                escape(column.get("default") or ""),
            )
    elif table is not None:
        rows.add_row(f"[red]not known[/]: {escape(found['unknown']['reason'])} {found['unknown']['where']}")
    else:
        for heading in ("table", "columns", "key"):
            rows.add_column(heading, overflow="fold")
        for line in found["tables"]:
            rows.add_row(escape(line["table"]), str(line["columns"]), escape(", ".join(line["key"])))
        for line in found["unknown"]:
            rows.add_row(escape(line["table"]), "[red]not known[/]", escape(f"{line['reason']} {line['where']}"))
    out.print(rows)


@schema_app.command(name="set")
def schema_set(
    pipeline: Pipeline,
    table: Annotated[str, typer.Argument(help="schema.table")],
    file: Annotated[
        Path,
        typer.Option(
            "--file", exists=True, dir_okay=False, help="A file with its CREATE TABLE as of the captured position."
        ),
    ],
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Tell the history what a table was, where the log does not say and the server cannot any more."""
    from sluice.flows import admin, schema_admin

    sql = file.read_text(encoding="utf-8")
    runtime = _runtime(pipeline)
    _planned(
        lambda dry: schema_admin.set_table(runtime, table, sql, by=admin.who(), dry_run=dry), dry_run, yes, as_json
    )


@schema_app.command(name="reload")
def schema_reload(
    pipeline: Pipeline,
    tables: Annotated[list[str] | None, typer.Argument(help="schema.table …; none: all.")] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Read definitions from the server again, where they provably are those of the captured position."""
    from sluice.flows import admin, schema_admin

    runtime = _runtime(pipeline)
    _planned(
        lambda dry: schema_admin.reload_tables(runtime, tables or [], by=admin.who(), dry_run=dry),
        dry_run,
        yes,
        as_json,
    )


# -- stack -------------------------------------------------------------------------------------------------------------------


@stack_app.command()
def demo(seconds: Annotated[int, typer.Option(help="Length of the live workload.")] = 30) -> None:
    """From nothing to a running pipeline, a live workload, and a comparison of both sides."""
    from sluice.stack import commands

    raise typer.Exit(commands.demo(seconds=seconds))


@stack_app.command()
def up() -> None:
    """Start the stack and leave it running."""
    from sluice.stack import commands

    raise typer.Exit(commands.up())


@stack_app.command()
def down() -> None:
    """Stop everything the stack started."""
    from sluice.stack import commands

    raise typer.Exit(commands.down())


@stack_app.command(name="status")
def stack_status(as_json: AsJson = False) -> None:
    """What runs, where."""
    from sluice.stack import commands

    raise typer.Exit(commands.status(as_json=as_json))


@stack_app.command()
def env() -> None:
    """Print `export` lines with the stack's connections, for a shell: eval "$(sluice stack env)"."""
    import shlex

    from sluice.stack.commands import stack_environment

    for name, value in sorted(stack_environment().items()):
        print(f"export {name}={shlex.quote(value)}")


__all__ = ["Path", "app", "main"]

if __name__ == "__main__":
    main()
