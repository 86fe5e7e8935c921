"""``sluice status``: positions, batches in flight, lag."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from sluice.cli.console import AsJson, log_to_stderr, out, print_error, print_json
from sluice.cli.service import service
from sluice.config.folders import pipelines_folder
from sluice.errors import ConfigError

if TYPE_CHECKING:
    from sluice.operations.status import Status


def status(
    pipeline: Annotated[str | None, typer.Argument(help="Name of a pipeline; none: all.")] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh every second.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show positions, batches in flight and lag, of one pipeline or all.

    With --watch and --json, print a line of JSON every second.

    A pipeline file that cannot be read is named, the others are shown, and the exit code is 1.
    """
    log_to_stderr(False)
    to, broken = service(), False

    def read() -> list[Status]:
        """Return the statuses; a pipeline that has none is named, once."""
        nonlocal broken
        statuses = to.statuses(pipeline)
        for pipeline_status in statuses:
            if isinstance(pipeline_status, dict) and not broken:
                print_error(ConfigError("\n".join(pipeline_status["errors"]), where=pipeline_status["pipeline"]))
        broken = broken or any(isinstance(pipeline_status, dict) for pipeline_status in statuses)
        return [pipeline_status for pipeline_status in statuses if not isinstance(pipeline_status, dict)]

    if as_json:
        while True:
            results = [status if isinstance(status, dict) else status.to_json() for status in to.statuses(pipeline)]
            print_json(results[0] if pipeline else results)
            if not watch:
                raise typer.Exit(1 if any(result["state"] == "invalid" for result in results) else 0)
            time.sleep(1)
    readable = read()
    if not readable:
        if not broken:
            from sluice.config.problems import shown

            out.print(f"no pipeline in {escape(shown(str(pipelines_folder())))}: README says how to add one")
        raise typer.Exit(1 if broken else 0)
    if not watch:
        out.print(_status_table(readable))
        raise typer.Exit(1 if broken else 0)
    from rich.live import Live

    with Live(console=out, auto_refresh=False, screen=False) as live:
        while True:
            live.update(_status_table(read()), refresh=True)
            time.sleep(1)


def _of_the_source(status: Status) -> Iterator[str]:
    from sluice.model.sizes import in_units

    if status.server:
        yield f"reads {status.server} of its source group"
    for target in status.targets:
        if target.server:
            yield f"writes target {target.name} at {target.server} of its group"
    if status.retained_bytes is not None:
        budget = f" of {in_units(status.retained_budget_bytes)}" if status.retained_budget_bytes else ""
        yield f"the source keeps {in_units(status.retained_bytes)}{budget} of log for the pipeline"


def _status_table(statuses: list[Status]) -> RenderableType:
    from sluice.cli.dumptable import in_a_line
    from sluice.cli.subscriptions import in_words_of
    from sluice.model.sizes import in_units
    from sluice.operations.rule_stats import files_in_words, in_words

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
        "copying": "cyan",
        "paused": "yellow",
        "new": "dim",
        "failing": "bold red",
        "not_configured": "bold red",
        "unreachable": "bold red",
        "no_answer": "bold red",
        "stopped": "bold red",
    }
    messages: list[str] = []
    for s in statuses:
        notes: list[str] = []
        state = f"[{colour.get(s.state, 'dim')}]{s.state.replace('_', ' ')}[/]"
        if not s.targets:
            table.add_row(s.pipeline, state, "", escape(str(s.captured or "")), "", "", "", "", "", "")
        for t in s.targets:
            waiting = (t.enqueued_batch or 0) - (t.batch or 0)
            lag = "?" if t.lag_ms is None else f"{t.lag_ms / 1000:.1f} s"
            behind = "?" if t.lag_bytes is None else in_units(t.lag_bytes)
            table.add_row(
                s.pipeline,
                state,
                t.name,
                escape(str(s.captured or "")),
                escape(str(t.enqueued or "")),
                escape(str(t.position or "")),
                str(t.batch or 0),
                str(waiting),
                lag,
                behind,
            )
            if t.alert_since:
                notes.append(f"[red]{t.name} has lagged too far behind since {escape(str(t.alert_since))}[/]")
            if t.waits:
                notes.append(f"[dim]{t.name}: {escape(t.waits)}; `sluice targets commit {s.pipeline}` does it now[/]")
        notes.extend(f"[dim]{escape(line)}[/]" for line in _of_the_source(s))
        if s.paused:
            notes.append(f"[yellow]paused {escape(s.paused)}[/]")
        if s.rules and in_words(s.rules):
            notes.append(f"[dim]rules, batch {s.rules_batch}: {escape(in_words(s.rules))}[/]")
        if s.files:
            notes.append(f"[dim]files, {escape(files_in_words(s.files))}[/]")
        if s.dead_letters:
            notes.append(f"[yellow]{s.dead_letters} dead letters wait: sluice dead-letters list {s.pipeline}[/]")
        notes.extend(f"[cyan]dump {escape(in_a_line(dump))}[/]" for dump in s.dumps if not dump.ended_ms)
        notes.extend(f"[dim]subscription {escape(in_words_of(subscription))}[/]" for subscription in s.subscriptions)
        if s.conflicts:
            notes.append(f"[dim]{s.conflicts} conflicts met: sluice channel conflicts {s.channel}[/]")
        if s.verified:
            notes.append(f"[dim]verified {escape(s.verified)}[/]")
        if s.reread_from and s.reread_from != s.captured:
            notes.append(f"[dim]if the segments were lost: read again from {escape(str(s.reread_from))}[/]")
        notes.extend(f"[yellow]{escape(message)}[/]" for message in [*s.incomplete, *s.warnings])
        notes.extend(f"[red]{escape(str(failure))}[/]" for failure in s.failures)
        silent = [no_answer.text for no_answer in s.no_answer if no_answer.text not in s.errors]
        notes.extend(f"[red]{escape(message)}[/]" for message in [*silent, *s.errors])
        messages += [f"{s.pipeline}: {line}" for line in notes] if len(statuses) > 1 else notes
    return Group(table, *(Text.from_markup(line, overflow="fold") for line in messages)) if messages else table
