"""The service as its settings have it: servers, limits, registration.

The command ``sluice serve`` runs it, and Airflow's API server on wish.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from sluice.config.connections import is_loopback
from sluice.config.loading import read_text
from sluice.errors import ConfigError, first_line
from sluice.flows.runtime import Runtime
from sluice.serve.access import Readers
from sluice.serve.flight import FlightServer
from sluice.serve.registration import Registration
from sluice.serve.service import Service, Slots

if TYPE_CHECKING:
    from sluice.serve.http import HttpServer


@dataclass(frozen=True)
class Settings:
    """The options of the command; docs/subscribe.md says what they mean."""

    host: str = "127.0.0.1"
    port: int = 8815
    http_port: int | None = None
    readers: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    allow_insecure: bool = False
    max_reads: int = 16
    max_reads_each: int = 8
    register: bool = False
    advertise: str | None = None

    def require_safe(self) -> None:
        """Raise ConfigError for unsafe or unusable addresses.

        Others reach an unsafe one without TLS and readers; an unusable one is registered, and no client reaches it.
        """
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("--tls-cert and --tls-key go together")
        insecure = self.tls_cert is None or self.readers is None
        if not is_loopback(self.host) and not self.allow_insecure and insecure:
            raise ConfigError(
                f"{self.host} can be reached from other machines: without TLS whoever is on the way reads along, "
                "without --readers whoever connects reads",
                hint="give --tls-cert, --tls-key and --readers; or listen on 127.0.0.1; or say --allow-insecure",
            )
        if self.register and self.advertise is None and self.host in ("0.0.0.0", "::", "[::]"):  # noqa: S104
            raise ConfigError(
                f"{self.host} is no address that a client reaches", hint="--advertise HOST says which one is"
            )


class RunningService:
    """Serves from when it is made until :meth:`stop`.

    Args:
        build, names: as of :class:`~sluice.serve.service.Service`.

    Attributes:
        addresses: where it listens, as URLs: by Flight, and by HTTP if that is wanted.

    Raises:
        ConfigError: a setting is wrong, or it cannot listen there.
    """

    def __init__(self, settings: Settings, build: Callable[[str], Runtime], names: Callable[[], Sequence[str]]) -> None:
        settings.require_safe()
        self._settings = settings
        readers = Readers(settings.readers) if settings.readers is not None else None
        each = settings.max_reads_each if readers is not None else settings.max_reads
        self._service = Service(build, names, Slots(settings.max_reads, each))
        self._scheme = "grpc+tls" if settings.tls_cert is not None else "grpc"
        self._flight = self._flight_server(readers)
        try:
            self._http = self._http_server(readers)
        except ConfigError:
            self._flight.stop()
            raise
        self._registration = self._registered()

    @property
    def addresses(self) -> list[str]:
        """URLs by which clients reach the service."""
        host, addresses = self._settings.host, [f"{self._scheme}://{self._settings.host}:{self._flight.port}"]
        if self._http is not None:
            addresses.append(f"{'https' if self._settings.tls_cert is not None else 'http'}://{host}:{self._http.port}")
        return addresses

    def not_ready(self) -> list[str]:
        """See :meth:`sluice.serve.service.Service.not_ready`."""
        return self._service.not_ready()

    def stop(self) -> bool:
        """Take no further requests, and wait for the open ones.

        False: the client of one takes nothing; only the process's end ends it.
        """
        if self._registration is not None:
            self._registration.stop()
        ended = all([self._flight.stop(), self._http is None or self._http.stop()])
        self._service.close()
        return ended

    def _flight_server(self, readers: Readers | None) -> FlightServer:
        settings, tls = self._settings, None
        if settings.tls_cert is not None and settings.tls_key is not None:
            certificate = read_text(settings.tls_cert, "the certificate")
            tls = certificate.encode(), read_text(settings.tls_key, "the private key").encode()
        place = f"{settings.host}:{settings.port}"
        try:
            return FlightServer(self._service, f"{self._scheme}://{place}", readers=readers, tls=tls)
        except (pa.ArrowException, OSError) as error:
            raise ConfigError(f"the service cannot listen on {place}: {first_line(error)}") from None

    def _http_server(self, readers: Readers | None) -> HttpServer | None:
        settings = self._settings
        if settings.http_port is None:
            return None
        from sluice.serve.http import HttpServer  # takes a while to import

        files = None
        if settings.tls_cert is not None and settings.tls_key is not None:
            files = settings.tls_cert, settings.tls_key
        try:
            return HttpServer(self._service, settings.host, settings.http_port, readers=readers, tls=files)
        except OSError as error:
            place = f"{settings.host}:{settings.http_port}"
            raise ConfigError(f"the service cannot listen on {place}: {error.strerror or error}") from None

    def _registered(self) -> Registration | None:
        settings = self._settings
        if not settings.register and settings.advertise is None:
            return None
        reached = settings.advertise or settings.host
        at = reached if re.search(r":\d+$", reached) else f"{reached}:{self._flight.port}"
        return Registration(self._service, f"{self._scheme}://{at}")
