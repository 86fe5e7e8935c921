"""A process that loads one batch into RabbitMQ streams and dies, or stops, at one frame that it sends."""

from __future__ import annotations

from typing import Any

from rstream.client import BaseClient

from tests.support.crashes.strikes import At, deliver


def load(bench: Any, batch: Any, epoch: int, at: At, said: Any) -> None:
    """See :func:`tests.support.crashes.strikes.deliver`. Each request, and each frame of messages, is a call."""
    ask, publish = BaseClient.sync_request, BaseClient.send_publish_frame

    async def asked(client: Any, *args: Any, **more: Any) -> Any:
        at.watch("ask", lambda: None)()
        return await ask(client, *args, **more)

    async def published(client: Any, *args: Any, **more: Any) -> None:
        at.watch("publish", lambda: None)()
        await publish(client, *args, **more)

    BaseClient.sync_request, BaseClient.send_publish_frame = asked, published  # type: ignore[method-assign,assignment]
    deliver(bench, [batch], epoch, at, said)
