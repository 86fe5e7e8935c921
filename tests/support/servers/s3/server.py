"""A real S3 server on loopback (moto's), in an environment of its own: its pins and the pipeline's do not agree."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from pyarrow import fs

from devstack import ports, processes
from devstack.environments import environment
from devstack.server import Server

_REQUIREMENTS = Path(__file__).with_name("requirements.txt")


def moto_server() -> Path:
    """The program; its environment is made at the first call, from the pinned file."""
    return environment("s3", _REQUIREMENTS) / "bin/moto_server"


@dataclass
class S3Server(Server):
    """Buckets in its memory. ``environment``: credentials for clients, this process's and Spark's."""

    name: str = "s3"
    port: int = 0
    environment: dict[str, str] = field(
        default_factory=lambda: {
            "AWS_ACCESS_KEY_ID": "sluice", "AWS_SECRET_ACCESS_KEY": secrets.token_hex(16),
            "AWS_EC2_METADATA_DISABLED": "true",
        }, repr=False,
    )  # fmt: skip

    def start(self, timeout_s: float = 60.0) -> S3Server:
        if self.running:
            return self
        self.port = self.port or ports.free_port()
        self.folder.mkdir(parents=True, exist_ok=True)
        argv = [moto_server(), "-H", self.host, "-p", str(self.port)]
        environment = {**os.environ, **self.environment}
        self.handle = processes.spawn(self.name, argv, log=self.folder / "s3.log", env=environment, cwd=self.folder)
        try:
            processes.wait_ready(self.handle, lambda: ports.accepts(self.port), timeout_s=timeout_s)
        except BaseException:
            self.stop()
            raise
        return self

    def bucket(self, name: str) -> str:
        """A new bucket's address, as ``capture.segments.uri`` takes it: without secrets."""
        uri = f"s3://{name}?scheme=http&endpoint_override={self.host}:{self.port}&region=us-east-1"
        filesystem, path = fs.FileSystem.from_uri(uri + "&allow_bucket_creation=true")
        filesystem.create_dir(path)
        return uri
