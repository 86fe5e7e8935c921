"""A real Spark from the PySpark wheel: a Connect server, and a standalone cluster of a master and workers.

Nothing here imports PySpark: the programs are started from the wheel's own ``bin`` folder.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from devstack import paths, ports
from devstack.server import Server
from devstack.zookeeper import LOG4J


def spark_environment(folder: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment that Spark's programs and their Python workers need.

    Python workers run this interpreter, with ``include/`` on their path; connections (``AIRFLOW_CONN_*``) travel the
    same way, so a work unit resolves them as every other process does.
    """
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("SPARK_", "PYSPARK_", "HADOOP_"))}
    path = [str(paths.repo_root() / "include"), str(paths.repo_root()), *filter(None, [environment.get("PYTHONPATH")])]
    conf = folder / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    (conf / "log4j2.properties").write_text(LOG4J, encoding="utf-8")
    (folder / "local").mkdir(exist_ok=True)
    return {
        **environment,
        "JAVA_HOME": str(paths.java().resolve().parents[1]),
        "SPARK_HOME": str(paths.pyspark_home()),
        "SPARK_CONF_DIR": str(conf),
        "SPARK_LOCAL_IP": ports.LOOPBACK,
        "SPARK_LOCAL_DIRS": str(folder / "local"),
        "SPARK_WORKER_DIR": str(folder / "work"),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(path)),
        **(extra or {}),
    }


@dataclass
class SparkConnectServer(Server):
    """A Spark Connect server; ``master`` may be ``local[N]`` or the address of a standalone cluster."""

    name: str = "spark-connect"
    port: int = 0
    master: str = "local[2]"
    driver_memory: str = "1g"
    env: Mapping[str, str] = field(default_factory=dict)
    conf: Mapping[str, str] = field(default_factory=dict)

    @property
    def log(self) -> Path:
        """The file of what the server prints."""
        return self.folder / "spark-connect.log"

    @property
    def url(self) -> str:
        """Address for ``SparkSession.builder.remote``."""
        return f"sc://{self.host}:{self.port}"

    def connection_json(self) -> str:
        """Return the value for ``AIRFLOW_CONN_SPARK_CONNECT_DEFAULT``."""
        return json.dumps({"conn_type": "spark_connect", "host": self.host, "port": self.port})

    def start(self, timeout_s: float = 120.0) -> SparkConnectServer:
        """Start the server and wait until its port accepts connections.

        Raises ServerFailed with the end of its log.
        """
        if self.running:
            return self
        if not self.port:
            self.port = ports.free_port()
        self.folder.mkdir(parents=True, exist_ok=True)
        conf = {
            "spark.connect.grpc.binding.address": self.host,
            "spark.connect.grpc.binding.port": str(self.port),
            "spark.connect.session.planCache.enabled": "false",  # a shared session would read stale files silently
            "spark.driver.host": self.host,
            "spark.driver.bindAddress": self.host,
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(self.folder / "warehouse"),
            "spark.driver.extraJavaOptions": f"-Dderby.system.home={self.folder} -XX:+UseSerialGC "
            "-XX:TieredStopAtLevel=1",
            **self.conf,
        }
        argv: list[str | os.PathLike[str]] = [
            paths.pyspark_home() / "bin" / "spark-submit",
            "--master",
            self.master,
            "--driver-memory",
            self.driver_memory,
        ]
        for key, value in conf.items():
            argv += ["--conf", f"{key}={value}"]
        argv += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
        self._spawn(argv, spark_environment(self.folder, self.env))
        self._wait_ready(lambda: ports.accepts(self.port), timeout_s)
        return self


@dataclass
class SparkDaemon(Server):
    """A standalone master or worker."""

    kind: str = "master"
    port: int = 0
    arguments: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)

    def start(self, timeout_s: float = 60.0) -> SparkDaemon:
        """Start the daemon and wait until its port accepts connections.

        Raises ServerFailed with the end of its log.
        """
        if self.running:
            return self
        if not self.port:
            self.port = ports.free_port()
        self.folder.mkdir(parents=True, exist_ok=True)
        main = {"master": "org.apache.spark.deploy.master.Master", "worker": "org.apache.spark.deploy.worker.Worker"}
        argv: list[str | os.PathLike[str]] = [
            paths.pyspark_home() / "bin" / "spark-class",
            main[self.kind],
            *("--host", self.host, "--port", str(self.port), "--webui-port", str(ports.free_port())),
            *self.arguments,
        ]
        environment = spark_environment(self.folder, {"SPARK_DAEMON_MEMORY": "256m", **self.env})
        self._spawn(argv, environment)
        self._wait_ready(lambda: ports.accepts(self.port), timeout_s)
        return self


@dataclass
class SparkStandalone:
    """A standalone cluster: one master, ``size`` workers of ``cores`` cores each."""

    folder: Path
    size: int = 2
    cores: int = 1
    memory: str = "1g"
    env: Mapping[str, str] = field(default_factory=dict)
    master: SparkDaemon | None = None
    workers: list[SparkDaemon] = field(default_factory=list)

    @property
    def master_url(self) -> str:
        """The address ``spark://host:port`` of the started master."""
        assert self.master is not None
        return f"spark://{self.master.host}:{self.master.port}"

    def start(self) -> SparkStandalone:
        """Start the master, then the workers; if one fails, stop all. Raises ServerFailed with the end of its log."""
        folder = Path(self.folder)
        try:
            if self.master is None:
                self.master = SparkDaemon(folder / "master", "spark-master", kind="master", env=self.env)
            self.master.start()
            if not self.workers:
                arguments = ("--cores", str(self.cores), "--memory", self.memory, self.master_url)
                self.workers = [
                    SparkDaemon(
                        folder / f"worker-{n}", f"spark-worker-{n}", kind="worker", arguments=arguments, env=self.env
                    )
                    for n in range(1, self.size + 1)
                ]
            for worker in self.workers:
                worker.start()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop the workers, then the master."""
        for daemon in (*self.workers, *([self.master] if self.master else [])):
            daemon.stop(grace_s=3.0)

    def __enter__(self) -> SparkStandalone:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
