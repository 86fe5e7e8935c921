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
    letters = service().letters(pipeline, everything=everything)
    if as_json:
        print_json([letter.to_json() for letter in letters])
        return
    if not letters:
        out.print("[green]no dead letters[/]" + ("" if everything else " wait"))
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("id", "state", "batch", "from", "op", "table", "key", "reason"):
        table.add_column(heading, overflow="fold")
    for letter in letters:
        state = "[yellow]waiting[/]" if letter.waiting else ", ".join(sorted(set(letter.settled.values())))
        what = "batch" if letter.stage == "skip" else f"{'rule' if letter.stage == 'rule' else 'target'} {letter.by}"
        table.add_row(
            letter.id,
            state if letter.waiting else escape(state),
            str(letter.batch),
            escape(what),
            letter.op,
            escape(letter.table),
            escape(_key(letter)),
            escape(letter.reason),
        )
    out.print(table)


@letters_app.command()
def show(
    pipeline: Pipeline,
    wanted: Annotated[str, typer.Argument(metavar="ID", help="Its id, or the first digits.")],
    as_json: AsJson = False,
) -> None:
    """Show one dead letter: why, where it came from, and the row. Values of masked columns are not shown."""
    letter, row = service().letter(pipeline, wanted)
    if as_json:
        print_json(letter.to_json() | row)
        return
    lines = {
        "id": letter.id,
        "reason": letter.reason,
        "at": letter.where,
        "table": f"{letter.op} {letter.table} {_key(letter)}",
        "position": f"{letter.file}:{letter.offset}" + (f"  gtid {letter.gtid}" if letter.gtid else "")
        if letter.file
        else "",
        "batch": f"{letter.batch}, change {letter.seq}, committed {letter.commit_time}"
        if letter.stage != "skip"
        else f"{letter.batch}, {letter.rows} changes",
        "waits for": ", ".join(letter.waiting) or "none: " + ", ".join(f"{t} {s}" for t, s in letter.settled.items()),
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
    if letter.waiting:
        out.print(
            f"\nwhen the cause is fixed: sluice dead-letters replay {escape(pipeline)} {letter.id}", highlight=False
        )


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
    outcomes = to.replay(pipeline, ids or [], target, dry_run=dry_run)
    if as_json:
        print_json([outcome.to_json() for outcome in outcomes])
    else:
        colours = {
            "replayed": "green",
            "superseded": "dim",
            "failed": "bold red",
            "unproven": "yellow",
            "settled": "dim",
        }
        for outcome in outcomes:
            word = (
                f"would be {outcome.outcome}"
                if dry_run and outcome.outcome in {"replayed", "superseded"}
                else outcome.outcome
            )
            out.print(
                f"{outcome.id}  {escape(outcome.target)}  [{colours[outcome.outcome]}]{word}[/]  {escape(outcome.why)}",
                highlight=False,
            )
        if not outcomes:
            out.print("[green]no dead letters wait[/]")
    if any(outcome.outcome in {"failed", "unproven"} for outcome in outcomes):
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
    waiting_letters = to.waiting_letters(pipeline, ids)
    if not yes:
        for letter in waiting_letters:
            (err if as_json else out).print(
                f"{letter.id}  {letter.op} {escape(letter.table)} {escape(_key(letter))}", highlight=False
            )
        ask(f"Give {len(waiting_letters)} dead letters up?")
    letters = to.discard(pipeline, ids, reason)
    if as_json:
        print_json([letter.to_json() for letter in letters])
    else:
        out.print(f"discarded {len(letters)} dead letters", highlight=False)


def _key(letter: DeadLetter) -> str:
    if letter.stage == "skip":
        return f"{letter.rows} changes"
    return ", ".join(f"{name}={value!r}" for name, value in letter.key.items()) or "(no key)"


def _cell(value: Any) -> str:
    return "NULL" if value is None else value.hex(" ") if isinstance(value, bytes) else str(value)
