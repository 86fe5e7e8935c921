"""``sluice state``: the store of positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sluice.cli.console import AsJson, Yes, ask, log_to_stderr, print_json, print_lines

if TYPE_CHECKING:
    from sluice.config.connections import Endpoint

state_app = typer.Typer(no_args_is_help=True, help="The store of positions: ZooKeeper, or a file of this machine.")

_ADDRESS = "sqlite:///PATH, zookeeper://HOST:PORT,HOST:PORT, or the id of a connection"


@state_app.callback()
def _group() -> None:
    """Have a command below, although there is one only."""


@state_app.command()
def copy(
    to: Annotated[str, typer.Option("--to", help=f"The store that gets them: {_ADDRESS}.")],
    origin: Annotated[str, typer.Option("--from", help=f"The store that has them: {_ADDRESS}.")] = "zookeeper_default",
    root: Annotated[str, typer.Option("--root", help="coordination.root of the pipelines.")] = "/data/sync",
    wait: Annotated[int, typer.Option("--wait", min=1, help="Seconds to wait for the end of batches under way.")] = 120,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Copy all positions to another store, while pipelines work; then the old one refuses."""
    from sluice.config.pipeline import CoordinationConfig
    from sluice.coordination.connecting import connect
    from sluice.coordination.moving import Store, move

    log_to_stderr(False)
    ends = [_endpoint(text) for text in (origin, to)]
    addresses = [f"{end.kind}://{end.address}" for end in ends]
    root = CoordinationConfig(root=root).root
    if not yes:
        ask(f"Move all positions below {root} from {addresses[0]} to {addresses[1]}?")
    with connect(ends[0], session_timeout_s=10) as old, connect(ends[1], session_timeout_s=10) as new:
        count = move(Store(old, addresses[0]), Store(new, addresses[1]), root, wait_s=wait)
    if as_json:
        print_json({"from": addresses[0], "to": addresses[1], "root": root, "nodes": count})
        return
    print_lines(
        f"{count or 'all'} nodes are at {addresses[1]}, and {addresses[0]} refuses",
        "next: have coordination.connection (zookeeper_default), or SLUICE_STATE, name the new store, and start what "
        "ended",
    )


def _endpoint(text: str) -> Endpoint:
    """Return the store of an address, or of the id of a connection."""
    from sluice.config.connections import from_environment, parse_connection

    return parse_connection("the address", text) if "://" in text else from_environment(text)
