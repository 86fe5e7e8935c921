"""A real Redis or Valkey server, the same way: Debian's packages, unpacked into a project folder."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from redis import Redis, RedisError

from devstack import debian, packages, ports
from devstack.server import Server


@dataclass(frozen=True)
class RedisProgram:
    """The program of a server, and its version."""

    tree: debian.Tree
    name: str

    def command(self, program: str = "server") -> list[str]:
        """Return the beginning of a command that runs the server, or its command line client (``cli``)."""
        return self.tree.command(f"usr/bin/{self.name}-{program}")


def find_redis() -> RedisProgram:
    """Return Redis as fetched earlier, else fetch it now (about 16 MB). Raises ConfigError, FetchFailed."""
    return RedisProgram(packages.REDIS.tree(), "redis")


def find_valkey() -> RedisProgram:
    """Return Valkey as fetched earlier, else fetch it now (about 16 MB). Raises ConfigError, FetchFailed."""
    return RedisProgram(packages.VALKEY.tree(), "valkey")


@dataclass
class RedisServer(Server):
    """One server. ``start`` on the same folder goes on with its data, also after a crash.

    Args:
        program: what to run; None: :func:`find_redis`.
        port: 0: a free one; kept over restarts.
        password: of the default user; "" for none.
        settings: on top of its own, such as ``{"appendfsync": "always"}``.
    """

    name: str = "redis"
    program: RedisProgram | None = None
    port: int = 0
    password: str = field(default="", repr=False)
    settings: Mapping[str, object] = field(default_factory=dict)

    def start(self, timeout_s: float = 30.0) -> RedisServer:
        """Start and wait until it answers. Raises ServerFailed with the end of its log."""
        if self.running:
            return self
        if self.program is None:
            self.program = find_redis()
        if not self.port:
            self.port = ports.free_port()
        self.folder.mkdir(parents=True, exist_ok=True)
        configuration = self.folder / "server.conf"
        given: dict[str, object] = {
            "bind": self.host, "port": self.port, "dir": self.folder, "appendonly": "yes", "appendfsync": "everysec",
            "save": '""',
            "daemonize": "no", "maxmemory-policy": "noeviction",
            "set-proc-title": "no",  # it would write over the environment, by which the process is known
            **self.settings,
        }  # fmt: skip
        if self.password:
            given["requirepass"] = json.dumps(self.password)
        configuration.touch(mode=0o600)
        configuration.write_text("".join(f"{name} {value}\n" for name, value in given.items()), encoding="utf-8")
        # it refuses to start in a language that its own C library has no locale of
        self._spawn([*self.program.command(), str(configuration)], {**os.environ, "LC_ALL": "C"})
        self._wait_ready(self._answers, timeout_s)
        return self

    def connection_json(self) -> str:
        """Return the value for ``AIRFLOW_CONN_<ID>``, as the Redis provider of Airflow has it."""
        return json.dumps({
            "conn_type": "redis",
            "host": self.host,
            "port": self.port,
            "password": self.password,
            "extra": {"db": 0},
        })

    def client(self) -> Redis:
        """Return a client of the default user."""
        return Redis(host=self.host, port=self.port, password=self.password or None, socket_timeout=30.0, protocol=2)

    def _answers(self) -> bool:
        try:
            with self.client() as client:
                return bool(client.ping())
        except RedisError:
            return False
