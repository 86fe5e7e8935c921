"""Connections that travel with work units."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sluice.config.connections import ConnectionResolver, Endpoint
from sluice.errors import ConfigError


@dataclass(frozen=True)
class ResolvedConnections:
    """A resolver that travels with the units: the endpoints themselves. Its repr names ids only."""

    endpoints: Mapping[str, Endpoint] = field(repr=False)

    @classmethod
    def of(cls, resolver: ConnectionResolver, ids: Iterable[str]) -> ResolvedConnections:
        """Resolve ``ids`` now, here."""
        return cls({name: resolver(name) for name in ids})

    def __call__(self, connection_id: str) -> Endpoint:
        """Return the endpoint that was resolved before the work unit was sent."""
        try:
            return self.endpoints[connection_id]
        except KeyError:
            raise ConfigError(f"there is no connection {connection_id!r} in this work unit") from None
