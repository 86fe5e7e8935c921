"""What all commands share: arguments, the two consoles, JSON, errors, and plans that are shown before they are carried out."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import structlog
import typer
from rich.console import Console
from rich.markup import escape

from sluice.config.connections import from_environment
from sluice.config.loading import find_pipeline
from sluice.errors import SluiceError
from sluice.flows.runtime import Runtime, pipelines_folder

if TYPE_CHECKING:
    from sluice.flows.admin import Plan


Pipeline = Annotated[str, typer.Argument(help="Name of a pipeline, or the path of its YAML file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log every step to standard error.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]
Reason = Annotated[str, typer.Option("--reason", help="Why; goes into the audit.")]

out = Console() if sys.stdout.isatty() else Console(width=200)
err = Console(stderr=True)


def open_pipeline(pipeline: str, *, mode: str | None = None) -> Runtime:
    """The pipeline of this name or file, with its connections from the environment. Raises ConfigError."""
    return Runtime.build(find_pipeline(pipeline, pipelines_folder()), resolver=from_environment, runner=mode)


def print_json(data: Any) -> None:
    """One line of JSON on standard output; what JSON has no type for goes as text."""
    print(json.dumps(data, ensure_ascii=False, default=str), flush=True)


def print_error(error: SluiceError) -> None:
    """What went wrong, where, and what to do next, on standard error."""
    err.print(f"[bold red]error[/] {escape(error.message)}", highlight=False, soft_wrap=True)
    if error.where:
        err.print(f"  [dim]at[/] {escape(error.where)}", highlight=False, soft_wrap=True)
    if error.hint:
        err.print(f"  [dim]next[/] {escape(error.hint)}", highlight=False, soft_wrap=True)


def log_to_stderr(verbose: bool) -> None:
    """Warnings to standard error, as lines for people; with ``verbose`` every step."""
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


def planned(act: Callable[[bool], Plan], dry_run: bool, yes: bool, as_json: bool) -> None:
    """Show the plan, ask, do it."""
    plan = act(True)
    if not as_json or dry_run:
        print_plan(plan, as_json)
    if dry_run:
        return
    if not yes:
        typer.confirm("Do it?", abort=True, err=True)
    plan = act(False)
    if as_json:
        print_plan(plan, True)
    else:
        out.print("[green]done[/]")


def print_plan(plan: Plan, as_json: bool) -> None:
    """The steps of a plan, a line each."""
    if as_json:
        print_json(plan.to_json())
        return
    for step in plan.steps:
        out.print(f"{plan.what}: {escape(step)}", highlight=False)
