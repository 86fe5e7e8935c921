"""The contract suite of targets: memory with every combination of capabilities, MySQL, MariaDB, PostgreSQL, Kafka,
Redis, RabbitMQ, HTTP, Elasticsearch, OpenSearch, ClickHouse, MongoDB, Delta, Iceberg, and Oracle on H2.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from sluice.targets import KINDS
from sluice.testing.targets import CHECKS, Bench, Check
from tests.support.benches.target_benches import MemoryBench, MySQLBench

KNOWN = {
    "clickhouse", "delta", "elasticsearch", "http", "iceberg", "kafka", "memory", "mongodb", "mysql", "oracle", "postgresql",
    "rabbitmq", "redis",
}  # fmt: skip

COMBINATIONS: list[dict[str, Any]] = [
    {"changes": changes, "consistency": consistency, "options": options}
    for changes, consistency, guarantee, features, own, appends in itertools.product(
        ("latest", "all"), ("row", "table", "batch"), ("transactional", "idempotent", "at_least_once"), ("all", "few"),
        (True, False), (False, True)
    )
    for ordering in (("none", "key", "table", "global") if changes == "all" else ("key",))
    if not (guarantee == "transactional" and not own)  # they could not commit together
    and not (changes == "all" and appends)  # said twice
    and not (guarantee == "at_least_once" and changes == "latest" and not appends)  # rows by key are idempotent
    for options in [
        {
            "guarantee": guarantee, "ordering": ordering, "keeps_checkpoint": own, "appends": appends,
            **({} if features == "all" else {"features": []}),
        }
    ]
]  # fmt: skip


def _name(combination: dict[str, Any]) -> str:
    options = combination["options"]
    words = [combination["changes"], combination["consistency"], options["guarantee"], options["ordering"]]
    words += [
        "features" if "features" not in options else "plain",
        "own" if options["keeps_checkpoint"] else "zookeeper",
    ]
    return "-".join([*words, *(["appends"] if options["appends"] else [])])


def test_every_kind_is_tested() -> None:
    assert set(KINDS) == KNOWN


def test_there_are_27_checks() -> None:
    assert [check.number for check in CHECKS] == list(range(1, 28))


@pytest.mark.parametrize("combination", COMBINATIONS, ids=_name)
def test_memory(combination: dict[str, Any]) -> None:
    """One test a combination: all checks that apply."""
    for check in CHECKS:
        bench = MemoryBench(**combination)
        try:
            if check.applies(bench):
                check.run(bench)
        except BaseException as error:
            error.add_note(f"check {check}")
            raise
        finally:
            bench.close()


ORDER_ALONE = {2, 15, 22}
"""Checks of which the order alone is another thing than in another combination of the same kind."""


def run(check: Check, bench: Bench, *, only: set[int] | None = None) -> None:
    """``only``: the numbers of the checks that are not the same in another combination."""
    if (only is not None and check.number not in only) or not check.applies(bench):
        pytest.skip("the target does not offer it")
    check.run(bench)


@pytest.fixture(params=["mysql_target", "mariadb", pytest.param("mariadb_11_8", marks=pytest.mark.full)])
def server(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.fixture(params=["row", "batch"])
def bench(request: pytest.FixtureRequest, server: Any, fresh_schema: Any) -> Bench:
    return MySQLBench(server, fresh_schema(server), request.param)


def test_mysql_writes_a_schema_at_once(server: Any, fresh_schema: Any) -> None:
    [check] = [check for check in CHECKS if check.number == 19]
    bench = MySQLBench(server, fresh_schema(server), "schema")
    assert check.applies(bench)
    check.run(bench)


@pytest.mark.promise("T1")
@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_mysql(check: Check, bench: Bench) -> None:
    run(check, bench)


@pytest.fixture(params=["row", "batch"])
def postgresql_bench(request: pytest.FixtureRequest, postgresql: Any, fresh_pg_schema: Any) -> Bench:
    from tests.support.benches.postgresql_bench import PostgreSQLBench

    return PostgreSQLBench(postgresql, fresh_pg_schema(), request.param)


@pytest.mark.promise("T2")
@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_postgresql(check: Check, postgresql_bench: Bench) -> None:
    run(check, postgresql_bench)


@pytest.mark.parametrize("consistency", ["row", "batch"])
@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_oracle(check: Check, consistency: str, oracle_twin: Any) -> None:
    """H2 in Oracle mode stands in for a server: no Oracle server was ever asked."""
    from tests.support.benches.oracle_bench import OracleBench

    bench = OracleBench(oracle_twin, consistency)
    run(check, bench)


KAFKA: dict[str, tuple[str, dict[str, Any]]] = {
    "latest": ("latest", {}),
    "key": ("all", {}),
    "table": ("all", {"partitioning": "table"}),
    "global": ("all", {"partitioning": "global"}),
}


@pytest.mark.promise("T3")
@pytest.mark.parametrize("kind", KAFKA)
@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_kafka(check: Check, kind: str, kafka: Any) -> None:
    from tests.support.benches.kafka_bench import KafkaBench

    run(check, KafkaBench(kafka, *KAFKA[kind]), only=ORDER_ALONE if kind in {"table", "global"} else None)


REDIS: dict[str, tuple[str, dict[str, Any]]] = {
    "hash": ("latest", {}),
    "json": ("latest", {"form": "json"}),
    "streams": ("all", {}),
    "one-stream": ("all", {"stream": "all"}),
}


@pytest.mark.promise("T4")
@pytest.mark.parametrize("kind", REDIS)
@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_redis(check: Check, kind: str, redis_server: Any) -> None:
    from tests.support.benches.redis_bench import RedisBench

    run(check, RedisBench(redis_server, *REDIS[kind]), only=ORDER_ALONE if kind == "one-stream" else None)


HTTP: dict[str, tuple[str, dict[str, Any]]] = {
    "latest": ("latest", {"batch": {"max_rows": 2}}),
    "latest-single": ("latest", {"batch": {"max_rows": 1}, "path": "/{schema}/{table}/{key}?op={op}"}),
    "key": ("all", {"batch": {"max_rows": 3}}),
    "table": ("all", {"ordering": "table"}),
    "global": ("all", {"ordering": "global", "batch": {"max_rows": 5}}),
}


@pytest.mark.promise("T5")
@pytest.mark.parametrize("kind", HTTP)
@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_http(check: Check, kind: str) -> None:
    from tests.support.benches.http_bench import HttpBench
    from tests.support.servers.http_receiver import Receiver

    with Receiver() as receiver:
        run(check, HttpBench(receiver, *HTTP[kind]), only=ORDER_ALONE if kind in {"table", "global"} else None)


SEARCH: dict[str, tuple[str, dict[str, Any], str]] = {
    "elasticsearch": ("elasticsearch", {}, "latest"),
    "opensearch": ("opensearch", {}, "latest"),
    "elasticsearch-all": ("elasticsearch", {"index": "{schema}.{table}-{day}"}, "all"),
    "opensearch-all": ("opensearch", {}, "all"),
}


@pytest.mark.promise("T6")
@pytest.mark.parametrize("kind", SEARCH)
@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_elasticsearch(check: Check, kind: str, request: pytest.FixtureRequest) -> None:
    from tests.support.benches.elasticsearch_bench import ElasticsearchBench

    server, options, changes = SEARCH[kind]
    bench = ElasticsearchBench(request.getfixturevalue(server), options, changes)
    run(check, bench)


@pytest.mark.promise("T7")
@pytest.mark.parametrize("kind", ["latest", "all"])
@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_clickhouse(check: Check, kind: str, clickhouse: Any) -> None:
    from tests.support.benches.clickhouse_bench import ClickHouseBench

    bench = ClickHouseBench(clickhouse, kind)
    run(check, bench)


@pytest.mark.promise("T8")
@pytest.mark.parametrize("changes", ["latest", "all"])
@pytest.mark.parametrize("kind", ["twin", "ferretdb"])
@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_mongodb(
    check: Check, changes: str, kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin in memory takes what MongoDB takes; FerretDB is a server, and takes less."""
    from tests.support.benches.mongodb_bench import FERRETDB, MongoBench
    from tests.support.twins.mongo_twin import MongoTwin

    if kind == "twin":
        monkeypatch.setattr("pymongo.MongoClient", MongoTwin().client)
        bench = MongoBench("twin", 27017, changes=changes)
    else:
        server = request.getfixturevalue("ferretdb")
        bench = MongoBench(server.host, server.port, FERRETDB, changes)
    run(check, bench)


RABBITMQ: dict[str, tuple[str, dict[str, Any]]] = {
    "streams": ("all", {"send_to": "streams"}),
    "one-stream": ("all", {"send_to": "streams", "stream": "all"}),
    "streams-latest": ("latest", {"send_to": "streams"}),
    "exchange": ("all", {"exchange": "changes"}),
    "queues-latest": ("latest", {}),
}


@pytest.mark.promise("T9")
@pytest.mark.parametrize("kind", RABBITMQ)
@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_rabbitmq(check: Check, kind: str, rabbitmq: Any) -> None:
    from tests.support.benches.rabbitmq_bench import RabbitMQBench

    run(check, RabbitMQBench(rabbitmq, *RABBITMQ[kind]), only=ORDER_ALONE if kind == "one-stream" else None)


@pytest.mark.promise("T10")
@pytest.mark.parametrize("kind", ["latest-row", "latest-table", "all-row"])
@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_delta(check: Check, kind: str, tmp_path: Any) -> None:
    pytest.importorskip("deltalake")
    from tests.support.benches.delta_bench import DeltaBench

    alike = kind == "latest-table"  # tables are written alike
    run(check, DeltaBench(tmp_path, *kind.split("-")), only={2, 3, 4, 22} if alike else None)


@pytest.mark.promise("T11")
@pytest.mark.parametrize("kind", ["latest-row", "latest-table", "all-row", "latest-table-merge"])
@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_iceberg(check: Check, kind: str, tmp_path: Any) -> None:
    pytest.importorskip("pyiceberg")
    from tests.support.benches.iceberg_bench import IcebergBench

    alike = kind == "latest-table"  # tables are written alike
    run(check, IcebergBench(tmp_path, *kind.split("-")), only={2, 3, 4, 22} if alike else None)
