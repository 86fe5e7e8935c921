"""Kinds of sources by name: built in (one folder and one line each), from installed packages (entry points
``sluice.sources``), and files of the sources folder.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sluice.config.connections import ConnectionResolver, Endpoint
from sluice.config.pipeline import PipelineConfig
from sluice.config.user_kinds import Kind, find_kinds
from sluice.errors import ConfigError
from sluice.model.load_marks import MarkRules
from sluice.model.nearest import meant
from sluice.model.offset import Offset
from sluice.sources.port import Source


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """A kind of source.

    Attributes:
        place: module:class, imported at first use.
        reads_marks: it tells what Sluice wrote at the source from what applications write.
        executed: module:function that reads in an offset which transactions came up to it.
        probe: module:function that logs in at a connection of this kind and says what answers; "": there is none.
        query: module:function that runs a person's query at a connection of this kind; "": it is asked as MySQL is.
        kernels: module:function that compiles its kernels, or loads them from Numba's cache; "": it has none.
    """

    place: str
    executed: str
    reads_marks: bool = False
    query: str = ""
    probe: str = ""
    kernels: str = ""


KINDS: Mapping[str, BuiltIn] = {
    "mysql": BuiltIn(
        "sluice.sources.mysql.source:MySQLSource",
        "sluice.sources.mysql.position:executed",
        reads_marks=True,
        query="sluice.sources.mysql.server.query:query_rows",
        probe="sluice.sources.mysql.server.connection:probe",
        kernels="sluice.sources.mysql.reader.warm_up:compile_kernels",
    ),
    "postgresql": BuiltIn(
        "sluice.sources.postgresql.source:PostgreSQLSource",
        "sluice.sources.postgresql.position:executed",
        reads_marks=True,
        kernels="sluice.sources.postgresql.warm_up:compile_kernels",
    ),
    "memory": BuiltIn(
        "sluice.sources.memory.source:MemorySource", "sluice.sources.memory.position:executed", reads_marks=True
    ),
}
"""``source.type`` in the pipeline file -> the kind."""


def kinds() -> dict[str, Kind]:
    """Return all kinds by name. Nothing is imported. Raises ConfigError if a name is taken twice."""
    return find_kinds("sources", {name: kind.place for name, kind in KINDS.items()})


def kind_of(name: str, pipeline: str = "") -> Kind:
    """Return one kind. Raises ConfigError with the known names; ``pipeline``: the one that names it."""
    if name in KINDS:  # neither the folder nor packages have to be read
        return Kind(name, "built in", KINDS[name].place, family="sources")
    available = kinds()
    if name not in available:
        raise ConfigError(
            f"the source of {pipeline} has the type {name!r}, which does not exist{meant(name, available)}",
            hint=f"known types: {', '.join(sorted(available))}; docs/own-source.md says how to add one",
        )
    return available[name]


def reads_marks(name: str) -> bool:
    """Return True if sources of a kind read marks of loads. A user's own kind has the attribute ``reads_marks``."""
    if name in KINDS:
        return KINDS[name].reads_marks
    return bool(getattr(kind_of(name).load(), "reads_marks", False))


def _load(place: str) -> Any:
    """Import the object at ``module:name``."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def load_kind(kind: str) -> None:
    """Import the modules of a kind; an unknown one is left to :func:`open_source`."""
    if kind in KINDS:
        _load(KINDS[kind].place)


def compile_kernels(name: str = "") -> None:
    """Compile the kernels of a kind, or of every kind, so that no capture waits for the compiler: ``make kernels``."""
    for kind_name, kind in KINDS.items():
        if kind.kernels and name in {"", kind_name}:
            _load(kind.kernels)()


def executed(kind: str, at: Offset) -> str:
    """Return all transactions up to an offset of a source of this kind, in its own notation; "" if they have no
    names.

    A user's own kind has a static method ``executed`` for it.
    """
    read = _load(KINDS[kind].executed) if kind in KINDS else getattr(kind_of(kind).load(), "executed", None)
    return str(read(at)) if read is not None else ""


def open_source(pipeline: PipelineConfig, resolver: ConnectionResolver, loads: MarkRules | None = None) -> Source:
    """Return the source that the pipeline's file describes; it connects at first use.

    ``loads``: what it does with what Sluice wrote there. Raises ConfigError for an unknown type, for one that cannot be
    imported, or that cannot tell these changes.
    """
    name = pipeline.source.type
    kind = kind_of(name, pipeline.pipeline).load()
    if pipeline.capture.columns.exclude and name not in KINDS and not getattr(kind, "skips_columns", False):
        raise ConfigError(
            f"a source of type {name} does not keep columns out of storage",
            where=pipeline.pipeline,
            hint="capture.columns.exclude needs a kind with the attribute skips_columns (docs/own-source.md)",
        )
    if loads is None:
        source: Source = kind(pipeline, resolver)
        return source
    if not reads_marks(name):
        raise ConfigError(
            f"a source of type {name} cannot tell what Sluice wrote there from what applications write",
            where=pipeline.pipeline,
            hint=f"channels and ignore_marks need a source of type {', '.join(sorted(filter(reads_marks, KINDS)))}",
        )
    marked: Source = kind(pipeline, resolver, loads)
    return marked


def query_rows(
    endpoint: Endpoint, query: str, max_rows: int, *, doing: str, where: str
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return column names and at most ``max_rows`` rows of a query, for a rule's lookup.

    ``doing``, ``where``: for errors.

    Raises SourceUnavailable, ConfigError, RuleError.
    """
    own = KINDS[endpoint.kind].query if endpoint.kind in KINDS else ""
    ask = _load(own or KINDS["mysql"].query)
    query_rows: tuple[list[str], list[tuple[Any, ...]]] = ask(endpoint, query, max_rows, doing=doing, where=where)
    return query_rows


__all__ = [
    "KINDS",
    "Kind",
    "compile_kernels",
    "executed",
    "kind_of",
    "kinds",
    "open_source",
    "query_rows",
    "reads_marks",
]
