"""Targets: the port (``base``), what SQL targets share (``sql``), and one folder a kind."""

from __future__ import annotations

from sluice.config.connections import ConnectionResolver
from sluice.config.pipeline import TargetConfig
from sluice.targets.base import Target
from sluice.targets.offers import require_offered
from sluice.targets.registry import KINDS, kind_of

__all__ = ["KINDS", "open_target"]


def open_target(config: TargetConfig, resolver: ConnectionResolver, pipeline: str) -> Target:
    """The target that ``config`` describes; connects at first use. Raises ConfigError for an unknown type or wrong options."""
    kind = kind_of(config.type, config.name).load()
    target: Target = kind(config, resolver(config.connection), pipeline)
    require_offered(config, target)
    return target
