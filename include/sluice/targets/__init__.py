"""Targets: the port (``port``), what SQL targets share (``sql``), and one folder per kind."""

from __future__ import annotations

from sluice.config.connections import ConnectionResolver
from sluice.config.pipeline import TargetConfig
from sluice.errors import ConfigError
from sluice.model.load_marks import LoadMark
from sluice.targets.feature_check import require_offered
from sluice.targets.port import Target, marking
from sluice.targets.registry import KINDS, kind_of, marking_kinds

__all__ = ["KINDS", "open_target"]


def open_target(
    config: TargetConfig, resolver: ConnectionResolver, pipeline: str, mark: LoadMark | None = None
) -> Target:
    """Build the target that ``config`` describes; it connects at first use.

    ``mark``: the origin marker of everything that is written to it. Raises ConfigError for an unknown type, wrong
    options, or a kind that cannot mark what it writes.
    """
    kind = kind_of(config.type, config.name, config.where("type")).load()
    target: Target = kind(config, resolver(config.connection), pipeline)
    require_offered(config, target)
    if mark is not None:
        marked = marking(target)
        if marked is None:
            raise ConfigError(
                f"target {config.name!r}: a target of type {config.type} cannot mark what is written to it",
                hint=f"targets of pipelines with mark, or in a channel, are of type {', '.join(marking_kinds())}",
            )
        marked.mark = mark
    return target
