"""``python -m devstack.fetching``: every server of the tests, fetched at the same time.

What is there already costs nothing. A test that needs a server while it comes waits for it (each place has a lock), and
fetches one that nobody fetches. With ``--make-test`` only those come that ``make test`` starts.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import psutil

from devstack import (
    clickhouse,
    debian,
    elasticsearch,
    iceberg_rest,
    kafka,
    mariadb,
    mysql,
    paths,
    postgresql,
    rabbitmq,
    redis,
    registry,
)
from devstack.progress import write
from sluice.errors import SluiceError

_AT_ONCE = 4
"""Fetches at a time: each waits for the network half of its time, and uses a core for the rest."""


@dataclass(frozen=True)
class Fetch:
    """One server.

    Attributes:
        find: fetches it and returns where it is.
        optional: the tests can do without it.
        in_make_test: ``make test`` starts it, not only ``make test-all``.
    """

    name: str
    find: Callable[[], str]
    optional: bool = True
    in_make_test: bool = True


def _database(found: mysql.Distribution) -> str:
    return f"{found.version}: {found.origin}"


FETCHES = (
    Fetch("MySQL", lambda: _database(mysql.find_mysql()), optional=False),
    Fetch("PostgreSQL", lambda: _postgresql(postgresql.find_postgresql())),
    Fetch("Kafka", lambda: f"{kafka.VERSION}: {kafka.find_kafka()}"),
    Fetch("Elasticsearch", lambda: _search("elasticsearch")),
    Fetch("MariaDB", lambda: _database(mariadb.find_mariadb()), optional=False),
    Fetch("ClickHouse engine", lambda: f"{clickhouse.VERSION}: {clickhouse.find_clickhouse().parents[1]}"),
    Fetch("OpenSearch", lambda: _search("opensearch"), in_make_test=False),
    Fetch("PostGIS", lambda: _postgresql(postgresql.find_postgis()), in_make_test=False),
    Fetch("RabbitMQ", lambda: _tree(rabbitmq.find_rabbitmq())),
    Fetch("Schema registry", lambda: str(registry.find_registry())),
    Fetch("Redis", lambda: _tree(redis.find_redis().tree)),
    Fetch(
        "Iceberg REST catalog",
        lambda: f"{iceberg_rest.VERSION}: {iceberg_rest.find_rest_catalog()[0].parent}",
        in_make_test=False,
    ),
    Fetch("Kafka Connect", lambda: str(kafka.find_connect()[0].parent)),
)
"""In the order in which the tests need them."""


def _postgresql(found: postgresql.PostgreSQL) -> str:
    return f"{found.version}: {found.origin}"


def _search(kind: str) -> str:
    return f"{elasticsearch.VERSIONS[kind]}: {elasticsearch.find_search(kind)}"


def _tree(found: debian.Tree) -> str:
    return f"{found.version}: {found.root}"


def fetch_all(fetches: tuple[Fetch, ...] = FETCHES) -> bool:
    """Fetch what is missing and print a line for each. Return False if the tests cannot do without one that failed."""
    one_line = threading.Lock()
    began = time.monotonic()

    def fetch(one: Fetch) -> bool:
        try:
            line, done = f"{one.name} {one.find()}", True
        except SluiceError as error:
            rest = "; its tests will be skipped" if one.optional else ""
            line, done = f"{one.name} cannot be had: {error}{rest}", one.optional
        with one_line:
            write(f"[{time.monotonic() - began:4.0f} s] {line}")
        return done

    with debian.shared_lists(paths.home()), ThreadPoolExecutor(_AT_ONCE) as pool:
        try:
            return all(list(pool.map(fetch, fetches)))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _end(*_: object) -> None:
    """End what downloads and unpacks, so that each fetch removes what it has made so far."""
    for child in psutil.Process().children(recursive=True):
        child.terminate()
    sys.exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    wanted = tuple(one for one in FETCHES if one.in_make_test) if "--make-test" in sys.argv[1:] else FETCHES
    sys.exit(0 if fetch_all(wanted) else 1)
