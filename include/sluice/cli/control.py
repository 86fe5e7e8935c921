"""Commands by which people control a pipeline: pause, resume, restart, rollback, skip, redeliver, adopt, seek,
audit.
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
    planned,
    print_error,
    print_json,
    print_plan,
)
from sluice.cli.service import service
from sluice.errors import ConfigError

if TYPE_CHECKING:
    from sluice.operations.groups import GroupMove

PipelineOrChannel = Annotated[
    str, typer.Argument(help="Name of a pipeline or of a channel, or the path of a pipeline's file.")
]


def pause(pipeline: PipelineOrChannel, reason: Reason = "", as_json: AsJson = False) -> None:
    """Stop all work of a pipeline, or of both pipelines of a channel, within seconds, without losing anything."""
    print_plan(service().act(pipeline, "pause", {"reason": reason}), as_json)


def resume(pipeline: PipelineOrChannel, as_json: AsJson = False) -> None:
    """Let a paused pipeline, or both pipelines of a channel, go on."""
    print_plan(service().act(pipeline, "resume", {}), as_json)


def restart(
    pipeline: Pipeline,
    reason: Reason = "",
    grace: Annotated[
        float | None, typer.Option(help="Seconds for which no other installation takes over; default: as configured.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Begin all work under way again from the same batches; leave time to restart workers or the scheduler."""
    print_plan(service().act(pipeline, "restart", {"reason": reason, "grace_s": grace}), as_json)


def planned_action(
    pipeline: str, action: str, order: dict[str, Any], *, dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Show the plan of an action, ask, do it."""
    to = service()
    planned(lambda dry: to.act(pipeline, action, order, dry_run=dry), dry_run, yes, as_json)


def rollback(pipeline: Pipeline, dry_run: DryRun = False, yes: Yes = False, as_json: AsJson = False) -> None:
    """Make the undelivered batches anew from their segments."""
    planned_action(pipeline, "rollback", {}, dry_run=dry_run, yes=yes, as_json=as_json)


def skip(
    pipeline: Pipeline,
    *,
    target: Annotated[str, typer.Argument(help="Name of the target.")],
    batch: Annotated[int, typer.Argument(help="Number of its next batch.")],
    lost: Annotated[
        bool,
        typer.Option("--lost", help="Its files are damaged or gone: don't read them; nothing is kept for a replay."),
    ] = False,
    reason: Reason = "",
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Let a target do without a batch; its changes are kept in the dead-letter store."""
    order = {"target": target, "batch": batch, "lost": lost, "reason": reason}
    planned_action(pipeline, "skip", order, dry_run=dry_run, yes=yes, as_json=as_json)


def redeliver(
    pipeline: Pipeline,
    target: Annotated[str, typer.Argument(help="Name of the target.")],
    from_batch: Annotated[
        int | None, typer.Option("--from-batch", help="Default: after what the target says it holds.")
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Load acknowledged batches again, after a target was restored or replaced."""
    order = {"target": target, "from_batch": from_batch}
    planned_action(pipeline, "redeliver", order, dry_run=dry_run, yes=yes, as_json=as_json)


def seek(
    pipeline: Pipeline,
    to: Annotated[
        str,
        typer.Argument(
            help="latest, earliest, binlog.000042:1234, a GTID set, or 2026-01-31T12:00:00Z. "
            "May be left out with --drop-undelivered: where the first undelivered batch begins."
        ),
    ] = "",
    drop: Annotated[
        bool,
        typer.Option(
            "--drop-undelivered",
            help="Do without the batches that are not delivered yet, e.g. as their files are lost.",
        ),
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Move the captured position of a pipeline."""
    planned_action(pipeline, "seek", {"to": to, "drop": drop}, dry_run=dry_run, yes=yes, as_json=as_json)


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
    planned_action(pipeline, "failover", {"to": to, "reason": reason}, dry_run=dry_run, yes=yes, as_json=as_json)


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


def adopt(
    pipeline: Pipeline,
    *,
    target: Annotated[str, typer.Argument(help="Name of the target.")],
    from_target: Annotated[
        bool, typer.Option("--from-target", help="The target is right: read the log again from where it is.")
    ] = False,
    reset: Annotated[
        bool,
        typer.Option(
            "--reset", help="ZooKeeper is right, or the target gets a new copy: overwrite what the target says."
        ),
    ] = False,
    reason: Reason = "",
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Say which side counts where a target and ZooKeeper do not agree on what was delivered."""
    if from_target == reset:
        raise ConfigError("say which side counts", hint="--from-target or --reset; --dry-run shows what each would do")
    order = {"target": target, "side": "target" if from_target else "zookeeper", "reason": reason}
    planned_action(pipeline, "adopt", order, dry_run=dry_run, yes=yes, as_json=as_json)


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
