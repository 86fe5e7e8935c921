"""Kafka as a target: a batch is one transaction of the one producer of its pipeline and target, and so is its
checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar

from pydantic import BaseModel

from sluice.config.connections import Endpoint
from sluice.config.pipeline import TargetConfig
from sluice.errors import ConfigError
from sluice.formats import OwnFormat
from sluice.model.planned import PlannedTable
from sluice.model.schema_changes import ChangeKind
from sluice.model.tables import TableId
from sluice.targets.kafka.checkpoint import KafkaCheckpoints
from sluice.targets.kafka.client import settings
from sluice.targets.kafka.compare import KafkaComparer
from sluice.targets.kafka.options import KafkaOptions, Partitioning
from sluice.targets.kafka.place import Place
from sluice.targets.kafka.schema import KafkaSchema
from sluice.targets.kafka.stale_keys import why_not_emptied
from sluice.targets.kafka.writer import KafkaWriter, stale_topics
from sluice.targets.messages.definitions import FOLLOWED
from sluice.targets.messages.stale_keys import Stale
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
    OtherWriter,
    SchemaChange,
)

_K = ChangeKind
_ORDER = {
    Partitioning.KEY: Ordering.KEY,
    Partitioning.COLUMNS: Ordering.NONE,
    Partitioning.TABLE: Ordering.TABLE,
    Partitioning.GLOBAL: Ordering.GLOBAL,
}


def _capabilities(changes: Input, ordering: Ordering, *, empties: bool) -> Capabilities:
    """Return the abilities of a Kafka target. ``empties``: the keys that a topic holds can be removed."""
    if changes is Input.CHANGES:
        features = {Feature.DELETE, Feature.KEYLESS, Feature.PARTIAL_ROWS}
    else:
        features = {Feature.DELETE, Feature.ROW_REJECTION, *([Feature.RECOPIES] if empties else ())}
    return Capabilities(
        inputs=frozenset(Input),
        guarantee=Guarantee.TRANSACTIONAL,
        ordering=frozenset({ordering}),
        consistency=frozenset(Consistency),
        schema_changes=FOLLOWED | {_K.TRUNCATE_TABLE, _K.ROWS_REMOVED} if Feature.RECOPIES in features else FOLLOWED,
        features=frozenset(features),
        max_writers=1,
        compares=True,
        compares_in_one_process=True,
        lists_keys=True,
        removes_listed_keys=True,
        copies_again=True,
    )


class KafkaTarget:
    """See :class:`sluice.targets.port.Target`."""

    Options: ClassVar[type[BaseModel]] = KafkaOptions
    CAPABILITIES: ClassVar[Capabilities] = replace(
        _capabilities(Input.MERGED, Ordering.KEY, empties=True),
        ordering=frozenset({Ordering.KEY, Ordering.TABLE, Ordering.GLOBAL, Ordering.NONE}),
    )

    def __init__(self, config: TargetConfig, endpoint: Endpoint, pipeline: str) -> None:
        self.config = config
        self.options = options_of(config, KafkaOptions)
        require_connection(config, endpoint, "kafka")
        self.place = Place(endpoint, self.options, pipeline, config.name)
        if self.input is Input.MERGED and self.options.key_columns:
            raise ConfigError(
                f"target {config.name!r}: options.key_columns is for changes: all; merged rows are told apart by the "
                "primary key",
                hint="name other key columns in the mapping: key",
            )

        if self.input is Input.MERGED and self.options.transaction_topic:
            raise ConfigError(
                f"target {config.name!r}: options.transaction_topic is for changes: all; merged rows are of no "
                "transaction"
            )

    @property
    def input(self) -> Input:
        """The form in which it gets changes."""
        return Input(self.config.changes)

    @property
    def capabilities(self) -> Capabilities:
        """The abilities of the target, as the options say."""
        return _capabilities(self.input, _ORDER[self.options.partitioning], empties=not why_not_emptied(self.options))

    @property
    def checkpoints(self) -> KafkaCheckpoints:
        """The checkpoint store, in a compacted topic."""
        return KafkaCheckpoints(self.place)

    @contextmanager
    def open(self, epoch: int) -> Iterator[KafkaSession]:
        """See :meth:`sluice.targets.port.Target.open`."""
        yield KafkaSession(self, epoch)

    def location_of(self, table: TableId) -> str:
        """Return the topic of a table, at the first broker."""
        configuration = settings(self.place.endpoint)
        broker = str(configuration["bootstrap.servers"]).split(",")[0]
        return f"kafka://{broker}/{self.options.topic_of(table, self.place.pipeline, self.place.target)}"

    def schema(self) -> KafkaSchema:
        """Return what compares topics."""
        return KafkaSchema(self.place, self.input)

    def reconciler(self) -> KafkaReconciler | None:
        """Return what removes listed keys, for merged rows; else None."""
        return KafkaReconciler(self.options) if self.input is Input.MERGED else None

    def comparer(self) -> KafkaComparer | None:
        """Return what compares the newest message of each key; None for a target with every change, and for a
        format of one's own, which is not read back.
        """
        own = isinstance(self.options.format, OwnFormat)
        return KafkaComparer(self.place) if self.input is Input.MERGED and not own else None

    def stale(self, change: SchemaChange) -> tuple[Stale, ...]:
        """Return the topics with the newest row of each key that a statement makes wrong."""
        return stale_topics(self.place, self.input, change)

    def copied_again(self, change: SchemaChange) -> frozenset[TableId]:
        """See :meth:`sluice.targets.port.CopiesAgain.copied_again`."""
        if why_not_emptied(self.options):
            return frozenset()
        return frozenset(stale.table for stale in self.stale(change) if stale.copied)

    def interrupt(self) -> None:
        """Do nothing: nothing waits for longer than the transaction may last."""


@dataclass(frozen=True)
class KafkaReconciler:
    """See :class:`sluice.targets.port.Reconciler` and :class:`sluice.targets.port.ListReconciler`.

    A listed key gets a message without a value; with format arrow, whose messages have no keys, a row that says that it
    is gone.
    """

    options: KafkaOptions

    def refuses(self, table: PlannedTable) -> str:
        """Return why a range is always refused."""
        return "what a topic holds of a range of keys is not known to a load"

    def refuses_listed(self, table: PlannedTable) -> str:
        """Return why listed keys cannot be removed: a delete may need more than the key. "" if they can."""
        return "" if self.options.form.arrow else why_not_emptied(self.options)

    def others(self) -> tuple[OtherWriter, ...]:
        """Return nothing, as a topic does not say who writes to it."""
        return ()


@dataclass(frozen=True)
class KafkaSession:
    """See :class:`sluice.targets.port.TargetSession`."""

    target: KafkaTarget
    epoch: int

    def begin(self, batch: BatchInput) -> KafkaWriter:
        """Return the writer of a batch. No I/O."""
        return KafkaWriter(self.target.place, self.target.input, batch, Fence(self.epoch, batch.held, batch.number))
