"""The rights that a login needs at RabbitMQ: permissions in a virtual host. AMQP has no question for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sluice.model.rights import Purpose, Right, Scope

TARGET = (
    Right(("write",), Scope.EXCHANGE, Purpose.ROWS, "rows (`amq.default` is the default exchange)"),
    Right(("configure",), Scope.MADE, Purpose.DDL, "`sluice check --apply`, `create: needed`", required=False),
)
"""The rights of a target's login with ``send_to: queues``."""

STREAMS = (
    Right(("write", "read"), Scope.STREAMS, Purpose.ROWS, "rows"),
    Right(("configure", "write", "read"), Scope.ACK_STREAM, Purpose.CHECKPOINT, "the checkpoint"),
    Right(("configure",), Scope.MADE, Purpose.DDL, "`sluice check --apply`, `create: needed`", required=False),
)
"""The rights of a target's login with ``send_to: streams``."""


def set_permissions(user: str, rights: Iterable[Right], patterns: Mapping[Scope, str], vhost: str = "/") -> list[str]:
    """Return the words of ``rabbitmqctl`` for a login. ``patterns``: a regular expression for each scope."""
    scopes: dict[str, list[str]] = {"configure": [], "write": [], "read": []}
    for right in rights:
        for name in right.privileges:
            scopes[name].append(patterns[right.scope])
    expressions = (f"^({'|'.join(dict.fromkeys(some))})$" if some else "^$" for some in scopes.values())
    return ["set_permissions", "-p", vhost, user, *expressions]


__all__ = ["STREAMS", "TARGET", "set_permissions"]
