"""``sluice snapshot``: the newest row of every key, in lake tables."""

from __future__ import annotations

import datetime as dt
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from sluice.cli.console import AsJson, Pipeline, log_to_stderr, open_pipeline, out, print_json
from sluice.errors import ConfigError

snapshot_app = typer.Typer(no_args_is_help=True, help="The snapshot of a pipeline: the newest row of every key.")


@snapshot_app.callback()
def _group() -> None:
    """Make `show` a subcommand, which typer does only where a callback exists."""


@snapshot_app.command()
def show(
    pipeline: Pipeline,
    table: Annotated[str | None, typer.Argument(help="schema.table; none: all tables.")] = None,
    batch: Annotated[int | None, typer.Option(min=0, help="As of this batch.")] = None,
    at: Annotated[str | None, typer.Option(help="As of this time at the source: 2026-01-31T12:00:00Z.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show tables, rows and files; as of which batch; and the versions to read them by."""
    from sluice.operations import snapshot

    log_to_stderr(False)
    if batch is not None and at is not None:
        raise ConfigError("--batch or --at, not both")
    view = snapshot.show(open_pipeline(pipeline), table, batch=batch, at=_time(at) if at is not None else None)
    if as_json:
        print_json(view.to_json())
        return
    newest = "" if view.batch == view.holds else f" (the snapshot holds batch {view.holds})"
    out.print(f"as of batch {view.batch}{newest}", highlight=False)
    if view.batch != view.asked:
        out.print(
            f"there is no version as of batch {view.asked}: batches from {view.batch + 1} on were written together",
            highlight=False,
        )
    shown_rows = Table(box=None, pad_edge=False)
    for heading in ("table", "rows", "files", "bytes", "version", "changed by batch", "of", "place"):
        shown_rows.add_column(heading, overflow="fold")
    for version in view.tables:
        numbers = (f"{number:,}" for number in (version.rows, version.files, version.size_bytes))
        shown_rows.add_row(
            escape(str(version.table)),
            *numbers,
            str(version.version),
            str(version.batch or "-"),
            version.commit_time,
            escape(version.place),
        )
    out.print(shown_rows)


def _time(text: str) -> dt.datetime:
    """Parse a time in ISO 8601; without a zone it is UTC. Raises ConfigError."""
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{text[:40]!r} is not a time; write 2026-01-31T12:00:00Z") from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.UTC)
