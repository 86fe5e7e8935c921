"""A real Elasticsearch, and a real OpenSearch: one node from released jars on the machine's Java, on loopback.

Neither distribution is fetched: the server's jars and its HTTP module are enough. Nothing of them is shipped.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from devstack import maven, paths, ports
from devstack.server import Server

VERSIONS: Mapping[str, str] = {"elasticsearch": "8.19.21", "opensearch": "2.19.1"}
_JARS = Path(__file__).with_name("jars")
_PROGRAMS = {"elasticsearch": "ElasticsearchNode", "opensearch": "OpenSearchNode"}
_MODULE = "transport-netty4"
_DESCRIPTION = f"""description=Netty based transport implementation
version={VERSIONS["elasticsearch"]}
name={_MODULE}
classname=org.elasticsearch.transport.netty4.Netty4Plugin
java.version=17
elasticsearch.version={VERSIONS["elasticsearch"]}
extended.plugins=
has.native.controller=false
"""


def find_search(kind: str = "elasticsearch") -> Path:
    """Return the folder of a server's jars, fetched at first use (about 50 MB). Raises FetchFailed."""
    jars = maven.read_list(_JARS / f"{kind}.lock")
    return maven.fetch(paths.home() / kind, jars, what=f"{kind} {VERSIONS[kind]}")


@dataclass
class SearchServer(Server):
    """One node without a login. ``start`` on the same folder goes on with its data, also after a crash.

    Args:
        kind: elasticsearch or opensearch. port: 0: a free one; kept over restarts.
        settings: on top of its own, such as ``{"indexing_pressure.memory.limit": "1kb"}``.
    """

    name: str = "elasticsearch"
    kind: str = "elasticsearch"
    port: int = 0
    transport_port: int = 0
    heap_mb: int = 384
    settings: Mapping[str, object] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """The address for clients."""
        return f"http://{self.host}:{self.port}"

    def start(self, timeout_s: float = 120.0) -> SearchServer:
        """Start and wait until the cluster has a state. Raises ServerFailed with the end of its log."""
        if self.running:
            return self
        self.port = self.port or ports.free_port()
        self.transport_port = self.transport_port or ports.free_port()
        home, classes = self._home()
        compiler = [next(paths.pyspark_home().glob(f"jars/{one}-[0-9]*.jar")) for one in ("janino", "commons-compiler")]
        program = _JARS / f"{_PROGRAMS[self.kind]}.java"
        given = [f"{name}={value}" for name, value in self.settings.items()]
        argv = [
            *paths.small_java(self.heap_mb), "-cp", os.pathsep.join(map(str, [*classes, *compiler])),
            "org.codehaus.janino.SimpleCompiler",
            str(program), program.stem, str(home), str(self.folder), str(self.port), str(self.transport_port), *given,
        ]  # fmt: skip
        self._spawn(argv)
        self._wait_ready(lambda: ports.answers_http(f"{self.url}/_cluster/health"), timeout_s)
        return self

    def _home(self) -> tuple[Path, list[Path]]:
        """Lay out the node's home; return it with the jars of the class path."""
        jars = sorted(find_search(self.kind).glob("*.jar"))
        home = self.folder / "home"
        (home / "config").mkdir(parents=True, exist_ok=True)
        (self.folder / "config").mkdir(exist_ok=True)
        if self.kind == "opensearch":
            return home, jars
        module = home / "modules" / _MODULE
        module.mkdir(parents=True, exist_ok=True)
        (module / "plugin-descriptor.properties").write_text(_DESCRIPTION, encoding="utf-8")
        of_module = [jar for jar in jars if jar.name.startswith(("netty-", _MODULE))]
        for jar in of_module:
            if not (module / jar.name).exists():
                (module / jar.name).symlink_to(jar)
        return home, [jar for jar in jars if jar not in of_module]

    def connection_json(self) -> str:
        """Return the value for ``AIRFLOW_CONN_<ID>``, as Airflow's providers have it."""
        return json.dumps({"conn_type": self.kind, "host": self.host, "port": self.port, "schema": "http"})

    def ask(self, path: str) -> Any:
        """Return the answer to a GET, as JSON; an error's, too."""
        try:
            with urllib.request.urlopen(f"{self.url}{path}", timeout=30.0) as answer:  # noqa: S310 - loopback
                return json.load(answer)
        except urllib.error.HTTPError as error:
            return json.load(error)
