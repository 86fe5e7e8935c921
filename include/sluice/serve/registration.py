"""Says in ZooKeeper where the service is, under the root of each of its pipelines, until it ends."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress

import structlog

from sluice.coordination.servers import ServerEntry, Servers
from sluice.errors import SluiceError
from sluice.serve.service import Place, Service

_log = structlog.get_logger()

EVERY_S = 5.0
"""How soon a node is there again after its session was lost."""

PIPELINES_S = 60.0
"""How soon a new pipeline file is seen."""

_PATIENCE_S = 5.0
"""How long the end of the service waits for ZooKeeper; the end of the session removes the nodes as well."""


class Registration:
    """The registration of a service that clients reach at ``address`` (``grpc://host:port``). Begins at once."""

    def __init__(self, service: Service, address: str) -> None:
        self._service = service
        self._address = address
        self._name = uuid.uuid4().hex
        self._places: dict[Place, list[str]] = {}
        self._seen_at = float("-inf")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="registration", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Take it back, so that no new client comes."""
        self._over.set()
        self._thread.join(_PATIENCE_S)

    def _keep(self) -> None:
        registered = False
        while not self._over.is_set():
            try:
                if time.monotonic() - self._seen_at > PIPELINES_S:
                    self._places = self._service.places()
                    self._seen_at = time.monotonic()
                for servers, names in self._servers():
                    servers.keep(self._name, ServerEntry(self._address, tuple(names)))
                    registered = True
            except SluiceError as error:
                _log.warning("registration_failed", error=str(error))
            self._over.wait(EVERY_S)
        if registered:
            with suppress(SluiceError):
                for servers, _ in self._servers():
                    servers.forget(self._name)

    def _servers(self) -> Iterator[tuple[Servers, list[str]]]:
        for place, names in self._places.items():
            yield Servers(self._service.session_of(place).znodes, place.root), names
