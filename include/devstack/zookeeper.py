"""A real ZooKeeper from the jars inside the PySpark wheel: one node, or an ensemble of three."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from dataclasses import dataclass, field
from pathlib import Path

from devstack import paths, ports
from devstack.server import Server

_JARS = (
    "zookeeper-*.jar", "slf4j-api-*.jar", "log4j-slf4j2-impl-*.jar", "log4j-api-*.jar", "log4j-core-*.jar",
    "netty-*.jar",
    "metrics-core-*.jar", "snappy-java-*.jar", "commons-io-*.jar",
)  # fmt: skip
LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_OUT
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss.SSS} %p %c{1}: %m%n%ex
"""


@dataclass
class ZooKeeperServer(Server):
    """One node. ``peers`` and ``node_id`` are set by :class:`ZooKeeperEnsemble`."""

    name: str = "zookeeper"
    port: int = 0
    node_id: int = 1
    peers: dict[int, tuple[int, int]] = field(default_factory=dict)  # node id -> (quorum port, election port)
    heap_mb: int = 128

    @property
    def hosts(self) -> str:
        """Connection string for kazoo."""
        return f"{self.host}:{self.port}"

    def connection_json(self) -> str:
        """Return the value for ``AIRFLOW_CONN_ZOOKEEPER_DEFAULT``."""
        return json.dumps({"conn_type": "zookeeper", "host": self.host, "port": self.port})

    def start(self, timeout_s: float = 60.0, *, wait: bool = True) -> ZooKeeperServer:
        """Start the node; with ``wait`` return when it serves requests. Raises ServerFailed with the end of its log."""
        if self.running:
            return self
        if not self.port:
            self.port = ports.free_port()
        data = self.folder / "data"
        data.mkdir(parents=True, exist_ok=True)
        (data / "myid").write_text(f"{self.node_id}\n", encoding="utf-8")
        (self.folder / "log4j2.properties").write_text(LOG4J, encoding="utf-8")
        (self.folder / "zoo.cfg").write_text(self._configuration(data), encoding="utf-8")
        jars = paths.pyspark_home() / "jars"
        classpath = [str(jar) for pattern in _JARS for jar in sorted(jars.glob(pattern))]
        argv: list[str | os.PathLike[str]] = [
            *paths.small_java(self.heap_mb),
            "-Dzookeeper.preAllocSize=4096",  # KiB; the default of 64 MiB a log file is for real disks
            "-Dzookeeper.forceSync=no",  # a killed node loses nothing; only a dead machine would
            f"-Dlog4j2.configurationFile=file:{self.folder / 'log4j2.properties'}",
            "-cp",
            os.pathsep.join(classpath),
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            str(self.folder / "zoo.cfg"),
        ]
        self._spawn(argv)
        if wait:
            self.wait(timeout_s)
        return self

    def wait(self, timeout_s: float = 60.0) -> None:
        """Wait until the node serves requests (in an ensemble: until there is a leader)."""
        assert self.handle is not None
        self._wait_ready(lambda: self.mode() is not None, timeout_s)

    @property
    def log(self) -> Path:
        """The file of what the node prints."""
        return self.folder / "zookeeper.log"

    def mode(self) -> str | None:
        """Return ``standalone``, ``leader`` or ``follower``; None while it does not serve."""
        with contextlib.suppress(OSError):
            for line in self._say(b"srvr"):
                if line.startswith("Mode: "):
                    return line.removeprefix("Mode: ").strip()
        return None

    def counters(self) -> dict[str, float]:
        """Return what ``mntr`` counts, without ``zk_``, and the ``transactions`` so far. Raises OSError."""
        found = {}
        for line in self._say(b"mntr"):
            name, _, value = line.partition("\t")
            with contextlib.suppress(ValueError):
                found[name.removeprefix("zk_")] = float(value)
        for line in self._say(b"srvr"):
            if line.startswith("Zxid:"):
                found["transactions"] = float(int(line.split()[1], 16))
        return found

    def _say(self, word: bytes) -> list[str]:
        """Return the lines that the node answers to one of its words. Raises OSError."""
        with socket.create_connection((self.host, self.port), timeout=2) as connection:
            connection.sendall(word)
            return b"".join(iter(lambda: connection.recv(65536), b"")).decode("utf-8", "replace").splitlines()

    def _configuration(self, data: Path) -> str:
        lines = [
            "tickTime=500",
            "minSessionTimeout=1000",
            "maxSessionTimeout=60000",
            "initLimit=20",
            "syncLimit=8",
            f"dataDir={data}",
            f"clientPort={self.port}",
            f"clientPortAddress={self.host}",
            "admin.enableServer=false",
            "4lw.commands.whitelist=*",
            "maxClientCnxns=0",
            "autopurge.snapRetainCount=3",
            "autopurge.purgeInterval=1",
        ]
        lines += [f"server.{node}={self.host}:{quorum}:{election}" for node, (quorum, election) in self.peers.items()]
        return "\n".join(lines) + "\n"


@dataclass
class ZooKeeperEnsemble:
    """Three nodes (or ``size``) on loopback; survives the loss of a minority."""

    folder: Path
    size: int = 3
    nodes: list[ZooKeeperServer] = field(default_factory=list)

    def start(self, timeout_s: float = 60.0) -> ZooKeeperEnsemble:
        """Start all nodes and wait until each serves requests; if one fails, stop all.

        Raises ServerFailed with the end of its log.
        """
        if not self.nodes:
            peers = {node: (ports.free_port(), ports.free_port()) for node in range(1, self.size + 1)}
            self.nodes = [
                ZooKeeperServer(Path(self.folder) / f"node-{node}", f"zookeeper-{node}", node_id=node, peers=peers)
                for node in peers
            ]
        try:
            for node in self.nodes:
                node.start(wait=False)
            for node in self.nodes:
                node.wait(timeout_s)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop all nodes."""
        for node in self.nodes:
            node.stop(grace_s=3.0)

    @property
    def hosts(self) -> str:
        """Connection string for kazoo: all nodes."""
        return ",".join(node.hosts for node in self.nodes)

    def leader(self) -> ZooKeeperServer | None:
        """Return the node that leads now."""
        return next((node for node in self.nodes if node.running and node.mode() == "leader"), None)

    def __enter__(self) -> ZooKeeperEnsemble:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
