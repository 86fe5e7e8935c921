"""A real REST catalog of Iceberg tables: the server that Apache Iceberg tests its own clients with, over SQLite and a
folder, on loopback.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from devstack import maven, paths, ports
from devstack.server import Server

VERSION = "1.10.0"
_LIST = Path(__file__).with_name("jars") / "iceberg_rest.lock"
_PROGRAM = _LIST.with_name("RestCatalog.java")
_OF_SPARK = (
    "hadoop-client-api", "hadoop-client-runtime", "jackson-core", "jackson-databind", "jackson-annotations",
    "slf4j-api", "avro", "commons-lang3",
    "janino", "commons-compiler",
)  # fmt: skip
"""What it needs of the jars that PySpark has anyway."""


def find_rest_catalog() -> list[Path]:
    """Return its jars, fetched at first use, and those of PySpark. Raises FetchFailed."""
    jars = maven.read_list(_LIST)
    folder = maven.fetch(paths.home() / "iceberg-rest", jars, what=f"Iceberg's REST catalog {VERSION}")
    spark = [next(paths.pyspark_home().glob(f"jars/{name}-[0-9]*.jar")) for name in _OF_SPARK]
    return [*(folder / jar.name for jar in jars), *spark]


@dataclass
class RestCatalogServer(Server):
    """A catalog and its tables in ``folder``; both outlive the process. It asks for no login, and takes any."""

    name: str = "iceberg-rest"
    port: int = 0
    heap_mb: int = 192

    @property
    def url(self) -> str:
        """The URL for clients."""
        return f"http://{self.host}:{self.port}"

    def start(self, timeout_s: float = 90.0) -> RestCatalogServer:
        """See :meth:`Server.start`."""
        if self.running:
            return self
        self.port = self.port or ports.free_port()
        self.folder.mkdir(parents=True, exist_ok=True)
        argv = [
            *paths.small_java(self.heap_mb), "-cp", os.pathsep.join(map(str, find_rest_catalog())),
            "org.codehaus.janino.SimpleCompiler",
            str(_PROGRAM), _PROGRAM.stem, self.host, str(self.port), str(self.folder / "catalog.db"),
            str(self.folder / "warehouse"),
        ]  # fmt: skip
        self._spawn(argv)
        self._wait_ready(lambda: ports.answers_http(f"{self.url}/v1/config"), timeout_s)
        return self
