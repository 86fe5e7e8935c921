"""``sluice check``: what goes where, and what would go wrong."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from sluice.cli.console import AsJson, Pipeline, ask, err, log_to_stderr, out, print_json
from sluice.cli.service import Service, service


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
    log_to_stderr(False)
    to = service()
    report = to.check(pipeline)
    missing = statements(report)
    if apply and missing:
        make(to, pipeline, missing, yes=yes)
        report = to.check(pipeline)
        missing = statements(report)
    if as_json:
        print_json(report)
    else:
        print_report(pipeline, report)
        if missing:
            out.print(
                f"`sluice check {escape(pipeline)} --apply` runs the {len(missing)} statements that make what is "
                "missing"
            )
    if any(finding["severity"] == "error" for finding in report["findings"]):
        raise typer.Exit(1)


def print_report(pipeline: str, report: dict[str, Any]) -> None:
    """Print the findings of a check as a table."""
    table = Table(title=f"check {escape(pipeline)}", title_justify="left", box=None, pad_edge=False)
    for heading in ("", "part", "what", "value", "why / what to do"):
        table.add_column(heading, overflow="fold")
    colour = {"ok": "green", "warning": "yellow", "error": "bold red"}
    for finding in report["findings"]:
        why = escape(finding["why"]) + (f"\n[cyan]{escape(finding['fix'])}[/]" if finding["fix"] else "")
        mark = f"[{colour[finding['severity']]}]{finding['severity']}[/]"
        table.add_row(mark, *(escape(finding[name]) for name in ("part", "setting", "value")), why)
    out.print(table)


def make(to: Service, pipeline: str, missing: list[tuple[str, str]], *, yes: bool) -> None:
    """Run the statements that make what is missing, after a question."""
    for place, statement in missing:
        err.print(f"[dim]{escape(place)}[/] {escape(statement)};", highlight=False)
    if not yes:
        ask(f"Run these {len(missing)} statements?")
    to.act(pipeline, "make-missing", {})


def statements(report: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the statements that would make what is missing, each with its place."""
    at_source = [("the source", statement) for statement in report["source_statements"]]
    return [*at_source, *((entry["target"], entry["statement"]) for entry in report["statements"])]
