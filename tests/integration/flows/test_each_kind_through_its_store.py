"""Each kind of target through its real store, and the product's own files and commands: letters of rows that it
refuses, and rows that are there when a column changes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sluice.errors import LoadError
from sluice.operations.deadletters.replay import replay
from sluice.operations.deadletters.store import letters, prune_letters
from sluice.targets import KINDS
from sluice.testing.targets import Bench, people
from tests.support.pipelines.case import Case, case
from tests.support.pipelines.dumping import delivering
from tests.support.pipelines.pg_source import pg_case
from tests.support.servers.http_receiver import OK, Receiver, Reply

LONG = "x" * 3_000
"""What ``email`` has no room for."""


@dataclass
class Store:
    """A target: its bench, how it is reached, options under which it refuses a row, and those that take it."""

    kind: str
    bench: Bench
    connection: str
    options: dict[str, Any]
    refuses: dict[str, Any] = field(default_factory=dict)
    takes: dict[str, Any] = field(default_factory=dict)
    value: str = LONG
    mend: Callable[[], object] = lambda: None
    documents: Callable[[str], list[dict[str, Any]]] = lambda table: []

    def config(self, more: dict[str, Any]) -> str:
        given = {"name": "copy", "type": self.kind, "connection": "case_target", "on_error": "dead_letter"}
        return json.dumps({**given, "options": {**self.options, **more}})


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as made:
        yield made


def mysql(request: Any, schema: str, folder: Path) -> Store:
    from tests.support.benches.target_benches import MySQLBench

    server = request.getfixturevalue("mysql_target")
    server.execute(f"CREATE DATABASE IF NOT EXISTS `{schema}`")
    widen = lambda: server.execute(f"ALTER TABLE `{schema}`.people MODIFY email TEXT")  # noqa: E731
    bench = MySQLBench(server, schema)
    bench.create_table(people(schema))
    return Store("mysql", bench, server.connection_json(schema=schema), {"ack_schema": schema}, mend=widen)


def postgresql(request: Any, schema: str, folder: Path) -> Store:
    from tests.support.benches.postgresql_bench import PostgreSQLBench

    server = request.getfixturevalue("postgresql")
    request.getfixturevalue("fresh_pg_schema")(schema)
    widen = lambda: server.execute(f'ALTER TABLE "{schema}".people ALTER email TYPE text')  # noqa: E731
    bench = PostgreSQLBench(server, schema)
    bench.create_table(people(schema))
    return Store("postgresql", bench, server.connection_json(), {"ack_schema": schema}, mend=widen)


def oracle(request: Any, schema: str, folder: Path) -> Store:
    from tests.support.benches.oracle_bench import OracleBench

    twin = request.getfixturevalue("oracle_twin")
    bench = OracleBench(twin)
    bench.schema = schema
    twin.run(f'CREATE SCHEMA IF NOT EXISTS "{schema.upper()}"')
    bench.create_table(people(schema))
    connection = {"conn_type": "oracle", "host": "localhost", "port": 1521, "login": "sluice", "password": "x",
                  "schema": "FREEPDB1"}  # fmt: skip
    widen = lambda: twin.run(f'ALTER TABLE "{schema.upper()}".PEOPLE ALTER COLUMN EMAIL VARCHAR2(4000 CHAR)')  # noqa: E731
    return Store("oracle", bench, json.dumps(connection), {"empty_strings": "null"}, mend=widen)


def redis(request: Any, schema: str, folder: Path) -> Store:
    from tests.support.benches.redis_bench import RedisBench

    server = request.getfixturevalue("redis_server")
    bench = RedisBench(server)

    def rows(table: str) -> list[dict[str, Any]]:
        with bench.client as client:
            found = [client.hgetall(key) for key in client.scan_iter(f"{table}:*")]
        return [{name.decode(): value for name, value in one.items()} for one in found]

    return Store("redis", bench, server.connection_json(), bench.options, {"max_row_bytes": 140}, documents=rows)


def search(kind: str) -> Callable[[Any, str, Path], Store]:
    def store(request: Any, schema: str, folder: Path) -> Store:
        from tests.support.benches.elasticsearch_bench import ElasticsearchBench

        server = request.getfixturevalue(kind)
        bench = ElasticsearchBench(server)

        def rows(table: str) -> list[dict[str, Any]]:
            bench.ask("POST", f"/{table}/_refresh")
            return [one["_source"] for one in bench.ask("GET", f"/{table}/_search")["hits"]["hits"]]

        return Store(
            "elasticsearch",
            bench,
            server.connection_json(),
            bench.options,
            {"max_document_bytes": 80},
            documents=rows,
        )

    return store


def mongodb(request: Any, schema: str, folder: Path) -> Store:
    from tests.support.benches.mongodb_bench import MongoBench

    server = request.getfixturevalue("ferretdb")
    bench = MongoBench(server.host, server.port, {"types": {"decimal": "text"}})  # FerretDB has no Decimal128
    rows = lambda table: [{k: v for k, v in one.items() if k[0] != "_"} for one in bench.find(*table.split("."))]  # noqa: E731
    return Store("mongodb", bench, server.connection_json(), bench.options, {"max_document_bytes": 100}, documents=rows)


def clickhouse(request: Any, schema: str, folder: Path) -> Store:
    from tests.support.benches.clickhouse_bench import ClickHouseBench

    server = request.getfixturevalue("clickhouse")
    bench = ClickHouseBench(server)
    bench.create_table(people(schema))
    free = lambda: server.query(f"ALTER TABLE `{schema}`.people DROP CONSTRAINT short")  # noqa: E731
    return Store("clickhouse", bench, server.connection_json(), bench.options, mend=free)


def kafka(request: Any, schema: str, folder: Path) -> Store:
    from tests.support.benches.kafka_bench import KafkaBench

    server = request.getfixturevalue("kafka")
    bench = KafkaBench(server)
    bench.schema = schema
    return Store("kafka", bench, server.connection_json(), bench.options, {"max_message_bytes": 2_000})


def rabbitmq(request: Any, schema: str, folder: Path) -> Store:
    from tests.support.benches.rabbitmq_bench import RabbitMQBench

    server = request.getfixturevalue("rabbitmq")
    bench = RabbitMQBench(server, "latest", {"exchange": "changes"})
    request.addfinalizer(bench.remove)
    return Store("rabbitmq", bench, server.connection_json(), bench.options, {"max_message_bytes": 2_000})


def http(request: Any, schema: str, folder: Path) -> Store:
    from tests.support.benches.http_bench import HttpBench

    receiver = request.getfixturevalue("receiver")
    receiver.answer = lambda got: Reply(422) if LONG.encode() in got.body else OK
    bench = HttpBench(receiver)
    connection = {"conn_type": "http", "host": receiver.url, "password": bench.secret}
    take = lambda: setattr(receiver, "answer", lambda got: OK)  # noqa: E731
    return Store("http", bench, json.dumps(connection), {}, mend=take)


def delta(request: Any, schema: str, folder: Path) -> Store:
    from tests.support.benches.delta_bench import DeltaBench

    bench = DeltaBench(folder / "lake")
    connection = json.dumps({"conn_type": "fs", "extra": {"path": bench.root}})
    options = {"location": bench.root}
    return Store("delta", bench, connection, options, takes={"zero_dates": "null"}, value="0000-00-00")


def iceberg(request: Any, schema: str, folder: Path) -> Store:
    from tests.support.benches.iceberg_bench import IcebergBench

    bench = IcebergBench(folder / "lake")
    extra = bench.connection.extra
    connection = json.dumps({"conn_type": "fs", "extra": dict(extra)})
    return Store("iceberg", bench, connection, {}, takes={"zero_dates": "null"}, value="0000-00-00")


STORES: dict[str, Callable[[Any, str, Path], Store]] = {
    "clickhouse": clickhouse, "delta": delta, "elasticsearch": search("elasticsearch"), "http": http,
    "iceberg": iceberg, "kafka": kafka, "mongodb": mongodb, "mysql": mysql, "opensearch": search("opensearch"),
    "oracle": oracle, "postgresql": postgresql, "rabbitmq": rabbitmq, "redis": redis,
}  # fmt: skip


def test_every_kind_has_a_store() -> None:
    assert set(STORES) - {"opensearch"} == set(KINDS) - {"memory"}


@pytest.fixture(params=sorted(STORES))
def refusing(
    request: Any, tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any
) -> Iterator[tuple[Case, Store]]:
    """A pipeline whose store refuses a row: a text that is too long, or a date that it does not have."""
    schema = fresh_schema(mysql_source, mysql_target)
    store = STORES[request.param](request, schema, tmp_path)
    kind = "DATE" if store.value != LONG else "TEXT"
    for table in ("friends", "people"):
        mysql_source.execute(f"CREATE TABLE `{schema}`.{table} (id INT PRIMARY KEY, email {kind}, points INT)")
    with case(tmp_path, mysql_source, mysql_target, zookeeper, schema) as made:
        made.connections["case_target"] = store.connection
        head, _, _ = made.yaml.partition("targets:\n")
        made.yaml = f"{head}mapping: [{{from: {schema}.friends, to: {schema}.people}}]\ntargets:\n  - "
        made.path.write_text(made.yaml + store.config(store.refuses) + "\n", encoding="utf-8")
        if store.kind not in {"clickhouse", "mysql", "postgresql", "oracle"}:  # their narrow table is there already
            made.make_missing()
        made.run_until_head()
        yield made, store


def test_a_refused_row_is_listed_counted_and_replayed(refusing: tuple[Case, Store]) -> None:
    """Another table of the same batch goes into the same target table, and none of its rows is refused."""
    made, store = refusing
    fine = "'2024-02-29'" if store.value != LONG else "'a'"
    mode = "SET SESSION sql_mode = ''"
    rows = f"(1, {fine}, 1), (2, '{store.value}', 2), (3, {fine}, 3)"
    made.source.execute(mode, f"INSERT INTO `{made.schema}`.friends VALUES {rows}")
    made.source.execute(f"INSERT INTO `{made.schema}`.people VALUES (4, {fine}, 4)")
    made.run_until_head()
    [letter] = letters(made.runtime())
    assert (letter.stage, letter.by, letter.op, letter.waiting) == ("load", "copy", "insert", ("copy",))
    assert list(letter.key.values()) == [2]
    assert "1 dead letters wait" in made.cli("status", made.name).stdout
    assert letter.id in made.cli("dead-letters", "list", made.name).stdout
    prune_letters(made.runtime(), older_than_s=0)
    store.mend()
    made.path.write_text(made.yaml + store.config(store.takes) + "\n", encoding="utf-8")
    assert [one.outcome for one in replay(made.runtime(), [], by="test")] == ["replayed"]
    assert letters(made.runtime()) == []
    [settled] = letters(made.runtime(), everything=True)
    assert settled.settled == {"copy": "replayed"}


NAN_IS_HELD = {"elasticsearch", "mongodb", "opensearch", "postgresql", "redis"}


@pytest.mark.parametrize("kind", sorted(STORES))
def test_nan_of_a_decimal_is_held_or_a_letter(
    kind: str, request: Any, tmp_path: Path, postgresql_source: Any, zookeeper: Any
) -> None:
    """It comes by the copy and by the log; an UPDATE and a DELETE at the source lead out, whatever the target does."""
    schema = f"nan_{kind}"
    store = STORES[kind](request, schema, tmp_path)
    with pg_case(tmp_path, postgresql_source, zookeeper, schema=schema, start="dump") as made:
        made.connections["case_target"] = store.connection
        head, _, _ = made.yaml.partition("targets:\n")
        made.path.write_text(f"{head}targets:\n  - {store.config({})}\n", encoding="utf-8")
        made.write(
            "CREATE TABLE t (id int PRIMARY KEY, n numeric(12,2), wide numeric(30,3))",
            "ALTER TABLE t REPLICA IDENTITY FULL",
            "INSERT INTO t VALUES (1, 'NaN', NULL), (2, 1.5, 2), (3, NULL, 'NaN')",
        )
        made.prepare()
        made.run_until_head()
        made.write("INSERT INTO t VALUES (4, -1, 'NaN'), (5, 7, NULL), (6, 'NaN', 'NaN')")
        made.run_until_head()
        held = kind in NAN_IS_HELD
        assert sorted(one.key["id"] for one in letters(made.runtime())) == ([] if held else [1, 3, 4, 6])
        if held and store.kind != "postgresql":
            texts = {int(one["id"]): one.get("n") for one in store.documents(f"{schema}.t")}
            assert {number: text.decode() if isinstance(text, bytes) else text for number, text in texts.items()
                    if number in {1, 6}} == {1: "NaN", 6: "NaN"}  # fmt: skip
        if held:
            with delivering(made):
                assert made.cli("verify", made.name).returncode == 0
        made.write("UPDATE t SET n = 5, wide = 6 WHERE id IN (1, 4)", "DELETE FROM t WHERE id IN (3, 6)")
        made.run_until_head()
        assert len(letters(made.runtime(), everything=True)) == (0 if held else 4)
        if store.kind in {"clickhouse", "delta", "iceberg", "mysql", "postgresql", "redis"}:
            with delivering(made):
                assert made.cli("verify", made.name).returncode == 0


CHANGES = {
    "a float becomes a double": "MODIFY v DOUBLE",
    "a generated column": "ADD s INT AS (z + 1) STORED",
    "more digits": "MODIFY d DATETIME(6)",
    "a wider scale": "MODIFY p DECIMAL(12,4)",
}


@pytest.mark.parametrize("kind", ["elasticsearch", "mongodb", "redis"])
def test_rows_that_are_there_are_copied_again_where_new_ones_have_other_values(
    kind: str, request: Any, tmp_path: Path, mysql_source: Any, mysql_target: Any, zookeeper: Any, fresh_schema: Any
) -> None:
    """Each row of a store without types is as its last one: a row that was there, and its equal that came later."""
    schema = fresh_schema(mysql_source, mysql_target)
    store = STORES[kind](request, schema, tmp_path)
    with case(tmp_path, mysql_source, mysql_target, zookeeper, schema) as made:
        made.connections["case_target"] = store.connection
        head, _, _ = made.yaml.partition("targets:\n")
        for number in range(len(CHANGES)):
            made.source.execute(
                f"CREATE TABLE `{schema}`.t{number} (id INT PRIMARY KEY, v FLOAT, z INT, d DATETIME, p DECIMAL(10,2))"
            )

        def configure(**more: str) -> None:
            text = json.dumps({**json.loads(store.config({})), **more})
            made.path.write_text(f"{head}targets:\n  - {text}\n", encoding="utf-8")

        configure()
        made.make_missing()
        made.run_until_head()
        for number, (name, change) in enumerate(CHANGES.items()):
            row = "0.1, 5, '2024-02-29 01:02:03', 1.50"
            configure()
            made.source.execute(f"INSERT INTO `{schema}`.t{number} VALUES (1, {row})")
            made.run_until_head()
            made.source.execute(f"ALTER TABLE `{schema}`.t{number} {change}")
            with pytest.raises(LoadError, match=rf"column {change.split()[1]} .*on_conversion: copy"):
                made.run_until_head()
            configure(on_conversion="copy")
            for _ in range(2):
                made.run_until_head()
            kept = "(id, z, d, p, v)"
            made.source.execute(
                f"INSERT INTO `{schema}`.t{number} {kept} SELECT 2, z, d, p, v FROM `{schema}`.t{number}"
            )
            made.run_until_head()
            one, two = sorted(store.documents(f"{schema}.t{number}"), key=lambda document: int(document["id"]))
            assert {**one, "id": 2} == {**two, "id": 2}, name
