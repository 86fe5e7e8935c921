"""An HTTP receiver as a target: a batch is a number of requests, each with the same Idempotency-Key in every attempt.

At least once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar

from pydantic import BaseModel

from sluice.config.connections import Endpoint
from sluice.config.pipeline import TargetConfig
from sluice.config.receiver import Receiver
from sluice.errors import LoadError
from sluice.model.planned import PlannedTable
from sluice.model.tables import TableId
from sluice.targets.feature_check import without_key
from sluice.targets.http.options import HttpOptions
from sluice.targets.http.options import Ordering as Ordered
from sluice.targets.http.writer import HttpPlace, HttpWriter
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
    TableFinding,
)


@dataclass(frozen=True)
class HttpSchema:
    """See :class:`sluice.targets.port.TargetSchema`: a receiver has no tables."""

    place: HttpPlace
    input: Input

    def compare(self, tables: Sequence[PlannedTable]) -> Sequence[TableFinding]:
        """Return a line for each table: its address, what goes into a request, the order and the guarantee."""
        return [self._about(plan) for plan in tables]

    def _about(self, plan: PlannedTable) -> TableFinding:
        options = self.place.options
        if self.input is Input.MERGED and not plan.key:
            return without_key(plan)
        if "key" in options.named and not plan.key:
            return TableFinding("error", plan.target, "", "it has no key, and options.path or headers name {key}")
        method = options.methods.insert
        rows = "one row" if options.single else f"up to {options.batch.max_rows} rows"
        return TableFinding(
            "ok",
            plan.target,
            "",
            f"{method} {self.place.receiver.base}{options.path}, {rows} of {options.format} a request, in order by "
            f"{options.ordering}; at least once: a repeat has the same {options.idempotency_header}",
        )

    def apply(self, statement: str) -> None:
        """Raise LoadError, as nothing is proposed."""
        raise LoadError(f"this is no statement of an HTTP target: {statement[:300]}")


_ORDER = {Ordered.KEY: Ordering.KEY, Ordered.TABLE: Ordering.TABLE, Ordered.GLOBAL: Ordering.GLOBAL}


def _capabilities(changes: Input, ordering: Ordering) -> Capabilities:
    every = {Feature.DELETE, Feature.KEYLESS, Feature.PARTIAL_ROWS}
    return Capabilities(
        inputs=frozenset(Input),
        guarantee=Guarantee.AT_LEAST_ONCE,
        ordering=frozenset({ordering}),
        consistency=frozenset({Consistency.ROW}),
        schema_changes=FOLLOWED,
        features=frozenset(every if changes is Input.CHANGES else {Feature.DELETE, Feature.ROW_REJECTION}),
        max_writers=1,
    )


class HttpTarget:
    """See :class:`sluice.targets.port.Target`."""

    Options: ClassVar[type[BaseModel]] = HttpOptions
    CAPABILITIES: ClassVar[Capabilities] = replace(
        _capabilities(Input.MERGED, Ordering.KEY), ordering=frozenset(_ORDER.values())
    )

    def __init__(self, config: TargetConfig, endpoint: Endpoint, pipeline: str) -> None:
        self.config = config
        self.options = options_of(config, HttpOptions)
        require_connection(config, endpoint, "http", "https")
        receiver = Receiver(endpoint)
        receiver.require_usable()
        if self.options.signature is not None:
            _ = receiver.hmac_secret
        self.place = HttpPlace(receiver, self.options, pipeline, config.name)

    @property
    def input(self) -> Input:
        """The form in which it gets changes."""
        return Input(self.config.changes)

    @property
    def capabilities(self) -> Capabilities:
        """The abilities of the target, as the options say."""
        return _capabilities(self.input, _ORDER[self.options.ordering])

    @property
    def checkpoints(self) -> None:
        """No checkpoint store: a receiver remembers nothing that can be asked for, so ZooKeeper keeps the
        checkpoint.
        """

    @contextmanager
    def open(self, epoch: int) -> Iterator[HttpSession]:
        """See :meth:`sluice.targets.port.Target.open`."""
        yield HttpSession(self, epoch)

    def location_of(self, table: TableId) -> str:
        """Return the URI of a table below the path to which its rows are sent."""
        endpoint, path = self.place.receiver.endpoint, self.options.path
        base = (endpoint.host.partition("://")[2] or endpoint.host).partition("/")[2]
        own = path if "path" in self.options.model_fields_set else ""
        return endpoint.uri("http", None, *base.split("/"), *own.split("/"), table.schema, table.table)

    def schema(self) -> HttpSchema:
        """Return what says where rows go."""
        return HttpSchema(self.place, self.input)

    def reconciler(self) -> None:
        """Return None: it is not known what a receiver has."""

    def interrupt(self) -> None:
        """Do nothing: nothing waits for longer than ``options.retry_for``."""


@dataclass(frozen=True)
class HttpSession:
    """See :class:`sluice.targets.port.TargetSession`."""

    target: HttpTarget
    epoch: int

    def begin(self, batch: BatchInput) -> HttpWriter:
        """Return the writer of a batch. No I/O."""
        return HttpWriter(self.target.place, self.target.input, batch, Fence(self.epoch, batch.held, batch.number))
