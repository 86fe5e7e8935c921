"""Statements that take rows away at the source without a change that names them, at a topic with the newest row of each key."""

from __future__ import annotations

from typing import Any, cast

import pytest

from sluice.config.connections import Endpoint
from sluice.config.pipeline import PipelineConfig
from sluice.errors import LoadError
from sluice.flows.load.schema_changes import plan_ddl
from sluice.model.positions import Position
from sluice.mysql.ddl.catalog import SchemaState, Session
from sluice.mysql.ddl.collations import Collations
from sluice.mysql.ddl.types import Flavour
from sluice.segments.manifest import DdlRecord, PositionRecord, SegmentManifest
from sluice.targets.base import BatchInput, Fence, RowReader
from sluice.targets.kafka.target import KafkaTarget, KafkaWriter

COLLATIONS = Collations({"utf8mb4_bin": "utf8mb4"}, {"utf8mb4": "utf8mb4_bin"}, {"utf8mb4": 4})
TABLES = [f"CREATE TABLE {name} (id INT PRIMARY KEY)" for name in ("a", "b", "_a_gho", "other.x")]


def follow(sql: str, *, changes: str = "latest", ddl: Any = "apply", mapping: Any = ()) -> None:
    """Let the target follow a statement. Raises LoadError."""
    state = SchemaState(Flavour("REPLACE" in sql, 90700, COLLATIONS), server_collation="utf8mb4_bin")
    for one in TABLES:
        state.fold(one, "shop", Session())
    done = state.fold(sql, "shop", Session())
    record = DdlRecord(
        file="binlog.000001", offset=9, schema="shop", sql=sql, seq=0, changes=tuple(c.to_json() for c in done)
    )
    at = PositionRecord(server_uuid="u", file="binlog.000001", offset=4)
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
        "targets": [{"name": "t", "type": "kafka", "connection": "c", "ddl": ddl, "changes": changes}],
    })  # fmt: skip
    target = KafkaTarget(config.targets[0], Endpoint("c", "kafka", "localhost", 9092), "p")
    found = plan_ddl(manifest, config, config.targets[0], target.capabilities, "mysql", lambda *_: ())
    batch = BatchInput(1, Position("u", "binlog.000001", 9), 0, cast(RowReader, None), schema_changes=found)
    KafkaWriter(target, batch, Fence(1, 1, 0)).prepare()


STOPS = {
    "DROP TABLE a": "its topic",
    "DROP TABLE IF EXISTS other.x, b": "rows of shop.b are gone",
    "DROP TABLE IF EXISTS never, b": "rows of shop.b are gone",
    "DROP TABLE unheard": "rows of shop.unheard are gone",
    "DROP DATABASE shop": "rows of shop.a are gone",
    "CREATE OR REPLACE TABLE a (id INT PRIMARY KEY)": "was replaced",
    "RENAME TABLE a TO c": "stay in the topic of the old name",
    "ALTER TABLE a RENAME TO other.a": "stay in the topic of the old name",
    "RENAME TABLE a TO c, b TO a, c TO b": "stay in the topic of the old name",
    "RENAME TABLE other.x TO x": "has no row of it",
    "TRUNCATE TABLE a": "cannot follow truncate table",
}


@pytest.mark.parametrize("sql", STOPS)
def test_the_load_stops_as_it_does_for_truncate(sql: str) -> None:
    with pytest.raises(LoadError, match=STOPS[sql]):
        follow(sql)
    follow(sql, ddl="ignore")


def test_a_stream_of_changes_has_its_history() -> None:
    for sql in STOPS:
        if "TRUNCATE" not in sql:
            follow(sql, changes="all")


def test_what_leaves_nothing_behind_goes_on() -> None:
    follow("CREATE TABLE c (id INT PRIMARY KEY)")
    follow("ALTER TABLE a ADD COLUMN n INT")
    follow("DROP TABLE other.x")
    follow("DROP TABLE IF EXISTS never, nor")
    follow("DROP DATABASE IF EXISTS never")
    follow("RENAME TABLE a TO `_a_del`, `_a_gho` TO a")  # a cut-over: the same rows
