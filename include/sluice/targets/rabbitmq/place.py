"""A broker as its connection describes it, and the names that messages of a target go to."""

from __future__ import annotations

import hashlib
import os
import ssl
from dataclasses import dataclass
from urllib.parse import quote

from sluice.config.connections import Endpoint
from sluice.errors import ConfigError, MappingError
from sluice.model.tables import TableId
from sluice.targets.rabbitmq.options import RabbitMQOptions

_EXTRA = frozenset({"stream_port", "ssl", "ca", "cert", "key"})
_PORTS = {False: (5672, 5552), True: (5671, 5551)}
_LONGEST = 255
"""Bytes of a routing key and of a name, as the protocols have it."""


@dataclass(frozen=True)
class Place:
    """A broker, and the names at it. Picklable."""

    endpoint: Endpoint
    options: RabbitMQOptions
    pipeline: str
    target: str

    def require_usable(self) -> None:
        """Check the connection. Raises ConfigError."""
        unknown = sorted(self.endpoint.extra.keys() - _EXTRA)
        if unknown:
            raise self._wrong(f"extra has {unknown[0]}, which is not known; known are {', '.join(sorted(_EXTRA))}")
        _ = self.stream_port
        for name in ("ca", "cert", "key"):
            path = self.endpoint.extra.get(name)
            if path and not os.path.isfile(str(path)):
                raise self._wrong(f"{name} {path!r} is not a file")

    def _wrong(self, why: str) -> ConfigError:
        return ConfigError(f"connection {self.endpoint.connection_id!r}: {why}")

    @property
    def owner(self) -> str:
        """The pipeline and the target, by name."""
        return f"{self.pipeline}.{self.target}"

    @property
    def host(self) -> str:
        """The host of the broker."""
        return self.endpoint.host or "localhost"

    @property
    def encrypted(self) -> bool:
        """True if the connection uses TLS."""
        return bool(self.endpoint.extra.get("ssl"))

    @property
    def port(self) -> int:
        """The port of AMQP 0.9.1."""
        return self.endpoint.port or _PORTS[self.encrypted][0]

    @property
    def stream_port(self) -> int:
        """The port of the stream protocol. Raises ConfigError."""
        port = self.endpoint.extra.get("stream_port") or _PORTS[self.encrypted][1]
        try:
            return int(port)
        except (TypeError, ValueError):
            raise self._wrong(f"stream_port {port!r} is not the number of a port") from None

    @property
    def vhost(self) -> str:
        """The virtual host: the connection's schema."""
        return self.endpoint.schema or "/"

    @property
    def login(self) -> tuple[str, str]:
        """Login and password; those of the server's default user if none is named."""
        return (self.endpoint.user or "guest", self.endpoint.password or ("" if self.endpoint.user else "guest"))

    @property
    def tls(self) -> ssl.SSLContext | None:
        """The TLS settings; None without TLS. Raises ConfigError."""
        extra = self.endpoint.extra
        if not self.encrypted:
            return None
        try:
            context = ssl.create_default_context(cafile=str(extra["ca"]) if extra.get("ca") else None)
            if extra.get("cert"):
                context.load_cert_chain(str(extra["cert"]), str(extra["key"]) if extra.get("key") else None)
        except (OSError, ssl.SSLError) as error:
            raise self._wrong(f"its certificates cannot be read: {error}") from None
        return context

    @property
    def address(self) -> str:
        """Host and port, for messages."""
        return f"{self.host}:{self.stream_port if self.options.streams else self.port}{'' if self.vhost == '/' else ' ' + self.vhost}"  # noqa: E501

    @property
    def record_place(self) -> str:
        """The location of the checkpoint, for messages."""
        return f"stream {self.ack_stream} at {self.address}"

    @property
    def ack_stream(self) -> str:
        """The name of the stream with the checkpoint."""
        return self._stream(self.options.ack_stream)

    def publisher(self, replay: str = "") -> str:
        """Return the publisher's name, by which the server knows what it has.

        ``replay``: of a dead letter that is delivered again.
        """
        name = f"sluice/{quote(self.owner, safe='.-_~')}{'/' + quote(replay, safe='.-_~') if replay else ''}"
        if len(name) <= _LONGEST:
            return name
        return f"{name[:200]}/{hashlib.sha256(name.encode()).hexdigest()[:32]}"

    def exchange_of(self, table: TableId | None) -> str:
        """Return the exchange of a table's rows; None: of messages that are no rows. Raises MappingError."""
        if table is None and self.options.exchange and not _is_fixed(self.options.exchange):
            return ""
        return self._short("exchange", self._filled(self.options.exchange, table))

    def route_of(self, table: TableId) -> str:
        """Return the stream, or the routing key, of a table's rows. Raises MappingError."""
        if self.options.streams:
            return self._stream(self.options.stream, table)
        return self._short("routing key", self._filled(self.options.routing_key, table))

    def side_routes(self) -> dict[str, str]:
        """Return the streams or routing keys of messages that are no rows, by option."""
        templates = {"transactions": self.options.transactions, "statements": self.options.statements}
        named = {name: template for name, template in templates.items() if template}
        if self.options.streams:
            return {name: self._stream(template) for name, template in named.items()}
        return {name: self._short("routing key", self._filled(template)) for name, template in named.items()}

    def _stream(self, template: str, table: TableId | None = None) -> str:
        """Fill a stream's name.

        The stream client counts characters where the protocol has bytes, so others than ASCII are written as %XX.
        """
        return self._short("stream", quote(self._filled(template, table), safe=_PRINTABLE))

    def _short(self, what: str, name: str) -> str:
        if len(name.encode()) > _LONGEST:
            raise MappingError(f"the {what} {name[:80]}… is longer than {_LONGEST} bytes", where=self.owner)
        return name

    def _filled(self, template: str, table: TableId | None = None) -> str:
        schema, name = (table.schema, table.table) if table is not None else ("", "")
        return template.format(schema=schema, table=name, pipeline=self.pipeline, target=self.target)


_PRINTABLE = "".join(chr(code) for code in range(32, 127) if chr(code) != "%")


def _is_fixed(template: str) -> bool:
    return not any(word in template for word in ("{schema}", "{table}"))


__all__ = ["Place"]
