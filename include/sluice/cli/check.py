"""``sluice check``: what goes where, and what would go wrong."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from sluice.cli.console import AsJson, Pipeline, ask, err, log_to_stderr, open_pipeline, out, print_json


def check(
    pipeline: Pipeline,
    apply: Annotated[
        bool,
        typer.Option(
            "--apply",
            help="Make missing tables and columns at the targets, and what the source needs, after a question.",
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Look at a pipeline file, its source and its targets: what goes where, and what would go wrong."""
    from sluice.operations.check import check as run_check
    from sluice.operations.check import make_missing

    log_to_stderr(False)
    runtime = open_pipeline(pipeline)
    report = run_check(runtime)
    missing = [*(("the source", statement) for statement in report.at_source), *report.statements]
    if apply and missing:
        for place, statement in missing:
            err.print(f"[dim]{escape(place)}[/] {escape(statement)};", highlight=False)
        if not yes:
            ask(f"Run these {len(missing)} statements?")
        make_missing(runtime, report)
        report = run_check(runtime)
    if as_json:
        print_json(report.to_json())
    else:
        table = Table(title=f"check {escape(pipeline)}", title_justify="left", box=None, pad_edge=False)
        for heading in ("", "part", "what", "value", "why / what to do"):
            table.add_column(heading, overflow="fold")
        colour = {"ok": "green", "warning": "yellow", "error": "bold red"}
        for f in report.findings:
            why = escape(f.why) + (f"\n[cyan]{escape(f.fix)}[/]" if f.fix else "")
            table.add_row(
                f"[{colour[f.severity]}]{f.severity}[/]", escape(f.part), escape(f.setting), escape(f.value), why
            )
        out.print(table)
        if count := len(report.at_source) + len(report.statements):
            out.print(
                f"`sluice check {escape(pipeline)} --apply` runs the {count} statements that make what is missing"
            )
    if report.failed:
        raise typer.Exit(1)
