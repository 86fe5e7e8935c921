"""A process that loads one batch into a MongoDB and dies, or stops, at one call of its client."""

from __future__ import annotations

from typing import Any

from sluice.targets.mongodb.client import Client
from tests.support.crashes.strikes import At, deliver


def load(bench: Any, batch: Any, epoch: int, at: At, said: Any) -> None:
    """See :func:`tests.support.crashes.strikes.deliver`. Each command is a call."""
    _counted(at, "")
    deliver(bench, [batch], epoch, at, said)


def load_counting_rows(bench: Any, batch: Any, epoch: int, at: At, said: Any) -> None:
    """The same, of which only commands with rows are calls."""
    _counted(at, "writing rows")
    deliver(bench, [batch], epoch, at, said)


def _counted(at: At, begin: str) -> None:
    command = Client.command

    def counted(client: Client, doing: str, *args: Any, **more: Any) -> Any:
        call = at.watch("command", command) if doing.startswith(begin) else command
        return call(client, doing, *args, **more)

    Client.command = counted  # type: ignore[method-assign]
