"""``sluice channel``: two pipelines that keep two servers equal."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from sluice.cli.console import AsJson, out, print_json
from sluice.cli.service import service
from sluice.config.connections import from_environment
from sluice.config.folders import channels_folder, pipelines_folder

channel_app = typer.Typer(no_args_is_help=True, help="Channels: two servers that are both written to, kept equal.")


@channel_app.command()
def new(
    name: Annotated[str, typer.Argument(help="Name of the channel.")],
    pipelines: Annotated[
        tuple[str, str], typer.Option("--pipelines", help="The two pipelines: each one's target is the other's source.")
    ],
    main: Annotated[
        str,
        typer.Option(
            "--main", help="The main site: the pipeline that reads it, how its name begins, or its connection."
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Make a channel of two pipelines that exist: write include/channels/NAME.yaml."""
    from sluice.operations.channel import new_channel

    path = new_channel(
        name,
        pipelines,
        main,
        folder=channels_folder(),
        pipelines_folder=pipelines_folder(),
        resolver=from_environment,
    )
    if as_json:
        print_json({"channel": name, "file": str(path)})
        return
    out.print(
        f"wrote {escape(str(path))}: `sluice check {escape(pipelines[0])}` looks at it; docs/two-way.md says how to "
        "begin"
    )


@channel_app.command(name="list")
def list_channels(as_json: AsJson = False) -> None:
    """List all channels."""
    channels = service().channels()
    if as_json:
        print_json(channels)
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("channel", "pipelines", "main", "problem"):
        table.add_column(heading, overflow="fold")
    for line in channels:
        table.add_row(
            escape(line["channel"]), escape(", ".join(line["pipelines"])), escape(line["main"] or ""),
            escape(line["error"] or ""),
        )  # fmt: skip
    out.print(table)


@channel_app.command()
def show(name: Annotated[str, typer.Argument(help="Name of the channel.")], as_json: AsJson = False) -> None:
    """Show a channel, its pipelines, and the number that marks the changes that each of them loaded (`_origin`)."""
    channel = service().channel(name)
    if as_json:
        print_json(channel)
        return
    out.print(
        f"channel {escape(channel['channel'])}: main {escape(channel['main'])}, DDL by {escape(channel['ddl'])}",
        highlight=False,
    )
    table = Table(box=None, pad_edge=False)
    for heading in ("pipeline", "source", "target", "_origin", "mark"):
        table.add_column(heading, overflow="fold")
    for line in channel["pipelines"]:
        table.add_row(
            escape(line["pipeline"]), escape(line["source"]), escape(line["target"]), str(line["origin"]),
            escape(line["mark"] or ""),
        )  # fmt: skip
    out.print(table)


@channel_app.command()
def conflicts(name: Annotated[str, typer.Argument(help="Name of the channel.")], as_json: AsJson = False) -> None:
    """Show rows that both sites changed before they had each other's change: the last ones, and how many there were."""
    summary = service().conflicts(name)
    if as_json:
        print_json(summary)
        return
    out.print(f"{summary['count']} conflicts; {escape(summary['won'])} won", highlight=False)
    table = Table(box=None, pad_edge=False)
    for heading in ("at", "table", "key", "main site", "other site"):
        table.add_column(heading, overflow="fold")
    for line in summary["conflicts"]:
        table.add_row(
            line["at"], escape(f"{line['schema']}.{line['table']}"), _values(line["key"]), _values(line["main"]),
            _values(line["other"]),
        )  # fmt: skip
    out.print(table)


def _values(row: dict[str, str | None] | None) -> str:
    if row is None:
        return "deleted"
    return escape(", ".join(f"{name}={'NULL' if value is None else value}" for name, value in row.items()))
