"""A process that loads one batch into Redis and dies, or stops, at one call of its client."""

from __future__ import annotations

from typing import Any

from sluice.targets.redis.client import Client
from tests.support.crashes.strikes import At, deliver


def load(bench: Any, batch: Any, epoch: int, at: At, said: Any) -> None:
    """See :func:`tests.support.crashes.strikes.deliver`. Each command that is sent is a call."""
    send = Client._send

    def counted(client: Client, *args: Any) -> None:
        at.watch("send", send)(client, *args)

    Client._send = counted  # type: ignore[method-assign,assignment]
    deliver(bench, [batch], epoch, at, said)
