"""A topic with the newest row of each key, after statements that no change of the log follows: its keys are those of
the source's rows.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sluice.errors import LoadError
from tests.support.pipelines.case import Case
from tests.support.pipelines.dumping import delivering
from tests.support.pipelines.kafka_pipelines import pipeline
from tests.support.readers import kafka_reading

admin = pytest.importorskip("confluent_kafka.admin")


@contextmanager
def following(
    folder: Path, request: Any, *lines: str, options: str = "", extra: str = "", partitions: int = 3
) -> Iterator[Case]:
    """A pipeline to topics with some partitions each."""
    source, kafka, zookeeper = (request.getfixturevalue(name) for name in ("mysql_source", "kafka", "zookeeper"))
    schema = request.getfixturevalue("fresh_schema")(source)
    made_topics = f"create_topics: {{when: needed, partitions: {partitions}, config: {{cleanup.policy: compact}}}}"
    target = "".join(f"    {line}\n" for line in lines) + f"    options: {{{made_topics}{options and ', '}{options}}}\n"
    with pipeline(folder, source, kafka, zookeeper, schema, target, extra=extra) as made:
        made.target = kafka
        made.run_until_head()
        yield made


def execute(made: Case, *statements: str) -> None:
    made.source.execute(*statements, database=made.schema)


def topic(made: Any, table: str) -> dict[str, Any]:
    """Key -> newest row, as a compacted topic keeps it: by the bytes of the key, in each partition."""
    kafka_reading.settle(made.target, f"{made.schema}.{table}")
    newest: dict[tuple[int, Any], Any] = {}
    for one in kafka_reading.read(made.target, f"{made.schema}.{table}"):
        newest[one.partition, one.key] = one.document
    held = [(key, row) for (_, key), row in newest.items() if row is not None]
    found = {key.decode(): row.get("after", row) for key, row in held}
    assert len(found) == len(held), "a key is in two partitions"
    return found


def source(made: Case, table: str, *key: str) -> dict[str, Any]:
    """The same of the source's rows."""
    names = [row[0] for row in made.source.execute(f"SHOW COLUMNS FROM {made.schema}.{table}")]
    rows = [dict(zip(names, row, strict=True)) for row in made.source.execute(f"SELECT * FROM {made.schema}.{table}")]
    return {json.dumps({name: row[name] for name in key}, separators=(",", ":")): row for row in rows}


def assert_verified(made: Case) -> None:
    with delivering(made):
        answer = made.cli("verify", "run", "case", "--target", "copy")
    assert answer.returncode == 0, answer.stdout


def test_a_topic_has_the_keys_of_the_source_after_statements_that_no_change_names(tmp_path: Path, request: Any) -> None:
    """TRUNCATE, DROP and CREATE, RENAME, other key columns: with changes before and after each, delivered together."""
    with following(tmp_path, request, "on_conversion: copy") as made:
        execute(
            made,
            "CREATE TABLE t (id INT PRIMARY KEY, n INT NOT NULL, note VARCHAR(20))",
            "INSERT INTO t VALUES (1, 10, 'a'), (2, 20, 'b'), (3, 30, 'c')",
        )
        made.run_until_head()
        assert topic(made, "t") == source(made, "t", "id")
        acts = {
            "TRUNCATE TABLE t": ("t", "id"),
            "ALTER TABLE t RENAME COLUMN id TO code": ("t", "code"),
            "ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (n)": ("t", "n"),
            "ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (code, n)": ("t", "code", "n"),
            "ALTER TABLE t MODIFY code VARCHAR(12) NOT NULL": ("t", "code", "n"),
            "RENAME TABLE t TO u": ("u", "code", "n"),
        }
        for number, (act, (table, *key)) in enumerate(acts.items()):
            first, later = 100 * (number + 1), 100 * (number + 1) + 50
            old = "u" if table == "u" else "t"
            execute(
                made,
                f"INSERT INTO t VALUES ({first}, {first}, 'before'), ({first + 1}, {first + 1}, 'goes')",
                "UPDATE t SET note = 'changed' WHERE n = 20",
                act,
                f"INSERT INTO {old} VALUES ({later}, {later}, 'after'), ({later + 1}, {later + 1}, 'goes')",
                f"UPDATE {old} SET note = 'again' WHERE n = {first}",
                f"DELETE FROM {old} WHERE note = 'goes'",
            )
            made.run_until_head()
            made.run_until_head()  # what was read last of a copy arrives
            assert topic(made, table) == source(made, table, *key), act
        assert topic(made, "t") == {}
        assert_verified(made)
        execute(
            made,
            "RENAME TABLE u TO v",
            "ALTER TABLE v MODIFY n BIGINT",
            "RENAME TABLE v TO w",
            "UPDATE w SET note = 'w'",
        )
        made.run_until_head()  # v was there for a short time only
        made.run_until_head()
        assert (topic(made, "u"), topic(made, "v"), topic(made, "w")) == ({}, {}, source(made, "w", *key))
        execute(made, "CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 1)", "DROP TABLE w")
        execute(made, "DROP TABLE t", "CREATE TABLE t (k VARCHAR(5) PRIMARY KEY)", "INSERT INTO t VALUES ('x')")
        made.run_until_head()
        assert (topic(made, "w"), topic(made, "t")) == ({}, {'{"k":"x"}': {"k": "x"}})


def test_a_load_that_stopped_goes_on_as_its_error_says(tmp_path: Path, request: Any) -> None:
    """Without ``on_conversion: copy`` a person decides; nothing was sent until then."""
    with following(tmp_path, request, "on_conversion: stop") as made:
        execute(made, "CREATE TABLE t (id INT PRIMARY KEY, v DATETIME(6))", "INSERT INTO t VALUES (1, NULL), (2, NULL)")
        made.run_until_head()
        before = topic(made, "t")
        for statement, named, key in (
            ("ALTER TABLE t RENAME COLUMN id TO code", r"the key was \(id\) and is \(code\)", "code"),
            (
                "ALTER TABLE t MODIFY code DECIMAL(5,1) NOT NULL",
                r"column code of the key was int and is decimal\(5,1\)",
                "",
            ),
        ):
            execute(made, statement, "DELETE FROM t WHERE v IS NOT NULL", "INSERT INTO t VALUES (7, NULL)")
            with pytest.raises(LoadError, match=rf"messages of {made.schema}\.t have other keys.*{named}") as stopped:
                made.run_until_head()
            assert "set on_conversion: copy at target copy" in str(stopped.value.hint)
            assert topic(made, "t") == before
            made.path.write_text(made.yaml.replace("on_conversion: stop", "on_conversion: copy"))
            made.run_until_head()
            made.run_until_head()
            before = topic(made, "t")
            assert len(before) == made.source.execute(f"SELECT COUNT(*) FROM {made.schema}.t")[0][0]
            if key:
                assert before == {**source(made, "t", key)}
            made.path.write_text(made.yaml)
            execute(made, "DELETE FROM t WHERE code = 7")
            made.run_until_head()
            before = topic(made, "t")
            assert len(before) == 2


def test_a_topic_that_cannot_be_emptied_is_made_anew_as_the_error_says(tmp_path: Path, request: Any) -> None:
    """Its deletes are documents, and need whole rows: ignore the statement, delete the topic, make it anew, copy the
    table.
    """
    with following(tmp_path, request, options="tombstones: false") as made:
        execute(made, "CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 1), (2, 2)")
        made.run_until_head()
        execute(made, "ALTER TABLE t RENAME COLUMN id TO code", "INSERT INTO t VALUES (3, 3)")
        with pytest.raises(LoadError, match=r"options\.tombstones is false") as stopped:
            made.run_until_head()
        assert "set rename_column to ignore in the ddl of target copy until the batch is delivered" in str(
            stopped.value.hint
        )
        made.path.write_text(
            made.yaml.replace("    type: kafka\n", "    type: kafka\n    ddl: {rename_column: ignore}\n")
        )
        made.run_until_head()
        assert len(topic(made, "t")) == 3, "two under their old keys"
        with delivering(made):
            answer = made.cli("verify", "run", "case", "--target", "copy")
        assert answer.returncode != 0
        assert f"`sluice dump start case --table {made.schema}.t`" in " ".join((answer.stdout + answer.stderr).split())
        made.path.write_text(made.yaml)
        name = f"{made.schema}.t"
        client = admin.AdminClient({"bootstrap.servers": made.target.bootstrap})
        client.delete_topics([name])[name].result(30)
        while name in kafka_reading.topics_of(made.target):
            pass
        assert made.cli("check", "case", "--apply", "--yes").returncode == 0
        with delivering(made):
            assert made.cli("dump", "start", "case", "--table", name).returncode == 0
        made.run_until_head()
        assert topic(made, "t") == source(made, "t", "code")


def test_masked_keys_and_a_topic_of_all_tables(tmp_path: Path, request: Any) -> None:
    """The bytes are those of the topic, whatever made them; a topic of all tables keeps the keys of the others."""
    options = 'format: maxwell-json, topic: "{pipeline}-{target}-all", partitioning: global'
    rules = "rules: [{name: hide, builtin: hash, match: {table: secret}, params: {columns: [id]}}]\n"
    with following(tmp_path, request, options=options, extra="rules: hide.yaml", partitions=1) as made:
        (made.folder / "rules/hide.yaml").write_text(rules)
        execute(made, *(f"CREATE TABLE {name} (id VARCHAR(64) PRIMARY KEY)" for name in ("secret", "plain")))
        execute(made, *(f"INSERT INTO {name} VALUES ('a'), ('b')" for name in ("secret", "plain")))
        made.run_until_head()

        def keys() -> dict[str, set[str]]:
            kafka_reading.settle(made.target, "case-copy-all")
            newest = {one.key: one.value for one in kafka_reading.read(made.target, "case-copy-all")}
            found: dict[str, set[str]] = {"secret": set(), "plain": set()}
            for key in (json.loads(key) for key, value in newest.items() if value is not None):
                if key["database"] == made.schema:
                    found[key["table"]].add(key["pk.id"])
            return found

        assert keys()["plain"] == {"a", "b"}
        assert len(keys()["secret"] - {"a", "b"}) == 2
        execute(made, "TRUNCATE TABLE secret", "INSERT INTO secret VALUES ('c')")
        made.run_until_head()
        assert keys()["plain"] == {"a", "b"}
        assert len(keys()["secret"] - {"c"}) == 1


@pytest.mark.parametrize("form", ["debezium-avro", "debezium-protobuf", "debezium-json, schemas: true"])
def test_keys_whose_schema_changes_are_written_anew(tmp_path: Path, request: Any, form: str) -> None:
    """A wider number is another schema, which is part of the key's bytes: what a compacted topic keeps has one message
    a row.
    """
    with following(tmp_path, request, "on_conversion: copy", options=f"format: {form}") as made:
        if "schemas" not in form:
            pytest.importorskip("fastavro" if form == "debezium-avro" else "google.protobuf")
            connection = json.loads(made.connections["case_target"])
            connection["extra"] |= {"schema.registry.url": request.getfixturevalue("schema_registry").url}
            made.connections["case_target"] = json.dumps(connection)

        def held() -> dict[bytes | None, int]:
            name = f"{made.schema}.t"
            kafka_reading.settle(made.target, name)
            newest = {(one.partition, one.key): one.value for one in kafka_reading.read(made.target, name)}
            return Counter(key for (_, key), value in newest.items() if value is not None)

        execute(made, "CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 1), (2, 2), (3, 3)")
        made.run_until_head()
        before = held()
        execute(made, "ALTER TABLE t MODIFY v BIGINT", "UPDATE t SET v = 5 WHERE id = 1")
        made.run_until_head()
        assert held() == before, "a value's type leaves the keys as they are"
        execute(made, "ALTER TABLE t MODIFY id BIGINT", "DELETE FROM t WHERE id = 2", "INSERT INTO t VALUES (4, 4)")
        made.run_until_head()
        made.run_until_head()
        assert not held().keys() & before.keys()
        assert list(held().values()) == [1, 1, 1]
        assert_verified(made)


def test_a_topic_of_another_pipeline_is_not_emptied(tmp_path: Path, request: Any) -> None:
    """Two pipelines that write to one topic: the rows of the other one are no rows of a table that was emptied."""
    with following(tmp_path, request) as made:
        execute(made, "CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
        made.run_until_head()
        producer = pytest.importorskip("confluent_kafka").Producer({"bootstrap.servers": made.target.bootstrap})
        other = {"before": None, "after": {"id": 9}, "source": {"name": "east"}, "op": "c"}
        producer.produce(f"{made.schema}.t", json.dumps(other).encode(), b'{"id":9}')
        producer.flush(30)
        execute(made, "TRUNCATE TABLE t")
        with pytest.raises(LoadError, match=rf"topic {made.schema}\.t has rows of 'east', too"):
            made.run_until_head()
        made.path.write_text(
            made.yaml.replace("    type: kafka\n", "    type: kafka\n    ddl: {truncate_table: ignore}\n")
        )
        made.run_until_head()
        assert set(topic(made, "t")) == {'{"id":1}', '{"id":9}'}


def test_partitions_that_are_dropped_stop_the_load_and_its_way_back_leads_to_the_sources_keys(
    tmp_path: Path, request: Any
) -> None:
    """No row of the log names the rows that went with a partition."""
    with following(tmp_path, request) as made:
        execute(
            made,
            "CREATE TABLE t (id INT PRIMARY KEY, v INT) PARTITION BY RANGE (id) (PARTITION low VALUES LESS THAN (10),"
            " PARTITION high VALUES LESS THAN MAXVALUE)",
            "INSERT INTO t VALUES (1, 1), (2, 2), (20, 20)",
        )
        made.run_until_head()
        for statement, later in (("DROP PARTITION low", 30), ("TRUNCATE PARTITION high", 40)):
            execute(made, f"ALTER TABLE t {statement}", f"INSERT INTO t VALUES ({later}, {later})")
            with pytest.raises(LoadError, match=r"rows of .* went with a partition") as stopped:
                made.run_until_head()
            assert "set on_conversion: copy at target copy" in str(stopped.value.hint)
            made.path.write_text(made.yaml.replace("    type: kafka\n", "    type: kafka\n    on_conversion: copy\n"))
            made.run_until_head()
            made.run_until_head()  # what was read last of the copy arrives
            assert topic(made, "t") == source(made, "t", "id")
            made.path.write_text(made.yaml)
