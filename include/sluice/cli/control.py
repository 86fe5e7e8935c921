"""Commands by which people control pipelines and that :mod:`sluice.cli.verbs` does not make: they act on groups, too,
or only show.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from sluice.cli.console import (
    AsJson,
    DryRun,
    Pipeline,
    Reason,
    Yes,
    ask,
    out,
    print_error,
    print_json,
)
from sluice.cli.service import service
from sluice.cli.verbs import act
from sluice.errors import ConfigError

if TYPE_CHECKING:
    from sluice.operations.groups import GroupMove


def failover(
    pipeline: Annotated[
        str, typer.Argument(help="Name of a pipeline, or the path of its file. May be left out with --group.")
    ] = "",
    *,
    to: Annotated[
        str, typer.Option("--to", help="A connection of source.connections; default: the first other one that has all.")
    ] = "",
    group: Annotated[str, typer.Option("--group", help="All pipelines whose file says source: {group: NAME}.")] = "",
    reason: Reason = "",
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Read another server of the source from now on, at the same place; with --group in all pipelines of the group."""
    if bool(pipeline) == bool(group):
        raise ConfigError("say what fails over", hint="a pipeline, or --group NAME")
    if group:
        move_group("source", group, {"to": to, "reason": reason}, dry_run=dry_run, yes=yes, as_json=as_json)
        return
    act(pipeline, "failover", {"to": to, "reason": reason}, dry_run=dry_run, yes=yes, as_json=as_json)


def move_group(kind: str, group: str, order: Mapping[str, Any], *, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Show the plan of each pipeline of a source or target group, ask once, and move those that may be.

    Exit 1 if one was refused.
    """
    way = service()
    moves: dict[str, GroupMove] = {}
    for group_move in way.move_group(kind, group, order, dry_run=True):
        moves[group_move.pipeline] = group_move
        for step in () if as_json else group_move.steps:
            out.print(f"{escape(group_move.pipeline)}: {escape(step)}", highlight=False)
        if group_move.error is not None and not as_json:
            print_error(group_move.error)
    able = [name for name, move in moves.items() if move.error is None]
    if able and not dry_run:
        if not yes:
            ask(f"Do it in {len(able)} of {len(moves)} pipelines?")
        for group_move in way.move_group(kind, group, {**order, "pipelines": able}, dry_run=False):
            moves[group_move.pipeline] = group_move
            if group_move.error is not None and not as_json:
                print_error(group_move.error)
    refused = sum(move.error is not None for move in moves.values())
    if as_json:
        print_json([move.to_json() for move in moves.values()])
    elif not dry_run:
        out.print(f"[green]{len(moves) - refused} of {len(moves)} pipelines done[/]")
    if refused:
        raise typer.Exit(1)


def audit(pipeline: Pipeline, as_json: AsJson = False) -> None:
    """Show what people did to a pipeline."""
    entries = service().audit(pipeline)
    if as_json:
        print_json(entries)
        return
    for entry in entries:
        rest = {k: v for k, v in entry.items() if k not in {"at", "by", "what"} and v not in ("", None)}
        out.print(
            f"{escape(entry['at'])}  {escape(str(entry['by']))}  {escape(str(entry['what']))}  "
            f"{escape(str(rest)) if rest else ''}",
            highlight=False,
        )
