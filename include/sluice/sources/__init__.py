"""Sources by kind: one folder and one line each."""

from __future__ import annotations

import importlib
from typing import Any

from sluice.config.connections import ConnectionResolver, Endpoint
from sluice.config.pipeline import PipelineConfig
from sluice.errors import ConfigError
from sluice.sources.base import Source

KINDS = {
    "mysql": "sluice.sources.mysql.source:MySQLSource",
    "memory": "sluice.sources.memory.source:MemorySource",
}
"""``source.type`` in the pipeline file -> module:class; imported at first use."""


def open_source(pipeline: PipelineConfig, resolver: ConnectionResolver) -> Source:
    """The source that the pipeline's file describes; connects at first use. Raises ConfigError for an unknown type."""
    path = KINDS.get(pipeline.source.type)
    if path is None:
        raise ConfigError(
            f"the source of {pipeline.pipeline} has the type {pipeline.source.type!r}, which does not exist",
            hint=f"known types: {', '.join(sorted(KINDS))}",
        )
    module, _, name = path.partition(":")
    source: Source = getattr(importlib.import_module(module), name)(pipeline, resolver)
    return source


QUERIES = {
    "mysql": "sluice.sources.mysql.server.query:query_rows",
}
"""Kind of a connection -> what runs a person's query there; any other kind is asked as MySQL is."""


def query_rows(
    endpoint: Endpoint, query: str, max_rows: int, *, doing: str, where: str
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Column names and at most ``max_rows`` rows of a query, for a rule's lookup. ``doing``, ``where``: for errors.

    Raises SourceUnavailable, ConfigError, RuleError.
    """
    module, _, name = QUERIES.get(endpoint.kind, QUERIES["mysql"]).partition(":")
    found: tuple[list[str], list[tuple[Any, ...]]] = getattr(importlib.import_module(module), name)(
        endpoint, query, max_rows, doing=doing, where=where
    )
    return found


__all__ = ["KINDS", "open_source", "query_rows"]
