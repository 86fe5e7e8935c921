"""``python -m devstack demo|up|down|status``: the stack's commands without the rest of the command line."""

from __future__ import annotations

import argparse
import sys

from devstack import commands
from devstack.kinds import KINDS
from sluice.errors import SluiceError


def main() -> int:
    """Run the command; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m devstack", description="The local development stack.")
    parser.add_argument("command", choices=("demo", "up", "down", "status"))
    parser.add_argument("--seconds", type=int, default=30, help="length of the demo's workload")
    parser.add_argument("--target", default="", help=f"demo: kind of a second target: {', '.join(KINDS)}")
    parser.add_argument(
        "--channel", action="store_true", help="demo: both servers take writes, and a channel keeps them equal"
    )
    parser.add_argument("--source", default="mysql", help="demo: kind of the source: mysql or postgresql")
    parser.add_argument("--json", action="store_true", help="status as JSON")
    arguments = parser.parse_args()
    try:
        match arguments.command:
            case "demo":
                return commands.demo(
                    seconds=arguments.seconds,
                    target=arguments.target,
                    channel=arguments.channel,
                    source=arguments.source,
                )
            case "up":
                return commands.up()
            case "down":
                return commands.down()
            case _:
                return commands.status(as_json=arguments.json)
    except SluiceError as error:
        sys.stderr.write(f"error: {error}\n")
        return 75 if error.retryable else 1


if __name__ == "__main__":
    sys.exit(main())
