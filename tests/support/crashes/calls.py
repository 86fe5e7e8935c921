"""The calls of each client, at one of which a loading process dies or stands still: a function each.

They run in that process, and import the client there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tests.support.crashes.strikes import At


def _count(at: At, owner: Any, name: str, counts: Callable[..., bool] = lambda *args: True) -> None:
    """Count the calls of a function of ``owner`` for which ``counts`` is true."""
    work = getattr(owner, name)

    def counted(*args: Any, **more: Any) -> Any:
        call = at.watch(name, work) if counts(*args) else work
        return call(*args, **more)

    setattr(owner, name, counted)


def clickhouse(at: At, doing: str = "") -> None:
    """Each statement that is sent, or those that are for ``doing``."""
    from sluice.targets.clickhouse.client import Client

    _count(at, Client, "_sent", lambda client, what, *args: doing in what)


writing_rows_of_clickhouse = partial(clickhouse, doing="writing rows of")
removing_rows_of_clickhouse = partial(clickhouse, doing="removing rows of")


def elasticsearch(at: At) -> None:
    """Each request."""
    from sluice.targets.web.client import WebClient

    _count(at, WebClient, "_ask")


def bulks_of_elasticsearch(at: At) -> None:
    """Each request with rows."""
    from sluice.targets.elasticsearch.bulk import BulkSender

    _count(at, BulkSender, "_asked")


def mongodb(at: At, doing: str = "") -> None:
    """Each command, or those that are for ``doing``."""
    from sluice.targets.mongodb.client import Client

    _count(at, Client, "command", lambda client, what, *args: what.startswith(doing))


writing_rows_of_mongodb = partial(mongodb, doing="writing rows")


def redis(at: At) -> None:
    """Each command that is sent."""
    from sluice.targets.redis.client import Client

    _count(at, Client, "_send")


def rabbitmq(at: At) -> None:
    """Each request to a stream, and each frame of messages."""
    from rstream.client import BaseClient

    ask = BaseClient.sync_request

    async def asked(client: Any, *args: Any, **more: Any) -> Any:
        at.watch("ask", lambda: None)()
        return await ask(client, *args, **more)

    BaseClient.sync_request = asked  # type: ignore[method-assign]
    frames_of_rabbitmq(at)


def frames_of_rabbitmq(at: At) -> None:
    """Each frame of messages to a stream."""
    from rstream.client import BaseClient

    publish = BaseClient.send_publish_frame

    async def published(client: Any, *args: Any, **more: Any) -> None:
        at.watch("publish", lambda: None)()
        await publish(client, *args, **more)

    BaseClient.send_publish_frame = published  # type: ignore[method-assign]


class _Watched:
    """A producer of Kafka whose calls are counted; polls are not, as their number depends on the clock."""

    def __init__(self, producer: Any, at: At) -> None:
        self._producer, self._at = producer, at

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._producer, name)
        return found if name in {"poll", "list_topics", "purge"} else self._at.watch(name, found)


def kafka(at: At) -> None:
    """Each call of the producer."""
    from sluice.targets.kafka.place import Place

    make = Place.producer
    Place.producer = lambda place, report: _Watched(make(place, report), at)  # type: ignore[method-assign,assignment]


def delta(at: At) -> None:
    """Each opening of a table and each commit by delta-rs."""
    import deltalake
    from deltalake.table import TableAlterer, TableMerger

    _count(at, deltalake.DeltaTable, "__init__")
    _count(at, deltalake, "write_deltalake")
    _count(at, TableMerger, "execute")
    _count(at, TableAlterer, "set_table_properties")


def delta_by_spark(at: At) -> None:
    """Each statement of Spark."""
    from sluice.spark.connect import ConnectRunner

    _count(at, ConnectRunner, "statement")


def iceberg(at: At) -> None:
    """Each opening of a table, each file and each commit by pyiceberg."""
    import pyiceberg.io.pyarrow
    from pyiceberg.catalog.rest import RestCatalog

    from sluice.targets.iceberg.catalog import KeptCatalog

    for catalog in (KeptCatalog, RestCatalog):
        _count(at, catalog, "load_table")
        _count(at, catalog, "commit_table")
    _count(at, pyiceberg.io.pyarrow, "write_file")
