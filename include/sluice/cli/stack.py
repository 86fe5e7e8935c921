"""``sluice stack``: the local development stack."""

from __future__ import annotations

from typing import Annotated

import typer

from sluice.cli.console import AsJson

stack_app = typer.Typer(
    no_args_is_help=True, help="The local development stack: MySQL x2, ZooKeeper, Spark Connect, Airflow."
)


@stack_app.command()
def demo(
    seconds: Annotated[int, typer.Option(help="Length of the live workload.")] = 30,
    target: Annotated[
        str, typer.Option(help="Kind of a second target, in addition to the MySQL one; a wrong name lists them.")
    ] = "",
    channel: Annotated[bool, typer.Option(help="Both servers take writes, and a channel keeps them equal.")] = False,
    source: Annotated[str, typer.Option(help="Kind of the source: mysql or postgresql.")] = "mysql",
) -> None:
    """Start from nothing: a pipeline, a live workload, and a comparison of both sides."""
    from devstack import commands

    raise typer.Exit(commands.demo(seconds=seconds, target=target, channel=channel, source=source))


@stack_app.command()
def up() -> None:
    """Start the stack and leave it running."""
    from devstack import commands

    raise typer.Exit(commands.up())


@stack_app.command()
def down() -> None:
    """Stop everything the stack started."""
    from devstack import commands

    raise typer.Exit(commands.down())


@stack_app.command(name="status")
def stack_status(as_json: AsJson = False) -> None:
    """Show what runs, and where."""
    from devstack import commands

    raise typer.Exit(commands.status(as_json=as_json))


@stack_app.command()
def env() -> None:
    """Print `export` lines with the stack's connections, for a shell: eval "$(sluice stack env)"."""
    import shlex

    from devstack.processes import stack_environment

    for name, value in sorted(stack_environment().items()):
        print(f"export {name}={shlex.quote(value)}")
