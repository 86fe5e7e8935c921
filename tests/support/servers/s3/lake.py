"""Lakes in a bucket of a real S3 server, for the contract suite and for pipelines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from devstack.debian import FetchFailed
from sluice.config.connections import Endpoint
from tests.support.servers.s3.server import S3Server, moto_server

BUCKET = "lake"


@contextmanager
def s3_lake(folder: Path) -> Iterator[S3Server]:
    """A server with a bucket; the environment has no login for it: connections have.

    Skips where it cannot be installed.
    """
    try:
        moto_server()
    except FetchFailed as error:
        pytest.skip(f"the S3 server cannot be installed here: {error}")
    with pytest.MonkeyPatch.context() as patch, S3Server(folder) as server:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        server.bucket(BUCKET)
        for name in server.environment:
            patch.delenv(name)  # the connection alone has the keys
        yield server


def aws_connection(s3: S3Server, **extra: Any) -> Endpoint:
    """As Airflow's Amazon provider has it."""
    keys = s3.environment
    return Endpoint(
        "lake", "aws", "", user=keys["AWS_ACCESS_KEY_ID"], password=keys["AWS_SECRET_ACCESS_KEY"],
        extra={"region_name": "us-east-1", "endpoint_url": f"http://{s3.host}:{s3.port}", **extra},
    )  # fmt: skip


def aws_environment(s3: S3Server) -> dict[str, str]:
    """For clients that are told nothing else."""
    return {
        **s3.environment, "AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": f"http://{s3.host}:{s3.port}",
        "AWS_ALLOW_HTTP": "true",
    }  # fmt: skip


def sql_catalog(s3: S3Server, folder: Path, name: str) -> dict[str, str]:
    """Properties of a SQL catalog in ``folder``, its tables in the bucket."""
    keys = s3.environment
    return {
        "type": "sql", "uri": f"sqlite:///{folder}/catalog.db?timeout=60", "warehouse": f"s3://{BUCKET}/{name}",
        "s3.region": "us-east-1",
        "s3.endpoint": f"http://{s3.host}:{s3.port}", "s3.access-key-id": keys["AWS_ACCESS_KEY_ID"],
        "s3.secret-access-key": keys["AWS_SECRET_ACCESS_KEY"],
    }  # fmt: skip


def delta_on(s3: S3Server, folder: str, changes: str = "latest", spark: Any = None) -> Any:
    """A bench of Delta tables in ``folder`` of the bucket."""
    from tests.support.benches.delta_bench import DeltaBench

    return DeltaBench(f"s3://{BUCKET}/{folder}", changes, connection=aws_connection(s3), spark=spark)


def iceberg_on(s3: S3Server, folder: Path, changes: str) -> Any:
    """A bench of Iceberg tables, see :func:`sql_catalog`."""
    pytest.importorskip("pyiceberg")
    from tests.support.benches.iceberg_bench import IcebergBench

    bench = IcebergBench(folder, changes)
    bench.connection = Endpoint(
        "lake", "generic", "", extra={"catalog": sql_catalog(s3, folder, f"iceberg-{folder.parent.name}-{folder.name}")}
    )
    return bench
