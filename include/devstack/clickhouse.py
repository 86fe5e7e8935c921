"""ClickHouse's engine on loopback, behind an HTTP interface of ours: a current server cannot be had as a package, its
engine can.

The engine (chdb-core) is the storage and the SQL of a ClickHouse server, in an environment of its own; see
:mod:`devstack.clickhouse_front`.
"""

from __future__ import annotations

import base64
import json
import os
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from devstack import ports
from devstack.environments import environment
from devstack.server import Server

_WHEELS = Path(__file__).with_name("wheels") / "clickhouse.txt"
_USER = "sluice"
VERSION = "26.9"


def find_clickhouse() -> Path:
    """Return the Python that has the engine, installed at first use (about 530 MB). Raises FetchFailed."""
    return environment("clickhouse", _WHEELS) / "bin/python"


@dataclass
class ClickHouseServer(Server):
    """The engine's process.

    ``start`` on the same folder goes on with its data, also after a crash. ``port``: 0: a free one; kept over
    restarts. ``grants``: the only rights of the login, as GRANTs without TO; None: all.
    """

    name: str = "clickhouse"
    port: int = 0
    password: str = field(default="s3cret-of-clickhouse", repr=False)
    grants: Sequence[str] | None = None

    @property
    def url(self) -> str:
        """The address for clients."""
        return f"http://{self.host}:{self.port}"

    def start(self, timeout_s: float = 180.0) -> ClickHouseServer:
        """Start the process and wait until it answers. Raises ServerFailed with the end of its log."""
        if self.running:
            return self
        self.port = self.port or ports.free_port()
        self.folder.mkdir(parents=True, exist_ok=True)
        program = Path(__file__).with_name("clickhouse_front.py")
        data = f"{self.folder / 'data'}{'' if self.grants is None else self._users(self.grants)}"
        argv: list[str | Path] = [find_clickhouse(), "-u", program, data, str(self.port)]
        self._spawn(argv, env={**os.environ, "CLICKHOUSE_LOGIN": f"{_USER}:{self.password}"})
        self._wait_ready(lambda: ports.answers_http(f"{self.url}/ping"), timeout_s)
        return self

    def _users(self, grants: Sequence[str]) -> str:
        """Write the engine's file of users. Return the setting that names it."""
        queries = "".join(f"<query>{escape(grant)}</query>" for grant in grants)
        user = f"<password></password><networks><ip>::/0</ip></networks><grants>{queries}</grants>"
        user += "<profile>default</profile><quota>default</quota>"
        (self.folder / "users.xml").write_text(
            "<clickhouse><profiles><default/></profiles><quotas><default/></quotas>"
            f"<users><default>{user}</default></users></clickhouse>", encoding="utf-8",
        )  # fmt: skip
        file = self.folder / "engine.xml"
        file.write_text("<clickhouse><users_config>users.xml</users_config></clickhouse>", encoding="utf-8")
        return f"?config-file={file}"

    def connection_json(self) -> str:
        """Return the value for ``AIRFLOW_CONN_<ID>``."""
        given = {"conn_type": "clickhouse", "host": self.host, "port": self.port, "schema": "http"}
        return json.dumps({**given, "login": _USER, "password": self.password})

    def query(self, statement: str) -> list[Any]:
        """Run a statement; return its rows, each a list of JSON values. Raises OSError with what the engine says."""
        request = urllib.request.Request(f"{self.url}/", statement.encode(), method="POST")  # noqa: S310 - loopback
        for name, value in self.headers.items():
            request.add_header(name, value)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:  # noqa: S310
                return [json.loads(line) for line in answer.read().splitlines()]
        except urllib.error.HTTPError as error:
            raise OSError(error.read().decode("utf-8", "replace")) from None

    @property
    def headers(self) -> dict[str, str]:
        """The login of a request."""
        return {"Authorization": f"Basic {base64.b64encode(f'{_USER}:{self.password}'.encode()).decode()}"}
