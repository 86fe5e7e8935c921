"""Iceberg tables as a target, written by pyiceberg."""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel

from sluice.config.connections import Endpoint
from sluice.config.pipeline import TargetConfig
from sluice.targets.iceberg.client import place_of
from sluice.targets.iceberg.format import IcebergFormat
from sluice.targets.iceberg.options import IcebergOptions
from sluice.targets.lake.target import LakeTarget
from sluice.targets.options import options_of


class IcebergTarget(LakeTarget):
    """See :class:`sluice.targets.port.Target`."""

    Options: ClassVar[type[BaseModel]] = IcebergOptions

    def __init__(self, config: TargetConfig, endpoint: Endpoint, pipeline: str) -> None:
        options = options_of(config, IcebergOptions)
        place = place_of(endpoint, options.catalog, config.name)
        super().__init__(config, IcebergFormat(place, options), pipeline)
