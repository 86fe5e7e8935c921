"""``sluice doctor``: what is wrong with the surroundings, from where it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from sluice.cli.console import AsJson, log_to_stderr, out, print_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sluice.model.findings import Finding

COLOURS = {"ok": "green", "warning": "yellow", "error": "bold red"}


def doctor(
    all_lines: Annotated[bool, typer.Option("--all", "-a", help="Show also what is in order.")] = False,
    as_json: AsJson = False,
) -> None:
    """Look at packages, folders, variables and all connections from here: run it wherever Sluice works.

    It logs in at every server that a pipeline names. Exit code 1: something is wrong.
    """
    from sluice.config.connections import from_environment
    from sluice.operations.doctor import doctor as look

    log_to_stderr(False)
    findings = look(from_environment)
    wrong = [finding for finding in findings if finding.severity != "ok"]
    if as_json:
        print_json([finding.to_json() for finding in findings])
    else:
        if visible_findings := findings if all_lines else wrong:
            out.print(_table(visible_findings))
        errors = sum(finding.severity == "error" for finding in wrong)
        out.print(
            f"{len(findings)} things looked at, {errors} errors, {len(wrong) - errors} warnings"
            + ("" if all_lines or not findings else "; --all shows everything")
        )
    if any(finding.severity == "error" for finding in findings):
        raise typer.Exit(1)


def _table(findings: Sequence[Finding]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("", "part", "what", "value", "why / what to do"):
        table.add_column(heading, overflow="fold")
    for finding in findings:
        why = escape(finding.why) + (f"\n[cyan]{escape(finding.fix)}[/]" if finding.fix else "")
        mark = f"[{COLOURS[finding.severity]}]{finding.severity}[/]"
        table.add_row(mark, escape(finding.part), escape(finding.setting), escape(finding.value), why)
    return table
