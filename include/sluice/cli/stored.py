"""``sluice segments`` and ``sluice tail``: what is stored of the batches."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from sluice.cli.console import AsJson, Pipeline, err, json_shown, log_to_stderr, open_pipeline, out, print_json


def segments(
    pipeline: Pipeline,
    batch: Annotated[int | None, typer.Option(help="Show the files of one batch.")] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Read everything and compare checksums.")] = False,
    prune: Annotated[
        bool,
        typer.Option(
            "--prune",
            help="Remove what every target has and retention no longer keeps, and compact what is older than "
            "compact_after.",
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With --prune: only say what would be done.")] = False,
    as_json: AsJson = False,
) -> None:
    """List, verify or prune the stored batches."""
    from sluice.operations import retention, stored

    log_to_stderr(False)
    runtime = open_pipeline(pipeline)
    if prune:
        outcome = retention.prune(runtime, dry_run=dry_run)
        if as_json:
            print_json(outcome.to_json())
        else:
            word = "would remove" if dry_run else "removed"
            out.print(f"{word} {len(outcome.removed)} batches, kept {outcome.kept}", highlight=False)
            if outcome.compacted:
                word = "would compact" if dry_run else "compacted"
                out.print(f"{word} {len(outcome.compacted)} batches into {outcome.archives} archives", highlight=False)
            for warning in outcome.warnings:
                out.print(f"[yellow]{escape(warning)}[/]", highlight=False)
        return
    rows = stored.segments(runtime, batch=batch, verify=verify)
    if as_json:
        print_json(rows)
        return
    table = Table(box=None, pad_edge=False)
    for key in rows[0] if rows else ("batch",):
        table.add_column(key, overflow="fold")
    for row in rows:
        table.add_row(*(escape(str(v)) for v in row.values()))
    out.print(table)
    if verify:
        out.print(f"[green]{len(rows)} verified, no damage[/]")


def tail(
    pipeline: Pipeline,
    fmt: Annotated[
        str, typer.Option("--format", help="debezium-json, maxwell-json, canal-json, cloudevents-json or your own.")
    ] = "debezium-json",
    from_batch: Annotated[
        int | None, typer.Option("--from-batch", help="First batch to print; default: only new ones.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", "-f", help="Wait for further batches.")] = True,
) -> None:
    """Print captured changes and statements as JSON lines, as Debezium, Maxwell or canal publish them
    (docs/formats.md).
    """
    from sluice.operations.stored import tail as tail_flow

    log_to_stderr(False)
    shows = sys.stdout.isatty()
    if follow:
        since = "new batches" if from_batch is None else f"batches from {from_batch} on"
        err.print(f"[dim]prints {since} of {escape(pipeline)} as they are captured; Ctrl-C ends it[/]", highlight=False)
    for line in tail_flow(open_pipeline(pipeline), fmt=fmt, from_batch=from_batch, follow=follow):
        sys.stdout.write((json_shown(line) if shows else line) + "\n")
        sys.stdout.flush()
