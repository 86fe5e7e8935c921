"""Log in at a connection and say what answers, or what the login may not: for the *Test* button of Airflow's form, for
``sluice doctor`` and ``sluice check``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sluice import sources
from sluice.config.connections import Endpoint
from sluice.errors import ConfigError
from sluice.model.findings import Finding
from sluice.model.rights import SETTING
from sluice.model.tables import TableId
from sluice.sources.port import Source
from sluice.targets import registry
from sluice.targets.port import NamesRights, Target

_POSITIONS = {kind: f"sluice.coordination.{kind}:probe" for kind in ("zookeeper", "sqlite")}
_SPARK = "sluice.spark.connect:probe"
OTHER_NAMES: Mapping[str, str] = {
    "mariadb": "mysql",
    "mongo": "mongodb",
    "postgres": "postgresql",
    "https": "http",
    "opensearch": "elasticsearch",
    "amqp": "rabbitmq",
}
"""Connection types that have another name than the kind of source or target that uses them."""


def testable_kinds() -> list[str]:
    """Return the kinds of connections that can be tried."""
    targets = {name for name, kind in registry.KINDS.items() if kind.probe}
    return sorted({*_POSITIONS, *targets, *(name for name, kind in sources.KINDS.items() if kind.probe)})


def testable(endpoint: Endpoint) -> bool:
    """Return True if :func:`probe` can try a connection of this kind."""
    return _place_of(endpoint) != ""


def probe(endpoint: Endpoint) -> str:
    """Log in at ``endpoint`` and return what answers, for example the server's version.

    Raises:
        ConfigError: the login is refused, the connection is incomplete, or its kind cannot be tried.
        RetryableError: nothing answers in time.
    """
    place = _place_of(endpoint)
    if not place:
        raise ConfigError(
            f"connection {endpoint.connection_id!r}: connections of type {endpoint.kind or 'none'} cannot be tried",
            hint=f"these can: {', '.join(testable_kinds())}",
        )
    return _function(place)(endpoint)


def source_rights(source: Source) -> list[Finding]:
    """Return the rights that the login of a source lacks."""
    with source.open() as session:
        return [replace(finding, part="source") for finding in session.preflight(None) if finding.setting == SETTING]


def target_rights(target: Target, tables: Sequence[TableId] | None = None) -> list[Finding]:
    """Return the rights that the login of a target lacks on ``tables``; None: for its checkpoint."""
    missing_rights = target.missing_rights(tables) if isinstance(target, NamesRights) else []
    return [replace(right, part=f"target {target.config.name}") for right in missing_rights]


def _place_of(endpoint: Endpoint) -> str:
    """Return module:function that tries connections of this kind; "" for none."""
    kind = OTHER_NAMES.get(endpoint.kind, endpoint.kind)
    if kind in _POSITIONS:
        return _POSITIONS[kind]
    if kind == "spark_connect":
        return _SPARK
    source, target = sources.KINDS.get(kind), registry.KINDS.get(kind)
    return (source.probe if source is not None else "") or (target.probe if target is not None else "")


def _function(place: str) -> Callable[[Endpoint], str]:
    module, _, name = place.partition(":")
    try:
        function: Any = getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise ConfigError(f"its client is not installed here: {error}", where=module) from error
    return function  # type: ignore[no-any-return]
