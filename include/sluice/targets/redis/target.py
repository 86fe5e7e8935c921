"""Redis and Valkey as a target: a key for each row, or streams with every change, and the checkpoint beside them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar

from pydantic import BaseModel

from sluice.config.connections import Endpoint
from sluice.config.pipeline import TargetConfig
from sluice.errors import ConfigError
from sluice.model.planned import PlannedTable
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
    Held,
    Input,
    Ordering,
    OtherWriter,
)
from sluice.targets.redis.checkpoint import RedisCheckpoints, read_checkpoint
from sluice.targets.redis.client import PORT, cluster_refused, connected, settings
from sluice.targets.redis.compare import RedisComparer
from sluice.targets.redis.options import RedisOptions
from sluice.targets.redis.place import Place
from sluice.targets.redis.schema import RedisSchema
from sluice.targets.redis.writer import RedisWriter
from sluice.targets.schema.policy import FOLLOWED_BY_NAME


def _capabilities(changes: Input, ordering: Ordering) -> Capabilities:
    streams = changes is Input.CHANGES
    by_key = {Feature.DELETE, Feature.PARTIAL_ROWS, Feature.ROW_REJECTION, Feature.RECOPIES}
    return Capabilities(
        inputs=frozenset(Input),
        guarantee=Guarantee.IDEMPOTENT,
        ordering=frozenset({ordering}),
        consistency=frozenset({Consistency.ROW}),
        held=Held.TEXTS,
        schema_changes=FOLLOWED if streams else FOLLOWED_BY_NAME,
        features=frozenset({Feature.DELETE, Feature.KEYLESS, Feature.PARTIAL_ROWS} if streams else by_key),
        max_writers=1 if streams else None,
        compares=True,
        lists_keys=True,
        removes_listed_keys=True,
    )


class RedisTarget:
    """See :class:`sluice.targets.port.Target`."""

    Options: ClassVar[type[BaseModel]] = RedisOptions
    CAPABILITIES: ClassVar[Capabilities] = replace(
        _capabilities(Input.MERGED, Ordering.KEY), ordering=frozenset({Ordering.KEY, Ordering.TABLE, Ordering.GLOBAL})
    )

    def __init__(self, config: TargetConfig, endpoint: Endpoint, pipeline: str) -> None:
        self.config = config
        self.options = options_of(config, RedisOptions)
        require_connection(config, endpoint, "redis")
        self.place = Place(endpoint, self.options, pipeline, config.name)
        if self.input is Input.CHANGES and (self.options.expire or self.options.indexes or self.options.form != "hash"):
            raise ConfigError(
                f"target {config.name!r}: options.form, expire and indexes are for changes: latest; a stream has "
                "every change",
                hint="leave them out, or write changes: latest",
            )

    @property
    def input(self) -> Input:
        """The form in which it gets changes."""
        return Input(self.config.changes)

    @property
    def capabilities(self) -> Capabilities:
        """The abilities of the target, as the options say."""
        ordering = Ordering.GLOBAL if self.options.one_stream else Ordering.TABLE
        return _capabilities(self.input, Ordering.KEY if self.input is Input.MERGED else ordering)

    @property
    def checkpoints(self) -> RedisCheckpoints:
        """The checkpoint store, a hash at the same server."""
        return RedisCheckpoints(self.place)

    @contextmanager
    def open(self, epoch: int) -> Iterator[RedisSession]:
        """See :meth:`sluice.targets.port.Target.open`. Raises ConfigError for a server in cluster mode."""
        with connected(self.place) as client:
            if client.info().get("cluster_enabled") == "1":
                raise cluster_refused(self.place.endpoint)
        yield RedisSession(self, epoch)

    def location_of(self, table: TableId) -> str:
        """Return the URI of a table in its database: its key's prefix if an option says how keys begin."""
        endpoint, place = self.place.endpoint, self.place
        database = settings(endpoint)["db"]
        names = place.row_affixes(table)[:1] if "key" in self.options.model_fields_set else (table.schema, table.table)
        return endpoint.uri("redis", PORT, str(database or ""), *names)

    def schema(self) -> RedisSchema:
        """Return what compares tables and looks at the server."""
        return RedisSchema(self.place, self.input)

    def reconciler(self) -> RedisReconciler | None:
        """Return what removes listed keys and all rows of a table; None for streams."""
        return RedisReconciler(self.place) if self.input is Input.MERGED else None

    def comparer(self) -> RedisComparer | None:
        """Return what compares rows; None for streams, and where rows go some time after they were written, which they
        do not say.
        """
        expire = self.options.expire
        comparable = self.input is Input.MERGED and (expire is None or expire.after is None)
        return RedisComparer(self.place) if comparable else None

    def interrupt(self) -> None:
        """Do nothing: no call waits for longer than its timeout."""


@dataclass(frozen=True)
class RedisReconciler:
    """See :class:`sluice.targets.port.Reconciler` and :class:`sluice.targets.port.ListReconciler`."""

    place: Place

    def refuses(self, table: PlannedTable) -> str:
        """Return why a range of keys is refused; a whole table is not."""
        return "keys are in no order at the server" if table.columns else ""

    def refuses_listed(self, table: PlannedTable) -> str:
        """Return "", as listed keys can be removed."""
        return ""

    def others(self) -> tuple[OtherWriter, ...]:
        """Return the other pipelines with a checkpoint at the server."""
        place, writers = self.place, []
        with connected(place) as client:
            now = float(client.ask("asking for the server's time", "TIME")[0])
            keys = sorted({key for part in client.scan(place.checkpoints, "") for key in part})
            for key in (key.decode("utf-8", "replace") for key in keys):
                pipeline = key.removeprefix(place.checkpoints).rpartition(".")[0]
                if pipeline == place.pipeline:
                    continue
                held_checkpoint = read_checkpoint(client, place, key)
                if held_checkpoint is not None:
                    writers.append(
                        OtherWriter(pipeline, held_checkpoint.tables, max(0.0, now - held_checkpoint.at), f"DEL {key}")
                    )
        return tuple(writers)


@dataclass(frozen=True)
class RedisSession:
    """See :class:`sluice.targets.port.TargetSession`."""

    target: RedisTarget
    epoch: int

    def begin(self, batch: BatchInput) -> RedisWriter:
        """Return the writer of a batch. No I/O."""
        fence = Fence(self.epoch, batch.held, batch.number)
        return RedisWriter(self.target.place, self.target.input, batch, fence)
