"""The subscription service of the stack: ``sluice serve``, by Arrow Flight and by HTTP."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from devstack import paths, ports
from devstack.server import Server


@dataclass
class SubscriptionService(Server):
    """The subscription service.

    ``port``: of Arrow Flight; ``env``: variables that name pipelines, store and connections.
    """

    name: str = "subscriptions"
    port: int = 0
    http_port: int = 0
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """The address of its HTTP server."""
        return f"http://{self.host}:{self.http_port}"

    def start(self, *, wait: bool = True, timeout_s: float = 60.0) -> SubscriptionService:
        """Start it; ``wait``: until it answers."""
        if self.running:
            return self
        self.port = self.port or ports.free_port()
        self.http_port = self.http_port or ports.free_port()
        self.folder.mkdir(parents=True, exist_ok=True)
        argv = [
            sys.executable,
            "-m",
            "sluice.cli",
            "serve",
            "--port",
            str(self.port),
            "--http-port",
            str(self.http_port),
        ]
        self._spawn(argv, {**os.environ, **self.env, "PYTHONPATH": str(paths.repo_root() / "include")})
        if wait:
            self._wait_ready(lambda: ports.accepts(self.http_port), timeout_s)
        return self
