"""Delta Lake tables as a target, written by delta-rs, or large batches of a table by Spark."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from pydantic import BaseModel

from sluice.config.connections import Endpoint
from sluice.config.pipeline import TargetConfig
from sluice.targets.delta.client import place_of
from sluice.targets.delta.format import DeltaFormat
from sluice.targets.delta.options import DeltaOptions
from sluice.targets.delta.spark_writer import DeltaSparkWriter
from sluice.targets.lake.target import LakeTarget
from sluice.targets.options import options_of
from sluice.targets.port import Capabilities, Execution


class DeltaTarget(LakeTarget):
    """See :class:`sluice.targets.port.Target`."""

    Options: ClassVar[type[BaseModel]] = DeltaOptions

    def __init__(self, config: TargetConfig, endpoint: Endpoint, pipeline: str) -> None:
        options = options_of(config, DeltaOptions)
        place = place_of(endpoint, options.location, config.name)
        self.format = DeltaFormat(place, options, pipeline, config.name)
        self.frame = options.execution == "frame"
        if self.frame:
            place.require_conditional_puts(config.name)
        super().__init__(config, self.format, pipeline)

    @property
    def capabilities(self) -> Capabilities:
        """The abilities of the target: for merged rows or every change, with or without Spark."""
        return replace(super().capabilities, execution=Execution.FRAME if self.frame else Execution.UNITS)

    @property
    def spark_writer(self) -> DeltaSparkWriter | None:
        """The writer of large batches of a table; None without Spark."""
        return DeltaSparkWriter(self.format) if self.frame else None
