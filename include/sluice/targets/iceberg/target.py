"""Iceberg tables as a target, written by pyiceberg."""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel

from sluice.config.connections import Endpoint
from sluice.config.pipeline import TargetConfig
from sluice.model.findings import Finding
from sluice.targets.iceberg.client import place_of
from sluice.targets.iceberg.format import IcebergFormat
from sluice.targets.iceberg.options import READS_DELETE_FILES, IcebergOptions
from sluice.targets.lake.target import LakeTarget
from sluice.targets.options import options_of


class IcebergTarget(LakeTarget):
    """See :class:`sluice.targets.port.Target`."""

    Options: ClassVar[type[BaseModel]] = IcebergOptions

    def __init__(self, config: TargetConfig, endpoint: Endpoint, pipeline: str) -> None:
        options = options_of(config, IcebergOptions)
        place = place_of(endpoint, options.catalog, config.name)
        super().__init__(config, IcebergFormat(place, options), pipeline)

    def risks(self) -> list[Finding]:
        """Return a warning if the tables have delete files that a reader does not apply: it would show deleted rows."""
        options = options_of(self.config, IcebergOptions)
        blind = [engine for engine in options.readers if not READS_DELETE_FILES[engine]]
        fix = "set write_mode: copy-on-write"
        if blind:
            why = f"{', '.join(blind)} cannot read tables with position delete files"
        else:
            why = "an engine that does not apply position delete files fails, or shows deleted rows"
            fix = "name those that read the tables, options: {readers: [spark, trino]}; or " + fix
        is_at_risk = options.write_mode == "merge-on-read" and (blind or not options.readers)
        return [Finding("warning", "write_mode", options.write_mode, why, fix)] if is_at_risk else []
