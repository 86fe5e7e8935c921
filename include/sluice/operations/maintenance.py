"""maintain: maintain the files of targets that keep tables as files, while batches are loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import structlog

from sluice.flows.runtime import Runtime
from sluice.mapping import Mapping
from sluice.sources.table_filter import Selection
from sluice.targets.port import Upkeep, maintainer_of

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class TargetMaintenance:
    """The maintenance done at one target, or that would be done; tables that needed none are left out."""

    target: str
    tables: tuple[Upkeep, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain JSON values."""
        return {"target": self.target, "tables": [table.to_json() for table in self.tables]}


def maintain(runtime: Runtime, *, dry_run: bool = False) -> list[TargetMaintenance]:
    """Maintain the files of every target whose kind has any: those of the tables that captured tables are mapped to.

    Raises:
        MappingError, SourceUnavailable, TargetUnavailable, ConfigError.
    """
    opened = [(config, runtime.open_target(config.name)) for config in runtime.pipeline.targets]
    pairs = [(config.name, keeper) for config, target in opened if (keeper := maintainer_of(target)) is not None]
    if not pairs:
        return []
    selection, routes = Selection.compile(runtime.pipeline.capture), Mapping.of(runtime.pipeline)
    with runtime.source.open() as source:
        tables = list(dict.fromkeys(routes.route(table.id).target for table in source.tables(selection.wants)))
    outcomes = []
    for name, maintainer in pairs:
        maintenance = TargetMaintenance(name, tuple(maintainer.maintain(tables, dry_run=dry_run)))
        for table in maintenance.tables:
            _log.info("table_maintained", pipeline=runtime.name, target=name, dry_run=dry_run, **table.to_json())
        outcomes.append(maintenance)
    return outcomes


__all__ = ["TargetMaintenance", "maintain"]
