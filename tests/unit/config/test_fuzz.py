"""Mutated pipeline files, rule files, rules and conditions: each ends soon, with its values or with an error of ours.

How many: see :mod:`tests.support.grammar.mutations`. Bodies of the API are mutated in ``tests/dags/test_page.py``.
"""

from __future__ import annotations

import math
import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from sluice.config.engine import EngineConfig
from sluice.config.loading import load_model, load_pipeline
from sluice.errors import SluiceError
from sluice.mapping import Mapping
from sluice.model.tables import TableId
from sluice.mysql.condition import rendered
from sluice.rules import RuleSet
from tests.support.grammar.mutations import COUNT, SEED, SLOW, mutated

PIPELINE = """\
version: 1
pipeline: shop
description: "für alle"
source: {connection: shop_mysql, server_id: auto, start: {file: binlog.000001, offset: 4}}
capture:
  include: ["shop\\\\..*"]
  exclude: ["shop\\\\.tmp_.*"]
  events: [insert, update, delete, ddl]
  batch: {max_changes: 2000000, max_bytes: 512MiB, max_wait: 500ms}
  segments: {uri: "file:///var/lib/sluice", retain: 7d}
  readers: 4
schedule: "*/5 * * * *"
window: 3
spark: {mode: connect, connection: spark_connect_default, from_changes: 5000}
coordination: {connection: zookeeper_default, root: /data/sync, session_timeout: 10s, grace: 90s}
rules: engine.yaml
masked: ["shop\\\\.customers\\\\.email"]
mapping:
  - from: 'shop_(\\d+)\\.(\\w+)'
    to: 'all.\\2'
    weight: 10
    columns: {exclude: [note], rename: {ts: created_at}, convert: {at: {time_zone: UTC}}}
    column_groups: [[country, city]]
targets:
  - {name: reporting, type: mysql, connection: reporting_mysql, parallelism: 4, ddl: {default: apply, drop_table: stop}}
retry: {attempts: 5, delay: 2s, max_delay: 30s}
dump: {chunk_rows: 1000, delay: 0s, replicas: [a, b]}
"""
ENGINE = """\
version: 1
rules:
  - {name: tidy, path: tidy.py, type: row, order: 1, match: {schema: shop, table: ".*", events: [insert]}, params: {a: 1}, timeout: 10s}
  - {name: hide, builtin: mask, params: {columns: [email], keep_last: 3}, on_error: stop}
  - {name: sql, path: r.sql, type: sql, lookups: {d: {file: d.csv, key: id, max_age: 5m, max_rows: 10}}, emits: {shop.x: [id]}}
"""
RULE = (
    "class Params:\n    a: int = 1\n\ndef transform(row, context):\n    row['x'] = context.params.a\n    return row\n"
)
QUERY = "-- param a: int = 1\nSELECT *, $a AS x FROM rows WHERE id > 3"
WHERE = "id = 1 AND (v LIKE '%x' OR d > NOW() - INTERVAL 1 DAY) AND COALESCE(v, \"q\") IN ('a', 0x61) -- "


def sane(value: Any) -> None:
    """What was taken has no number without bounds, and no text that cannot be stored."""
    if isinstance(value, dict):
        for pair in value.items():
            for part in pair:
                sane(part)
    elif isinstance(value, list | tuple | set):
        for part in value:
            sane(part)
    elif isinstance(value, float):
        assert math.isfinite(value)
    elif isinstance(value, int):
        assert abs(value) < 2**64
    elif isinstance(value, timedelta):
        assert timedelta(0) <= value <= timedelta(days=36500)
    elif isinstance(value, str):
        value.encode()
        assert "\x1b" not in value


@pytest.mark.slow
@pytest.mark.timeout(0 if COUNT > 1000 else 300)
@pytest.mark.parametrize("what", ["pipeline", "engine"])
def test_files(tmp_path: Path, what: str) -> None:
    choose = random.Random(f"{SEED}{what}")
    path = tmp_path / "p.yaml"
    taken = 0
    for _ in range(COUNT):
        path.write_bytes(mutated(choose, PIPELINE if what == "pipeline" else ENGINE))
        try:
            if what == "pipeline":
                pipeline = load_pipeline(path)
                sane(pipeline.model_dump(exclude={"targets"}))
                routes = Mapping.compile(pipeline.mapping)
                for name in ("shop_1.orders", "shop.orders", "x.y"):
                    routes.route(TableId(*name.split(".")))
            else:
                sane(load_model(path, EngineConfig).model_dump(exclude={"rules": {"__all__": {"params"}}}))
        except SluiceError as error:
            said = error
        else:
            said = None
            taken += 1
        assert said is None or (said.where or "").startswith(str(path))
        str(said).encode()
    assert taken < COUNT // 2


@pytest.mark.timeout(0 if COUNT > 1000 else 300)
@pytest.mark.parametrize("kind", ["row", "sql"])
def test_rules(tmp_path: Path, kind: str) -> None:
    choose = random.Random(f"{SEED}{kind}")
    file = tmp_path / ("r.py" if kind == "row" else "r.sql")
    (tmp_path / "engine.yaml").write_text(f"rules: [{{name: r, path: {file.name}, type: {kind}, timeout: 5s}}]")
    for _ in range(SLOW):
        file.write_bytes(mutated(choose, RULE if kind == "row" else QUERY))
        said = None
        try:
            RuleSet.load(tmp_path / "engine.yaml").validate()
        except SluiceError as error:
            said = error
        assert said is None or said.where


@pytest.mark.timeout(0 if COUNT > 1000 else 300)
def test_conditions() -> None:
    choose = random.Random(f"{SEED}where")
    table, columns = TableId("s", "t"), ["id", "v", "d"]
    for _ in range(COUNT):
        text = mutated(choose, WHERE).decode("utf-8", "replace")
        try:
            sent = rendered(text, table, columns)
        except SluiceError:
            continue
        assert rendered(sent, table, columns) == sent
        assert sent.isascii()
        assert not any(word in sent for word in ("/*", "--", ";", "@", "SLEEP", "SELECT", "\\"))
