"""Sources by kind: one folder and one line each."""

from __future__ import annotations

import importlib
from typing import Any

from sluice.config.connections import ConnectionResolver, Endpoint
from sluice.config.pipeline import PipelineConfig
from sluice.errors import ConfigError
from sluice.model.load_marks import MarkRules
from sluice.model.nearest import meant
from sluice.sources.base import Source

KINDS = {
    "mysql": "sluice.sources.mysql.source:MySQLSource",
    "memory": "sluice.sources.memory.source:MemorySource",
}
"""``source.type`` in the pipeline file -> module:class; imported at first use."""

READ_MARKS = frozenset({"mysql", "memory"})
"""Kinds that read marks of loads."""


def open_source(pipeline: PipelineConfig, resolver: ConnectionResolver, loads: MarkRules | None = None) -> Source:
    """Return the source that the pipeline's file describes; it connects at first use.

    ``loads``: what it does with what Sluice wrote there. Raises ConfigError for an unknown type, or one that cannot
    tell these changes.
    """
    path = KINDS.get(pipeline.source.type)
    if path is None:
        raise ConfigError(
            f"the source of {pipeline.pipeline} has the type {pipeline.source.type!r}, which does not exist{meant(pipeline.source.type, KINDS)}",
            hint=f"known types: {', '.join(sorted(KINDS))}",
        )
    module, _, name = path.partition(":")
    kind = getattr(importlib.import_module(module), name)
    if loads is None:
        source: Source = kind(pipeline, resolver)
        return source
    if pipeline.source.type not in READ_MARKS:
        raise ConfigError(
            f"a source of type {pipeline.source.type} cannot tell what Sluice wrote there from what applications write",
            where=pipeline.pipeline,
            hint=f"channels and ignore_marks need a source of type {', '.join(sorted(READ_MARKS))}",
        )
    marked: Source = kind(pipeline, resolver, loads)
    return marked


QUERIES = {
    "mysql": "sluice.sources.mysql.server.query:query_rows",
}
"""Kind of a connection -> what runs a person's query there; any other kind is asked as MySQL is."""


def query_rows(
    endpoint: Endpoint, query: str, max_rows: int, *, doing: str, where: str
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return column names and at most ``max_rows`` rows of a query, for a rule's lookup.

    ``doing``, ``where``: for errors.

    Raises SourceUnavailable, ConfigError, RuleError.
    """
    module, _, name = QUERIES.get(endpoint.kind, QUERIES["mysql"]).partition(":")
    found: tuple[list[str], list[tuple[Any, ...]]] = getattr(importlib.import_module(module), name)(
        endpoint, query, max_rows, doing=doing, where=where
    )
    return found


__all__ = ["KINDS", "open_source", "query_rows"]
