"""The client packages that kinds of targets need, by the name of the extra that has each: hints name the packages
themselves.
"""

from __future__ import annotations

CLIENT_PACKAGES = {
    "postgresql": ("psycopg[binary]>=3.2",),
    "kafka": ("confluent-kafka>=2.16",),
    "kafka-registry": ("confluent-kafka[schemaregistry]>=2.16", "fastavro>=1.13", "protobuf>=6"),
    "delta": ("deltalake>=1.6",),
    "mongodb": ("pymongo>=4.10",),
    "rabbitmq": ("pika>=1.4", "rstream>=1.1"),
    "redis": ("redis>=8",),
    "iceberg": ("pyiceberg[pyiceberg-core,sql-sqlite]>=0.12,<0.13",),
}
"""Kind -> its packages, equal to the extras of pyproject.toml, which a test compares."""


def install_command(extra: str) -> str:
    """Return the command that installs the client packages of an extra."""
    return "pip install " + " ".join(f"'{package}'" for package in CLIENT_PACKAGES[extra])


def install_hint(extra: str) -> str:
    """Return :func:`install_command` with where it has to run."""
    return f"{install_command(extra)}, here and where the Spark workers run"
