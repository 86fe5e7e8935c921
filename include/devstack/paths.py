"""The folders of the development stack, and of Java and PySpark."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

from sluice.errors import ConfigError


def repo_root() -> Path:
    """Return the checkout: the folder that holds include/, dags/ and plugins/."""
    return Path(__file__).resolve().parents[2]


def home() -> Path:
    """Return the folder for fetched servers, templates and the demo's data.

    It is ``SLUICE_HOME``, else ``.sluice`` in the checkout.
    """
    configured = os.environ.get("SLUICE_HOME")
    folder = Path(configured).expanduser().resolve() if configured else repo_root() / ".sluice"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"cannot create {folder}: {error.strerror}", hint="set SLUICE_HOME to a folder you can write"
        ) from error
    return folder


def demo_folder() -> Path:
    """Return the folder where the demo's stack keeps its data."""
    return home() / "demo"


def stack_file(folder: Path) -> Path:
    """Return the file in which a stack's settings and processes are recorded."""
    return folder / "stack.json"


def java() -> Path:
    """Return the Java to run ZooKeeper and Spark with. Raises ConfigError when there is none."""
    java_home = os.environ.get("JAVA_HOME")
    if java_home and (Path(java_home) / "bin" / "java").exists():
        return Path(java_home) / "bin" / "java"
    found = shutil.which("java")
    if found is None:
        raise ConfigError(
            "there is no Java on this machine; ZooKeeper and Spark need Java 17 or newer",
            hint="apt-get install openjdk-17-jre-headless (or set JAVA_HOME)",
        )
    return Path(found)


def small_java(heap_mb: int) -> list[str]:
    """Return the beginning of a command for a program that starts fast and stays small."""
    return [str(java()), f"-Xmx{heap_mb}m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]


def pyspark_home() -> Path:
    """Return the folder of the installed PySpark wheel (its jars also hold ZooKeeper). Does not import PySpark."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError("PySpark is not installed in this environment", hint="pip install -r requirements.txt")
    return Path(next(iter(spec.submodule_search_locations)))
