"""A real schema registry: Apicurio with Confluent's API, in memory, on loopback."""

from __future__ import annotations

import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

from devstack import maven, paths, ports
from devstack.debian import lock
from devstack.server import Server

_LIST = Path(__file__).with_name("jars") / "registry.lock"
_API = "apis/ccompat/v7"


def find_registry() -> Path:
    """Return the registry's folder, fetched (142 MB) and unpacked at first use. Raises FetchFailed."""
    [file] = maven.read_list(_LIST)
    folder = maven.fetch(paths.home() / "registry", [file], what="Apicurio Registry")
    final = folder / "unpacked"
    with lock(folder / ".lock"):
        if not final.is_dir():
            with (
                tempfile.TemporaryDirectory(prefix=".unpack-", dir=folder) as scratch,
                tarfile.open(folder / file.name) as archive,
            ):
                archive.extractall(scratch)  # noqa: S202 - the file of the list, by its SHA-256
                Path(scratch).rename(final)
                Path(scratch).mkdir()  # for the end of the block
    return final


@dataclass
class RegistryServer(Server):
    """An empty registry; what is registered is gone with the process."""

    name: str = "registry"
    port: int = 0
    heap_mb: int = 256

    @property
    def url(self) -> str:
        """The URL of Confluent's API."""
        return f"http://{self.host}:{self.port}/{_API}"

    def start(self, timeout_s: float = 90.0) -> RegistryServer:
        """See :meth:`Server.start`."""
        if self.running:
            return self
        self.port = self.port or ports.free_port()
        self.folder.mkdir(parents=True, exist_ok=True)
        [program] = find_registry().glob("*-runner.jar")
        self._spawn([
            *paths.small_java(self.heap_mb), f"-Dquarkus.http.host={self.host}", f"-Dquarkus.http.port={self.port}",
            "-jar", str(program),
        ])  # fmt: skip
        self._wait_ready(lambda: ports.answers_http(f"{self.url}/subjects"), timeout_s)
        return self
