"""MongoDB as a target: a document for each row, and the checkpoint beside them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

from pydantic import BaseModel

from sluice.config.connections import Endpoint
from sluice.config.pipeline import TargetConfig
from sluice.model.planned import PlannedTable
from sluice.model.tables import TableId
from sluice.targets.documents.changes import FOLLOWED_CHANGES, ChangeWriter
from sluice.targets.documents.writer import DocumentWriter
from sluice.targets.mongodb.checkpoint import MongoCheckpoints, found_record
from sluice.targets.mongodb.client import Client, connected, settings
from sluice.targets.mongodb.compare import MongoComparer
from sluice.targets.mongodb.options import MongoOptions
from sluice.targets.mongodb.place import Place
from sluice.targets.mongodb.schema import MongoSchema
from sluice.targets.mongodb.writer import MongoStore
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


def _capabilities(changes: Input) -> Capabilities:
    every = changes is Input.CHANGES
    by_key = {Feature.DELETE, Feature.PARTIAL_ROWS, Feature.ROW_REJECTION, Feature.RECOPIES}
    return Capabilities(
        inputs=frozenset(Input),
        guarantee=Guarantee.IDEMPOTENT,
        ordering=frozenset({Ordering.TABLE if every else Ordering.KEY}),
        consistency=frozenset({Consistency.ROW}),
        held=Held.NUMBERS,
        schema_changes=FOLLOWED_CHANGES if every else FOLLOWED_BY_NAME,
        features=frozenset({Feature.DELETE, Feature.KEYLESS} if every else by_key),
        max_writers=1 if every else None,
        compares=True,
        lists_keys=True,
        removes_listed_keys=True,
    )


class MongoTarget:
    """See :class:`sluice.targets.port.Target`."""

    Options: ClassVar[type[BaseModel]] = MongoOptions
    CAPABILITIES: ClassVar[Capabilities] = _capabilities(Input.MERGED)

    def __init__(self, config: TargetConfig, endpoint: Endpoint, pipeline: str) -> None:
        self.config = config
        self.options = options_of(config, MongoOptions)
        require_connection(config, endpoint, "mongo", "mongodb")
        settings(endpoint)
        self.place = Place(endpoint, self.options, pipeline, config.name, every=Input(config.changes) is Input.CHANGES)

    @property
    def capabilities(self) -> Capabilities:
        """The abilities of the target: for merged rows, or for every change."""
        return _capabilities(Input(self.config.changes))

    @property
    def checkpoints(self) -> MongoCheckpoints:
        """The checkpoint store, a collection at the same server."""
        return MongoCheckpoints(self.place)

    @contextmanager
    def open(self, epoch: int) -> Iterator[MongoSession]:
        """See :meth:`sluice.targets.port.Target.open`."""
        yield MongoSession(self, epoch)

    def location_of(self, table: TableId) -> str:
        """Return the URI of a table's collection."""
        namespace = self.place.namespace(table)
        return self.place.endpoint.uri("mongodb", 27017, namespace.database, namespace.collection)

    def schema(self) -> MongoSchema:
        """Return what compares tables with their definitions."""
        return MongoSchema(self.place)

    def reconciler(self) -> MongoReconciler | None:
        """Return what removes listed keys and all rows of a table; None for every change."""
        return None if self.place.every else MongoReconciler(self.place)

    def comparer(self) -> MongoComparer | None:
        """Return what compares rows; None for every change."""
        return None if self.place.every else MongoComparer(self.place)

    def interrupt(self) -> None:
        """Do nothing: no call waits for longer than its timeout."""


@dataclass(frozen=True)
class MongoReconciler:
    """See :class:`sluice.targets.port.Reconciler` and :class:`sluice.targets.port.ListReconciler`."""

    place: Place

    def refuses(self, table: PlannedTable) -> str:
        """Return why a range of keys is refused; a whole table is not."""
        return "ids are not in the source's order at the server" if table.columns else ""

    def refuses_listed(self, table: PlannedTable) -> str:
        """Return "", as listed keys can be removed."""
        return ""

    def others(self) -> tuple[OtherWriter, ...]:
        """Return the other pipelines with a checkpoint at the server."""
        place, writers, now = self.place, list[OtherWriter](), time.time()
        with connected(place) as client:
            query = {"pipeline": {"$ne": place.pipeline}}
            for document in client.find("reading checkpoints", place.checkpoints, query):
                held_record, at, owner = found_record(document, place), place.checkpoints, json.dumps(document["_id"])
                forget = f"db.getSiblingDB({json.dumps(at.database)}).{at.collection}.deleteOne({{_id: {owner}}})"
                writers.append(
                    OtherWriter(str(document["pipeline"]), held_record.tables, max(0.0, now - held_record.at), forget)
                )
        return tuple(writers)


@dataclass(frozen=True)
class MongoSession:
    """See :class:`sluice.targets.port.TargetSession`."""

    target: MongoTarget
    epoch: int

    def begin(self, batch: BatchInput) -> DocumentWriter[Client]:
        """Return the writer of a batch. No I/O."""
        place, fence = self.target.place, Fence(self.epoch, batch.held, batch.number)
        store = MongoStore(place)
        return ChangeWriter(store, batch, fence, place.pipeline) if place.every else DocumentWriter(store, batch, fence)


__all__ = ["MongoTarget"]
