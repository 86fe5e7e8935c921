"""Targets by kind: one folder and one line each."""

from __future__ import annotations

import importlib

from sluice.config.connections import ConnectionResolver
from sluice.config.pipeline import TargetConfig
from sluice.errors import ConfigError
from sluice.targets.base import (
    Agrees,
    Capabilities,
    Checkpoint,
    DdlProgress,
    DdlStep,
    Fence,
    LoadCount,
    OnRefused,
    Refusal,
    Remark,
    Replacement,
    TableChanges,
    Target,
    TargetTable,
)

__all__ = [
    "KINDS",
    "Agrees",
    "Capabilities",
    "Checkpoint",
    "DdlProgress",
    "DdlStep",
    "Fence",
    "LoadCount",
    "OnRefused",
    "Refusal",
    "Remark",
    "Replacement",
    "TableChanges",
    "Target",
    "TargetTable",
    "open_target",
]  # fmt: skip

KINDS = {
    "mysql": "sluice.targets.mysql.target:MySQLTarget",
}
"""``type:`` in the pipeline file -> module:class; imported at first use."""


def open_target(config: TargetConfig, resolver: ConnectionResolver, pipeline: str) -> Target:
    """The target that ``config`` describes; connects at first use. Raises ConfigError for an unknown type or wrong options."""
    path = KINDS.get(config.type)
    if path is None:
        raise ConfigError(
            f"target {config.name!r} has the type {config.type!r}, which does not exist",
            hint=f"known types: {', '.join(sorted(KINDS))}",
        )
    module, _, name = path.partition(":")
    target: Target = getattr(importlib.import_module(module), name)(config, resolver(config.connection), pipeline)
    if config.consistency not in target.capabilities.consistency:
        raise ConfigError(f"target {config.name!r} ({config.type}) does not offer consistency: {config.consistency}")
    if config.changes == "all" and not target.capabilities.all_changes:
        raise ConfigError(
            f"target {config.name!r} ({config.type}) takes merged rows only",
            hint="write changes: latest, or leave the line out",
        )
    return target
