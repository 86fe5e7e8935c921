"""Spark with Delta tables on an S3 server: Hadoop's client of S3, the log store with conditional puts, settings as in
docs/delta-target.md.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import sluice.targets.delta
from devstack import delta_spark, maven, paths
from tests.support.servers.s3.server import S3Server

_LIST = Path(__file__).with_name("s3a.lock")
_JAR_OF = Path(__file__).with_name("JarOf.java")
LOG_STORE = "sluice.delta.ConditionalPutLogStore"


def find_s3a() -> list[Path]:
    """The jars of Hadoop's client, fetched at first use (13 MB). Raises FetchFailed."""
    jars = maven.read_list(_LIST)
    folder = maven.fetch(paths.home() / "s3a", jars, what="Hadoop's client of S3")
    return [folder / jar.name for jar in jars]


def log_store(folder: Path) -> Path:
    """A jar of the log store that Sluice has the source of, compiled with PySpark's own compiler."""
    [package] = sluice.targets.delta.__path__
    made, jars = folder / "sluice-delta.jar", paths.pyspark_home() / "jars"
    names = ("janino", "commons-compiler", "hadoop-client-api")
    path = [*(next(jars.glob(f"{name}-[0-9]*.jar")) for name in names), *delta_spark.find_delta()]
    argv = [
        *paths.small_java(128), "-cp", os.pathsep.join(map(str, path)), "org.codehaus.janino.SimpleCompiler",
        str(_JAR_OF), "JarOf",
        str(Path(package) / "logstore/ConditionalPutLogStore.java"), str(made),
    ]  # fmt: skip
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr[-2000:]
    return made


def spark_settings(server: S3Server, folder: Path, *, port: int = 0, safe: bool = True) -> dict[str, str]:
    """Of a Spark server. ``port``: of a proxy; ``safe``: with the log store. Its login is in its environment.

    Raises FetchFailed.
    """
    settings = delta_spark.spark_settings()
    jars = [settings["spark.jars"], *map(str, find_s3a())]
    store = {}
    if safe:
        jars.append(str(log_store(folder)))
        store = {"spark.delta.logStore.s3a.impl": LOG_STORE}
    return {
        **settings,
        **store,
        "spark.jars": ",".join(jars),
        "spark.hadoop.fs.s3a.endpoint": f"http://{server.host}:{port or server.port}",
        "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
    }
