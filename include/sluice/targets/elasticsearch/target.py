"""Elasticsearch and OpenSearch as a target: a document for each row, and the checkpoint beside them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

from pydantic import BaseModel

from sluice.config.connections import Endpoint
from sluice.config.pipeline import TargetConfig
from sluice.config.receiver import Receiver
from sluice.errors import ConfigError
from sluice.model.planned import PlannedTable
from sluice.model.tables import TableId
from sluice.targets.documents.changes import FOLLOWED_CHANGES, ChangeWriter
from sluice.targets.documents.writer import DocumentWriter
from sluice.targets.elasticsearch.checkpoint import ElasticsearchCheckpoints, found_record
from sluice.targets.elasticsearch.client import Client, connected
from sluice.targets.elasticsearch.compare import ElasticsearchComparer
from sluice.targets.elasticsearch.options import ElasticsearchOptions
from sluice.targets.elasticsearch.place import Place, path_of
from sluice.targets.elasticsearch.schema import ElasticsearchSchema
from sluice.targets.elasticsearch.writer import ElasticsearchStore
from sluice.targets.options import options_of, require_connection
from sluice.targets.port import (
    BatchInput,
    Capabilities,
    Consistency,
    Feature,
    Fence,
    Guarantee,
    Held,
    Input,
    Ordering,
    OtherWriter,
)
from sluice.targets.schema.policy import FOLLOWED_BY_NAME

_PAGE = "docs/elasticsearch-target.md"
_MISSING = 404
_MOST = 10_000
"""Checkpoints that are looked at."""


def _capabilities(changes: Input) -> Capabilities:
    every = changes is Input.CHANGES
    by_key = {Feature.DELETE, Feature.PARTIAL_ROWS, Feature.ROW_REJECTION, Feature.RECOPIES}
    return Capabilities(
        inputs=frozenset(Input),
        guarantee=Guarantee.IDEMPOTENT,
        ordering=frozenset({Ordering.TABLE if every else Ordering.KEY}),
        consistency=frozenset({Consistency.ROW}),
        held=Held.TEXTS,
        schema_changes=FOLLOWED_CHANGES if every else FOLLOWED_BY_NAME,
        features=frozenset({Feature.DELETE, Feature.KEYLESS} if every else by_key),
        max_writers=1 if every else None,
        compares=True,
        lists_keys=True,
        removes_listed_keys=True,
    )


class ElasticsearchTarget:
    """See :class:`sluice.targets.port.Target`."""

    Options: ClassVar[type[BaseModel]] = ElasticsearchOptions
    CAPABILITIES: ClassVar[Capabilities] = _capabilities(Input.MERGED)

    def __init__(self, config: TargetConfig, endpoint: Endpoint, pipeline: str) -> None:
        self.config = config
        self.options = options_of(config, ElasticsearchOptions)
        require_connection(config, endpoint, "elasticsearch", "opensearch", "http", "https")
        receiver = Receiver(endpoint, _PAGE, api_keys=True)
        receiver.require_usable()
        every = Input(config.changes) is Input.CHANGES
        if not every and self.options.dated:
            raise ConfigError(
                f"target {config.name!r}: options.index has {{day}}, {{month}} or {{year}}, and rows by key have one "
                "index: their dates may change",
                where=config.where("options", "index"),
                hint="write changes: all, or leave the date out of the name",
            )
        if every and self.options.routing:
            raise ConfigError(
                f"target {config.name!r}: options.routing is for changes: latest",
                where=config.where("options", "routing"),
                hint="leave it out, or write changes: latest",
            )
        self.place = Place(receiver, self.options, pipeline, config.name, every)

    @property
    def capabilities(self) -> Capabilities:
        """The abilities of the target: for merged rows, or for every change."""
        return _capabilities(Input(self.config.changes))

    @property
    def checkpoints(self) -> ElasticsearchCheckpoints:
        """The checkpoint store, an index at the same server."""
        return ElasticsearchCheckpoints(self.place)

    @contextmanager
    def open(self, epoch: int) -> Iterator[ElasticsearchSession]:
        """See :meth:`sluice.targets.port.Target.open`."""
        yield ElasticsearchSession(self, epoch)

    def location_of(self, table: TableId) -> str:
        """Return the URI of a table: that of its index, if an option names it otherwise."""
        own = (self.place.index_of(table),) if "index" in self.options.model_fields_set else (table.schema, table.table)
        return self.place.receiver.endpoint.uri("elasticsearch", 9200, *own)

    def schema(self) -> ElasticsearchSchema:
        """Return what compares tables with their indexes."""
        return ElasticsearchSchema(self.place)

    def reconciler(self) -> ElasticsearchReconciler | None:
        """Return what removes listed keys and all rows of a table; None for every change."""
        return None if self.place.every else ElasticsearchReconciler(self.place)

    def comparer(self) -> ElasticsearchComparer | None:
        """Return what compares rows; None for every change."""
        return None if self.place.every else ElasticsearchComparer(self.place)

    def interrupt(self) -> None:
        """Do nothing: nothing waits for longer than ``options.retry_for``."""


@dataclass(frozen=True)
class ElasticsearchReconciler:
    """See :class:`sluice.targets.port.Reconciler` and :class:`sluice.targets.port.ListReconciler`."""

    place: Place

    def refuses(self, table: PlannedTable) -> str:
        """Return why a range of keys is refused; a whole table is not."""
        return "ids are in no order at the server" if table.columns else ""

    def refuses_listed(self, table: PlannedTable) -> str:
        """Return "", as listed keys can be removed."""
        return ""

    def others(self) -> tuple[OtherWriter, ...]:
        """Return the other pipelines with a checkpoint at the server."""
        place, writers, now = self.place, [], time.time()
        index = place.options.checkpoint_index
        with connected(place) as client:
            refreshed = client.ask("refreshing an index", "POST", path_of(index, "_refresh"), allow={_MISSING})
            if refreshed.status == _MISSING:
                return ()
            body = {"size": _MOST, "query": {"bool": {"must_not": {"term": {"pipeline": place.pipeline}}}}}
            document = client.ask("reading checkpoints", "POST", path_of(index, "_search"), body).document
        for hit in document["hits"]["hits"]:
            held_record, owner = found_record(hit, place, hit["_id"]), str(hit["_id"])
            forget = f"DELETE {path_of(index, '_doc', owner)}"
            writers.append(
                OtherWriter(hit["_source"]["pipeline"], held_record.tables, max(0.0, now - held_record.at), forget)
            )
        return tuple(writers)


@dataclass(frozen=True)
class ElasticsearchSession:
    """See :class:`sluice.targets.port.TargetSession`."""

    target: ElasticsearchTarget
    epoch: int

    def begin(self, batch: BatchInput) -> DocumentWriter[Client]:
        """Return the writer of a batch. No I/O."""
        place, fence = self.target.place, Fence(self.epoch, batch.held, batch.number)
        store = ElasticsearchStore(place)
        return ChangeWriter(store, batch, fence, place.pipeline) if place.every else DocumentWriter(store, batch, fence)


__all__ = ["ElasticsearchTarget"]
