"""Kafka Connect with a connector of Debezium: what benches measure Sluice beside.

A standalone worker, on loopback, on the machine's Java.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from devstack import maven, paths, ports
from devstack.server import Server

_LISTS = Path(__file__).with_name("jars")


@dataclass
class ConnectWorker(Server):
    """One worker with its connectors; where they are is kept in ``folder``, so that another worker over it goes on.

    ``kind``: which jars, ``mysql`` or ``jdbc``; ``connectors``: name -> settings; ``bootstrap``: of the broker.
    """

    name: str = "connect"
    kind: str = "mysql"
    bootstrap: str = ""
    connectors: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    heap_mb: int = 1024

    @property
    def offsets(self) -> Path:
        """Where source connectors note their places."""
        return self.folder / "offsets"

    def start(self, timeout_s: float = 120.0) -> ConnectWorker:
        """See :meth:`Server.start`. The worker answers then; its connectors are on their way."""
        jars = maven.read_list(_LISTS / f"connect_{self.kind}.lock")
        what = f"Kafka Connect with Debezium ({self.kind})"
        path = maven.fetch(paths.home() / f"connect-{self.kind}", jars, what=what)
        port = ports.free_port()
        self.folder.mkdir(parents=True, exist_ok=True)
        files = [self._written("worker", self._worker(port))]
        files += [self._written(name, {"name": name, **settings}) for name, settings in self.connectors.items()]
        argv = [
            str(paths.java()), f"-Xmx{self.heap_mb}m", "-XX:+UseSerialGC",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{path}{os.sep}*",
            "org.apache.kafka.connect.cli.ConnectStandalone", *map(str, files),
        ]  # fmt: skip
        self._spawn(argv)
        self._wait_ready(lambda: ports.answers_http(f"http://{self.host}:{port}/connectors"), timeout_s)
        return self

    def _written(self, name: str, settings: Mapping[str, object]) -> Path:
        file = self.folder / f"{name}.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()), encoding="utf-8")
        return file

    def _worker(self, port: int) -> dict[str, object]:
        converter = "org.apache.kafka.connect.json.JsonConverter"
        return {
            "bootstrap.servers": self.bootstrap,
            "listeners": f"http://{self.host}:{port}",
            "plugin.discovery": "service_load",
            "key.converter": converter,
            "value.converter": converter,
            "offset.storage.file.filename": self.offsets,
            "offset.flush.interval.ms": 1000,
            "producer.compression.type": "lz4",
            "producer.linger.ms": 20,
            "producer.batch.size": 1_000_000,
            "consumer.max.poll.records": 5000,
            "consumer.max.partition.fetch.bytes": 16_000_000,
            "consumer.auto.offset.reset": "earliest",
        }
