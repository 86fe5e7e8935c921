"""Statements after which a topic with the newest row of each key would keep keys that no row has, or lack rows."""

from __future__ import annotations

from typing import Any, cast

import pytest

from sluice.config.connections import Endpoint
from sluice.config.pipeline import PipelineConfig
from sluice.errors import LoadError
from sluice.flows.load.schema_changes import plan_ddl
from sluice.model.dialects import MYSQL
from sluice.model.offset import Offset
from sluice.model.tables import TableId
from sluice.mysql.ddl.catalog import SchemaState, Session
from sluice.mysql.ddl.collations import Collations
from sluice.mysql.ddl.types import Flavour
from sluice.segments.manifest import DdlRecord, SegmentManifest
from sluice.targets.http.target import HttpTarget
from sluice.targets.http.writer import HttpWriter
from sluice.targets.kafka.target import KafkaTarget
from sluice.targets.kafka.writer import KafkaWriter
from sluice.targets.port import BatchInput, NoFacts, RowReader

COLLATIONS = Collations({"utf8mb4_bin": "utf8mb4"}, {"utf8mb4": "utf8mb4_bin"}, {"utf8mb4": 4})
TABLES = [
    *(f"CREATE TABLE {name} (id INT PRIMARY KEY, n INT NOT NULL)" for name in ("a", "b", "_a_gho", "other.x")),
    "CREATE TABLE parted (id INT PRIMARY KEY) PARTITION BY RANGE (id) (PARTITION low VALUES LESS THAN (9), PARTITION "
    "high VALUES LESS THAN MAXVALUE)",
]
PLAIN = ("debezium-json", "canal-json", "maxwell-json", "cloudevents-json")
FORMATS = (*PLAIN, "schemas", "debezium-avro", "debezium-protobuf")
"""As ``format``; ``schemas``: debezium-json with its schemas."""


class Known(NoFacts):
    """The tables that the pipeline captures."""

    def captured_tables(self) -> dict[TableId, TableId]:
        return {table: table for table in (TableId("shop", "a"), TableId("shop", "b"))}


def follow(sql: str, **more: Any) -> KafkaWriter:
    """Let a Kafka target follow a statement. Raises LoadError."""
    writer = opened(sql, KafkaTarget, Endpoint("c", "kafka", "localhost", 9092), **more)
    assert isinstance(writer, KafkaWriter)
    writer.prepare()
    return writer


def opened(
    sql: str,
    kind: type[KafkaTarget | HttpTarget],
    endpoint: Endpoint,
    *,
    changes: str = "latest",
    ddl: Any = "apply",
    mapping: Any = (),
    tables: Any = TABLES,
    copy: bool = False,
    **options: Any,
) -> KafkaWriter | HttpWriter:
    """A writer of a batch with a statement."""
    if options.get("format") == "schemas":
        options = {"schemas": True}
    state = SchemaState(Flavour("REPLACE" in sql, 90700, COLLATIONS), server_collation="utf8mb4_bin")
    for one in tables:
        state.fold(one, "shop", Session())
    done = state.fold(sql, "shop", Session())
    record = DdlRecord(
        file="binlog.000001", offset=9, schema="shop", sql=sql, seq=0, changes=tuple(c.to_json() for c in done)
    )
    at = Offset.at("u", "binlog.000001", 4)
    manifest = SegmentManifest(
        pipeline="p",
        batch=1,
        epoch=1,
        first=at,
        last=at,
        changes=0,
        transactions=0,
        log_bytes=0,
        files=(),
        ddl=(record,),
    )
    config = PipelineConfig.model_validate({
        "pipeline": "p", "source": {"connection": "s"}, "capture": {"include": ["shop\\..*"]}, "mapping": list(mapping),
        "targets": [{"name": "t", "type": endpoint.kind, "connection": "c", "ddl": ddl, "changes": changes,
            "options": options,
                     "on_conversion": "copy" if copy else "stop"}],
    })  # fmt: skip
    target = kind(config.targets[0], endpoint, "p")
    again = [target.copied_again] if isinstance(target, KafkaTarget) else []
    found = plan_ddl(manifest, config, config.targets[0], target.capabilities, MYSQL, lambda *_: (), *again)
    batch = BatchInput(
        1, Offset.at("u", "binlog.000001", 9), 0, cast(RowReader, None), schema_changes=found, facts=Known()
    )
    with target.open(1) as session:
        return session.begin(batch)


def emptied(writer: KafkaWriter) -> list[str]:
    """Tables whose topics lose their keys."""
    return sorted(str(one.table) for phase in writer.plan(1) for unit in phase for one in unit.rows.empties)


def copied(writer: KafkaWriter) -> list[str]:
    """Tables that are copied again, under their names of now."""
    return sorted(str(change.name_after(table)) for change in writer.batch.schema_changes for table in change.copies)


GONE = {
    "TRUNCATE TABLE a": ["shop.a"],
    "DROP TABLE a": ["shop.a"],
    "DROP TABLE IF EXISTS other.x, b": ["shop.b"],
    "DROP TABLE IF EXISTS never, b": ["shop.b"],
    "DROP TABLE unheard": ["shop.unheard"],
    "DROP DATABASE shop": ["shop.a", "shop.b", "shop.parted"],
    "CREATE OR REPLACE TABLE a (id INT PRIMARY KEY)": ["shop.a"],
    "ALTER TABLE a RENAME TO other.a": ["shop.a"],
    "RENAME TABLE a TO other.a, b TO other.b": ["shop.a", "shop.b"],
}
"""Statement -> the topics that lose their keys; no row is left that belongs into one."""


@pytest.mark.parametrize("sql", GONE)
def test_a_topic_loses_the_keys_of_rows_that_went(sql: str) -> None:
    found = follow(sql)
    assert emptied(found) == GONE[sql]
    assert copied(found) == []
    follow(sql, ddl="ignore")


MOVED = {
    "RENAME TABLE a TO c": (["shop.a"], ["shop.c"]),
    "RENAME TABLE a TO c, b TO a, c TO b": (["shop.a", "shop.b"], ["shop.a", "shop.b"]),
    "RENAME TABLE a TO `_a_old`, b TO a, `_a_old` TO b": (["shop.a", "shop.b"], ["shop.a", "shop.b"]),
    "RENAME TABLE a TO `_a_del`, `_a_gho` TO a, b TO c": (["shop.b"], ["shop.c"]),
    "ALTER TABLE a RENAME TO c, RENAME COLUMN id TO k": (["shop.a"], ["shop.c"]),
    "RENAME TABLE other.x TO x": ([], ["shop.x"]),
    "ALTER TABLE a RENAME COLUMN id TO k": (["shop.a"], ["shop.a"]),
    "ALTER TABLE a CHANGE id ID INT": (["shop.a"], ["shop.a"]),
    "ALTER TABLE a DROP PRIMARY KEY, ADD PRIMARY KEY (n)": (["shop.a"], ["shop.a"]),
    "ALTER TABLE a DROP PRIMARY KEY, ADD PRIMARY KEY (id, n)": (["shop.a"], ["shop.a"]),
    "ALTER TABLE a RENAME COLUMN id TO n, RENAME COLUMN n TO id": (["shop.a"], ["shop.a"]),
    "ALTER TABLE a DROP COLUMN id, ADD COLUMN id INT AUTO_INCREMENT PRIMARY KEY": (["shop.a"], ["shop.a"]),
    "ALTER TABLE a DROP PRIMARY KEY, DROP COLUMN id, RENAME COLUMN n TO id, ADD PRIMARY KEY (id)": (
        ["shop.a"],
        ["shop.a"],
    ),
    "ALTER TABLE a MODIFY id VARCHAR(20)": (["shop.a"], ["shop.a"]),
    "ALTER TABLE parted DROP PARTITION low": (["shop.parted"], ["shop.parted"]),
    "ALTER TABLE parted TRUNCATE PARTITION low": (["shop.parted"], ["shop.parted"]),
}
"""Statement -> the topics that lose their keys, and the tables that are copied again, under their names of now."""


@pytest.mark.parametrize("sql", MOVED)
def test_rows_under_other_keys_or_names_are_copied_again_or_the_load_stops(sql: str) -> None:
    with pytest.raises(LoadError, match="a topic would keep keys that no row has, or lack rows") as stopped:
        follow(sql)
    assert "set on_conversion: copy at target t" in str(stopped.value.hint)
    found = follow(sql, copy=True)
    assert (emptied(found), copied(found)) == MOVED[sql]
    follow(sql, ddl="ignore")


KEYS = {
    ("INT", "BIGINT"): {"schemas", "debezium-avro", "debezium-protobuf"},
    ("SMALLINT", "MEDIUMINT"): {"schemas", "debezium-avro"},
    ("VARCHAR(10)", "VARCHAR(30)"): set(),
    ("VARCHAR(10)", "TEXT"): set(),
    ("DATETIME", "DATETIME(3)"): {"maxwell-json"},
    ("DATETIME", "DATETIME(6)"): set(FORMATS),
    ("TIMESTAMP", "TIMESTAMP(3)"): set(FORMATS),
    ("DATE", "DATETIME"): set(FORMATS),
    ("DECIMAL(10,2)", "DECIMAL(12,4)"): set(FORMATS),
    ("ENUM('a','b')", "ENUM('a','b','c')"): {"schemas", "debezium-avro"},
    ("CHAR(5)", "BINARY(5)"): set(FORMATS),
    ("INT", "VARCHAR(11)"): set(FORMATS),
    ("BIT(1)", "BIT(8)"): {*FORMATS} - {"maxwell-json"},
}
"""Types of a key column before and after -> formats whose keys have other bytes then."""


@pytest.mark.parametrize("form", FORMATS)
def test_the_bytes_of_keys_decide_which_types_are_others(form: str) -> None:
    if form in {"debezium-avro", "debezium-protobuf"}:
        pytest.importorskip("fastavro" if form == "debezium-avro" else "google.protobuf")
    found = {}
    for old, new in KEYS:
        tables = [f"CREATE TABLE a (id {old} NOT NULL, n INT NOT NULL, PRIMARY KEY (n, id{'(5)' * (new == 'TEXT')}))"]
        sql = f"ALTER TABLE a MODIFY id {new} NOT NULL"
        found[old, new] = copied(follow(sql, tables=tables, copy=True, format=form)) == ["shop.a"]
    assert found == {pair: form in forms for pair, forms in KEYS.items()}


def test_names_of_the_mapping_count() -> None:
    """A column keeps its name at the target where the mapping says so; a key that the mapping names is the key."""
    renamed = [{"from": "shop.a", "to": "shop.a", "columns": {"rename": {"k": "id"}}}]
    assert emptied(follow("ALTER TABLE a RENAME COLUMN id TO k", mapping=renamed)) == []
    with pytest.raises(LoadError, match="column id of the key is another one now"):
        follow(
            "ALTER TABLE a DROP PRIMARY KEY, DROP COLUMN id, RENAME COLUMN n TO k, ADD PRIMARY KEY (k)", mapping=renamed
        )
    keyless = ["CREATE TABLE a (id INT NOT NULL, n INT)"]
    named = [{"from": "shop.a", "to": "shop.a", "key": ["id"]}]
    follow("ALTER TABLE a MODIFY n BIGINT", mapping=named, tables=keyless)
    with pytest.raises(LoadError, match=r"the key was \(id\) and is \(n\)"):
        follow("ALTER TABLE a ADD PRIMARY KEY (n)", mapping=named, tables=keyless)


def test_topics_that_cannot_be_emptied_stop_the_load() -> None:
    """A topic without tombstones, of Arrow rows, or with rows of other tables stops the load."""
    for options in ({"tombstones": False}, {"format": "arrow", "partitioning": "table"}):
        with pytest.raises(LoadError, match="cannot follow truncate table"):
            follow("TRUNCATE TABLE a", **options)
        with pytest.raises(
            LoadError, match=r"their keys stay in its topic; (messages of format arrow|options\.tombstones)"
        ):
            follow("DROP TABLE a", **options)
    with pytest.raises(LoadError, match=r"topic all has rows of shop\.b, too"):
        follow("DROP TABLE a", topic="all").plan(1)
    assert emptied(follow("DROP TABLE a", topic="{table}")) == ["shop.a"]
    assert emptied(follow("DROP TABLE a", topic="all", format="maxwell-json")) == ["shop.a"]


def test_the_policy_stop_asks_a_person() -> None:
    for sql in (*GONE, *MOVED):
        with pytest.raises(LoadError, match="the policy of target t is to stop"):
            follow(sql, ddl="stop")


def test_a_stream_of_changes_has_its_history() -> None:
    for sql in (*GONE, *MOVED):
        if not {"TRUNCATE", "PARTITION"} & set(sql.split()):
            assert emptied(follow(sql, changes="all")) == []


def test_what_leaves_nothing_behind_goes_on() -> None:
    for sql in (
        "CREATE TABLE c (id INT PRIMARY KEY)",
        "ALTER TABLE a ADD COLUMN m INT",
        "ALTER TABLE a DROP COLUMN n",
        "ALTER TABLE a RENAME COLUMN n TO m",
        "ALTER TABLE a ADD COLUMN m INT FIRST, DROP COLUMN n",
        "ALTER TABLE a ADD UNIQUE (n)",
        "ALTER TABLE a MODIFY id BIGINT",
        "DROP TABLE other.x",
        "DROP TABLE IF EXISTS never, nor",
        "DROP DATABASE IF EXISTS never",
    ):
        assert emptied(follow(sql)) == [], sql
    assert emptied(follow("RENAME TABLE a TO `_a_del`, `_a_gho` TO a")) == []  # a cut-over: the same rows


def test_a_cut_over_to_another_key_is_a_change_of_the_key() -> None:
    """An online schema change changes a definition without an ALTER TABLE of the table."""
    tables = [*TABLES[:2], "CREATE TABLE _a_gho (id INT, n INT NOT NULL PRIMARY KEY)"]
    cut_over = "RENAME TABLE a TO `_a_del`, `_a_gho` TO a"
    with pytest.raises(LoadError, match=r"the key was \(id\) and is \(n\)"):
        follow(cut_over, tables=tables)
    found = follow(cut_over, tables=tables, copy=True)
    assert (emptied(found), copied(found)) == (["shop.a"], ["shop.a"])


# -- HTTP: a receiver cannot be emptied --------------------------------------------------------------------------------

RECEIVER = Endpoint("c", "http", "127.0.0.1", 9)
KEPT_BY_HTTP = ["DROP TABLE unheard", "RENAME TABLE a TO `_a_del`, `_a_gho` TO a"]


@pytest.mark.parametrize("sql", [*(sql for sql in (*GONE, *MOVED) if sql not in KEPT_BY_HTTP)])
def test_a_load_to_a_receiver_stops_where_it_would_keep_rows_that_are_gone(sql: str) -> None:
    with pytest.raises(
        LoadError, match=r"no change names the rows that it is about|cannot follow (truncate table|rows removed)"
    ) as stopped:
        opened(sql, HttpTarget, RECEIVER).prepare()
    assert "topic" not in str(stopped.value)
    assert "to ignore in the ddl of target t" in str(stopped.value.hint)
    opened(sql, HttpTarget, RECEIVER, ddl="ignore").prepare()


@pytest.mark.parametrize(
    "sql",
    [
        "ALTER TABLE a ADD COLUMN m INT",
        "ALTER TABLE a MODIFY n BIGINT NOT NULL",
        "CREATE TABLE c (id INT PRIMARY KEY)",
        KEPT_BY_HTTP[1],
    ],
)
def test_a_receiver_needs_nothing_for_columns_that_come(sql: str) -> None:
    opened(sql, HttpTarget, RECEIVER).prepare()
    with pytest.raises(LoadError):
        opened(sql, HttpTarget, RECEIVER, ddl="stop").prepare()


@pytest.mark.parametrize("sql", ["DROP TABLE a", "RENAME TABLE a TO c", "ALTER TABLE a MODIFY id VARCHAR(20)"])
def test_a_receiver_of_every_change_keeps_no_rows(sql: str) -> None:
    opened(sql, HttpTarget, RECEIVER, changes="all").prepare()
