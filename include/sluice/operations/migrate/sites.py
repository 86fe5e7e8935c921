"""The two servers of a migration, and the flows between them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace

from sluice.config.pipeline import PipelineConfig, TargetConfig
from sluice.coordination.migrations import Migration, MigrationNode, Side
from sluice.coordination.state import PipelineState
from sluice.errors import ConfigError
from sluice.flows.dump.start import captured_tables
from sluice.flows.runtime import Runtime
from sluice.model.tables import TableId
from sluice.sources.port import Source
from sluice.sources.port.handover import HandsOver, ServerControl

CONTROL_S = 10.0
"""Seconds for which a statement that controls a server may wait, where no limit of a handover is shorter."""


def flows_of(name: str) -> dict[Side, str]:
    """Return the names of a migration's pipelines, by the server that each writes."""
    return {Side.NEW: f"{name}_forward", Side.OLD: f"{name}_back"}


@dataclass(frozen=True)
class Sites:
    """The servers of the migration ``name``. ``flows``: by the server that each writes."""

    name: str
    flows: dict[Side, Runtime]

    def own(self) -> Sites:
        """Return the same for another thread, which opens a session of its own."""
        return replace(self, flows={side: replace(flow, _state=None) for side, flow in self.flows.items()})

    def flow_to(self, side: Side) -> Runtime:
        """Return the flow that writes a server."""
        return self.flows[side]

    def pipeline_to(self, side: Side) -> tuple[PipelineConfig, TargetConfig]:
        """Return the pipeline that writes a server, and its target."""
        pipeline = self.flows[side].pipeline
        return pipeline, pipeline.targets[0]

    def source(self, side: Side) -> Source:
        """Return the server as what the other flow reads."""
        return self.flows[side.other].source

    def control(self, side: Side, within_s: float = CONTROL_S) -> AbstractContextManager[ServerControl]:
        """Open the controlling session of a server, and end the one that another process has.

        Raises ConfigError for a kind that cannot be handed over.
        """
        return self.hands_over(side).control(self.name, within_s=within_s)

    def look(self, side: Side) -> AbstractContextManager[ServerControl]:
        """Open a session that only asks, beside the one that controls the server."""
        return self.hands_over(side).control("", within_s=CONTROL_S)

    def hands_over(self, side: Side) -> HandsOver:
        """Return the server as one that applications move to or from. Raises ConfigError if they cannot."""
        source = self.source(side)
        if not isinstance(source, HandsOver):
            raise ConfigError(f"a server of type {source.kind} cannot be handed over yet", where=source.where)
        return source

    def tables(self, side: Side) -> dict[TableId, int]:
        """Return the captured tables of a server, with its estimate of their rows."""
        flow = self.flows[side.other]
        with flow.source.open() as session:
            return captured_tables(flow.pipeline, session)

    @contextmanager
    def state(self, side: Side = Side.NEW) -> Iterator[PipelineState]:
        """Open the state of the flow that writes a server."""
        with self.flows[side].state() as state:
            yield state

    @contextmanager
    def node(self) -> Iterator[MigrationNode]:
        """Open the record of the migration."""
        with self.state() as state:
            yield state.migration(self.name)

    def note(self, what: str, by: str, **details: str) -> None:
        """Write what was done into the audit of the flow to the new server."""
        with self.state() as state:
            state.audit.note(by=by, what=f"migrate {what}", details=details)

    def read(self) -> Migration:
        """Return the record. Raises ConfigError if there is no such migration."""
        with self.node() as node:
            return required(node)


def required(node: MigrationNode) -> Migration:
    """Return the record of a migration. Raises ConfigError if there is none."""
    migration = node.read()
    if migration is None:
        raise ConfigError(
            f"there is no migration {node.name!r} in this store of positions",
            hint=f"`sluice migrate new FROM TO --name {node.name}` begins one; is --env-file that of its folder?",
        )
    return migration
