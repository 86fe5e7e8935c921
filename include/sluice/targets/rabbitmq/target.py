"""RabbitMQ as a target: messages to an exchange at least once, or to streams exactly once, in the order of the log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar

from pydantic import BaseModel

from sluice.config.connections import Endpoint
from sluice.config.pipeline import TargetConfig
from sluice.errors import ConfigError
from sluice.model.tables import TableId
from sluice.targets.messages.definitions import FOLLOWED
from sluice.targets.options import options_of, require_connection
from sluice.targets.port import (
    BatchInput,
    Capabilities,
    Consistency,
    Feature,
    Fence,
    Guarantee,
    Input,
    Ordering,
)
from sluice.targets.rabbitmq.checkpoint import StreamCheckpoints
from sluice.targets.rabbitmq.client import interrupt
from sluice.targets.rabbitmq.options import RabbitMQOptions
from sluice.targets.rabbitmq.place import Place
from sluice.targets.rabbitmq.schema import RabbitMQSchema
from sluice.targets.rabbitmq.writer import RabbitMQWriter


def _capabilities(changes: Input, ordering: Ordering, *, streams: bool) -> Capabilities:
    every = {Feature.DELETE, Feature.KEYLESS, Feature.PARTIAL_ROWS}
    return Capabilities(
        inputs=frozenset(Input),
        guarantee=Guarantee.IDEMPOTENT if streams else Guarantee.AT_LEAST_ONCE,
        ordering=frozenset({ordering}),
        consistency=frozenset({Consistency.ROW}),
        schema_changes=FOLLOWED,
        features=frozenset(every if changes is Input.CHANGES else {Feature.DELETE, Feature.ROW_REJECTION}),
        max_writers=1,
    )


class RabbitMQTarget:
    """See :class:`sluice.targets.port.Target`."""

    Options: ClassVar[type[BaseModel]] = RabbitMQOptions
    CAPABILITIES: ClassVar[Capabilities] = replace(
        _capabilities(Input.MERGED, Ordering.TABLE, streams=False),
        ordering=frozenset({Ordering.TABLE, Ordering.GLOBAL}),
    )

    def __init__(self, config: TargetConfig, endpoint: Endpoint, pipeline: str) -> None:
        self.config = config
        self.options = options_of(config, RabbitMQOptions)
        require_connection(config, endpoint, "rabbitmq", "amqp")
        self.place = Place(endpoint, self.options, pipeline, config.name)
        self.place.require_usable()
        if self.input is Input.MERGED and self.options.transactions:
            raise ConfigError(
                f"target {config.name!r}: options.transactions is for changes: all; merged rows are of no transaction"
            )

    @property
    def input(self) -> Input:
        """The form in which it gets changes."""
        return Input(self.config.changes)

    @property
    def capabilities(self) -> Capabilities:
        """The abilities of the target, as the options say."""
        ordering = Ordering.GLOBAL if self.options.in_one else Ordering.TABLE
        return _capabilities(self.input, ordering, streams=self.options.streams)

    @property
    def checkpoints(self) -> StreamCheckpoints | None:
        """The checkpoint store, a stream; None for queues, of which ZooKeeper keeps the checkpoint, as a queue does not
        say what it had.
        """
        return StreamCheckpoints(self.place) if self.options.streams else None

    @contextmanager
    def open(self, epoch: int) -> Iterator[RabbitMQSession]:
        """See :meth:`sluice.targets.port.Target.open`."""
        yield RabbitMQSession(self, epoch)

    def location_of(self, table: TableId) -> str:
        """Return the URI of a table in its virtual host."""
        place = self.place
        return place.endpoint.uri("rabbitmq", 5672, place.vhost.removeprefix("/"), table.schema, table.table)

    def schema(self) -> RabbitMQSchema:
        """Return what looks for queues, exchanges and streams."""
        return RabbitMQSchema(self.place, self.input)

    def reconciler(self) -> None:
        """Return None: it is not known what readers have."""

    def interrupt(self) -> None:
        """End the wait for room in a queue; no other is longer than ``options.timeout`` without an answer."""
        interrupt(self.place.owner)


@dataclass(frozen=True)
class RabbitMQSession:
    """See :class:`sluice.targets.port.TargetSession`."""

    target: RabbitMQTarget
    epoch: int

    def begin(self, batch: BatchInput) -> RabbitMQWriter:
        """Return the writer of a batch. No I/O."""
        fence = Fence(self.epoch, batch.held, batch.number)
        return RabbitMQWriter(self.target.place, self.target.input, batch, fence)


__all__ = ["RabbitMQTarget"]
