"""The name under which Sluice is distributed, and the client packages that kinds of targets and OpenTelemetry need.

Hints name a command that works where it is printed: the extra where Sluice is installed as a package, the client
packages themselves where it is on the ``PYTHONPATH`` (a checkout, Spark workers): an installer would look for the extra
in a package index there, and might find somebody else's package.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path

DISTRIBUTION = "sluice-cdc"
"""The distribution name. ``sluice`` is another project's in the public index, and has nothing to do with this one."""

CLIENT_PACKAGES = {
    "postgresql": ("psycopg[binary]>=3.2",),
    "kafka": ("confluent-kafka>=2.16",),
    "kafka-registry": ("confluent-kafka[schemaregistry]>=2.16", "fastavro>=1.13", "protobuf>=6"),
    "delta": ("deltalake>=1.6",),
    "mongodb": ("pymongo>=4.10",),
    "oracle": ("oracledb>=3.3",),
    "rabbitmq": ("pika>=1.4", "rstream>=1.1"),
    "redis": ("redis>=8",),
    "otel": (
        "opentelemetry-api>=1.27",
        "opentelemetry-sdk>=1.27",
        "opentelemetry-exporter-otlp-proto-http>=1.27",
    ),
    "aws": ("boto3>=1.35",),
    "google": ("google-auth[requests]>=2.35",),
    "azure": ("azure-identity>=1.19",),
    "iceberg": ("pyiceberg[pyiceberg-core,sql-sqlite]>=0.12,<0.13",),
}
"""Extra -> its packages, equal to the extras of pyproject.toml, which a test compares."""


def installed_version() -> str:
    """Return the version of the installed distribution; "" where Sluice is on the path without being installed."""
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return ""


def shared_folder(name: str) -> Path:
    """Return the folder of files that come with the package but are no module of it, such as ``spark_jobs``: the
    checkout's own, or the one that the wheel installed.
    """
    checkout = Path(__file__).resolve().parents[3]
    if not installed_version() or (checkout / "pyproject.toml").is_file():
        return checkout / name
    files = importlib.metadata.files(DISTRIBUTION) or ()
    return next(Path(str(file.locate())).resolve().parent for file in files if file.parent.name == name)


def install_command(extra: str) -> str:
    """Return the command that installs the client packages of an extra in this environment."""
    version = installed_version()
    packages = (f"{DISTRIBUTION}[{extra}]=={version}",) if version else CLIENT_PACKAGES[extra]
    return f"{installer()} install " + " ".join(f"'{package}'" for package in packages)


def installer() -> str:
    """Return the command that installs packages into this environment: one that uv made may have no pip."""
    return "pip" if importlib.util.find_spec("pip") is not None else "uv pip"


def install_hint(extra: str) -> str:
    """Return :func:`install_command` with where it has to run."""
    return f"{install_command(extra)}, here and where the Spark workers run"
