"""The Kafka target on a real broker: whole pipelines from MySQL, who chooses the partition, and what each refusal
says.
"""

from __future__ import annotations

import json
import logging
import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from devstack import paths
from sluice.config.connections import Endpoint, parse_connection
from sluice.config.pipeline import TargetConfig
from sluice.errors import ConfigError, LoadError, MappingError, SluiceError, TargetUnavailable
from sluice.flows.dump.start import start
from sluice.flows.dump.worker import work
from sluice.model.dumps import DumpState
from sluice.model.tables import TableId
from sluice.operations.check import apply_missing, check
from sluice.targets.kafka import ack_topic, place, transactions
from sluice.targets.kafka.partitioning import partition_of
from sluice.targets.kafka.target import KafkaTarget
from sluice.testing.targets import Pipe, changed, gone, new, people
from tests.support.benches.kafka_bench import KafkaBench
from tests.support.pipelines.dumping import delivering
from tests.support.pipelines.kafka_pipelines import pipeline
from tests.support.readers import kafka_reading
from tests.support.readers.debezium_values import python_row, python_value

admin = pytest.importorskip("confluent_kafka.admin")

JAVA = """
public class Partitions {
    public static void main(String[] keys) throws Exception {
        for (int i = 1; i < keys.length; i++) {
            byte[] key = keys[i].getBytes("UTF-8");
            int count = Integer.parseInt(keys[0]);
            System.out.println(org.apache.kafka.clients.producer.internals.BuiltInPartitioner.partitionForKey(key, count));
        }
    }
}
"""


@pytest.mark.promise("A30")
def test_partitions_are_those_of_kafkas_java_client(kafka: Any, tmp_path: Path) -> None:
    keys = [
        '{"id":1}',
        "a",
        "ab",
        "abc",
        "abcd",
        "abcde",
        "größe 😀",
        '{"id":-9223372036854775808,"x":"' + "y" * 101 + '"}',
    ]
    keys += [f'{{"id":{n * 7919}}}' for n in range(300)]
    (tmp_path / "Partitions.java").write_text(JAVA, encoding="utf-8")
    janino = sorted(paths.pyspark_home().glob("jars/janino-*.jar")) + sorted(
        paths.pyspark_home().glob("jars/commons-compiler-*.jar")
    )
    start = kafka.java(256)
    start[-1] = ":".join([start[-1], *map(str, janino)])
    run = [*start, "org.codehaus.janino.SimpleCompiler", str(tmp_path / "Partitions.java"), "Partitions", "7", *keys]
    said = subprocess.run(run, capture_output=True, text=True, check=True, timeout=120).stdout.split()
    assert [partition_of(key.encode(), 7) for key in keys] == list(map(int, said))


DDL = """CREATE TABLE {0}.t (id INT UNSIGNED, part VARCHAR(20) COLLATE utf8mb4_bin, big BIGINT UNSIGNED, amount DECIMAL(20,4), note TEXT,
 at DATETIME(6), day DATE, span TIME(3), bits BIT(9), blobs BLOB, kind ENUM('a','b'), doc JSON, f DOUBLE, PRIMARY KEY (part, id))"""
ROW = (
    "(%d, '%s', 18446744073709551615, -12.5, 'ü \"q\" \\\\ \\n', '2026-11-22 10:11:12.000013', '1969-12-31', "
    "'-01:02:03.5', b'101', x'00ff', 'b', '{\"a\": 1}', 1e-7)"
)


@pytest.mark.parametrize("changes", ["latest", "all"])
def test_a_consumer_rebuilds_the_table(
    tmp_path: Path, mysql_source: Any, zookeeper: Any, kafka: Any, fresh_schema: Any, changes: str
) -> None:
    """The whole way, with a login, `check --apply` and a dump: a consumer that knows Debezium's documents alone has the
    source's rows.
    """
    schema = fresh_schema(mysql_source)
    rows = [ROW % (n, "ab"[n % 2]) for n in range(20)]
    mysql_source.execute(DDL.format(schema), f"INSERT INTO {schema}.t VALUES {', '.join(rows)}")
    target = f"    changes: {changes}\n    options: {{create_topics: {{partitions: 3}}}}\n"
    with pipeline(tmp_path, mysql_source, kafka, zookeeper, schema, target) as made:
        report = check(made.runtime())
        assert report.failed
        [(_, statement)] = report.statements
        assert statement.startswith(f"kafka-topics --create --topic {schema}.t --partitions 3")
        apply_missing(made.runtime(), report.statements)
        report = check(made.runtime())
        assert not report.failed, report.findings
        assert any(
            f"topic {schema}.t, 3 partitions by key, key (part, id), debezium-json" in f.why for f in report.findings
        )
        made.run_until_head()
        with delivering(made):
            assert work(made.runtime(), start(made.runtime()).id).state is DumpState.DONE
        made.run_until_head()
        mysql_source.execute(
            f"USE {schema}", "UPDATE t SET note = 'new', f = 2.5 WHERE id < 5", "UPDATE t SET id = 100 WHERE id = 7",
            "DELETE FROM t WHERE id IN (3, 11)",
            f"INSERT INTO t VALUES {ROW % (50, 'zz')}", "UPDATE t SET amount = NULL WHERE part = 'zz'",
        )  # fmt: skip
        made.run_until_head()
        messages = kafka_reading.read(kafka, f"{schema}.t")
        found: dict[tuple[int, Any], Any] = {}
        for one in messages:
            place = (one.partition, one.key)
            if one.value is None or one.document["op"] == "d":
                found.pop(place, None)
            else:
                found[place] = one.document["after"]
        table: dict[Any, Any] = {(row["part"], row["id"]): row for row in found.values()}
        assert len(table) == len(found), "one key, one partition"
        select = "id, part, big, amount, note, at, day, span, bits + 0, blobs, kind, CAST(doc AS CHAR), f"
        types = {"amount": "decimal(20,4)", "at": "datetime(6)", "day": "date", "span": "time(3)", "blobs": "blob"}
        expected = {(row[1], row[0]): row for row in mysql_source.execute(f"SELECT {select} FROM {schema}.t")}
        got = {}
        for key, row in table.items():
            made_row = python_row(types, row)
            assert made_row is not None
            made_row["bits"] = int.from_bytes(python_value("blob", made_row["bits"]), "little")
            got[key] = tuple(made_row.values())
        assert got == expected
        log = "".join(path.read_text(errors="replace") for path in tmp_path.rglob("*.log"))
        assert "s3cret-of-the-broker" not in log + repr(report.findings)
        assert all(one.headers["sluice.batch"] and one.headers["sluice.change"] for one in messages)
        if changes == "all":
            tombstones = [one for one in messages if one.value is None]
            assert len(tombstones) == 3
            updates = [one for one in messages if one.value and one.document["op"] == "u"]
            assert all(
                one.headers["sluice.position"] == f"{one.document['source']['file']}:{one.document['source']['pos']}"
                for one in updates
            )
            assert all(one.headers["sluice.gtid"] == one.document["source"]["gtid"] for one in updates)


@pytest.mark.promise("A31")
def test_global_order_is_the_logs(
    tmp_path: Path, mysql_source: Any, zookeeper: Any, kafka: Any, fresh_schema: Any
) -> None:
    """Two tables in one partition: each transaction whole, in the order of the log.

    Without global order at least one of them would be in another partition.
    """
    schema = fresh_schema(mysql_source)
    count = next(number for number in range(2, 100) if partition_of(f"{schema}.a".encode(), number) != 0)
    mysql_source.execute(
        f"CREATE TABLE {schema}.a (id INT PRIMARY KEY)", f"CREATE TABLE {schema}.b (id INT PRIMARY KEY)"
    )
    options = f"topic: {schema}, partitioning: global, create_topics: {{when: needed, partitions: {count}}}"
    with pipeline(
        tmp_path, mysql_source, kafka, zookeeper, schema, f"    changes: all\n    options: {{{options}}}\n"
    ) as made:
        made.run_until_head()
        steps = [f"INSERT INTO {t} VALUES ({n})" for n in range(20) for t in ("a", "b")]
        script = [line for n in range(0, 40, 4) for line in ("BEGIN", *steps[n : n + 4], "COMMIT")]
        mysql_source.execute(f"USE {schema}", *script)
        made.run_until_head()
        found = kafka_reading.read(kafka, schema)
        assert {one.partition for one in found} == {0}
        assert [(one.document["source"]["table"], one.document["after"]["id"]) for one in found] == [
            (table, n) for n in range(20) for table in ("a", "b")
        ]
        gtids = [one.document["source"]["gtid"] for one in found]
        assert [gtids.count(gtid) for gtid in dict.fromkeys(gtids)] == [4] * 10


def test_a_message_too_large_names_the_row(kafka: Any) -> None:
    bench = KafkaBench(kafka, options={"max_message_bytes": 2000})
    table = people(bench.schema)
    pipe = Pipe(bench)
    rows = [new(1, "a", 1), new(2, "x" * 3000, 2), new(3, "c", 3)]
    with pytest.raises(LoadError, match=r'a row of s\w+\.people, key \{"id":2\}') as raised:
        pipe.write(pipe.given([(table, rows)]))
    assert "options.max_message_bytes, 2,000" in str(raised.value)
    assert not kafka_reading.read(kafka, f"{bench.schema}.people")
    letters = Pipe(bench, name="letters", config={"on_error": "dead_letter"})
    kept: list[Any] = []
    letters.write(letters.given([(table, rows)]), rejected=lambda part, table, rejected: kept.extend(rejected))
    assert [one.row["id"].to_pylist() for one in kept] == [[2]]
    assert {json.loads(one.key or b"")["id"] for one in kafka_reading.read(kafka, f"{bench.schema}.people")} == {1, 3}


def test_what_the_broker_refuses_names_topic_and_key(kafka: Any) -> None:
    """The topic's own limit is lower than the option's."""
    config = {"max.message.bytes": "1500"}
    bench = KafkaBench(kafka, options={"compression": "none", "create_topics": {"when": "needed", "config": config}})
    table = people(bench.schema)
    pipe = Pipe(bench)
    pipe.deliver((table, [new(1, "a", 1)]))
    with pytest.raises(LoadError, match=r"too large.*max\.message\.bytes") as raised:
        pipe.write(pipe.given([(table, [new(2, "x" * 3000, 2)])]))
    assert f'topic {bench.schema}.people, key {{"id":2}}' in str(raised.value)
    assert pipe.held == 1
    assert len(kafka_reading.read(kafka, f"{bench.schema}.people")) == 1


def test_a_topic_that_is_gone_and_one_with_more_partitions(kafka: Any) -> None:
    bench = KafkaBench(kafka)
    table = people(bench.schema)
    topic = f"{bench.schema}.people"
    pipe = Pipe(bench)
    pipe.deliver((table, [new(1, "a", 1)]))
    client = admin.AdminClient({"bootstrap.servers": kafka.bootstrap})
    client.create_partitions([admin.NewPartitions(topic, 5)])[topic].result(30)
    while kafka_reading.topics_of(kafka)[topic] != 5:
        pass
    batch = pipe.given([(table, [new(2, "b", 2)])])
    with pytest.raises(LoadError, match=rf"topic {topic} has 5 partitions, and had 3"):
        pipe.write(batch)
    bench.options["partitions_changed"] = "accept"
    pipe.write(batch)
    bench.options["partitions_changed"] = "stop"
    pipe.deliver((table, [new(3, "c", 3)]))
    kafka_reading.delete(kafka, topic)
    bench.options["create_topics"] = {}
    with pytest.raises(LoadError, match=rf"the topic {topic} for {topic} is gone.*check"):
        pipe.write(pipe.given([(table, [new(4, "d", 4)])]))
    assert pipe.held == 3
    other, pipe = people(bench.schema, "other"), Pipe(bench, name="other")
    with pytest.raises(MappingError, match=rf"the topic {bench.schema}.other for .* is not there.*check"):
        pipe.write(pipe.given([(other, [new(4, "d", 4)])]))


@pytest.mark.parametrize("anew", ["", "by hand"])
@pytest.mark.parametrize(("changes", "which"), [("latest", "table"), ("all", "table"), ("latest", "schema_topic")])
def test_the_hint_of_a_topic_that_is_gone_leads_out(
    tmp_path: Path,
    mysql_source: Any,
    zookeeper: Any,
    kafka: Any,
    fresh_schema: Any,
    changes: str,
    anew: str,
    which: str,
) -> None:
    """A known topic that is gone, or was made anew, stops the load whatever create_topics.when is, and check says so."""
    schema = fresh_schema(mysql_source)
    topic = {"table": f"{schema}.t", "schema_topic": f"{schema}-ddl"}[which]
    mysql_source.execute(f"CREATE TABLE {schema}.t (id INT PRIMARY KEY, v INT)")
    target = f'    changes: {changes}\n    options: {{create_topics: {{when: needed}}, schema_topic: "{schema}-ddl"}}\n'
    with pipeline(tmp_path, mysql_source, kafka, zookeeper, schema, target) as made:
        made.run_until_head()
        mysql_source.execute(f"USE {schema}", "INSERT INTO t VALUES (1, 1), (2, 2)", "ALTER TABLE t ADD COLUMN w INT")
        made.run_until_head()
        kafka_reading.delete(kafka, topic)
        if anew:
            client = admin.AdminClient({"bootstrap.servers": kafka.bootstrap})
            client.create_topics([admin.NewTopic(topic, 1, 1)])[topic].result(30)
        reason = rf"topic {topic} for .*{'made anew' if anew else 'gone'}"
        mysql_source.execute(f"UPDATE {schema}.t SET v = 5 WHERE id = 1")
        with pytest.raises(LoadError, match=reason) as stopped:
            made.run_until_head()
        report = check(made.runtime())
        assert any(re.search(reason, f.why) for f in report.findings if f.severity == "error"), report.findings
        if anew:
            assert f"kafka-topics --delete --topic {topic}" in (stopped.value.hint or "")
            kafka_reading.delete(kafka, topic)
        assert "`sluice check case --apply` make it" in (stopped.value.hint or "")
        assert made.cli("check", "case", "--apply", "--yes").returncode == 0
        with delivering(made):
            assert work(made.runtime(), start(made.runtime()).id).state is DumpState.DONE
        made.run_until_head()
        assert not check(made.runtime()).failed
        rows = {}
        for one in kafka_reading.read(kafka, f"{schema}.t"):
            if one.value is not None:
                rows[one.key] = one.document["after"]["v"]
        assert sorted(rows.values()) == [2, 5]


def test_more_messages_than_wait_at_a_time(kafka: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's queue would take later messages and leave out earlier ones."""
    monkeypatch.setattr(place, "QUEUE", 40)
    monkeypatch.setattr(transactions, "QUEUE", 40)
    monkeypatch.setattr(transactions, "_QUEUE_BYTES", 20_000)
    monkeypatch.setattr("sluice.targets.kafka.sender._ROWS", 30)
    bench = KafkaBench(kafka, "all", {"headers": False, "create_topics": {"when": "needed"}})
    table = people(bench.schema)
    Pipe(bench).deliver((table, [new(n, "a", n) for n in range(500)]))
    found = kafka_reading.read(kafka, f"{bench.schema}.people")
    assert [one.document["after"]["id"] for one in found] == list(range(500))
    assert not any(one.headers for one in found)


def test_rows_of_a_dead_letter_are_sent_once(kafka: Any) -> None:
    from dataclasses import replace

    bench = KafkaBench(kafka)
    table = people(bench.schema)
    pipe = Pipe(bench)
    pipe.deliver((table, [new(1, "a", 1)]))
    again = replace(pipe.given([(table, [new(2, "b", 2)])]), number=1, held=1, replay="letter 7")
    for _ in range(2):
        writer = pipe.writer(again)
        writer.commit([unit.write() for phase in writer.plan(1) for unit in phase])
    assert pipe.held == 1
    assert len(kafka_reading.read(kafka, f"{bench.schema}.people")) == 2


def test_tombstones_and_two_tables_in_one_topic(kafka: Any) -> None:
    bench = KafkaBench(kafka, "all", {"topic": "{pipeline}-both", "create_topics": {"when": "needed", "partitions": 2}})
    one, two = people(bench.schema, "one"), people(bench.schema, "two")
    pipe = Pipe(bench)
    pipe.deliver((one, [new(1, "a", 1), changed((1, "a", 1), (2, "a", 1)), gone(2, "a", 1)]), (two, [new(1, "b", 1)]))
    found = kafka_reading.read(kafka, f"{bench.schema}_p-both")
    said = Counter((json.loads(m.key or b"")["id"], m.document and m.document["op"]) for m in found)
    assert said == Counter([(1, "c"), (1, "d"), (1, None), (2, "c"), (2, "d"), (2, None), (1, "c")])
    merged = KafkaBench(kafka, options={"topic": f"{bench.schema}-both"})
    with pytest.raises(MappingError, match="both go to topic"):
        Pipe(merged).deliver((one, [new(1, "a", 1)]), (two, [new(1, "b", 1)]))


SECRET = "never-shown-4711"


@pytest.mark.parametrize(
    ("extra", "error", "match"),
    [
        (
            {
                "sasl.password": SECRET,
                "sasl.username": "sluice",
                "sasl.mechanism": "PLAIN",
                "security.protocol": "SASL_PLAINTEXT",
            },
            SluiceError,
            "",
        ),
        ({"no.such.setting": "x", "sasl.password": SECRET}, ConfigError, "no.such.setting"),
        ({"security.protocol": SECRET, "sasl.password": SECRET}, ConfigError, "security.protocol"),
        ({"bootstrap.servers": {"a": 1}}, ConfigError, "no plain value"),
    ],
    ids=["password", "unknown", "value", "nested"],
)
def test_connections_that_do_not_work(
    kafka: Any, caplog: Any, monkeypatch: Any, extra: dict[str, Any], error: Any, match: str
) -> None:
    monkeypatch.setattr("sluice.targets.kafka.client.ANSWER_S", 5.0)
    monkeypatch.setattr(ack_topic, "ANSWER_S", 5.0)
    caplog.set_level(logging.DEBUG)
    endpoint = Endpoint("broker", "kafka", "", extra={"bootstrap.servers": f"127.0.0.1:{kafka.login_port}", **extra})
    target = KafkaTarget(TargetConfig(name="copy", type="kafka", connection="broker"), endpoint, "p")
    with pytest.raises(error, match=match or None) as raised:
        target.checkpoints.read()
    assert SECRET not in str(raised.value) + repr(target.config) + caplog.text + repr(endpoint)


def test_no_broker_answers(monkeypatch: Any) -> None:
    monkeypatch.setattr(ack_topic, "ANSWER_S", 1.0)
    endpoint = parse_connection("broker", '{"conn_type": "kafka", "host": "127.0.0.1", "port": 1}')
    target = KafkaTarget(TargetConfig(name="copy", type="kafka", connection="broker"), endpoint, "p")
    with pytest.raises(TargetUnavailable):
        target.checkpoints.read()


def test_a_transaction_longer_than_the_broker_allows(kafka: Any) -> None:
    bench = KafkaBench(kafka, options={"transaction_timeout": "23h"})
    with pytest.raises(ConfigError, match=r"transaction\.max\.timeout\.ms"):
        Pipe(bench).take_over()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ('producer: {lingr.ms: 5}', 'lingr.ms'),
        ('producer: {linger.ms: soon}', 'Invalid value'),
        ('transaction_timeout: 23h', 'transaction.max.timeout.ms'),
    ],
)  # fmt: skip
def test_check_sees_settings_that_the_client_or_the_brokers_refuse(
    tmp_path: Path, mysql_source: Any, zookeeper: Any, kafka: Any, fresh_schema: Any, options: str, why: str
) -> None:
    schema = fresh_schema(mysql_source)
    mysql_source.execute(f"CREATE TABLE {schema}.t (id INT PRIMARY KEY)")
    target = f"    changes: all\n    options: {{{options}}}\n"
    with pipeline(tmp_path, mysql_source, kafka, zookeeper, schema, target) as made:
        findings = check(made.runtime()).findings
        assert [f.fix for f in findings if f.severity == "error" and why in f.why], findings


def test_check_sees_another_number_of_partitions(
    tmp_path: Path, mysql_source: Any, zookeeper: Any, kafka: Any, fresh_schema: Any
) -> None:
    schema = fresh_schema(mysql_source)
    mysql_source.execute(f"CREATE TABLE {schema}.t (id INT PRIMARY KEY)")
    target = "    changes: all\n    options: {create_topics: {when: needed, partitions: 2}}\n"
    with pipeline(tmp_path, mysql_source, kafka, zookeeper, schema, target) as made:
        made.run_until_head()
        mysql_source.execute(f"INSERT INTO {schema}.t VALUES (1)")
        made.run_until_head()
        client = admin.AdminClient({"bootstrap.servers": kafka.bootstrap})
        client.create_partitions([admin.NewPartitions(f"{schema}.t", 5)])[f"{schema}.t"].result(30)
        assert any("has 5 partitions, and had 2" in f.why for f in check(made.runtime()).findings)


@pytest.mark.parametrize("option", ["key_columns", "partitioning: columns, partition_columns"])
def test_a_column_of_the_options_that_is_renamed(
    tmp_path: Path, mysql_source: Any, zookeeper: Any, kafka: Any, fresh_schema: Any, option: str
) -> None:
    """The error names the option, and what its hint says leads out, with rows of both names in one batch."""
    schema = fresh_schema(mysql_source)
    mysql_source.execute(f"CREATE TABLE {schema}.t (id INT PRIMARY KEY, part INT)")
    topics = "create_topics: {when: needed, partitions: 3}"
    target = f'    changes: all\n    options: {{{option}: {{"{schema}.t": [part]}}, {topics}}}\n'
    with pipeline(tmp_path, mysql_source, kafka, zookeeper, schema, target) as made:
        made.run_until_head()
        mysql_source.execute(
            f"USE {schema}", "INSERT INTO t VALUES (1, 7)", "ALTER TABLE t RENAME COLUMN part TO piece",
            "INSERT INTO t VALUES (2, 7)",
        )  # fmt: skip
        with pytest.raises(MappingError, match=rf"columns names part of {schema}\.t.*renamed or dropped") as stopped:
            made.run_until_head()
        assert "rename: {NEW: OLD}" in (stopped.value.hint or "")
        renamed = f"mapping:\n  - {{from: {schema}.t, to: {schema}.t, columns: {{rename: {{piece: part}}}}}}\n"
        made.path.write_text(made.yaml + renamed, encoding="utf-8")
        made.run_until_head()
        found = kafka_reading.read(kafka, f"{schema}.t")
        assert len({one.partition for one in found}) == 1
        assert [one.document["after"] for one in found] == [{"id": 1, "part": 7}, {"id": 2, "part": 7}]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"topic": "{database}.{table}"}, "database"),
        ({"topic": "{table"}, "topic"),
        ({"ack_topic": "acks"}, "a topic of its own"),
        ({"partitioning": "global"}, "one topic for all tables"),
        ({"partitioning": "columns"}, "partition_columns"),
        ({"schema_envelope": True}, "schema_envelope"),
        ({"producer": {"acks": 1}}, "set by Sluice"),
        ({"key_columns": {"a.b": ["c"]}}, "changes: all"),
        ({"transaction_timeout": "1ms"}, "transaction_timeout"),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
def test_options_that_do_not_go(options: dict[str, Any], match: str) -> None:
    config = TargetConfig(name="copy", type="kafka", connection="broker", options=options)
    with pytest.raises(ConfigError, match=match):
        KafkaTarget(config, Endpoint("broker", "kafka", "h"), "p")


def test_names_of_topics() -> None:
    target = KafkaTarget(
        TargetConfig(name="copy", type="kafka", connection="broker", options={"topic": "{pipeline}.{schema}.{table}"}),
        Endpoint("broker", "kafka", "h"), "p",
    )  # fmt: skip
    assert target.options.topic_of(TableId("größe", "a b$c"), "p", "copy") == "p.gr__e.a_b_c"
    assert target.place.ack_topic == "_sluice_ack.p.copy"
