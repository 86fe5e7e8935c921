"""``sluice targets`` and ``sluice formats``: list kinds of targets, start a new one, or a message format."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from sluice.cli.console import (
    AsJson,
    DryRun,
    Pipeline,
    Reason,
    Yes,
    console,
    log_to_stderr,
    open_pipeline,
    out,
    print_json,
)
from sluice.cli.control import move_group
from sluice.cli.verbs import act
from sluice.config.user_kinds import FAMILIES, Kind
from sluice.errors import ConfigError, SluiceError

targets_app = typer.Typer(no_args_is_help=True, help="Kinds of targets, and your own (include/targets).")
formats_app = typer.Typer(no_args_is_help=True, help="Your own message formats (include/formats).")
formats_app.callback()(lambda: None)  # without one, an application of one command is that command


@formats_app.command(name="new")
def new_format(
    name: Annotated[str, typer.Argument(help="Name of the format: `format:` in the options of a target.")],
    as_json: AsJson = False,
) -> None:
    """Write a starter that works (the row as it is now, flat) to include/formats/NAME.py."""
    from sluice.formats import kinds, starter

    write_starter("formats", name, kinds(), starter.__file__, as_json=as_json, key="format", page="formats.md")


@targets_app.command(name="list")
def list_targets(as_json: AsJson = False) -> None:
    """List every kind of target: built in, of installed packages, and files of include/targets; with what it offers."""
    from sluice.targets.registry import kinds

    rows: list[dict[str, Any]] = []
    for kind in kinds().values():
        row: dict[str, Any] = {"type": kind.name, "origin": kind.origin, "capabilities": None, "error": None}
        try:
            row["capabilities"] = kind.load().CAPABILITIES.to_json()
        except SluiceError as error:
            row["error"] = str(error)
        except AttributeError:
            row["capabilities"] = {}
        rows.append(row)
    if as_json:
        print_json(rows)
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("type", "origin", "changes", "guarantee", "consistency", "features"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        offered = row["capabilities"] or {}
        words = [", ".join(offered.get(name, ())) for name in ("inputs", "consistency", "features")]
        table.add_row(
            escape(row["type"]), escape(row["origin"]), words[0], escape(row["error"] or offered.get("guarantee", "")),
            words[1], words[2],
        )  # fmt: skip
    console(plain_width=200).print(table)


@targets_app.command()
def new(
    name: Annotated[str, typer.Argument(help="Name of the kind: `type:` of a target in the pipeline file.")],
    as_json: AsJson = False,
) -> None:
    """Write a starter that works (lines of JSON, at least once) to include/targets/NAME.py."""
    from sluice.targets import starter
    from sluice.targets.registry import kinds

    write_starter("targets", name, kinds(), starter.__file__, as_json=as_json, key="type", page="own-target.md")


def write_starter(
    family: str, name: str, kinds: Mapping[str, Kind], starter: str, *, as_json: bool, key: str, page: str
) -> None:
    """Write a starter into the folder of a family of kinds. Raises ConfigError if the name cannot be taken.

    ``key``: of the pipeline file, which names the kind; ``page``: of the docs, which says how to test it.
    """
    word = FAMILIES[family].word
    if not name.isidentifier() or name.startswith("_") or not name.islower():
        raise ConfigError(f"{name!r} cannot be the name of a {word}", hint="lower-case letters, digits and _")
    if name in kinds:
        raise ConfigError(f"there is a {word} {name!r} already: {kinds[name].origin}")
    path = FAMILIES[family].folder() / f"{name}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(Path(starter).read_text(encoding="utf-8"), encoding="utf-8")
    if as_json:
        print_json({key: name, "file": str(path)})
        return
    hint = f"`{key}: {name}` in a pipeline file uses it; docs/{page} says how to test it"
    console().print(escape(f"wrote {path}: {hint}"))


@targets_app.command()
def commit(
    pipeline: Pipeline,
    target: Annotated[str, typer.Argument(help="Name of the target; default: all with commit_every.")] = "",
    as_json: AsJson = False,
) -> None:
    """Write what waits for targets with commit_every now, in one commit a table."""
    from sluice.flows.load.isolation import commit_waiting
    from sluice.flows.load.load import LoadOutcome

    log_to_stderr(False)
    runtime = open_pipeline(pipeline)
    names = [runtime.pipeline.target(target).name] if target else list(runtime.commit_every)
    outcomes = {name: commit_waiting(runtime, name) for name in names}
    written = {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, LoadOutcome)}
    if as_json:
        print_json([outcome.to_json() for outcome in written.values()])
        return
    for name, outcome in outcomes.items():
        if isinstance(outcome, LoadOutcome):
            rows = outcome.upserts + outcome.deletes
            console().print(f"{escape(name)}: {outcome.batches} batches up to {outcome.batch}, {rows} rows")
        else:
            console().print(f"{escape(name)}: " + ("nothing waits" if outcome is None else "it is quarantined"))


@targets_app.command()
def switch(
    pipeline: Annotated[str, typer.Argument(help="Name of a pipeline. May be left out with --group.")] = "",
    target: Annotated[str, typer.Argument(help="Name of its target. May be left out with --group.")] = "",
    *,
    to: Annotated[
        str, typer.Option("--to", help="One of the target's connections; default: the first other one that has all.")
    ] = "",
    group: Annotated[str, typer.Option("--group", help="All targets whose file says group: NAME.")] = "",
    rewind: Annotated[
        bool, typer.Option("--rewind", help="Deliver again what the other server lacks, while it is stored.")
    ] = False,
    reason: Reason = "",
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Write a target at another server of its group from now on; with --group in all pipelines.

    Refused where the other server lacks what was acknowledged.
    """
    if bool(pipeline) == bool(group) or bool(pipeline) != bool(target):
        raise ConfigError("say which target is switched", hint="a pipeline and its target, or --group NAME")
    order = {"to": to, "rewind": rewind, "reason": reason}
    if group:
        move_group("target", group, order, dry_run=dry_run, yes=yes, as_json=as_json)
        return
    order = {"target": target, **order}
    act(pipeline, "switch-target", order, dry_run=dry_run, yes=yes, as_json=as_json)


@targets_app.command()
def maintain(
    pipeline: Pipeline,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    as_json: AsJson = False,
) -> None:
    """Look after the files of targets such as delta: compact small ones, remove old ones.

    The DAG retention does it every hour.
    """
    from sluice.operations.maintenance import maintain as look_after

    log_to_stderr(False)
    outcomes = look_after(open_pipeline(pipeline), dry_run=dry_run)
    if as_json:
        print_json([maintenance.to_json() for maintenance in outcomes])
    else:
        table = Table(box=None, pad_edge=False)
        for heading in ("target", "table", "merged", "into", "removed", "versions expired", "error"):
            table.add_column(heading, overflow="fold")
        for maintenance in outcomes:
            for row in maintenance.tables:
                numbers = map(str, (row.merged, row.written, row.removed, row.expired))
                table.add_row(escape(maintenance.target), escape(str(row.table)), *numbers, escape(row.error))
        out.print(table)
    if any(row.error for maintenance in outcomes for row in maintenance.tables):
        raise typer.Exit(1)
