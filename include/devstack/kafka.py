"""A real Kafka broker: the released jars on the machine's Java, broker and controller in one process (KRaft), on
loopback.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from devstack import maven, paths, ports
from devstack.processes import ServerFailed
from devstack.server import Server
from devstack.zookeeper import LOG4J

VERSION = "4.4.0"
_LIST = Path(__file__).with_name("jars") / "kafka.lock"


def find_kafka() -> Path:
    """Return the folder of the broker's jars, fetched at first use (44 jars, 43 MB). Raises FetchFailed."""
    return maven.fetch(paths.home() / "kafka", maven.read_list(_LIST), what=f"Kafka {VERSION}")


def find_connect() -> list[Path]:
    """Return the jars of Kafka Connect's JsonConverter, fetched at first use (three jars). Raises FetchFailed.

    They need those of the broker.
    """
    jars = maven.read_list(_LIST.with_name("connect.lock"))
    folder = maven.fetch(paths.home() / "connect", jars, what="Kafka Connect's JsonConverter")
    return [folder / jar.name for jar in jars]


def java_program(source: Path, arguments: list[str], jars: Sequence[Path] = (), *options: str) -> list[str]:
    """Return a command that compiles one Java file and runs its class, with the broker's jars and ``jars``.

    A JRE and PySpark's compiler are enough.
    """
    compiler = [
        sorted(paths.pyspark_home().glob(f"jars/{name}-[0-9]*.jar"))[-1] for name in ("janino", "commons-compiler")
    ]
    path = os.pathsep.join([f"{find_kafka()}{os.sep}*", *map(str, [*jars, *compiler])])
    main = "org.codehaus.janino.SimpleCompiler"
    return [str(paths.java()), "-XX:+UseSerialGC", *options, "-cp", path, main, str(source), source.stem, *arguments]


@dataclass
class KafkaServer(Server):
    """One broker. ``settings``: on top of its own, e.g. ``{"message.max.bytes": 2000}``.

    ``users``: login -> password; they log in (SASL/PLAIN) at a second listener.
    """

    name: str = "kafka"
    port: int = 0
    controller_port: int = 0
    login_port: int = 0
    users: dict[str, str] = field(default_factory=dict, repr=False)
    heap_mb: int = 384
    settings: dict[str, object] = field(default_factory=dict)

    @property
    def bootstrap(self) -> str:
        """``host:port`` for clients."""
        return f"{self.host}:{self.port}"

    def connection_json(self, *, user: str = "", password: str = "") -> str:
        """Return the value for ``AIRFLOW_CONN_<ID>``, as the Kafka provider of Airflow has it.

        ``user``: for the listener that asks for a login.
        """
        if not user:
            return json.dumps({"conn_type": "kafka", "extra": {"bootstrap.servers": self.bootstrap}})
        extra = {
            "bootstrap.servers": f"{self.host}:{self.login_port}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
        }
        return json.dumps({"conn_type": "kafka", "login": user, "password": password, "extra": extra})

    def start(self, timeout_s: float = 90.0) -> KafkaServer:
        """Format the data folder if it is new, start the broker and wait until its port accepts connections.

        Raises ServerFailed with the end of its log.
        """
        if self.running:
            return self
        if not self.port:
            self.port, self.controller_port, self.login_port = (ports.free_port() for _ in range(3))
        configuration = self.folder / "server.properties"
        self.folder.mkdir(parents=True, exist_ok=True)
        configuration.write_text("\n".join(f"{k}={v}" for k, v in self._configuration().items()) + "\n", "utf-8")
        (self.folder / "log4j2.properties").write_text(LOG4J, encoding="utf-8")
        if not (self.folder / "data" / "meta.properties").is_file():
            self._format(configuration)
        argv = [*self.java(self.heap_mb, "-Xms64m"), "kafka.Kafka", str(configuration)]
        self._spawn(argv)
        self._wait_ready(lambda: ports.accepts(self.port), timeout_s)
        return self

    def java(self, heap_mb: int, *options: str) -> list[str]:
        """Return the beginning of a command that runs a class of the broker's jars."""
        return [
            *paths.small_java(heap_mb), *options,
            f"-Dlog4j2.configurationFile=file:{self.folder / 'log4j2.properties'}", "-cp", f"{find_kafka()}{os.sep}*",
        ]  # fmt: skip

    def _format(self, configuration: Path) -> None:
        """Give the empty data folder an identity."""
        identity = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        cluster = f"--cluster-id={identity}"  # one in 64 begins with a hyphen, which would be an option of its own
        argv = [*self.java(128), "kafka.tools.StorageTool", "format", cluster, "-c", str(configuration)]
        done = subprocess.run(
            argv, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=300, cwd=self.folder
        )
        if done.returncode:
            raise ServerFailed(f"formatting Kafka's data folder failed: {(done.stderr or done.stdout)[-500:]}")

    def _configuration(self) -> dict[str, object]:
        listener, controller = f"PLAINTEXT://{self.bootstrap}", f"CONTROLLER://{self.host}:{self.controller_port}"
        users = " ".join(f'user_{name}="{password}"' for name, password in self.users.items())
        login = {}
        if self.users:
            listener += f",LOGIN://{self.host}:{self.login_port}"
            module = "org.apache.kafka.common.security.plain.PlainLoginModule"
            login = {
                "listener.name.login.sasl.enabled.mechanisms": "PLAIN",
                "listener.name.login.plain.sasl.jaas.config": f"{module} required {users};",
            }
        return {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@{self.host}:{self.controller_port}",
            "listeners": f"{listener},{controller}",
            "advertised.listeners": listener,
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,LOGIN:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": self.folder / "data",
            "num.partitions": 1,
            "offsets.topic.num.partitions": 1,
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.num.partitions": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
            "share.coordinator.state.topic.num.partitions": 1,
            "group.initial.rebalance.delay.ms": 0,
            "num.network.threads": 2,
            "num.io.threads": 2,
            "num.recovery.threads.per.data.dir": 1,
            "log.cleaner.dedupe.buffer.size": 4194304,
            "log.cleaner.threads": 1,
            "auto.create.topics.enable": "false",
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
            "broker.session.timeout.ms": 2000,  # a restart after a kill waits for the broker's own old session
            "broker.heartbeat.interval.ms": 500,
            **login,
            **self.settings,
        }
