"""A process that loads batches into ClickHouse and dies, or stops, at one request."""

from __future__ import annotations

from typing import Any

from sluice.targets.clickhouse.client import Client
from tests.support.crashes.strikes import At, deliver


def load(bench: Any, batch: Any, epoch: int, at: At, said: Any) -> None:
    """See :func:`tests.support.crashes.strikes.deliver`. Each statement that is sent is a call."""
    _count(at, "")
    deliver(bench, [batch], epoch, at, said)


def load_counting(bench: Any, batch: Any, epoch: int, at: At, what: str, said: Any) -> None:
    """The same, of which only statements that are for ``what`` are calls."""
    _count(at, what)
    deliver(bench, [batch], epoch, at, said)


def _count(at: At, what: str) -> None:
    sent = Client._sent

    def counted(client: Client, doing: str, *args: Any, **more: Any) -> Any:
        call = at.watch(doing, sent) if what in doing else sent
        return call(client, doing, *args, **more)

    Client._sent = counted  # type: ignore[method-assign]
