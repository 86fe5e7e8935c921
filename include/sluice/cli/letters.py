"""``sluice dead-letters``: what rules and targets did not take, and its way to the target after all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from sluice.cli.console import AsJson, Pipeline, Yes, ask, err, out, print_json
from sluice.cli.service import service

if TYPE_CHECKING:
    from sluice.operations.deadletters.store import DeadLetter

letters_app = typer.Typer(
    no_args_is_help=True, help="Rows that a rule or a target did not take: list, show, replay, discard."
)

Ids = Annotated[list[str] | None, typer.Argument(help="Ids, or their first digits; none: all that wait.")]


@letters_app.command(name="list")
def list_letters(
    pipeline: Pipeline,
    everything: Annotated[
        bool, typer.Option("--all", help="Also those that were replayed, superseded or discarded.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the dead letters that wait, oldest first."""
    found = service().letters(pipeline, everything=everything)
    if as_json:
        print_json([one.to_json() for one in found])
        return
    if not found:
        out.print("[green]no dead letters[/]" + ("" if everything else " wait"))
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("id", "state", "batch", "from", "op", "table", "key", "reason"):
        table.add_column(heading, overflow="fold")
    for one in found:
        state = "[yellow]waiting[/]" if one.waiting else ", ".join(sorted(set(one.settled.values())))
        what = "batch" if one.stage == "skip" else f"{'rule' if one.stage == 'rule' else 'target'} {one.by}"
        table.add_row(
            one.id,
            state if one.waiting else escape(state),
            str(one.batch),
            escape(what),
            one.op,
            escape(one.table),
            escape(_key(one)),
            escape(one.reason),
        )
    out.print(table)


@letters_app.command()
def show(
    pipeline: Pipeline,
    wanted: Annotated[str, typer.Argument(metavar="ID", help="Its id, or the first digits.")],
    as_json: AsJson = False,
) -> None:
    """Show one dead letter: why, where it came from, and the row. Values of masked columns are not shown."""
    one, row = service().letter(pipeline, wanted)
    if as_json:
        print_json(one.to_json() | row)
        return
    lines = {
        "id": one.id,
        "reason": one.reason,
        "at": one.where,
        "table": f"{one.op} {one.table} {_key(one)}",
        "position": f"{one.file}:{one.offset}" + (f"  gtid {one.gtid}" if one.gtid else "") if one.file else "",
        "batch": f"{one.batch}, change {one.seq}, committed {one.commit_time}"
        if one.stage != "skip"
        else f"{one.batch}, {one.rows} changes",
        "waits for": ", ".join(one.waiting) or "none: " + ", ".join(f"{t} {s}" for t, s in one.settled.items()),
    }
    for name, value in lines.items():
        if value:
            out.print(f"[dim]{name:>9}[/]  {escape(value)}", highlight=False)
    if row["row"]:
        table = Table(box=None, pad_edge=False)
        for heading in ("column", "row", *(["before"] if row["before"] else [])):
            table.add_column(heading, overflow="fold")
        for name, value in row["row"].items():
            cells = [_cell(value), *([_cell(row["before"].get(name))] if row["before"] else [])]
            table.add_row(escape(name), *map(escape, cells))
        out.print()
        out.print(table)
    if one.waiting:
        out.print(f"\nwhen the cause is fixed: sluice dead-letters replay {escape(pipeline)} {one.id}", highlight=False)


@letters_app.command()
def replay(
    pipeline: Pipeline,
    ids: Ids = None,
    target: Annotated[str | None, typer.Option(help="Only for this target.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would become of each.")] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Deliver dead letters after the cause is fixed: through the present rules, under the target's fence, never over a
    newer row.
    """
    to = service()
    if not yes and not dry_run:
        waiting = len(to.waiting_letters(pipeline, ids or []))
        if waiting:  # what becomes of each takes as long to find out as to do it
            ask(f"Replay {waiting:,} dead letters? `--dry-run` says what would become of each.")
    done = to.replay(pipeline, ids or [], target, dry_run=dry_run)
    if as_json:
        print_json([outcome.to_json() for outcome in done])
    else:
        colours = {
            "replayed": "green",
            "superseded": "dim",
            "failed": "bold red",
            "unproven": "yellow",
            "settled": "dim",
        }
        for outcome in done:
            word = (
                f"would be {outcome.outcome}"
                if dry_run and outcome.outcome in {"replayed", "superseded"}
                else outcome.outcome
            )
            out.print(
                f"{outcome.id}  {escape(outcome.target)}  [{colours[outcome.outcome]}]{word}[/]  {escape(outcome.why)}",
                highlight=False,
            )
        if not done:
            out.print("[green]no dead letters wait[/]")
    if any(outcome.outcome in {"failed", "unproven"} for outcome in done):
        raise typer.Exit(1)


@letters_app.command()
def discard(
    pipeline: Pipeline,
    ids: Annotated[list[str], typer.Argument(help="Ids, or their first digits.")],
    reason: Annotated[str, typer.Option("--reason", help="Why; goes into the audit.")] = "",
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Give dead letters up: they are not delivered, and retention removes them."""
    to = service()
    found = to.waiting_letters(pipeline, ids)
    if not yes:
        for one in found:
            (err if as_json else out).print(
                f"{one.id}  {one.op} {escape(one.table)} {escape(_key(one))}", highlight=False
            )
        ask(f"Give {len(found)} dead letters up?")
    done = to.discard(pipeline, ids, reason)
    if as_json:
        print_json([one.to_json() for one in done])
    else:
        out.print(f"discarded {len(done)} dead letters", highlight=False)


def _key(one: DeadLetter) -> str:
    if one.stage == "skip":
        return f"{one.rows} changes"
    return ", ".join(f"{name}={value!r}" for name, value in one.key.items()) or "(no key)"


def _cell(value: Any) -> str:
    return "NULL" if value is None else value.hex(" ") if isinstance(value, bytes) else str(value)
