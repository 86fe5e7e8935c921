"""A process that loads one batch into Elasticsearch and dies, or stops, at one request."""

from __future__ import annotations

from typing import Any

from sluice.targets.elasticsearch.bulk import BulkSender
from sluice.targets.web.client import WebClient
from tests.support.crashes.strikes import At, deliver


def load(bench: Any, batch: Any, epoch: int, at: At, said: Any) -> None:
    """See :func:`tests.support.crashes.strikes.deliver`. Each request that is sent is a call."""
    ask = WebClient._ask

    def counted(client: WebClient, *args: Any, **more: Any) -> Any:
        return at.watch("ask", ask)(client, *args, **more)

    WebClient._ask = counted  # type: ignore[method-assign]
    deliver(bench, [batch], epoch, at, said)


def load_counting_bulks(bench: Any, batch: Any, epoch: int, at: At, said: Any) -> None:
    """The same, of which only requests with rows are calls."""
    ask = BulkSender._asked

    def counted(sender: BulkSender, *args: Any) -> Any:
        return at.watch("bulk", ask)(sender, *args)

    BulkSender._asked = counted  # type: ignore[method-assign]
    deliver(bench, [batch], epoch, at, said)
