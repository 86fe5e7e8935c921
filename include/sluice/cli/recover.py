"""``sluice recover``: what is lost in which store, and the way back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from sluice.cli.console import AsJson, Pipeline, Yes, ask, open_pipeline, out, print_json
from sluice.errors import ConfigError

if TYPE_CHECKING:
    from sluice.operations.recover.plan import Measure, RecoveryPlan

_COLOURS = {"ok": "green", "warning": "yellow", "loss": "red"}


def recover(
    pipeline: Pipeline,
    apply: Annotated[bool, typer.Option("--apply", help="Do what the plan says.")] = False,
    choose: Annotated[
        list[str] | None,
        typer.Option("--choose", help="SUBJECT=CHOICE: the answer to a question of the plan. May be repeated."),
    ] = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Look at the source's log, ZooKeeper, the segments and the targets; show what is lost and the way back."""
    from sluice.operations.control import who
    from sluice.operations.recover.recover import recover as recover_flow

    runtime, answers = open_pipeline(pipeline), _answers(choose or [])
    plan = recover_flow(runtime, answers, by=who(), dry_run=True)
    if not as_json:
        _show(plan)
    if apply and not plan.whole:
        plan.require_answers()
        if not yes:
            ask("Do it?")
        plan = recover_flow(runtime, answers, by=who(), dry_run=False)
        if not as_json:
            out.print("[green]done[/]")
            for command in plan.after:
                out.print(f"next, with the pipeline running: {escape(command)}", highlight=False)
            for words in plan.left:
                out.print(f"[yellow]not done yet[/]: {escape(words)}", highlight=False)
    if as_json:
        print_json({**plan.to_json(), "applied": apply})
    if apply and plan.left:
        raise typer.Exit(1)
    if as_json:
        return
    if not apply and not plan.whole:
        out.print(f"`sluice recover {escape(pipeline)} --apply` does it; the pipeline has to be stopped or paused")


def _answers(pairs: list[str]) -> dict[str, str]:
    answers = {}
    for pair in pairs:
        subject, equals, choice = pair.partition("=")
        if not equals or not subject or not choice:
            raise ConfigError(f"{pair!r} is no answer", hint="write --choose SUBJECT=CHOICE, e.g. --choose source=dump")
        answers[subject] = choice
    return answers


def _show(plan: RecoveryPlan) -> None:
    table = Table("store", "", "found")
    for finding in plan.findings:
        table.add_row(
            escape(finding.store), f"[{_COLOURS[finding.severity]}]{finding.severity}[/]", escape(finding.found)
        )
    out.print(table)
    for measure in plan.measures:
        _show_measure(measure, f"{measure.subject}: ")
    for question in plan.questions:
        out.print(f"[bold]{escape(question.subject)}: choose.[/] {escape(question.why)}", highlight=False)
        for name, measure in question.choices.items():
            _show_measure(measure, f"  --choose {question.subject}={name}: ")
    if plan.whole:
        out.print("nothing is lost: there is nothing to do")


def _show_measure(measure: Measure, lead: str) -> None:
    for step in measure.steps:
        out.print(f"{escape(lead)}{escape(step)}", highlight=False)
        lead = " " * len(lead)
    if measure.cost:
        out.print(f"{lead}[dim]cost[/] {escape(measure.cost)}", highlight=False)
    for loss in measure.lost:
        out.print(f"{lead}[red]lost[/] {escape(loss)}", highlight=False)
