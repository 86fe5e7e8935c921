"""``sluice source``: the server that is read."""

from __future__ import annotations

import typer

from sluice.cli.console import AsJson, Pipeline, log_to_stderr, open_pipeline, print_json, print_lines
from sluice.errors import ConfigError

source_app = typer.Typer(no_args_is_help=True, help="The source: keep its log for longer than the server does.")


@source_app.callback()
def _group() -> None:
    """Have a command below, although there is one only."""


@source_app.command()
def archive(pipeline: Pipeline, as_json: AsJson = False) -> None:
    """Copy the closed files of the source's binary log that source.archive lacks. Run it more often than the server
    purges its log."""
    from sluice.model.sizes import in_units
    from sluice.sources.port import ArchivesLog

    log_to_stderr(False)
    runtime = open_pipeline(pipeline)
    with runtime.source.open() as session:
        if not isinstance(session, ArchivesLog):
            raise ConfigError(
                f"the source of {runtime.name} has no files of a log to archive",
                hint="a PostgreSQL keeps its log for the slot: slot_budget in docs/postgresql-source.md",
            )
        for name, size in session.archive():
            if as_json:
                print_json({"file": name, "bytes": size})
            else:
                print_lines(f"{name}: {in_units(size)}")


__all__ = ["source_app"]
