"""``sluice schema``: the schema history, and the JSON Schema of the pipeline file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from sluice.cli.console import AsJson, DryRun, Pipeline, Yes, log_to_stderr, open_pipeline, out, planned, print_json
from sluice.config.folders import channels_folder, pipelines_folder

schema_app = typer.Typer(
    help="The schema history: definitions as of the captured position. Without a command: the JSON Schema of the "
    "pipeline file."
)


@schema_app.callback(invoke_without_command=True)
def schema_command(
    context: typer.Context,
    write: Annotated[
        bool,
        typer.Option(
            "--write", help="Write schema.json in include/pipelines, and in include/channels that of channels."
        ),
    ] = False,
) -> None:
    """Print the JSON Schema of the pipeline file, or work with a pipeline's schema history."""
    if context.invoked_subcommand is not None:
        return
    from sluice.config.channel import channel_json_schema
    from sluice.config.loading import pipeline_json_schema

    text = pipeline_json_schema()
    if write:
        (pipelines_folder() / "schema.json").write_text(text, encoding="utf-8")
        channels_folder().mkdir(exist_ok=True)
        (channels_folder() / "schema.json").write_text(channel_json_schema(), encoding="utf-8")
    else:
        sys.stdout.write(text)


@schema_app.command(name="show")
def schema_show(
    pipeline: Pipeline,
    table: Annotated[str | None, typer.Argument(help="schema.table; none: all tables.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the definitions with which the log is read, as of the captured position."""
    from sluice.operations import schema

    log_to_stderr(False)
    definitions = schema.show(open_pipeline(pipeline), table)
    if as_json:
        print_json(definitions)
        return
    out.print(f"as of {escape(str(definitions['position']))}", highlight=False)
    rows = Table(box=None, pad_edge=False)
    if table is not None and definitions["table"]:
        for heading in ("column", "type", "null", "charset", "default"):
            rows.add_column(heading, overflow="fold")
        for column in definitions["table"]["columns"]:
            null = "" if column.get("nullable", True) else "not null"
            rows.add_row(
                escape(column["name"]),
                escape(column["type"]),
                null,
                escape(column.get("collation") or ""),
                escape(column.get("default") or ""),
            )
    elif table is not None:
        unknown = definitions["unknown"]
        rows.add_row(f"[red]not known[/]: {escape(unknown['reason'])} {escape(str(unknown['where']))}")
    else:
        for heading in ("table", "columns", "key"):
            rows.add_column(heading, overflow="fold")
        for line in definitions["tables"]:
            rows.add_row(escape(line["table"]), str(line["columns"]), escape(", ".join(line["key"])))
        for line in definitions["unknown"]:
            rows.add_row(escape(line["table"]), "[red]not known[/]", escape(f"{line['reason']} {line['where']}"))
    out.print(rows)


@schema_app.command(name="set")
def schema_set(
    pipeline: Pipeline,
    table: Annotated[str, typer.Argument(help="schema.table")],
    file: Annotated[
        Path,
        typer.Option(
            "--file", exists=True, dir_okay=False, help="A file with its CREATE TABLE as of the captured position."
        ),
    ],
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Tell the history what a table was, where the log does not say and the server cannot any more."""
    from sluice.config.loading import read_text
    from sluice.operations import control, schema

    sql = read_text(file)
    runtime = open_pipeline(pipeline)
    planned(lambda dry: schema.set_table(runtime, table, sql, by=control.who(), dry_run=dry), dry_run, yes, as_json)


@schema_app.command(name="reload")
def schema_reload(
    pipeline: Pipeline,
    tables: Annotated[list[str] | None, typer.Argument(help="schema.table …; none: all.")] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Read definitions from the server again, where they provably are those of the captured position."""
    from sluice.operations import control, schema

    runtime = open_pipeline(pipeline)
    planned(
        lambda dry: schema.reload_tables(runtime, tables or [], by=control.who(), dry_run=dry),
        dry_run,
        yes,
        as_json,
    )
