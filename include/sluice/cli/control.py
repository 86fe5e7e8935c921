"""What people do to a pipeline: pause, resume, restart, rollback, skip, redeliver, seek, and the audit of all that."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape

from sluice.cli.console import (
    AsJson,
    DryRun,
    Pipeline,
    Reason,
    Yes,
    open_pipeline,
    out,
    planned,
    print_json,
    print_plan,
)


def pause(pipeline: Pipeline, reason: Reason = "", as_json: AsJson = False) -> None:
    """Stop all work of a pipeline within seconds, without losing anything."""
    from sluice.flows import admin

    print_plan(admin.pause(open_pipeline(pipeline), by=admin.who(), reason=reason), as_json)


def resume(pipeline: Pipeline, as_json: AsJson = False) -> None:
    """Let a paused pipeline go on."""
    from sluice.flows import admin

    print_plan(admin.resume(open_pipeline(pipeline), by=admin.who()), as_json)


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

    print_plan(admin.restart(open_pipeline(pipeline), by=admin.who(), reason=reason, grace_s=grace), as_json)


def rollback(pipeline: Pipeline, dry_run: DryRun = False, yes: Yes = False, as_json: AsJson = False) -> None:
    """Make the undelivered batches anew from their segments."""
    from sluice.flows import admin

    planned(lambda dry: admin.rollback(open_pipeline(pipeline), by=admin.who(), dry_run=dry), dry_run, yes, as_json)


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

    runtime = open_pipeline(pipeline)
    planned(
        lambda dry: admin.skip(runtime, target, batch, by=admin.who(), reason=reason, dry_run=dry),
        dry_run,
        yes,
        as_json,
    )


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

    runtime = open_pipeline(pipeline)
    planned(
        lambda dry: admin.redeliver(runtime, target, by=admin.who(), dry_run=dry, from_batch=from_batch),
        dry_run,
        yes,
        as_json,
    )


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

    planned(lambda dry: admin.seek(open_pipeline(pipeline), to, by=admin.who(), dry_run=dry), dry_run, yes, as_json)


def audit(pipeline: Pipeline, as_json: AsJson = False) -> None:
    """What people did to a pipeline."""
    with open_pipeline(pipeline).state() as state:
        entries = state.audit_log()
    if as_json:
        print_json(entries)
        return
    for entry in entries:
        rest = {k: v for k, v in entry.items() if k not in {"at", "by", "what"} and v not in {"", None}}
        out.print(
            f"{escape(entry['at'])}  {escape(str(entry['by']))}  {escape(str(entry['what']))}  {escape(str(rest)) if rest else ''}",
            highlight=False,
        )
